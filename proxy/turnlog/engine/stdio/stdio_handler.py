"""Passes the lines of an agent on to the server that it has started, in order (MCP, stdio).

Each line is an exchange of its own. The agent's answers to the server never wait for a call, and a call
that waits for an earlier one holds up no other line.
"""

import asyncio
from functools import partial
from typing import Final

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.command.process import Process
from turnlog.engine.request_identity import Request
from turnlog.exchange.call import Stage
from turnlog.record.errors import Failure
from turnlog.store.base import StoreError
from turnlog.transport.async_pipes import AgentPipes
from turnlog.wire import mcp
from turnlog.wire.doubt import as_call, hides_call, is_doubtful, is_unreadable
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
)
from turnlog.wire.message import LinePiece

from .pipe_carrier import BUG, LargeLine, OpenLines, PipeCarrier, PipedExchange, Waits, line_of

_CALL: Final = "tools/call"
_QUESTIONS: Final = 1024
"""Most open requests of the server that are remembered; the answers to others stay in order."""


class StdioHandler:
    """The way from the agent to the server; `ServerLines` is the way back."""

    def __init__(
        self, lines: OpenLines, request: Request, agent: AgentPipes, process: Process
    ) -> None:
        self.context = lines.context
        self.request = request
        self.lines = lines
        lines.check_server = self._check_server
        self.process = process
        self._to_server = lines.to_server
        self._agent = agent
        self._cancelled: dict[str, bool] = {}
        """Ids in cancels that are read and wait behind other lines; whether their calls were kept back."""
        self.questions: BoundedDict[str, bool] = BoundedDict(_QUESTIONS)
        """The open requests of the server, by the keys of their ids."""
        self._large: LargeLine | None = None
        """The latest line that comes in pieces."""
        self._gone = False
        """Whether the server writes no more."""

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

    def answers_question(self, content: Message) -> bool:
        """Return whether a message answers an open request of the server; only note a cancel."""
        key = id_key(content.id)
        if content.kind in {Kind.RESPONSE, Kind.ERROR} and self.questions.pop(key, False):
            self.context.calls.on_server_request_settled(self.request.scope, key)
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
            self._to_server.line(line)
            return
        if isinstance(content, Message) and self._stays_here(mcp.cancelled_id(content)):
            return
        is_batch = isinstance(content, Batch)
        exchange = PipedExchange(
            self.context, self.request, messages, size=len(line), as_batch=is_batch
        )
        await self._pass_on(PipeCarrier(self.lines, exchange, line))

    def _stays_here(self, cancelled: str | None) -> bool:
        """Return whether a cancel must not reach the server: it never heard of the call, or the call
        runs on after its agent got an answer."""
        if cancelled is None:
            return False
        was_kept = self._cancelled.pop(cancelled, False)
        return was_kept or self._take_back(cancelled) or self.lines.is_answered(cancelled)

    async def _pass_on(self, line: PipeCarrier) -> None:
        """Record and pass on a whole line."""
        if not await self._is_admitted(line):
            return
        messages = line.exchange.messages
        token = mcp.wanted_progress(messages[0])
        line.token = id_key(token) if token else ""
        line.waits_for = None
        self._begin(line)
        for message in messages:
            if (cancelled := mcp.cancelled_id(message)) is not None:
                self.lines.on_cancel(cancelled)

    def _begin(self, line: PipeCarrier, large: LargeLine | None = None) -> None:
        """Send a recorded line, `large` in pieces, or let it wait for a slot in a task."""
        if not line.begin():
            line.is_queued = True
            self.lines.later(line, self._in_turn(line, large))
            return
        self._on_begun(line)
        if large is not None:
            large.decide(passes=line.is_begun)

    def _on_begun(self, line: PipeCarrier) -> None:
        if line.exchange.awaited:
            self.process.startup.on_request()

    async def _in_turn(self, line: PipeCarrier, large: LargeLine | None) -> None:
        """Send a line once it has a slot, `large` in pieces; answer it where it must not be sent any more."""
        passes = False
        try:
            await line.in_turn()
            self._on_begun(line)
            passes = line.is_begun
        except Failure as failure:
            self._refuse(line.exchange, failure)
        except asyncio.CancelledError:
            self._leave(line.exchange)
            raise
        finally:
            line.is_queued = False
            if large is not None:
                large.decide(passes=passes)

    async def forward_piece(self, piece: LinePiece) -> None:
        """Pass on a piece of a line that is too large to hold, which is recorded by its start."""
        if piece.starts:
            self._large = await self._begun(piece.raw)
        assert self._large is not None  # its start came before
        if not self._gone:
            self._large.feed(piece)

    async def _begun(self, start: bytes) -> LargeLine:
        """Record the start of a line; return what takes its pieces."""
        message = mcp.start_of(start)
        if message is None and self._may_deny:
            message = as_call(Malformed(Defect.CUT), kind=Kind.NOTIFICATION)
        if message is None or (self._gone and message.method != _CALL):
            return LargeLine(self._to_server, None, passes=True)
        known = start[: mcp.START]
        exchange = PipedExchange(
            self.context, self.request, (message,), size=len(start), start=known, cut=True
        )
        line = PipeCarrier(self.lines, exchange, None)
        if not await self._is_admitted(line):
            return LargeLine(self._to_server, None, passes=False)
        large = LargeLine(self._to_server, line, passes=None)
        self._begin(line, large)
        return large

    async def _is_admitted(self, line: PipeCarrier) -> bool:
        """Record a line that is about to leave; where it must not, answer it and return false."""
        exchange = line.exchange
        try:
            await exchange.begin()
            if (driver := exchange.driver) is not None and driver.is_over:
                await self._on_withheld(exchange, driver)
                return False
            await line.queued()
            self._check_server()
            if not await self._is_given_up(exchange):
                return True
            self._leave(exchange, ErrorKind.CANCELLED_BY_CALLER)
        except Waits:
            self._wait(line)
        except StoreError:
            self.lines.answer(line_of(exchange.refused()))
            exchange.over()
        except Failure as failure:
            for each in exchange.drivers:
                await self.context.recorder.opened(each.attempt)
            self._refuse(exchange, failure)
        except asyncio.CancelledError:
            self._leave(exchange)
            raise
        return False

    async def _is_given_up(self, exchange: PipedExchange) -> bool:
        """Return whether a line must not leave, as the agent is gone or has cancelled all of it."""
        # A call with a named effect or a key must happen once at most; others go as without turnlog.
        if not any(attempt.ask.may_be_guarded for attempt in exchange.attempts):
            return False
        # After a pause of this process it may have sent the call elsewhere meanwhile.
        keys = [id_key(message.id) for message in exchange.messages]
        if all(key in self._cancelled for key in keys):
            self._cancelled |= dict.fromkeys(keys, True)
            return True
        return await self._agent.is_gone()

    def _check_server(self) -> None:
        """Raise `Failure` where nothing can be sent any more."""
        if self._gone or self._to_server.is_closing:
            detail = "the command has ended" if self._gone else "the command reads nothing any more"
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.QUEUED, detail)

    def _refuse(self, exchange: PipedExchange, failure: Failure) -> None:
        made, tickets = exchange.failed(failure)
        # A cancelled call gets no answer (MCP, cancellation).
        if failure.kind is not ErrorKind.CANCELLED_BY_CALLER:
            self.lines.answer(line_of(made), tickets)
        exchange.over()

    def _leave(self, exchange: PipedExchange, kind: ErrorKind = ErrorKind.CONNECT_FAILED) -> None:
        """Record that a line is not sent, because its agent gave it up."""
        exchange.left(kind)
        exchange.over()

    async def _on_withheld(self, exchange: PipedExchange, driver: CallDriver) -> None:
        """Answer a call that is not sent because of an earlier one, unless its agent took it back."""
        if driver.machine.stage is Stage.BROKEN:
            self._refuse(exchange, Failure(ErrorKind.OUTCOME_UNKNOWN, Phase.QUEUED, BUG))
        elif (unsent := driver.unsent) is not None:
            await self.context.recorder.opened(unsent.attempt)
            if unsent.attempt.waits and unsent.attempt.outcome is not None:
                await self.context.recorder.settle([unsent.attempt.outcome])
            on_written = partial(self.lines.on_delivered, driver)
            self.lines.answer(line_of(exchange.repeated(unsent)), (), on_written)

    def _wait(self, line: PipeCarrier) -> None:
        """Wait for an earlier call, in a task; other lines pass it."""
        call = line.waits_for = line.exchange.waiting
        assert call is not None  # it waits
        if self._gone:
            call.on_server_gone()
        self.lines.later(line, self._pass_on(line))

    def _take_back(self, key: str) -> bool:
        """Cancel the newest call with this id that waits to be sent; false where there is none."""
        for line, task in reversed(self.lines.tasks.items()):
            if id_key(line.exchange.messages[0].id) != key:
                continue
            if line.waits_for is not None:
                line.waits_for.give_up()
                return task.cancel()
            if line.is_queued:
                return self.context.calls.cancel(self.request.scope, key) is not None
        return False

    # -- the end ---------------------------------------------------------------------------

    async def on_server_end(self) -> bool:
        """End every open call; return whether there was one."""
        startup, untouched = self.process.startup, self.process.stdin.is_untouched
        detail = startup.detail if startup.over else "the command has ended"
        self.context.stop.set()
        self._gone = True
        waiting = [line.waits_for for line in self.lines.tasks if line.waits_for is not None]
        answered = bool(waiting)
        for line in [line for line in self.lines.tasks if line.is_queued]:
            answered = True
            self._refuse(line.exchange, Failure(ErrorKind.CONNECT_FAILED, Phase.QUEUED, detail))
            line.release_slot()
        for line in list(self.lines.tasks):
            line.end_rest()
        for line in self.lines.sent():
            attempts = line.exchange.attempts
            for attempt in attempts:
                attempt.marks.add(Flag.PROCESS_EXIT)
            if attempts:
                answered = answered or any(attempt.ask.is_call for attempt in attempts)
                phase = Phase.CONNECTING if untouched else line.exchange.progress.phase
                line.on_lost(Failure(startup.loss(untouched=untouched), phase, detail))
        self.lines.on_server_end()
        for call in waiting:
            call.on_server_gone()
        await self.lines.until(lambda: not any(line.waits_for for line in self.lines.tasks))
        self.lines.on_change()
        return answered
