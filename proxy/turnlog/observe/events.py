"""The closed catalogue of log events: one Struct each, so that no undocumented field is logged.

Names of fields on the line are OpenTelemetry's where it has one (semantic conventions for MCP,
HTTP and RPC), else `turnlog.*`. A field that holds its default is left out of the line. Never a
payload, header value or query: ids, sizes, counts and closed words only. `docs/reference/events.md`
describes each one; a test holds both against each other.
"""

from enum import IntEnum, StrEnum
from typing import ClassVar, Protocol

from msgspec import Struct, field

from turnlog.core.differences import Part
from turnlog.core.kinds import Effect, Executed, Flag, Phase, Rung, Status, WhenFull
from turnlog.core.provenance import Provenance
from turnlog.core.retry import Reason

RPC_ID_CHARS = 64
"""Longest JSON-RPC id that is logged: a caller chooses it, so it may be anything."""


class Level(IntEnum):
    """How much an event matters, in the numbers of the standard library."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Refusal(StrEnum):
    """Why a request was not forwarded."""

    HOST = "host"
    ORIGIN = "origin"
    METHOD = "method"
    PATH = "path"
    FRAMING = "framing"
    STORE = "store"
    TOKEN = "token"  # noqa: S105 - a word for the log


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", gc=False):
    """What every event has. `level` is the event's own and stands on the line by name."""

    level: ClassVar[Level] = Level.INFO


class Log(Protocol):
    """What takes events."""

    def wants(self, kind: type[Event]) -> bool:
        """Tell whether an event of this kind would be written, to save making one."""
        ...

    def emit(self, event: Event) -> None:
        """Write `event`, if its level is wanted. Never blocks and never raises."""
        ...


class ProxyReady(Event, frozen=True, kw_only=True, tag="proxy.ready"):
    """Calls are accepted."""

    urls: tuple[str, ...] = field(name="turnlog.urls")
    """What to paste into the agent's configuration, one per upstream."""
    version: str = field(name="service.version")
    upstreams: tuple[str, ...] = field(name="turnlog.upstreams", default=())
    data: str = field(name="turnlog.data", default="")
    pid: int = field(name="process.pid", default=0)


class ProxyStopping(Event, frozen=True, kw_only=True, tag="proxy.stopping"):
    """No new call is accepted any more."""

    reason: str = field(name="turnlog.reason")
    in_flight: int = field(name="turnlog.in_flight")


class ProxyStopped(Event, frozen=True, kw_only=True, tag="proxy.stopped"):
    """Everything is on disk."""

    unfinished: int = field(name="turnlog.unfinished")
    duration_ns: int = field(name="turnlog.duration_ns", default=0)


class ProxyFaulted(Event, frozen=True, kw_only=True, tag="proxy.faulted"):
    """An exception nobody expected was swallowed; a bug in turnlog."""

    level: ClassVar[Level] = Level.ERROR
    exception: str = field(name="exception.type")
    where: str = field(name="code.function.name")
    line: int = field(name="code.line.number", default=0)


class CallStarted(Event, frozen=True, kw_only=True, tag="call.started"):
    """An attempt has its intent."""

    level: ClassVar[Level] = Level.DEBUG
    session: str = field(name="turnlog.session")
    call: str = field(name="turnlog.call")
    server: str = field(name="turnlog.server")
    tool: str = field(name="gen_ai.tool.name")
    method: str = field(name="mcp.method.name", default="")
    http_method: str = field(name="http.request.method", default="")
    protocol: str = field(name="mcp.protocol.version", default="")
    effect: Effect = field(name="turnlog.effect", default=Effect.UNKNOWN)
    leg: int = field(name="turnlog.leg", default=0)
    attempt: int = field(name="turnlog.attempt", default=1)
    bytes_in: int = field(name="turnlog.input.size", default=0)
    flags: tuple[Flag, ...] = field(name="turnlog.flags", default=())
    trace: str = field(name="trace_id", default="")


class CallEnded(Event, frozen=True, kw_only=True, tag="call.ended"):
    """An attempt has its outcome. `method` is for MCP, `http_method` for plain HTTP tools."""

    session: str = field(name="turnlog.session")
    call: str = field(name="turnlog.call")
    seq: int = field(name="turnlog.seq", default=0)
    turn: int = field(name="turnlog.turn", default=0)
    step: int = field(name="turnlog.step", default=0)
    leg: int = field(name="turnlog.leg", default=0)
    attempt: int = field(name="turnlog.attempt", default=1)
    server: str = field(name="turnlog.server")
    tool: str = field(name="gen_ai.tool.name")
    method: str = field(name="mcp.method.name", default="")
    http_method: str = field(name="http.request.method", default="")
    protocol: str = field(name="mcp.protocol.version", default="")
    http_version: str = field(name="network.protocol.version", default="")
    status: Status = field(name="turnlog.status")
    error: str = field(name="error.type", default="")
    kind: str = field(name="turnlog.kind", default="")
    retry: str = field(name="turnlog.retry", default="")
    reason: str = field(name="turnlog.reason", default="")
    """Why no other attempt follows."""
    executed: Executed = field(name="turnlog.executed")
    effect: Effect = field(name="turnlog.effect")
    phase: Phase = field(name="turnlog.phase")
    http_status: int = field(name="http.response.status_code", default=0)
    code: int | None = field(name="rpc.response.status_code", default=None)
    duration_ns: int = field(name="turnlog.duration_ns")
    bytes_in: int = field(name="turnlog.input.size", default=0)
    bytes_out: int = field(name="turnlog.output.size", default=0)
    flags: tuple[Flag, ...] = field(name="turnlog.flags", default=())
    trace: str = field(name="trace_id", default="")


class _AttemptFailed(Event, frozen=True, kw_only=True):
    """An attempt failed, and a rule wants another one."""

    session: str = field(name="turnlog.session")
    call: str = field(name="turnlog.call")
    attempt: int = field(name="turnlog.attempt")
    server: str = field(name="turnlog.server")
    tool: str = field(name="gen_ai.tool.name")


class CallRetried(_AttemptFailed, frozen=True, kw_only=True, tag="call.retried"):
    """An attempt failed and a rule wants another one, after the delay."""

    kind: str = field(name="turnlog.kind")
    delay_ns: int = field(name="turnlog.delay_ns")


class RetryAbandoned(_AttemptFailed, frozen=True, kw_only=True, tag="retry.abandoned"):
    """The attempt that `call.retried` announced is not made; what was held is the answer."""

    reason: Reason = field(name="turnlog.reason")


class _Circuit(Event, frozen=True, kw_only=True):
    """The circuit of a tool server has changed."""

    server: str = field(name="turnlog.server")


class CircuitOpened(_Circuit, frozen=True, kw_only=True, tag="circuit.opened"):
    """A server failed too often: its calls are refused for a while."""

    level: ClassVar[Level] = Level.WARNING
    cool_down_ns: int = field(name="turnlog.cool_down_ns")


class CircuitProbed(_Circuit, frozen=True, kw_only=True, tag="circuit.probed"):
    """One attempt is made that decides what becomes of the circuit."""


class CircuitClosed(_Circuit, frozen=True, kw_only=True, tag="circuit.closed"):
    """The server answers again."""


class _CallClosed(Event, frozen=True, kw_only=True):
    """An attempt got its outcome from somebody else than who made it."""

    session: str = field(name="turnlog.session")
    call: str = field(name="turnlog.call")
    seq: int = field(name="turnlog.seq")
    server: str = field(name="turnlog.server", default="")
    tool: str = field(name="gen_ai.tool.name", default="")
    effect: Effect = field(name="turnlog.effect", default=Effect.UNKNOWN)


class CallRecovered(_CallClosed, frozen=True, kw_only=True, tag="call.recovered"):
    """An attempt of a process that died got `outcome_unknown`."""

    level: ClassVar[Level] = Level.WARNING


class CallExpired(_CallClosed, frozen=True, kw_only=True, tag="call.expired"):
    """Nobody came back in time for a call that waited for more input or for its task."""


class CallResolved(_CallClosed, frozen=True, kw_only=True, tag="call.resolved"):
    """An operator said through the API whether a call happened of which nobody knew."""

    executed: Executed = field(name="turnlog.executed", default=Executed.MAYBE)


class RequestRelayed(Event, frozen=True, kw_only=True, tag="request.relayed"):
    """MCP traffic that is no tool call went through."""

    level: ClassVar[Level] = Level.DEBUG
    server: str = field(name="turnlog.server")
    http_method: str = field(name="http.request.method")
    method: str = field(name="mcp.method.name", default="")
    request_id: str = field(name="jsonrpc.request.id", default="")
    protocol: str = field(name="mcp.protocol.version", default="")
    http_status: int = field(name="http.response.status_code", default=0)
    duration_ns: int = field(name="turnlog.duration_ns", default=0)
    events: int = field(name="turnlog.events", default=0)
    """How many events came, where the answer was a stream."""


class RequestRefused(Event, frozen=True, kw_only=True, tag="request.refused"):
    """A request was answered by turnlog itself and never forwarded."""

    level: ClassVar[Level] = Level.WARNING
    reason: Refusal = field(name="turnlog.reason")
    http_method: str = field(name="http.request.method", default="")
    http_status: int = field(name="http.response.status_code", default=0)


class UpstreamFailed(Event, frozen=True, kw_only=True, tag="upstream.failed"):
    """A tool server could not be reached, or broke off."""

    level: ClassVar[Level] = Level.WARNING
    server: str = field(name="turnlog.server")
    address: str = field(name="server.address", default="")
    port: int = field(name="server.port", default=0)
    error: str = field(name="error.type", default="")
    kind: str = field(name="turnlog.kind", default="")
    phase: Phase = field(name="turnlog.phase", default=Phase.QUEUED)


class StrayOutput(Event, frozen=True, kw_only=True, tag="output.stray"):
    """A command wrote something to its stdout that is no message. Through a wrap it was passed on."""

    level: ClassVar[Level] = Level.WARNING
    server: str = field(name="turnlog.server")
    size: int = field(name="turnlog.bytes")


class QuestionRefused(Event, frozen=True, kw_only=True, tag="question.refused"):
    """A command that several sessions share asked something, and nothing tells which of them."""

    level: ClassVar[Level] = Level.WARNING
    server: str = field(name="turnlog.server")
    method: str = field(name="mcp.method.name")


class ProcessEnded(Event, frozen=True, kw_only=True, tag="process.ended"):
    """A command's process has ended."""

    server: str = field(name="turnlog.server")
    pid: int = field(name="process.pid")
    exit_code: int = field(name="process.exit.code")
    """Below zero where a signal ended it."""


class ProcessFailed(Event, frozen=True, kw_only=True, tag="process.failed"):
    """A command could not be started, or ended before it answered anything."""

    level: ClassVar[Level] = Level.ERROR
    server: str = field(name="turnlog.server")
    reason: str = field(name="turnlog.reason")
    exit_code: int | None = field(name="process.exit.code", default=None)
    """Below zero where a signal ended it."""


class AuthRequired(Event, frozen=True, kw_only=True, tag="auth.required"):
    """A tool server wants OAuth on another origin, which no transparent proxy can carry."""

    level: ClassVar[Level] = Level.WARNING
    server: str = field(name="turnlog.server")
    http_status: int = field(name="http.response.status_code")
    advice: str = field(name="turnlog.advice")


class SessionOpened(Event, frozen=True, kw_only=True, tag="session.opened"):
    """A session was met for the first time. The name it goes by stands in the store only."""

    session: str = field(name="turnlog.session")
    rung: Rung = field(name="turnlog.rung")
    client: str = field(name="turnlog.client", default="")
    confidence: str = field(name="turnlog.confidence", default="")


class StoreFilled(Event, frozen=True, kw_only=True, tag="store.full"):
    """There is no room for another intent."""

    level: ClassVar[Level] = Level.ERROR
    used: int = field(name="turnlog.store.size")
    limit: int = field(name="turnlog.store.limit")
    disk_free: int = field(name="turnlog.disk.free")
    when_full: WhenFull = field(name="turnlog.when_full")


class StoreTrimmed(Event, frozen=True, kw_only=True, tag="store.trimmed"):
    """The oldest inputs and outputs were given up to make room. Their calls stay in the log."""

    level: ClassVar[Level] = Level.WARNING
    size: int = field(name="turnlog.store.trimmed")


class StoreRecovered(Event, frozen=True, kw_only=True, tag="store.recovered"):
    """Epochs of dead processes were closed at start."""

    epochs: int = field(name="turnlog.epochs")
    calls: int = field(name="turnlog.calls")
    """Attempts that became `outcome_unknown`."""


class StoreRekeyed(Event, frozen=True, kw_only=True, tag="store.rekeyed"):
    """The store's key was gone, and was made anew: keyed digests match no earlier ones."""

    level: ClassVar[Level] = Level.WARNING
    data: str = field(name="turnlog.data")


class StoreFailed(Event, frozen=True, kw_only=True, tag="store.failed"):
    """The store cannot be read or written."""

    level: ClassVar[Level] = Level.ERROR
    reason: str = field(name="error.message")


class RecorderFailed(Event, frozen=True, kw_only=True, tag="recorder.failed"):
    """A call went on that could not be recorded as it should."""

    level: ClassVar[Level] = Level.ERROR
    reason: str = field(name="error.message")
    flag: Flag = field(name="turnlog.flag", default=Flag.UNRECORDED)


class ToolsListed(Event, frozen=True, kw_only=True, tag="tools.listed"):
    """A server's list of tools went through."""

    server: str = field(name="turnlog.server")
    tools: int = field(name="turnlog.tools")
    added: int = field(name="turnlog.tools.added", default=0)
    changed: int = field(name="turnlog.tools.changed", default=0)
    complete: bool = field(name="turnlog.complete", default=True)
    """Whether this is the whole list, and not one page of it."""
    stuck: bool = field(name="turnlog.cursor.stuck", default=False)
    """Whether the next page is this very one."""


class RulesReloaded(Event, frozen=True, kw_only=True, tag="rules.reloaded"):
    """The rules were read again and are in force. Calls under way keep those they began with."""

    rules: int = field(name="turnlog.rules")


class RulesRejected(Event, frozen=True, kw_only=True, tag="rules.rejected"):
    """A file of rules cannot be used; the rules before stay in force."""

    level: ClassVar[Level] = Level.ERROR
    reason: str = field(name="error.message")
    file: str = field(name="code.file.path")
    line: int = field(name="code.line.number", default=0)
    column: int = field(name="code.column.number", default=0)


class ToolChanged(Event, frozen=True, kw_only=True, tag="tool.changed"):
    """A server shows another definition of a tool than it showed the same credential before."""

    level: ClassVar[Level] = Level.WARNING
    server: str = field(name="turnlog.server")
    tool: str = field(name="gen_ai.tool.name")
    parts: tuple[Part, ...] = field(name="turnlog.parts", default=())
    """Empty where the definition before is not kept any more."""
    provenance: Provenance = field(name="turnlog.provenance")


class DefinitionsFailed(Event, frozen=True, kw_only=True, tag="definitions.failed"):
    """A list of tools could not be read, so that its tools count as not seen, or not written down."""

    level: ClassVar[Level] = Level.ERROR
    reason: str = field(name="error.message")


class LockLoaded(Event, frozen=True, kw_only=True, tag="lock.loaded"):
    """turnlog.lock was read, at the start or because it has changed."""

    lock: str = field(name="turnlog.lock")
    pinned: int = field(name="turnlog.pinned")


class LockFailed(Event, frozen=True, kw_only=True, tag="lock.failed"):
    """turnlog.lock has changed and cannot be read; the one before stays in force."""

    level: ClassVar[Level] = Level.ERROR
    reason: str = field(name="error.message")


class LogDropped(Event, frozen=True, kw_only=True, tag="log.dropped"):
    """Lines were lost because the reader of the log was slow or gone."""

    level: ClassVar[Level] = Level.WARNING
    lines: int = field(name="turnlog.lines")


CATALOGUE: tuple[type[Event], ...] = (
    ProxyReady,
    ProxyStopping,
    ProxyStopped,
    ProxyFaulted,
    CallStarted,
    CallEnded,
    CallRetried,
    RetryAbandoned,
    CallRecovered,
    CallExpired,
    CallResolved,
    RequestRelayed,
    RequestRefused,
    UpstreamFailed,
    StrayOutput,
    QuestionRefused,
    ProcessEnded,
    ProcessFailed,
    AuthRequired,
    CircuitOpened,
    CircuitProbed,
    CircuitClosed,
    SessionOpened,
    StoreFilled,
    StoreTrimmed,
    StoreRecovered,
    StoreRekeyed,
    StoreFailed,
    RecorderFailed,
    ToolsListed,
    RulesReloaded,
    RulesRejected,
    ToolChanged,
    DefinitionsFailed,
    LockLoaded,
    LockFailed,
    LogDropped,
)


def name_of(event: Event | type[Event]) -> str:
    """Return the event's name on the line, as `call.ended`."""
    return str(event.__struct_config__.tag)


def rpc_id(value: int | float | str | None) -> str:
    """Return a JSON-RPC id for `jsonrpc.request.id`: bounded and printable, or nothing."""
    text = "" if value is None else str(value)[:RPC_ID_CHARS]
    return text if text.isprintable() else ""
