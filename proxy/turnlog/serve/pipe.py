"""Messages through a pair of pipes: between a client and the server that it has started (stdio).

Each line of the agent is an exchange of its own. What the server writes is matched with them by id;
everything keeps its order, but for the agent's answers to the server, which never wait for a call.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.core.policy import Policy
from turnlog.core.retry import Reason
from turnlog.observe.events import StrayOutput
from turnlog.store.base import StoreError, Ticket
from turnlog.wire import mcp
from turnlog.wire.jsonrpc import (
    Batch,
    Kind,
    Malformed,
    Message,
    id_key,
    messages_of,
)
from turnlog.wire.jsonrpc import (
    Reason as Unread,
)
from turnlog.wire.message import MessageReader
from turnlog.wire.skim import Outline
from turnlog.wire.splice import Respelling, with_id

from .answers import Made
from .attempt import Attempt
from .context import Context
from .course import Course
from .fault import Failure, Progress, in_time
from .mcp import McpExchange
from .outbox import Outbox
from .patience import Patience
from .request import Request
from .verdicts import JSON, Text, is_answer, nameless_error, raw_id

_NO_RULES: Final = Policy()
_GIVEN_UP: Final = 1024
"""Attempts remembered that were given up and may be answered yet."""


class Past(Struct, frozen=True):
    """An attempt that was given up before its answer came."""

    exchange: McpExchange
    attempt: Attempt
    answered: bool
    """Whether the agent has got an answer in its place."""


class Errand:
    """One line of the agent on its way to the server, and what comes back of it."""

    def __init__(self, pipe: "Pipe", exchange: McpExchange, line: bytes) -> None:
        self._pipe = pipe
        self._context = pipe.context
        self._line = line
        self._began = asyncio.get_running_loop().time()
        self._course: Course | None = None
        """What follows each attempt, where a rule may want another one."""
        self._held: tuple[bytes, Sequence[Ticket]] = (b"", ())
        """The answer to the attempt before, should there be no other."""
        self.exchange = exchange
        self.token = ""
        """With which its progress is reported, where the agent asked for that."""

    @property
    def policy(self) -> Policy:
        """What the rules come to for its call; nothing where it is none."""
        attempt = self.exchange.attempt
        return attempt.ask.policy if attempt is not None else _NO_RULES

    async def queued(self) -> None:
        """Wait until it may leave. Raises `StoreError`, and `Failure` where it must not."""
        if self.exchange.is_unverified:
            raise Failure(ErrorKind.UNVERIFIED_PROVENANCE, Phase.QUEUED, "not pinned")
        limits = self.policy.timeout
        await in_time(limits, self._began, self._began, self.exchange.on_disk())

    def send(self) -> None:
        """Make the first attempt."""
        if self.policy.retry is not None:
            clock, stop = self._context.clock, self._context.stop
            self._course = Course(self.policy, clock, self._began, stop)
            self._course.begin(repeatable=self.exchange.repeatable(self._line))
        line = self.exchange.outgoing(self._line)
        assert isinstance(line, bytes)
        self._send(line)

    def _send(self, line: bytes) -> None:
        attempt = self.exchange.attempt
        progress = self.exchange.progress = Progress()
        progress.phase = Phase.SENDING
        if attempt is not None:
            if self._course is not None:
                self._course.follow(attempt)
            attempt.patience = Patience(attempt.ask.policy.timeout, self._began)
            if attempt.patience.connected(self._expire):
                progress.patience = attempt.patience
        self._pipe.expect(self)
        self._pipe.to_server.line(line)
        progress.sent()
        self.exchange.acknowledge()

    def came(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        """Take the whole answer, which was read already."""
        attempt = self.exchange.attempt
        if attempt is not None:
            raw = _respelled(attempt, raw)
            raw = self.exchange.amended(raw) or raw
        self._over(raw, tickets)

    def lost(self, failure: Failure) -> None:
        """Learn that there will be no answer, of this attempt or any other."""
        if self.exchange.attempt is None or self.exchange.attempt.ending is None:
            made, tickets = self.exchange.failed(failure)
            self._held = (_line_of(made), tickets)
        self._give()

    def _expire(self, kind: ErrorKind, detail: str) -> bool:
        """Give the attempt up: a time limit was reached."""
        attempt = self.exchange.attempt
        assert attempt is not None
        self._pipe.give_up(self, attempt, answered=True)
        made, tickets = self.exchange.failed(Failure(kind, self.exchange.progress.phase, detail))
        if cancel := self.exchange.cancelling():
            self._pipe.to_server.line(cancel + b"\n")
        self._over(_line_of(made), tickets)
        return True

    def _over(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        """Decide what becomes of an answer: it is the agent's, or another attempt follows."""
        self._held = (raw, tickets)
        attempt = self.exchange.attempt
        wait = self._course.next if self._course is not None else None
        if attempt is None or wait is None:
            self._give()
        else:
            self._context.recorder.retried(attempt, wait.delay)
            self._pipe.later(self, self._again(attempt, wait.delay))

    async def _again(self, before: Attempt, delay: float) -> None:
        """Make another attempt after a while, unless nobody wants it any more."""
        assert self._course is not None
        if await self.exchange.rest(self._pause(delay)) is not None:
            # MCP: nobody answers what was cancelled.
            self._context.recorder.abandoned(before, Reason.CANCELLED)
        elif self._context.stop.is_set():
            self._release(before, Reason.STOPPING)
        else:
            self._course.go_on()
            await self._attempt(before)

    async def _attempt(self, before: Attempt) -> None:
        now = asyncio.get_running_loop().time()
        again = self.exchange.again(self._line)
        try:
            line = await in_time(before.ask.policy.timeout, self._began, now, again)
        except StoreError:
            self._release(before, Reason.UNRECORDED)
        except Failure as failure:
            self.exchange.left(failure.kind)
            queued = failure.kind is ErrorKind.QUEUE_TIMEOUT
            self._release(before, Reason.QUEUE if queued else Reason.TOTAL)
        else:
            self._send(line)

    async def _pause(self, delay: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._context.stop.wait()

    def _release(self, before: Attempt, reason: Reason) -> None:
        """Give the agent the answer to an attempt that no other follows."""
        self._context.recorder.abandoned(before, reason)
        self._give()

    def _give(self) -> None:
        (raw, tickets), self._held = self._held, (b"", ())
        if raw:
            self._pipe.to_agent.line(raw, tickets)


class Pipe:
    """Both directions of one pair of pipes."""

    def __init__(
        self,
        context: Context,
        request: Request,
        to_agent: Outbox,
        to_server: Outbox,
    ) -> None:
        self.context = context
        self.to_agent = to_agent
        self.to_server = to_server
        self._request = request
        self._aside = McpExchange(context, request, ())
        """Reads what belongs to no request of the agent's."""
        self._awaited: dict[str, Errand] = {}
        """By the key of the id that the server knows."""
        self._resting: dict[Errand, asyncio.Task[None]] = {}
        self._past: OrderedDict[str, Past] = OrderedDict()
        self.idle = asyncio.Event()
        """Whether nothing is to come for the agent."""
        self.idle.set()

    @asynccontextmanager
    async def attempts(self, work: asyncio.TaskGroup) -> AsyncGenerator[None, None]:
        """Make further attempts among `work` until the block ends."""
        self._work = work
        try:
            yield
        finally:
            self.stop()

    # -- from the agent to the server ------------------------------------------------------

    def answered(self, content: Message, line: bytes) -> bool:
        """Pass on a line that answers the server, at once; false where it is anything else."""
        if content.kind not in {Kind.RESPONSE, Kind.ERROR}:
            return False
        self.context.calls.told(self._request.scope, id_key(content.id))
        self.to_server.line(line)
        return True

    async def forward(self, content: Message | Batch | Malformed, line: bytes) -> None:
        """Record what a line asks, and pass it on."""
        messages = messages_of(content)
        if not messages:
            self.to_server.line(line)
            return
        exchange = McpExchange(
            self.context,
            self._request,
            messages,
            size=len(line),
            as_batch=isinstance(content, Batch),
        )
        if (errand := await self._admitted(exchange, line)) is not None:
            token = mcp.wanted_progress(messages[0])
            errand.token = id_key(token) if token else ""
            errand.send()
            for message in messages:
                self._note_cancel(message)

    async def forward_start(self, start: bytes) -> bool:
        """Record what the start of a line asks that is too large to hold; tell whether it may pass."""
        message = mcp.start_of(start)
        if message is None:
            return True
        exchange = McpExchange(
            self.context,
            self._request,
            (message,),
            size=len(start),
            start=start[: mcp.START],
            cut=True,
        )
        errand = await self._admitted(exchange, start)
        if errand is None:
            return False
        self.expect(errand)
        return True

    async def _admitted(self, exchange: McpExchange, line: bytes) -> Errand | None:
        """Record what is about to leave; where it must not, answer, and return nothing."""
        try:
            await exchange.begin()
            errand = Errand(self, exchange, line)
            await errand.queued()
        except StoreError:
            self.to_agent.line(_line_of(exchange.refused()))
        except Failure as failure:
            made, tickets = exchange.failed(failure)
            self.to_agent.line(_line_of(made), tickets)
        else:
            return errand
        return None

    def expect(self, errand: Errand) -> None:
        """Wait for what answers an errand."""
        for key in errand.exchange.awaits:
            self._awaited[key] = errand
        self._count()

    def later(self, errand: Errand, attempt: Coroutine[None, None, None]) -> None:
        """Make another attempt of an errand in its own time."""
        task = self._resting[errand] = self._work.create_task(attempt)
        task.add_done_callback(lambda _: self._rested(errand))
        self._count()

    def _rested(self, errand: Errand) -> None:
        self._resting.pop(errand, None)
        self._count()

    def _count(self) -> None:
        if self._awaited or self._resting:
            self.idle.clear()
        else:
            self.idle.set()

    def give_up(self, errand: Errand, attempt: Attempt, *, answered: bool) -> None:
        """Wait for an attempt's answer no more; if it comes all the same it is late."""
        for key in list(errand.exchange.awaits):
            if self._awaited.pop(key, None) is not None:
                self._past[key] = Past(errand.exchange, attempt, answered)
        while len(self._past) > _GIVEN_UP:
            self._past.popitem(last=False)

    def _note_cancel(self, message: Message) -> None:
        """The agent took a call back: nobody may answer it any more, but somebody might."""
        key = mcp.cancelled_id(message)
        for errand in set(self._awaited.values()) if key is not None else ():
            attempt = errand.exchange.attempt
            if attempt is not None and attempt.cancelled and attempt.caller_key == key:
                self.give_up(errand, attempt, answered=False)
                errand.exchange.left(ErrorKind.CANCELLED_BY_CALLER)

    # -- from the server to the agent ------------------------------------------------------

    def deliver(self, raw: bytes, body: MessageReader) -> None:
        """Read a whole line of the server's, and pass it on."""
        text = Text(body, JSON, len(raw))
        body.finish()
        content = body.content
        if not isinstance(content, Message | Outline) or not is_answer(content):
            self.to_agent.line(raw, self.read(content, text))
            return
        key = self._key_of(content)
        if (errand := self._awaited.pop(key, None)) is not None:
            errand.came(raw, errand.exchange.said(content, text))
        elif (past := self._past.pop(key, None)) is not None:
            tickets = past.exchange.late(past.attempt, content, text)
            self.to_agent.line(b"" if past.answered else raw, tickets)
        else:
            self.to_agent.line(raw, self._aside.said(content, text))
        self._count()

    def passing(self, body: MessageReader) -> Sequence[Ticket]:
        """Read a line that is too long to be held; return what its last piece has to wait for."""
        body.finish()
        tickets = self.read(body.content, Text(body, JSON, body.size))
        self._count()
        return tickets

    def respelling(self) -> Respelling:
        """Return what puts the agent's ids back into a line too long to be held."""
        return Respelling(self.context.calls.spellings(self._request.scope))

    def read(self, content: Message | Batch | Malformed | Outline, text: Text) -> Sequence[Ticket]:
        """Read what passes in any case; return what must be on disk before its last byte leaves."""
        match content:
            case Batch(items=items):
                return [
                    t for item in items if isinstance(item, Message) for t in self.read(item, text)
                ]
            case Malformed():
                self._stray(content, text)
                return ()
            case _ if is_answer(content):
                errand = self._awaited.pop(self._key_of(content), None)
                return (errand.exchange if errand is not None else self._aside).said(content, text)
            case _:
                self._heard(content)
                return self._aside.said(content, text)

    def _key_of(self, message: Message | Outline) -> str:
        """An error without id answers the only request there is (JSON-RPC 2.0 section 5.1)."""
        if nameless_error(message) and len(self._awaited) == 1:
            return next(iter(self._awaited))
        return id_key(raw_id(message))

    def _heard(self, message: Message | Outline) -> None:
        """Note that a call goes on: its progress was reported."""
        token = mcp.progress_token(message)
        for errand in self._awaited.values() if token else ():
            attempt = errand.exchange.attempt
            if attempt is not None and attempt.patience is not None and errand.token == token:
                attempt.patience.heard()

    def _stray(self, content: Malformed, text: Text) -> None:
        """Note a line that is no message: something else in the server writes to its stdout."""
        if content.reason is Unread.EMPTY:
            return
        for attempt in self.context.calls.of(self._request.scope):
            attempt.marks.add(Flag.STRAY_OUTPUT)
        self.context.log.emit(StrayOutput(server=self._request.server, size=text.size))

    # -- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin no attempt any more; what waits for one gets the answer that there is."""
        self.context.stop.set()

    def lost(self, detail: str) -> None:
        """Learn that the server is gone: every open call ends, and nothing else is answered."""
        self.stop()
        for errand in dict.fromkeys(self._awaited.values()):
            attempts = errand.exchange.attempts
            for attempt in attempts:
                attempt.marks.add(Flag.PROCESS_EXIT)
            if attempts:
                phase = errand.exchange.progress.phase
                errand.lost(Failure(ErrorKind.CONNECTION_LOST, phase, detail))
        self._awaited.clear()
        self._count()

    def left(self, kind: ErrorKind) -> None:
        """Record that nobody will learn how what is open ended."""
        for errand in {*self._awaited.values(), *self._resting}:
            errand.exchange.left(kind)


def _line_of(made: Made) -> bytes:
    """Return an answer of turnlog's as a line; nothing where only HTTP has one for it."""
    return made.body + b"\n" if made.status == 200 else b""


def _respelled(attempt: Attempt, raw: bytes) -> bytes:
    """Return an answer with the id that the agent gave."""
    if not attempt.wire_id:
        return raw
    return with_id(raw, attempt.caller_id) or raw
