"""Pages of the log and of the list of sessions, and the cursors that lead from one to the next.

A cursor is a position in the log. Positions never change, so that a page that was read stays what
it was, whatever is written meanwhile.
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from typing import Final

from msgspec import Struct, structs

from turnlog.store.base import View

from .contents import Payload
from .dangling import Dangling, Wanted, described, find
from .listing import SessionLine, session_line
from .log import Query, filter_of, is_wanted, read_commits
from .payloads import with_payloads
from .rows import Row, row_of

PAGE_BYTES: Final = 16 << 20
"""Bytes of inputs and outputs that one page holds, but for the last attempt on it."""


class Order(StrEnum):
    """From which end a reader goes through the log."""

    NEWEST = "newest"
    OLDEST = "oldest"


class LogPage(Struct, frozen=True, kw_only=True):
    """Some attempts, the newest last."""

    items: list[Row]
    next: str | None
    """Cursor of the page behind this one; from the oldest on it may be asked again for what is new."""
    more: bool
    """Whether there is something on that page by now."""
    left_out: int
    """Damaged records that were done without."""


class SessionsPage(Struct, frozen=True, kw_only=True):
    """Some sessions, the most recently active first."""

    items: list[SessionLine]
    next: str | None


class DanglingPage(Struct, frozen=True, kw_only=True):
    """Some calls that dangle, in the order in which they began."""

    items: list[Dangling]
    next: str | None
    left_out: int


def log_page(
    view: View,
    query: Query,
    order: Order,
    cursor: int | None,
    limit: int,
    *,
    payloads: bool = False,
) -> LogPage:
    """Return the page that begins at `cursor`. Raises `NotFoundError`.

    With `payloads` a page ends early where inputs and outputs come to more than `PAGE_BYTES`.
    """
    newest_first = order is Order.NEWEST
    match = filter_of(view, query)
    match = structs.replace(
        match,
        ahead_of=cursor if newest_first else None,
        behind=None if newest_first else cursor,
    )
    attempts = view.attempts(match, newest_first=newest_first)
    read = ((attempt, row_of(attempt)) for attempt in attempts)
    found = ((attempt, row) for attempt, row in read if is_wanted(row, query))
    rows: list[Row] = []
    last, room, more = cursor or 0, PAGE_BYTES, False
    for attempt, bare in found:
        if more := len(rows) == limit or room <= 0:
            break
        row = with_payloads(view, attempt) if payloads else bare
        room -= sum(side.size for side in (row.input, row.output) if isinstance(side, Payload))
        rows.append(row)
        last = attempt[0].position
    return LogPage(
        items=rows[::-1] if newest_first else rows,
        next=str(last) if more or not newest_first else None,
        more=more,
        left_out=view.left_out,
    )


def around(view: View, query: Query, *, payloads: bool = False) -> LogPage:
    """Return the attempts around a commit: a page without another. Raises `NotFoundError`."""
    rows = [
        with_payloads(view, attempt) if payloads else row_of(attempt)
        for attempt in read_commits(view, query)
    ]
    return LogPage(items=rows, next=None, more=False, left_out=view.left_out)


def sessions_page(view: View, cursor: int | None, limit: int) -> SessionsPage:
    """Return the sessions that were last active before `cursor`."""
    rows = (row for row in view.sessions() if cursor is None or row.position < cursor)
    found = list(islice(rows, limit + 1))
    shown = found[:limit]
    return SessionsPage(
        items=[session_line(row) for row in shown],
        next=_next([row.position for row in shown], more=len(found) > limit),
    )


def dangling_page(view: View, wanted: Wanted, limit: int) -> DanglingPage:
    """Return the first calls that are wanted and dangle."""
    found = find(view, wanted)
    shown = found[:limit]
    return DanglingPage(
        items=[described(view, one) for one in shown],
        next=_next([one.position for one in shown], more=len(found) > limit),
        left_out=view.left_out,
    )


def _next(positions: Sequence[int], *, more: bool) -> str | None:
    return str(positions[-1]) if more else None
