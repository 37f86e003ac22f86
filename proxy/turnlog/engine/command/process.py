"""A command's process: how it is read, written to and ended. `child` starts it.

Who talks to it is told what it says. It is over when nothing that it has started can say anything
any more; what does not end by itself, once it is to end, is ended more firmly each time.
"""

import asyncio
import os
import signal
import threading
from contextlib import suppress
from typing import Any, Final, Protocol

from turnlog.engine.services import own_tasks
from turnlog.record.recorder import Recorder
from turnlog.transport.async_pipes import ReadEnd, WriteEnd
from turnlog.transport.outbox import Outbox

from .child import Child

GRACE: Final = 1.0
"""s: how long a command may take to end by itself."""
LAST_WORDS: Final = 0.25
"""s: how long what was said last may take to come, or to be read."""
_KILLED: Final = 0.4
"""s: how long after SIGTERM whatever is left of it is killed."""


class OutputReader(Protocol):
    """Reads the output of a command."""

    def take(self, chunk: bytes) -> None:
        """Read a piece of its output."""
        ...

    async def room(self) -> None:
        """Wait while too much of that has not gone on: nothing more is read meanwhile."""
        ...

    def lift(self) -> None:
        """Wait for that no more: what comes yet is little, and nobody may read it."""
        ...

    def unheard(self) -> None:
        """Report that the command did not read what was written."""
        ...

    async def finish(self) -> None:
        """Report the end of its output; when this returns the command is to end."""
        ...


class Process:
    """A running command."""

    def __init__(self, child: Child, recorder: Recorder) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._stdout = ReadEnd(child.stdout)
        self._stdin = WriteEnd(child.stdin, own=True)
        self.outbox = Outbox(self._stdin, recorder)
        """What is written to it."""
        self._exited = _exit_of(child)
        self.leaving: asyncio.Future[None] = self._loop.create_future()
        """Done once it is to end."""
        self._left_at = 0.0

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def is_untouched(self) -> bool:
        """Whether nothing that was written to it has been read, or can be: it did nothing of that."""
        return self._stdin.is_untouched

    def send(self, number: int) -> None:
        """Send a signal to all that the command has started."""
        self._child.send(number)

    def leave(self) -> None:
        """Close its input; it ends by itself, or is ended soon."""
        if not self.leaving.done():
            self._left_at = self._loop.time()
            self.leaving.set_result(None)

    @property
    def last_words(self) -> float:
        """For how many s what was said last may yet be read: one that ends sooner than it has to leaves
        more of them."""
        spent = self._loop.time() - self._left_at
        return max(LAST_WORDS, GRACE + _KILLED + LAST_WORDS - spent)

    def stop(self) -> None:
        """Ask it to end, while it may be seen whether it has read anything."""
        self._child.send(signal.SIGTERM)
        self._loop.call_later(_KILLED, self.leave)

    async def unread(self) -> None:
        """Wait until it reads nothing any more."""
        await self._stdin.unread()

    async def run(self, hearer: OutputReader) -> int:
        """Carry what is said both ways until the command has ended, or is ended.

        Returns its exit code, below zero for a signal's number.
        """
        timers: list[asyncio.TimerHandle] = []

        def has_exited(_: "asyncio.Future[int]") -> None:
            timers.append(self._loop.call_later(LAST_WORDS, self._left_behind, hearer))

        self._exited.add_done_callback(has_exited)
        try:
            async with own_tasks() as tasks:
                writing = tasks.create_task(self._write(hearer))
                reading = tasks.create_task(self._read(hearer))
                await self._end(reading, hearer)
                await reading
                writing.cancel()
        finally:
            self._exited.remove_done_callback(has_exited)
            for timer in timers:
                timer.cancel()
            self._child.send(signal.SIGKILL)
            os.close(self._child.stdout)
        return await self._exited

    async def _write(self, hearer: OutputReader) -> None:
        try:
            await self.outbox.run()
        except BrokenPipeError:
            hearer.unheard()

    async def _read(self, hearer: OutputReader) -> None:
        while chunk := await self._stdout.read():
            hearer.take(chunk)
            await hearer.room()
        # The pipes of what ends close one after another; then it can be told what was read.
        await asyncio.wait({self._exited}, timeout=LAST_WORDS)
        await hearer.finish()
        self.leave()

    async def _end(self, reading: "asyncio.Task[None]", hearer: OutputReader) -> None:
        """End the command, once it is to end. `reading` is over when nothing can say anything."""
        await asyncio.wait({self.leaving})
        self.outbox.close()
        over: set[asyncio.Future[Any]] = {self._exited, reading}
        for number, within in ((signal.SIGTERM, GRACE), (signal.SIGKILL, _KILLED)):
            _, left = await asyncio.wait(over, timeout=within)
            if not left:
                return
            self._child.send(number)
        await asyncio.wait({self._exited})
        self._abandon(hearer)

    def _left_behind(self, hearer: OutputReader) -> None:
        """End what the command has left behind, unless that may be the server.

        A launcher that has done its work leaves with 0, and what it has started reads on.
        """
        if self._exited.result() or not self._stdin.is_read:
            self._abandon(hearer)

    def _abandon(self, hearer: OutputReader) -> None:
        """End what is left, and take what has been said for all there is."""
        self._child.send(signal.SIGKILL)
        self._stdout.abandon()
        hearer.lift()


def _exit_of(child: Child) -> "asyncio.Future[int]":
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
