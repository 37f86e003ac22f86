"""A network between clients and a server that can be cut."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit, urlunsplit

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""What makes a close a reset (SO_LINGER)."""
_PIECE: Final = 1 << 16


class Relay:
    """The connections that go through it."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._port = 0
        self.sent = bytearray()
        """All that clients sent and the server has, in the order in which it came."""
        self._ends: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """The server's URL, by way of the relay."""
        return urlunsplit(self._upstream._replace(netloc=f"127.0.0.1:{self._port}"))

    @property
    def calls(self) -> int:
        """How many calls of tools the server was sent."""
        return self.sent.count(b'"tools/call"')

    def cut(self) -> None:
        """Reset every connection, on both sides; new ones go through."""
        for end in self._ends:
            _reset(end)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Let connections through until the block ends."""
        async with asyncio.TaskGroup() as relaying:
            server = await asyncio.start_server(
                lambda reader, writer: relaying.create_task(self._relay(reader, writer)),
                "127.0.0.1",
                0,
            )
            self._port = server.sockets[0].getsockname()[1]
            try:
                yield
            finally:
                server.close()
                self.cut()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there, back = await asyncio.open_connection(
                self._upstream.hostname, self._upstream.port
            )
            self._ends |= {writer, back}
            try:
                await asyncio.gather(
                    _passed(reader, back, self.sent), _passed(there, writer, bytearray())
                )
            finally:
                self._ends -= {writer, back}
                writer.close()
                back.close()


async def _passed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray
) -> None:
    """Pass on what comes, a reset as well, and keep it in `seen`."""
    try:
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
            seen += piece
        writer.write_eof()
    except OSError:
        _reset(writer)


def _reset(end: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # it is closed already
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    end.transport.abort()


@asynccontextmanager
async def relay(upstream: str) -> AsyncGenerator[Relay]:
    """Relay to a server's URL until the block ends."""
    between = Relay(upstream)
    async with between.listening():
        yield between
