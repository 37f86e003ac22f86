"""The derived indexes, computed from nothing but stored headers and bodies.

The same folds serve a flush (tail of the log -> tables), a view (tables + tail in memory) and a
rebuild (the whole log), so that an index made at once equals one made bit by bit.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Raw, Struct

from turnlog.core.call_status import CallState, next_call_state
from turnlog.core.commit import Commit, CommitBody, Facts, Link, decode_body, decode_header, digest
from turnlog.core.kinds import CommitKind, NoteKind, Status
from turnlog.core.lifecycle import CONTROL_KINDS, Control, SessionStage, after_control, stage_of
from turnlog.core.turns import TurnPosition, after_commit, new_turn, next_call

from .keys import change_terms, terms_of

NOWHERE = TurnPosition()
_OF_OPERATORS: Final = frozenset(
    {NoteKind.HOLD, NoteKind.RELEASE, NoteKind.TAINT, NoteKind.ENDORSE}
)


class Entry(Struct, frozen=True, gc=False):
    """One commit of the log: its bytes, and their decoded content."""

    position: int
    header: bytes
    link: Link
    facts: Facts


class Head(Struct, frozen=True, array_like=True, gc=False):
    """The newest commit of a session, and the session's place after it."""

    seq: int
    hash: bytes
    place: TurnPosition
    position: int
    opened: int
    """Position of the session's first commit."""
    control: Control | None = None
    """The result of its control commits; `None` for none."""

    @property
    def stage(self) -> SessionStage:
        """The session's stage."""
        return stage_of(self.control, has_calls=self.place.started_at > 0)


class OpenAttempt(Struct, frozen=True, array_like=True, gc=False):
    """An intent without outcome."""

    epoch: int
    position: int


def read_entry(position: int, header: bytes) -> Entry:
    """Return the decoded commit of a header. Raises `msgspec.DecodeError`."""
    link, facts = decode_header(header)
    return Entry(position, header, link, facts)


def commit_of(entry: Entry, body: bytes | None) -> Commit:
    """Return the commit that readers see."""
    return Commit(
        position=entry.position,
        link=entry.link,
        facts=entry.facts,
        hash=digest(entry.header),
        body=decode_body(body) if body else None,
    )


def next_place(place: TurnPosition, facts: Facts) -> TurnPosition:
    """Return a session's place after one more commit."""
    kind = facts.kind
    if kind is CommitKind.OUTCOME:
        return after_commit(place, facts.at, ended=1 if facts.n == 0 else 0)
    if kind is CommitKind.INTENT and facts.attempt > 1:
        # Of a call that has its place already; with it something is in flight again.
        return after_commit(place, facts.at, ended=-1)
    if kind is CommitKind.INTENT:
        return next_call(place, facts.at, facts.turn_label, facts.turn_source)
    if kind is CommitKind.NOTE and facts.note == NoteKind.TURN:
        return new_turn(place, facts.at, facts.turn_label)
    if kind in CONTROL_KINDS or facts.note in _OF_OPERATORS:
        # The session is not in use by that.
        return place
    return after_commit(place, facts.at, ended=0)


def fold_head(head: Head | None, entries: Sequence[Entry]) -> Head:
    """Return a session's head after `entries`, its next commits; there is at least one."""
    place = head.place if head else _first_place(entries[0].link)
    control = head.control if head else None
    for entry in entries:
        facts = entry.facts
        place, kind = next_place(place, facts), facts.kind
        if (
            kind is not CommitKind.INTENT
            and kind is not CommitKind.OUTCOME
            and kind in CONTROL_KINDS
        ):
            control = after_control(control, facts, entry.link.seq)
    newest = entries[-1]
    opened = head.opened if head else entries[0].position
    return Head(newest.link.seq, digest(newest.header), place, newest.position, opened, control)


def _first_place(link: Link) -> TurnPosition:
    """Return a session's place before its first commit: a fork goes on in a turn of its parent."""
    return TurnPosition(turn=link.turn, step=link.step, source=link.turn_source)


def fold_call(entries: Iterable[Entry], state: CallState | None = None) -> CallState | None:
    """Return the state of a call after `entries`, in order of position."""
    for entry in entries:
        state = next_call_state(state, entry.link, entry.facts, entry.position)
    return state


def is_first_of_call(entry: Entry) -> bool:
    """Return whether a commit is the first of its call."""
    facts = entry.facts
    return facts.kind is CommitKind.INTENT and facts.leg == 0 and facts.attempt == 1


def is_same(entry: Entry, session: bytes, facts: Facts) -> bool:
    """Return whether a commit is of the same attempt, kind and number as `facts`, in `session`."""
    other = entry.facts
    return (
        other.kind is facts.kind
        and other.leg == facts.leg
        and other.attempt == facts.attempt
        and other.n == facts.n
        and entry.link.session == session
    )


class Segment:
    """A part of the log in memory, without gaps, and its index.

    It only grows, also while other threads read it: an older view ignores what is beyond its last
    position. Sessions and terms are indexed on demand, many commits at a time.
    """

    def __init__(self, after: int) -> None:
        self.after = after
        self.last = after
        self.entries: list[Entry | None] = []
        """`None` for a header that cannot be read."""
        self.calls: defaultdict[bytes, list[int]] = defaultdict(list)
        self.links: defaultdict[bytes, list[int]] = defaultdict(list)
        self._sessions: defaultdict[bytes, list[int]] = defaultdict(list)
        self._terms: defaultdict[bytes, list[int]] = defaultdict(list)
        self.deltas: list[tuple[int, Sequence[Raw]]] = []
        """The changes that bodies name, each with the position of its commit."""
        self._indexed = self._read_deltas = 0
        """How many of `entries` and of `deltas` are in `_sessions` and `_terms`."""
        self._indexing = threading.Lock()

    @property
    def sessions(self) -> dict[bytes, list[int]]:
        """Positions by session."""
        self._index()
        return self._sessions

    @property
    def terms(self) -> dict[bytes, list[int]]:
        """Positions by posting list."""
        self._index()
        return self._terms

    def add(self, entry: Entry) -> None:
        """Add the next commit of the log."""
        position, call = entry.position, entry.facts.call
        self.entries.append(entry)
        if call:
            self.calls[call].append(position)
        self.last = position

    def add_body(self, position: int, session: bytes, body: CommitBody) -> None:
        """Index the body of the newest commit; only where `is_linked`."""
        for key in link_keys(session, body):
            self.links[key].append(position)
        if body.delta:
            self.deltas.append((position, body.delta))

    def read(self, position: int, header: bytes, body: Callable[[int], bytes | None]) -> None:
        """Add the next commit of the log as it is stored. `body` is called where the index needs it.

        A damaged record must not stop the index: `verify` reports it by its seq.
        """
        try:
            entry = read_entry(position, header)
        except msgspec.DecodeError:
            self.entries.append(None)
            self.last = position
            return
        self.add(entry)
        stored = body(position) if entry.link.linked else None
        if stored:
            with suppress(msgspec.DecodeError):
                self.add_body(position, entry.link.session, decode_body(stored))

    def after_position(self, position: int) -> "Segment":
        """Return the part of this stretch behind `position`."""
        rest = Segment(min(position, self.last))
        if rest.after == self.last:
            return rest
        rest.last = self.last
        rest.entries = self.entries[rest.after - self.after :]
        rest.deltas = [delta for delta in self.deltas if delta[0] > position]
        for found, kept in ((self.calls, rest.calls), (self.links, rest.links)):
            for key, positions in found.items():
                later = [p for p in positions if p > position]
                if later:
                    kept[key] = later
        return rest

    def entry(self, position: int) -> Entry | None:
        """Return the commit at a position of this stretch; `None` when it cannot be read."""
        return self.entries[position - self.after - 1]

    def is_settled(self, positions: Sequence[int]) -> bool:
        """Return whether this is the common case: a whole call of one attempt that ended, and nothing else.

        It leaves nothing open, unsettled or to be delivered: no table needs to be looked at.
        """
        if len(positions) != 2:
            return False
        entries, first = self.entries, self.after + 1
        begun, ended = entries[positions[0] - first], entries[positions[1] - first]
        if begun is None or ended is None or not is_first_of_call(begun):
            return False
        facts, status = ended.facts, ended.facts.status
        return (
            (status is Status.OK or status is Status.ERROR)
            and ended.link.ref == begun.link.seq
            and facts.kind is CommitKind.OUTCOME
            and facts.leg == 0
            and facts.attempt == 1
            and not facts.guarded
        )

    def pick(self, positions: Iterable[int]) -> list[Entry]:
        """Return the readable commits at `positions`."""
        entries, first = self.entries, self.after + 1
        return [entry for position in positions if (entry := entries[position - first]) is not None]

    def _index(self) -> None:
        if self._indexed == len(self.entries) and self._read_deltas == len(self.deltas):
            return
        sessions, terms = self._sessions, self._terms
        with self._indexing:
            entries, deltas = self.entries[self._indexed :], self.deltas[self._read_deltas :]
            for entry in entries:
                if entry is not None:
                    position = entry.position
                    sessions[entry.link.session].append(position)
                    for term in terms_of(entry.facts, entry.link.session):
                        terms[term].append(position)
            for position, delta in deltas:
                for term in change_terms(delta):
                    terms[term].append(position)
            self._indexed += len(entries)
            self._read_deltas += len(deltas)


def is_linked(body: CommitBody) -> bool:
    """Return whether an index has to look into a body."""
    return bool(body.links or body.note_key or body.fact_key or body.delta)


def link_keys(session: bytes, body: CommitBody) -> list[bytes]:
    """Return by what a commit is found: its links, and in its session the keys of its note."""
    keys = list(body.links)
    if body.note_key:
        keys.append(session + body.note_key)
    if body.fact_key:
        keys.append(session + body.fact_key)
    return keys


def open_attempts(entries: Iterable[Entry]) -> dict[tuple[bytes, int], OpenAttempt | None]:
    """Return by session and seq the intents that stay open.

    `None` stands for an intent before `entries` that an outcome among them closed.
    """
    found: dict[tuple[bytes, int], OpenAttempt | None] = {}
    for entry in entries:
        link = entry.link
        if entry.facts.kind is CommitKind.INTENT:
            found[link.session, link.seq] = OpenAttempt(link.epoch, entry.position)
        elif entry.facts.kind is CommitKind.OUTCOME and link.ref is not None:
            intent = (link.session, link.ref)
            if found.pop(intent, None) is None:
                found[intent] = None
    return found
