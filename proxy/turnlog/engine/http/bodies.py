"""Read a request's body and decide what it is: MCP, a plain HTTP tool, or neither."""

from typing import Final

import msgspec
from msgspec import Raw, structs

from turnlog.engine.context import Context
from turnlog.engine.mcp.mcp_exchange import McpExchange
from turnlog.engine.plain_call import PlainCall, is_denied
from turnlog.engine.request_identity import MCP_LIMIT, Request
from turnlog.rules.http_tools import normalized_path
from turnlog.settings.model import Transport
from turnlog.transport.http_client import Content
from turnlog.transport.http_server import Downstream
from turnlog.wire.doubt import as_call, is_doubtful, is_unreadable, may_hold_call
from turnlog.wire.jsonrpc import (
    BATCH_LIMIT,
    Batch,
    Defect,
    Kind,
    Malformed,
    Message,
    messages_of,
    parse,
)
from turnlog.wire.mcp import START, start_of

PLAIN_LIMIT: Final = 1 << 20
"""bytes: a larger body of a plain tool streams through and is recorded by its start."""
_WELL_KNOWN: Final = "/.well-known/"
_ENDPOINT_NAMES: Final = frozenset({"mcp", "sse"})
"""What the path of an MCP endpoint mostly ends in."""
_PROBING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


async def read_exchange(
    down: Downstream, context: Context, request: Request
) -> tuple[McpExchange | PlainCall, Content]:
    """Return the exchange that a request begins, and the body to send. Raises `AgentGone`."""
    body, whole = await down.read(PLAIN_LIMIT)
    if whole:
        return exchange_of(context, request, body), body
    size, rules = max(down.length, 0), context.rules.book.servers[request.server]
    closes = request.transport is not Transport.HTTP and rules.against_unreadable is not None
    denied = _denied(context, request, body[:START], size, whole=False) if closes else None
    if denied is not None:
        return denied, down.rest(body)
    asks = closes and _may_ask(context, request, body[:START])
    if not asks and _passes_by(context, request):
        return McpExchange(context, request, ()), down.rest(body)
    if asks or (request.is_post and request.transport is not Transport.HTTP):
        start = start_of(body)
        if start is not None or asks or _means_mcp(request):
            return await _large(down, context, request, start, body)
    return PlainCall(context, request, body[:START], size, whole=False), down.rest(body)


def exchange_of(context: Context, request: Request, body: bytes) -> McpExchange | PlainCall:
    """Return the exchange that a request begins whose body is whole."""
    may_be_mcp, asks = request.transport is not Transport.HTTP, False
    rules = context.rules.book.servers[request.server]
    closes = may_be_mcp and rules.against_unreadable is not None
    if closes:
        denied = _denied(context, request, body, len(body))
        if denied is not None:
            return denied
        asks = bool(body) and _may_ask(context, request, body)
    found = None
    if asks or request.is_post:
        found = _mcp(context, request, body, closes=closes) if may_be_mcp else None
    elif _passes_by(context, request):
        return McpExchange(context, request, ())
    return found or PlainCall(context, request, body, len(body))


def _denied(
    context: Context,
    request: Request,
    body: bytes,
    size: int,
    *,
    whole: bool = True,
) -> PlainCall | None:
    """Return a request as a call of a plain HTTP tool, if a rule denies that; else `None`.

    It is denied whatever is in its body: a plain HTTP tool may accept what looks like MCP here.
    """
    if _is_preflight(request):
        return None
    at_endpoint = _is_endpoint(context, request)
    if not is_denied(context, request, body, whole=whole, at_endpoint=at_endpoint):
        return None
    return PlainCall(context, request, body, size, whole=whole)


def _is_endpoint(context: Context, request: Request) -> bool:
    """Return whether the path of a request is that of an MCP endpoint, as far as known."""
    route = request.route
    if request.transport is Transport.MCP or route.target.is_command or request.channel is not None:
        return True
    is_usual = route.path == route.target.path or _is_usual(normalized_path(route.path))
    return is_usual or context.endpoints.knows(route)


def _may_ask(context: Context, request: Request, body: bytes) -> bool:
    """Return whether a body, or its start, may hold a call for the server that a rule may deny."""
    if not context.rules.book.servers[request.server].may_deny_tool_calls:
        return False
    text = request.decoded(body)  # nothing where it cannot be decoded
    if not text or may_hold_call(text):
        return True
    return _is_endpoint(context, request) and is_unreadable(text)


async def _large(
    down: Downstream,
    context: Context,
    request: Request,
    start: Message | None,
    body: bytes,
) -> tuple[McpExchange | PlainCall, Content]:
    """Read a large body as far as it can be held; `start` is what its start says, if that is JSON-RPC."""
    more, whole = await down.read(MCP_LIMIT - len(body))
    body += more
    said = start or _named(request)
    if not whole:
        exchange = McpExchange(
            context, request, (said,), size=max(down.length, 0), start=body[:START], cut=True
        )
        return exchange, down.rest(body)
    found = _mcp(context, request, body, said, must_be=start is not None, closes=True)
    return found or PlainCall(context, request, body, len(body)), body


def _named(request: Request) -> Message:
    """Return the message of a body whose start does not say what it is, by its headers (MCP 2026-07-28)."""
    name = msgspec.json.encode(request.field(b"mcp-name"))
    method = request.field(b"mcp-method") or "tools/call"
    return Message(kind=Kind.REQUEST, method=method, params=Raw(b'{"name":%b}' % name))


def _passes_by(context: Context, request: Request) -> bool:
    """Return whether a request is no call, whatever is in its body: it listens, ends a session, discovers,
    or is a preflight or a probe of an MCP endpoint."""
    if request.is_post:
        return False
    if _is_preflight(request):
        return True
    if request.transport is Transport.HTTP:
        return False
    speaks_mcp = request.transport is Transport.MCP or request.asked.head.speaks_mcp
    if speaks_mcp or context.endpoints.knows(request.route):
        return True
    # Probes mostly come before the first message, which would show that this is an endpoint.
    return _is_usual(request.route.path) and request.method in _PROBING


def _is_usual(path: str) -> bool:
    """Return whether a path is usual for MCP endpoints or for the discovery before them."""
    return path.rpartition("/")[2] in _ENDPOINT_NAMES or _WELL_KNOWN in path


def _is_preflight(request: Request) -> bool:
    """Return whether it is a CORS preflight of a browser (Fetch standard)."""
    fields = request.fields
    asks = b"origin" in fields and b"access-control-request-method" in fields
    return asks and request.method == "OPTIONS"


def _means_mcp(request: Request) -> bool:
    """Return whether a request declares JSON-RPC, whatever is in its body."""
    named = any(name.startswith(b"mcp-") for name in request.fields)
    return named or request.transport is Transport.MCP


def _must_be_mcp(request: Request, content: Message | Batch | Malformed) -> bool:
    """Return whether a body that is not JSON-RPC 2.0 should have been."""
    if request.transport is Transport.MCP:
        return True
    is_other = isinstance(content, Malformed) and content.reason is Defect.NOT_JSONRPC
    return _means_mcp(request) and not is_other


def _mcp(
    context: Context,
    request: Request,
    body: bytes,
    said: Message | None = None,
    *,
    must_be: bool = False,
    closes: bool,
) -> McpExchange | None:
    """Return the exchange of an MCP body; `None` where it is none. `said` is what is known of a large one."""
    text = request.decoded(body) if request.coding else body
    content = parse(text, most=BATCH_LIMIT)
    is_closed = closes and _is_closed(context, request, content, text)
    if not is_closed and (messages := messages_of(content)):
        if not request.is_at_endpoint:
            request.is_at_endpoint = True
            context.endpoints.learn(request.route)
        return McpExchange(context, request, messages, isinstance(content, Batch), size=len(body))
    unreadable = as_call(content)
    if said is not None and not is_closed:
        unreadable = structs.replace(said, flags=unreadable.flags)
        must_be = must_be or _must_be_mcp(request, content)
    elif not is_closed:
        must_be = isinstance(content, Malformed) and _must_be_mcp(request, content)
    if is_closed or must_be:
        return McpExchange(context, request, (unreadable,), size=len(body), start=text)
    return None


def _is_closed(
    context: Context,
    request: Request,
    content: Message | Batch | Malformed,
    text: bytes,
) -> bool:
    """Return whether a text is denied because the server may find a call in it that turnlog does not."""
    if not context.rules.book.servers[request.server].may_deny_tool_calls:
        return False
    if not text or is_doubtful(content, text):
        return True
    return _is_endpoint(context, request) and is_unreadable(text)
