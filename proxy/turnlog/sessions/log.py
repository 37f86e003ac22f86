"""Read the log: find attempts by session, range, turns, filter and change."""

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.hints import Hint
from turnlog.core.operation import TOOLS_USED, Operation
from turnlog.store.base import Filter, SessionRow
from turnlog.store.read.view import View

from .errors import NotFoundError
from .live import LiveCalls
from .rows import Row, row_in, row_of, with_payloads

_TURNS = re.compile(r"(-?\d{1,9})?(\.\.)?(-?\d{1,9})?", re.ASCII)
DEFAULT_LAST = 50
"""Number of attempts when the reader names none."""


class TurnRange(Struct, frozen=True):
    """A range of turns, both ends included; `None` is an open end, negative counts from the newest."""

    first: int | None = None
    last: int | None = None


def parse_turns(text: str) -> TurnRange:
    """Return the range written as `A..B`, `A..`, `..B` or `A`. Raises `ValueError`."""
    match = _TURNS.fullmatch(text)
    if match is None or not (match[1] or match[3]):
        raise ValueError(f"{text!r} is not a range of turns, write 3..7, -5.. or 4")
    first = int(match[1]) if match[1] else None
    last = int(match[3]) if match[3] else None
    if _ends_before(first, last):
        raise ValueError(f"{text!r} ends before it begins, write the older turn first")
    return TurnRange(first, last) if match[2] else TurnRange(first, first)


def _ends_before(first: int | None, last: int | None) -> bool:
    """Return whether a range is empty in every session; -1..3 is in some only."""
    if first is None or last is None:
        return False
    return (first < 0) == (last < 0) and last < first


class Query(Struct, frozen=True, kw_only=True):
    """Which attempts to read. Empty fields do not narrow."""

    session: bytes | None = None
    last: int | None = None
    """Number of attempts; `None` for all that match."""
    around: int | None = None
    """The seq in the middle of the result; needs `last`."""
    turns: TurnRange = TurnRange()
    with_discarded: bool = False
    """Whether calls that a rewind has discarded are wanted as well."""
    match: Filter = Filter()
    """With `field` or `path` only attempts that changed, or may have changed, such an entry."""


def find_session(view: View, name: str) -> bytes:
    """Return the session with this id, beginning of an id, or name. Raises `NotFoundError`."""
    found = view.find_sessions(name)
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFoundError(f"no session is called {name!r}", Hint.SESSIONS)
    some = ", ".join(ids.to_text(session) for session in found[:5])
    raise NotFoundError(f"{name!r} means {len(found)} sessions, name one of: {some}")


def session_row(view: View, session: bytes) -> SessionRow:
    """Return what the store says of a session. Raises `NotFoundError`."""
    row = view.session(session)
    if row is None:
        raise NotFoundError(f"there is no session {ids.to_text(session)!r}")
    return row


def only_session(view: View) -> bytes | None:
    """Return the session of the store when there is exactly one."""
    rows = list(islice(view.sessions(), 2))
    return rows[0].session if len(rows) == 1 else None


def read_rows(view: View, query: Query) -> Iterator[Row]:
    """Yield the rows of attempts, oldest first. Raises `NotFoundError`."""
    return map(row_maker(view, query), read_attempts(view, query))


def row_maker(view: View, query: Query, *, payloads: bool = False) -> Callable[[list[Commit]], Row]:
    """Return a function that makes the row of an attempt, as the query wants it."""
    bare = partial(with_payloads, view) if payloads else partial(row_in, view)
    if not query.with_discarded:
        return bare
    live = LiveCalls(view)

    def marked(attempt: list[Commit]) -> Row:
        row = bare(attempt)
        return row if live.has(attempt) else structs.replace(row, discarded=True)

    return marked


def read_attempts(view: View, query: Query) -> Iterator[list[Commit]]:
    """Yield attempts as lists of their commits, oldest first. Raises `NotFoundError`."""
    wanted = filter_of(view, query)
    if query.around is not None:
        return iter(_around(view, query, wanted, query.last or DEFAULT_LAST))
    if query.last is not None:
        return iter(_newest(view, query, wanted, query.last))
    return attempts_of(view, query, wanted, newest_first=False)


def attempts_of(
    view: View, query: Query, wanted: Filter, *, newest_first: bool
) -> Iterator[list[Commit]]:
    """Yield the attempts that `wanted`, the query's filter, covers, whatever their number."""
    found = view.attempts(wanted, newest_first=newest_first)
    if not query.with_discarded:
        found = filter(LiveCalls(view).has, found)
    if not (query.match.field or query.match.path):
        return found
    return (attempt for attempt in found if is_wanted(row_of(attempt), query))


def is_wanted(row: Row, query: Query) -> bool:
    """Return whether an attempt made a change that the query asks for."""
    return not (query.match.field or query.match.path) or bool(changes_of(row, query))


def changes_of(row: Row, query: Query) -> list[Operation]:
    """Return the changes of an attempt that match the query's field and path."""
    field, path = query.match.field, query.match.path
    return [
        operation
        for operation in row.delta
        if field in ("", operation.field) and (not path or _is_named(operation, path))
    ]


def _is_named(operation: Operation, path: str) -> bool:
    if operation.field == TOOLS_USED:
        return False
    return any(fnmatchcase(name, path) for name in (operation.key, operation.to) if name)


def _newest(view: View, query: Query, wanted: Filter, count: int) -> list[list[Commit]]:
    return list(islice(attempts_of(view, query, wanted, newest_first=True), count))[::-1]


def _around(view: View, query: Query, wanted: Filter, count: int) -> list[list[Commit]]:
    """Return `count` attempts, the one with the query's seq in the middle."""
    seq = query.around or 0
    if query.session is not None and view.get(query.session, seq) is None:
        row = view.session(query.session)
        newest = f", its newest is {row.head_seq}" if row is not None else ""
        raise NotFoundError(f"the session has no commit {seq}{newest}")
    until = _newest(view, query, structs.replace(wanted, before=seq + 1), count // 2 + 1)
    later = attempts_of(view, query, structs.replace(wanted, after=seq), newest_first=False)
    return until + list(islice(later, count - len(until)))


def filter_of(view: View, query: Query) -> Filter:
    """Return the store's filter for a query. Raises `NotFoundError` for turns that do not exist."""
    wanted = query.match
    if wanted.field == TOOLS_USED:
        # Every attempt uses a tool, so an index of that field would not narrow.
        wanted = structs.replace(wanted, field="")
    if query.session is not None:
        wanted = structs.replace(wanted, sessions=(query.session,))
    if query.turns == TurnRange():
        return wanted
    newest = _newest_turn(view, query)
    return structs.replace(
        wanted,
        first_turn=_begin(query.turns, newest),
        last_turn=_number(query.turns.last, newest),
    )


def turn_number(turn: int, newest: int) -> int:
    """Return a turn counted from 1; -1 is the newest. Raises `NotFoundError` if there is no such turn."""
    number = newest + 1 + turn if turn < 0 else turn
    if 1 <= number <= newest:
        return number
    known = "turns are counted from 1" if turn == 0 else f"its newest is {newest}"
    raise NotFoundError(f"the session has no turn {turn}, {known}")


def reaches_back(turns: TurnRange, newest: int) -> bool:
    """Return whether a range begins before the first turn, like the last five of three."""
    first = turns.first
    if first is None or first == turns.last:
        return False
    return first == 0 or (first < 0 and newest + 1 + first < 1)


def _begin(turns: TurnRange, newest: int | None) -> int | None:
    if newest is not None and reaches_back(turns, newest):
        return 1
    return _number(turns.first, newest)


def _number(turn: int | None, newest: int | None) -> int | None:
    return turn if turn is None or newest is None else turn_number(turn, newest)


def _newest_turn(view: View, query: Query) -> int | None:
    """Return the number of the session's newest turn; `None` when it is not needed."""
    turns = (query.turns.first, query.turns.last)
    if query.session is None and not any(turn is not None and turn < 0 for turn in turns):
        return None
    row = view.session(query.session) if query.session is not None else None
    if row is None:
        raise NotFoundError("turns need a session that has some", Hint.SESSIONS)
    return row.place.turn
