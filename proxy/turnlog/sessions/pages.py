"""Pages of the log, of sessions and of dangling calls, with cursors from one page to the next."""

# A cursor is a position in the log. Positions never change, so new commits do not shift pages.

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final

from msgspec import UNSET, Struct, UnsetType, structs

from turnlog.store.read.view import View

from .dangling import Dangling, DanglingFilter, describe, find_dangling
from .log import Query, attempts_of, filter_of, read_attempts, row_maker
from .overview import SessionLine, session_line
from .payloads import Payload
from .rows import Row
from .state.family import SharedChange

PAGE_BYTES: Final = 16 << 20
"""Bytes of inputs and outputs after which a page ends."""

EXPORT_ROWS: Final = 1000
"""Attempts on a page of an export."""


class Order(StrEnum):
    """The end of the log that the first page begins at."""

    NEWEST = "newest"
    OLDEST = "oldest"


class LogPage(Struct, frozen=True, kw_only=True):
    """A page of attempts, newest last."""

    items: list[Row]
    next: str | None
    """Cursor of the next page; in order `oldest` it can be used again later for new attempts."""
    more: bool
    """Whether the next page has attempts now."""
    left_out: int
    """Number of damaged records that were left out."""


class SessionsPage(Struct, frozen=True, kw_only=True):
    """A page of sessions, the most recently active first."""

    items: list[SessionLine]
    next: str | None


class DanglingPage(Struct, frozen=True, kw_only=True):
    """A page of dangling calls, in the order in which they began."""

    items: list[Dangling]
    next: str | None
    left_out: int
    shared: list[SharedChange] | UnsetType = UNSET
    """Files that another branch of the session has changed as well; absent if there are none."""


def log_page(
    view: View,
    query: Query,
    order: Order,
    cursor: int | None,
    limit: int,
    *,
    payloads: bool = False,
) -> LogPage:
    """Return the page of the log that begins at `cursor`. Raises `NotFoundError`.

    With `payloads`, a page ends early when its inputs and outputs exceed `PAGE_BYTES`.
    """
    newest_first = order is Order.NEWEST
    match = filter_of(view, query)
    match = structs.replace(
        match,
        ahead_of=cursor if newest_first else match.ahead_of,
        behind=None if newest_first else cursor,
    )
    made = row_maker(view, query, payloads=payloads)
    rows: list[Row] = []
    last, room, more = cursor or 0, PAGE_BYTES, False
    for attempt in attempts_of(view, query, match, newest_first=newest_first):
        if more := len(rows) == limit or room <= 0:
            break
        row = made(attempt)
        room -= sum(side.size for side in (row.input, row.output) if isinstance(side, Payload))
        rows.append(row)
        last = attempt[0].position
    return LogPage(
        items=rows[::-1] if newest_first else rows,
        next=str(last) if more or not newest_first else None,
        more=more,
        left_out=view.left_out,
    )


def page_around(view: View, query: Query, *, payloads: bool = False) -> LogPage:
    """Return the attempts around a commit as a single page. Raises `NotFoundError`."""
    made = row_maker(view, query, payloads=payloads)
    rows = [made(attempt) for attempt in read_attempts(view, query)]
    return LogPage(items=rows, next=None, more=False, left_out=view.left_out)


def export_pages(
    open_view: Callable[[], View], query: Query, *, payloads: bool = False
) -> Iterator[LogPage]:
    """Yield all attempts that match, oldest first, in pages. Raises `NotFoundError`.

    Attempts that begin after the first page was read are left out.
    """
    # Each page has a snapshot of its own: one that stayed open while a slow reader takes the pages
    # would keep LMDB from using pages of its file again.
    if query.around is not None:
        with open_view() as view:
            page = page_around(view, query, payloads=payloads)
        yield page
        return
    with open_view() as view:
        cursor = _start(view, query)
        match = structs.replace(query.match, ahead_of=view.last + 1)
    more = True
    while more:
        wanted = structs.replace(query, match=match)
        with open_view() as view:
            page = log_page(view, wanted, Order.OLDEST, cursor, EXPORT_ROWS, payloads=payloads)
        yield page
        cursor, more = int(page.next or 0), page.more
        if query.session is not None and page.items:
            # Cheaper than the cursor: the index of a session is by seq.
            match = structs.replace(match, after=page.items[-1].intent_seq)


def _start(view: View, query: Query) -> int | None:
    """Return the position before the attempts that are wanted; `None` for the log's beginning."""
    if query.last is None:
        return None
    newest_first = attempts_of(view, query, filter_of(view, query), newest_first=True)
    first = 0
    for attempt in islice(newest_first, query.last):
        first = attempt[0].position
    return max(0, first - 1)


def sessions_page(view: View, cursor: int | None, limit: int) -> SessionsPage:
    """Return the page of sessions that were last active before `cursor`."""
    rows = (row for row in view.sessions() if cursor is None or row.position < cursor)
    found = list(islice(rows, limit + 1))
    shown, held = found[:limit], view.held()
    return SessionsPage(
        items=[session_line(view, row, held) for row in shown],
        next=_next([row.position for row in shown], more=len(found) > limit),
    )


def dangling_page(view: View, wanted: DanglingFilter, limit: int) -> DanglingPage:
    """Return the first page of dangling calls that match."""
    found = find_dangling(view, wanted)
    shown = found[:limit]
    return DanglingPage(
        items=[describe(view, one) for one in shown],
        next=_next([one.position for one in shown], more=len(found) > limit),
        left_out=view.left_out,
    )


def _next(positions: Sequence[int], *, more: bool) -> str | None:
    return str(positions[-1]) if more else None
