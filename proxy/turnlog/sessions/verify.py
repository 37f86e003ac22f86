"""Check the hash chain of a session. Pure: it gets the stored records as arguments.

It finds any change that does not also rewrite every later header of the session; the store's digests
cover the newest. With an anchor that was kept elsewhere it also finds those up to the anchor.
Bodies and payloads may be missing, but not changed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from turnlog.core import ids
from turnlog.core.commit import (
    GENESIS,
    Facts,
    Link,
    body_digest,
    decode_body,
    decode_header,
    decode_link,
    digest,
)
from turnlog.core.kinds import CommitKind, Gone
from turnlog.core.text.units import counted
from turnlog.store.base import Blob

T = TypeVar("T")
Stored = tuple[int, bytes, bytes | None]
"""Position, header bytes, and body bytes or `None` when the body was deleted."""


class ChainVerdict(StrEnum):
    """The state of a session's log."""

    OK = "ok"
    REDACTED_OK = "redacted_ok"
    GAP = "gap"
    MUTATED = "mutated"
    REORDERED = "reordered"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"

    @property
    def intact(self) -> bool:
        """Whether nothing changed except by turnlog's own deletion of bodies."""
        return self is ChainVerdict.OK or self is ChainVerdict.REDACTED_OK


class Anchor(Struct, frozen=True):
    """The hash of a commit, recorded elsewhere."""

    seq: int
    hash: bytes


class Finding(Struct, frozen=True, kw_only=True):
    """One line of `turnlog verify --json`; `seq` is that of the first bad commit, if any."""

    session: str | None
    """`null` for records whose session is not known."""
    verdict: ChainVerdict
    commits: int = 0
    bodies_dropped: int = 0
    seq: int | None = field(name="bad_seq", default=None)
    detail: str = ""
    gone: dict[Gone, int] = {}
    """Number of payloads that can no longer be read, by reason."""


class _BadCommit(Struct, frozen=True):
    verdict: ChainVerdict
    seq: int
    detail: str


def verify(
    session: bytes,
    records: Iterable[Stored],
    anchors: Iterable[Anchor] = (),
    *,
    read: Callable[[bytes], Blob | Gone] = lambda _: Blob(b""),
    parent: Callable[[bytes, int], bytes | None] = lambda _, __: None,
) -> Finding:
    """Check a session's records, given in seq order.

    `read` returns the payload under a handle, or why it cannot be read; `parent` the hash of another
    session's commit, if it is known.
    """
    walk = _ChainCheck(session, anchors, read, parent)
    rest = iter(records)
    for record in rest:
        problem = walk.step(record, rest)
        if problem is not None:
            return walk.finding(problem)
    return walk.finding(walk.end())


class _ChainCheck:
    """The check of one session, record by record."""

    def __init__(
        self,
        session: bytes,
        anchors: Iterable[Anchor],
        read: Callable[[bytes], Blob | Gone],
        parent: Callable[[bytes, int], bytes | None],
    ) -> None:
        self.session = session
        self.read = read
        self.gone: Counter[Gone] = Counter()
        self.anchors = {anchor.seq: anchor.hash for anchor in anchors}
        self.parent = parent
        self.first = self.count = 0
        """seq of the first commit, and of the one that is expected next."""
        self.position = -1
        self.prev = GENESIS
        self.dropped = 0
        self.unexplained: list[tuple[int, str]] = []
        """seqs of deleted bodies without a later redact commit so far, and their servers."""

    def step(self, record: Stored, rest: Iterator[Stored]) -> _BadCommit | None:
        """Check one record against those before it; `rest` is read only to explain a bad one."""
        position, header, body = record
        link = _read(decode_link, header)
        if link is None:
            return _BadCommit(ChainVerdict.MUTATED, self.count, "it cannot be read")
        if self.position < 0 and link.seq and (parent := _parent(header)):
            # A fork goes on behind a commit of its parent, which may be in another store.
            shared = self.parent(parent, link.seq - 1)
            if shared is not None and shared != link.prev:
                detail = "its parent has another commit where they parted"
                return _BadCommit(ChainVerdict.MUTATED, link.seq, detail)
            self.first = self.count = link.seq
            self.prev = link.prev
        # Decoding a whole header costs three times its link, and only a deleted body needs it.
        if self.unexplained and (redact := _redact(header)) is not None:
            until, server = _until(link), redact.server
            self.unexplained = [
                (seq, of) for seq, of in self.unexplained if seq > until or server not in ("", of)
            ]
        hash_ = digest(header)
        problem = (
            self._misplaced(position, link, rest)
            or self._unchained(link, hash_, rest)
            or self._changed(header, link, hash_, body)
        )
        self.position = position
        self.prev = hash_
        self.count += 1
        return problem

    def _misplaced(self, position: int, link: Link, rest: Iterator[Stored]) -> _BadCommit | None:
        if link.session != self.session:
            return _BadCommit(
                ChainVerdict.MUTATED, self.count, "another session's commit stands here"
            )
        if link.seq < self.count or position <= self.position:
            return _BadCommit(ChainVerdict.REORDERED, link.seq, "it stands in another's place")
        if link.seq == self.count:
            return None
        found = f"seq {link.seq} stands in its place"
        links = (_read(decode_link, header) for _, header, _ in rest)
        later = any(other.seq == self.count for other in links if other)
        return _BadCommit(ChainVerdict.REORDERED if later else ChainVerdict.GAP, self.count, found)

    def _unchained(self, link: Link, hash_: bytes, rest: Iterator[Stored]) -> _BadCommit | None:
        if link.prev == self.prev:
            return None
        after = next(rest, None)
        # The next commit's `prev` shows whether this one is unchanged; if it is, the previous one
        # was changed. At the end of the log the previous one is named.
        following = _read(decode_link, after[1]) if after else None
        changed_here = following is not None and following.prev != hash_
        seq = link.seq if changed_here else max(link.seq - 1, 0)
        return _BadCommit(ChainVerdict.MUTATED, seq, "its hash is not what the next commit says")

    def _changed(
        self, header: bytes, link: Link, hash_: bytes, body: bytes | None
    ) -> _BadCommit | None:
        if link.body_hash and not body:
            self.dropped += 1
            halves = _read(decode_header, header)
            self.unexplained.append((link.seq, halves[1].server if halves else ""))
        elif body_digest(body or b"") != link.body_hash:
            return _BadCommit(ChainVerdict.MUTATED, link.seq, "its body was changed")
        if self.anchors.get(link.seq, hash_) != hash_:
            return _BadCommit(ChainVerdict.MUTATED, link.seq, "it is not what the anchor says")
        for name, stored in _payload_handles(body):
            found = self.read(stored)
            if found is Gone.DAMAGED:
                return _BadCommit(ChainVerdict.MUTATED, link.seq, f"its {name} is {found}")
            if isinstance(found, Gone):
                self.gone[found] += 1
        return None

    def end(self) -> _BadCommit | None:
        """Check what only shows after the last record."""
        newest = max(self.anchors, default=-1)
        if newest >= self.count:
            return _BadCommit(ChainVerdict.TRUNCATED, self.count, f"seq {newest} was there once")
        if self.unexplained:
            detail = "its body is gone and no redact commit says why"
            return _BadCommit(ChainVerdict.MUTATED, self.unexplained[0][0], detail)
        return None

    def finding(self, problem: _BadCommit | None) -> Finding:
        """Return the result."""
        gone = ", ".join(f"{counted(number, 'payload')} {why}" for why, number in self.gone.items())
        fine = ChainVerdict.REDACTED_OK if self.dropped else ChainVerdict.OK
        return Finding(
            session=ids.to_text(self.session),
            verdict=problem.verdict if problem else fine,
            commits=self.count - self.first,
            bodies_dropped=self.dropped,
            seq=problem.seq if problem else None,
            detail=problem.detail if problem else gone,
            gone=dict(self.gone),
        )


def _payload_handles(body: bytes | None) -> list[tuple[str, bytes]]:
    """Return the payloads that a body refers to, with their handles."""
    said = _read(decode_body, body) if body else None
    if said is None:
        return []
    named = (("stored input", said.input_blob), ("stored output", said.output_blob))
    return [(name, handle) for name, handle in named if handle]


def _until(redact: Link) -> int:
    """Return the newest commit that a redaction speaks of."""
    return redact.seq if redact.ref is None else redact.ref


def _parent(header: bytes) -> bytes:
    """Return the session that a first commit forks from; empty if it does not."""
    halves = _read(decode_header, header)
    if halves is None or halves[1].kind is not CommitKind.OPEN or not halves[1].note:
        return b""
    return bytes.fromhex(halves[1].note)


def _redact(header: bytes) -> Facts | None:
    """Return what a commit that redacts says; `None` for any other."""
    halves = _read(decode_header, header)
    return halves[1] if halves is not None and halves[1].kind is CommitKind.REDACT else None


def _read(decode: Callable[[bytes], T], data: bytes) -> T | None:
    """Return what a decoder makes of stored bytes; `None` if it cannot read them."""
    try:
        return decode(data)
    except msgspec.DecodeError:
        return None
