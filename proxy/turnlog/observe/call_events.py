"""The log events of requests, calls and their attempts. See `events` for what holds for all."""

from enum import StrEnum
from typing import ClassVar

from msgspec import field

from turnlog.core.kinds import Effect, Executed, Flag, Phase, Status
from turnlog.rules.retry import Reason

from .event import Event, Level

RPC_ID_CHARS = 64
"""Longest JSON-RPC id that is logged: a caller chooses it, so it may be anything."""


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
    input_summary: str = field(name="turnlog.input.summary", default="")
    """At level debug and on a terminal: what was asked, as redaction left it, at most 200 bytes."""
    output_summary: str = field(name="turnlog.output.summary", default="")
    """Likewise what was answered, at most 512 bytes."""
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

    @property
    def severity(self) -> Level:
        """`warning` for an attempt that failed, or of which nobody knows how it ended."""
        failed = self.error or self.status is Status.UNKNOWN
        return Level.WARNING if failed else Level.INFO


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


class Refusal(StrEnum):
    """Why a request was not forwarded."""

    HOST = "host"
    ORIGIN = "origin"
    METHOD = "method"
    PATH = "path"
    FRAMING = "framing"
    STORE = "store"
    TOKEN = "token"  # noqa: S105 - a word for the log


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
    value: str = field(name="turnlog.refused", default="")
    """What was refused: the Host, the Origin, Sec-Fetch-Site, or the path; without secrets."""


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


def rpc_id(value: int | float | str | None) -> str:
    """Return a JSON-RPC id for `jsonrpc.request.id`: bounded and printable, or nothing."""
    text = "" if value is None else str(value)[:RPC_ID_CHARS]
    return text if text.isprintable() else ""
