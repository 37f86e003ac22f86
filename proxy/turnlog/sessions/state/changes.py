"""Differences between two states, with the commits that made them and their reasons."""

from msgspec import UNSET, Struct, UnsetType, structs

from turnlog.core.commit import Commit
from turnlog.core.state.fold import Causes, ContributingCommit, fold
from turnlog.core.state.state_view import StateField, Table, diff, state_table
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.log import TurnRange, reaches_back, turn_number
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

from .compacted import compacted_state
from .family import branch_point_of
from .state_at import (
    CommitPoint,
    commit_at,
    end_of,
    end_of_turn,
    first_of,
    head_of,
    newest_turn,
    point_of,
    state_at,
)


class Difference(Struct, frozen=True, kw_only=True):
    """One line of `turnlog diff --json`: one changed entry of the state.

    The type of its values depends on its field.
    """

    before_at: CommitPoint
    after_at: CommitPoint
    field: StateField
    key: str
    before: object
    after: object
    parted: UnsetType | CommitPoint = UNSET
    """Between two branches, the commit where they parted; else absent."""
    commits: list[ContributingCommit]
    """Commits of the later state's session, oldest first; empty for `usage`, which every call changes."""


def changes_between(
    view: View,
    saved: SavedStates,
    session: bytes,
    before: int,
    after: int,
    *,
    with_discarded: bool = False,
) -> list[Difference]:
    """Return what the commits after `before`, up to `after`, changed.

    Raises `NotFoundError`, `CompactedError`.
    """
    start, end = commit_at(view, session, before), commit_at(view, session, after)
    branches = SessionBranches(view, session, with_discarded=with_discarded)
    live = branches.live(after)
    first = state_at(view, saved, session, before, branches)
    base, since = first, before
    if not live.continues(before):
        # A rewind lies between the two: start at the common ancestor.
        since = live.common_ancestor(branches.live(before))
        if live.continues(since):
            base = state_at(view, saved, session, since, branches)
        else:
            base = compacted_state(branches, live)
            since = base.seq
    causes: Causes = {}
    last = fold(base, branches.between(live, since, after), causes)
    found = _changed(point_of(start), point_of(end), state_table(first), state_table(last), causes)
    rewinds = [_rewind_cause(c) for c in branches.commits if since < c.link.seq <= after]
    return [structs.replace(one, commits=one.commits or rewinds) for one in found]


def _rewind_cause(rewind: Commit) -> ContributingCommit:
    why = rewind.body.detail if rewind.body else ""
    return ContributingCommit(seq=rewind.link.seq, what="rewind", why=why)


def session_differences(
    view: View, saved: SavedStates, one: bytes, other: bytes, at: tuple[int, int]
) -> list[Difference]:
    """Return how the state of `other` differs from that of `one`. Raises `NotFoundError`."""
    start, end = commit_at(view, one, at[0]), commit_at(view, other, at[1])
    first = state_at(view, saved, one, at[0])
    branches = SessionBranches(view, other)
    live = branches.live(at[1])
    begun = compacted_state(branches, live)
    causes: Causes = {}
    last = fold(begun, branches.between(live, begun.seq, at[1]), causes)
    found = _changed(point_of(start), point_of(end), state_table(first), state_table(last), causes)
    point = branch_point_of(view, one, other)
    shared = view.get(point.session, point.seq) if point else None
    if shared is None:
        return found
    return [structs.replace(change, parted=point_of(shared)) for change in found]


def turn_bounds(view: View, session: bytes, turns: TurnRange) -> tuple[int, int]:
    """Return the commits before and at the end of a range of turns. Raises `NotFoundError`.

    The range A..B begins with the state at the end of turn A; a single turn with the one before it.
    """
    newest, first, last = newest_turn(view, session), turns.first, turns.last
    if first is not None and first == last:
        number = turn_number(first, newest)
        return end_of(view, session, number - 1), end_of(view, session, number)
    return (
        first_of(view, session)
        if first is None or reaches_back(turns, newest)
        else end_of_turn(view, session, first),
        head_of(view, session) if last is None else end_of_turn(view, session, last),
    )


def seq_bounds(view: View, session: bytes, text: str) -> tuple[int, int]:
    """Return the commits of a range `A..B`; an open end is the newest. Raises `ValueError`."""
    first, dots, last = text.partition("..")
    numbers = [part for part in (first, last) if part]
    if not dots or not all(n.isascii() and n.isdigit() and len(n) < 13 for n in numbers):
        raise ValueError(f"{text!r} is not a range of commits, write 17..42, 17.. or ..42")
    begin = int(first) if first else first_of(view, session)
    return begin, int(last) if last else head_of(view, session)


def _changed(
    start: CommitPoint, end: CommitPoint, before: Table, after: Table, causes: Causes
) -> list[Difference]:
    return [
        Difference(
            before_at=start,
            after_at=end,
            field=change.field,
            key=change.key,
            before=change.before,
            after=change.after,
            commits=causes.get((change.field, change.key), []),
        )
        for change in diff(before, after)
    ]
