"""The closed catalogue of log events: one Struct each, so that no undocumented field is logged.

Names of fields on the line are OpenTelemetry's where it has one (semantic conventions for MCP,
HTTP and RPC), else `turnlog.*`. A field that holds its default is left out of the line. Never a
payload, header value or query: ids, sizes, counts and closed words only. `docs/reference/events.md`
describes each one; a test holds both against each other.
"""

from typing import ClassVar

from msgspec import field

from turnlog.core.kinds import Flag, Rung, WhenFull
from turnlog.core.provenance import Provenance
from turnlog.exchange.coverage import Gap
from turnlog.wire.tools.differences import Part

from .call_events import (
    CallEnded,
    CallExpired,
    CallRecovered,
    CallResolved,
    CallRetried,
    CallStarted,
    CircuitClosed,
    CircuitOpened,
    CircuitProbed,
    QuestionRefused,
    RequestRefused,
    RequestRelayed,
    RetryAbandoned,
    StrayOutput,
    UpstreamFailed,
)
from .event import Event, Level


class ProxyReady(Event, frozen=True, kw_only=True, tag="proxy.ready"):
    """Calls are accepted."""

    urls: tuple[str, ...] = field(name="turnlog.urls")
    """What to paste into the agent's configuration, one per upstream."""
    version: str = field(name="service.version")
    upstreams: tuple[str, ...] = field(name="turnlog.upstreams", default=())
    data: str = field(name="turnlog.data", default="")
    pid: int = field(name="process.pid", default=0)
    proxies: tuple[str, ...] = field(name="turnlog.proxies", default=())
    """The upstreams that are called through an HTTP proxy, and which that is."""


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


class ProcessEnded(Event, frozen=True, kw_only=True, tag="process.ended"):
    """A command's process has ended."""

    server: str = field(name="turnlog.server")
    pid: int = field(name="process.pid")
    exit_code: int = field(name="process.exit.code")
    """Below zero where a signal ended it."""


class ProcessFailed(Event, frozen=True, kw_only=True, tag="process.failed"):
    """A command could not be started, ended before it answered anything, or speaks no lines of JSON."""

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


class SessionUncovered(Event, frozen=True, kw_only=True, tag="session.uncovered"):
    """A repeat of a call of a named effect would not be found in a session."""

    level: ClassVar[Level] = Level.WARNING
    session: str = field(name="turnlog.session", default="")
    """Empty where several are meant."""
    server: str = field(name="turnlog.server")
    tool: str = field(name="gen_ai.tool.name", default="")
    client: str = field(name="turnlog.client", default="")
    reason: Gap = field(name="turnlog.reason")


class StoreFilled(Event, frozen=True, kw_only=True, tag="store.full"):
    """There is no room for another intent."""

    level: ClassVar[Level] = Level.ERROR
    used: int = field(name="turnlog.store.size")
    limit: int = field(name="turnlog.store.limit")
    disk_free: int = field(name="turnlog.disk.free")
    when_full: WhenFull = field(name="turnlog.when_full")


class StoreBlocked(Event, frozen=True, kw_only=True, tag="store.blocked"):
    """Calls cannot be recorded, and are treated as `when_full` says (where writes hang they wait), until `store.unblocked`."""

    level: ClassVar[Level] = Level.ERROR
    reason: str = field(name="error.message")
    when_full: WhenFull = field(name="turnlog.when_full")


class StoreUnblocked(Event, frozen=True, kw_only=True, tag="store.unblocked"):
    """Calls can be recorded again."""

    level: ClassVar[Level] = Level.INFO


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
    """The store's key is not the one used before: it was gone or replaced."""

    level: ClassVar[Level] = Level.WARNING
    data: str = field(name="turnlog.data")


class StoreFailed(Event, frozen=True, kw_only=True, tag="store.failed"):
    """The store cannot be read or written, or the process that writes it has ended."""

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


class RulesMissing(Event, frozen=True, kw_only=True, tag="rules.missing"):
    """No rule says what the tools of some upstreams do: their calls are recorded, and nothing more."""

    upstreams: tuple[str, ...] = field(name="turnlog.upstreams")
    advice: str = field(name="turnlog.advice")


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
    untargeted: int = field(name="turnlog.untargeted")


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
    SessionUncovered,
    StoreFilled,
    StoreBlocked,
    StoreUnblocked,
    StoreTrimmed,
    StoreRecovered,
    StoreRekeyed,
    StoreFailed,
    RecorderFailed,
    ToolsListed,
    RulesMissing,
    RulesReloaded,
    RulesRejected,
    ToolChanged,
    DefinitionsFailed,
    LockLoaded,
    LockFailed,
    LogDropped,
)
