"""The endpoints of the API: one table, and the functions that answer.

`api.api` routes requests by the table, `api.openapi` describes the API from it.
"""

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.kinds import Actor, NoteKind
from turnlog.core.lifecycle import Action, SessionStage
from turnlog.core.note import Note
from turnlog.core.state.state_view import StateField
from turnlog.engine.context import Context
from turnlog.observe.events import CallResolved, SessionChanged
from turnlog.rules.model import TaintAction
from turnlog.sessions.call_detail import AttemptDetail, attempts_of_call, find_call, without_content
from turnlog.sessions.control.effects import chosen_effect
from turnlog.sessions.control.fork import ForkMade, ForkOrder, fork, fork_draft
from turnlog.sessions.control.lifecycle import SessionChange, operation_of
from turnlog.sessions.control.rewind import RewindOrder, rewind
from turnlog.sessions.control.rewind_plan import RewindPlan, rewind_plan, rewind_target
from turnlog.sessions.control.writer import ControlRequest, ControlWriter, OperationResult
from turnlog.sessions.dangling import DanglingFilter
from turnlog.sessions.errors import OperationError
from turnlog.sessions.lineage.taint import (
    Contamination,
    ReadingBounds,
    find_output,
    read_contamination,
)
from turnlog.sessions.lineage.why import Trail, trail
from turnlog.sessions.log import TurnRange, find_session, parse_turns, session_row
from turnlog.sessions.notes import NoteWriter, WrittenNote, parse_note, written_note
from turnlog.sessions.overview import SessionLine, session_line
from turnlog.sessions.pages import (
    DanglingPage,
    LogPage,
    SessionsPage,
    dangling_page,
    log_page,
    page_around,
    sessions_page,
)
from turnlog.sessions.resolve import Claim, resolve
from turnlog.sessions.retention.collect import Collector
from turnlog.sessions.retention.gc import GcFate, GcLine, due_lines, expired, purge_line
from turnlog.sessions.retention.housekeeping import enforced
from turnlog.sessions.retention.purge import PurgeOrder, PurgePlan, Purger, purge_plan
from turnlog.sessions.rows import Row
from turnlog.sessions.state.changes import (
    Difference,
    changes_between,
    seq_bounds,
    session_differences,
    turn_bounds,
)
from turnlog.sessions.state.state_at import (
    SessionState,
    head_of,
    read_state,
    seq_at,
    shared_at_head,
)
from turnlog.sessions.transfer.resume import Resumption, resumption
from turnlog.store.base import SessionRef
from turnlog.store.read.held_content import HeldContent
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

from .parameters import (
    BadParameterError,
    CallQuery,
    DanglingQuery,
    DiffArguments,
    DiffQuery,
    EffectRequest,
    ForkRequest,
    FullLogQuery,
    GcRequest,
    HoldRequest,
    ListQuery,
    LogQuery,
    NoQuery,
    NoteQuery,
    PurgeRequest,
    Resolution,
    ResumeQuery,
    RewindRequest,
    StateQuery,
    TaintQuery,
    TaintRequest,
    Verdict,
    WhyQuery,
    log_query,
    moment,
    read_text,
)

_BOUNDS: Final = ReadingBounds(commits=8192, size=16 << 20)
"""What one request for a contamination looks at, in some 2 s: without a bound it would take as long as the session."""


class ApiRequest(Struct, frozen=True, kw_only=True):
    """One request to an endpoint."""

    names: dict[str, str]
    """Parameters of the path, by the `{name}` in the endpoint's path."""
    query: Any
    """An instance of the endpoint's `query` type."""
    now: int
    """ns UTC."""
    saved: SavedStates
    threads: Executor | None = None
    """Reads the store for long work; `None` for the loop's own."""

    def session(self, view: View) -> bytes:
        """Return the session that the path names. Raises `NotFoundError`."""
        return find_session(view, self.names["session"])


class ReadEndpoint(Struct, frozen=True):
    """GET: `answer` from one snapshot of the store. `read` runs in a thread."""

    method: ClassVar[str] = "GET"
    path: str
    title: str
    query: type[Struct]
    answer: type[Struct]
    read: Callable[[View, ApiRequest], Struct]


class WriteEndpoint(Struct, frozen=True):
    """POST: `body` is the request, `answer` the result."""

    method: ClassVar[str] = "POST"
    path: str
    title: str
    query: type[Struct]
    body: Any
    """Type of the body in the OpenAPI document."""
    answer: type[Struct]
    write: Callable[[Context, ApiRequest, Any], Awaitable[Struct]]

    def read(self, body: bytes) -> Any:
        """Return what is in a body. Raises `ValueError`."""
        # The type does not check which members a kind of note needs.
        return parse_note(body) if self.body is Note else msgspec.json.decode(body, type=self.body)


Endpoint = ReadEndpoint | WriteEndpoint


class Differences(Struct, frozen=True, kw_only=True):
    """The differences between two states."""

    items: list[Difference]


class GcReport(Struct, frozen=True, kw_only=True):
    """The content that has outlived its retention."""

    retention: str
    items: list[GcLine]


class Call(Struct, frozen=True, kw_only=True):
    """One call in full."""

    call: str
    attempts: list[AttemptDetail]
    """In order. Without `payloads` they have neither texts nor differences."""


def _sessions(view: View, request: ApiRequest) -> SessionsPage:
    query: ListQuery = request.query
    return sessions_page(view, query.cursor, query.limit)


def _session(view: View, request: ApiRequest) -> SessionLine:
    row = session_row(view, request.session(view))
    return session_line(view, row, view.held())


def log_of(view: View, request: ApiRequest) -> LogPage:
    """Return a page of a log."""
    query: LogQuery = request.query
    wanted = log_query(view, _named(view, request), query, request.now)
    payloads = isinstance(query, FullLogQuery) and query.payloads
    if wanted.around is not None:
        return page_around(view, wanted, payloads=payloads)
    return log_page(view, wanted, query.order, query.cursor, query.limit, payloads=payloads)


def dangling_of(view: View, request: ApiRequest) -> DanglingPage:
    """Return a page of calls without an answer."""
    query: DanglingQuery = request.query
    wanted = DanglingFilter(
        session=_named(view, request),
        since=moment("since", query.since, request.now),
        behind=query.cursor or 0,
        with_discarded=query.all,
        now=request.now,
    )
    page = dangling_page(view, wanted, query.limit)
    session = wanted.session
    shared = shared_at_head(view, request.saved, session) if session is not None else []
    return structs.replace(page, shared=shared) if shared else page


def _call(view: View, request: ApiRequest) -> Call:
    query: CallQuery = request.query
    call = find_call(view, request.names["call"])
    found = attempts_of_call(view, call)
    shown = found if query.payloads else [without_content(attempt) for attempt in found]
    return Call(call=ids.to_text(call), attempts=shown)


def _why(view: View, request: ApiRequest) -> Trail:
    query: WhyQuery = request.query
    session = request.session(view)
    return trail(view, session, query.seq, query.pointer)


def _named(view: View, request: ApiRequest) -> bytes | None:
    """Return the session that the path names; `None` if it names none."""
    return request.session(view) if "session" in request.names else None


def state_of(view: View, request: ApiRequest) -> SessionState:
    """Return a session's state."""
    query: StateQuery = request.query
    session = request.session(view)
    fields = tuple(StateField) if query.field is None else (query.field,)
    if query.at is not None and query.turn is not None:
        raise BadParameterError("at", "it excludes turn, give one")
    at = seq_at(view, session, query.at, query.turn)
    return read_state(view, request.saved, session, at, fields, with_discarded=query.all)


def _resume(view: View, request: ApiRequest) -> Resumption:
    query: ResumeQuery = request.query
    session = request.session(view)
    return resumption(view, request.saved, session, last=query.limit)


def diff_of(view: View, request: ApiRequest) -> Differences:
    """Return the differences between two states of a session, or between two sessions."""
    query: DiffArguments = request.query
    against = query.other if isinstance(query, DiffQuery) else None
    session = request.session(view)
    if sum(value is not None for value in (query.turns, query.seq, against)) > 1:
        raise BadParameterError("turns", "give only one of turns, seq and other")
    if against is not None:
        other = find_session(view, against)
        heads = head_of(view, session), head_of(view, other)
        return Differences(items=session_differences(view, request.saved, session, other, heads))
    name, found = "seq", read_text("seq", partial(seq_bounds, view, session), query.seq)
    if found is None:
        turns = read_text("turns", parse_turns, query.turns) or TurnRange()
        name, found = "turns", turn_bounds(view, session, turns)
    before, after = found
    if after < before:
        raise BadParameterError(name, f"commit {after} comes before {before}, exchange them")
    items = changes_between(view, request.saved, session, before, after, with_discarded=query.all)
    return Differences(items=items)


def note_writer(context: Context) -> NoteWriter:
    """Return what writes notes to the proxy's store."""
    on_written = context.lineage.on_noted if context.lineage is not None else None
    return NoteWriter(context.store, context.redactor, context.clock, on_written)


async def _note(context: Context, request: ApiRequest, note: Note) -> WrittenNote:
    query: NoteQuery = request.query
    with context.store.view() as view:
        session = SessionRef.existing(request.session(view))
    noter = note_writer(context)
    # A caller with the token counts as the operator.
    return await noter.write(
        session, note, note_id=query.id or "", head=query.head, actor=Actor.OPERATOR
    )


async def _resolve(context: Context, request: ApiRequest, resolution: Resolution) -> Row:
    claim = Claim(
        happened=resolution.verdict is Verdict.HAPPENED,
        why=context.clean(resolution.why),
        clock=context.clock,
        fence=resolution.fence,
    )
    row = await resolve(
        context.store, request.names["call"], claim, runs=context.duplicate_index.runs
    )
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


async def _effect(context: Context, request: ApiRequest, wanted: EffectRequest) -> WrittenNote:
    with context.store.view() as view:
        call, actor = request.names["call"], Actor.OPERATOR
        branch = find_session(view, wanted.session) if wanted.session else None
        chosen = chosen_effect(view, call, wanted.choice, wanted.why, actor, branch)
    session = SessionRef.existing(chosen.session)
    noter = note_writer(context)
    return await noter.write(session, chosen.note, actor=actor, fence=wanted.fence)


def _taint(view: View, request: ApiRequest) -> Contamination:
    query: TaintQuery = request.query
    session = request.session(view)
    found = read_contamination(view, session, to=query.to, until=query.until, bounds=_BOUNDS)
    if found.after is None:
        return found
    rest = f"`until={found.after}` looks at those, `turnlog taint show` on the proxy's host at all"
    return structs.replace(found, partial=[*found.partial, rest])


async def _mark(context: Context, request: ApiRequest, wanted: TaintRequest) -> WrittenNote:
    with context.store.view() as view:
        output = find_output(view, request.session(view), wanted.seq)
    kind = NoteKind.TAINT if wanted.action is TaintAction.MARK else NoteKind.ENDORSE
    return written_note(await note_writer(context).mark_output(output, kind, wanted.why))


async def _fork(context: Context, request: ApiRequest, wanted: ForkRequest) -> ForkMade:
    if context.clean(wanted.name) != wanted.name:
        raise OperationError("the name holds a secret, choose another")
    order = ForkOrder(session=request.names["session"], **structs.asdict(wanted))
    draft = await context.store.read(
        lambda view: fork_draft(view, request.saved, order, context.clock)
    )
    return await fork(context.store, draft, order)


async def _rewind(context: Context, request: ApiRequest, wanted: RewindRequest) -> RewindPlan:
    if (wanted.seq is None) == (wanted.turn is None):
        raise OperationError("give seq or turn, one of them")

    def planned(view: View) -> RewindPlan:
        session = request.session(view)
        target = rewind_target(view, session, seq=wanted.seq, turn=wanted.turn)
        return rewind_plan(view, session, target, keep=wanted.keep, rules=context.rules.book)

    plan = await context.store.read(planned)
    if wanted.expect is None:
        return plan
    order = RewindOrder(
        expect=wanted.expect,
        why=context.clean(wanted.why),
        clock=context.clock,
        fence=wanted.fence,
    )
    made = await rewind(context.store, plan, order)
    with context.store.view() as view:
        row = view.session(ids.from_text(made.session))
    if row is not None and made.rewound is not None:
        _log_change(context, made.session, made.rewound, Action.REWIND, row.stage)
    return made


async def _change(context: Context, request: ApiRequest, change: SessionChange) -> OperationResult:
    with context.store.view() as view:
        session = request.session(view)
        operation = operation_of(view, session, change, Actor.OPERATOR, context.clean)
    return await changed(context, session, operation)


async def changed(context: Context, session: bytes, operation: ControlRequest) -> OperationResult:
    """Carry out an operation on a session, and log it."""
    writer = ControlWriter(context.store, context.redactor, context.clock)
    result = await writer.write(session, operation)
    _log_change(
        context, result.session, result.seq, result.action, result.stage, actor=result.actor
    )
    return result


def _log_change(
    context: Context,
    session: str,
    seq: int,
    action: Action,
    stage: SessionStage,
    *,
    actor: Actor = Actor.OPERATOR,
) -> None:
    context.log.emit(
        SessionChanged(session=session, seq=seq, action=action, stage=stage, actor=actor)
    )


async def _hold(
    kind: NoteKind, context: Context, request: ApiRequest, wanted: HoldRequest
) -> WrittenNote:
    noter, name = note_writer(context), request.names["session"]
    return written_note(await noter.change_hold(name, kind, wanted.why, wanted.fence))


async def _purge(context: Context, request: ApiRequest, wanted: PurgeRequest) -> PurgePlan:
    name = request.names["session"]

    def planned(view: View) -> tuple[bytes, PurgePlan]:
        session = find_session(view, name)
        return session, purge_plan(view, session, name)

    purger = _purger(context, request)
    session, plan = await purger.collector.read(planned)
    if not wanted.yes:
        return plan
    order = PurgeOrder(why=wanted.why, expect=wanted.expect, fence=wanted.fence)
    writer = ControlWriter(context.store, context.redactor, context.clock)
    done = await purger.purge(session, plan, order, writer)
    _log_change(context, done.session, done.head, Action.PURGE, done.stage)
    return done


async def _gc(context: Context, request: ApiRequest, wanted: GcRequest) -> GcReport:
    purger, retention = _purger(context, request), context.retention
    due = await context.store.read(
        lambda view: expired(view, retention, request.now, HeldContent()), request.threads
    )
    with context.store.view() as view:
        purges = view.purges()
    if not wanted.yes:
        return GcReport(retention=retention.text(), items=due_lines(due, purges))
    for session in (session for session, is_erased in purges.items() if not is_erased):
        await purger.go_on(session)
    gone = [line async for line in purger.collector.collect(due)]
    if gone:
        context.log.emit(enforced(gone))
    # The log's file cannot be rewritten while this process has it open.
    gone += [purge_line(session, GcFate.PENDING) for session in purges]
    held = [one.line(GcFate.HELD) for one in due if one.held and one.has_content]
    return GcReport(retention=retention.text(), items=[*held, *gone])


def _purger(context: Context, request: ApiRequest) -> Purger:
    store, saved = context.store, request.saved
    collector = Collector(store, saved, context.clock, request.threads)
    return Purger(collector)


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    ReadEndpoint("/sessions", "List sessions, the last active first", ListQuery, SessionsPage, _sessions),
    ReadEndpoint("/sessions/{session}", "Return a session", NoQuery, SessionLine, _session),
    ReadEndpoint("/sessions/{session}/log", "List a session's attempts", FullLogQuery, LogPage, log_of),
    ReadEndpoint("/sessions/{session}/dangling", "List a session's calls without an answer", DanglingQuery, DanglingPage, dangling_of),
    ReadEndpoint("/sessions/{session}/why", "Return which calls a value in an input came from", WhyQuery, Trail, _why),
    ReadEndpoint("/log", "List attempts of all sessions", FullLogQuery, LogPage, log_of),
    ReadEndpoint("/dangling", "List all calls without an answer", DanglingQuery, DanglingPage, dangling_of),
    ReadEndpoint("/calls/{call}", "Return a call with every attempt", CallQuery, Call, _call),
    ReadEndpoint("/sessions/{session}/state", "Return a session's state at any commit", StateQuery, SessionState, state_of),
    ReadEndpoint("/sessions/{session}/resume", "Return what is needed to go on with a session", ResumeQuery, Resumption, _resume),
    ReadEndpoint("/sessions/{session}/diff", "List what changed between two states", DiffQuery, Differences, diff_of),
    ReadEndpoint("/sessions/{session}/taint", "Return what was found of tainted outputs and their use", TaintQuery, Contamination, _taint),
    WriteEndpoint("/sessions/{session}/taint/marks", "Mark or endorse an output", NoQuery, TaintRequest, WrittenNote, _mark),
    WriteEndpoint("/sessions/{session}/notes", "Write a note", NoteQuery, Note, WrittenNote, _note),
    WriteEndpoint("/sessions/{session}/rewind", "Plan a rewind, or make it if `expect` is given", NoQuery, RewindRequest, RewindPlan, _rewind),
    WriteEndpoint("/sessions/{session}/fork", "Fork a session", NoQuery, ForkRequest, ForkMade, _fork),
    WriteEndpoint("/sessions/{session}/lifecycle", "Pause, resume, close, archive, name, merge or claim a session", NoQuery, SessionChange, OperationResult, _change),
    WriteEndpoint("/sessions/{session}/hold", "Keep a session's content, whatever its age", NoQuery, HoldRequest, WrittenNote, partial(_hold, NoteKind.HOLD)),
    WriteEndpoint("/sessions/{session}/release", "End the hold of a session", NoQuery, HoldRequest, WrittenNote, partial(_hold, NoteKind.RELEASE)),
    WriteEndpoint("/sessions/{session}/purge", "Plan the removal of a session's content, or remove it if `yes` is given", NoQuery, PurgeRequest, PurgePlan, _purge),
    WriteEndpoint("/gc", "List what has outlived its retention, or delete it if `yes` is given", NoQuery, GcRequest, GcReport, _gc),
    WriteEndpoint("/calls/{call}/effect", "Choose about the effect of a discarded call", NoQuery, EffectRequest, WrittenNote, _effect),
    WriteEndpoint("/calls/{call}/resolve", "Settle a call of unknown outcome", NoQuery, Resolution, Row, _resolve),
)  # fmt: skip
