"""One moment of the store: derived tables up to the watermark, and the tail behind it in memory."""

import heapq
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec
from msgspec import Struct, structs

from turnlog.core.call_status import CallState
from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind, Gone
from turnlog.store.base import Corrupt
from turnlog.store.log.environment import Environment, Txn
from turnlog.store.log.index import Entry, Head, Segment, commit_of, fold_head, read_entry
from turnlog.store.log.index_writer import call_state_after
from turnlog.store.log.keys import WATERMARK, control_term, link_key, unpack
from turnlog.store.log.tables import (
    NEVER,
    Table,
    Tables,
    block_positions,
    decode_call_state,
    keys_with,
    newest_record,
    read_head,
    read_number,
    read_record,
    read_segment,
    session_positions,
    terms_after,
)


class TailCache:
    """Caches the tail of the log between views, so that each decodes only new commits.

    `written` returns the tail as the writer of the same process knows it, if there is one: of what
    it has written itself nothing needs to be decoded.
    """

    def __init__(self, written: Callable[[], Segment] | None = None) -> None:
        self._written = written
        self._segment = Segment(0)
        self._lock = threading.Lock()

    def get(self, txn: Txn, tables: Tables) -> tuple[Segment, int]:
        """Return the tail and the last position that counts for this snapshot."""
        watermark = read_number(txn, tables, WATERMARK)
        last, header = newest_record(txn, tables)
        if self._written is not None:
            written = self._written()
            if written.after == watermark and _is_known(written, last, header):
                return written, last
        with self._lock:
            if self._segment.after < watermark:
                self._segment = Segment(watermark)
            if self._segment.after == watermark:
                return read_segment(txn, tables, self._segment, last), last
        # A view that stayed open while others moved on.
        return read_segment(txn, tables, Segment(watermark), last), last


class Redaction(Struct, frozen=True):
    """A `redact` commit: the bodies up to `until` are gone, but for those that it spares."""

    seq: int
    until: int
    why: Gone
    server: str
    """Of which server's calls they are; empty for all commits."""


def _redaction(entry: Entry) -> Redaction:
    link = entry.link
    try:
        why = Gone(entry.facts.note)
    except ValueError:
        why = Gone.EXPIRED  # the word of a later version
    until = link.seq if link.ref is None else link.ref
    return Redaction(link.seq, until, why, entry.facts.server)


class Snapshot:
    """Look-ups that see tables and tail as one. Positions ascend unless newest first is asked."""

    def __init__(self, env: Environment, tables: Tables, tails: TailCache) -> None:
        self.txn: Txn = env.read()
        self.tables = tables
        try:
            # The log behind the watermark, and the position of the newest commit: what the tail has
            # beyond that belongs to later snapshots.
            self.tail, self.last = tails.get(self.txn, tables)
        except BaseException:
            self.txn.abort()
            raise
        self.left_out: set[int] = set()
        """Positions of unreadable records that were left out."""
        self._redactions: dict[bytes, list[Redaction]] = {}

    def close(self) -> None:
        """End the read transaction: one that stays open keeps old pages from being used again."""
        self.txn.abort()

    def entry(self, position: int) -> Entry:
        """Return the commit at a position. Raises `Corrupt`."""
        tail = self.tail
        if tail.after < position <= tail.last:
            entry = tail.entry(position)
            if entry:
                return entry
        header = read_record(self.txn, self.tables.log, position)
        if header is None:
            raise Corrupt(
                f"the record at position {position} is missing; run `turnlog verify`", position
            )
        try:
            return read_entry(position, header)
        except msgspec.DecodeError as error:
            raise Corrupt(
                f"the record at position {position} is damaged: {error}; run `turnlog verify`",
                position,
            ) from error

    def readable(self, position: int) -> Entry | None:
        """Return the commit at a position; `None`, and counted as left out, where it is damaged."""
        try:
            return self.entry(position)
        except Corrupt:
            self.left_out.add(position)
            return None

    def readable_commit(self, entry: Entry) -> Commit:
        """Return the commit that readers see; without its body, and counted as left out, where that
        is damaged."""
        try:
            return self.commit(entry)
        except Corrupt:
            self.left_out.add(entry.position)
            return structs.replace(commit_of(entry, None), gone=Gone.DAMAGED)

    def body(self, position: int) -> bytes | None:
        """Return a commit's body as stored; `None` where it has none or it was dropped."""
        return read_record(self.txn, self.tables.bodies, position)

    def commit(self, entry: Entry) -> Commit:
        """Return the commit that readers see. Raises `Corrupt`."""
        try:
            commit = commit_of(entry, self.body(entry.position))
        except msgspec.DecodeError as error:
            raise Corrupt(
                f"the body at position {entry.position} is damaged: {error}; run `turnlog verify`",
                entry.position,
            ) from error
        if commit.body is not None or not entry.link.body_hash:
            return commit
        return structs.replace(commit, gone=self._why_gone(entry))

    def _why_gone(self, entry: Entry) -> Gone:
        """Return why the body of a commit is gone, by the redactions of its session."""
        seq, servers = entry.link.seq, ("", entry.facts.server)
        redactions = self.redactions_of(entry.link.session)
        words = {
            r.why for r in redactions if seq <= r.until and seq < r.seq and r.server in servers
        }
        if Gone.PURGED in words:
            return Gone.PURGED
        return words.pop() if words else Gone.DAMAGED

    def redactions_of(self, session: bytes) -> "list[Redaction]":
        """Return the redactions of a session, oldest first."""
        known = self._redactions.get(session)
        if known is None:
            entries = self.listed(control_term(session))
            known = [_redaction(e) for e in entries if e.facts.kind is CommitKind.REDACT]
            self._redactions[session] = known
        return known

    def commit_at(self, position: int) -> Commit:
        """Return the commit at a position. Raises `Corrupt`."""
        return self.commit(self.entry(position))

    def find(self, session: bytes, seq: int) -> int | None:
        """Return the position of a session's commit."""
        tail = self.tail
        recent = tail.sessions.get(session, ())
        at = bisect_left(recent, seq, key=lambda position: _seq(tail, position))
        if at < len(recent) and recent[at] <= self.last and _seq(tail, recent[at]) == seq:
            return recent[at]
        older = session_positions(self.txn, self.tables, session, seq, seq, newest_first=False)
        return next(older, None)

    def session(
        self, session: bytes, first: int, last: int, *, newest_first: bool
    ) -> Iterator[int]:
        """Yield the positions of a session's commits whose seq is in [first, last]."""
        recent = [
            entry.position
            for entry in self.tail.pick(self._recent(self.tail.sessions, session))
            if first <= entry.link.seq <= last
        ]
        older = session_positions(
            self.txn, self.tables, session, first, last, newest_first=newest_first
        )
        return chain(reversed(recent), older) if newest_first else chain(older, recent)

    def call(self, call: bytes) -> list[int]:
        """Return the positions of a call's commits."""
        table = self.tables.calls
        older = block_positions(self.txn, table, call, 0, NEVER, newest_first=False)
        return [*older, *self._recent(self.tail.calls, call)]

    def term(self, term: bytes, low: int, high: int, *, newest_first: bool) -> Iterator[int]:
        """Yield the positions in [low, high] that belong to a term."""
        recent = [p for p in self._recent(self.tail.terms, term) if low <= p <= high]
        older = block_positions(
            self.txn, self.tables.postings, term, low, high, newest_first=newest_first
        )
        return chain(reversed(recent), older) if newest_first else chain(older, recent)

    def listed(self, *terms: bytes, newest_first: bool = False) -> Iterator[Entry]:
        """Yield the commits on these posting lists, in order; damaged ones are left out, and counted."""
        found = (self.term(term, 1, self.last, newest_first=newest_first) for term in terms)
        return filter(None, map(self.readable, heapq.merge(*found, reverse=newest_first)))

    def terms(self, mark: bytes) -> Iterator[bytes]:
        """Yield once all terms that start with `mark`, in no order."""
        recent = {term for term in list(self.tail.terms) if term.startswith(mark)}
        older = (t for t in terms_after(self.txn, self.tables, mark) if t not in recent)
        return chain(recent, older)

    def linked(self, key: bytes) -> int | None:
        """Return the position of the newest commit with the link `key`."""
        recent = self._recent(self.tail.links, key)
        if recent:
            return recent[-1]
        data = self.txn.get(link_key(key), db=self.tables.links)
        return unpack(data) if data else None

    def bounds(self, since: int | None, until: int | None) -> tuple[int, int]:
        """Return positions [low, high] outside of which no commit is of [since, until]."""
        if since is None and until is None:
            return 1, self.last
        low = high = 0
        for first, last, earliest, latest in self._segments():
            if (since is None or latest >= since) and (until is None or earliest <= until):
                low = low or first
                high = last
        return (low or 1), high

    def heads(self) -> Iterator[tuple[bytes, Head]]:
        """Yield all sessions, the most recently active first."""
        recent = {session: self.head(session) for session in list(self.tail.sessions)}
        found = [(session, head) for session, head in recent.items() if head]
        yield from sorted(found, key=lambda pair: -pair[1].position)
        seen = {session for session, _ in found}
        with self.txn.cursor(self.tables.activity) as cursor:
            for session in cursor.iterprev(keys=False, values=True):
                head = None if session in seen else read_head(self.txn, self.tables, session)
                if head:
                    yield session, head

    def head(self, session: bytes) -> Head | None:
        """Return a session's head; `None` when there is no such session."""
        before = read_head(self.txn, self.tables, session)
        recent = self.tail.pick(self._recent(self.tail.sessions, session))
        return fold_head(before, recent) if recent else before

    def prefixed(self, table: Table, recent: dict[bytes, list[int]], prefix: bytes) -> list[bytes]:
        """Return the ids (16 bytes, in the keys of `table` or in `recent`) that start so."""
        found = dict.fromkeys(key[:16] for key, _ in keys_with(self.txn, table, prefix))
        for key in list(recent):
            if key.startswith(prefix) and self._recent(recent, key):
                found[key] = None
        return sorted(found)

    def unsettled(self) -> Iterator[CallState]:
        """Yield the states of the unsettled calls, in no order."""
        return (state for _, state in self._standing() if state.status.unsettled)

    def undelivered(self) -> Iterator[bytes]:
        """Yield the calls that have ended and whose callers are not noted to have had the answer."""
        states = self._standing()
        return (call for call, state in states if not (state.delivered or state.status.unsettled))

    def call_state(self, call: bytes) -> CallState | None:
        """Return the state of an unsettled call; `None` for a settled one."""
        state = self._stands(call)
        return state if state and state.status.unsettled else None

    def _standing(self) -> Iterator[tuple[bytes, CallState]]:
        recent = {call for call in list(self.tail.calls) if self._recent(self.tail.calls, call)}
        for call, value in keys_with(self.txn, self.tables.unsettled, b""):
            if call not in recent:
                yield call, decode_call_state(value)
        for call in recent:
            if state := self._stands(call):
                yield call, state

    def _stands(self, call: bytes) -> CallState | None:
        entries = self.tail.pick(self._recent(self.tail.calls, call))
        return call_state_after(self.txn, self.tables, call, entries)

    def _recent(self, index: dict[bytes, list[int]], key: bytes) -> list[int]:
        last = self.last
        return [position for position in index.get(key, ()) if position <= last]

    def _segments(self) -> Iterator[tuple[int, int, int, int]]:
        with self.txn.cursor(self.tables.segments) as cursor:
            for key, value in cursor:
                yield unpack(key), unpack(value[:8]), unpack(value[8:16]), unpack(value[16:])
        if self.tail.after < self.last:
            yield self.tail.after + 1, self.last, 0, NEVER


def _is_known(written: Segment, last: int, header: bytes) -> bool:
    """Return whether a writer's tail agrees with the log up to `last`, where `header` stands.

    Where its transaction failed and another writer's did not, another epoch stands in the header.
    """
    if not written.after < last <= written.last:
        return last == written.after
    entry = written.entry(last)
    return entry is not None and entry.header == header


def _seq(tail: Segment, position: int) -> int:
    entry = tail.entry(position)
    # The index of a segment holds nothing that cannot be read.
    return entry.link.seq if entry else -1
