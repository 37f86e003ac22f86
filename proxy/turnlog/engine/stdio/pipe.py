"""Messages through a pair of pipes: between a client and the server that it has started (stdio).

Each line of the agent is an exchange of its own. What the server writes is matched with them by id;
everything keeps its order, but for the agent's answers to the server, which never wait for a call.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.engine.agent_request import Request
from turnlog.engine.command.process import Startup
from turnlog.engine.context import Context
from turnlog.engine.duplicates.deduplication import KEPT
from turnlog.engine.duplicates.duplicate_match import Joins, Repeated
from turnlog.record.attempt import Attempt
from turnlog.record.errors import Failure
from turnlog.record.outcome import JSON, AnswerText, is_answer
from turnlog.store.base import StoreError, Ticket
from turnlog.transport.async_pipes import AgentPipes
from turnlog.transport.outbox import Outbox, Told
from turnlog.wire import mcp
from turnlog.wire.doubt import as_call, hides_call, is_doubtful, is_unreadable
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import (
    BATCH_LIMIT,
    Batch,
    Defect,
    Kind,
    Malformed,
    Message,
    id_key,
    messages_of,
    parse,
    texts_of,
)
from turnlog.wire.message import LinePiece, MessageReader
from turnlog.wire.splice import Respelling

from .errand import PipeCarrier, line_of, respelled
from .joining import WaitingCalls
from .matching import AnswerMatcher
from .piped import PipedExchange
from .turns import QueuedLines

_CALL: Final = "tools/call"


class Pipe:
    """Both directions of one pair of pipes."""

    def __init__(
        self,
        context: Context,
        request: Request,
        caller: AgentPipes,
        to_agent: Outbox,
        to_server: Outbox,
        startup: Startup,
    ) -> None:
        self.context = context
        self.to_agent = to_agent
        self.to_server = to_server
        self._startup = startup
        self._request = request
        self._caller = caller
        self._taken_back: dict[str, bool] = {}
        """Ids in cancels that are read and wait for their turn; whether their calls were not sent for that."""
        self.matching = AnswerMatcher(context, request, startup)
        self._resting: dict[PipeCarrier, asyncio.Task[None]] = {}
        self._joining = WaitingCalls(self._count)
        self.turns = QueuedLines()
        self.unheard: set[PipeCarrier] = set()
        """Guarded calls whose answers are on their way to the agent."""
        self._large: PipeCarrier | None = None
        """What the line asks that goes to the server in pieces right now."""
        self._large_passes = True
        self.deaf = False
        """Whether the server reads nothing any more."""
        self._gone = False
        """Whether it says nothing any more either."""
        self.idle = asyncio.Event()
        """Whether nothing is to come for the agent."""
        self.idle.set()

    @asynccontextmanager
    async def attempts(self, work: asyncio.TaskGroup) -> AsyncGenerator[None, None]:
        """Make further attempts among `work` until the block ends; then nothing is under way."""
        self._work = work
        try:
            yield
        finally:
            self.stop()
            self._joining.leave_all()
            await self.context.repeats.stop()

    # -- from the agent to the server ------------------------------------------------------

    def read(self, line: bytes) -> Message | Batch | Malformed:
        """Return what a line says; a call, where a rule may deny one that the server may find in it."""
        content = parse(line, most=BATCH_LIMIT)
        if not self._may_deny:
            return content
        if is_doubtful(content, line) or is_unreadable(line) or hides_call(line):
            return as_call(content, kind=_kind_of(content))
        return content

    @property
    def _may_deny(self) -> bool:
        return self.context.rules.book.may_deny_tool_calls(self._request.server)

    def answered(self, content: Message, line: bytes) -> bool:
        """Pass on a line that answers the server, at once; false where it is anything else."""
        if content.kind not in {Kind.RESPONSE, Kind.ERROR}:
            return False
        self.context.calls.told(self._request.scope, id_key(content.id))
        self.to_server.line(line)
        return True

    def on_cancel_read(self, content: Message) -> None:
        """Note a cancel that waits for its turn behind other lines: its call may not have been sent."""
        if (cancelled := mcp.cancelled_id(content)) is not None:
            self._taken_back[cancelled] = False

    async def forward(self, content: Message | Batch | Malformed, line: bytes) -> None:
        """Record what a line asks, and pass it on; where the server is gone, answer its calls."""
        messages = messages_of(content)
        if self._gone and not any(message.method == _CALL for message in messages):
            return
        if not messages:
            self.to_server.line(line)
            return
        if isinstance(content, Message) and self._stays_here(mcp.cancelled_id(content)):
            return
        exchange = PipedExchange(
            self.context,
            self._request,
            messages,
            size=len(line),
            as_batch=isinstance(content, Batch),
        )
        await self._pass_on(exchange, line)

    def _stays_here(self, cancelled: str | None) -> bool:
        """Return whether a cancel is for a call that the server never heard of, which waits no more then, or
        for one that runs on after its caller got an answer: the server must not end that."""
        if cancelled is None:
            return False
        was_kept = self._taken_back.pop(cancelled, False)
        return was_kept or self._joining.leave(cancelled) or self.matching.is_answered(cancelled)

    async def _pass_on(self, exchange: PipedExchange, line: bytes | None) -> None:
        """Record and pass on a whole line."""
        if (errand := await self._admitted(exchange, line)) is not None:
            token = mcp.wanted_progress(exchange.messages[0])
            errand.token = id_key(token) if token else ""
            if errand.is_free():
                self._send(errand)
            else:
                self.turns.queue(errand)
                self.later(errand, self._in_turn(errand))
            for message in exchange.messages:
                self._note_cancel(message)

    def _send(self, errand: PipeCarrier) -> None:
        self.turns.sent(errand)
        errand.send()
        if errand.exchange.awaited:
            self._startup.on_request()

    async def _in_turn(self, errand: PipeCarrier) -> None:
        """Send an errand when its turn has come: nothing else waits for it."""
        with self.turns.waiting(errand):
            try:
                await errand.in_turn()
                self._still_goes()
            except Failure as failure:
                self._refuse(errand.exchange, failure)
            except asyncio.CancelledError:
                self._leave(errand.exchange)
                raise
            else:
                self._send(errand)

    async def forward_piece(self, piece: LinePiece) -> None:
        """Pass on a piece of a line that is too large to hold; record what its start asks."""
        if piece.starts:
            self._large, self._large_passes = None, await self._begins(piece.raw)
        if self._large_passes and not self._gone:
            self.to_server.piece(piece.raw, ends=piece.ends)
        if piece.ends and self._large is not None:
            self._large.sent()

    async def _begins(self, start: bytes) -> bool:
        """Record what the start of a line asks; tell whether it may pass."""
        message = mcp.start_of(start)
        if message is None and self._may_deny:
            message = as_call(Malformed(Defect.CUT), kind=Kind.NOTIFICATION)
        if message is None or (self._gone and message.method != _CALL):
            return True
        exchange = PipedExchange(
            self.context,
            self._request,
            (message,),
            size=len(start),
            start=start[: mcp.START],
            cut=True,
        )
        self._large = await self._admitted(exchange, None)
        if self._large is None:
            return False
        if not self._large.begin():
            self._large = None
            return False
        return True

    async def _admitted(self, exchange: PipedExchange, line: bytes | None) -> PipeCarrier | None:
        """Record what is about to leave; where it must not, answer, and return nothing."""
        try:
            await exchange.begin()
            errand = PipeCarrier(self, exchange, line)
            await errand.queued()
            self._still_goes()
            if exchange.is_once and await self._is_given_up(exchange):
                exchange.left(ErrorKind.CANCELLED_BY_CALLER)
                exchange.over()
                return None
        except Repeated as repeated:
            await self._repeat(exchange, repeated)
        except Joins as joins:
            await self._join(exchange, line, joins)
        except StoreError:
            self.say(line_of(exchange.refused()))
            exchange.over()
        except Failure as failure:
            self._refuse(exchange, failure)
        except asyncio.CancelledError:
            self._leave(exchange)
            raise
        else:
            return errand
        return None

    async def _is_given_up(self, exchange: PipedExchange) -> bool:
        """Return whether the agent has closed its pipes, or taken back all calls that are about to leave.

        After a pause of this process it may have asked elsewhere meanwhile.
        """
        keys = [id_key(message.id) for message in exchange.messages]
        if all(key in self._taken_back for key in keys):
            self._taken_back |= dict.fromkeys(keys, True)
            return True
        return await self._caller.is_gone()

    def _still_goes(self) -> None:
        """Raise `Failure` where nothing can be sent any more."""
        if self._gone or self.deaf:
            detail = "the command has ended" if self._gone else "the command reads nothing any more"
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.QUEUED, detail)

    def _refuse(self, exchange: PipedExchange, failure: Failure) -> None:
        made, tickets = exchange.failed(failure)
        # Nobody answers what was cancelled (MCP, cancellation).
        if failure.kind is not ErrorKind.CANCELLED_BY_CALLER:
            self.say(line_of(made), tickets)
        exchange.over()

    def _leave(self, exchange: PipedExchange) -> None:
        """Record that nothing of a line is sent, because nobody waits for that any more."""
        exchange.left(ErrorKind.CONNECT_FAILED)
        exchange.over()

    async def _repeat(self, exchange: PipedExchange, repeated: Repeated) -> None:
        """Answer a call that is not sent, because of an earlier one."""
        made = await exchange.retold(repeated)
        self.say(line_of(made), (), partial(self.context.repeats.arrived, repeated))

    async def _join(self, exchange: PipedExchange, line: bytes | None, joins: Joins) -> None:
        """Let a call wait for an earlier one; who is gone does not tell what came of it."""
        if self._gone:
            await self._repeat(exchange, self.context.repeats.unknown(joins))
        else:
            exchange.joins = joins
            key = id_key(exchange.messages[0].id)
            self._joining.add(self._work, key, self._pass_on(exchange, line))

    async def all_sent(self) -> None:
        """Wait until nothing waits to be sent, or for an earlier call behind which it may yet be."""
        while self._joining or not self.turns.all_sent.is_set():
            await self._joining.over()
            await self.turns.all_sent.wait()

    def expect(self, errand: PipeCarrier) -> None:
        """Wait for what answers an errand."""
        for key in errand.exchange.awaited:
            self.matching.awaited.add(key, errand)
        self._count()

    def later(self, errand: PipeCarrier, attempt: Coroutine[None, None, None]) -> None:
        """Make another attempt of an errand in its own time."""
        task = self._resting[errand] = self._work.create_task(attempt)
        task.add_done_callback(lambda _: self._rested(errand))
        self._count()

    def _rested(self, errand: PipeCarrier) -> None:
        self._resting.pop(errand, None)
        self._count()

    def _count(self) -> None:
        if self.matching.awaited or self._resting or self._joining:
            self.idle.clear()
        else:
            self.idle.set()
        self.turns.settle(self._resting)

    def give_up(self, errand: PipeCarrier, attempt: Attempt) -> None:
        """Wait for an attempt's answer no more; if it comes all the same it is late."""
        self.matching.give_up(errand, attempt)
        self._count()

    def _note_cancel(self, message: Message) -> None:
        """The agent took a request back: nobody has to answer it any more, but somebody might."""
        cancelled = mcp.cancelled_id(message)
        if cancelled is None:
            return
        self.matching.taken_back(cancelled)
        for errand in self.unheard:
            attempt = errand.exchange.attempt
            if attempt is not None and attempt.caller_key == cancelled:
                errand.left()
        self._count()

    # -- from the server to the agent ------------------------------------------------------

    def deliver(self, raw: bytes, body: MessageReader) -> None:
        """Read a whole line of the server's, and pass it on."""
        text = AnswerText(body, JSON, len(raw))
        body.finish()
        content = body.content
        if isinstance(content, Message | Outline) and is_answer(content):
            self._deliver_answer(raw, content, text)
        elif isinstance(content, Batch) and any(map(self.matching.is_replaced, content.items)):
            self._deliver_each(raw, content, body.notes)
        else:
            self.to_agent.line(raw, self.matching.read(content, text))
        self._count()

    def _deliver_each(self, raw: bytes, batch: Batch, notes: tuple[Flag, ...]) -> None:
        """Pass on the messages of an array one by one."""
        for _, each in texts_of(batch, raw):
            body = MessageReader(self.keep, notes=notes)
            body.feed(each)
            self.deliver(each + b"\n", body)

    def _deliver_answer(self, raw: bytes, content: Message | Outline, text: AnswerText) -> None:
        key = self.matching.key_of(content)
        errand, past = self.matching.awaited.find(key), self.matching.past.find(key)
        tickets = self.matching.read(content, text)
        if errand is not None:
            errand.came(raw, tickets)
        elif past is None:
            self.to_agent.line(raw, tickets)
        elif not past.answered:
            self.to_agent.line(respelled(past.attempt, raw), tickets)

    def say(self, line: bytes, tickets: Sequence[Ticket] = (), told: Told | None = None) -> None:
        """Give the agent an answer, if there is one."""
        if line:
            self.to_agent.line(line, tickets, told)
        self._count()

    @property
    def is_trusted(self) -> bool:
        """Whether the server may say how a call ended in turnlog's name."""
        return self._request.server in self.context.trusted

    @property
    def keep(self) -> int:
        """Bytes of one line that are read along: all of an answer that may be given again."""
        keep = self.context.keep
        return max(keep, KEPT) if self.context.repeats.under_way else keep

    def passing(self, body: MessageReader) -> tuple[Sequence[Ticket], Told | None]:
        """Read a line that is too long to be held; return what its last piece has to wait for, and
        who wants to know that it has left."""
        body.finish()
        content = body.content
        errand = None
        if isinstance(content, Message | Outline) and is_answer(content):
            errand = self.matching.awaited.find(self.matching.key_of(content))
        tickets = self.matching.read(content, AnswerText(body, JSON, body.size))
        self._count()
        return tickets, errand.given() if errand is not None else None

    def respelling(self) -> Respelling:
        """Return what puts the agent's ids back into a line too long to be held."""
        return Respelling(self.context.calls.spellings(self._request.scope))

    # -- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin no attempt any more; what waits for one gets the answer that there is."""
        self.context.stop.set()

    def left(self) -> None:
        """Learn that the agent is gone."""
        self._joining.leave_all()
        for errand in (*self.matching.awaited, *self.turns, *self.unheard):
            errand.left()

    async def lost(self, detail: str, *, untouched: bool) -> bool:
        """End every open call, and answer nothing else; return whether there was one.

        The server is gone; `untouched` tells whether it has read nothing.
        """
        self.stop()
        self._gone = True
        answered = False
        for errand in self.turns:
            answered = True
            self._refuse(errand.exchange, Failure(ErrorKind.CONNECT_FAILED, Phase.QUEUED, detail))
            errand.over()
        for errand in self.matching.awaited:
            attempts = errand.exchange.attempts
            for attempt in attempts:
                attempt.marks.add(Flag.PROCESS_EXIT)
            if attempts:
                answered = answered or any(attempt.ask.is_call for attempt in attempts)
                phase = Phase.CONNECTING if untouched else errand.exchange.progress.phase
                errand.lost(Failure(self._startup.loss(untouched=untouched), phase, detail))
        self.matching.lost()
        for errand in self.unheard:
            errand.exchange.over()
        answered = answered or bool(self._joining)
        await self._joining.over()
        self._count()
        return answered


def _kind_of(content: Message | Batch | Malformed) -> Kind:
    """Return what a line is that is denied: who gave no id waits for no answer."""
    return Kind.REQUEST if isinstance(content, Message) and content.id else Kind.NOTIFICATION
