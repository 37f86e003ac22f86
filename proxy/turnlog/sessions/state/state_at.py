"""The state of a session at any of its commits."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind, TurnSource
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import VERSION, State, decode_state, encode_state, state_hash
from turnlog.core.state.state_view import Field, table
from turnlog.core.text.times import timestamp
from turnlog.sessions.contents import Kept, Payload, payload
from turnlog.sessions.log import NotFoundError, turn_number
from turnlog.store.base import SessionRow, View
from turnlog.store.states import SavedStates

EVERY: Final = 1024
"""Commits between two states that are saved."""


class EvictedKey(Struct, frozen=True, kw_only=True):
    """What the model no longer sees, and whether the log can give it back."""

    seq: int
    reason: str
    retrievable: bool


class Point(Struct, frozen=True, kw_only=True):
    """A commit of a session."""

    session: str
    seq: int
    turn: int
    turn_source: TurnSource
    timestamp: str
    hash: str


class SessionState(Struct, frozen=True, kw_only=True):
    """One line of `turnlog state --json`: the state after the commit `at`."""

    at: Point
    state_hash: str
    bodies_gone: int
    """Commits whose content was dropped before it could be folded in."""
    state: dict[str, dict[str, object]]
    """Fields of things by name."""


def saved_states(data: Path) -> SavedStates:
    """Return the saved states of the store in a folder."""
    return SavedStates(data, VERSION)


def read_state(
    view: View, saved: SavedStates, session: bytes, at: int, fields: Iterable[Field] = Field
) -> SessionState:
    """Return fields of a session's state after the commit `at`. Raises `NotFoundError`."""
    commit = commit_at(view, session, at)
    state = state_at(view, saved, session, at)
    found = table(state)
    entries: dict[str, dict[str, object]] = {f.value: getattr(found, f.value) for f in fields}
    if Field.EVICTED_KEYS in entries:
        entries[Field.EVICTED_KEYS.value] = {
            key: EvictedKey(
                seq=evicted.seq,
                reason=evicted.reason,
                retrievable=recalled(view, session, key) is not None,
            )
            for key, evicted in found.evicted_keys.items()
        }
    return SessionState(
        at=point(commit),
        state_hash=state_hash(state),
        bodies_gone=state.bodies_gone,
        state=entries,
    )


def state_at(view: View, saved: SavedStates, session: bytes, at: int) -> State:
    """Return a session's state after the commit `at`; save some of those on the way."""
    state = nearest(view, saved, session, at)
    later = takewhile(lambda c: c.link.seq <= at, view.commits(session, after=state.seq))
    while batch := list(islice(later, EVERY - (state.seq + 1) % EVERY)):
        state = fold(state, batch)
        if (state.seq + 1) % EVERY == 0:
            saved.save(session, state.seq, batch[-1].hash, encode_state(state))
    return state


def nearest(view: View, saved: SavedStates, session: bytes, at: int) -> State:
    """Return the newest state that is saved and fits the log; else what is before all commits."""
    for found in saved.newest(session, at):
        commit = view.get(session, found.seq)
        state = decode_state(found.read()) if commit and found.fits(commit.hash) else None
        if state is not None and state.seq == found.seq:
            return state
    return State()


def point(commit: Commit) -> Point:
    """Return where a commit stands."""
    return Point(
        session=ids.to_text(commit.link.session),
        seq=commit.link.seq,
        turn=commit.link.turn,
        turn_source=commit.link.turn_source,
        timestamp=timestamp(commit.facts.at),
        hash=f"sha256:{commit.hash.hex()}",
    )


def commit_at(view: View, session: bytes, seq: int) -> Commit:
    """Return a commit of a session. Raises `NotFoundError`."""
    commit = view.get(session, seq)
    if commit is None:
        raise NotFoundError(
            f"the session has no commit {seq}, its newest is {head_of(view, session)}"
        )
    return commit


def head_of(view: View, session: bytes) -> int:
    """Return the seq of a session's newest commit. Raises `NotFoundError`."""
    return _row(view, session).head_seq


def end_of_turn(view: View, session: bytes, turn: int) -> int:
    """Return the last commit before a later turn than this one began; -1 is the newest turn.

    Raises `NotFoundError` for a turn that the session does not have.
    """
    return end_of(view, session, turn_number(turn, newest_turn(view, session)))


def newest_turn(view: View, session: bytes) -> int:
    """Return the number of the turn that a session is in. Raises `NotFoundError`."""
    return _row(view, session).place.turn


def end_of(view: View, session: bytes, number: int) -> int:
    """Return the last commit before a later turn than `number` began; of 0, that which opened it."""
    low, high = 0, head_of(view, session)
    while low < high:
        middle = (low + high + 1) // 2
        if _turn_at(view, session, middle) <= number:
            low = middle
        else:
            high = middle - 1
    return low


def _turn_at(view: View, session: bytes, seq: int) -> int:
    """Return the turn that the session was in: the newest that had begun.

    Outcomes, further attempts and notes about a call stand in the turn of their call, which may
    have been an earlier one.
    """
    for number in range(seq, 0, -1):
        commit = view.get(session, number)
        if commit is None or commit.link.ref is not None:
            continue
        if commit.facts.kind in (CommitKind.INTENT, CommitKind.NOTE):
            return commit.link.turn
    return 0


def recalled(view: View, session: bytes, key: str) -> Payload | None:
    """Return the recorded output that an evicted key stands for: whole, without redaction.

    A key is the id of a call of the session, or the seq of one of its commits.
    """
    for commit in endings(view, session, key):
        handle = commit.body.output_blob if commit.body else b""
        found = payload(view, handle)
        if found.kept is Kept.WHOLE and not found.redacted:
            return found
    return None


def endings(view: View, session: bytes, key: str) -> Iterator[Commit]:
    """Yield the outcomes that a key may stand for, the newest first."""
    call = b""
    if key.isascii() and key.isdigit() and len(key) < _SEQ_DIGITS:
        named = view.get(session, int(key))
        call = named.facts.call if named else b""
    else:
        # What begins like the id of a call may be any word of the runtime's.
        with suppress(ValueError):
            call = ids.from_text(key)
    for commit in reversed(view.call(call)) if call else ():
        if commit.link.session == session and commit.facts.kind is CommitKind.OUTCOME:
            yield commit


_SEQ_DIGITS: Final = 18
"""A longer number is no seq: they have 64 bits."""


def _row(view: View, session: bytes) -> SessionRow:
    row = view.session(session)
    if row is None:
        raise NotFoundError(f"there is no session {ids.to_text(session)!r}")
    return row
