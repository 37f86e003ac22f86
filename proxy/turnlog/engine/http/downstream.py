"""The agent's side of one HTTP exchange: its request as it came, the answer byte for byte.

aiohttp parses requests and owns connections; answers are written below its response classes,
which would add fields of their own and split head from body.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web
from aiohttp.streams import StreamReader

from turnlog.transport.request_heads import AgentRequest

from .agent_connection import UNFINISHED, AgentConnection

_AT_ONCE: Final = b"\1\0\0\0\0\0\0\0"
"""For SO_LINGER: to close is to reset."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_START: Final = b"HTTP/1.1 "
"""What every answer begins with, interim ones too, whatever the agent's version."""
_HEAD: Final = "HEAD"
"""The method whose answers never have a body (RFC 9110, 9.3.2)."""
_ZEROS: Final = b"0" * 7
"""May stand before the size of a chunk (RFC 9112, 7.1); some parsers stop at 16 digits."""


class Gone(Exception):
    """The agent's side closed its connection."""


class Downstream:
    """One request of the agent, and the answer to it. Raises `Gone` where the agent left."""

    _chunked = False
    _until_close = False
    _invited = False
    _ahead = 0
    """How many bytes of `_START`, or of `_ZEROS`, were sent before their time."""
    begun = False
    """Whether the answer's head has left."""
    finished = False

    def __init__(self, agent: AgentConnection, request: AgentRequest) -> None:
        self._agent = agent
        self.content = request.body
        """The body: all of it, or what it is read from."""
        self.asked = start = request.start
        """Its line and fields, without Content-Length."""
        self.method = start.method
        self.target = start.target
        self.headers = request.headers
        self.raw = start.head.raw
        """The fields without Content-Length."""
        self.head = start.head
        agent.answering = self
        if agent.half_closed:
            self.ask()

    @property
    def has_ended(self) -> bool:
        """Whether the agent has ended its side of the connection, and perhaps both."""
        return self._agent.has_ended

    async def read(self, limit: int) -> tuple[bytes, bool]:
        """Return the body and whether that is all of it; stop early above `limit` bytes."""
        content = self.content
        if isinstance(content, bytes):
            return content, True
        if content.at_eof():
            return b"", True
        self._invite()
        pieces: list[bytes] = []
        size = 0
        while size <= limit:
            if not (piece := await self._piece(content)):
                return b"".join(pieces), True
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces), content.at_eof()

    async def rest(self, start: bytes) -> AsyncIterator[bytes]:
        """Yield `start` and then what is left of a body too large to be held."""
        assert not isinstance(self.content, bytes)  # that is never too large
        yield start
        while piece := await self._piece(self.content):
            yield piece

    async def _piece(self, content: StreamReader) -> bytes:
        """Return what has come of the body; nothing at its end. Wait for the agent, but not for ever."""
        limit = asyncio.timeout(UNFINISHED)
        try:
            async with limit:
                return await content.readany()
        except web.RequestPayloadError as error:
            raise Gone(str(error)) from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            self._agent.give_up()
            raise Gone("the agent does not go on with its request") from error

    def _invite(self) -> None:
        # RFC 9110 section 10.1.1: whoever waits for 100 (Continue) sends no body before it.
        # HTTP/1.0 knows no interim answers, and its Expect is ignored.
        if self._invited or self.asked.version < (1, 1):
            return
        if self.head.fields.get(b"expect", b"").lower() == b"100-continue":
            self._invited = True
            self._write_start(_CONTINUE)

    def interim(self, status: int, reason: bytes, lines: bytes) -> None:
        """Forward an interim answer (1xx) at once; HTTP/1.0 knows none (RFC 9110, 15.2)."""
        transport = self._agent.transport
        if self.begun or self.asked.version < (1, 1) or transport is None:
            return
        if not transport.is_closing():
            self._write_start(b"HTTP/1.1 %d %b%b\r\n\r\n" % (status, reason, lines))

    def ask(self) -> bool:
        """Send a byte that any answer to come will have, to see whether the agent is there.

        Return false where no such byte is known: amid a body that is not sent in chunks.
        """
        if self.finished:
            return True
        if self.begun and not self._chunked:
            return False
        sure = _ZEROS if self._chunked else _START
        byte = sure[self._ahead : self._ahead + 1]
        transport = self._agent.transport
        if byte and transport is not None and not transport.is_closing():
            self._ahead += 1
            transport.write(byte)
        return True

    async def answer(self, status: int, reason: bytes, lines: bytes, body: bytes) -> None:
        """Write a whole answer in one piece; to HEAD without its body, whose length stands all the same.

        Here and below `lines` are fields, each with CRLF before it, without any of framing.
        """
        length = b"\r\nContent-Length: %d" % len(body)
        head = self._head(status, reason, lines, length)
        self._write_start(head if self.method == _HEAD else head + body)
        self.begun = self.finished = True
        if self._agent.writing_paused:
            await self._drain()

    async def bodiless(self, status: int, reason: bytes, lines: bytes) -> None:
        """Write an answer that never has a body (to HEAD; 204; 304); a length may be given."""
        self._write_start(self._head(status, reason, lines))
        self.begun = self.finished = True
        await self._drain()

    async def start(self, status: int, reason: bytes, lines: bytes, length: int | None) -> None:
        """Write a head whose body follows: `length` bytes, or `None` when nobody knows yet."""
        if length is not None:
            lines += b"\r\nContent-Length: %d" % length
        elif self.asked.version >= (1, 1):
            lines += b"\r\nTransfer-Encoding: chunked"
            self._chunked = True
        else:
            self._until_close = True
        self._write_start(self._head(status, reason, lines))
        self.begun = True
        await self._drain()

    async def write(self, data: bytes) -> None:
        """Write a piece of the body; wait while the agent reads slowly."""
        if data:
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            self._ahead = 0
            if self._agent.writing_paused:
                await self._drain()

    async def end(self, last: bytes = b"") -> None:
        """Write the last piece and the end of the message."""
        if self._chunked:
            piece = b"%x\r\n%b\r\n" % (len(last), last) if last else b""
            self._write(piece + b"0\r\n\r\n")
        elif last:
            self._write(last)
        self.finished = True
        await self._drain()

    def end_now(self) -> None:
        """Write the end of the message without waiting, because turnlog stops."""
        transport = self._agent.transport
        if self._chunked and transport is not None and not transport.is_closing():
            transport.write(b"0\r\n\r\n")

    def abort(self) -> None:
        """End the connection in a way that a cut answer cannot look whole."""
        transport = self._agent.transport
        if transport is None:
            return
        if self._until_close and not self.finished:
            # Without this even an abort ends the stream in the orderly way.
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE
            )
            transport.abort()
        else:
            transport.close()

    def fail(self, data: bytes) -> None:
        """Write a whole answer in place of one that turnlog failed to make; cut one that has begun, and
        give HEAD no body."""
        transport = self._agent.transport
        if transport is None or transport.is_closing():
            return
        if self.begun:
            self.abort()
        else:
            head, end, _ = data.partition(b"\r\n\r\n")
            self._write_start(head + end if self.method == _HEAD else data)
        self.finished = True

    def done(self) -> bool:
        """Let go of the connection; tell whether it can carry another request."""
        self._agent.answering = None
        return self.finished and self.asked.keeps and not self._until_close

    @property
    def version(self) -> str:
        """HTTP version of the request, such as `1.1`."""
        major, minor = self.asked.version
        return f"{major}.{minor}"

    def _head(self, status: int, reason: bytes, lines: bytes, length: bytes = b"") -> bytes:
        keep = b""
        if not self.asked.keeps or self._until_close or self._agent.is_last:
            keep = b"\r\nConnection: close"
        elif self.asked.version < (1, 1):
            keep = b"\r\nConnection: keep-alive"
        return b"HTTP/1.1 %d %b%b%b%b\r\n\r\n" % (status, reason, lines, length, keep)

    def _write_start(self, data: bytes) -> None:
        """Write what begins like any answer, but for what was sent ahead of it."""
        self._write(data[self._ahead :] if self._ahead else data)
        self._ahead = 0

    def _write(self, data: bytes) -> None:
        transport = self._agent.transport
        if transport is None or transport.is_closing():
            raise Gone("the agent closed its connection")
        transport.write(data)

    async def _drain(self) -> None:
        try:
            await self._agent.drained()
        except ConnectionError as error:
            raise Gone(str(error)) from error
