"""Digests of blocks, which show that the log is unchanged and complete up to its newest record.

A header's hash is in the next header of its session; that of the newest one is only in the index,
and there only once it is indexed. So each block of headers ends with a digest of the digest before
it, its key and its records. The newest digest is stored a second time, with its position, beside the
names of the tables, in a page that each transaction writes anyway: it shows that no block is missing
at the end. No key is involved: a process that can write the store can compute all digests anew.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec

from turnlog.core.commit import decode_header
from turnlog.store.base import Flaw, FlawKind

from . import blocks
from .environment import Txn
from .keys import DIGEST_BYTES, NEWEST_DIGEST, number, unpack
from .tables import Pair, Tables

NONE = bytes(DIGEST_BYTES)
"""The digest before the first block."""


def with_digests(items: Sequence[Pair], before: bytes) -> list[Pair]:
    """Return blocks with their digests at the end; `before` is the newest digest of the log."""
    found: list[Pair] = []
    for key, block in items:
        before = _digest(before, key, block)
        found.append((key, block + before))
    return found


def read_newest(txn: Txn) -> bytes:
    """Return the newest digest of the log."""
    return txn.get(NEWEST_DIGEST, number(0) + NONE)[8:]


def flaws(txn: Txn, tables: Tables) -> Iterator[Flaw]:
    """Yield the flaws of the log, in order of position."""
    walk = _Walk()
    with txn.cursor(tables.log) as cursor:
        for key, value in cursor:
            yield from walk.step(key, value)
    yield from walk.end(txn.get(NEWEST_DIGEST, number(0) + NONE))


class _Walk:
    """State of a walk over the blocks, in order of position."""

    def __init__(self) -> None:
        self.last = 0
        self.first = 1
        """Position of the first record of the block before."""
        self.before = NONE
        self.sound = True
        """Whether `before` can be relied on."""

    def step(self, key: bytes, value: bytes) -> Iterator[Flaw]:
        """Check a block against the one before."""
        block, digest = value[:-DIGEST_BYTES], value[-DIGEST_BYTES:]
        headers = blocks.unpack(block)
        expected, self.last = self.last + 1, unpack(key)
        self.first = self.last - len(headers) + 1
        lost = [
            position
            for position in range(expected, self.last + 1)
            if position < self.first or not _readable(headers[position - self.first])
        ]
        yield from _ranges(lost)
        as_written = digest == _digest(self.before, key, block)
        if self.sound and not lost and not as_written:
            yield Flaw(self.first, self.last, FlawKind.ALTERED)
        # Nothing behind a bad block can be checked against it: the next one is taken as it is.
        self.sound = as_written or not self.sound
        self.before = digest

    def end(self, newest: bytes) -> Iterator[Flaw]:
        """Check that nothing is missing at the end."""
        last = unpack(newest[:8])
        if last > self.last:
            yield Flaw(self.last + 1, last, FlawKind.MISSING)
        elif self.sound and newest != number(self.last) + self.before:
            yield Flaw(self.first, self.last, FlawKind.ALTERED)


def _digest(before: bytes, key: bytes, block: bytes) -> bytes:
    return sha256(b"".join((before, key, block))).digest()[:DIGEST_BYTES]


def _ranges(positions: Sequence[int]) -> Iterator[Flaw]:
    first = 0
    for here, after in zip(positions, (*positions[1:], 0), strict=False):
        first = first or here
        if after != here + 1:
            yield Flaw(first, here, FlawKind.UNREADABLE)
            first = 0


def _readable(header: bytes) -> bool:
    with suppress(msgspec.DecodeError):
        decode_header(header)
        return True
    return False
