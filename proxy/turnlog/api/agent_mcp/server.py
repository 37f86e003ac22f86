"""turnlog as an MCP server, for protocol revisions with and without a handshake.

Its transports are `api.agent_mcp.http` and `api.agent_mcp.stdio`.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, Final, TypeGuard

import msgspec
from msgspec import Raw, Struct, structs

from turnlog.api.agent_tools import (
    NAMED,
    AgentSession,
    NoSessionError,
    Tool,
    ToolAnswer,
    TooLargeError,
    definitions,
)
from turnlog.api.parameters import BadParameterError
from turnlog.core.classify import failed
from turnlog.core.hints import Hint, in_words
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.packs.shape import UNREADABLE, describe_json_error
from turnlog.record.own_answers import envelope, tool_failure
from turnlog.sessions.errors import SessionsError
from turnlog.store.base import REFUSALS, StoreError
from turnlog.wire import mcp
from turnlog.wire.endpoint import TOO_MANY, RpcRefusal, refusal, status_of
from turnlog.wire.json_text import members
from turnlog.wire.jsonrpc import Batch, Defect, Kind, Malformed, Message
from turnlog.wire.mcp import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR

HANDSHAKES: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Revisions that begin with `initialize`, the newest first."""
OLDEST: Final = HANDSHAKES[-1]
"""The revision of a message without one."""
_STRUCTURED_SINCE: Final = "2025-06-18"
_TTL_MS: Final = 300_000
"""How long a client may keep the list of tools."""
_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_INSTRUCTIONS: Final = (
    "turnlog records your tool calls. These tools show your own session: what was called and how it "
    "ended, what changed, what you no longer see; `note` writes down what no call shows, and `recall` "
    "gives back a recorded result."
)
_NO_MESSAGE: Final = RpcRefusal(INVALID_REQUEST, "this is no JSON-RPC message")
HINTS: Final = {
    Hint.CALLS: "the tool 'log' names them",
    Hint.CALLS_OF_SESSION: "the tool 'log' names them",
    Hint.LATER_STATE: "ask for a later one, as with `at` {}",
    Hint.GO_ON_HERE: "an operator can import its bundle from there, or let it go on without that",
    Hint.UNPACK: "do this there; an operator can let the session go on here",
}
"""Of others an agent has no use."""
_UNUSABLE: Final = "the log cannot be read or written now"
_encode = msgspec.json.Encoder().encode
_decode_id = msgspec.json.Decoder(int | float | str).decode


class McpReply(Struct, frozen=True):
    """The answer to a message, or the array of answers to a batch."""

    body: bytes
    code: int | None = None
    """Code of the JSON-RPC error; `None` for a result."""
    status: int = 200
    """HTTP status to send it with."""


class McpServer:
    """Answers the requests of one agent.

    `session_of` returns the session of a call by its `_meta`; `report` receives store errors.
    """

    def __init__(
        self,
        session_of: Callable[[Mapping[str, bytes]], AgentSession],
        report: Callable[[StoreError], None],
    ) -> None:
        self._session_of = session_of
        self._report = report

    async def answer(
        self,
        content: Message | Batch | Malformed,
        revision: str,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> McpReply | None:
        """Return the answer to a message or batch; `None` if it gets none.

        `headers` are those of HTTP, with names in lower case; `None` on a pipe.
        """
        match content:
            case Message():
                is_request = content.kind is Kind.REQUEST
                return await self._single(content, revision, headers) if is_request else None
            case Malformed(reason=Defect.NOT_JSONRPC):
                return refused(b"", _NO_MESSAGE, 400)
            case Malformed():
                return refused(b"", RpcRefusal(PARSE_ERROR, "this is no JSON"), 400)
            case Batch(is_partial=True):
                return refused(b"", TOO_MANY, 400)
            case Batch() if revision == OLDEST and content.texts:
                return await self._batch(content)
            case Batch():
                why = RpcRefusal(INVALID_REQUEST, f"revision {revision} has no batches")
                return refused(b"", why, 400)

    async def _single(
        self, request: Message, revision: str, headers: Mapping[bytes, bytes] | None
    ) -> McpReply:
        if not mcp.is_stateless(revision):
            return await self._reply(request, revision)
        why = refusal(request, headers)
        reply = refused(request.id, why) if why else await self._reply(request, revision)
        return structs.replace(reply, status=status_of(reply.code))

    async def _batch(self, batch: Batch) -> McpReply | None:
        replies = [
            refused(b"", _NO_MESSAGE)
            if isinstance(item, Malformed)
            else await self._reply(item, OLDEST)
            for item in batch.items
            if isinstance(item, Malformed) or item.kind is Kind.REQUEST
        ]
        return McpReply(b"[%b]" % b",".join(reply.body for reply in replies)) if replies else None

    async def _reply(self, request: Message, revision: str) -> McpReply:
        if not _is_id(request.id) or not request.jsonrpc:
            return refused(
                request.id, RpcRefusal(INVALID_REQUEST, "this is no request of JSON-RPC 2.0")
            )
        answer = await self._answer(request, revision)
        if isinstance(answer, RpcRefusal):
            return refused(request.id, answer)
        if mcp.is_stateless(revision):
            meta = {_SERVER_INFO: _server(), **answer.get("_meta", {})}
            answer = {"resultType": "complete", **answer, "_meta": meta}
        return McpReply(_encode({"jsonrpc": "2.0", "id": Raw(request.id), "result": answer}))

    async def _answer(self, request: Message, revision: str) -> dict[str, Any] | RpcRefusal:
        stateless = mcp.is_stateless(revision)
        match request.method:
            case "initialize" if not stateless:
                return _initialize_result(revision)
            case "ping" if not stateless:
                return {}
            case "server/discover" if stateless:
                return _discover_result(revision)
            case "tools/list":
                return _tool_list(request, revision)
            case "tools/call":
                return await self._call_tool(request, revision)
            case _:
                return RpcRefusal(METHOD_NOT_FOUND, "turnlog has no such method")

    async def _call_tool(self, request: Message, revision: str) -> dict[str, Any] | RpcRefusal:
        call = mcp.read_call(request.params)
        tool = NAMED.get(call.name)
        if tool is None:
            names = ", ".join(NAMED)
            return RpcRefusal(INVALID_PARAMS, f"there is no such tool, there are: {names}")
        arguments = bytes(call.arguments)
        if not arguments.startswith((b"{", b"null")):
            return RpcRefusal(INVALID_PARAMS, "the arguments must be an object")
        meta = {name: bytes(raw) for name, raw in call.meta.items()}
        try:
            answer = await self._use_tool(tool, b"{}" if arguments == b"null" else arguments, meta)
        except (NoSessionError, StoreError) as error:
            return self._unavailable(error, stateless=mcp.is_stateless(revision))
        return _result(answer, revision) if isinstance(answer, ToolAnswer) else _failure(answer)

    async def _use_tool(
        self, tool: Tool, arguments: bytes, meta: Mapping[str, bytes]
    ) -> ToolAnswer | str:
        """Return the answer of a tool, or the reason why there is none."""
        try:
            read = tool.read(arguments)
        except UNREADABLE as error:
            why = describe_json_error(error, arguments, tool.arguments, "the object")
            return f"invalid arguments: {why}"
        except ValueError as error:
            return f"invalid arguments: {error}"
        try:
            return await tool.use(self._session_of(meta), read)
        except BadParameterError as error:
            return f"{error.name}: {error}"
        except (*REFUSALS, SessionsError, TooLargeError) as error:
            return in_words(error, HINTS)

    def _unavailable(self, error: Exception, *, stateless: bool) -> dict[str, Any]:
        """Return the result for a call without a usable session."""
        if isinstance(error, StoreError):
            self._report(error)
        sentence = _UNUSABLE if isinstance(error, StoreError) else str(error)
        ending = failed(ErrorKind.SESSION_UNAVAILABLE, Phase.QUEUED, Effect.READ)
        return tool_failure(sentence, envelope(None, ending), stateless=stateless)


def refused(raw_id: bytes, why: RpcRefusal, status: int = 200) -> McpReply:
    """Return a JSON-RPC error with the request's id, or `null` if that is invalid."""
    error = {"code": why.code, "message": why.message, **({"data": why.data} if why.data else {})}
    known = Raw(raw_id if _is_id(raw_id) else b"null")
    body = _encode({"jsonrpc": "2.0", "id": known, "error": error})
    return McpReply(body, why.code, status)


def _is_id(raw: bytes) -> bool:
    """Return whether raw JSON is a valid request id."""
    try:
        _decode_id(raw)
    except (ValueError, RecursionError):
        return False
    return True


def is_initialize(content: Message | Batch | Malformed) -> TypeGuard[Message]:
    """Return whether this message begins a handshake."""
    return isinstance(content, Message) and content.method == "initialize"


def agreed_revision(request: Message) -> str:
    """Return the negotiated revision for an `initialize`."""
    wanted = mcp.requested_revision(request)
    return wanted if wanted in HANDSHAKES else HANDSHAKES[0]


@cache
def _server() -> dict[str, str]:
    return {"name": "turnlog", "version": version("turnlog")}


def _initialize_result(revision: str) -> dict[str, Any]:
    return {
        "protocolVersion": revision,
        "capabilities": {"tools": {}},
        "serverInfo": _server(),
        "instructions": _INSTRUCTIONS,
    }


def _discover_result(revision: str) -> dict[str, Any]:
    return {
        "supportedVersions": [revision],
        "capabilities": {"tools": {}},
        "instructions": _INSTRUCTIONS,
        **_cacheable(),
    }


def _cacheable() -> dict[str, Any]:
    return {"ttlMs": _TTL_MS, "cacheScope": "public"}


def _tool_list(request: Message, revision: str) -> dict[str, Any] | RpcRefusal:
    if request.params and "cursor" in members(request.params):
        return RpcRefusal(INVALID_PARAMS, "there is one page of tools, no cursor leads to another")
    tools = definitions(structured=revision >= _STRUCTURED_SINCE)
    return {"tools": tools, **(_cacheable() if mcp.is_stateless(revision) else {})}


def _result(answer: ToolAnswer, revision: str) -> dict[str, Any]:
    result: dict[str, Any] = {"content": answer.blocks or _text(answer.answer.decode())}
    if revision >= _STRUCTURED_SINCE:
        result["structuredContent"] = Raw(answer.answer)
    return result | {"isError": False}


def _failure(sentence: str) -> dict[str, Any]:
    return {"content": _text(sentence), "isError": True}


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
