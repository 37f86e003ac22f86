"""The agent's connection: aiohttp's server, and what a proxy decides otherwise.

Whether an agent is gone, what a request line may say, and what is answered to what is no request
(docs/decisions/0019-when-an-agent-is-gone.md).
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from turnlog.engine.agent_request import Request
from turnlog.transport.async_pipes import is_ended
from turnlog.transport.request_heads import AgentRequest, Starts
from turnlog.transport.request_parser import AnyMethodParser, RequestReader, UnfinishedError
from turnlog.transport.wakeup import Bell

_FIRST_LOOK: Final = 0.005
_LONGEST: Final = 1.0
"""s between two looks whether an agent that ended its side has closed the other as well."""

Refuse = Callable[[int, BaseException | None], bytes]
"""Returns a whole answer to what could not be read or handled, given the status and the error."""
UNFINISHED: Final = 600.0
"""s: an agent that goes on with its request for so long is not waited for any more: with a head from
its first byte on, with a body from its latest. Docs: reference/configuration.md."""
_OVER: Final = web.PayloadAccessError()
"""What whoever reads a body gets once its request is over."""


class Answering(Protocol):
    """An answer on its way to the agent."""

    @property
    def begun(self) -> bool:
        """Whether its head has left."""
        ...

    def ask(self) -> bool:
        """Send a byte that the answer will have anyway; false where it has no such byte."""
        ...

    def fail(self, data: bytes) -> None:
        """Write a whole answer in its place; where its head has left, cut it."""
        ...


class AgentConnection(web.RequestHandler):
    """One connection of an agent.

    The end of its stream is all that is seen of an agent that closes, and of one that only has no
    more to say. So a byte is sent: the one is answered by a reset, the other reads it.
    """

    __slots__ = (
        "_answer",
        "_bell",
        "_body",
        "_reader",
        "_refuse",
        "_unfinished",
        "answering",
        "half_closed",
        "number",
        "told",
    )

    def __init__(
        self,
        server: "AgentServer",
        number: int,
        *,
        loop: asyncio.AbstractEventLoop,
        **options: Any,
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self._answer = server.answer
        self._refuse = server.refuse
        self._bell = Bell(loop)
        self._waiter = cast(Any, self._bell)
        self.number = number
        """Which of the server's connections it is."""
        self.told: Request | None = None
        """What its latest request told before its body."""
        self._body: StreamReader = EMPTY_PAYLOAD
        """Of the request that is being answered."""
        self.answering: Answering | None = None
        self.half_closed = False
        """Whether the agent has ended its side while answers are outstanding."""
        self._unfinished: asyncio.TimerHandle | None = None
        """Runs while the start of a head is all there is."""
        slow = partial(
            AnyMethodParser,
            self,
            loop,
            self._read_bufsize,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=self._max_msg_queue_size,
        )
        fast: Any = self._parser
        self._reader = RequestReader(fast, cast(Any, slow), self._is_held, server.starts)
        self._parser = cast(Any, self._reader)

    # -- requests, one after another -------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take bytes; a whole request like those before needs no parser."""
        request = self._reader.at_once(data) if self._is_idle() else None
        if request is None:
            super().data_received(data)
            self._watch_head(data)
            return
        self._messages.append((request, EMPTY_PAYLOAD))  # type: ignore[arg-type]  # ours, as all
        self._bell.ring()

    def _watch_head(self, data: bytes) -> None:
        """Start the time limit of a head that is not whole yet; stop it once it is."""
        if self._is_idle():
            # Line ends between requests begin nothing (RFC 9112, 2.2).
            if self._unfinished is None and data.strip(b"\r\n"):
                self._unfinished = self._loop.call_later(UNFINISHED, self.give_up)
        elif self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None

    def give_up(self) -> None:
        """Answer an agent that does not go on with its request, and close the connection."""
        self._failed(HTTPStatus.REQUEST_TIMEOUT, UnfinishedError(UNFINISHED))
        if self.transport is not None:
            self.transport.close()

    async def start(self) -> None:
        """Answer requests until the connection has carried its last one.

        aiohttp makes a task for each of them, which costs a turn of the loop more.
        """
        while not self._force_close:
            if self._messages:
                # Whoever sends many at once is not answered before everybody else.
                await asyncio.sleep(0)
            else:
                await self._bell
            try:
                # No name here may keep a body while the connection waits for the next one.
                self._keepalive = await self._served(*self._next())
            except Exception as error:  # noqa: BLE001 - the top of a task; it is logged
                self.log_exception("Unhandled exception", exc_info=error)
                self.force_close()
            except BaseException:
                self.force_close()
                raise
            if not self._keepalive or self._close or self._force_close:
                break
            self._wait_for_next()
        self._end()

    def _end(self) -> None:
        """Close the connection, unless that was done by force."""
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    def _next(self) -> tuple[Any, StreamReader]:
        """Take a request from the queue, or what says why it could not be read."""
        read = self._messages.popleft()
        self._reader.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()
        return read

    async def _served(self, request: Any, body: StreamReader) -> bool:
        """Answer one request; tell whether another one may follow."""
        if not isinstance(request, AgentRequest):
            self._failed(request.status, request.exc)
            return False
        self._body = body
        self._request_in_progress = True
        self._current_request = request  # type: ignore[assignment]  # it is only asked to cancel
        try:
            stays = await self._answer(self, request)
        except Exception as error:  # noqa: BLE001 - an agent gets an answer, whatever fails here
            self._failed(504 if isinstance(error, TimeoutError) else 500, error)
            stays = False
        finally:
            self._current_request = None
            self._request_in_progress = False
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)
        if self._upgraded and not self._messages:
            self._decline()
        stays = stays and not self.is_last
        if body is not EMPTY_PAYLOAD:
            await self._finish(body)
        return stays

    def _wait_for_next(self) -> None:
        """Close the connection some time later, unless a request comes until then."""
        self._next_keepalive_close_time = at = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(at, self._process_keepalive)
        if not self._messages and self._unfinished is None and self._reader.has_begun:
            self._unfinished = self._loop.call_later(UNFINISHED, self.give_up)

    def _decline(self) -> None:
        """Read what came behind an offer of another protocol, which nobody took up."""
        assert self._parser is not None
        self._parser.set_upgraded(False)
        self._upgraded = False
        tail, self._message_tail = self._message_tail, b""
        if tail:
            super().data_received(tail)
            if self._buffer_paused:
                self._resume_reading_if_drained()

    async def _finish(self, body: StreamReader) -> None:
        """Read what nobody wanted of a body, for a while, so that the agent gets to read its answer."""
        if not body.is_eof() and not self._force_close:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lingering_time):
                    while not body.is_eof():
                        await body.readany()
            if not body.is_eof() and not self._force_close:
                self.close()
        body.set_exception(_OVER)

    def _failed(self, status: int, error: BaseException | None) -> None:
        """Answer what could not be read, or handled."""
        if status >= 500:
            self.log_exception("a request could not be handled", exc_info=error)
        answer, transport = self._refuse(status, error), self.transport
        if self.answering is not None:
            self.answering.fail(answer)
        elif transport is not None and not transport.is_closing():
            transport.write(answer)

    # -- whether the agent is there --------------------------------------------------------

    @property
    def is_last(self) -> bool:
        """Whether no request can follow the one that is being answered."""
        stopping: bool = self._close
        return stopping or (self.half_closed and not self._messages)

    def _is_idle(self) -> bool:
        return not (self._messages or self._bell.done())

    def _is_held(self, more: int) -> bool:
        """Tell whether aiohttp has its parser wait: for a body's reader, or with `more` requests."""
        waiting = len(self._messages) + more
        return self._reading_paused or waiting >= self._max_msg_queue_size

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp promises to close always
        """Tell whether the connection stays open, now that the agent has ended its side."""
        if self.half_closed:
            return True
        body = self._messages[-1][1] if self._messages else self._body
        # A request that is not whole will never be.
        if self._is_idle() or not body.is_eof() or not self._ask():
            return False
        self.half_closed = True
        self._loop.call_later(_FIRST_LOOK, self._look, 2 * _FIRST_LOOK)
        return True

    def _ask(self) -> bool:
        return self.answering is None or self.answering.ask()

    def _look(self, delay: float) -> None:
        """See whether the agent has answered by a reset; ask again, as there may be a relay between."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            transport.abort()
            return
        self._ask()
        self._loop.call_later(delay, self._look, min(2 * delay, _LONGEST))

    @property
    def has_ended(self) -> bool:
        """Whether the agent has ended its side, be that read here yet or not."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        return self.half_closed or is_ended(transport.get_extra_info("socket").fileno())

    @property
    def peer(self) -> str:
        """The address that it comes from."""
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(name[0]) if name else ""

    async def drained(self) -> None:
        """Wait while the agent reads slowly. Raises `ConnectionError`."""
        if self.transport is not None:
            await self._drain_helper()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of what refers to this connection: else all of it would wait for the collector, which
        hardly looks, and lie between what comes and goes meanwhile."""
        super().connection_lost(exc)
        if self._unfinished is not None:
            self._unfinished.cancel()
        self.answering = None
        self.told = None
        self._body = EMPTY_PAYLOAD
        del self._reader


Answer = Callable[[AgentConnection, AgentRequest], Awaitable[bool]]
"""Answers a request; tells whether the connection can carry another one."""


class AgentServer(web.Server):
    """Makes the connections of agents."""

    def __init__(self, answer: Answer, refuse: Refuse, **options: Any) -> None:
        super().__init__(
            cast(Any, answer), handler_cancellation=True, auto_decompress=False, **options
        )
        self.answer = answer
        self.refuse = refuse
        self.starts = Starts()
        self._count = 0

    def __call__(self) -> AgentConnection:
        """Return the protocol of a new connection."""
        self._count += 1
        return AgentConnection(self, self._count, loop=self._loop, **self._kwargs)
