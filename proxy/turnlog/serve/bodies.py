"""Read a request's body and decide what it is: MCP, a plain HTTP tool, or neither."""

from typing import Final

import msgspec
from msgspec import Raw, structs

from turnlog.core.kinds import Flag
from turnlog.wire.jsonrpc import (
    BATCH_LIMIT,
    Batch,
    Kind,
    Malformed,
    Message,
    Reason,
    messages_of,
    parse,
)
from turnlog.wire.mcp import START, start_of

from .context import Context
from .downstream import Downstream
from .mcp import McpExchange
from .plain import PlainCall
from .request import MCP_LIMIT, Request, length_of
from .settings import Transport
from .upstream import Content

PLAIN_LIMIT: Final = 1 << 20
"""bytes: a larger body of a plain tool streams through and is recorded by its start."""
_WELL_KNOWN: Final = "/.well-known/"
_ENDPOINT_NAMES: Final = frozenset({"mcp", "sse"})
"""What the path of an MCP endpoint mostly ends in."""
_PROBING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HTTP: Final = Transport.HTTP
_MCP: Final = Transport.MCP


async def read_exchange(
    down: Downstream, context: Context, request: Request, transport: Transport
) -> tuple[McpExchange | PlainCall, Content]:
    """Return the exchange that a request begins, and the body to send. Raises `Gone`."""
    body, whole = await down.read(PLAIN_LIMIT)
    if whole:
        return exchange_of(context, request, body, transport), body
    if _passes_by(context, request, transport):
        return McpExchange(context, request, ()), down.rest(body)
    if request.is_post and transport is not _HTTP:
        start = start_of(body)
        if start is not None or _means_mcp(request, transport):
            return await _large(down, context, request, start, body, transport)
    size = length_of(down.headers)
    return PlainCall(context, request, body[:START], size, whole=False), down.rest(body)


def exchange_of(
    context: Context, request: Request, body: bytes, transport: Transport
) -> McpExchange | PlainCall:
    """Return the exchange that a request begins whose body is whole."""
    if _passes_by(context, request, transport):
        return McpExchange(context, request, ())
    exchange: McpExchange | None = None
    if request.is_post and transport is not _HTTP:
        exchange = _mcp(context, request, body, transport)
    return exchange or PlainCall(context, request, body, len(body))


async def _large(
    down: Downstream,
    context: Context,
    request: Request,
    start: Message | None,
    body: bytes,
    transport: Transport,
) -> tuple[McpExchange | PlainCall, Content]:
    """Read a large body, of which `start` says what it is if that stands there, as far as can be held."""
    more, whole = await down.read(MCP_LIMIT - len(body))
    body += more
    said = start or _named(request)
    if not whole:
        exchange = McpExchange(
            context, request, (said,), size=length_of(down.headers), start=body[:START], cut=True
        )
        return exchange, down.rest(body)
    text = request.decoded(body)
    content = parse(text, most=BATCH_LIMIT)
    if messages := messages_of(content):
        context.endpoints.learn(request.route)
        as_batch = isinstance(content, Batch)
        return McpExchange(context, request, messages, len(body), as_batch), body
    unfit = isinstance(content, Malformed) and not _must_be_mcp(request, content, transport)
    if start is None and unfit:
        return PlainCall(context, request, body, len(body)), body
    unreadable = (structs.replace(said, flags=_flags(content)),)
    return McpExchange(context, request, unreadable, size=len(body), start=text), body


def _named(request: Request) -> Message:
    """Return what headers say of a body that does not say it in time (MCP 2026-07-28)."""
    name = msgspec.json.encode(request.field(b"mcp-name"))
    method = request.field(b"mcp-method") or "tools/call"
    return Message(kind=Kind.REQUEST, method=method, params=Raw(b'{"name":%b}' % name))


def _passes_by(context: Context, request: Request, transport: Transport) -> bool:
    """Tell whether a request is no call, whatever it holds: listening, ending a session, discovery,
    a preflight, a probe of an MCP endpoint."""
    if request.is_post:
        return False
    if _is_preflight(request):
        return True
    if transport is _HTTP:
        return False
    if transport is _MCP or request.asked.head.speaks_mcp or context.endpoints.knows(request.route):
        return True
    # Probes mostly come before the first message, which would tell what the path is.
    path = request.route.path
    is_usual = path.rpartition("/")[2] in _ENDPOINT_NAMES or _WELL_KNOWN in path
    return is_usual and request.method in _PROBING


def _is_preflight(request: Request) -> bool:
    """Tell whether a browser asks whether a page may call (Fetch standard, CORS-preflight request)."""
    fields = request.fields
    asks = b"origin" in fields and b"access-control-request-method" in fields
    return asks and request.method == "OPTIONS"


def _means_mcp(request: Request, transport: Transport) -> bool:
    """Tell whether a body is meant to hold JSON-RPC, whatever is in it."""
    named = any(name.startswith(b"mcp-") for name in request.fields)
    return named or transport is _MCP


def _must_be_mcp(request: Request, content: Malformed, transport: Transport) -> bool:
    """Tell whether a body that holds no JSON-RPC was meant to."""
    if transport is _MCP:
        return True
    return _means_mcp(request, transport) and content.reason is not Reason.NOT_JSONRPC


def _mcp(
    context: Context, request: Request, body: bytes, transport: Transport
) -> McpExchange | None:
    """Return the exchange of an MCP body; `None` where it is none."""
    text = request.decoded(body)
    content = parse(text, most=BATCH_LIMIT)
    if messages := messages_of(content):
        context.endpoints.learn(request.route)
        as_batch = isinstance(content, Batch)
        return McpExchange(context, request, messages, len(body), as_batch)
    if isinstance(content, Malformed) and _must_be_mcp(request, content, transport):
        unreadable = (_unreadable(content),)
        return McpExchange(context, request, unreadable, size=len(body), start=text)
    return None


def _unreadable(content: Message | Batch | Malformed) -> Message:
    """Return what stands in the record for a body that an MCP endpoint got and nobody can read."""
    flags = _flags(content)
    return Message(kind=Kind.REQUEST, method="tools/call", params=Raw(b"{}"), flags=flags)


def _flags(content: Message | Batch | Malformed) -> tuple[Flag, ...]:
    """Return the flags of a body that is no JSON-RPC."""
    no_json = isinstance(content, Malformed) and content.reason is Reason.NOT_JSON
    return (*content.flags, Flag.NOT_JSON if no_json else Flag.MALFORMED)
