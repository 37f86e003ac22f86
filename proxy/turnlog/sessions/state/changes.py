"""What is different between two states, by which commits, and why they were made."""

from collections.abc import Iterable
from itertools import takewhile

from msgspec import Struct

from turnlog.core.state.fold import Cause, explain
from turnlog.core.state.session_state import State
from turnlog.core.state.state_view import Field, Table, Value, diff, table
from turnlog.sessions.log import Turns, reaches_back, turn_number
from turnlog.store.base import View
from turnlog.store.states import SavedStates

from .state_at import Point, commit_at, end_of, end_of_turn, head_of, newest_turn, point, state_at


class By(Struct, frozen=True, kw_only=True):
    """A commit that had a part in a change."""

    seq: int
    what: str
    """The tool, or the kind of the note."""
    why: str
    """The reason that was recorded; empty for none."""


class Changed(Struct, frozen=True, kw_only=True):
    """One line of `turnlog diff --json`: something that is not what it was."""

    before_at: Point
    after_at: Point
    field: Field
    key: str
    before: Value
    after: Value
    commits: list[By]
    """Of the later session's, oldest first; none for `usage`, which each call changes."""


def between(
    view: View, saved: SavedStates, session: bytes, before: int, after: int
) -> list[Changed]:
    """Return what commits behind `before`, up to `after`, changed. Raises `NotFoundError`."""
    start, end = commit_at(view, session, before), commit_at(view, session, after)
    first = state_at(view, saved, session, before)
    commits = takewhile(lambda c: c.link.seq <= after, view.commits(session, after=before))
    last, told = explain(first, commits)
    return _changed(point(start), point(end), table(first), table(last), told)


def apart(
    view: View, saved: SavedStates, one: bytes, other: bytes, at: tuple[int, int]
) -> list[Changed]:
    """Return what the state of another session has that is not as in one. Raises `NotFoundError`."""
    start, end = commit_at(view, one, at[0]), commit_at(view, other, at[1])
    first = state_at(view, saved, one, at[0])
    commits = takewhile(lambda c: c.link.seq <= at[1], view.commits(other))
    last, told = explain(State(), commits)
    return _changed(point(start), point(end), table(first), table(last), told)


def ends_of_turns(view: View, session: bytes, turns: Turns) -> tuple[int, int]:
    """Return the commits whose states a range of turns lies between; one turn is that turn alone.

    Raises `NotFoundError`.
    """
    newest, first, last = newest_turn(view, session), turns.first, turns.last
    if first is not None and first == last:
        number = turn_number(first, newest)
        return end_of(view, session, number - 1), end_of(view, session, number)
    return (
        0 if first is None or reaches_back(turns, newest) else end_of_turn(view, session, first),
        head_of(view, session) if last is None else end_of_turn(view, session, last),
    )


def ends_of_seqs(view: View, session: bytes, text: str) -> tuple[int, int]:
    """Return the commits that `A..B` names; an open end is the newest. Raises `ValueError`."""
    first, dots, last = text.partition("..")
    numbers = [part for part in (first, last) if part]
    if not dots or not all(n.isascii() and n.isdigit() and len(n) < 13 for n in numbers):
        raise ValueError(f"{text!r} is no range of commits, write 17..42, 17.. or ..42")
    return int(first or 0), int(last) if last else head_of(view, session)


def _changed(
    start: Point, end: Point, before: Table, after: Table, told: Iterable[Cause]
) -> list[Changed]:
    causes: dict[tuple[str, str], list[By]] = {}
    for cause in told:
        by = By(seq=cause.seq, what=cause.what, why=cause.why)
        causes.setdefault((cause.field, cause.key), []).append(by)
    return [
        Changed(
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
