"""The endpoints of the API: a table with a line for each, and what each reads or does.

`serve.api` finds a request's endpoint in the table, `serve.openapi` describes the API by it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from turnlog.core import ids
from turnlog.observe.events import CallResolved
from turnlog.sessions.dangling import Wanted
from turnlog.sessions.listing import SessionLine, session_line
from turnlog.sessions.log import NotFoundError, find_session
from turnlog.sessions.pages import (
    DanglingPage,
    LogPage,
    SessionsPage,
    around,
    dangling_page,
    log_page,
    sessions_page,
)
from turnlog.sessions.payloads import Attempt, attempts, find_call, without_content
from turnlog.sessions.resolve import Claim, resolve
from turnlog.sessions.rows import Row
from turnlog.store.base import View

from .context import Context
from .parameters import (
    CallQuery,
    DanglingQuery,
    ListQuery,
    LogQuery,
    NoQuery,
    Resolution,
    Verdict,
    log_query,
    moment,
)


class Asked(Struct, frozen=True, kw_only=True):
    """What a request says."""

    names: dict[str, str]
    """What stands in the path for each `{name}` of the endpoint's."""
    query: Any
    """Of the endpoint's type."""
    now: int
    """ns UTC."""


class Read(Struct, frozen=True):
    """GET: `answer` from one snapshot of the store. `read` runs in a thread."""

    path: str
    title: str
    query: type[Struct]
    answer: type[Struct]
    read: Callable[[View, Asked], Struct]


class Act(Struct, frozen=True):
    """POST: `body` says what to do, `answer` what came of it."""

    path: str
    title: str
    body: type[Struct]
    answer: type[Struct]
    act: Callable[[Context, dict[str, str], Any], Awaitable[Struct]]


Endpoint = Read | Act


class Call(Struct, frozen=True, kw_only=True):
    """One call in full."""

    call: str
    attempts: list[Attempt]
    """The first first. Without `payloads` they have no texts, and no differences."""


def method(endpoint: Endpoint) -> str:
    """Return the HTTP method of an endpoint."""
    match endpoint:
        case Read():
            return "GET"
        case Act():
            return "POST"


def _sessions(view: View, asked: Asked) -> SessionsPage:
    query: ListQuery = asked.query
    return sessions_page(view, query.cursor, query.limit)


def _session(view: View, asked: Asked) -> SessionLine:
    row = view.session(find_session(view, asked.names["session"]))
    if row is None:
        raise NotFoundError(f"no session is called {asked.names['session']!r}")
    return session_line(row)


def _log(view: View, asked: Asked) -> LogPage:
    query: LogQuery = asked.query
    wanted = log_query(view, _named(view, asked), query, asked.now)
    if wanted.around is not None:
        return around(view, wanted)
    return log_page(view, wanted, query.order, query.cursor, query.limit)


def _dangling(view: View, asked: Asked) -> DanglingPage:
    query: DanglingQuery = asked.query
    wanted = Wanted(
        session=_named(view, asked),
        since=moment("since", query.since, asked.now),
        behind=query.cursor or 0,
    )
    return dangling_page(view, wanted, query.limit)


def _call(view: View, asked: Asked) -> Call:
    query: CallQuery = asked.query
    call = find_call(view, asked.names["call"])
    found = attempts(view, call)
    shown = found if query.payloads else [without_content(attempt) for attempt in found]
    return Call(call=ids.to_text(call), attempts=shown)


def _named(view: View, asked: Asked) -> bytes | None:
    """Return the session that the path names; `None` where it names none."""
    name = asked.names.get("session")
    return None if name is None else find_session(view, name)


async def _resolve(context: Context, names: dict[str, str], said: Resolution) -> Row:
    claim = Claim(
        happened=said.verdict is Verdict.HAPPENED,
        why=context.clean(said.why),
        at=context.clock.wall(),
        clock=context.clock.monotonic(),
    )
    row = await resolve(context.store, names["call"], claim)
    context.log.emit(
        CallResolved(
            session=row.session,
            call=row.call,
            seq=row.seq,
            server=row.server,
            tool=row.tool,
            effect=row.effect,
            executed=row.executed,
        )
    )
    return row


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Read("/sessions", "List sessions, the last active first", ListQuery, SessionsPage, _sessions),
    Read("/sessions/{session}", "Return a session", NoQuery, SessionLine, _session),
    Read("/sessions/{session}/log", "List a session's attempts", LogQuery, LogPage, _log),
    Read("/sessions/{session}/dangling", "List a session's calls without an answer", DanglingQuery, DanglingPage, _dangling),
    Read("/log", "List attempts of all sessions", LogQuery, LogPage, _log),
    Read("/dangling", "List all calls without an answer", DanglingQuery, DanglingPage, _dangling),
    Read("/calls/{call}", "Return a call with every attempt", CallQuery, Call, _call),
    Act("/calls/{call}/resolve", "Settle a call of which nobody knows", Resolution, Row, _resolve),
)  # fmt: skip
