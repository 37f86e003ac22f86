"""Stand between a client and the command that it has started: relay, record, and end with it.

The command's end is the end. When its client has gone, or when told to stop, it is given a moment;
then whatever is left of it is ended.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from turnlog.core.identity import VendorTable, wanted_variables
from turnlog.observe.events import Log, ProcessEnded, ProcessFailed, ProxyReady
from turnlog.observe.logs import StandardLogging, configure
from turnlog.packs.find import find_pack, packs_folder
from turnlog.packs.load import load
from turnlog.store.folder import translated
from turnlog.wire.http import Headers
from turnlog.wire.jsonrpc import Batch, Malformed, Message, parse
from turnlog.wire.lines import LineReader, Piece
from turnlog.wire.message import MessageReader

from .child import Child
from .context import Context
from .given_up import Opening
from .heads import RequestHead
from .outbox import Outbox
from .pins import Pins
from .pipe import Pipe
from .pipes import ReadEnd, WriteEnd
from .recording import own_tasks, recording
from .request import Request
from .routes import Route, Target
from .settings import Settings
from .signals import Signals

HELD: Final = 1 << 20
"""bytes: a longer line of the command's leaves while it comes, but for its last piece."""
MOST: Final = 16 << 20
"""bytes: a longer line of the client's is recorded by its start."""
GRACE: Final = 1.0
"""s: how long a command may take to end by itself."""
_KILLED: Final = 0.4
"""s: how long after SIGTERM whatever is left of it is killed."""
_LAST_WORDS: Final = 0.25
"""s: how long what was said last may take: by a command that has failed, to a client that goes."""
_QUEUED: Final = 64
"""Lines of the client's that wait for the disk before no more are read."""
_LOG_SIZE: Final = 16 << 20
"""bytes: a longer log is set aside when a command is wrapped."""
_STDIN: Final = 0
_STDOUT: Final = 1


class Line(Struct, frozen=True):
    """A line of the client's, or a piece of one, and what it says where it is whole."""

    piece: Piece
    content: Message | Batch | Malformed | None


class Wrapped:
    """One command and the client that has started it."""

    def __init__(self, child: Child, context: Context, request: Request) -> None:
        self._child = child
        self._context = context
        self._agent = ReadEnd(_STDIN)
        self._server = ReadEnd(child.stdout)
        self._agent_end = WriteEnd(_STDOUT, own=False)
        self._to_agent = Outbox(self._agent_end, context.recorder)
        self._server_end = WriteEnd(child.stdin, own=True)
        self._to_server = Outbox(self._server_end, context.recorder)
        self._pipe = Pipe(context, request, self._to_agent, self._to_server)
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(_QUEUED)
        self._exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._name = request.server
        self._has_failed = False
        self._leaving = asyncio.Event()
        """Whether the command is to end: nobody is there, or comes, that wants anything of it."""

    async def relay(self) -> int:
        """Relay until the command has ended; return its exit code, below zero for a signal's."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait, args=(loop,), daemon=True).start()
        self._exited.add_done_callback(self._has_exited)
        try:
            async with own_tasks() as tasks, self._pipe.attempts(tasks):
                await self._relay(tasks)
        finally:
            self._child.send(signal.SIGKILL)
        code = await self._exited
        if self._pipe.said_nothing:
            self._failed(f"it ended before it answered anything (exit code {code})")
        return code

    async def _relay(self, tasks: asyncio.TaskGroup) -> None:
        chores = (
            self._read_agent(),
            self._forward(tasks),
            self._write_server(),
            self._watch_server(),
        )
        running = [tasks.create_task(chore) for chore in chores]
        delivery = tasks.create_task(self._write_agent())
        reading = tasks.create_task(self._read_server())
        ending = tasks.create_task(self._end(reading))
        await reading
        await self._pipe.lost("the command has ended")
        self._to_agent.close()
        # Who does not read is waited for until the command is to end.
        await asyncio.wait({delivery, ending}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({delivery}, timeout=_LAST_WORDS)
        self._leaving.set()
        await ending
        for task in (*running, delivery):
            task.cancel()

    def told(self, number: signal.Signals) -> None:
        """Pass a signal on, and begin no attempt any more."""
        self._child.send(number)
        self._pipe.stop()
        self._leaving.set()

    def _failed(self, reason: str) -> None:
        """Log that nothing came of the command, once."""
        if not self._has_failed:
            self._has_failed = True
            self._context.log.emit(ProcessFailed(server=self._name, reason=reason))

    # -- the four ways ---------------------------------------------------------------------

    async def _read_agent(self) -> None:
        reader = LineReader(MOST)
        while chunk := await self._agent.read():
            for piece in reader.feed(chunk):
                await self._take(piece)
        for piece in reader.finish():
            await self._take(piece)
        await self._lines.put(None)

    async def _take(self, piece: Piece) -> None:
        """Let a line wait for its turn, unless it answers the server: that must not wait."""
        content = parse(piece.raw) if piece.starts and piece.ends else None
        if not isinstance(content, Message) or not self._pipe.answered(content, piece.raw):
            await self._lines.put(Line(piece, content))

    async def _forward(self, tasks: asyncio.TaskGroup) -> None:
        while line := await self._lines.get():
            if line.content is not None:
                await self._pipe.forward(line.content, line.piece.raw)
            else:
                await self._pipe.forward_piece(line.piece)
            await self._to_server.room()
        self._to_server.close()
        self._pipe.deaf = True
        # Nobody is waited for who died with a call open.
        over = {
            tasks.create_task(self._pipe.idle.wait()),
            tasks.create_task(self._unread()),
        }
        first = asyncio.FIRST_COMPLETED
        _, rest = await asyncio.wait(over, timeout=GRACE, return_when=first)
        if self._pipe.said_nothing:
            self._failed("it has answered nothing yet, and its client has left")
        if len(rest) == len(over):
            _, rest = await asyncio.wait(over, return_when=first)
        for task in rest:
            task.cancel()
        self._leaving.set()

    async def _unread(self) -> None:
        """Wait until the agent is gone."""
        await self._agent_end.unread()
        self._pipe.left()

    async def _read_server(self) -> None:
        reader = LineReader(HELD)
        incoming = Incoming(self._pipe, self._to_agent)
        while chunk := await self._server.read():
            for piece in reader.feed(chunk):
                incoming.take(piece)
            await self._to_agent.room()
        for piece in reader.finish():
            incoming.take(piece)

    async def _write_server(self) -> None:
        # A server that closed its stdin may yet answer what it has got.
        with suppress(BrokenPipeError):
            await self._to_server.run()

    async def _watch_server(self) -> None:
        # The client would meet a closed pipe; its calls end as they would then.
        await self._server_end.unread()
        self._pipe.deaf = True

    async def _write_agent(self) -> None:
        try:
            await self._to_agent.run()
        except BrokenPipeError:
            self._pipe.left()
            self._to_server.close()
            self._leaving.set()

    # -- the end ---------------------------------------------------------------------------

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._child.process.wait()
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            loop.call_soon_threadsafe(self._exited.set_result, code)

    def _has_exited(self, exited: "asyncio.Future[int]") -> None:
        """Wait for what a command has left behind only where it did not fail: that may be a server."""
        if exited.result():
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._abandon)

    def _abandon(self) -> None:
        """End what the command has left behind, and take what it has said for all there is."""
        self._child.send(signal.SIGKILL)
        self._server.abandon()

    async def _end(self, reading: "asyncio.Task[None]") -> None:
        """End the command, once it is to end, more firmly each time.

        `reading` is over when nothing that it has started can say anything any more.
        """
        await self._leaving.wait()
        self._to_server.close()
        over: set[asyncio.Future[Any]] = {self._exited, reading}
        for number, within in ((signal.SIGTERM, GRACE), (signal.SIGKILL, _KILLED)):
            _, left = await asyncio.wait(over, timeout=within)
            if not left:
                return
            self._child.send(number)
        await asyncio.wait({self._exited})
        self._to_agent.lift()
        self._abandon()


class Incoming:
    """The lines of the server on their way to the agent."""

    def __init__(self, pipe: Pipe, to_agent: Outbox) -> None:
        self._pipe = pipe
        self._to_agent = to_agent
        self._body = MessageReader()
        self._opening = Opening.PASSES
        self._kept: list[bytes] = []
        """The pieces of a line of which only its end tells what becomes of it."""
        self._held = b""

    def take(self, piece: Piece) -> None:
        """Pass on a line, or the last piece of a long one but this."""
        if piece.starts:
            self._body = MessageReader(self._pipe.keep)
        self._body.feed(piece.raw)
        if piece.starts and piece.ends:
            self._deliver(piece.raw)
            return
        if piece.starts:
            self._opening = self._pipe.opening(piece.raw)
            self._respelling = self._pipe.respelling()
        match self._opening:
            case Opening.PASSES:
                self._pass(piece.raw, ends=piece.ends)
            case Opening.STAYS:
                if piece.ends:
                    self._pipe.passing(self._body)
            case Opening.WAITS:
                self._wait(piece)

    def _deliver(self, raw: bytes) -> None:
        """Pass on a whole line. Whatever goes wrong in reading along, the line goes on."""
        try:
            self._pipe.deliver(raw, self._body)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._pipe.context.recorder.faulted(error)
            self._to_agent.line(raw)

    def _wait(self, piece: Piece) -> None:
        self._kept.append(piece.raw)
        if not piece.ends and self._body.size <= MOST:
            return
        raw = b"".join(self._kept)
        self._kept.clear()
        if piece.ends:
            self._deliver(raw)
        else:
            self._opening = Opening.PASSES
            self._pass(raw, ends=False)

    def _pass(self, raw: bytes, *, ends: bool) -> None:
        self._hold(self._respelling.feed(raw))
        if ends:
            tickets, told = self._pipe.passing(self._body)
            last = self._held + self._respelling.finish()
            self._to_agent.piece(last, tickets, told, ends=True)
            self._held = b""

    def _hold(self, raw: bytes) -> None:
        if self._held:
            self._to_agent.piece(self._held, ends=False)
        self._held = raw


class _Nothing:
    """What a line says before its body: there are no headers on a pipe."""

    method = ""
    version = ""
    headers: Headers = ()
    head = RequestHead({}, {}, frozenset())


def request_of(
    context: Context, server: str, session: str, environment: Mapping[str, str]
) -> Request:
    """Return what all lines have in common: where they go, and whose conversation they are."""
    target = Target(name=server, origin="", path="", query="", authority=b"", host="", port=0)
    table = load(find_pack("identity", packs_folder()), VendorTable).identity
    wanted = wanted_variables(table)
    return Request(
        _Nothing(),
        Route(target, "", "", session, ""),
        context.digest,
        context.clients,
        f"process {os.getpid()}",
        {name: value for name, value in environment.items() if name in wanted},
    )


@contextmanager
def logging_to(settings: Settings) -> Generator[Log]:
    """Write the log into the data folder, where all wrapped commands write theirs.

    Raises `StoreError`. A line is written at once, so that those of several processes do not mix.
    """
    folder = settings.data / "logs"
    with translated("write the log to", folder):
        stream = _log_file(folder)
    with stream:
        logs = configure("json", settings.log_level.value, stream)
        handler = StandardLogging(logs)
        logging.getLogger().addHandler(handler)
        try:
            yield logs
        finally:
            logging.getLogger().removeHandler(handler)
            logs.close()


def _log_file(folder: Path) -> FileIO:
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / "wrap.jsonl"
    with suppress(FileNotFoundError):
        if file.stat().st_size > _LOG_SIZE:
            file.replace(folder / "wrap.1.jsonl")
    return file.open("ab", buffering=0)


def run(
    child: Child, settings: Settings, log: Log, pins: Pins, *, server: str, session: str
) -> int:
    """Relay until the command ends; return its exit code, below zero for a signal's number.

    Raises `StoreError` and `ConfigError` at start.
    """
    return asyncio.run(_run(child, settings, log, pins, server=server, session=session))


async def _run(
    child: Child, settings: Settings, log: Log, pins: Pins, *, server: str, session: str
) -> int:
    signals = Signals()
    async with recording(settings, log, None, pins) as context:
        log.emit(
            ProxyReady(
                urls=(),
                version=version("turnlog"),
                upstreams=(server,),
                data=str(settings.data),
                pid=os.getpid(),
            )
        )
        wrapped = Wrapped(child, context, request_of(context, server, session, os.environ))
        signals.go_to(wrapped.told)
        code = await wrapped.relay()
        log.emit(ProcessEnded(server=server, pid=child.pid, exit_code=code))
    return code
