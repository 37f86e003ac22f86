"""A wrapped command: relays and records between an agent and the command that it has started.

It ends with the command. When the agent closes its input, the command gets the end of its own and ends
by itself. A command whose agent is gone, or that is told to end by a signal, is ended soon after.
"""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec import Struct

from turnlog.engine.command.process import GRACE, Process, startup_limit
from turnlog.engine.context import Context
from turnlog.engine.request_identity import Request
from turnlog.engine.services import own_tasks
from turnlog.transport.async_pipes import AgentPipes, ReadEnd, WriteEnd
from turnlog.transport.child_process import Child
from turnlog.transport.outbox import Outbox
from turnlog.wire.jsonrpc import Batch, Malformed, Message, messages_of
from turnlog.wire.message import LinePiece, LineReader

from .pipe_carrier import OpenLines
from .server_lines import ServerLines
from .stdio_handler import StdioHandler

MOST: Final = 16 << 20
"""bytes: a longer line of the agent is recorded by its start."""
_QUEUED: Final = 64
"""Lines of the agent that wait for the disk before no more are read."""
_LAST_LOOKS: Final = 3
"""Times `GRACE` that an agent which asks on is answered when its command has ended."""
STALL_LIMIT: Final = 600.0
"""s: an agent that reads nothing for so long is not waited for at the end, nor a command that writes
nothing after its input was closed (no default limit is shorter)."""
_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that ask to end; others are only passed on."""
_STDIN: Final = 0
_STDOUT: Final = 1


class Line(Struct, frozen=True):
    """A line of the agent, or a piece of one, and its content where it is whole."""

    piece: LinePiece
    content: Message | Batch | Malformed | None
    may_wait: bool
    """Whether it may hold a call, which waits for the disk."""


class Wrapped:
    """One command and the agent that has started it."""

    def __init__(
        self,
        child: Child,
        context: Context,
        request: Request,
        *,
        stdin: int = _STDIN,
        stdout: int = _STDOUT,
        stall_limit: float = STALL_LIMIT,
    ) -> None:
        """`stdin` and `stdout` are the descriptors of the agent's pipes; `stall_limit` is in s."""
        limit = startup_limit(context.rules, request.server)
        self._process = Process(child, request.server, context.recorder, context.log, limit)
        self._context = context
        self._agent = ReadEnd(stdin)
        self._agent_end = WriteEnd(stdout, own=False)
        self._to_agent = Outbox(self._agent_end, context.recorder)
        self._to_server = self._process.outbox
        self._startup = self._process.startup
        agent = AgentPipes(stdin, self._agent_end)
        self._open = OpenLines(context, self._to_server, self._to_agent)
        self._handler = StdioHandler(self._open, request, agent, self._process)
        self._server_lines = ServerLines(self._handler)
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(_QUEUED)
        self._asked = False
        """Whether the agent has sent anything since that was looked at."""
        self._may_wait = 0
        """Lines of the agent, not passed on yet, that may wait for the disk."""
        self._told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once a signal asks to end."""
        self._stall_limit = stall_limit
        self._output = 0
        """Bytes that the command has written."""

    async def relay(self) -> int:
        """Relay until the command has ended; return its exit code, below zero for a signal's."""
        async with own_tasks() as tasks, self._open.running(tasks):
            self._reading = tasks.create_task(self._read_agent())
            self._delivery = tasks.create_task(self._write_agent())
            others = map(tasks.create_task, (self._forward(tasks), self._watch_server()))
            running = [self._reading, self._delivery, *others]
            code = await self._process.run(self)
            for task in running:
                task.cancel()
        self._agent.close()
        self._process.log_end(code, has_failed=self._startup.is_awaited)
        return code

    def on_signal(self, number: signal.Signals) -> None:
        """Pass a signal on; after one that asks to end begin no attempt any more."""
        self._process.child.send(number)
        if number not in _ENDING:
            return
        if not self._told.done():
            self._told.set_result(None)
        self._context.stop.set()
        self._process.leave()

    # -- the agent ---------------------------------------------------------------------------

    async def _read_agent(self) -> None:
        reader = LineReader(MOST)
        while chunk := await self._agent.read():
            self._asked = True
            for piece in reader.feed(chunk):
                await self._queue(piece)
        for piece in reader.finish():
            await self._queue(piece)
        await self._lines.put(None)

    async def _queue(self, piece: LinePiece) -> None:
        """Queue a line, unless it answers a request of the server: that must not wait for a call."""
        whole = piece.starts and piece.ends
        content = self._handler.read(piece.raw) if whole else None
        if isinstance(content, Message) and self._handler.answers_question(content):
            if not self._may_wait:
                await self._lines.join()
            self._to_server.line(piece.raw)
            return
        may_wait = content is None or _may_wait(content)
        self._may_wait += may_wait
        await self._lines.put(Line(piece, content, may_wait))

    async def _forward(self, tasks: asyncio.TaskGroup) -> None:
        while line := await self._lines.get():
            if line.content is not None:
                await self._handler.forward(line.content, line.piece.raw)
            else:
                await self._handler.forward_piece(line.piece)
            self._may_wait -= line.may_wait
            await self._to_server.wait_for_room()
            self._lines.task_done()
        self._lines.task_done()
        await self._on_input_end(tasks)

    async def _on_input_end(self, tasks: asyncio.TaskGroup) -> None:
        """Close the command's input, and end the command where it does not end by itself."""
        sent = tasks.create_task(self._open.until(lambda: self._open.is_all_sent))
        idle = tasks.create_task(self._open.until(lambda: self._open.is_idle))
        left = tasks.create_task(self._unread())
        try:
            await asyncio.wait({sent, left}, return_when=asyncio.FIRST_COMPLETED)
            self._to_server.close()
            await asyncio.wait({idle, left}, return_when=asyncio.FIRST_COMPLETED)
            if left.done() and self._startup.is_awaited:
                self._process.log_failure("it has answered nothing yet, and its client has left")
            # Nothing more is due, but the agent may read what the command still writes.
            await done_or_stalled({left}, lambda: self._output, self._stall_limit)
        finally:
            for task in (sent, idle, left):
                task.cancel()
        self._process.leave()

    async def _unread(self) -> None:
        """Wait until the agent is gone."""
        await self._agent_end.unread()
        self._open.on_left()

    async def _write_agent(self) -> None:
        try:
            await self._to_agent.run()
        except BrokenPipeError:
            self._open.on_left()
            self._process.leave()

    # -- the command -------------------------------------------------------------------------

    async def _watch_server(self) -> None:
        # The agent would meet a closed pipe; its calls end as they would then.
        await self._process.stdin.unread()
        self._to_server.close()

    def on_output(self, chunk: bytes) -> None:
        """Pass the command's output on."""
        self._output += len(chunk)
        self._server_lines.feed(chunk)

    async def wait_for_room(self) -> None:
        """Wait while the agent reads slowly."""
        await self._to_agent.wait_for_room()

    def remove_limit(self) -> None:
        """End that wait for good."""
        self._to_agent.remove_limit()

    def on_input_closed(self) -> None:
        """Read on: the command may yet answer what it has read."""

    async def on_output_end(self) -> None:
        """End what is open, and wait until the agent has read it, or does not want to."""
        self._server_lines.finish()
        if await self._handler.on_server_end():
            await self._answer_last_calls()
        self._to_agent.close()
        # One that closes its input first may still read, slowly, the answers that it waits for.
        over = {self._delivery, self._told}
        await done_or_stalled(over, lambda: self._agent_end.written, self._stall_limit)
        await asyncio.wait({self._delivery}, timeout=self._process.last_words)

    async def _answer_last_calls(self) -> None:
        """Answer the agent until it has been quiet for `GRACE`, so that it does not lose a call."""
        # Behind the answer that says that the command has ended it may make the next call before it
        # sees its pipe closed.
        gone = {self._reading, self._delivery, self._process.leaving}
        for _ in range(_LAST_LOOKS):
            self._asked = False
            left, _ = await asyncio.wait(gone, timeout=GRACE, return_when=asyncio.FIRST_COMPLETED)
            if left or not self._asked:
                break
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._lines.join()


def _may_wait(content: Message | Batch | Malformed) -> bool:
    """Return whether a line holds a request."""
    methods = (message.method for message in messages_of(content))
    return any(method and not method.startswith("notifications/") for method in methods)


async def done_or_stalled(
    wanted: set[asyncio.Future[None]], amount: Callable[[], int], limit: float
) -> None:
    """Wait until one of `wanted` is done, or `amount` has not changed for `limit` seconds."""
    seen = -1
    while amount() != seen:
        seen = amount()
        done, _ = await asyncio.wait(wanted, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return
