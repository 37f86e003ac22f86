"""One command's process, and all that talk to it: started on demand, started again when it died.

Ids and progress tokens of several agents may be the same, so where they share a command each gets a
word of turnlog's own for its way there and back. With an agent of its own a command gets the bytes
as they came.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from subprocess import SubprocessError
from typing import Final

from turnlog.core.kinds import ErrorKind, Phase
from turnlog.core.repeats import CANCELLED_LIFE
from turnlog.observe.events import Log, ProcessEnded, ProcessFailed, StrayOutput
from turnlog.wire import mcp
from turnlog.wire.jsonrpc import Batch, Kind, Malformed, Message, Reason, id_key, parse
from turnlog.wire.splice import with_id, with_member

from .child import start
from .fault import Failure, Progress
from .process import Process
from .recorder import Recorder
from .reply import Reply

STARTUP: Final = 600.0
"""s: how long a command may take to answer `initialize` (semantics, section 4: `startup`)."""
_SHORT_LIFE: Final = 10.0
"""s: a process that lived less has failed to start: the next one is started later each time."""
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 30.0
_KEPT: Final = 64 * 1024
"""bytes: a longer message is not kept for an agent that does not listen."""
_BACKLOG: Final = 256
"""Messages kept for an agent that listens to nothing at the moment."""
_TOKEN_ASKED: Final = ("params", "_meta", "progressToken")
_TOKEN_TOLD: Final = ("params", "progressToken")
_SUBSCRIPTION: Final = ("params", "_meta", mcp.SUBSCRIPTION_KEY)
_INITIALIZED: Final = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class Lane:
    """One command. `shared` tells whether several agents talk to it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Log,
        recorder: Recorder,
        tasks: asyncio.TaskGroup,
        *,
        shared: bool,
    ) -> None:
        self._name = name
        self._command = command
        self._log = log
        self._recorder = recorder
        self._tasks = tasks
        self._shared = shared
        self._process: Process | None = None
        self._starting = asyncio.Lock()
        self._began = 0.0
        self._failures = 0
        self._replies: dict[str, Reply] = {}
        self._tokens: dict[str, Reply] = {}
        self._backlog: deque[bytes] = deque(maxlen=_BACKLOG)
        self.listener: Reply | None = None
        """Who hears what belongs to no request."""
        self.handshake = b""
        """The `initialize` that opened the conversation, to open it again; empty for none."""
        self.closed = False
        """Whether no process may be started any more."""
        self.used = asyncio.get_running_loop().time()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._replies and self.listener is None

    def met(self, asked: bytes, reply: Reply) -> None:
        """Remember how the conversation was opened."""
        if reply.result is not None:
            self.handshake = asked

    # -- its process -----------------------------------------------------------------------

    async def connect(self) -> "Lane":
        """Have a process that can be talked to. Raises `Failure`."""
        async with self._starting:
            if self._process is None:
                await asyncio.sleep(self._wait())
                await self._begin()
        if (process := self._process) is not None:
            await process.room()
        return self

    async def _begin(self) -> None:
        """Start a process and open the conversation; one that is half open is of no use."""
        if self.closed:
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, "turnlog stops")
        self._process = self._start()
        try:
            if self.handshake:
                await self._shake_hands()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> float:
        """Return how long to wait before a process that died at once is started again, in s."""
        if not self._failures:
            return 0.0
        pause = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(self._failures - 1, 16))
        return max(0.0, self._began + pause - asyncio.get_running_loop().time())

    def _start(self) -> Process:
        self._began = asyncio.get_running_loop().time()
        try:
            child = start(self._command)
            process = Process(child, self._recorder, self._take)
        except (OSError, ValueError, RuntimeError, SubprocessError) as error:
            self._failures += 1
            reason = getattr(error, "strerror", None) or str(error)
            self._log.emit(ProcessFailed(server=self._name, reason=reason))
            detail = f"cannot run {self._command[0]!r}: {reason.lower()}"
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, detail) from error
        self._tasks.create_task(self._live(process))
        return process

    async def _live(self, process: Process) -> None:
        """Carry a process's lines to its end; whatever goes wrong there ends no other."""
        ended = "it could not be talked to"
        try:
            code = await process.run()
            ended = f"the command has ended with code {code}"
            self._log.emit(ProcessEnded(server=self._name, pid=process.pid, exit_code=code))
            lived = asyncio.get_running_loop().time() - self._began
            died = self._process is process  # and was not ended by us
            self._failures = self._failures + 1 if died and lived < _SHORT_LIFE else 0
        except Exception as error:  # noqa: BLE001 - it is logged, and its calls end
            self._recorder.faulted(error)
        if self._process is process:
            self._process = None
        for reply in [one for one in set(self._replies.values()) if one.process is process]:
            self._forget(reply)
            reply.fail(ErrorKind.CONNECTION_LOST, ended)

    async def _shake_hands(self) -> None:
        """Open the conversation again, as the agent did once. Raises `Failure`.

        Cancelled, or without a result, it leaves nothing to be talked to.
        """
        reply = Reply(Progress(), streams=False)
        line = self._renamed(reply, Message(kind=Kind.REQUEST), self.handshake)
        self._write(line)
        try:
            async with asyncio.timeout(STARTUP):
                await reply.first()
        except TimeoutError:
            detail = f"no answer to initialize within {STARTUP:g} s"
            raise Failure(ErrorKind.CONNECT_TIMEOUT, Phase.CONNECTING, detail) from None
        except Failure as failure:
            raise Failure(failure.kind, Phase.CONNECTING, failure.detail) from failure
        finally:
            self._forget(reply)
        if reply.result is None:
            detail = "the command refused the handshake that it once took"
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, detail)
        self._write(_INITIALIZED)

    def close(self) -> None:
        """End the process, if there is one; the next request gets another."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def end(self) -> None:
        """End the process, and start no other."""
        self.closed = True
        if self.listener is not None:
            self.listener.end()
        self.close()

    # -- to the command --------------------------------------------------------------------

    def ask(self, reply: Reply, messages: Sequence[Message], line: bytes) -> None:
        """Send requests whose answers belong to `reply`."""
        self.used = asyncio.get_running_loop().time()
        if self._process is None:
            reply.fail(ErrorKind.CONNECTION_LOST, "the command has ended")
            return
        if self._shared and len(messages) == 1:
            line = self._renamed(reply, messages[0], line)
        else:
            for message in messages:
                if message.kind is Kind.REQUEST:
                    self._await(reply, message.id)
                self._report(reply, mcp.wanted_progress(message))
        while self._backlog and reply.streams:
            reply.add(self._backlog.popleft())
        self._write(line)

    def tell(self, message: Message, line: bytes) -> None:
        """Send what gets no answer."""
        self.used = asyncio.get_running_loop().time()
        cancelled = mcp.cancelled_id(message)
        reply = self._replies.get(cancelled) if cancelled is not None else None
        if reply is not None and not self._shared:
            # Nobody has to answer what was cancelled; but whoever asks the same may want it.
            if reply.is_guarded:
                asyncio.get_running_loop().call_later(CANCELLED_LIFE, self._drop, reply)
            else:
                self._drop(reply)
        self._write(line)

    def _drop(self, reply: Reply) -> None:
        self._forget(reply)
        reply.end()

    def left(self, reply: Reply) -> None:
        """Learn that nobody reads a reply any more; what it waits for goes on."""
        if reply is self.listener:
            self.listener = None
        self._forget(reply)

    def cancel(self, reply: Reply) -> None:
        """Learn that nobody reads a reply any more, which takes its requests back."""
        for raw_id in self._forget(reply):
            self._write(mcp.cancellation(raw_id))

    def listen(self, reply: Reply) -> None:
        """Let an agent hear what belongs to no request."""
        self.listener = reply
        while self._backlog:
            reply.add(self._backlog.popleft())

    def _write(self, line: bytes) -> None:
        if self._process is not None:
            self._process.send(line + b"\n")

    def _renamed(self, reply: Reply, message: Message, line: bytes) -> bytes:
        """Give a request an id and a token that nobody else has."""
        ours = self._recorder.new_request_id()
        reply.id = message.id
        self._await(reply, ours)
        if token := mcp.wanted_progress(message):
            mine = self._recorder.new_request_id()
            reply.own_token = token
            self._report(reply, mine)
            line = with_member(line, _TOKEN_ASKED, mine) or line
        return with_id(line, ours) or line

    def _await(self, reply: Reply, raw_id: bytes) -> None:
        key = id_key(raw_id)
        reply.process = self._process
        reply.awaited[key] = raw_id
        self._replies[key] = reply

    def _report(self, reply: Reply, token: bytes) -> None:
        if token:
            reply.token = id_key(token)
            self._tokens[reply.token] = reply

    def _forget(self, reply: Reply) -> list[bytes]:
        """Wait for no answer any more; return the ids that there would have been one for."""
        ids, reply.awaited = reply.awaited, {}
        for key in ids:
            # Another request may have taken the same id since.
            if self._replies.get(key) is reply:
                del self._replies[key]
        if self._tokens.get(reply.token) is reply:
            del self._tokens[reply.token]
        return list(ids.values())

    # -- from the command ------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        """Take a line; whatever goes wrong with it, the process and turnlog go on."""
        try:
            # Between values, where alone it may stand, a CR would end an event's line.
            self._read(line.replace(b"\r", b" "))
        except Exception as error:  # noqa: BLE001 - it is logged
            self._recorder.faulted(error)

    def _read(self, line: bytes) -> None:
        content = parse(line)
        match content:
            case Malformed(reason=Reason.EMPTY):
                pass
            case Malformed():
                self._log.emit(StrayOutput(server=self._name, size=len(line)))
            case Batch(items=items):
                keys = [id_key(item.id) for item in items if isinstance(item, Message)]
                self._answer([key for key in keys if key in self._replies], line)
            case Message(kind=Kind.ERROR, id=b"" | b"null") if len(self._replies) == 1:
                # It answers the only request there is (JSON-RPC 2.0 section 5.1).
                self._answer(list(self._replies), line)
            case Message(kind=Kind.RESPONSE | Kind.ERROR):
                self._answer([id_key(content.id)], line)
            case _:
                self._pass_on(content, line)

    def _answer(self, keys: Sequence[str], line: bytes) -> None:
        reply = next((self._replies[key] for key in keys if key in self._replies), None)
        if reply is None:
            return
        for key in keys:
            self._replies.pop(key, None)
            reply.awaited.pop(key, None)
        reply.add((with_id(line, reply.id) or line) if reply.id else line)
        if not reply.awaited:
            self._tokens.pop(reply.token, None)
            reply.end()

    def _pass_on(self, message: Message, line: bytes) -> None:
        """Find who hears what is no answer."""
        reported = self._tokens.get(mcp.progress_token(message))
        if reported is not None and reported.streams:
            own = reported.own_token
            reported.add((with_member(line, _TOKEN_TOLD, own) or line) if own else line)
        elif subscribed := self._replies.get(mcp.subscription(message)):
            own = subscribed.id
            subscribed.add((with_member(line, _SUBSCRIPTION, own) or line) if own else line)
        elif (hearer := self._hearer()) is not None:
            hearer.add(line)
        elif not mcp.progress_token(message) and len(line) <= _KEPT:
            self._backlog.append(line)

    def _hearer(self) -> Reply | None:
        """Return who hears what names no request: the only one that waits, else who listens."""
        waiting = list(dict.fromkeys(r for r in self._replies.values() if r.streams))
        if len(waiting) == 1:
            return waiting[0]
        return self.listener or (waiting[-1] if waiting else None)
