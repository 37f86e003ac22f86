"""Check a session's chain: a pure function over what is stored.

What it proves: any change that does not also rewrite every later header. (The newest has none; the
store's seals speak for it.) Against an anchor that was exported earlier and kept elsewhere, that
too. Bodies and stored content may be gone, not other than they were.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

import msgspec
from msgspec import Struct

from turnlog.core.commit import (
    GENESIS,
    Link,
    body_digest,
    decode_body,
    decode_header,
    decode_link,
    digest,
)
from turnlog.core.kinds import CommitKind
from turnlog.store.base import Gone

Stored = tuple[int, bytes, bytes | None]
"""Position, header bytes, body bytes or `None` where the body is gone."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding damaged bytes raises."""


class Verdict(StrEnum):
    """What became of a session's log."""

    OK = "ok"
    REDACTED_OK = "redacted_ok"
    GAP = "gap"
    MUTATED = "mutated"
    REORDERED = "reordered"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"

    @property
    def intact(self) -> bool:
        """Tell whether nothing was changed but by turnlog's own redaction."""
        return self is Verdict.OK or self is Verdict.REDACTED_OK


class Anchor(Struct, frozen=True):
    """A commit that is known to have been there."""

    seq: int
    hash: bytes


class Finding(Struct, frozen=True, kw_only=True):
    """The result for one session. `seq` is the first bad one, or `None`."""

    verdict: Verdict
    commits: int
    bodies_dropped: int = 0
    seq: int | None = None
    detail: str = ""
    gone: dict[Gone, int] = {}
    """How many payloads cannot be read any more, by the reason."""


class _Problem(Struct, frozen=True):
    verdict: Verdict
    seq: int
    detail: str


def verify(
    session: bytes,
    records: Iterable[Stored],
    anchors: Iterable[Anchor] = (),
    *,
    gone: Callable[[bytes], Gone | None] = lambda _: None,
) -> Finding:
    """Check a session's records, given in seq order.

    `gone` says why the content under a handle cannot be read.
    """
    walk = _Walk(session, anchors, gone)
    rest = iter(records)
    for record in rest:
        problem = walk.step(record, rest)
        if problem is not None:
            return walk.finding(problem)
    return walk.finding(walk.end())


class _Walk:
    """What the records so far have shown."""

    def __init__(
        self,
        session: bytes,
        anchors: Iterable[Anchor],
        gone: Callable[[bytes], Gone | None],
    ) -> None:
        self.session = session
        self.why_gone = gone
        self.gone: Counter[Gone] = Counter()
        self.anchors = {anchor.seq: anchor.hash for anchor in anchors}
        self.count = 0
        self.position = -1
        self.prev = GENESIS
        self.dropped = 0
        self.unexplained: list[int] = []
        """seqs whose body is gone, with no redact commit yet behind them."""

    def step(self, record: Stored, rest: Iterator[Stored]) -> _Problem | None:
        """Check one record against those before it; `rest` is read only after a bad one."""
        position, header, body = record
        link = _link(header)
        if link is None:
            return _Problem(Verdict.MUTATED, self.count, "it cannot be read")
        # Decoding what a commit says costs three times its link; only a lost body asks for it.
        if self.unexplained and _is_redact(header):
            self.unexplained.clear()
        hash_ = digest(header)
        problem = (
            self._misplaced(position, link, rest)
            or self._unchained(link, hash_, rest)
            or self._changed(link, hash_, body)
        )
        self.position = position
        self.prev = hash_
        self.count += 1
        return problem

    def _misplaced(self, position: int, link: Link, rest: Iterator[Stored]) -> _Problem | None:
        if link.session != self.session:
            return _Problem(Verdict.MUTATED, self.count, "another session's commit stands here")
        if link.seq < self.count or position <= self.position:
            return _Problem(Verdict.REORDERED, link.seq, "it stands in another's place")
        if link.seq == self.count:
            return None
        found = f"seq {link.seq} stands in its place"
        links = (_link(header) for _, header, _ in rest)
        later = any(other.seq == self.count for other in links if other)
        return _Problem(Verdict.REORDERED if later else Verdict.GAP, self.count, found)

    def _unchained(self, link: Link, hash_: bytes, rest: Iterator[Stored]) -> _Problem | None:
        if link.prev == self.prev:
            return None
        after = next(rest, None)
        # The commit behind this one says whether this one is as it was; if so, the one before
        # was changed. At the end of the log the earlier one is named.
        following = _link(after[1]) if after else None
        changed_here = following is not None and following.prev != hash_
        seq = link.seq if changed_here else max(link.seq - 1, 0)
        return _Problem(Verdict.MUTATED, seq, "its hash is not what the next commit says")

    def _changed(self, link: Link, hash_: bytes, body: bytes | None) -> _Problem | None:
        if link.body_hash and not body:
            self.dropped += 1
            self.unexplained.append(link.seq)
        elif body_digest(body or b"") != link.body_hash:
            return _Problem(Verdict.MUTATED, link.seq, "its body was changed")
        if self.anchors.get(link.seq, hash_) != hash_:
            return _Problem(Verdict.MUTATED, link.seq, "it is not what the anchor says")
        for name, stored in _content(body):
            why = self.why_gone(stored)
            if why is Gone.DAMAGED:
                return _Problem(Verdict.MUTATED, link.seq, f"its {name} is {why}")
            if why is not None:
                self.gone[why] += 1
        return None

    def end(self) -> _Problem | None:
        """Check what only the whole can show."""
        newest = max(self.anchors, default=-1)
        if newest >= self.count:
            return _Problem(Verdict.TRUNCATED, self.count, f"seq {newest} was there once")
        if self.unexplained:
            detail = "its body is gone and no redact commit says why"
            return _Problem(Verdict.MUTATED, self.unexplained[0], detail)
        return None

    def finding(self, problem: _Problem | None) -> Finding:
        """Return what was found out."""
        if problem is None:
            verdict = Verdict.REDACTED_OK if self.dropped else Verdict.OK
            return Finding(
                verdict=verdict,
                commits=self.count,
                bodies_dropped=self.dropped,
                detail=", ".join(f"{_payloads(n)} {why}" for why, n in self.gone.items()),
                gone=dict(self.gone),
            )
        return Finding(
            gone=dict(self.gone),
            verdict=problem.verdict,
            commits=self.count,
            bodies_dropped=self.dropped,
            seq=problem.seq,
            detail=problem.detail,
        )


def _content(body: bytes | None) -> list[tuple[str, bytes]]:
    """Return what a body names of stored content."""
    try:
        said = decode_body(body) if body else None
    except UNREADABLE:
        return []
    if said is None:
        return []
    named = (("stored input", said.input_blob), ("stored output", said.output_blob))
    return [(name, handle) for name, handle in named if handle]


def _payloads(number: int) -> str:
    return "1 payload" if number == 1 else f"{number} payloads"


def _is_redact(header: bytes) -> bool:
    try:
        return decode_header(header)[1].kind is CommitKind.REDACT
    except UNREADABLE:
        return False


def _link(header: bytes) -> Link | None:
    try:
        return decode_link(header)
    except UNREADABLE:
        return None
