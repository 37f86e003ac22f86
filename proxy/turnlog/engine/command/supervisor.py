"""Supervises one command's process: starts it on demand and again when it died, and repeats the handshake."""

import asyncio
from collections.abc import Callable, Sequence
from subprocess import SubprocessError
from typing import Final

from msgspec import Struct

from turnlog.core.classify import MEANINGS
from turnlog.core.kinds import ErrorFamily, ErrorKind, Flag, Phase
from turnlog.observe.events import Log, ProcessFailed
from turnlog.record.deadlines import Progress
from turnlog.record.errors import Failure
from turnlog.record.recorder import Recorder
from turnlog.transport.child_process import Child
from turnlog.wire.jsonrpc import Defect, Kind, Malformed, Message, parse
from turnlog.wire.message import LinePiece, LineReader

from .multiplexer import CommandClient, Multiplexer
from .process import GRACE, Process
from .reply import CommandReply

_SHORT_LIFE: Final = 10.0
"""s: a process that lived less has failed to start: the next one is started later each time."""
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 30.0
_INITIALIZED: Final = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
_LONGEST_LINE: Final = 64 << 20
"""bytes: a command that writes a longer line is ended."""


class Declined(Failure):
    """The command answered `initialize` with an error."""

    def __init__(self, answer: bytes) -> None:
        detail = "the command refused the handshake that it once took"
        super().__init__(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, detail)
        self.answer = answer


class Handshake(Struct, frozen=True):
    """The `initialize` that opened a conversation, and its answer where that is known."""

    request: bytes
    answer: bytes = b""


class Supervisor:
    """One command, whose messages `messages` routes."""

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
        """`begin` starts the command; `startup` gives the limit for its first message, in s; `clean`
        cuts secrets; `renames` tells whether it may have several clients."""
        self._name = name
        self._new_child = begin
        self._log = log
        self._recorder = recorder
        self._tasks = tasks
        self._limit = startup
        new_id = recorder.new_request_id
        self.multiplexer = Multiplexer(name, log, clean, new_id, self._write, renames=renames)
        self._process: Process | None = None
        """The process that requests go to."""
        self.used = asyncio.get_running_loop().time()
        self._starting = asyncio.Lock()
        self._began = 0.0
        self._failures = 0
        self.handshake: Handshake | None = None
        """Repeated with each new process; `None` where there is no conversation to open."""
        self.closed = False
        """Whether no process may be started any more."""

    def new_client(self) -> CommandClient:
        """Add a client."""
        client = CommandClient()
        self.multiplexer.clients.add(client)
        return client

    def remove(self, client: CommandClient) -> None:
        """Remove a client; with the last one the process ends, and no other is started."""
        if self.multiplexer.clients == {client}:
            self.end()
        else:
            self.multiplexer.remove(client)

    @property
    def is_ready(self) -> bool:
        """Whether the process runs with an open conversation, and reads on."""
        process = self._process
        return process is not None and not self._starting.locked() and process.outbox.has_room

    async def connect(self, initialize: bytes = b"") -> None:
        """Start the process where it does not run. Raises `Failure`.

        `initialize` opens a conversation where there is none yet.
        """
        async with self._starting:
            if self._process is None:
                await asyncio.sleep(self._wait())
                await self._begin(
                    self.handshake.request if self.handshake is not None else initialize
                )
        if (process := self._process) is not None:
            await process.outbox.wait_for_room()

    async def _begin(self, initialize: bytes) -> None:
        """Start a process and open the conversation; without that the process is ended."""
        if self.closed:
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, "turnlog stops")
        self._start()
        try:
            if initialize:
                self.handshake = Handshake(initialize, await self._shake_hands(initialize))
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
            child, limit = self._new_child(), self._limit()
            process = Process(child, self._name, self._recorder, self._log, limit, self._on_overdue)
        except (OSError, ValueError, RuntimeError, SubprocessError) as error:
            self._failures += 1
            reason = getattr(error, "strerror", None) or str(error)
            program = getattr(error, "filename", None) or f"the command of {self._name}"
            detail = f"cannot run {str(program)!r}: {reason.lower()}"
            self._log.emit(ProcessFailed(server=self._name, reason=detail))
            failure = Failure(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, detail)
            failure.is_told = isinstance(error, OSError)
            raise failure from error
        self._process = process
        number = self.multiplexer.on_started()
        self._tasks.create_task(self._live(process, number))

    async def _live(self, process: Process, number: int) -> None:
        """Carry a process's lines to its end; whatever goes wrong there ends no other."""
        ended, startup = "it could not be talked to", process.startup
        try:
            code = await process.run(_Output(process, self.multiplexer, self._on_line))
            ended = startup.detail if startup.over else f"the command has ended with code {code}"
            self._on_ended(process, code)
        except Exception as error:  # noqa: BLE001 - it is logged, and its calls end
            self._recorder.faulted(error)
        startup.close()
        untouched = process.stdin.is_untouched
        phase = Phase.CONNECTING if untouched else None
        if self._process is process:
            self._process = None
        self.multiplexer.on_ended(number, startup.loss(untouched=untouched), ended, phase)

    def _on_ended(self, process: Process, code: int) -> None:
        """Log the end of a process; one that turnlog did not end may have failed to start."""
        died = self._process is process
        process.log_end(code, has_failed=died and not process.startup.heard)
        lived = asyncio.get_running_loop().time() - self._began
        failed = process.startup.over or (died and lived < _SHORT_LIFE)
        self._failures = self._failures + 1 if failed else 0

    def _on_overdue(self) -> None:
        """Send nothing more to a process whose first message takes too long: the next request gets another."""
        self._process = None

    async def _shake_hands(self, initialize: bytes) -> bytes:
        """Open the conversation; return the answer. Raises `Failure`."""
        reply = CommandReply(Progress(), streams=False)
        assert self._process is not None  # it was just started
        self._process.startup.on_request()
        self.multiplexer.open(reply, initialize)
        try:
            ((answer, message),) = await reply.messages()
        except Failure as failure:
            raise unopened(failure) from failure
        finally:
            self.multiplexer.on_left(reply)
        if message is None or message.kind is not Kind.RESPONSE:
            raise Declined(answer)
        self._write(_INITIALIZED)
        return answer

    def send(
        self,
        client: CommandClient,
        reply: CommandReply | None,
        messages: Sequence[Message],
        line: bytes,
    ) -> None:
        """Send a client's messages; `reply` gets the answers to the requests among them."""
        self.used = client.used = asyncio.get_running_loop().time()
        if self._process is None:
            if reply is not None:
                detail = "the command has ended"
                reply.fail(ErrorKind.CONNECT_FAILED, detail, Phase.CONNECTING)
            return
        if reply is not None:
            self._process.startup.on_request()
        self.multiplexer.send(client, reply, messages, line)

    def _write(self, line: bytes) -> None:
        if self._process is not None:
            self._process.outbox.line(line + b"\n")

    def _on_line(self, process: Process, line: bytes) -> None:
        """Read one line of a process; a bug in that is logged and ends nothing else."""
        if self._process is not process and self._process is not None:
            return  # another one has its place, where ids begin anew
        try:
            # Between values, the only place for it in JSON, a CR would end an event's line.
            self._read(process, line.replace(b"\r", b" "))
        except Exception as error:  # noqa: BLE001 - it is logged
            self._recorder.faulted(error)

    def _read(self, process: Process, line: bytes) -> None:
        content = parse(line)
        if not isinstance(content, Malformed):
            process.startup.on_message()
            self.multiplexer.on_content(content, line)
        elif content.reason is not Defect.EMPTY:
            for reply in self.multiplexer.replies():
                reply.progress.mark(Flag.STRAY_OUTPUT)
            process.log_stray(line, len(line))

    def close(self) -> None:
        """End the process, if there is one; the next request gets another."""
        process, self._process = self._process, None
        if process is not None:
            process.startup.close()
            process.leave()

    def end(self) -> None:
        """End the process, and start no other."""
        self.closed = True
        for client in self.multiplexer.clients:
            if client.listener is not None:
                client.listener.end()
        self.close()


def unopened(failure: Failure) -> Failure:
    """Return why no conversation was opened: nothing was executed."""
    late = MEANINGS[failure.kind].family is ErrorFamily.TIMEOUT
    kind = ErrorKind.CONNECT_TIMEOUT if late else ErrorKind.CONNECT_FAILED
    unsent = Failure(kind, Phase.CONNECTING, failure.detail)
    unsent.is_told = failure.is_told
    return unsent


class _Output:
    """Reads the output of one process as whole lines, while its clients read on."""

    def __init__(
        self, process: Process, messages: Multiplexer, on_line: Callable[[Process, bytes], None]
    ) -> None:
        self._process = process
        self._messages = messages
        self._on_line = on_line
        self._reader = LineReader(_LONGEST_LINE)
        self._is_over = False
        """Whether a line is too long: nothing more is read."""
        self._waits_for: CommandReply | None = None
        self._has_no_limit = False

    def on_output(self, chunk: bytes) -> None:
        """Read a piece of its output."""
        self._read(self._reader.feed(chunk))

    async def wait_for_room(self) -> None:
        """Wait until the clients have read enough, or `remove_limit` is called."""
        while not self._has_no_limit and (reply := self._messages.crowded()) is not None:
            self._waits_for = reply
            await reply.wait_for_room()

    def remove_limit(self) -> None:
        """End that wait for good."""
        self._has_no_limit = True
        if self._waits_for is not None:
            self._waits_for.end_wait()

    def on_input_closed(self) -> None:
        """End the process soon: it may yet answer what it has read."""
        asyncio.get_running_loop().call_later(GRACE, self._process.leave)

    async def on_output_end(self) -> None:
        """Read a last line without a newline."""
        self._read(self._reader.finish())

    def _read(self, pieces: list[LinePiece]) -> None:
        for piece in pieces:
            if self._is_over:
                return
            if not (piece.starts and piece.ends):
                self._is_over = True
                self._process.leave()
                return
            self._on_line(self._process, piece.raw.rstrip(b"\r\n"))
