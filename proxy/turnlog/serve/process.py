"""A command's process as the loop sees it: lines in, lines out, and its end."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from turnlog.wire.lines import LineReader, Piece

from .child import Child
from .outbox import Outbox
from .pipes import ReadEnd, WriteEnd
from .recorder import Recorder

GRACE: Final = 1.0
"""s: how long a command may take to end once nobody talks to it any more."""
KILLED: Final = 0.4
"""s: how long after SIGTERM whatever is left of it is killed."""
LONGEST: Final = 64 << 20
"""bytes: a command that writes a longer line is ended."""
_LAST_WORDS: Final = 0.25
"""s: how long what a command wrote before its end may take to come."""
_LINE: Final = 1 << 20
"""bytes: a longer line is put together from pieces."""


class Process:
    """A running command. `take` gets each of its lines, without what ends it."""

    def __init__(self, child: Child, recorder: Recorder, take: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._server = ReadEnd(child.stdout)
        self._outbox = Outbox(WriteEnd(child.stdin, own=True), recorder)
        self._take = take
        self.exited = exit_of(child)
        self.exited.add_done_callback(self._has_exited)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def send(self, line: bytes) -> None:
        """Write a line, in its turn."""
        self._outbox.line(line)

    async def run(self) -> int:
        """Carry lines until the command has ended, or is ended; return its exit code."""
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write())
                await self._read()
                await self._end()
                writing.cancel()
        finally:
            self._child.send(signal.SIGKILL)
            os.close(self._child.stdout)
        return await self.exited

    async def room(self) -> None:
        """Wait while the command reads slowly."""
        await self._outbox.room()

    def _has_exited(self, _: "asyncio.Future[int]") -> None:
        # What it has started may hold its stdout for ever.
        self._loop.call_later(_LAST_WORDS, self._abandon)

    def _abandon(self) -> None:
        self._child.send(signal.SIGKILL)
        self._server.abandon()

    def close(self) -> None:
        """Let it end by itself, or be ended soon."""
        self._outbox.close()
        self._server.abandon()

    async def _write(self) -> None:
        # What closed its stdin may yet answer what it has got, but nothing else.
        try:
            await self._outbox.run()
        except BrokenPipeError:
            self._loop.call_later(GRACE, self.close)

    async def _read(self) -> None:
        reader = LineReader(_LINE)
        line = _Line(self._take)
        while chunk := await self._server.read():
            for piece in reader.feed(chunk):
                line.add(piece)
            if line.size > LONGEST:
                return
        for piece in reader.finish():
            line.add(piece)

    async def _end(self) -> None:
        """End what has closed its stdout, or is to end, more firmly each time."""
        self._outbox.close()
        for number, within in ((signal.SIGTERM, GRACE), (signal.SIGKILL, KILLED)):
            await asyncio.wait({self.exited}, timeout=within)
            if self.exited.done():
                return
            self._child.send(number)
        await asyncio.wait({self.exited})


class _Line:
    """Puts lines together from pieces."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._parts: list[bytes] = []
        self.size = 0

    def add(self, piece: Piece) -> None:
        self._parts.append(piece.raw)
        self.size += len(piece.raw)
        if piece.ends:
            whole = b"".join(self._parts).rstrip(b"\r\n")
            self._parts.clear()
            self.size = 0
            self._take(whole)


def exit_of(child: Child) -> "asyncio.Future[int]":
    """Return what will be the exit code of a command, below zero for a signal's number."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()

    def tell(code: int) -> None:
        if not exited.done():
            exited.set_result(code)

    def wait() -> None:
        code = child.process.wait()
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            loop.call_soon_threadsafe(tell, code)

    threading.Thread(target=wait, name="turnlog-wait", daemon=True).start()
    return exited
