"""A command's process: the wait for its first message, its pipes, and its end. `child` starts it.

It is over once nothing that it has started can write any more; where it is to end and does not, it is
closed, terminated and killed, in this order.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol

from turnlog.core.kinds import ErrorKind
from turnlog.engine.services import own_tasks
from turnlog.engine.tools.tool_cache import ActiveRules
from turnlog.observe.events import Log, ProcessEnded, ProcessFailed, StrayOutput
from turnlog.record.recorder import Recorder
from turnlog.rules.expression import UNREADABLE
from turnlog.rules.policy import Subject
from turnlog.transport.async_pipes import ReadEnd, WriteEnd
from turnlog.transport.child_process import Child
from turnlog.transport.outbox import Outbox
from turnlog.wire.message import is_length_header

GRACE: Final = 1.0
"""s: how long a command may take to end by itself."""
LAST_WORDS: Final = 0.25
"""s: how long its last output may take to come, or to be read."""
KILLED: Final = 0.4
"""s: how long after SIGTERM whatever is left of it is killed."""
_FRAMED: Final = (
    "it frames its messages with Content-Length, as the Language Server Protocol does; "
    "MCP over stdio is one message a line"
)
"""Logged for a command that speaks something else, and is not understood."""
_ENDED: Final = "it ended before it answered anything"
"""Logged for a command that failed to start."""
_STARTUP: Final = 600.0
"""s: a command may have to be downloaded and built before it starts."""


class Startup:
    """The wait for the first message of a command, from the first request to it.

    `limit` is in s; `expired` is called when it is reached.
    """

    def __init__(self, limit: float, expired: Callable[[], None]) -> None:
        self._limit = limit
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        self.heard = False
        """Whether a message has come."""
        self.over = False
        """Whether the limit was reached before one came."""
        self._framed = False
        """Whether it was seen to speak something else than lines."""

    @property
    def is_awaited(self) -> bool:
        """Whether a request was sent, and no message has ever come."""
        return self._asked and not self.heard

    @property
    def detail(self) -> str:
        """Return why the limit was reached, or would be."""
        if self._framed:
            return _FRAMED
        return f"the limit timeout.startup of {self._limit:g} s was reached"

    def on_request(self) -> None:
        """Start the limit with the first request."""
        if self._asked:
            return
        self._asked = True
        if not self.heard and self._limit < inf:
            self._timer = asyncio.get_running_loop().call_later(self._limit, self._reached)

    def on_message(self) -> None:
        """Mark the command as started."""
        self.heard = True
        self.close()

    def is_foreign(self, line: bytes) -> bool:
        """Return whether a line that is no message is the first that shows that none will come."""
        if self._framed or self.heard or not is_length_header(line):
            return False
        self._framed = True
        return True

    def close(self) -> None:
        """Stop the limit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def loss(self, *, untouched: bool) -> ErrorKind:
        """Return how open calls fail when the command ends; `untouched` if it has read nothing."""
        if self.over:
            return ErrorKind.CONNECT_TIMEOUT if untouched else ErrorKind.RESPONSE_TIMEOUT
        return ErrorKind.CONNECT_FAILED if untouched else ErrorKind.CONNECTION_LOST

    def _reached(self) -> None:
        self.over = True
        self._expired()


def startup_limit(rules: ActiveRules, server: str) -> float:
    """Return `timeout.startup` of a server, in s, by the rules that match all requests to it."""
    subject = Subject(server=server, tool="", method="initialize")
    limit = rules.book.policy(subject, lambda: UNREADABLE).timeout.startup
    return _STARTUP if limit is None else limit


class OutputReader(Protocol):
    """Reads the output of a command."""

    def on_output(self, chunk: bytes) -> None:
        """Read a piece of its output."""

    async def wait_for_room(self) -> None:
        """Wait while too much of it is unread by its clients: no more is read meanwhile."""

    def remove_limit(self) -> None:
        """End that wait for good: little is to come, and nobody may read it."""

    def on_input_closed(self) -> None:
        """Note that the command reads no more of its input."""

    async def on_output_end(self) -> None:
        """Handle the end of its output; when this returns the command is to end."""


class Process:
    """A running command."""

    def __init__(
        self,
        child: Child,
        server: str,
        recorder: Recorder,
        log: Log,
        limit: float,
        on_overdue: Callable[[], None] = lambda: None,
    ) -> None:
        """`limit` is for its first message, in s; `on_overdue` is called when that is reached."""
        self.startup = Startup(limit, self._on_overdue)
        self._on_overdue_given = on_overdue
        self._server = server
        self._log = log
        self._has_failed = False
        self._loop = asyncio.get_running_loop()
        self.child = child
        self.pid = child.pid
        self._stdout = ReadEnd(child.stdout)
        self.stdin = WriteEnd(child.stdin, own=True)
        self.outbox = Outbox(self.stdin, recorder)
        """Its input."""
        self._exited = _exit_of(child)
        self.leaving: asyncio.Future[None] = self._loop.create_future()
        """Done once it is to end."""
        self._left_at = 0.0

    def leave(self) -> None:
        """Close its input; it ends by itself, or is ended soon."""
        if not self.leaving.done():
            self._left_at = self._loop.time()
            self.leaving.set_result(None)

    @property
    def last_words(self) -> float:
        """For how many s its last output may yet be read: what is left of the time for its end."""
        spent = self._loop.time() - self._left_at
        return max(LAST_WORDS, GRACE + KILLED + LAST_WORDS - spent)

    def _on_overdue(self) -> None:
        """End it: its first message takes too long."""
        self.log_failure(self.startup.detail)
        self._on_overdue_given()
        # Its input is closed later, so that it is known whether it has read any.
        self.child.send(signal.SIGTERM)
        self._loop.call_later(KILLED, self.leave)

    def log_failure(self, reason: str, code: int | None = None) -> None:
        """Log that it did not work, once."""
        if not self._has_failed:
            self._has_failed = True
            self._log.emit(ProcessFailed(server=self._server, reason=reason, exit_code=code))

    def log_stray(self, line: bytes, size: int) -> None:
        """Log a line that is no message: something else in the command writes to its stdout."""
        if self.startup.is_foreign(line):
            self.log_failure(_FRAMED)
        self._log.emit(StrayOutput(server=self._server, size=size))

    def log_end(self, code: int, *, has_failed: bool) -> None:
        """Log its end; `has_failed` is whether it should have answered something before."""
        self.startup.close()
        if has_failed:
            self.log_failure(_ENDED, code)
        self._log.emit(ProcessEnded(server=self._server, pid=self.pid, exit_code=code))

    async def run(self, reader: OutputReader) -> int:
        """Carry input and output until the command has ended, or is ended.

        Returns its exit code, below zero for a signal's number.
        """
        timers: list[asyncio.TimerHandle] = []

        def on_exit(_: "asyncio.Future[int]") -> None:
            timers.append(self._loop.call_later(LAST_WORDS, self._left_behind, reader))

        self._exited.add_done_callback(on_exit)
        try:
            async with own_tasks() as tasks:
                writing = tasks.create_task(self._write(reader))
                reading = tasks.create_task(self._read(reader))
                await self._end(reading, reader)
                await reading
                writing.cancel()
        finally:
            self._exited.remove_done_callback(on_exit)
            for timer in timers:
                timer.cancel()
            self.child.send(signal.SIGKILL)
            self._stdout.close()
            os.close(self.child.stdout)
        return await self._exited

    async def _write(self, reader: OutputReader) -> None:
        try:
            await self.outbox.run()
        except BrokenPipeError:
            reader.on_input_closed()

    async def _read(self, reader: OutputReader) -> None:
        while chunk := await self._stdout.read():
            reader.on_output(chunk)
            await reader.wait_for_room()
        # Its pipes close one after another: by its exit it is known whether it has read its input.
        await asyncio.wait({self._exited}, timeout=LAST_WORDS)
        await reader.on_output_end()
        self.leave()

    async def _end(self, reading: "asyncio.Task[None]", reader: OutputReader) -> None:
        """End the command, once it is to end. `reading` is done when nothing can write any more."""
        await asyncio.wait({self.leaving})
        self.outbox.close()
        over: set[asyncio.Future[Any]] = {self._exited, reading}
        for number, within in ((signal.SIGTERM, GRACE), (signal.SIGKILL, KILLED)):
            _, left = await asyncio.wait(over, timeout=within)
            if not left:
                return
            self.child.send(number)
        await asyncio.wait({self._exited})
        self._abandon(reader)

    def _left_behind(self, reader: OutputReader) -> None:
        """End what the command has left behind, unless that may be the server."""
        # A launcher that has done its work exits with 0, and what it has started reads on.
        if self._exited.result() or not self.stdin.is_read:
            self._abandon(reader)

    def _abandon(self, reader: OutputReader) -> None:
        """Kill what is left, and read only what has been written already."""
        self.child.send(signal.SIGKILL)
        self._stdout.abandon()
        reader.remove_limit()


def _exit_of(child: Child) -> "asyncio.Future[int]":
    """Return the future exit code of a command, below zero for a signal's number."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()

    def on_exit(code: int) -> None:
        if not exited.done():
            exited.set_result(code)

    def wait() -> None:
        code = child.process.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_exit, code)

    threading.Thread(target=wait, name="turnlog-wait", daemon=True).start()
    return exited
