"""Seals: what tells that the log is as it was written, up to its newest record.

A header is protected by the one behind it, which holds its hash; the newest of a session by the
index, but only once it is indexed. So each run of headers ends in a seal: a digest over the seal
before it, its key and its records. The newest seal stands once more, with its position, beside the
names of the tables, in a page that each transaction writes anyway: nothing may be missing at the
end. Nothing is secret here: who can write the store can also seal it anew.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec

from turnlog.core.commit import decode_header
from turnlog.store.base import Flaw, FlawKind

from . import blocks
from .keys import NEWEST_SEAL, SEAL, number, unpack
from .tables import Pair, Tables, Txn

NONE = bytes(SEAL)
"""Stands before the first run."""


def sealed(items: Sequence[Pair], before: bytes) -> list[Pair]:
    """Return runs with their seals at the end; `before` is the newest seal of the log."""
    found: list[Pair] = []
    for key, run in items:
        before = _seal(before, key, run)
        found.append((key, run + before))
    return found


def read_newest(txn: Txn) -> bytes:
    """Return the newest seal of the log."""
    return txn.get(NEWEST_SEAL, number(0) + NONE)[8:]


def flaws(txn: Txn, tables: Tables) -> Iterator[Flaw]:
    """Yield what is wrong with the log, in order of position."""
    walk = _Walk()
    with txn.cursor(tables.log) as cursor:
        for key, value in cursor:
            yield from walk.step(key, value)
    yield from walk.end(txn.get(NEWEST_SEAL, number(0) + NONE))


class _Walk:
    """What the runs so far have shown."""

    def __init__(self) -> None:
        self.last = 0
        self.first = 1
        """Of the run before."""
        self.before = NONE
        self.sound = True
        """Whether `before` can be relied on."""

    def step(self, key: bytes, value: bytes) -> Iterator[Flaw]:
        """Check a run against the one before."""
        run, seal = value[:-SEAL], value[-SEAL:]
        headers = blocks.unpack(run)
        expected, self.last = self.last + 1, unpack(key)
        self.first = self.last - len(headers) + 1
        lost = [
            position
            for position in range(expected, self.last + 1)
            if position < self.first or not _readable(headers[position - self.first])
        ]
        yield from _ranges(lost)
        as_sealed = seal == _seal(self.before, key, run)
        if self.sound and not lost and not as_sealed:
            yield Flaw(self.first, self.last, FlawKind.ALTERED)
        # What is behind a bad run cannot be told from it: the next one is taken as it is.
        self.sound = as_sealed or not self.sound
        self.before = seal

    def end(self, newest: bytes) -> Iterator[Flaw]:
        """Check that nothing is missing at the end."""
        last = unpack(newest[:8])
        if last > self.last:
            yield Flaw(self.last + 1, last, FlawKind.MISSING)
        elif self.sound and newest != number(self.last) + self.before:
            yield Flaw(self.first, self.last, FlawKind.ALTERED)


def _seal(before: bytes, key: bytes, run: bytes) -> bytes:
    return sha256(b"".join((before, key, run))).digest()[:SEAL]


def _ranges(positions: Sequence[int]) -> Iterator[Flaw]:
    first = 0
    for here, after in zip(positions, (*positions[1:], 0), strict=False):
        first = first or here
        if after != here + 1:
            yield Flaw(first, here, FlawKind.UNREADABLE)
            first = 0


def _readable(header: bytes) -> bool:
    try:
        decode_header(header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
