"""The handler of agents' requests, from the head to the end of the answer."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Final

from turnlog.engine.call_driver import CallDriver
from turnlog.engine.context import Context
from turnlog.engine.request_identity import Request
from turnlog.observe.events import RefusalReason, RequestRefused
from turnlog.record.own_answers import OwnAnswer, call_lines, problem
from turnlog.settings.model import Settings
from turnlog.store.base import StoreError
from turnlog.transport.http_client import Content, Failure
from turnlog.transport.http_server import AgentConnection, AgentGone, Downstream
from turnlog.transport.message_heads import RequestStart
from turnlog.transport.routes import Route, Routes, is_own, is_probe, origin_form, own_path
from turnlog.wire.http.head import lines

from .admission import Admission, Refused
from .agent_side import AgentSide, GuardedAgent
from .bodies import exchange_of, read_exchange
from .own_pages import APPLICATION, OwnPages, probed
from .relay import Exchange
from .runner import NO_RULES, Guard, HttpCarrier, Outlived, UpstreamSender

_BODILESS: Final = frozenset({204, 304})
"""Statuses of answers that never have a body (RFC 9110, 15.3.5 and 15.4.5)."""
_ACCEPTED: Final = OwnAnswer(202, b"Accepted", (), b"")
"""The answer to a POST whose call is answered on the stream (2024-11-05)."""
_FAULT: Final = "turnlog failed at this request; its log says where"


class Handler:
    """Handles all requests of one proxy."""

    def __init__(
        self,
        settings: Settings,
        context: Context,
        routes: Routes,
        upstreams: UpstreamSender,
        commands: UpstreamSender,
        own: OwnPages,
    ) -> None:
        self._context = context
        self._routes = routes
        self._ways = {
            name: upstreams if upstream.url else commands
            for name, upstream in settings.upstreams.items()
        }
        self._loop = asyncio.get_running_loop()
        self._own = own
        self._admission = Admission(
            frozenset((*settings.allow_hosts, settings.listen.host)),
            frozenset(settings.allow_origins),
            context.clean,
        )
        self._listening: set[asyncio.Task[object]] = set()
        self.in_flight = 0
        self._quiet: asyncio.Event | None = None
        """Set when no request is in flight, if a task waits for that."""

    async def __call__(self, down: Downstream) -> bool:
        """Answer one request; return whether its connection may carry another.

        Cancelled when the connection is lost.
        """
        self.in_flight += 1
        try:
            request = self._known(down.asked, down.agent)
            if request is None:
                await self._answer_here(down, down.agent)
            else:
                await self._handle(down, request)
        except AgentGone:
            down.abort()
        finally:
            self.in_flight -= 1
            if not self.in_flight and self._quiet is not None:
                self._quiet.set()
        return down.done()

    def stop_listening(self) -> None:
        """End all listening streams: they answer no request."""
        for task in self._listening:
            task.cancel()

    @property
    def awaited(self) -> int:
        """Number of requests in flight, without listening streams."""
        return self.in_flight - len(self._listening)

    async def idle(self, grace: float) -> None:
        """Wait until no request is in flight and no detached call runs, for at most `grace` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                if self.in_flight:
                    self._quiet = asyncio.Event()
                    await self._quiet.wait()
                await self._context.duplicate_index.idle()

    async def _handle(self, down: Downstream, request: Request) -> None:
        """Record, forward and relay a request; an early end is recorded too."""
        context = self._context
        content: Content
        if isinstance(down.content, bytes):  # the usual case: the whole body came with the head
            content = down.content
            exchange = exchange_of(context, request, content)
        else:
            exchange, content = await read_exchange(down, context, request)
        try:
            await exchange.begin()
        except (StoreError, Failure) as error:
            await self._carrier(down, request, exchange).refuse(error)
        except BaseException as error:
            self._carrier(down, request, exchange).end(error)
            raise
        else:
            driver = exchange.driver
            if driver is None or not driver.is_guarded:
                carried = self._carrier(down, request, exchange).carry(content)
                await (self._listen(down, carried) if exchange.listens else carried)
            elif driver.is_over:
                await self._repeat(down, request, exchange, driver)
            else:
                await self._guard(driver, down, request, exchange, content)
        finally:
            self._close(exchange)

    def _close(self, exchange: Exchange) -> None:
        """Release the calls of an exchange that has been answered or given up."""
        for driver in exchange.drivers:
            if not driver.is_guarded:
                driver.close()
            elif not (driver.carrier or driver.is_over):
                self._context.duplicate_index.over(driver)  # it was never carried

    def _known(self, asked: RequestStart, agent: AgentConnection) -> Request | None:
        """Return a request as its head describes it; `None` if turnlog answers it itself."""
        # Most requests have the same head as the one before on their connection.
        before: Request | None = agent.memory
        channels = self._context.legacy_streams
        if before is not None and before.asked == asked and not channels.by_endpoint:
            return before
        route = self._route_of(asked)
        if route is None:
            return None
        channel = channels.find(route)
        request = before.elsewhere(asked, route) if before is not None and channel is None else None
        if request is None:
            request = self._request(asked, agent, route)
        if channel is not None:
            request.joins(channel)
        agent.memory = request if asked.is_ordinary and channel is None else None
        return request

    def _request(self, asked: RequestStart, agent: AgentConnection, route: Route) -> Request:
        """Return a request as its head describes it."""
        context = self._context
        return Request(
            asked,
            route,
            context.digest,
            context.clients,
            agent.number,
            principals=context.principals,
            peer=agent.peer,
        )

    def _route_of(self, start: RequestStart) -> Route | None:
        """Return the route of a request; `None` if turnlog answers it itself."""
        if not self._admission.admits(start):
            return None
        target = origin_form(start.target)
        return None if is_own(target.partition("?")[0]) else self._routes.find(target)

    async def _answer_here(self, down: Downstream, agent: AgentConnection) -> None:
        """Answer a request to turnlog's own pages, or refuse it."""
        if refusal := self._admission.refusal(down.asked):
            await self._refuse(down, refusal)
            return
        path, _, query = origin_form(down.asked.target).partition("?")
        if is_probe(path):
            context = self._context
            await self._send(down, probed(down.asked.method, path, context.store, context.stop))
        elif is_own(path) or own_path(path):
            session, _ = own_path(path) or ("", path)
            route = Route(APPLICATION, path, "", session, "")
            await self._own.relay(down, self._request(down.asked, agent, route), path, query)
        else:
            names = ", ".join(f"/{name}" for name in self._ways)
            detail = f"no upstream has the path {path!r}; the configured ones are {names}"
            made = problem(404, "Not Found", detail, {})
            await self._refuse(down, Refused(RefusalReason.PATH, made, self._admission.shown(path)))

    def unread(self, status: int, detail: str) -> bytes:
        """Return the bytes of an error answer to a request that could not be read or handled."""
        if status >= 500:
            made = problem(500, "Internal Server Error", _FAULT, {})
        else:
            made = problem(status, HTTPStatus(status).phrase, detail, {})
            event = RequestRefused(reason=RefusalReason.FRAMING, http_status=status)
            self._context.log.emit(event)
        head = (made.status, made.reason, lines(made.headers), len(made.body))
        return (
            b"HTTP/1.1 %d %b%b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % head
            + made.body
        )

    async def _refuse(self, down: Downstream, refused: Refused) -> None:
        event = RequestRefused(
            reason=refused.reason,
            http_method=self._context.clean(down.asked.method),
            http_status=refused.made.status,
            value=refused.value,
        )
        self._context.log.emit(event)
        await self._send(down, refused.made)

    async def _guard(
        self,
        driver: CallDriver,
        down: Downstream,
        request: Request,
        exchange: Exchange,
        content: Content,
    ) -> None:
        """Carry a call in a task of its own, which may outlive its agent; wait for its end or its agent's timeout."""
        agent = GuardedAgent(down, keeps=exchange.kept_as_sent)
        carrier = self._carrier(agent, request, exchange)
        guarded = self._guarded(driver, agent, carrier, exchange, content)
        task = self._context.work.create_task(guarded)
        # A future is cheaper than `asyncio.wait` for the first of two.
        answered: asyncio.Future[Outlived | None] = self._loop.create_future()
        task.add_done_callback(partial(_free, answered))
        carrier.guard = Guard(task, agent, answered)
        driver.carrier = carrier
        try:
            outlived = await answered
            if outlived is not None:  # a timeout, while the call runs on
                made, tickets = outlived
                await self._context.recorder.settle(tickets)
                await agent.replace(made, call_lines(exchange.attempt, whole=True))
        finally:
            if not exchange.was_accepted:  # else its agent waits on another stream
                driver.on_left()

    async def _guarded(
        self,
        driver: CallDriver,
        agent: GuardedAgent,
        carrier: HttpCarrier,
        exchange: Exchange,
        content: Content,
    ) -> None:
        """Carry a call that may outlive its agent; the body of its task."""
        try:
            try:
                await carrier.carry(content)
            finally:
                if driver.slot is not None:
                    driver.slot.give_back()
            if not exchange.was_accepted:
                await driver.caller_checked()
        except Exception as error:  # noqa: BLE001 - the top of a task; it is logged
            self._context.recorder.faulted(error)
            agent.fail(self.unread(500, ""))
        finally:
            has_answer = agent.has_answer and not exchange.was_accepted
            if has_answer and not driver.machine.has_given_up:
                driver.on_delivered()
            self._context.duplicate_index.over(driver, exchange.kept(agent.kept))

    def _carrier(self, down: AgentSide, request: Request, exchange: Exchange) -> HttpCarrier:
        way, attempt = self._ways[request.server], exchange.attempt
        policy = attempt.ask.policy if attempt is not None else NO_RULES
        return HttpCarrier(self._context, way, down, request, exchange, monotonic(), policy)

    async def _repeat(
        self, down: Downstream, request: Request, exchange: Exchange, driver: CallDriver
    ) -> None:
        """Answer a call that is not sent because of an earlier one."""
        unsent = driver.unsent
        if unsent is None:
            # A cancelled request gets no answer (MCP, cancellation).
            raise AgentGone("the call was taken back")
        attempt, channel = unsent.attempt, request.channel
        await self._context.recorder.opened(attempt)
        made = exchange.repeated(unsent)
        if attempt.waits and attempt.outcome is not None:
            await self._context.recorder.settle([attempt.outcome])
        said, giving = call_lines(attempt, whole=True), self._context.duplicate_index.giving
        if channel is not None:
            with giving(unsent.earlier):
                if is_told := await channel.say(made.body):
                    driver.on_delivered()
            await self._send(down, _ACCEPTED if is_told else made, said)
            return
        await self._send(down, made, said)
        # Not asked before: until the answer is written the agent may leave (decision 79).
        with giving(unsent.earlier):
            if await down.is_taken():
                driver.on_delivered()

    async def _listen(self, down: Downstream, run: Coroutine[None, None, object]) -> None:
        """Relay a listening stream, which `stop_listening` can end."""
        task = asyncio.current_task()
        assert task is not None
        self._listening.add(task)
        try:
            await run
        except asyncio.CancelledError:
            if self._context.stop.is_set():
                down.end_now()
            raise
        finally:
            self._listening.discard(task)

    async def _send(self, down: Downstream, made: OwnAnswer, more: bytes = b"") -> None:
        """Send an answer, with `more` lines in its head."""
        head = lines(made.headers) + more
        if made.status in _BODILESS or down.asked.method == "HEAD":
            await down.bodiless(made.status, made.reason, head)
        else:
            await down.answer(made.status, made.reason, head, made.body)


def _free(answered: "asyncio.Future[Outlived | None]", _: object) -> None:
    """Resolve the agent's wait at the end of its call."""
    if not answered.done():
        answered.set_result(None)
