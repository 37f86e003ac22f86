"""The agents' connections: requests as they come, one after another, and answers byte for byte.

One task per connection answers its requests in order (RFC 9112 section 9.3.2). When an agent is gone
is decided in docs/decisions/0019-when-an-agent-is-gone.md.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, cast

from msgspec import Struct, field

from turnlog.wire.http.mend import HEAD_END

from .async_pipes import DOUBT, is_ended
from .http1 import (
    HEAD_LIMIT,
    READ_AHEAD,
    UNSOUND,
    BadChunksError,
    BodyReader,
    Chunks,
    Unreadable,
    begins_like_request,
    joined,
)
from .message_heads import RequestStart, read_request_head

_LOG: Final = logging.getLogger("turnlog.http_server")
UNFINISHED: Final = 600.0
"""s: an agent that goes on with its request for so long is not waited for any more: with a head from
its first byte on, with a body from its latest. Docs: reference/configuration.md."""
_SWEEP: Final = 10.0
"""s between two looks for connections that are idle, or unfinished, for too long."""
_IDLE_LIMIT: Final = 3630.0
"""s without a request after which a connection is closed: more than the hour that load balancers keep one."""
_SMALL: Final = 64 * 1024
"""bytes: a request with a body of up to this length is answered once it is whole. Many clients write head
and body apart."""
_LINGER: Final = 10.0
"""s: how long the rest of an unused body is read, so that the agent gets to read its answer."""
_FIRST_LOOK: Final = 0.005
_LONGEST_LOOK: Final = 1.0
"""s between two looks whether an agent that ended its side has closed the other as well."""
_RESET: Final = b"\1\0\0\0\0\0\0\0"
"""For SO_LINGER: to close is to reset."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_START: Final = b"HTTP/1.1 "
"""What every answer begins with, interim ones too, whatever the agent's version."""
_HTTP_1_1: Final = (1, 1)
_HEAD: Final = "HEAD"
"""The method whose answers never have a body (RFC 9110, 9.3.2)."""
_LAST_CHUNK: Final = b"0\r\n\r\n"
_ZEROS: Final = b"0" * 7
"""May stand before the size of a chunk (RFC 9112, 7.1); some parsers stop at 16 digits."""


class AgentGone(Exception):
    """The agent's side closed its connection, or does not go on with its request."""


class RequestBody(BodyReader, eq=False):
    """The body of a request that did not come whole with its head."""

    resume: Callable[[], None] | None = None
    """Called when some of it was taken."""
    wanted_at: float | None = None
    """Since when the handler waits for more of it."""
    _came: asyncio.Event = field(default_factory=asyncio.Event)
    _why_not: str = ""
    """Why no more of it comes."""

    def on_data(self, data: bytes) -> bytes:
        """Read bytes; return those behind the body's end. Raises `BadChunksError`."""
        rest = self.feed(data)
        self._came.set()
        return rest

    def cut(self, why: str) -> None:
        """Note that no more of it will come, for the reason `why`."""
        self._why_not = self._why_not or why
        self._came.set()

    async def read(self) -> bytes:
        """Return what has come; nothing at its end. Raises `AgentGone`."""
        while not self.pieces:
            if not self.missing:
                return b""
            if self._why_not:
                raise AgentGone(self._why_not)
            self._came.clear()
            self.wanted_at = asyncio.get_running_loop().time()
            await self._came.wait()
            self.wanted_at = None
        data = self.take()
        if self.resume is not None:
            self.resume()
        return data


class AgentConnection(asyncio.Protocol):
    """One connection of an agent.

    The end of its stream is all that is seen of an agent that closes, and of one that only has no
    more to say. So a byte is sent: the one is answered by a reset, the other reads it.
    """

    def __init__(self, server: "AgentServer", number: int) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] = self._loop.create_future()
        """Ends the task's wait for the next request."""
        self.number = number
        """Which of the server's connections it is."""
        self.memory: Any = None
        """What the handler keeps from one request to the next."""
        self.answering: Downstream | None = None
        self.transport: asyncio.Transport | None = None
        self.half_closed = False
        """Whether the agent has ended its side while answers are outstanding."""
        self._came: bytes | bytearray = b""
        """Unparsed input: an incomplete head, or requests behind the current one."""
        self._searched = 0
        """How much of that was searched for the end of a head."""
        self._known: RequestStart | None = None
        """How the latest request began: most begin as the one before."""
        self._head: tuple[RequestStart, int] | None = None
        """Head of the next request and length of its body, while the body is awaited."""
        self._begun_at: float | None = None
        """Start of the time limit for the next request: its first byte, or the latest byte of its body."""
        self._body: RequestBody | None = None
        """Body of the current request, while more of it is to come."""
        self._is_busy = True
        """Whether the task is not waiting for a request."""
        self._next: Downstream | Unreadable | None = None
        """The request or error that the task is woken for."""
        self._idle_since = server.now
        self._paused = False
        self.writing_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self.is_last = False
        """Whether no request follows the one that is being answered."""
        self._is_lingering = False
        """Whether nothing more is read at all."""
        self.task: asyncio.Task[None] | None = None

    # -- requests, one after another -------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to answer requests."""
        self.transport = cast(asyncio.Transport, transport)
        listened = transport.get_extra_info("socket")
        if listened.family in (socket.AF_INET, socket.AF_INET6):
            # A machine that vanished is noticed some time.
            listened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._server.on_connection(self)
        self.task = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        """Answer requests until the connection has carried its last one."""
        try:
            request = self._read()
            while request is not None or not self.is_last:
                if request is None:
                    self._is_busy, self._idle_since = False, self._server.now
                    self._waiter = self._loop.create_future()
                    await self._waiter
                    request, self._next = self._next, None
                elif isinstance(request, Unreadable):
                    self._fail(request)
                    await self._linger()
                    break
                else:
                    self.answering = request
                    if self.half_closed:
                        request.ask()
                    stays = await self._server.answer(request)
                    is_read = stays and not self._came and isinstance(request.content, bytes)
                    request = None if is_read else await self._after(request, stays=stays)
        except Exception as error:  # noqa: BLE001 - an agent gets an answer, whatever fails here
            _LOG.exception("a request could not be handled", exc_info=error)
            self._fail(Unreadable("", 500))
            if self._body is not None:
                await self._discard(self._body)
        finally:
            self.close()

    async def _after(
        self, request: "Downstream", *, stays: bool
    ) -> "Downstream | Unreadable | None":
        """Return the request behind one that was answered, if it is here."""
        if isinstance(request.content, RequestBody):
            stays = await self._discard(request.content) and stays
        if self._came:
            # Yield, so that a client that pipelines many requests does not delay others.
            await asyncio.sleep(0)
        self.is_last = self.is_last or not stays
        if self.is_last:
            return None
        following = self._read()
        if self._paused:
            self._resume_reading()
        if self.half_closed and (following is None or not self._came):
            self.is_last = True
        return following

    def _read(self) -> "Downstream | Unreadable | None":
        """Return the request that has come, or why it cannot be read; `None` until it is here."""
        if self._head is not None:
            return self._request(*self._head)
        if not self._searched:
            # Line ends between requests begin nothing (RFC 9112, 2.2).
            self._came = self._came.lstrip(b"\r\n")
        came = self._came
        if not came:
            return None
        found = HEAD_END.search(came, max(self._searched - 3, 0))
        # Lines that end in another way than by CRLF end a head as well, which is refused then: to look
        # for its end elsewhere would be to read it otherwise than others do.
        end = len(came) if found is None else found.end()
        if end > HEAD_LIMIT:
            return begins_like_request(came) or UNSOUND
        if found is None:
            self._searched = end
            if self._begun_at is None:
                self._begun_at = self._loop.time()
            # What does not even begin like a request is not waited for.
            return begins_like_request(came)
        self._searched = 0
        self._came = came[end:]
        head = read_request_head(bytes(came[:end]), self._known)
        return head if isinstance(head, Unreadable) else self._request(*head)

    def _request(self, start: RequestStart, length: int) -> "Downstream | Unreadable | None":
        """Return the request that begins so, with as much of its body as is here."""
        came = bytes(self._came)
        content: bytes | RequestBody | None
        if 0 <= length <= len(came):
            self._came, content = came[length:], came[:length]
        # A client that expects 100 (Continue) sends no body before it (RFC 9110, 10.1.1).
        elif 0 <= length <= _SMALL and b"expect" not in start.head.fields:
            self._head = start, length
            self._begun_at = self._loop.time()
            return None
        elif (content := self._begin_body(came, length)) is None:
            return UNSOUND
        self._head = self._begun_at = None
        if start is not self._known:
            self._known = start if start.is_ordinary else None
        return Downstream(self, start, length, content)

    def _begin_body(self, came: bytes, length: int) -> bytes | RequestBody | None:
        """Return a body that has not come whole with its head; `None` where it is not sound."""
        body = RequestBody(length, Chunks() if length < 0 else None, resume=self._resume_reading)
        try:
            self._came = body.feed(came)
        except BadChunksError:
            return None
        self._body = body if body.missing else None
        return body if body.missing else body.take()

    async def _linger(self) -> None:
        """End this side and drop what still comes, for `_LINGER`. The end of the connection cancels this."""
        # To close at once would reset the connection, and the agent may lose the answer (RFC 9112, 9.6).
        if self.transport is not None and not self.transport.is_closing():
            self._is_lingering, self._came = True, b""
            self.transport.write_eof()
            self._resume_reading()
            await asyncio.sleep(_LINGER)

    async def _discard(self, body: RequestBody) -> bool:
        """Read the rest of a body that was not needed, for `_LINGER`; return whether it has come to its end."""
        with suppress(TimeoutError, AgentGone):
            async with asyncio.timeout(_LINGER):
                while await body.read():
                    pass
        body.cut("its request is over")
        return not (body.missing or body.pieces)

    def _fail(self, refused: Unreadable) -> None:
        """Answer what could not be read, or handled."""
        answer = self._server.refuse(refused.status, refused.detail)
        if self.answering is not None:
            self.answering.fail(answer)
        elif self.transport is not None and not self.transport.is_closing():
            self.transport.write(answer)

    def _give_up(self) -> None:
        """Answer an agent that does not go on with its request, and close the connection."""
        detail = f"the rest of the request did not come within {UNFINISHED:g} s"
        self._fail(Unreadable(detail, 408))
        if self._body is not None:
            self._body.cut("the agent does not go on with its request")
        self.close()

    def close(self) -> None:
        """Close the connection once what was written has left."""
        if self.transport is not None:
            self.transport.close()

    def finish(self) -> None:
        """Close the connection once the present request is answered."""
        self.is_last = True
        if not self._is_busy:
            self.close()

    def check(self, now: float) -> None:
        """Close a connection that has carried nothing for long, or whose request does not go on."""
        body = self._body
        waits_since = body.wanted_at if body is not None else self._begun_at
        if waits_since is not None and now - waits_since >= UNFINISHED:
            self._give_up()
        elif waits_since is None and not self._is_busy and now - self._idle_since >= _IDLE_LIMIT:
            self.finish()

    # -- asyncio.Protocol ------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Read bytes: of the present request's body, or of the next request."""
        if self._is_lingering:
            return
        if self._body is not None:
            data = self._fed(self._body, data)
        if data:
            self._came = joined(self._came, data) if self._came else data
        if not self._is_busy:
            self._next = self._read()
            if self._next is not None and not self._waiter.done():
                self._is_busy = True
                self._waiter.set_result(None)
        elif not self._paused and self._ahead > READ_AHEAD and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def _fed(self, body: RequestBody, data: bytes) -> bytes:
        """Feed the present request's body; return the bytes behind its end."""
        try:
            rest = body.on_data(data)
        except BadChunksError:
            self._body = None
            self.is_last = True
            self._fail(UNSOUND)
            body.cut("the request's chunks are not sound")
            self.close()
            return b""
        if not body.missing:
            self._body = None
        return rest

    @property
    def _ahead(self) -> int:
        """How many bytes came and were not read."""
        return len(self._came) + (self._body.size if self._body is not None else 0)

    def _resume_reading(self) -> None:
        """Read on if that was paused, and little is left of what came."""
        if self._paused and self.transport is not None and self._ahead <= READ_AHEAD:
            self._paused = False
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        """Return whether the connection stays open, now that the agent has ended its side."""
        # A request that is not whole will never be.
        if not self._is_busy or self._is_lingering or self._body is not None or not self._ask():
            return False
        self.half_closed = True
        self.is_last = self.is_last or not self._came
        self._loop.call_later(_FIRST_LOOK, self._look, 2 * _FIRST_LOOK)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the task, and drop all references to this connection."""
        # Else all of it would wait for the garbage collector, which hardly runs.
        self._server.connections.discard(self)
        self.is_last = True
        self.transport = None
        self.answering = None
        self.memory = self._next = None
        self._came = b""
        if self._body is not None:
            self._body.cut("the agent closed its connection")
            self._body = None
        self._writable.set()
        task, self.task = self.task, None
        if task is not None:
            task.cancel()

    def pause_writing(self) -> None:
        """Stop writing until the transport's buffer is empty enough."""
        self.writing_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on writing."""
        self.writing_paused = False
        self._writable.set()

    async def drained(self) -> None:
        """Wait while the agent reads slowly. Raises `AgentGone`."""
        if self.writing_paused:
            await self._writable.wait()
        if self.transport is None:
            raise AgentGone("the agent closed its connection")

    # -- whether the agent is there --------------------------------------------------------

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
        self._loop.call_later(delay, self._look, min(2 * delay, _LONGEST_LOOK))

    @property
    def has_ended(self) -> bool:
        """Whether the agent has ended its side, even if that was not read here yet."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        return self.half_closed or is_ended(transport.get_extra_info("socket").fileno())

    @property
    def peer(self) -> str:
        """The address that it comes from."""
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(name[0]) if name else ""


Answer = Callable[["Downstream"], Awaitable[bool]]
"""Answers a request; returns whether the connection can carry another one."""
Refuse = Callable[[int, str], bytes]
"""Returns a whole answer to what could not be read or handled, given the status and why."""


class AgentServer:
    """Makes the connections of agents: what `loop.create_server` wants of a factory."""

    def __init__(self, answer: Answer, refuse: Refuse) -> None:
        self.answer = answer
        self.refuse = refuse
        self.connections: set[AgentConnection] = set()
        self.now = 0.0
        """The loop's time at the latest sweep; exact enough for idle connections."""
        self._count = 0
        self._sweep: asyncio.TimerHandle | None = None

    def __call__(self) -> AgentConnection:
        """Return the protocol of a new connection."""
        self._count += 1
        return AgentConnection(self, self._count)

    def on_connection(self, connection: AgentConnection) -> None:
        """Register a connection until it is lost; idle and unfinished ones are closed after a while."""
        self.connections.add(connection)
        if self._sweep is None:
            self._check()

    def _check(self) -> None:
        """Close connections that are idle or unfinished for too long; again after `_SWEEP`."""
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        for connection in self.connections:
            connection.check(self.now)
        self._sweep = loop.call_later(_SWEEP, self._check) if self.connections else None

    def finish(self) -> None:
        """Close what is idle, and each other connection once its present request is answered."""
        for connection in self.connections:
            connection.finish()

    async def stop(self, grace: float) -> None:
        """End all connections: requests under way have `grace` seconds, then they are cancelled."""
        self.finish()
        tasks = {each.task for each in self.connections if each.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=grace)
        for connection in self.connections:
            connection.close()


# One is made for each request, and a struct takes a third of the time of another class.
class Downstream(Struct, eq=False):
    """One request of the agent, and the answer to it. Raises `AgentGone` where the agent left."""

    agent: AgentConnection
    """The connection that it came on."""
    asked: RequestStart
    """Its line and fields, but for Content-Length."""
    length: int
    """Length of the body in bytes; negative for chunks."""
    content: bytes | RequestBody
    """The body: all of it, or what it is read from."""
    begun: bool = False
    """Whether the answer's head has left."""
    finished: bool = False
    _chunked: bool = False
    _until_close: bool = False
    _invited: bool = False
    _ahead: int = 0
    """How many bytes of `_START`, or of `_ZEROS`, were sent before their time."""
    _is_quiet: bool = False
    """Whether none may be sent now, so that a reset is about the answer."""

    @property
    def has_ended(self) -> bool:
        """Whether the agent has ended its side of the connection, and perhaps both."""
        return self.agent.has_ended

    async def read(self, limit: int) -> tuple[bytes, bool]:
        """Return the body and whether that is all of it; stop early above `limit` bytes."""
        content = self.content
        if isinstance(content, bytes):
            return content, True
        self._invite()
        pieces: list[bytes] = []
        size = 0
        while size <= limit:
            if not (piece := await content.read()):
                return b"".join(pieces), True
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces), not (content.missing or content.pieces)

    async def rest(self, start: bytes) -> AsyncIterator[bytes]:
        """Yield `start` and then what is left of a body too large to be held."""
        assert not isinstance(self.content, bytes)  # that is never too large
        yield start
        while piece := await self.content.read():
            yield piece

    def _invite(self) -> None:
        # A client that waits for 100 (Continue) sends no body before it (RFC 9110, 10.1.1).
        # HTTP/1.0 knows no interim answers, and its Expect is ignored.
        if self._invited or self.asked.version < (1, 1):
            return
        if self.asked.head.fields.get(b"expect", b"").lower() == b"100-continue":
            self._invited = True
            self._write(_CONTINUE, is_start=True)

    def interim(self, status: int, reason: bytes, lines: bytes) -> None:
        """Forward an interim answer (1xx) at once; HTTP/1.0 knows none (RFC 9110, 15.2)."""
        if not self.begun and self.asked.version >= (1, 1) and self._transport is not None:
            self._write(b"HTTP/1.1 %d %b%b\r\n\r\n" % (status, reason, lines), is_start=True)

    def ask(self) -> bool:
        """Send a byte that any answer to come will have, to see whether the agent is there.

        Return false where no such byte is known: amid a body that is not sent in chunks.
        """
        if self.finished or self._is_quiet:
            return True
        if self.begun and not self._chunked:
            return False
        sure = _ZEROS if self._chunked else _START
        byte = sure[self._ahead : self._ahead + 1]
        transport = self._transport
        if byte and transport is not None:
            self._ahead += 1
            transport.write(byte)
        return True

    async def answer(self, status: int, reason: bytes, lines: bytes, body: bytes) -> None:
        """Write a whole answer in one piece; to HEAD without its body, whose length stands all the same.

        Here and below `lines` are fields, each with CRLF before it, without any of framing.
        """
        sent = b"" if self.asked.method == _HEAD else body
        said = (status, reason, lines, len(body), self._keeps(), sent)
        self._write(b"HTTP/1.1 %d %b%b\r\nContent-Length: %d%b\r\n\r\n%b" % said, is_start=True)
        self.begun = self.finished = True
        if self.agent.writing_paused:
            await self.agent.drained()

    async def bodiless(self, status: int, reason: bytes, lines: bytes) -> None:
        """Write an answer that never has a body (to HEAD; 204; 304); a length may be given."""
        self._write(self._head(status, reason, lines), is_start=True)
        self.begun = self.finished = True
        await self.agent.drained()

    async def start(
        self,
        status: int,
        reason: bytes,
        lines: bytes,
        length: int | None,
        first: bytes = b"",
        *,
        ends: bool = False,
    ) -> None:
        """Write a head whose body follows: `length` bytes, or `None` where that is not known; `first` is
        what is here of it, all of it where it `ends` so."""
        if length is not None:
            lines += b"\r\nContent-Length: %d" % length
        elif self.asked.version >= (1, 1):
            lines += b"\r\nTransfer-Encoding: chunked"
            self._chunked = True
        else:
            self._until_close = True
        if self._chunked:
            first = _chunk(first) + (_LAST_CHUNK if ends else b"")
        self._write(self._head(status, reason, lines) + first, is_start=True)
        self.begun, self.finished = True, ends
        await self.agent.drained()

    async def write(self, data: bytes) -> None:
        """Write a piece of the body; wait while the agent reads slowly."""
        if data:
            self._write(_chunk(data) if self._chunked else data)
            self._ahead = 0
            if self.agent.writing_paused:
                await self.agent.drained()

    async def end(self, last: bytes = b"") -> None:
        """Write the last piece and the end of the message."""
        if self._chunked:
            self._write(_chunk(last) + _LAST_CHUNK)
        elif last:
            self._write(last)
        self.finished = True
        await self.agent.drained()

    def end_now(self) -> None:
        """Write the end of the message without waiting, because turnlog stops."""
        if self._chunked and (transport := self._transport) is not None:
            transport.write(_LAST_CHUNK)

    def abort(self) -> None:
        """End the connection in a way that a cut answer cannot look whole."""
        transport = self.agent.transport
        if transport is None:
            return
        if self._until_close and not self.finished:
            # Without this even an abort ends the stream in the orderly way.
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET
            )
            transport.abort()
        else:
            transport.close()

    def fail(self, data: bytes) -> None:
        """Write a whole answer in place of one that turnlog failed to make; cut one that has begun, and
        give HEAD no body."""
        if self._transport is None:
            return
        if self.begun:
            self.abort()
        else:
            head, end, _ = data.partition(b"\r\n\r\n")
            self._write(head + end if self.asked.method == _HEAD else data, is_start=True)
        self.finished = True

    async def is_taken(self) -> bool:
        """Return whether the agent did not leave before the answer, just written, reached it."""
        # An agent that has left before answers it by a reset; one that has read it may just close.
        self._is_quiet = True
        try:
            for wait in DOUBT:
                if self._transport is None:
                    return False
                if not self.has_ended:
                    return True
                await asyncio.sleep(wait)
            return self._transport is not None
        finally:
            self._is_quiet = False

    def done(self) -> bool:
        """Release the connection; return whether it can carry another request."""
        self.agent.answering = None
        return self.finished and self.asked.keeps and not self._until_close

    def _head(self, status: int, reason: bytes, lines: bytes) -> bytes:
        return b"HTTP/1.1 %d %b%b%b\r\n\r\n" % (status, reason, lines, self._keeps())

    def _keeps(self) -> bytes:
        """Return the line that says whether the connection stays, where it has to be said."""
        if not self.asked.keeps or self._until_close or self.agent.is_last:
            return b"\r\nConnection: close"
        return b"" if self.asked.version >= _HTTP_1_1 else b"\r\nConnection: keep-alive"

    @property
    def _transport(self) -> asyncio.Transport | None:
        """The transport, if it can be written to."""
        transport = self.agent.transport
        return None if transport is None or transport.is_closing() else transport

    def _write(self, data: bytes, *, is_start: bool = False) -> None:
        """Write data; what begins like any answer without what was sent of that before its time."""
        if is_start and self._ahead:
            data, self._ahead = data[self._ahead :], 0
        transport = self.agent.transport
        if transport is None or transport.is_closing():
            raise AgentGone("the agent closed its connection")
        transport.write(data)


def _chunk(data: bytes) -> bytes:
    """Return data as a chunk (RFC 9112, 7.1); nothing for none, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
