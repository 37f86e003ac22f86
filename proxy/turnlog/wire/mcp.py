"""MCP messages: which tool they call, which revision they speak, what they cancel or ask.

How a call ended is in `tool_result`. Every reader is tolerant: a wrong type is an absent value.
Nothing here raises.
"""

import re
from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Raw, Struct, field, structs

from .json_stream import Outline, OutlineReader
from .json_text import ValueShape, decode_string, load, members, shape, string_end, text_of
from .jsonrpc import Kind, Message, id_key, outline_kind

STATELESS_SINCE: Final = "2026-07-28"
"""From this revision on: no handshake, no sessions, and closing the stream is the cancel."""
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
RESOURCE_NOT_FOUND: Final = -32002
"""MCP up to 2025-11-25, server/resources, "Error Handling"."""
URL_ELICITATION_REQUIRED: Final = -32042
_REVISION_WORD: Final = b"protocolVersion"
_REVISION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
START: Final = 64 << 10
"""Bytes that are read of a message that is too large to hold."""
SUBSCRIPTION_KEY: Final = "io.modelcontextprotocol/subscriptionId"
_NAME_LIMIT: Final = 4096
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NO_ARGUMENTS: Final = Raw(b"{}")
# The members that identify what is looked up; the others belong to the protocol.
_ASKED_FOR: Final = {"resources/read": ("uri",), "prompts/get": ("name", "arguments")}


class ToolCall(Struct, frozen=True, kw_only=True, gc=False):
    """The params of a `tools/call`, or of a lookup that is recorded like one."""

    name: str
    arguments: Raw
    """As they were sent; `{}` if absent."""
    meta: dict[str, Raw]
    """The members of `_meta`."""
    has_input_responses: bool
    request_state: bytes
    """sha256 of the `requestState`, which must not be stored; empty for none."""


class _Params(Struct, rename="camel"):
    name: Raw = Raw()
    arguments: Raw = Raw()
    meta: Raw = field(name="_meta", default=Raw())
    input_responses: Raw = Raw()
    request_state: Raw = Raw()
    protocol_version: Raw = Raw()


class _Usual(Struct, rename="camel", gc=False):
    """The params of a call in which every member has the right type."""

    name: str = ""
    arguments: Raw = _NO_ARGUMENTS
    meta: dict[str, Raw] = field(name="_meta", default={})
    input_responses: Raw = Raw()
    request_state: Raw = Raw()


_decode_usual: Final = msgspec.json.Decoder(_Usual).decode


class _Agreed(Struct, rename="camel"):
    protocol_version: Raw = Raw()


@lru_cache(maxsize=64)
def is_stateless(revision: str) -> bool:
    """Return whether a revision is 2026-07-28 or later."""
    return revision >= STATELESS_SINCE and bool(dated(revision))


@lru_cache(maxsize=64)
def dated(revision: str) -> str:
    """Return a revision as it is recorded; empty for a text that is not a date."""
    return revision if _DATE.fullmatch(revision) else ""


def requested_revision(message: Message, header: str = "") -> str:
    """Return the revision that a request names; empty for none.

    The body counts first (`_meta`, or the params of `initialize`), then `header`: the value of
    `MCP-Protocol-Version`, which is all that the handshake revisions send.
    """
    # Most requests of the handshake revisions have none, and searching for the word costs very little.
    if _REVISION_WORD in bytes(message.params):
        params = load(_Params, message.params)
        named = members(params.meta).get(_REVISION_KEY, Raw()) if params.meta else Raw()
        if message.method == "initialize":
            named = params.protocol_version
        return text_of(bytes(named)) or header
    return header


def agreed_revision(result: Raw) -> str:
    """Return the revision that an `initialize` result names; empty for none."""
    return text_of(bytes(load(_Agreed, result).protocol_version))


def is_request(message: object) -> bool:
    """Return whether a message is a request; from a server: sampling, elicitation, roots."""
    if isinstance(message, Outline):
        return outline_kind(message) is Kind.REQUEST
    return isinstance(message, Message) and message.kind is Kind.REQUEST


def cancelled_id(message: Message | Outline) -> str | None:
    """Return the `id_key` of the request that a `notifications/cancelled` names."""
    if isinstance(message, Outline):
        method, raw = text_of(message.raw("method")), message.raw("params.requestId")
    else:
        if message.method != "notifications/cancelled":
            return None
        method, raw = message.method, bytes(members(message.params).get("requestId", b""))
    return id_key(raw) if raw and method == "notifications/cancelled" else None


def cancellation(raw_id: bytes, reason: str = "a time limit was reached") -> bytes:
    """Return the notification that cancels a request (handshake revisions)."""
    params = b'{"requestId":%b,"reason":"%b"}' % (raw_id, reason.encode())
    return b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":%b}' % params


def start_of(body: bytes) -> Message | None:
    """Return the message that the start of a large text shows, if that is JSON-RPC.

    Version and id may come last; then they are not known.
    """
    reader = OutlineReader()
    reader.feed(body[:START])
    outline = reader.finish()
    if text_of(outline.raw("jsonrpc")) != "2.0" and not outline.raw("method"):
        return None
    kind = outline_kind(outline)
    if kind is Kind.RESPONSE or kind is Kind.ERROR:
        return Message(kind=kind, id=outline.raw("id"), jsonrpc=True)
    name = outline.raw("params.name")
    params = Raw(b'{"name":' + name + b"}") if name else Raw(b"{}")
    method = text_of(outline.raw("method")) or "tools/call"
    return Message(
        kind=Kind.REQUEST, id=outline.raw("id"), method=method, params=params, jsonrpc=True
    )


def progress_token(message: Message | Outline) -> str:
    """Return the `id_key` of the token that a `notifications/progress` carries; empty for none."""
    if isinstance(message, Outline) or message.method != "notifications/progress":
        return ""
    raw = bytes(members(message.params).get("progressToken", b""))
    return id_key(raw) if raw else ""


def wanted_progress(message: Message) -> bytes:
    """Return the token, as JSON, with which a request asks for its progress; empty for none."""
    return bytes(_meta_of(message).get("progressToken", b""))


def subscription(message: Message) -> str:
    """Return the `id_key` of the `subscriptions/listen` that a notification belongs to, or nothing."""
    raw = bytes(_meta_of(message).get(SUBSCRIPTION_KEY, b""))
    return id_key(raw) if raw else ""


def _meta_of(message: Message) -> dict[str, Raw]:
    meta = load(_Params, message.params).meta if message.params else Raw()
    return members(meta) if meta else {}


def read_call(params: Raw) -> ToolCall:
    """Read the params of a `tools/call`."""
    try:
        usual = _decode_usual(params)
    except (ValueError, RecursionError):
        return _tolerantly(params)
    asked, state = usual.input_responses, usual.request_state
    return ToolCall(
        name=usual.name[:_NAME_LIMIT],
        arguments=usual.arguments,
        meta=usual.meta,
        has_input_responses=bool(asked) and shape(asked) is not ValueShape.NULL,
        request_state=state_digest(state) if state else b"",
    )


def read_lookup(method: str, params: Raw) -> ToolCall:
    """Read the params of a `resources/read` or `prompts/get`: its name is the method.

    A URI may hold secrets, and names are never deleted from the log: so it is part of the arguments.
    """
    asked = members(params)
    arguments = {name: asked[name] for name in _ASKED_FOR[method] if name in asked}
    return structs.replace(
        _tolerantly(params), name=method, arguments=Raw(msgspec.json.encode(arguments))
    )


def _tolerantly(params: Raw) -> ToolCall:
    """Read params with members of another type, or that are not strict JSON."""
    found = load(_Params, params)
    return ToolCall(
        name=text_of(bytes(found.name), _NAME_LIMIT),
        arguments=found.arguments or _NO_ARGUMENTS,
        meta=members(found.meta) if found.meta else {},
        has_input_responses=shape(found.input_responses)
        not in (ValueShape.ABSENT, ValueShape.NULL),
        request_state=state_digest(found.request_state),
    )


def state_digest(raw: Raw) -> bytes:
    """Return sha256 of a `requestState`; empty for none."""
    if not raw:
        return b""
    token = bytes(raw)
    if not token.startswith(b'"') or string_end(token, 1)[0] != len(token):
        return b""
    return sha256(decode_string(token).encode()).digest()
