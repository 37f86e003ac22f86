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
from typing import Final

from msgspec import Struct

from turnlog.core.identity import VendorTable, wanted_variables
from turnlog.observe.events import Log, ProcessEnded, ProxyReady
from turnlog.observe.logs import StandardLogging, configure
from turnlog.packs.find import find_pack, packs_folder
from turnlog.packs.load import load
from turnlog.wire.http import Headers
from turnlog.wire.jsonrpc import Batch, Malformed, Message, parse
from turnlog.wire.lines import LineReader, Piece
from turnlog.wire.message import MessageReader

from .child import Child
from .context import Context
from .heads import RequestHead
from .outbox import Outbox
from .pins import Pins
from .pipe import Pipe
from .pipes import ReadEnd, WriteEnd
from .recording import own_tasks, recording
from .request import Request
from .routes import Route, Target
from .settings import Settings

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
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
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
        self._to_agent = Outbox(WriteEnd(_STDOUT, own=False), context.recorder)
        self._to_server = Outbox(WriteEnd(child.stdin, own=True), context.recorder)
        self._pipe = Pipe(context, request, self._to_agent, self._to_server)
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue(_QUEUED)
        self._exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._told = False
        """Whether a signal told us to stop."""
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
        return await self._exited

    async def _relay(self, tasks: asyncio.TaskGroup) -> None:
        chores = (self._read_agent(), self._forward(), self._write_server())
        running = [tasks.create_task(chore) for chore in chores]
        delivery = tasks.create_task(self._write_agent())
        ending = tasks.create_task(self._end())
        await self._read_server()
        self._pipe.lost("the command has ended")
        self._to_agent.close()
        await asyncio.wait({delivery}, timeout=_LAST_WORDS if self._leaving.is_set() else None)
        self._leaving.set()
        await ending
        for task in (*running, delivery):
            task.cancel()

    def told(self, number: signal.Signals) -> None:
        """Pass a signal on, and begin no attempt any more."""
        self._told = True
        self._child.send(number)
        self._pipe.stop()
        self._leaving.set()

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

    async def _forward(self) -> None:
        passes = True
        while line := await self._lines.get():
            piece = line.piece
            if line.content is not None:
                await self._pipe.forward(line.content, piece.raw)
            else:
                passes = await self._pipe.forward_start(piece.raw) if piece.starts else passes
                if passes:
                    self._to_server.piece(piece.raw, ends=piece.ends)
            await self._to_server.room()
        self._to_server.close()
        await self._pipe.idle.wait()
        self._leaving.set()

    async def _read_server(self) -> None:
        reader = LineReader(HELD)
        incoming = Incoming(self._pipe, self._to_agent, self._context.keep)
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

    async def _write_agent(self) -> None:
        try:
            await self._to_agent.run()
        except BrokenPipeError:
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
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._server.abandon)

    async def _end(self) -> None:
        """End the command, once it is to end, more firmly each time."""
        await self._leaving.wait()
        self._to_server.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            within = GRACE if number == signal.SIGTERM else _KILLED
            if await self._ends(within):
                break
            self._child.send(number)
        await asyncio.wait({self._exited})
        self._server.abandon()

    async def _ends(self, within: float) -> bool:
        await asyncio.wait({self._exited}, timeout=within)
        return self._exited.done()


class Incoming:
    """The lines of the server on their way to the agent. `keep` bounds what is read of one, in bytes."""

    def __init__(self, pipe: Pipe, to_agent: Outbox, keep: int) -> None:
        self._pipe = pipe
        self._to_agent = to_agent
        self._keep = keep
        self._body = MessageReader(keep)
        self._held = b""

    def take(self, piece: Piece) -> None:
        """Pass on a line, or the last piece of a long one but this."""
        if piece.starts:
            self._body = MessageReader(self._keep)
            self._respelling = self._pipe.respelling()
        self._body.feed(piece.raw)
        if piece.starts and piece.ends:
            self._pipe.deliver(piece.raw, self._body)
            return
        self._hold(self._respelling.feed(piece.raw))
        if piece.ends:
            tickets = self._pipe.passing(self._body)
            self._to_agent.piece(self._held + self._respelling.finish(), tickets, ends=True)
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

    Raises `OSError`. A line is written at once, so that those of several processes do not mix.
    """
    folder = settings.data / "logs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / "wrap.jsonl"
    with suppress(FileNotFoundError):
        if file.stat().st_size > _LOG_SIZE:
            file.replace(folder / "wrap.1.jsonl")
    with file.open("ab", buffering=0) as stream:
        logs = configure("json", settings.log_level.value, stream)
        handler = StandardLogging(logs)
        logging.getLogger().addHandler(handler)
        try:
            yield logs
        finally:
            logging.getLogger().removeHandler(handler)
            logs.close()


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
        with _signals_go_to(wrapped):
            code = await wrapped.relay()
        log.emit(ProcessEnded(server=server, pid=child.pid, exit_code=code))
    return code


@contextmanager
def _signals_go_to(wrapped: Wrapped) -> Generator[None]:
    loop = asyncio.get_running_loop()
    for number in _FORWARDED:
        loop.add_signal_handler(number, wrapped.told, number)
    try:
        yield
    finally:
        for number in _FORWARDED:
            loop.remove_signal_handler(number)
