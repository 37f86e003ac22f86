"""Relays the lines of an agent and of the server that it has started, through a pair of pipes (MCP, stdio).

Each line of the agent is an exchange of its own; the server's lines are matched with them by id. All
lines keep their order, but for the agent's answers to the server, which never wait for a call.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Final

from msgspec import structs

from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.command.process import Process
from turnlog.engine.context import Context
from turnlog.engine.duplicate_index import KEPT
from turnlog.engine.guarded_call import GuardedCall
from turnlog.engine.request_identity import Request
from turnlog.exchange.outcome import JSON, AnswerText, is_answer
from turnlog.record.attempt import Attempt
from turnlog.record.errors import Failure
from turnlog.store.base import StoreError, Ticket
from turnlog.transport.async_pipes import AgentPipes
from turnlog.transport.outbox import OnWritten, Outbox
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
from turnlog.wire.message import LinePiece, LineReader, MessageReader
from turnlog.wire.outcome_key import OutcomeMask, holds_json, without_outcome
from turnlog.wire.splice import Respelling

from .answer_matcher import AbandonedAttempt, AnswerMatcher, LongLine
from .pipe_carrier import PipeCarrier, PipedExchange, Waits, line_of, respelled

_CALL: Final = "tools/call"
HELD: Final = 1 << 20
"""bytes: a longer line of the server leaves while it comes, but for its last piece."""
_WAITS: Final = 16 << 20
"""bytes: a longer line leaves even where only its end tells whether it may."""
_FORGED: Final = (Flag.FORGED_OUTCOME,)


class StdioHandler:
    """Both directions of one pair of pipes; `ServerLines` is the way back."""

    def __init__(
        self,
        context: Context,
        request: Request,
        caller: AgentPipes,
        to_agent: Outbox,
        process: Process,
    ) -> None:
        self.context = context
        self.request = request
        self.to_agent = to_agent
        self.to_server = process.outbox
        self._process = process
        self._caller = caller
        self._cancelled: dict[str, bool] = {}
        """Ids in cancels that are read and wait behind other lines; whether their calls were kept back."""
        self.matcher = AnswerMatcher(context, request, process.startup)
        self._tasks: dict[PipeCarrier, asyncio.Task[None]] = {}
        """Carriers that wait for a slot, or for their next attempt."""
        self._queued: set[PipeCarrier] = set()
        """Carriers that wait for a slot."""
        self._counted: set[PipeCarrier] = set()
        """Carriers that hold a slot."""
        self._waiting: dict[asyncio.Task[None], tuple[str, GuardedCall]] = {}
        """Calls that wait for an earlier one, by the keys of their ids; other lines pass them."""
        self.undelivered: set[PipeCarrier] = set()
        """Guarded calls whose answers are on their way to the agent."""
        self._large: PipeCarrier | None = None
        """The line that goes to the server in pieces right now, where it is recorded."""
        self._large_passes = True
        self.deaf = False
        """Whether the server reads no more."""
        self._gone = False
        """Whether it writes no more either."""
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def attempts(self, work: asyncio.TaskGroup) -> AsyncGenerator[None, None]:
        """Run tasks among `work` until the block ends; then nothing is under way."""
        self._work = work
        try:
            yield
        finally:
            self.stop()
            self._stop_waiting()
            await self.context.duplicate_index.end_all()

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._changed.clear()
            await self._changed.wait()

    async def idle(self) -> None:
        """Wait until nothing is to come for the agent."""
        await self._until(lambda: not (self.matcher.is_awaiting or self._tasks or self._waiting))

    async def all_sent(self) -> None:
        """Wait until nothing waits to be sent, or for an earlier call."""
        await self._until(lambda: not (self._queued or self._waiting))

    def on_change(self) -> None:
        """Release the slots of ended calls, and wake what waits for an end."""
        for carrier in list(self._counted):
            if not carrier.exchange.attempts and carrier not in self._tasks:
                self._counted.discard(carrier)
                carrier.over()
        self._changed.set()

    # -- from the agent to the server ------------------------------------------------------

    def read(self, line: bytes) -> Message | Batch | Malformed:
        """Return the content of a line; a call where a rule may deny one that the server may find in it."""
        content = parse(line, most=BATCH_LIMIT)
        if not self._may_deny:
            return content
        if is_doubtful(content, line) or is_unreadable(line) or hides_call(line):
            # Without an id no answer is expected.
            has_id = isinstance(content, Message) and content.id
            return as_call(content, kind=Kind.REQUEST if has_id else Kind.NOTIFICATION)
        return content

    @property
    def _may_deny(self) -> bool:
        return self.context.rules.book.servers[self.request.server].may_deny_tool_calls

    def passes_at_once(self, content: Message, line: bytes) -> bool:
        """Send a line that answers the server, and return true; only note a cancel."""
        if content.kind in {Kind.RESPONSE, Kind.ERROR}:
            self.context.calls.on_server_request_settled(self.request.scope, id_key(content.id))
            self.to_server.line(line)
            return True
        if (cancelled := mcp.cancelled_id(content)) is not None:
            self._cancelled[cancelled] = False
        return False

    async def forward(self, content: Message | Batch | Malformed, line: bytes) -> None:
        """Record a line and pass it on; where the server is gone, answer its calls."""
        messages = messages_of(content)
        if self._gone and not any(message.method == _CALL for message in messages):
            return
        if not messages:
            self.to_server.line(line)
            return
        if isinstance(content, Message) and self._stays_here(mcp.cancelled_id(content)):
            return
        is_batch = isinstance(content, Batch)
        exchange = PipedExchange(
            self.context, self.request, messages, size=len(line), as_batch=is_batch
        )
        await self._pass_on(exchange, line)

    def _stays_here(self, cancelled: str | None) -> bool:
        """Return whether a cancel must not reach the server: it never heard of the call, or the call
        runs on after its caller got an answer."""
        if cancelled is None:
            return False
        was_kept = self._cancelled.pop(cancelled, False)
        return was_kept or self._leave_joined(cancelled) or self.matcher.is_answered(cancelled)

    async def _pass_on(self, exchange: PipedExchange, line: bytes | None) -> None:
        """Record and pass on a whole line."""
        if (carrier := await self._admitted(exchange, line)) is not None:
            token = mcp.wanted_progress(exchange.messages[0])
            carrier.token = id_key(token) if token else ""
            if carrier.is_free():
                self._send(carrier)
            else:
                self._queued.add(carrier)
                self.later(carrier, self._in_turn(carrier))
            for message in exchange.messages:
                self._on_cancel(mcp.cancelled_id(message))

    def _send(self, carrier: PipeCarrier) -> None:
        if carrier.policy.concurrency is not None:
            self._counted.add(carrier)
        carrier.send()
        if carrier.exchange.awaited:
            self._process.startup.on_request()

    async def _in_turn(self, carrier: PipeCarrier) -> None:
        """Send a line once it has a slot."""
        try:
            await carrier.in_turn()
            self._check_server()
        except Failure as failure:
            self._refuse(carrier.exchange, failure)
        except asyncio.CancelledError:
            self._leave(carrier.exchange)
            raise
        else:
            self._send(carrier)
        finally:
            if carrier not in self._counted:
                carrier.over()
            self._queued.discard(carrier)

    async def forward_piece(self, piece: LinePiece) -> None:
        """Pass on a piece of a line that is too large to hold, which is recorded by its start."""
        if piece.starts:
            self._large = None
            self._large_passes = await self._begins(piece.raw)
        if self._large_passes and not self._gone:
            self.to_server.piece(piece.raw, ends=piece.ends)
        if piece.ends and self._large is not None:
            self._large.on_sent()

    async def _begins(self, start: bytes) -> bool:
        """Record the start of a line; return whether it may pass."""
        message = mcp.start_of(start)
        if message is None and self._may_deny:
            message = as_call(Malformed(Defect.CUT), kind=Kind.NOTIFICATION)
        if message is None or (self._gone and message.method != _CALL):
            return True
        known = start[: mcp.START]
        exchange = PipedExchange(
            self.context, self.request, (message,), size=len(start), start=known, cut=True
        )
        carrier = await self._admitted(exchange, None)
        if carrier is None or not carrier.begin():
            return False
        self._large = carrier
        return True

    async def _admitted(self, exchange: PipedExchange, line: bytes | None) -> PipeCarrier | None:
        """Record a line that is about to leave; where it must not, answer it and return `None`."""
        try:
            await exchange.begin()
            if (driver := exchange.driver) is not None and driver.is_over:
                await self._on_withheld(exchange, driver)
                return None
            carrier = PipeCarrier(self, exchange, line)
            await carrier.queued()
            self._check_server()
            if not (exchange.is_once and await self._is_given_up(exchange)):
                return carrier
            exchange.left(ErrorKind.CANCELLED_BY_CALLER)
            exchange.over()
        except Waits:
            self._wait(exchange, line)
        except StoreError:
            self.answer(line_of(exchange.refused()))
            exchange.over()
        except Failure as failure:
            self._refuse(exchange, failure)
        except asyncio.CancelledError:
            self._leave(exchange)
            raise
        return None

    async def _is_given_up(self, exchange: PipedExchange) -> bool:
        """Return whether the agent is gone, or has cancelled all calls that are about to leave."""
        # After a pause of this process it may have sent the call elsewhere meanwhile.
        keys = [id_key(message.id) for message in exchange.messages]
        if all(key in self._cancelled for key in keys):
            self._cancelled |= dict.fromkeys(keys, True)
            return True
        return await self._caller.is_gone()

    def _check_server(self) -> None:
        """Raise `Failure` where nothing can be sent any more."""
        if self._gone or self.deaf:
            detail = "the command has ended" if self._gone else "the command reads nothing any more"
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.QUEUED, detail)

    def _refuse(self, exchange: PipedExchange, failure: Failure) -> None:
        made, tickets = exchange.failed(failure)
        # A cancelled call gets no answer (MCP, cancellation).
        if failure.kind is not ErrorKind.CANCELLED_BY_CALLER:
            self.answer(line_of(made), tickets)
        exchange.over()

    def _leave(self, exchange: PipedExchange) -> None:
        """Record that a line is not sent, because its caller gave it up."""
        exchange.left(ErrorKind.CONNECT_FAILED)
        exchange.over()

    async def _on_withheld(self, exchange: PipedExchange, driver: CallDriver) -> None:
        """Answer a call that is not sent because of an earlier one, unless its caller took it back."""
        if driver.unsent is not None:
            made = await exchange.answer_unsent(driver.unsent)
            self.answer(line_of(made), (), driver.on_delivered)

    def _wait(self, exchange: PipedExchange, line: bytes | None) -> None:
        """Wait for an earlier call, in a task."""
        call = exchange.waiting
        assert call is not None  # it waits
        if self._gone:
            call.on_server_gone()
        task = self._work.create_task(self._pass_on(exchange, line))
        self._waiting[task] = id_key(exchange.messages[0].id), call
        task.add_done_callback(self._on_joined)
        self.on_change()

    def _on_joined(self, task: asyncio.Task[None]) -> None:
        del self._waiting[task]
        self.on_change()

    def _leave_joined(self, key: str) -> bool:
        """Cancel the newest waiting call with this id; false where there is none."""
        for task, (its, call) in reversed(self._waiting.items()):
            if its == key:
                call.give_up()
                return task.cancel()
        return False

    def _stop_waiting(self) -> None:
        for task, (_, call) in self._waiting.items():
            call.give_up()
            task.cancel()

    def expect(self, carrier: PipeCarrier) -> None:
        """Expect the answers to a line."""
        self.matcher.add(carrier)
        self.on_change()

    def later(self, carrier: PipeCarrier, attempt: Coroutine[None, None, None]) -> None:
        """Make an attempt in a task of its own."""
        task = self._tasks[carrier] = self._work.create_task(attempt)
        task.add_done_callback(lambda _: self._on_attempted(carrier))
        self.on_change()

    def _on_attempted(self, carrier: PipeCarrier) -> None:
        self._tasks.pop(carrier, None)
        self.on_change()

    def give_up(self, carrier: PipeCarrier, attempt: Attempt) -> None:
        """Expect the answers to an attempt no more; those that come are late."""
        self.matcher.give_up(carrier, attempt)
        self.on_change()

    def _on_cancel(self, cancelled: str | None) -> None:
        """Expect no answer to a request that the agent has cancelled; a duplicate might want it."""
        if cancelled is None:
            return
        self.matcher.on_cancel(cancelled)
        for carrier in self.undelivered:
            attempt = carrier.exchange.attempt
            if attempt is not None and attempt.caller_key == cancelled:
                carrier.on_left()
        self.on_change()

    def answer(
        self, line: bytes, tickets: Sequence[Ticket] = (), on_written: OnWritten = None
    ) -> None:
        """Send the agent a line, unless it is empty."""
        if line:
            self.to_agent.line(line, tickets, on_written)
        self.on_change()

    # -- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin no attempt any more; what waits for one is answered with what there is."""
        self.context.stop.set()

    def on_left(self) -> None:
        """Mark the agent as gone."""
        self._stop_waiting()
        for carrier in (*self.matcher, *self._queued, *self.undelivered):
            carrier.on_left()

    async def on_server_end(self) -> bool:
        """End every open call; return whether there was one."""
        startup, untouched = self._process.startup, self._process.is_untouched
        detail = startup.detail if startup.over else "the command has ended"
        self.stop()
        self._gone = True
        answered = False
        for carrier in list(self._queued):
            answered = True
            self._refuse(carrier.exchange, Failure(ErrorKind.CONNECT_FAILED, Phase.QUEUED, detail))
            carrier.over()
        for carrier in self.matcher:
            attempts = carrier.exchange.attempts
            for attempt in attempts:
                attempt.marks.add(Flag.PROCESS_EXIT)
            if attempts:
                answered = answered or any(attempt.ask.is_call for attempt in attempts)
                phase = Phase.CONNECTING if untouched else carrier.exchange.progress.phase
                carrier.on_lost(Failure(startup.loss(untouched=untouched), phase, detail))
        self.matcher.on_end()
        for carrier in self.undelivered:
            carrier.exchange.over()
        answered = answered or bool(self._waiting)
        for _, call in self._waiting.values():
            call.on_server_gone()
        await self._until(lambda: not self._waiting)
        self.on_change()
        return answered


class ServerLines:
    """The lines of the server on their way to the agent."""

    def __init__(self, handler: StdioHandler) -> None:
        self._handler = handler
        self._context = handler.context
        self._request = handler.request
        self._matcher = handler.matcher
        self._to_agent = handler.to_agent
        self._body = MessageReader()
        self._long_line = LongLine.PASSES
        self._kept: list[bytes] = []
        """The pieces of a line of which only the end tells how it goes on."""
        self._held = b""
        self._reader = LineReader(HELD)
        self._mask: OutcomeMask | None = None
        """Overwrites `turnlog/outcome` in a line that comes in pieces."""

    def feed(self, chunk: bytes) -> None:
        """Read a piece of the server's output."""
        for piece in self._reader.feed(chunk):
            self._read(piece)

    def finish(self) -> None:
        """Read a last line without a newline."""
        for piece in self._reader.finish():
            self._read(piece)

    @property
    def _keep(self) -> int:
        """Bytes of one line that are read along: all of an answer that a duplicate may get."""
        keep = self._context.keep
        return max(keep, KEPT) if self._context.duplicate_index.under_way else keep

    def _read(self, piece: LinePiece) -> None:
        """Pass on a line, or the piece before this one of a long one."""
        if piece.starts:
            self._body = MessageReader(self._keep)
        piece = self._clean(piece)
        self._body.feed(piece.raw)
        if piece.starts and piece.ends:
            self._deliver(piece.raw)
            return
        if piece.starts:
            self._long_line = self._matcher.long_line(piece.raw)
            self._respelling = Respelling(self._context.calls.spellings(self._request.scope))
        match self._long_line:
            case LongLine.PASSES:
                self._pass(piece.raw, ends=piece.ends)
            case LongLine.STAYS:
                if piece.ends:
                    self._read_long()
            case LongLine.WAITS:
                self._wait(piece)

    def _clean(self, piece: LinePiece) -> LinePiece:
        """Return a line, or a piece of one, without outcomes in turnlog's name."""
        if piece.starts:
            self._mask = None
            if self._request.server in self._context.trusted:
                return piece
            if piece.ends:
                clean = without_outcome(piece.raw) if holds_json(piece.raw) else None
                if clean is None:
                    return piece
                self._body.notes = _FORGED
                return structs.replace(piece, raw=clean)
            self._mask = OutcomeMask(looks=True)
        if self._mask is None:
            return piece
        raw = self._mask.feed(piece.raw) + (self._mask.finish() if piece.ends else b"")
        if self._mask.found:
            self._body.notes = _FORGED
        return structs.replace(piece, raw=raw)

    # -- whole lines -----------------------------------------------------------------------

    def _deliver(self, raw: bytes) -> None:
        """Pass on a whole line. Whatever goes wrong in reading along, the line goes on."""
        try:
            self._read_whole(raw, self._body)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._context.recorder.faulted(error)
            self._to_agent.line(raw)

    def _read_whole(self, raw: bytes, body: MessageReader) -> None:
        text = AnswerText(body, JSON, len(raw))
        body.finish()
        content = body.content
        if isinstance(content, Message | Outline) and is_answer(content):
            self._deliver_answer(raw, content, text)
        elif isinstance(content, Batch) and any(map(self._matcher.is_replaced, content.items)):
            for _, each in texts_of(content, raw):
                part = MessageReader(self._keep, notes=body.notes)
                part.feed(each)
                self._read_whole(each + b"\n", part)
        else:
            self._to_agent.line(raw, self._matcher.read(content, text))
        self._handler.on_change()

    def _deliver_answer(self, raw: bytes, content: Message | Outline, text: AnswerText) -> None:
        match self._matcher.take(content, text):
            case PipeCarrier() as carrier, tickets:
                carrier.on_answer(raw, tickets)
            case None, tickets:
                self._to_agent.line(raw, tickets)
            case AbandonedAttempt(answered=False, attempt=attempt), tickets:
                self._to_agent.line(respelled(attempt, raw), tickets)
            case _:
                pass  # the agent has got another answer

    # -- lines that are too long to be held ------------------------------------------------

    def _read_long(self) -> tuple[Sequence[Ticket], OnWritten]:
        """Read a whole line; return what its last piece waits for, and what to call once it has left."""
        self._body.finish()
        content = self._body.content
        text = AnswerText(self._body, JSON, self._body.size)
        whose = None
        if isinstance(content, Message | Outline) and is_answer(content):
            whose, tickets = self._matcher.take(content, text)
        else:
            tickets = self._matcher.read(content, text)
        self._handler.on_change()
        return tickets, whose.on_delivery() if isinstance(whose, PipeCarrier) else None

    def _wait(self, piece: LinePiece) -> None:
        self._kept.append(piece.raw)
        if not piece.ends and self._body.size <= _WAITS:
            return
        raw = b"".join(self._kept)
        self._kept.clear()
        if piece.ends:
            self._deliver(raw)
        else:
            self._long_line = LongLine.PASSES
            self._pass(raw, ends=False)

    def _pass(self, raw: bytes, *, ends: bool) -> None:
        raw = self._respelling.feed(raw)
        if self._held:
            self._to_agent.piece(self._held, ends=False)
        self._held = raw
        if ends:
            tickets, on_written = self._read_long()
            last = self._held + self._respelling.finish()
            self._to_agent.piece(last, tickets, on_written, ends=True)
            self._held = b""
