"""The closed catalogue of log events: one Struct each, so that no undocumented field is logged.

Names of fields on the line are OpenTelemetry's where it has one (semantic conventions for MCP,
HTTP and RPC), else `turnlog.*`. A field that holds its default is left out of the line. Never a
payload, header value or query: ids, sizes, counts and closed words only. `docs/reference/events.md`
describes each one; a test compares the two.
"""

from enum import IntEnum, StrEnum
from typing import ClassVar, Protocol

from msgspec import Struct, field

from turnlog.core.kinds import Actor, Effect, Executed, Flag, Phase, Rung, Status, WhenFull
from turnlog.core.lifecycle import Action, SessionStage
from turnlog.core.pins import Provenance
from turnlog.exchange.coverage import CoverageGap
from turnlog.rules.retry import StopReason
from turnlog.wire.tool_definition import Part

RPC_ID_CHARS = 64
"""Longest JSON-RPC id that is logged: a caller chooses it, so it may be anything."""


class Level(IntEnum):
    """Severity of an event, with the numbers of the standard library's `logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


_NAMES = {
    "line": "code.line.number",
    "error": "error.type",
    "tool": "gen_ai.tool.name",
    "http_method": "http.request.method",
    "http_status": "http.response.status_code",
    "method": "mcp.method.name",
    "protocol": "mcp.protocol.version",
    "exit_code": "process.exit.code",
    "pid": "process.pid",
    "trace": "trace_id",
    "bytes_in": "turnlog.input.size",
}
"""Names on the line of the fields that are not called `turnlog.FIELD` there."""


def _name_on_line(field_name: str) -> str:
    return _NAMES.get(field_name, f"turnlog.{field_name}")


class LogEvent(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event",
    gc=False,
    rename=_name_on_line,
):
    """Base of all log events. `level` is the usual severity of its kind."""

    level: ClassVar[Level] = Level.INFO

    @property
    def severity(self) -> Level:
        """The severity of this one event, where it depends on its fields."""
        return self.level


class Log(Protocol):
    """A receiver of log events."""

    @property
    def tells_content(self) -> bool:
        """Whether events of calls carry summaries of input and output."""
        ...

    def wants(self, kind: type[LogEvent]) -> bool:
        """Return whether an event of this kind would be written; asked to save building one."""
        ...

    def emit(self, event: LogEvent) -> None:
        """Write `event` unless its severity is below the log level. Never blocks, never raises."""
        ...


def rpc_id(value: int | float | str | None) -> str:
    """Return a JSON-RPC id as logged: cut to `RPC_ID_CHARS`; empty when it is not printable."""
    text = "" if value is None else str(value)[:RPC_ID_CHARS]
    return text if text.isprintable() else ""


class RefusalReason(StrEnum):
    """Why a request was not forwarded (`turnlog.reason`)."""

    HOST = "host"
    ORIGIN = "origin"
    METHOD = "method"
    PATH = "path"
    FRAMING = "framing"
    STORE = "store"
    TOKEN = "token"  # noqa: S105 - a word for the log


class ProxyReady(LogEvent, frozen=True, kw_only=True, tag="proxy.ready"):
    """The proxy accepts calls."""

    urls: tuple[str, ...]
    """The URLs for the agent's configuration, one per upstream."""
    version: str = field(name="service.version")
    upstreams: tuple[str, ...] = ()
    data: str = ""
    pid: int = 0
    proxies: tuple[str, ...] = ()
    """The upstreams that are reached through an HTTP proxy, each with that proxy."""


class ProxyStopping(LogEvent, frozen=True, kw_only=True, tag="proxy.stopping"):
    """The proxy accepts no new calls."""

    reason: str
    in_flight: int


class ProxyStopped(LogEvent, frozen=True, kw_only=True, tag="proxy.stopped"):
    """The proxy has stopped; everything is on disk."""

    unfinished: int
    duration_ns: int = 0


class ProxyFaulted(LogEvent, frozen=True, kw_only=True, tag="proxy.faulted"):
    """An unexpected exception was caught: a bug in turnlog."""

    level: ClassVar[Level] = Level.ERROR
    exception: str = field(name="exception.type")
    where: str = field(name="code.function.name")
    line: int = 0


class CallBug(LogEvent, frozen=True, kw_only=True, tag="call.bug"):
    """Something happened to a call that cannot happen at its stage: a bug in turnlog."""

    level: ClassVar[Level] = Level.ERROR
    session: str
    call: str
    server: str
    tool: str
    stage: str
    happened: str


class CallStarted(LogEvent, frozen=True, kw_only=True, tag="call.started"):
    """The intent of an attempt was recorded."""

    level: ClassVar[Level] = Level.DEBUG
    session: str
    call: str
    server: str
    tool: str
    method: str = ""
    http_method: str = ""
    protocol: str = ""
    effect: Effect = Effect.UNKNOWN
    leg: int = 0
    attempt: int = 1
    bytes_in: int = 0
    flags: tuple[Flag, ...] = ()
    trace: str = ""


class CallEnded(LogEvent, frozen=True, kw_only=True, tag="call.ended"):
    """The outcome of an attempt was recorded. `method` is set for MCP, `http_method` for plain HTTP tools."""

    session: str
    call: str
    input_summary: str = field(name="turnlog.input.summary", default="")
    """Start of the redacted input, at most 200 bytes; only at level debug and on a terminal."""
    output_summary: str = field(name="turnlog.output.summary", default="")
    """The same of the output, at most 512 bytes."""
    seq: int = 0
    turn: int = 0
    step: int = 0
    leg: int = 0
    attempt: int = 1
    server: str
    tool: str
    method: str = ""
    http_method: str = ""
    protocol: str = ""
    http_version: str = field(name="network.protocol.version", default="")
    status: Status
    error: str = ""
    kind: str = ""
    retry: str = ""
    reason: str = ""
    """Why there is no further attempt."""
    executed: Executed
    effect: Effect
    phase: Phase
    http_status: int = 0
    code: int | None = field(name="rpc.response.status_code", default=None)
    duration_ns: int
    bytes_in: int = 0
    bytes_out: int = field(name="turnlog.output.size", default=0)
    flags: tuple[Flag, ...] = ()
    provenance: str = ""
    """The weakest of what is known of its tool, server, result and inputs (`core.pins.Provenance`)."""
    trace: str = ""

    @property
    def severity(self) -> Level:
        """`warning` for an attempt that failed or whose outcome is unknown."""
        failed = self.error or self.status is Status.UNKNOWN
        return Level.WARNING if failed else self.level


class _AttemptFailed(LogEvent, frozen=True, kw_only=True):
    """Fields shared by the events of an attempt that a rule wants repeated."""

    session: str
    call: str
    attempt: int
    server: str
    tool: str


class CallRetried(_AttemptFailed, frozen=True, kw_only=True, tag="call.retried"):
    """An attempt failed; the next one follows after the delay, as a rule says."""

    kind: str
    delay_ns: int


class RetryAbandoned(_AttemptFailed, frozen=True, kw_only=True, tag="retry.abandoned"):
    """The attempt announced by `call.retried` is not made; the caller gets the server's last answer."""

    reason: StopReason


class _CallClosed(LogEvent, frozen=True, kw_only=True):
    """Fields shared by the events of outcomes that were not recorded by the attempt itself."""

    session: str
    call: str
    seq: int
    server: str = ""
    tool: str = ""
    effect: Effect = Effect.UNKNOWN


class CallRecovered(_CallClosed, frozen=True, kw_only=True, tag="call.recovered"):
    """An attempt of a dead process was recorded as `outcome_unknown`."""

    level: ClassVar[Level] = Level.WARNING


class CallExpired(_CallClosed, frozen=True, kw_only=True, tag="call.expired"):
    """A call that waited for more input, or for its task, was not continued in time."""


class CallResolved(_CallClosed, frozen=True, kw_only=True, tag="call.resolved"):
    """An operator settled a call of unknown outcome through the API."""

    executed: Executed = Executed.MAYBE


class RequestRelayed(LogEvent, frozen=True, kw_only=True, tag="request.relayed"):
    """MCP traffic other than a recorded call was relayed."""

    level: ClassVar[Level] = Level.DEBUG
    server: str
    http_method: str
    method: str = ""
    request_id: str = field(name="jsonrpc.request.id", default="")
    protocol: str = ""
    http_status: int = 0
    duration_ns: int = 0
    events: int = 0
    """Number of events, when the answer was a stream."""


class RequestRefused(LogEvent, frozen=True, kw_only=True, tag="request.refused"):
    """turnlog answered a request itself and did not forward it."""

    level: ClassVar[Level] = Level.WARNING
    reason: RefusalReason
    http_method: str = ""
    http_status: int = 0
    value: str = field(name="turnlog.refused", default="")
    """The refused value: Host, Origin, Sec-Fetch-Site or path; without secrets."""


class UpstreamFailed(LogEvent, frozen=True, kw_only=True, tag="upstream.failed"):
    """A tool server could not be reached, or closed the connection midway."""

    level: ClassVar[Level] = Level.WARNING
    server: str
    address: str = field(name="server.address", default="")
    port: int = field(name="server.port", default=0)
    error: str = ""
    kind: str = ""
    phase: Phase = Phase.QUEUED


class StrayOutput(LogEvent, frozen=True, kw_only=True, tag="output.stray"):
    """A command wrote something to stdout that is not a message; `wrap` passes it on."""

    level: ClassVar[Level] = Level.WARNING
    server: str
    size: int = field(name="turnlog.bytes")


class QuestionRefused(LogEvent, frozen=True, kw_only=True, tag="question.refused"):
    """A shared command sent a request that cannot be assigned to one of its sessions."""

    level: ClassVar[Level] = Level.WARNING
    server: str
    method: str


class ProcessEnded(LogEvent, frozen=True, kw_only=True, tag="process.ended"):
    """The process of a command ended."""

    server: str
    pid: int
    exit_code: int
    """Below zero where a signal ended it."""


class ProcessFailed(LogEvent, frozen=True, kw_only=True, tag="process.failed"):
    """A command could not be started, ended before its first message, sent none in time, or frames its messages with `Content-Length`."""

    level: ClassVar[Level] = Level.ERROR
    server: str
    reason: str
    exit_code: int | None = None
    """Below zero where a signal ended it."""


class AuthRequired(LogEvent, frozen=True, kw_only=True, tag="auth.required"):
    """A tool server on another origin wants OAuth, which cannot work through a transparent proxy."""

    level: ClassVar[Level] = Level.WARNING
    server: str
    http_status: int
    advice: str


class _Circuit(LogEvent, frozen=True, kw_only=True):
    """Fields shared by the events of a server's circuit breaker."""

    server: str


class CircuitOpened(_Circuit, frozen=True, kw_only=True, tag="circuit.opened"):
    """A server failed too often; its calls are refused until the cool-down ends."""

    level: ClassVar[Level] = Level.WARNING
    cool_down_ns: int


class CircuitProbed(_Circuit, frozen=True, kw_only=True, tag="circuit.probed"):
    """One attempt is let through; its outcome closes or reopens the circuit."""


class CircuitClosed(_Circuit, frozen=True, kw_only=True, tag="circuit.closed"):
    """The server answers again; calls are forwarded."""


class SessionOpened(LogEvent, frozen=True, kw_only=True, tag="session.opened"):
    """A session was seen for the first time. Its name is in the store only."""

    session: str
    rung: Rung
    client: str = ""
    confidence: str = ""


class SessionChanged(LogEvent, frozen=True, kw_only=True, tag="session.changed"):
    """A session was paused, resumed, closed or the like through the API or the agent's own tools."""

    session: str
    seq: int
    action: Action
    stage: SessionStage
    actor: Actor


class SessionUncovered(LogEvent, frozen=True, kw_only=True, tag="session.uncovered"):
    """Repeats of a call of a named effect cannot be recognised in a session."""

    level: ClassVar[Level] = Level.WARNING
    session: str = ""
    """Empty when the event is about several sessions."""
    server: str
    tool: str = ""
    client: str = ""
    reason: CoverageGap


class _FailureWithReason(LogEvent, frozen=True, kw_only=True):
    """Fields shared by the events of what could not be done."""

    level: ClassVar[Level] = Level.ERROR
    reason: str = field(name="error.message")


class StoreFilled(LogEvent, frozen=True, kw_only=True, tag="store.full"):
    """The store has no room for another intent."""

    level: ClassVar[Level] = Level.ERROR
    used: int = field(name="turnlog.store.size")
    limit: int = field(name="turnlog.store.limit")
    disk_free: int = field(name="turnlog.disk.free")
    when_full: WhenFull


class StoreBlocked(_FailureWithReason, frozen=True, kw_only=True, tag="store.blocked"):
    """Calls cannot be recorded: `when_full` decides (while writes hang, calls wait) until `store.unblocked`."""

    when_full: WhenFull


class StoreUnblocked(LogEvent, frozen=True, kw_only=True, tag="store.unblocked"):
    """Calls can be recorded again."""


class StoreTrimmed(LogEvent, frozen=True, kw_only=True, tag="store.trimmed"):
    """The oldest inputs and outputs were deleted to make room. Their calls stay in the log."""

    level: ClassVar[Level] = Level.WARNING
    size: int = field(name="turnlog.store.trimmed")


class RetentionAnnounced(LogEvent, frozen=True, kw_only=True, tag="retention.announced"):
    """Content of a store of an earlier version will be deleted by its age, from `begins` on."""

    level: ClassVar[Level] = Level.WARNING
    begins: str
    buckets: int
    """Days of inputs and outputs that will be old enough then."""
    size: int = field(name="turnlog.store.expired")
    commits: int
    """Commits whose other content will be old enough then."""


class RetentionEnforced(LogEvent, frozen=True, kw_only=True, tag="retention.enforced"):
    """Content was deleted because of its age. Its calls stay in the log."""

    buckets: int
    size: int = field(name="turnlog.store.expired")
    commits: int


class StoreRecovered(LogEvent, frozen=True, kw_only=True, tag="store.recovered"):
    """Open attempts of dead processes were closed at start."""

    epochs: int
    calls: int
    """Attempts that were recorded as `outcome_unknown`."""


class StoreRekeyed(LogEvent, frozen=True, kw_only=True, tag="store.rekeyed"):
    """The store's key is not the one used before, which is missing or was replaced."""

    level: ClassVar[Level] = Level.WARNING
    data: str


class StoreFailed(_FailureWithReason, frozen=True, kw_only=True, tag="store.failed"):
    """The store cannot be read or written."""


class RecorderFailed(_FailureWithReason, frozen=True, kw_only=True, tag="recorder.failed"):
    """A call went through that could not be recorded completely."""

    flag: Flag = Flag.UNRECORDED


class ToolsListed(LogEvent, frozen=True, kw_only=True, tag="tools.listed"):
    """A tool list of a server was relayed."""

    server: str
    tools: int
    added: int = field(name="turnlog.tools.added", default=0)
    changed: int = field(name="turnlog.tools.changed", default=0)
    complete: bool = True
    """Whether this is the whole list rather than one page of it."""
    stuck: bool = field(name="turnlog.cursor.stuck", default=False)
    """Whether the cursor of the next page leads to this page again."""


class RulesMissing(LogEvent, frozen=True, kw_only=True, tag="rules.missing"):
    """No rule names the effect of the tools of some upstreams; their calls are only recorded."""

    upstreams: tuple[str, ...]
    advice: str


class RulesReloaded(LogEvent, frozen=True, kw_only=True, tag="rules.reloaded"):
    """The rules were reloaded. Running calls keep the rules they began with."""

    rules: int


class RulesRejected(_FailureWithReason, frozen=True, kw_only=True, tag="rules.rejected"):
    """A rules file is invalid; the previous rules stay in force."""

    file: str = field(name="code.file.path")
    line: int = 0
    column: int = field(name="code.column.number", default=0)


class ToolChanged(LogEvent, frozen=True, kw_only=True, tag="tool.changed"):
    """A server lists another definition of a tool than before, to the same credential."""

    level: ClassVar[Level] = Level.WARNING
    server: str
    tool: str
    parts: tuple[Part, ...] = ()
    """Empty when the previous definition is no longer kept."""
    provenance: Provenance


class ServerChanged(LogEvent, frozen=True, kw_only=True, tag="server.changed"):
    """A part of a server's identity differs from what was seen last, or was pinned."""

    level: ClassVar[Level] = Level.WARNING
    server: str
    parts: tuple[str, ...]
    before: tuple[str, ...]
    """The text of each part before, in the order of `parts`."""
    now: tuple[str, ...]
    provenance: Provenance


class DefinitionsFailed(_FailureWithReason, frozen=True, kw_only=True, tag="definitions.failed"):
    """A tool list could not be read, or not be written to the store."""


class LockLoaded(LogEvent, frozen=True, kw_only=True, tag="lock.loaded"):
    """turnlog.lock was read, at start or after it changed."""

    lock: str
    pinned: int
    untargeted: int


class LockFailed(_FailureWithReason, frozen=True, kw_only=True, tag="lock.failed"):
    """turnlog.lock changed and cannot be read; the previous one stays in force."""


class LogDropped(LogEvent, frozen=True, kw_only=True, tag="log.dropped"):
    """Log lines were dropped because the reader of the log is slow or gone."""

    level: ClassVar[Level] = Level.WARNING
    lines: int
