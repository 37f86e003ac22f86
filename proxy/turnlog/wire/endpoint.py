"""Checks and statuses of an HTTP endpoint of MCP 2026-07-28.

Headers repeat parts of the body, which counts (MCP, transports, "Standard request headers"); errors
have HTTP statuses. The handshake revisions need none of this.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw, Struct

from .json_text import ValueShape, members, shape, text_of
from .jsonrpc import BATCH_LIMIT, Message
from .mcp import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    STATELESS_SINCE,
    is_stateless,
)

_HEADER_MISMATCH: Final = -32020
_MISSING_CAPABILITY: Final = -32021
_UNSUPPORTED_VERSION: Final = -32022
_STATUSES: Final = {
    METHOD_NOT_FOUND: 404,
    **dict.fromkeys((PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS), 400),
    **dict.fromkeys((_HEADER_MISMATCH, _MISSING_CAPABILITY, _UNSUPPORTED_VERSION), 400),
}
_META: Final = "io.modelcontextprotocol/"
_NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_ENCODED: Final = ("=?base64?", "?=")


class RpcRefusal(Struct, frozen=True):
    """A JSON-RPC error in place of an answer."""

    code: int
    message: str
    data: Mapping[str, Any] = {}


TOO_MANY: Final = RpcRefusal(
    INVALID_REQUEST, f"a batch may have at most {BATCH_LIMIT} messages here, send several"
)


def status_of(code: int | None) -> int:
    """Return the HTTP status of a JSON-RPC error."""
    return _STATUSES.get(code, 200) if code is not None else 200


def is_stateless_request(message: Message, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request speaks MCP 2026-07-28 or later."""
    header = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
    return is_stateless(header) or f"{_META}protocolVersion" in _meta(message)


def _meta(message: Message) -> dict[str, Raw]:
    params = members(message.params) if message.params else {}
    return members(params["_meta"]) if "_meta" in params else {}


def refusal(message: Message, headers: Mapping[bytes, bytes] | None) -> RpcRefusal | None:
    """Return the error of a request that is not valid in MCP 2026-07-28; header names in lower case.

    `headers` are `None` on a pipe.
    """
    if message.method == "initialize":
        return RpcRefusal(METHOD_NOT_FOUND, "there is no initialize since 2026-07-28")
    meta = _meta(message)
    version = text_of(bytes(meta.get(f"{_META}protocolVersion", b"")))
    if not version:
        return RpcRefusal(INVALID_PARAMS, "params._meta names no protocol version")
    if shape(meta.get(f"{_META}clientCapabilities", b"")) not in {
        ValueShape.FULL,
        ValueShape.EMPTY,
    }:
        return RpcRefusal(INVALID_PARAMS, "params._meta holds no client capabilities")
    if headers is not None and (mismatch := _mismatch(message, version, headers)):
        return RpcRefusal(_HEADER_MISMATCH, f"the header {mismatch} is not what the body says")
    if not is_stateless(version) or version > STATELESS_SINCE:
        data = {"supported": [STATELESS_SINCE], "requested": version}
        return RpcRefusal(_UNSUPPORTED_VERSION, "the protocol version is not supported", data)
    return None


def _mismatch(message: Message, version: str, headers: Mapping[bytes, bytes]) -> str:
    """Return the name of a header that differs from the body; empty for none."""
    mirrors = {b"mcp-protocol-version": version, b"mcp-method": message.method}
    if named_by := _NAMED_BY.get(message.method):
        mirrors[b"mcp-name"] = text_of(bytes(members(message.params).get(named_by, b"")))
    wrong = (
        header
        for header, value in mirrors.items()
        if _decoded(headers.get(header, b"").decode("latin-1")) != value
    )
    return next(wrong, b"").decode()


def _decoded(value: str) -> str:
    """Return the value of a header that may be in base64."""
    start, end = _ENCODED
    if not (value.startswith(start) and value.endswith(end)):
        return value
    try:
        return base64.b64decode(value[len(start) : -len(end)], validate=True).decode()
    except (binascii.Error, ValueError):
        return value
