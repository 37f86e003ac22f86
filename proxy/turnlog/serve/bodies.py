"""Read a request's body and decide what it is: MCP, a plain HTTP tool, or neither."""

from collections.abc import Sequence
from typing import Final

from msgspec import Raw, structs

from turnlog.core.kinds import Flag
from turnlog.wire.jsonrpc import Batch, Kind, Malformed, Message, Reason, parse
from turnlog.wire.rawjson import text_of
from turnlog.wire.skim import Skimmer

from .context import Context
from .downstream import Downstream
from .mcp import McpExchange
from .plain import PlainCall
from .request import MCP_LIMIT, Request
from .settings import Transport
from .upstream import Content

PLAIN_LIMIT: Final = 1 << 20
"""bytes: a larger body of a plain tool streams through and is recorded by its start."""
START: Final = 64 << 10
"""bytes: what is looked at of a message that is too large to hold."""
_WELL_KNOWN: Final = "/.well-known/"


async def read_exchange(
    down: Downstream, context: Context, request: Request, transport: Transport
) -> tuple[McpExchange | PlainCall, Content]:
    """Return the exchange that a request begins, and the body to send. Raises `Gone`."""
    if _passes_by(request, transport):
        body, whole = await down.read(PLAIN_LIMIT)
        return McpExchange(context, request, ()), body if whole else down.rest(body)
    body, whole = await down.read(PLAIN_LIMIT)
    if whole and (exchange := _mcp(context, request, body, transport)) is not None:
        return exchange, body
    if not whole and _may_be_mcp(request, transport):
        start = _start(body)
        if start is not None:
            return await _large(down, context, request, start, body)
    content: Content = body if whole else down.rest(body)
    return PlainCall(context, request, body if whole else body[:START], whole=whole), content


async def _large(
    down: Downstream, context: Context, request: Request, start: Message, body: bytes
) -> tuple[McpExchange, Content]:
    more, whole = await down.read(MCP_LIMIT - len(body))
    body += more
    if not whole:
        return (
            McpExchange(
                context, request, (start,), size=request.length, start=body[:START], cut=True
            ),
            down.rest(body),
        )
    content = parse(body)
    if messages := _messages(content):
        return McpExchange(context, request, messages, size=len(body)), body
    unreadable = (structs.replace(start, flags=_flags(content)),)
    return McpExchange(context, request, unreadable, size=len(body), start=body), body


def _passes_by(request: Request, transport: Transport) -> bool:
    """Tell whether a request is no call, whatever it holds: listening, ending a session, discovery."""
    if transport is Transport.HTTP:
        return False
    if request.route.path.startswith(_WELL_KNOWN):
        return True
    if _is_post(request):
        return False
    return transport is Transport.MCP or _speaks_mcp(request)


def _speaks_mcp(request: Request) -> bool:
    return b"text/event-stream" in request.fields.get(b"accept", b"").lower() or any(
        name.startswith(b"mcp-") for name in request.fields
    )


def _must_be_mcp(request: Request, content: Malformed, transport: Transport) -> bool:
    """Tell whether a body that holds no JSON-RPC was meant to."""
    if transport is Transport.MCP:
        return True
    named = any(name.startswith(b"mcp-") for name in request.fields)
    return named and content.reason is not Reason.NOT_JSONRPC


def _may_be_mcp(request: Request, transport: Transport) -> bool:
    return transport is not Transport.HTTP and _is_post(request)


def _is_post(request: Request) -> bool:
    # Methods have a case, yet some server may not look at it: then that was a call.
    return request.method.upper() == "POST"


def _mcp(
    context: Context, request: Request, body: bytes, transport: Transport
) -> McpExchange | None:
    """Return the exchange of an MCP body; `None` where it is none."""
    if not _may_be_mcp(request, transport):
        return None
    text = request.decoded(body)
    content = parse(text)
    if messages := _messages(content):
        as_batch = isinstance(content, Batch)
        return McpExchange(context, request, messages, size=len(body), as_batch=as_batch)
    if isinstance(content, Malformed) and _must_be_mcp(request, content, transport):
        unreadable = (_unreadable(content),)
        return McpExchange(context, request, unreadable, size=len(body), start=text)
    return None


def _messages(content: Message | Batch | Malformed) -> Sequence[Message]:
    """Return what a body holds; nothing where not all of it is JSON-RPC 2.0."""
    match content:
        case Message() if content.jsonrpc:
            return (content,)
        case Batch():
            found = tuple(item for item in content.items if isinstance(item, Message))
            return found if all(item.jsonrpc for item in found) else ()
        case _:
            return ()


def _unreadable(content: Message | Batch | Malformed) -> Message:
    """Return what stands in the record for a body that an MCP endpoint got and nobody can read."""
    flags = _flags(content)
    return Message(kind=Kind.REQUEST, method="tools/call", params=Raw(b"{}"), flags=flags)


def _flags(content: Message | Batch | Malformed) -> tuple[Flag, ...]:
    """Return the flags of a body that is no JSON-RPC."""
    no_json = isinstance(content, Malformed) and content.reason is Reason.NOT_JSON
    return (*content.flags, Flag.NOT_JSON if no_json else Flag.MALFORMED)


def _start(body: bytes) -> Message | None:
    """Return what the start of a large body says, if that is JSON-RPC."""
    skimmer = Skimmer()
    skimmer.feed(body[:START])
    outline = skimmer.finish()
    if text_of(outline.raw("jsonrpc")) != "2.0":
        return None
    name = outline.raw("params.name")
    params = Raw(b'{"name":' + name + b"}") if name else Raw(b"{}")
    method = text_of(outline.raw("method")) or "tools/call"
    return Message(
        kind=Kind.REQUEST, id=outline.raw("id"), method=method, params=params, jsonrpc=True
    )
