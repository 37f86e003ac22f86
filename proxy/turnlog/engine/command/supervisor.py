"""One command's process: started on demand, started again when it died, the conversation opened anew.

Whose its messages are is the `switchboard`'s to tell.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from subprocess import SubprocessError
from typing import Final

from msgspec import Struct

from turnlog.core.classify import MEANINGS
from turnlog.core.kinds import ErrorFamily, ErrorKind, Phase
from turnlog.observe.events import Log, ProcessEnded, ProcessFailed
from turnlog.record.errors import Failure, Progress
from turnlog.record.recorder import Recorder
from turnlog.wire.jsonrpc import Kind, Message, parse

from .child import Child
from .client import CommandClient
from .hearing import OutputLines
from .multiplexer import Multiplexer
from .process import Process
from .reply import CommandReply
from .startup import ENDED, Startup

_SHORT_LIFE: Final = 10.0
"""s: a process that lived less has failed to start: the next one is started later each time."""
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 30.0
_INITIALIZED: Final = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class Declined(Failure):
    """The command answered `initialize` by an error."""

    def __init__(self, answer: bytes) -> None:
        detail = "the command refused the handshake that it once took"
        super().__init__(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, detail)
        self.answer = answer


class Met(Struct, frozen=True):
    """How a conversation was opened: the `initialize`, and its answer where that is known."""

    asked: bytes
    answer: bytes = b""


class Supervisor:
    """One command. `renames` tells whether several agents may talk to it."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], Child],
        log: Log,
        recorder: Recorder,
        tasks: asyncio.TaskGroup,
        startup: Callable[[], float],
        clean: Callable[[str], str],
        *,
        renames: bool,
    ) -> None:
        """`begin` starts the command; `startup` tells how long a process may take to say anything, in s; `clean` cuts secrets."""
        self._name = name
        self._new_child = begin
        self._log = log
        self._recorder = recorder
        self._tasks = tasks
        self._limit = startup
        self._startup = Startup(inf, self.close)
        """Of the latest process."""
        self._board = Multiplexer(name, log, recorder, clean, renames=renames)
        self._starting = asyncio.Lock()
        self._began = 0.0
        self._failures = 0
        self.met: Met | None = None
        """How to open the conversation again; `None` where nothing opens it."""
        self.closed = False
        """Whether no process may be started any more."""
        self.used = asyncio.get_running_loop().time()

    @property
    def renames(self) -> bool:
        """Whether the command knows requests by other ids than the agents do."""
        return self._board.renames

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return self._board.is_idle

    def is_quiet(self, seat: CommandClient) -> bool:
        """Return whether one client waits for nothing."""
        return self._board.is_quiet(seat)

    # -- its agents ------------------------------------------------------------------------

    def seat(self) -> CommandClient:
        """Add a client."""
        seat = CommandClient()
        self._board.seats.add(seat)
        return seat

    def leave(self, seat: CommandClient) -> None:
        """Remove a client; with the last one the process ends, and no other is started."""
        if self._board.seats == {seat}:
            self.end()
        else:
            self._board.leave(seat)

    def ask(
        self, seat: CommandClient, reply: CommandReply, messages: Sequence[Message], line: bytes
    ) -> None:
        """Send requests whose answers belong to `reply`."""
        self._use(seat)
        if self._board.process is None:
            detail = "the command has ended"
            reply.fail(ErrorKind.CONNECT_FAILED, detail, Phase.CONNECTING)
        else:
            self._board.ask(seat, reply, messages, line)

    def tell(self, seat: CommandClient, messages: Sequence[Message], line: bytes) -> None:
        """Send what gets no answer."""
        self._use(seat)
        self._board.tell(seat, messages, line)

    def left(self, reply: CommandReply) -> None:
        """Detach a reply that nobody reads any more; what it waits for goes on."""
        self._board.left(reply)

    def cancel(self, reply: CommandReply) -> None:
        """Cancel the requests of a reply that nobody reads any more."""
        self._board.cancel(reply)

    def _use(self, seat: CommandClient) -> None:
        self.used = seat.used = asyncio.get_running_loop().time()

    # -- its process -----------------------------------------------------------------------

    async def connect(self, handshake: bytes = b"") -> "Supervisor":
        """Start the process where it does not run. Raises `Failure`.

        `handshake` opens a conversation that nobody has opened yet.
        """
        async with self._starting:
            if self._board.process is None:
                await asyncio.sleep(self._wait())
                await self._begin(self.met.asked if self.met is not None else handshake)
        if (process := self._board.process) is not None:
            await process.outbox.room()
        return self

    async def _begin(self, handshake: bytes) -> None:
        """Start a process and open the conversation; one that is half open is of no use."""
        if self.closed:
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, "turnlog stops")
        self._start()
        try:
            if handshake:
                self.met = Met(handshake, await self._shake_hands(handshake))
        except BaseException:
            self.close()
            raise

    def _wait(self) -> float:
        """Return how long to wait before a process that died at once is started again, in s."""
        if not self._failures:
            return 0.0
        pause = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(self._failures - 1, 16))
        return max(0.0, self._began + pause - asyncio.get_running_loop().time())

    def _start(self) -> None:
        self._began = asyncio.get_running_loop().time()
        try:
            process = Process(self._new_child(), self._recorder)
        except (OSError, ValueError, RuntimeError, SubprocessError) as error:
            self._failures += 1
            reason = getattr(error, "strerror", None) or str(error)
            program = getattr(error, "filename", None) or f"the command of {self._name}"
            detail = f"cannot run {str(program)!r}: {reason.lower()}"
            self._log.emit(ProcessFailed(server=self._name, reason=detail))
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, detail) from error
        self._startup = Startup(self._limit(), lambda: self._overdue(process))
        self._board.begin(process, self._startup)
        self._tasks.create_task(self._live(process, self._startup))

    async def _live(self, process: Process, startup: Startup) -> None:
        """Carry a process's lines to its end; whatever goes wrong there ends no other."""
        ended = "it could not be talked to"
        try:
            hearing = OutputLines(process, partial(self._board.take, process), self._board.crowded)
            code = await process.run(hearing)
            ended = startup.detail if startup.over else f"the command has ended with code {code}"
            self._note_end(process, startup, code)
        except Exception as error:  # noqa: BLE001 - it is logged, and its calls end
            self._recorder.faulted(error)
        startup.close()
        untouched = process.is_untouched
        phase = Phase.CONNECTING if untouched else None
        self._board.lost(process, startup.loss(untouched=untouched), ended, phase)

    def _note_end(self, process: Process, startup: Startup, code: int) -> None:
        """Log how a process has ended; one that nobody has ended may have failed to start."""
        died = self._board.process is process
        if died and not startup.heard:
            self._log.emit(ProcessFailed(server=self._name, reason=ENDED, exit_code=code))
        self._log.emit(ProcessEnded(server=self._name, pid=process.pid, exit_code=code))
        lived = asyncio.get_running_loop().time() - self._began
        failed = startup.over or (died and lived < _SHORT_LIFE)
        self._failures = self._failures + 1 if failed else 0

    def _overdue(self, process: Process) -> None:
        """End a process that takes too long to say anything; the next request gets another."""
        self._log.emit(ProcessFailed(server=self._name, reason=self._startup.detail))
        if self._board.process is process:
            self._board.process = None
        process.stop()

    async def _shake_hands(self, handshake: bytes) -> bytes:
        """Open the conversation in no agent's name; return the answer. Raises `Failure`.

        Cancelled, or without a result, it leaves nothing to be talked to.
        """
        reply = CommandReply(Progress(), streams=False)
        self._board.open(reply, handshake)
        try:
            (answer,) = await reply.some()
        except Failure as failure:
            raise unopened(failure) from failure
        finally:
            self._board.left(reply)
        message = parse(answer)
        if not isinstance(message, Message) or message.kind is not Kind.RESPONSE:
            raise Declined(answer)
        self._board.write(_INITIALIZED)
        return answer

    def close(self) -> None:
        """End the process, if there is one; the next request gets another."""
        process, self._board.process = self._board.process, None
        self._startup.close()
        if process is not None:
            process.leave()

    def end(self) -> None:
        """End the process, and start no other."""
        self.closed = True
        for seat in self._board.seats:
            if seat.listener is not None:
                seat.listener.end()
        self.close()


def unopened(failure: Failure) -> Failure:
    """Return why no conversation was opened: nothing was asked yet, so nothing was done."""
    late = MEANINGS[failure.kind].family is ErrorFamily.TIMEOUT
    kind = ErrorKind.CONNECT_TIMEOUT if late else ErrorKind.CONNECT_FAILED
    return Failure(kind, Phase.CONNECTING, failure.detail)
