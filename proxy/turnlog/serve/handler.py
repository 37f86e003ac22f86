"""One request of an agent, from its head to the end of its answer."""

import asyncio
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

from aiohttp import web

from turnlog.core.kinds import ErrorKind
from turnlog.observe.events import AuthRequired, Refusal, RequestRefused, UpstreamFailed
from turnlog.store.base import StoreError
from turnlog.wire.http import (
    allowed_host,
    allowed_origin,
    can_dechunk,
    content_length,
    fields,
)

from .answers import Made, problem
from .bodies import read_exchange
from .context import Context
from .downstream import Downstream, Gone
from .heads import Heads, lines
from .mcp import McpExchange
from .own import Own
from .plain import PlainCall
from .relay import Relay
from .request import Request
from .routes import OWN, Route, Routes, authority_of, origin_form
from .settings import Settings
from .upstream import Answer, Content, Failure, Upstreams

Exchange = McpExchange | PlainCall
_AUTH_ADVICE: Final = (
    "clients refuse a login whose resource is not the URL they know; "
    "put a token for this server into the agent's own Authorization header"
)
_SEEN_HOSTS: Final = 256
_OWN_PATH: Final = f"/{OWN}"


class Handler:
    """Handles all requests of one proxy."""

    def __init__(
        self, settings: Settings, context: Context, routes: Routes, upstreams: Upstreams, own: Own
    ) -> None:
        self._settings = settings
        self._context = context
        self._routes = routes
        self._upstreams = upstreams
        self._own = own
        self._hosts = frozenset((*settings.allow_hosts, settings.listen.host))
        self._heads = Heads()
        self._connections: WeakKeyDictionary[asyncio.Transport, int] = WeakKeyDictionary()
        self._last_connection = 0
        self._seen_hosts: set[bytes] = set()
        """Hosts that were found to be allowed."""
        self._listening: set[asyncio.Task[object]] = set()
        self.in_flight = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. Cancelled when the agent's connection is lost."""
        down = Downstream(request, self._heads)
        self.in_flight += 1
        self._quiet.clear()
        try:
            await self._handle(down, self._connection(request))
        except Gone:
            down.abort()
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._quiet.set()
        return down.done()

    def stop_listening(self) -> None:
        """End the streams on which nobody waits for an answer to anything."""
        for task in self._listening:
            task.cancel()

    async def idle(self, grace: float) -> None:
        """Wait until no request is under way, for at most `grace` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._quiet.wait()

    def _connection(self, request: web.BaseRequest) -> int:
        transport = request.transport
        if transport is None:
            return 0
        number = self._connections.get(transport)
        if number is None:
            self._last_connection = number = self._last_connection + 1
            self._connections[transport] = number
        return number

    async def _handle(self, down: Downstream, connection: int) -> None:
        if refusal := self._refusal(down):
            await self._refuse(down, *refusal)
            return
        target = origin_form(down.target)
        path = target.partition("?")[0]
        if path == _OWN_PATH or path.startswith(_OWN_PATH + "/"):
            await self._send(down, self._own.answer(down.method, path))
            return
        route = self._routes.find(target)
        if route is None:
            detail = f"no upstream has the path {path!r}; the configured ones are {self._names}"
            await self._refuse(down, Refusal.PATH, problem(404, "Not Found", detail, {}))
            return
        request = Request(down, route, self._context.digest, self._context.clients, connection)
        transport = self._settings.upstreams[route.target.name].transport
        exchange, content = await read_exchange(down, self._context, request, transport)
        await self._carry(down, route, exchange, content)

    def _refusal(self, down: Downstream) -> tuple[Refusal, Made] | None:
        """Return why a request must not be forwarded: it may come from a page that rebound DNS."""
        # An absolute target's authority counts instead of Host (RFC 9112 section 3.2.2).
        absolute = authority_of(down.target).encode("utf-8", "surrogateescape")
        host = absolute or down.head.fields.get(b"host", b"")
        if (
            host not in self._seen_hosts and not self._allowed(host)
        ) or b"host" in down.head.repeated:
            detail = "this Host is not served here; add it to allow_hosts if it should be"
            return Refusal.HOST, problem(421, "Misdirected Request", detail, {})
        if b"origin" in down.head.fields and not self._all_origins_allowed(down):
            detail = "this Origin may not call; add its host to allow_hosts if it should"
            return Refusal.ORIGIN, problem(403, "Forbidden", detail, {})
        if b"transfer-encoding" in down.head.fields and not can_dechunk(down.headers):
            detail = "only the transfer coding chunked can be undone here (RFC 9112 section 6.1)"
            return Refusal.FRAMING, problem(501, "Not Implemented", detail, {})
        if down.method == "CONNECT":
            detail = "turnlog forwards requests, it opens no tunnels"
            return Refusal.METHOD, problem(405, "Method Not Allowed", detail, {})
        return None

    def _allowed(self, host: bytes) -> bool:
        if not allowed_host(host, self._hosts):
            return False
        if len(self._seen_hosts) < _SEEN_HOSTS:
            self._seen_hosts.add(host)
        return True

    def _all_origins_allowed(self, down: Downstream) -> bool:
        return all(
            allowed_origin(origin, self._hosts) for origin in fields(down.headers, b"origin")
        )

    @property
    def _names(self) -> str:
        return ", ".join(f"/{name}" for name in self._settings.upstreams)

    async def _refuse(self, down: Downstream, reason: Refusal, made: Made) -> None:
        event = RequestRefused(reason=reason, http_method=down.method, http_status=made.status)
        self._context.log.emit(event)
        await self._send(down, made)

    async def _carry(
        self, down: Downstream, route: Route, exchange: Exchange, content: Content
    ) -> None:
        """Record, forward, relay; whatever ends this early is recorded too."""
        try:
            try:
                await exchange.begin()
            except StoreError:
                await self._unrecordable(down, exchange.refused())
                return
            await self._forward(down, route, exchange, content)
        except (Gone, asyncio.CancelledError):
            exchange.left(
                ErrorKind.OUTCOME_UNKNOWN if self._own.stopping else ErrorKind.CANCELLED_BY_CALLER
            )
            raise
        finally:
            # Nothing stays open, whatever went wrong; what has ended is left alone.
            exchange.left(ErrorKind.OUTCOME_UNKNOWN)

    async def _forward(
        self, down: Downstream, route: Route, exchange: Exchange, content: Content
    ) -> None:
        fields_out = self._heads.forwarded((down.raw, route.target.authority))
        length = None if isinstance(content, bytes) else content_length(down.headers)
        try:
            answer = await self._upstreams.send(
                route.target.origin,
                down.method,
                route.resource,
                fields_out,
                content,
                exchange.progress,
                length=length if isinstance(length, int) else None,
            )
        except Failure as failure:
            self._failed(route, failure)
            made, tickets = exchange.failed(failure)
            await self._context.recorder.settle(tickets)
            await self._send(down, made)
            return
        exchange.head(answer)
        if answer.status == 401:
            self._unauthenticated(route, answer)
        started = self._context.clock.monotonic()
        try:
            await self._relay(down, route, exchange, answer)
        finally:
            await answer.close()
            if isinstance(exchange, McpExchange):
                exchange.went_by(self._context.clock.monotonic() - started)

    async def _relay(
        self, down: Downstream, route: Route, exchange: Exchange, answer: Answer
    ) -> None:
        head = self._heads.answer(answer.headers, route)
        relay = Relay(down, answer, head, exchange, self._context.recorder, keep=self._context.keep)
        if not exchange.listens:
            await relay.run()
            return
        task = asyncio.current_task()
        assert task is not None
        self._listening.add(task)
        try:
            await relay.run()
        except asyncio.CancelledError:
            if self._own.stopping:
                down.end_now()
            raise
        finally:
            self._listening.discard(task)

    def _unauthenticated(self, route: Route, answer: Answer) -> None:
        """Say how to go on where a server sends the client to another origin's login."""
        asked = fields(answer.headers, b"www-authenticate")
        if any(b"resource_metadata" in value for value in asked):
            self._context.log.emit(
                AuthRequired(
                    server=route.target.name, http_status=answer.status, advice=_AUTH_ADVICE
                )
            )

    def _failed(self, route: Route, failure: Failure) -> None:
        self._context.log.emit(
            UpstreamFailed(
                server=route.target.name,
                address=route.target.host,
                port=route.target.port,
                error="connection",
                kind=failure.kind,
                phase=failure.phase,
            )
        )

    async def _unrecordable(self, down: Downstream, made: Made) -> None:
        refused = RequestRefused(
            reason=Refusal.STORE, http_method=down.method, http_status=made.status
        )
        self._context.log.emit(refused)
        await self._send(down, made)

    async def _send(self, down: Downstream, made: Made) -> None:
        if down.method == "HEAD":
            await down.bodiless(made.status, made.reason, lines(made.headers))
        else:
            await down.answer(made.status, made.reason, lines(made.headers), made.body)
