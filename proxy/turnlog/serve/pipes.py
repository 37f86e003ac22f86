"""The ends of pipes: reading and writing without blocking the loop, whatever stands behind them.

Our own stdin and stdout may be pipes, sockets, terminals or files, and others may hold them too: to
make them non-blocking would make them so for everybody. So they are used only when the loop says
that they are ready, and written in pieces that a ready pipe takes (POSIX: PIPE_BUF).
"""

import asyncio
import os
import select
from collections.abc import Callable
from typing import Final

READ_SIZE: Final = 64 * 1024
"""bytes: the most that is read at once."""
_OWN_SIZE: Final = 256 * 1024
"""bytes: the most that is written at once to a pipe of our own."""


class ReadEnd:
    """The end that is read. Does not own its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._abandoned = False
        self._waiting: asyncio.Future[None] | None = None

    def abandon(self) -> None:
        """Take what is there yet for all there is: nobody has to close the other end."""
        self._abandoned = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def read(self) -> bytes:
        """Return what has come, nothing at the end; a connection that broke has ended."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._abandoned:
                self._waiting = loop.create_future()
                await _ready(self._descriptor, self._waiting, loop.add_reader, loop.remove_reader)
            if self._abandoned and not select.select([self._descriptor], [], [], 0)[0]:
                return b""
            try:
                return os.read(self._descriptor, READ_SIZE)
            except BlockingIOError:
                continue
            except OSError:
                return b""


class WriteEnd:
    """The end that is written. `own` tells whether nobody else holds it: then it never blocks."""

    def __init__(self, descriptor: int, *, own: bool) -> None:
        self._descriptor = descriptor
        self._most = _OWN_SIZE if own else select.PIPE_BUF
        self._closed = False
        if own:
            os.set_blocking(descriptor, False)

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raises `BrokenPipeError` when nobody reads any more."""
        loop = asyncio.get_running_loop()
        rest = memoryview(data)
        while rest:
            if self._closed:
                raise BrokenPipeError
            await _ready(
                self._descriptor, loop.create_future(), loop.add_writer, loop.remove_writer
            )
            try:
                rest = rest[os.write(self._descriptor, rest[: self._most]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise BrokenPipeError(str(error)) from error

    def close(self) -> None:
        """Close the descriptor: whoever reads meets the end."""
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


async def _ready(
    descriptor: int,
    ready: "asyncio.Future[None]",
    watch: Callable[[int, Callable[[], None]], None],
    leave: Callable[[int], bool],
) -> None:
    """Wait until a descriptor can be used; a file, which cannot be watched, always can."""

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        watch(descriptor, wake)
    except OSError:
        return
    try:
        await ready
    finally:
        leave(descriptor)
