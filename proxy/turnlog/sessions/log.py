"""Read the log: which attempts a reader wants, and in what order they come."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice

from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.commit import Commit
from turnlog.core.operation import TOOLS_USED, Operation
from turnlog.store.base import Filter, SessionRow, View

from .rows import Row, row_of

_TURNS = re.compile(r"(-?\d{1,9})?(\.\.)?(-?\d{1,9})?", re.ASCII)
DEFAULT_LAST = 50
"""Attempts that a reader gets who did not say how many."""


class NotFoundError(Exception):
    """What a reader named is not in the store, or is several things. The message says which."""


class Turns(Struct, frozen=True):
    """A range of turns, both ends included; `None` is open, negative counts from the newest."""

    first: int | None = None
    last: int | None = None


def parse_turns(text: str) -> Turns:
    """Return the range that `A..B` means, either end open; a number alone is that turn.

    Raises `ValueError`.
    """
    match = _TURNS.fullmatch(text)
    if match is None or not (match[1] or match[3]):
        raise ValueError(f"{text!r} is no range of turns, write 3..7, -5.. or 4")
    first = int(match[1]) if match[1] else None
    last = int(match[3]) if match[3] else None
    if _ends_before(first, last):
        raise ValueError(f"{text!r} ends before it begins, write the older turn first")
    return Turns(first, last) if match[2] else Turns(first, first)


def _ends_before(first: int | None, last: int | None) -> bool:
    """Tell whether a range is empty, whatever there is; of -1..3 only a session knows."""
    if first is None or last is None:
        return False
    return (first < 0) == (last < 0) and last < first


class Query(Struct, frozen=True, kw_only=True):
    """What a reader of the log wants to see. Empty fields do not narrow."""

    session: bytes | None = None
    last: int | None = None
    """How many attempts; `None` for all that the rest names."""
    around: int | None = None
    """seq in the middle of what is wanted; needs `last`."""
    turns: Turns = Turns()
    match: Filter = Filter()
    field: str = ""
    """Only attempts that changed, or may have changed, something in this field of the state."""
    path: str = ""
    """Only attempts that changed something whose name, old or new, matches this glob."""


def find_session(view: View, name: str) -> bytes:
    """Return the session that `name` means. Raises `NotFoundError`."""
    found = view.find_sessions(name)
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFoundError(f"no session is called {name!r}, `turnlog sessions` lists them")
    some = ", ".join(ids.to_text(session) for session in found[:5])
    raise NotFoundError(f"{name!r} means {len(found)} sessions, name one of: {some}")


def only_session(view: View) -> bytes | None:
    """Return the store's session when there is exactly one."""
    rows = list(islice(view.sessions(), 2))
    return rows[0].session if len(rows) == 1 else None


def read(view: View, query: Query) -> Iterator[Row]:
    """Yield attempts, oldest first. Raises `NotFoundError` for an unknown session."""
    return map(row_of, read_commits(view, query))


def read_commits(view: View, query: Query) -> Iterator[list[Commit]]:
    """Yield the commits of each attempt, oldest first. Raises `NotFoundError`."""
    wanted = filter_of(view, query)
    if query.around is not None:
        return iter(_around(view, query, wanted, query.last or DEFAULT_LAST))
    if query.last is not None:
        return iter(_newest(view, query, wanted, query.last))
    return _attempts(view, query, wanted, newest_first=False)


def _attempts(
    view: View, query: Query, wanted: Filter, *, newest_first: bool
) -> Iterator[list[Commit]]:
    found = view.attempts(wanted, newest_first=newest_first)
    if not (query.field or query.path):
        return found
    return (attempt for attempt in found if is_wanted(row_of(attempt), query))


def is_wanted(row: Row, query: Query) -> bool:
    """Tell whether an attempt changed what a query wants to have been changed."""
    return not (query.field or query.path) or bool(changes_of(row, query))


def changes_of(row: Row, query: Query) -> list[Operation]:
    """Return what an attempt changed, as far as a query speaks of it."""
    return [
        operation
        for operation in row.delta
        if query.field in ("", operation.field)
        and (not query.path or _is_named(operation, query.path))
    ]


def _is_named(operation: Operation, path: str) -> bool:
    if operation.field == TOOLS_USED:
        return False
    return any(fnmatchcase(name, path) for name in (operation.key, operation.to) if name)


def _newest(view: View, query: Query, wanted: Filter, count: int) -> list[list[Commit]]:
    return list(islice(_attempts(view, query, wanted, newest_first=True), count))[::-1]


def _around(view: View, query: Query, wanted: Filter, count: int) -> list[list[Commit]]:
    """Return `count` attempts with the one that holds the query's seq in the middle."""
    seq = query.around or 0
    if query.session is not None and view.get(query.session, seq) is None:
        row = view.session(query.session)
        newest = f", its newest is {row.head_seq}" if row is not None else ""
        raise NotFoundError(f"the session has no commit {seq}{newest}")
    until = _newest(view, query, structs.replace(wanted, before=seq + 1), count // 2 + 1)
    later = _attempts(view, query, structs.replace(wanted, after=seq), newest_first=False)
    return until + list(islice(later, count - len(until)))


def filter_of(view: View, query: Query) -> Filter:
    """Return what a query asks of the store. Raises `NotFoundError` where turns count from no end."""
    # Each attempt uses its tool: no index tells more of that.
    field = "" if query.field == TOOLS_USED else query.field
    wanted = structs.replace(query.match, field=field, path=query.path)
    if query.session is not None:
        wanted = structs.replace(wanted, sessions=(query.session,))
    if query.turns == Turns():
        return wanted
    newest = _newest_turn(view, query)
    return structs.replace(
        wanted,
        first_turn=_begin(query.turns, newest),
        last_turn=_number(query.turns.last, newest),
    )


def turn_number(turn: int, newest: int) -> int:
    """Return the number of a turn; -1 is the newest. Raises `NotFoundError` where there is none."""
    number = newest + 1 + turn if turn < 0 else turn
    if 1 <= number <= newest:
        return number
    known = "turns are counted from 1" if turn == 0 else f"its newest is {newest}"
    raise NotFoundError(f"the session has no turn {turn}, {known}")


def reaches_back(turns: Turns, newest: int) -> bool:
    """Tell whether a range begins before the first turn: the last five, of three, are all."""
    first = turns.first
    if first is None or first == turns.last:
        return False
    return first == 0 or (first < 0 and newest + 1 + first < 1)


def _begin(turns: Turns, newest: int | None) -> int | None:
    if newest is not None and reaches_back(turns, newest):
        return 1
    return _number(turns.first, newest)


def _number(turn: int | None, newest: int | None) -> int | None:
    return turn if turn is None or newest is None else turn_number(turn, newest)


def _newest_turn(view: View, query: Query) -> int | None:
    """Return the number of the session's newest turn; `None` where all sessions are asked."""
    turns = (query.turns.first, query.turns.last)
    if query.session is None and not any(turn is not None and turn < 0 for turn in turns):
        return None
    return _session_row(view, query.session).place.turn


def _session_row(view: View, session: bytes | None) -> SessionRow:
    row = view.session(session) if session is not None else None
    if row is None:
        raise NotFoundError(
            "turns need a session that has some; name one that `turnlog sessions` lists"
        )
    return row
