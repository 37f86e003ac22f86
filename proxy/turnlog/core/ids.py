"""Identifiers that sort by time (UUIDv7, RFC 9562 section 5.7)."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final
from uuid import UUID

_BLOCK_BYTES = 4096
_RANDOM_BYTES = 10  # of an identifier, with the bits of version and variant among them
_RANDOM_MASK = b"\x0f\xff\x3f".ljust(_RANDOM_BYTES, b"\xff")
_VERSION_BITS = b"\x70\x00\x80".ljust(_RANDOM_BYTES, b"\0")
_LATEST = 0xFFFF_FFFF_FFFF  # ms since 1970


class Entropy:
    """Random bytes, read from `source` in blocks because a system call for each is slow.

    For one thread, and not across a fork: both could return the same bytes twice.
    """

    def __init__(self, source: Callable[[int], bytes]) -> None:
        self._source = source
        self._drawn = b""
        self._used = 0

    def take(self, count: int) -> bytes:
        """Return `count` bytes, at most 4096, that were not returned before."""
        start = self._used
        if start + count > len(self._drawn):
            self._drawn, start = self._source(_BLOCK_BYTES), 0
        self._used = start + count
        return self._drawn[start : start + count]


class Ids:
    """Makes identifiers, in one thread and not across a fork, as `Entropy`."""

    def __init__(self, source: Callable[[int], bytes]) -> None:
        self._source = source
        self._ends: Iterator[bytes] = iter(())

    def new(self, at: int) -> bytes:
        """Return 16 bytes of a UUIDv7. `at` is in ns since 1970 UTC."""
        end = next(self._ends, b"")
        if not end:
            # Made in a block they cost a tenth of the time.
            parts = _random_parts(self._source(_BLOCK_BYTES))
            starts = range(0, len(parts), _RANDOM_BYTES)
            self._ends = iter([parts[start : start + _RANDOM_BYTES] for start in starts])
            end = next(self._ends)
        return (at // 1_000_000 & _LATEST).to_bytes(6) + end


def uuid7(at: int, entropy: bytes) -> bytes:
    """Return 16 bytes of a UUIDv7. `at` is in ns since 1970 UTC; `entropy` holds 10 random bytes."""
    return (at // 1_000_000 & _LATEST).to_bytes(6) + _random_parts(entropy)


def _random_parts(entropy: bytes) -> bytes:
    """Return the last 10 bytes of as many identifiers as `entropy` suffices for."""
    count = len(entropy) // _RANDOM_BYTES
    free, fixed = (int.from_bytes(part * count) for part in (_RANDOM_MASK, _VERSION_BITS))
    drawn = int.from_bytes(entropy[: count * _RANDOM_BYTES])
    return (drawn & free | fixed).to_bytes(count * _RANDOM_BYTES)


@lru_cache(maxsize=4096)
def to_text(identifier: bytes) -> str:
    """Return the hyphenated form of a 16-byte identifier; nothing of an empty one."""
    if not identifier:
        return ""
    start, middle, end = identifier[:4], identifier[4:10], identifier[10:]
    return f"{start.hex()}-{middle.hex('-', 2)}-{end.hex()}"


SHORTEST_PREFIX: Final = 4
"""Digits of the beginning of an id by which something is looked for."""


def too_short(text: str) -> str:
    """Return why the beginning of an id is not looked for; empty if it is long enough."""
    digits = text.replace("-", "")
    if len(digits) >= SHORTEST_PREFIX or set(digits.lower()) - set("0123456789abcdef"):
        return ""
    return f"{text!r} is too short, write at least {SHORTEST_PREFIX} digits of the id"


def has_prefix(identifier: bytes, text: str) -> bool:
    """Return whether an identifier begins with `text`, with hyphens or without."""
    start = text.lower()
    return to_text(identifier).startswith(start) or identifier.hex().startswith(start)


def from_text(text: str) -> bytes:
    """Return the 16 bytes of a UUID in text form. Raises `ValueError` if it is none."""
    return UUID(text).bytes
