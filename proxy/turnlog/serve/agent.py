"""The agent's connection: aiohttp's server, and what a proxy decides otherwise.

Whether an agent is gone, what a request line may say, and what is answered to what is no request
(docs/decisions/0019-when-an-agent-is-gone.md).
"""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from .requests import AnyMethodParser, RequestReader

_FIRST_LOOK: Final = 0.005
_LONGEST: Final = 1.0
"""s between two looks whether an agent that ended its side has closed the other as well."""

Refuse = Callable[[int, BaseException | None], bytes]
"""Returns a whole answer to what could not be read or handled, given the status and the error."""


class Sent(web.StreamResponse):
    """Tell aiohttp that the answer is already on its way; one for all of a connection."""

    def __init__(self, agent: "AgentConnection | None" = None) -> None:
        """`agent` is the connection, where that may carry another request."""
        super().__init__()
        self._agent = agent

    @property
    def keep_alive(self) -> bool:
        """Tell whether another request may come; the agent may have ended its side meanwhile."""
        return self._agent is not None and not self._agent.is_last

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write nothing."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing."""


SPENT: Final = Sent()


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

    __slots__ = ("_body", "_refuse", "answering", "half_closed", "sent")

    def __init__(
        self,
        manager: web.Server,
        refuse: Refuse,
        *,
        loop: asyncio.AbstractEventLoop,
        **options: Any,
    ) -> None:
        super().__init__(manager, loop=loop, **options)
        self._refuse = refuse
        self._body: StreamReader = EMPTY_PAYLOAD
        """Of the request that is being answered."""
        self.answering: Answering | None = None
        self.half_closed = False
        """Whether the agent has ended its side while answers are outstanding."""
        self.sent = Sent(self)
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
        self._parser = cast(Any, RequestReader(fast, cast(Any, slow), self._is_idle))

    def begin(self, body: StreamReader) -> None:
        """Learn that the next request is being handled."""
        self._body = body

    @property
    def is_last(self) -> bool:
        """Whether no request can follow the one that is being answered."""
        stopping: bool = self._close
        return stopping or (self.half_closed and not self._messages)

    def _is_idle(self) -> bool:
        waiter = self._waiter
        return not self._messages and waiter is not None and not waiter.done()

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

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of what refers to this connection."""
        super().connection_lost(exc)
        self.answering = None
        self.sent = SPENT
        self._body = EMPTY_PAYLOAD

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be read, or handled. Raises `ConnectionError` amid an answer."""
        if status >= 500:
            # Of a time limit that nobody caught aiohttp does not hand the error on.
            error = exc or sys.exception()
            self.log_exception("a request could not be handled", exc_info=error)
        answer, transport = self._refuse(status, exc), request.transport
        if self.answering is not None:
            begun = self.answering.begun
            self.answering.fail(answer)
            if begun:
                raise ConnectionError("an answer is already on its way")
        elif transport is not None and not transport.is_closing():
            transport.write(answer)
        return SPENT


class AgentServer(web.Server):
    """Makes the connections of agents."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        refuse: Refuse,
        **options: Any,
    ) -> None:
        super().__init__(handler, handler_cancellation=True, auto_decompress=False, **options)
        self._refuse = refuse

    def __call__(self) -> AgentConnection:
        """Return the protocol of a new connection."""
        return AgentConnection(self, self._refuse, loop=self._loop, **self._kwargs)

    def _make_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        assert isinstance(protocol, AgentConnection)
        protocol.begin(payload)
        return super()._make_request(message, payload, protocol, writer, task)
