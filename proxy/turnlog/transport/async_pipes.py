"""The ends of pipes: reading and writing without blocking the loop, whatever stands behind them.

Our own stdin and stdout may be pipes, sockets, terminals or files, and others may hold them too: to
make them non-blocking would make them so for everybody. So they are used only when the loop says
that they are ready, and written in pieces that a ready pipe takes (POSIX: PIPE_BUF).
"""

import asyncio
import fcntl
import os
import select
import stat
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from turnlog.host import PEER_CLOSED, TELLS_UNREAD

READ_SIZE: Final = 64 * 1024
"""bytes: the most that is read at once."""
_OWN_SIZE: Final = 256 * 1024
"""bytes: the most that is written at once to a pipe of our own."""
DOUBT: Final = (0.05,) * 20
"""s that are waited, one after another, to find out whether a caller is gone: on a network a reset takes a
round trip. This process may be stopped meanwhile, and a single wait would be over before what came is read."""


class ReadEnd:
    """The end that is read. Does not own its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._left: int | None = None
        """Bytes that are still read, once it is abandoned."""
        self._waiting: asyncio.Future[bytes] | None = None
        self._is_watched = False

    def abandon(self) -> None:
        """Read what is in the pipe now, and then report its end, though the other end stays open."""
        if self._left is None:
            self._left = _there(self._descriptor)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(self._read())

    async def read(self) -> bytes:
        """Return what has come, nothing at the end; a connection that broke has ended."""
        if self._left is not None or not self._watch():
            return self._read()
        self._waiting = self._loop.create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def _watch(self) -> bool:
        """Watch the descriptor for input; false for a file, which the loop cannot watch."""
        # It goes on between two reads: to begin and end it each time takes two calls of the system.
        if not self._is_watched:
            try:
                self._loop.add_reader(self._descriptor, self._on_readable)
            except OSError:
                return False
            self._is_watched = True
        return True

    def close(self) -> None:
        """Stop watching; before its owner closes the descriptor."""
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._descriptor)

    def _on_readable(self) -> None:
        if self._waiting is None:
            self.close()  # no read is waiting
        elif not self._waiting.done():
            # Read here: one that others may read as well must not be read where nothing is known to be.
            with suppress(BlockingIOError):
                self._waiting.set_result(self._read())

    def _read(self) -> bytes:
        size = READ_SIZE if self._left is None else min(READ_SIZE, self._left)
        try:
            data = os.read(self._descriptor, size) if size else b""
        except BlockingIOError:
            raise
        except OSError:
            data = b""
        if self._left is not None:
            self._left -= len(data)
        if not data:
            self.close()
        return data


class WriteEnd:
    """The end that is written. `own` says that no other process holds it, so it may be non-blocking."""

    def __init__(self, descriptor: int, *, own: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._own = own
        self._most = _OWN_SIZE if own else select.PIPE_BUF
        self._closed = False
        self.written = 0
        """Bytes that were written."""
        self._ended = (True, 0)
        """Whether it had a reader when it was closed, and how many bytes that had not read."""
        self._tells_unread = TELLS_UNREAD and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        if own:
            os.set_blocking(descriptor, False)

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raises `BrokenPipeError` when there is no reader."""
        rest = self.write_now(data)
        while rest:
            await _ready(self._descriptor, self._loop.add_writer, self._loop.remove_writer)
            rest = self.write_now(rest)

    def write_now(self, data: bytes | memoryview) -> memoryview:
        """Write what fits right now; return the rest. Raises `BrokenPipeError` when there is no reader."""
        rest = memoryview(data)
        while rest:
            if self._closed:
                raise BrokenPipeError
            if not (self._own or self._poll.poll(0)):
                break
            try:
                written = os.write(self._descriptor, rest[: self._most])
            except BlockingIOError:
                break
            except OSError as error:
                raise BrokenPipeError(str(error)) from error
            self.written += written
            rest = rest[written:]
        return rest

    @property
    def is_read(self) -> bool:
        """Whether the pipe has a reader; of a closed end, whether it had one then."""
        return self._ended[0] if self._closed else not _has_event(self._descriptor)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing that was written has been read, and nothing will be."""
        return not (self.is_read or self.taken)

    @property
    def taken(self) -> int:
        """How many of the bytes that were written have been read, as far as known, else all."""
        return self.written - (self._ended[1] if self._closed else self._unread())

    def _unread(self) -> int:
        """Return how many bytes its reader has not read, 0 if that is unknown."""
        # They stay while this end is open, also when the reader has closed the other one.
        return _there(self._descriptor) if self._tells_unread else 0

    async def unread(self) -> None:
        """Wait until the pipe has no reader, or is closed here; a file or a terminal always has one."""
        if self._closed:
            return
        # To wait for something to read is to wait for an error as well (epoll_ctl(2), EPOLLERR).
        await _ready(self._descriptor, self._loop.add_reader, self._loop.remove_reader)
        if not _has_event(self._descriptor):
            await self._loop.create_future()

    def close(self) -> None:
        """Close the descriptor: its reader gets the end of the stream."""
        if not self._closed:
            self._ended = (self.is_read, self._unread())
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)


class AgentPipes:
    """The process at the other ends of our stdin and stdout."""

    def __init__(self, stdin: int, stdout: WriteEnd) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._may_be_gone = True

    async def is_gone(self) -> bool:
        """Return whether it has closed both.

        One that has closed our stdin may only have no more to say (`printf ... | turnlog wrap`): it is
        given a moment, once, to close the other as well.
        """
        if self._stdout.is_read and self._may_be_gone and is_ended(self._stdin):
            for wait in DOUBT:
                if not self._stdout.is_read:
                    break
                await asyncio.sleep(wait)
            self._may_be_gone = not self._stdout.is_read
        return not self._stdout.is_read


def is_ended(descriptor: int) -> bool:
    """Return whether the writer of a pipe or socket has closed it, even if there is data left to read."""
    # After a pause of this process the end may lie behind much data.
    return _has_event(descriptor, PEER_CLOSED)


def _has_event(descriptor: int, event: int = 0) -> bool:
    """Return whether all descriptors of the other end are closed, or there is such an event."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(0))


def _there(descriptor: int) -> int:
    """Return how many bytes of a pipe can be read right now."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


async def _ready(
    descriptor: int,
    watch: Callable[[int, Callable[[], None]], None],
    leave: Callable[[int], bool],
) -> None:
    """Wait until a descriptor can be used; a file, which cannot be watched, always can."""
    ready = asyncio.Event()
    try:
        watch(descriptor, ready.set)
    except OSError:
        return
    try:
        await ready.wait()
    finally:
        leave(descriptor)
