"""The state of a session at any of its commits."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.kinds import CommitKind, TurnSource
from turnlog.core.lifecycle import LIVE
from turnlog.core.live_view import LiveView
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import VERSION, State, decode_state, encode_state, state_hash
from turnlog.core.state.state_view import StateField, state_table
from turnlog.core.text.units import timestamp
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.log import session_row, turn_number
from turnlog.sessions.payloads import read_payload
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

from .compacted import compacted_state
from .family import SharedChange, branch_point_of, relatives
from .rewinds import DetachedOutcome, RewindMade, detached_outcomes, rewinds_made

_SEQ_DIGITS: Final = 18
"""A seq has 64 bits, so a longer number is not one."""
EVERY: Final = 1024
"""Commits between two saved states."""
_RELATIVES: Final = 16
"""Branches whose changes are compared with those of a session, the newest first."""


class EvictedKey(Struct, frozen=True, kw_only=True):
    """A key that the model no longer sees, and whether the log can give its content back."""

    seq: int
    reason: str
    retrievable: bool


class CommitPoint(Struct, frozen=True, kw_only=True):
    """A commit of a session, as the place of a state."""

    session: str
    seq: int
    turn: int
    turn_source: TurnSource
    timestamp: str
    hash: str


class SessionState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of `turnlog state --json`: the state after the commit `at`."""

    at: CommitPoint
    state_hash: str
    bodies_gone: int
    """Commits whose body was deleted before it was folded into a saved state."""
    state: dict[str, dict[str, object]]
    """The fields of the state, each a mapping of its entries."""
    rewinds: list[RewindMade] = []
    """The newest rewinds that led here, newest first; absent if there are none."""
    detached: list[DetachedOutcome] = []
    """Outcomes that came after their calls had been discarded; absent if there are none."""
    shared: list[SharedChange] = []
    """Files that another live branch has changed as well since the two parted; absent if there are none."""


def saved_states(data: Path) -> SavedStates:
    """Return the saved states of the store in a data folder."""
    return SavedStates(data, VERSION)


def read_state(
    view: View,
    saved: SavedStates,
    session: bytes,
    at: int,
    fields: Iterable[StateField] = StateField,
    *,
    with_discarded: bool = False,
) -> SessionState:
    """Return fields of a session's state after the commit `at`. Raises `NotFoundError`, `CompactedError`.

    With `with_discarded`, every commit counts, whatever rewinds say.
    """
    commit = commit_at(view, session, at)
    branches = SessionBranches(view, session, with_discarded=with_discarded)
    state = state_at(view, saved, session, at, branches)
    found = state_table(state)
    entries: dict[str, dict[str, object]] = {f.value: getattr(found, f.value) for f in fields}
    if StateField.EVICTED_KEYS in entries:
        entries[StateField.EVICTED_KEYS.value] = {
            key: EvictedKey(
                seq=evicted.seq,
                reason=evicted.reason,
                retrievable=is_recallable(view, session, key),
            )
            for key, evicted in found.evicted_keys.items()
        }
    return SessionState(
        at=point_of(commit),
        state_hash=state_hash(state),
        bodies_gone=state.bodies_gone,
        state=entries,
        rewinds=rewinds_made(view, session, branches, at),
        detached=detached_outcomes(branches, at),
        shared=shared_changes(view, saved, session, state),
    )


def shared_changes(
    view: View, saved: SavedStates, session: bytes, state: State
) -> list[SharedChange]:
    """Return the files that this branch and another live one have changed since they parted."""
    others = dict.fromkeys(relatives(view, session))
    others.pop(session, None)
    found: list[SharedChange] = []
    for other in islice(others, _RELATIVES):
        row, point = view.session(other), branch_point_of(view, session, other)
        if row is None or point is None or row.stage not in LIVE:
            continue
        theirs = state_at(view, saved, other, row.head_seq).files
        found += [
            SharedChange(
                key=key,
                seq=change.last_seq,
                session=ids.to_text(other),
                other_seq=theirs[key].last_seq,
            )
            for key, change in state.files.items()
            if change.last_seq > point.seq and key in theirs and theirs[key].last_seq > point.seq
        ]
    return found


def shared_at_head(view: View, saved: SavedStates, session: bytes) -> list[SharedChange]:
    """Return what `shared_changes` does for a session's newest state."""
    if next(relatives(view, session), None) is None:
        return []
    return shared_changes(
        view, saved, session, state_at(view, saved, session, head_of(view, session))
    )


def state_at(
    view: View,
    saved: SavedStates,
    session: bytes,
    at: int,
    branches: SessionBranches | None = None,
) -> State:
    """Return a session's state after the commit `at`, saving every `EVERY`th one on the way.

    Raises `CompactedError`.
    """
    branches = branches or SessionBranches(view, session)
    live = branches.live(at)
    if branches.with_discarded:  # saved states have no room for this one
        begun = compacted_state(branches, live)
        return fold(begun, branches.between(live, begun.seq, at))
    return state_until(saved, branches, live, at)


def state_until(saved: SavedStates, branches: SessionBranches, live: LiveView, until: int) -> State:
    """Return the state after those commits up to `until` that count in a live view, as `state_at` does.

    Raises `CompactedError`.
    """
    state = nearest(saved, branches, live, until)
    commits = branches.view.commits(branches.session, after=state.seq)
    later = takewhile(lambda c: c.link.seq <= until, commits)
    while batch := list(islice(later, EVERY - (state.seq + 1) % EVERY)):
        state = fold_live(state, batch, branches, live)
        if (state.seq + 1) % EVERY == 0 and live.continues(state.seq):
            saved.save(branches.session, state.seq, batch[-1].hash, encode_state(state))
    return state


def fold_live(
    state: State, batch: list[Commit], branches: SessionBranches, live: LiveView
) -> State:
    """Return the state after the next commits of the session, of which the live ones count."""
    after = fold(state, branches.filtered(live, batch))
    return structs.replace(after, seq=batch[-1].link.seq)


def nearest(saved: SavedStates, branches: SessionBranches, live: LiveView, until: int) -> State:
    """Return the newest saved state up to `until` from which a fold of the view can go on, else that of the
    newest compaction.

    Raises `CompactedError`.
    """
    view, session = branches.view, branches.session
    first = compacted_state(branches, live)
    for found in saved.newest(session, until):
        if found.seq <= first.seq:
            break
        commit = view.get(session, found.seq) if live.continues(found.seq) else None
        state = decode_state(found.read()) if commit and found.fits(commit.hash) else None
        if state is not None and state.seq == found.seq:
            return state
    return first


def point_of(commit: Commit) -> CommitPoint:
    """Return the place of a commit."""
    return CommitPoint(
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
    return session_row(view, session).head_seq


def seq_at(view: View, session: bytes, at: int | None, turn: int | None) -> int:
    """Return the commit `at`, else the end of a turn, else the newest one. Raises `NotFoundError`."""
    if at is not None:
        return at
    return head_of(view, session) if turn is None else end_of_turn(view, session, turn)


def end_of_turn(view: View, session: bytes, turn: int) -> int:
    """Return the last commit of a turn; -1 is the newest turn. Raises `NotFoundError`."""
    return end_of(view, session, turn_number(turn, newest_turn(view, session)))


def first_of(view: View, session: bytes) -> int:
    """Return the seq of a session's first commit: 0, but for a fork. Raises `NotFoundError`."""
    return session_row(view, session).first_seq


def newest_turn(view: View, session: bytes) -> int:
    """Return the number of a session's newest turn. Raises `NotFoundError`."""
    return session_row(view, session).place.turn


def end_of(view: View, session: bytes, number: int) -> int:
    """Return the last live commit before a turn after `number` began; 0 gives the session's first."""
    row = session_row(view, session)
    first, later = row.first_seq, range(row.first_seq + 1, row.head_seq + 1)
    last = first + bisect_right(later, number, key=lambda seq: _turn_at(view, session, seq, first))
    return SessionBranches(view, session).live(row.head_seq).before(last)


def _turn_at(view: View, session: bytes, seq: int, first: int) -> int:
    """Return the newest turn that had begun by a commit."""
    # Outcomes, further attempts and notes about a call have the turn of their call, which may be
    # an earlier one; so commits with a `ref` are skipped.
    for number in range(seq, first, -1):
        commit = view.get(session, number)
        if commit is None or commit.link.ref is not None:
            continue
        if commit.facts.kind in (CommitKind.INTENT, CommitKind.NOTE):
            return commit.link.turn
    return 0


def is_recallable(view: View, session: bytes, key: str) -> bool:
    """Return whether the log has the exact output of the call that an evicted key names."""
    return any(
        read_payload(view, outcome.body.output_blob).is_exact
        for outcome in outcomes_of_key(view, session, key)
        if outcome.body
    )


def outcomes_of_key(view: View, session: bytes, key: str) -> Iterator[Commit]:
    """Yield the outcomes of the call that a key names, newest first.

    A key is the id of a call of the session, or the seq of one of its commits.
    """
    call = b""
    if key.isascii() and key.isdigit() and len(key) < _SEQ_DIGITS:
        named = view.get(session, int(key))
        call = named.facts.call if named else b""
    else:
        # A runtime may use any text as a key; only a call id or a seq leads to a call.
        with suppress(ValueError):
            call = ids.from_text(key)
    for commit in reversed(view.call(call)) if call else ():
        if commit.link.session == session and commit.facts.kind is CommitKind.OUTCOME:
            yield commit
