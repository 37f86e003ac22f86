"""Requests for turnlog's own pages: health and readiness, and the relay to the application.

The application of `api.application` answers everything under `/turnlog/` but health and readiness. It
has no port: it is reached over a socketpair, by the same client as any tool server, and nothing of it
is recorded. Health and readiness are answered here, so that they do not depend on it.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from http import HTTPMethod
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import structs

from turnlog.engine.context import Context
from turnlog.engine.request_identity import Request
from turnlog.record.deadlines import Progress
from turnlog.record.errors import Failure
from turnlog.record.own_answers import JSON, OwnAnswer, problem
from turnlog.store.base import StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.transport.http_client import Answer, Upstreams
from turnlog.transport.http_server import AgentGone, Downstream
from turnlog.transport.message_heads import OutgoingHead, outgoing_head
from turnlog.transport.routes import HEALTH, OWN, Target
from turnlog.wire.http.head import Body, fields, lines, request_headers

SECRET: Final = "Turnlog-Secret"  # noqa: S105 - the name of a field
"""Shows the application that a request was relayed by this process."""
CALLER: Final = "Turnlog-Caller"
"""The caller: a `CallerEvidence` as JSON in base64."""
METHOD: Final = "Turnlog-Method"
"""The method as the caller wrote it. The request's own is OPTIONS where that is no standard method,
because aiohttp's parser refuses such a request."""
APPLICATION: Final = Target(
    name=f"/{OWN}", origin="", path="/", query="", authority=OWN.encode(), host="", port=0
)
"""The application as an upstream. Names in the configuration hold no slash."""
_BLOCKED: Final = "calls cannot be recorded now; the event store.blocked in turnlog's log says why"
"""The reason names folders, and anyone who reaches the port may read this."""
_encode = msgspec.json.Encoder().encode


class OwnPages:
    """Relays requests for turnlog's own pages to the application."""

    def __init__(self, context: Context, upstreams: Upstreams, secret: str) -> None:
        """`secret` is that of the application, which `upstreams` has as `APPLICATION`."""
        self._context = context
        self._upstreams = upstreams
        self._secret = secret.encode()

    async def relay(self, down: Downstream, request: Request, path: str, query: str) -> None:
        """Answer a request with what the application says. Raises `AgentGone`."""
        try:
            answer = await self._upstreams.send(
                APPLICATION,
                self._head(down, request, path, query),
                down.content if isinstance(down.content, bytes) else _body(down),
                Progress(),
            )
            try:
                await _pass_on(answer, down)
            finally:
                await answer.close()
        except Failure as failure:  # turnlog stops, or the agent broke off
            raise AgentGone(failure.detail) from failure

    def _head(self, down: Downstream, request: Request, path: str, query: str) -> OutgoingHead:
        """Return the head for the application: with the fields of the request, then the private ones."""
        # Each field once, because aiohttp refuses some that are repeated.
        given = dict(down.asked.head.fields)
        if b"authorization" in down.asked.head.repeated:
            given[b"authorization"] = b", ".join(fields(down.asked.head.raw, b"authorization"))
        caller = request.evidence(self._context.sessions)
        # The protocol session is one with turnlog, not with a server: it names no conversation.
        caller = structs.replace(caller, mcp_session_id="")
        # What came under the names of private fields is left out with all of turnlog's own.
        forwarded = request_headers(
            tuple(given.items()), authority=APPLICATION.authority, forwarded_host=b""
        )
        private = (
            (SECRET.encode(), self._secret),
            (CALLER.encode(), base64.b64encode(_encode(caller))),
            (METHOD.encode(), down.asked.method.encode("latin-1", "replace")),
        )
        named = down.asked.method
        method = named if named in HTTPMethod.__members__ else HTTPMethod.OPTIONS
        fields_of = lines((*forwarded, *private))
        return outgoing_head(APPLICATION, method, resource_of(path, query), fields_of)


async def _body(down: Downstream) -> AsyncIterator[bytes]:
    """Yield a body that did not come with its head, as it comes. Raises `AgentGone`."""
    start, is_whole = await down.read(0)
    if not is_whole:
        async for piece in down.rest(start):
            yield piece
    elif start:
        yield start


def resource_of(path: str, query: str) -> str:
    """Return the target to ask the application for.

    The path is quoted once more than it was, so that the application sees it as it was written:
    aiohttp's router decodes it, and `/turnlog/%61pi` is no page.
    """
    quoted = quote(path.encode("utf-8", "surrogateescape"), safe="/")
    return f"{quoted}?{query}" if query else quoted


async def _pass_on(answer: Answer, down: Downstream) -> None:
    """Pass an answer on as it comes. Raises `Failure` where it is cut, and `AgentGone`."""
    head = answer.head
    if head.body is Body.NONE or down.asked.method == "HEAD":
        await down.bodiless(head.status, head.reason, head.lines)
        return
    await down.start(head.status, head.reason, head.lines, answer.length)
    while piece := await answer.read():
        await down.write(piece)
    await down.end()


def probed(method: str, path: str, store: LmdbStore, stop: asyncio.Event) -> OwnAnswer:
    """Return the answer to a question for health or readiness; `stop` is set once the proxy stops."""
    if method not in {"GET", "HEAD"}:
        refused = problem(405, "Method Not Allowed", f"{path} takes GET and HEAD", {})
        return structs.replace(refused, headers=(*refused.headers, (b"Allow", b"GET, HEAD")))
    if path == HEALTH:
        return _said("ok")
    if stop.is_set():
        return problem(503, "Service Unavailable", "turnlog is stopping", {})
    if store.down:
        return problem(503, "Service Unavailable", _BLOCKED, {})
    try:
        with store.view():
            return _said("ready")
    except StoreError:
        return problem(503, "Service Unavailable", "the store cannot be read", {})


def _said(status: str) -> OwnAnswer:
    return OwnAnswer(200, b"OK", JSON, _encode({"status": status}))
