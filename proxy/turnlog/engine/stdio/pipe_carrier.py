"""The lines of an agent on a pipe that are not settled: their attempts, and which answers the agent gets.

No answer belongs to a line as a whole: each message of the server comes by itself.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct, structs

from turnlog.core.classify import ending_of_call, failed
from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.context import Context
from turnlog.engine.guarded_call import GuardedCall, guarded
from turnlog.engine.mcp.mcp_exchange import McpExchange
from turnlog.engine.retry_wait import RetryWait
from turnlog.exchange.call import Stage
from turnlog.exchange.events import CallerChecked, Left, Overdue
from turnlog.exchange.open_requests import OpenRequests
from turnlog.exchange.outcome import AnswerFacts
from turnlog.record.attempt import Ask, Attempt, blocked
from turnlog.record.deadlines import Deadlines, Progress, in_time
from turnlog.record.errors import Failure
from turnlog.record.own_answers import JSON, OwnAnswer, amended
from turnlog.rules.policy import Policy
from turnlog.rules.retry import StopReason
from turnlog.store.base import Ticket
from turnlog.transport.outbox import OnWritten, Outbox
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Message, id_key
from turnlog.wire.message import LinePiece, MessageReader
from turnlog.wire.splice import with_id

_NO_RULES: Final = Policy()
BUG: Final = "an internal error of turnlog ended the call"


class Waits(Exception):
    """A call waits for an earlier one: beside its line, as others are behind that."""


class PipedExchange(McpExchange, eq=False):
    """The messages of one line, and the calls in it."""

    waiting: GuardedCall | None = None
    """Its call, while that waits for an earlier one."""

    async def begin(self) -> None:
        """Queue the intents. Raises `StoreError`, and `Waits` where an earlier call has to be waited for."""
        if self.waiting is not None:
            await self.waiting.decided()
        await super().begin()

    def _guarded_call(self, ask: Ask) -> GuardedCall | None:
        # On a pipe no revision cancels by closing a stream.
        call, self.waiting = self.waiting, None
        return call or guarded(self._context.duplicate_index, ask, stateless=False, is_piped=True)

    async def _decided(self, call: GuardedCall, key: str) -> None:
        call.begin()
        if call.machine.is_undecided:
            self.waiting = call
            raise Waits

    def kept(self, sent: OwnAnswer | None) -> OwnAnswer | None:
        """Return the whole response, for a duplicate."""
        message = self.attempt.message.strip() if self.attempt is not None else b""
        return OwnAnswer(200, b"OK", JSON, message) if message else sent

    def over(self) -> None:
        """Mark the call as over, for duplicates that wait for it."""
        for driver in self.drivers:
            if driver.is_guarded:
                self._context.duplicate_index.over(driver, self.kept(driver.kept))
            else:
                driver.close()

    @property
    def messages(self) -> Sequence[Message]:
        """The messages of its line."""
        return self._messages

    def on_message(self, message: Message | Outline, body: MessageReader) -> Sequence[Ticket]:
        """Read one message of the server."""
        self.progress.phase = Phase.BODY
        return self.message(message, body)

    def late(
        self, attempt: Attempt, message: Message | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        """Read the answer to an attempt that was given up before it came."""
        is_retried = self.driver is not None and self.driver.may_give_late(attempt)
        tickets = super().late(attempt, message, body)
        if attempt is self.attempt and not is_retried:
            self.over()
        return tickets

    def broken_off(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record that a pipe is closed; return the answer to the calls that are open, and only those."""
        open_ids = {each.caller_key for each in self.attempts if each.ask.is_call}
        self.progress.phase = failure.phase
        unanswered = self._unanswered(failure)
        calls = [asked for asked in unanswered.requests if id_key(asked.id) in open_ids]
        unanswered = structs.replace(unanswered, requests=calls)
        tickets = self._end_all(failure.kind, failure.detail, unanswered.said)
        return self._made(unanswered), tickets

    def on_bug(self, attempt: Attempt) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record one attempt as failed because of a bug; return the answer to its request alone."""
        failure = Failure(ErrorKind.OUTCOME_UNKNOWN, self.progress.phase, BUG)
        unanswered = self._unanswered(failure)
        asked = [each for each in unanswered.requests if id_key(each.id) == attempt.caller_key]
        ending = failed(failure.kind, failure.phase, attempt.ask.effect)
        reply = AnswerFacts(detail=failure.detail, said=unanswered.said)
        tickets = self.end(attempt, ending, reply)
        whole = ending_of_call(ending, attempt.past)
        return self._made(structs.replace(unanswered, requests=asked, ending=whole)), tickets

    def on_cancel(self, key: str) -> list[str]:
        """Mark the agent of the open calls with this id as gone, because it has cancelled them.

        Returns the keys of the ids by which the server knows the request.
        """
        found: list[str] = []
        for attempt, wire_key in list(self.attempts.items()):
            if attempt.driver is not None and attempt.is_cancelled and attempt.caller_key == key:
                found.append(wire_key)
                # An agent that has cancelled ignores any answer (MCP, cancellation).
                attempt.driver.feed(Left())
        if self._own(key) is None and self.awaited.pop(key, None) is not None:
            found.append(key)
        return found


class AwaitedAnswer(Struct, eq=False):
    """An answer that the server owes to a line, or owed until the attempt was given up."""

    carrier: "PipeCarrier"
    attempt: Attempt | None
    """The attempt that it answers; `None` for what is no call."""
    is_replaced: bool = False
    """Whether the agent has got another answer in its place."""


class OpenLines:
    """The lines of one agent that are not settled, and the two outboxes that they go through."""

    def __init__(self, context: Context, to_server: Outbox, to_agent: Outbox) -> None:
        self.context = context
        self.to_server = to_server
        self.to_agent = to_agent
        self.requests: OpenRequests[AwaitedAnswer] = OpenRequests()
        """The answers that the server owes, by the ids that it knows."""
        self.tasks: dict[PipeCarrier, asyncio.Task[None]] = {}
        """Lines that wait for an earlier call, for a slot, or for their next attempt."""
        self.undelivered: set[PipeCarrier] = set()
        """Guarded calls whose answers are on their way to the agent."""
        self._unread: deque[tuple[int, CallDriver]] = deque()
        """Guarded calls whose answers have left, and may be unread: where each answer ends in the stream."""
        self.counted: set[PipeCarrier] = set()
        """Lines that a rule counts: each gives its slot back once it has ended."""
        self.check_server: Callable[[], None]
        """Raises `Failure` where nothing can be sent any more."""
        self._changed = asyncio.Event()

    def sent(self) -> list["PipeCarrier"]:
        """Return the lines without an answer, each once, oldest first."""
        return list(dict.fromkeys(one.carrier for one in self.requests))

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until the lines are so."""
        while not done():
            self._changed.clear()
            await self._changed.wait()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to come for the agent."""
        return not (self.requests or self.tasks)

    @property
    def is_all_sent(self) -> bool:
        """Whether nothing waits to be sent, for the first time or again."""
        return not self.tasks

    def on_change(self) -> None:
        """Release the slots of ended calls, and wake what waits for an end."""
        for line in list(self.counted):
            if not line.exchange.attempts and line not in self.tasks:
                self.counted.discard(line)
                line.release_slot()
        self._changed.set()

    @asynccontextmanager
    async def running(self, work: asyncio.TaskGroup) -> AsyncGenerator[None, None]:
        """Run the tasks of lines among `work` until the block ends; then nothing is under way."""
        self._work = work
        try:
            yield
        finally:
            self.context.stop.set()
            self.stop_waiting()
            self._check_read()
            await self.context.duplicate_index.end_all()

    def stop_waiting(self) -> None:
        """Send no line that waits for an earlier call."""
        for line, task in self.tasks.items():
            if line.waits_for is not None:
                line.waits_for.give_up()
                task.cancel()

    def later(self, line: "PipeCarrier", step: Coroutine[None, None, None]) -> None:
        """Do something for a line in a task, beside the other lines."""
        task = self.tasks[line] = self._work.create_task(step)
        task.add_done_callback(lambda _: self._on_task_done(line, task))
        self.on_change()

    def _on_task_done(self, line: "PipeCarrier", task: asyncio.Task[None]) -> None:
        if self.tasks.get(line) is task:  # else it has begun another one
            del self.tasks[line]
        self.on_change()

    def answer(
        self, line: bytes, tickets: Sequence[Ticket] = (), on_written: OnWritten = None
    ) -> None:
        """Send the agent a line, unless it is empty."""
        if line:
            self.to_agent.line(line, tickets, on_written)
        self.on_change()

    def is_answered(self, key: str) -> bool:
        """Return whether the agent's call with this id runs on though the agent got an answer."""
        if any(line.is_call(key) for line in self.sent()):
            return False
        late = ((one, one.attempt) for one in self.requests.given_up)
        return any(
            one.is_replaced and call is not None and call.caller_key == key and call.is_guarded
            for one, call in late
        )

    def on_cancel(self, key: str) -> None:
        """Expect no answer to the request that the agent has cancelled; a duplicate might want it."""
        for line in self.sent():
            line.on_cancel(key)
        for line in self.undelivered:
            if line.is_call(key):
                line.on_left()
        self.on_change()

    def on_left(self) -> None:
        """Mark the agent as gone."""
        self.stop_waiting()
        unsent = [line for line in self.tasks if line.is_queued or line.is_resting]
        for line in (*self.sent(), *unsent, *self.undelivered):
            line.on_left()
        self._check_read()

    def on_delivered(self, driver: CallDriver) -> None:
        """Mark the answer to a guarded call as handed over whole."""
        driver.on_delivered()
        end = self.to_agent.end
        while self._unread and self._unread[0][0] <= end.taken:
            self._unread.popleft()
        self._unread.append((end.written, driver))

    def _check_read(self) -> None:
        """Mark answers as undelivered that the agent, if it is gone, has left in the pipe (decision 81)."""
        while self._unread and not self.to_agent.end.is_read:
            position, driver = self._unread.popleft()
            if position > self.to_agent.end.taken:
                driver.on_late_cancel(at_any_time=True)

    def on_server_end(self) -> None:
        """Record that no answer will come any more."""
        self.requests.clear()
        for one in self.requests.given_up:
            attempt, exchange = one.attempt, one.carrier.exchange
            if attempt is not None and not attempt.ended:
                attempt.marks.add(Flag.PROCESS_EXIT)
                exchange.left(ErrorKind.CONNECTION_LOST)
            if attempt is exchange.attempt:
                exchange.over()
        for line in self.undelivered:
            line.exchange.over()


class PipeCarrier:
    """Carries one line, and its call if it holds exactly one (`engine.call_driver.Carrier`)."""

    has_left = False
    """Whether some of the answer has left: lines leave whole."""
    is_held = True
    may_be_gone = False
    can_answer_timeout = True

    policy = _NO_RULES
    """The policy of its call; without a call that of no rules."""
    token = ""
    """Key of its progress token; empty for none."""
    is_queued = False
    """Whether it waits for a slot."""
    is_resting = False
    """Whether it is between two attempts."""
    is_begun = False
    """Whether the latest attempt is being sent, or was."""
    waits_for: GuardedCall | None = None
    """Its call, if that waits for an earlier one, until it is sent or answered."""

    def __init__(self, lines: OpenLines, exchange: PipedExchange, line: bytes | None) -> None:
        """`line` is `None` where it comes in pieces, and cannot be sent again."""
        self._lines = lines
        self.context = lines.context
        self._line = line
        self._next: bytes | None = None
        """The line of the attempt to send."""
        self._began = 0.0
        self._held: dict[int, tuple[Attempt | None, bytes, Sequence[Ticket]]] = {}
        """Answers by the numbers of their attempts; 0 where there is no call."""
        self._awaited: dict[str, AwaitedAnswer] = {}
        """What the server was asked with the latest attempt."""
        self.exchange = exchange

    def is_call(self, key: str) -> bool:
        """Return whether its call has this id, as the agent knows it."""
        attempt = self.exchange.attempt
        return attempt is not None and attempt.caller_key == key

    # -- what carries a call ----------------------------------------------------------------

    def check_caller(self) -> None:
        """Go on: an agent that is gone shows it as its pipe closes (`may_be_gone`)."""
        self._driver.feed(CallerChecked())

    def send(self, *, hold: bool) -> None:
        """Send the latest attempt of its one call; where its line comes in pieces, only begin it."""
        if self.exchange.driver is not None:  # else they leave together
            self._attempt()

    def rest(self, delay: float) -> None:
        """Begin another attempt after `delay` seconds; the answer to the latest one is held."""
        self.is_resting = True
        self._lines.later(self, self._again(delay))

    def release(self, number: int, reason: StopReason | None) -> None:
        """Send the agent the answer to attempt `number` if it is held; `reason` is why no retry follows."""
        if number in self._held:  # else it is just being judged, and leaves by itself
            last, *_ = self._held[max(self._held)]
            if last is not None and reason is not None:
                self.context.recorder.abandoned(last, reason)
            if reason is StopReason.CANCELLED:  # it gets no answer (MCP, cancellation)
                self._held.clear()
            self._give(number)

    def hold(self, late: Attempt) -> None:
        """Hold the late answer to an attempt in place of turnlog's own."""
        if late.ask.number in self._held:  # else the agent has got that
            raw = respelled(late, late.message.strip() + b"\n")
            tickets = (late.outcome,) if late.waits and late.outcome is not None else ()
            self._held[late.ask.number] = (late, amended(late, raw) or raw, tickets)

    def answer_timeout(self, failure: Failure) -> None:
        """Record that the agent's time is over, and answer it; the call runs on."""
        self._give_up()
        made, tickets = self.exchange.failed(failure)
        self._lines.answer(line_of(made), tickets)

    def fail(self, attempt: Attempt, kind: ErrorKind) -> None:
        """Record an attempt as failed, and no other of its line."""
        exchange = self.exchange
        if attempt in exchange.attempts:  # else it has ended
            ending = failed(attempt.cause(kind), exchange.progress.phase, attempt.ask.effect)
            exchange.end(attempt, ending, AnswerFacts())

    def cancel_at_server(self) -> None:
        """Cancel the latest attempt at the server."""
        if cancel := self.exchange.cancelling():
            self._lines.to_server.line(cancel + b"\n")

    def drop(self, kind: ErrorKind) -> None:
        """Stop carrying the call; record what is open as failed so."""
        self._give_up()
        self.exchange.left(kind)
        self.exchange.over()
        self.release_slot()

    def on_bug(self, attempt: Attempt) -> None:
        """Answer the request of one call with an error; the other messages of its line go on."""
        if attempt.ended:
            self._give(self._given)  # if it is not held between two attempts, it is on its way
            return
        self._give_up(attempt)
        made, tickets = self.exchange.on_bug(attempt)
        if not attempt.is_cancelled:
            self._lines.answer(line_of(made), tickets)
        if self.exchange.driver is not None:  # else there are others
            self.exchange.over()
            self.release_slot()

    # -- before it is sent ------------------------------------------------------------------

    async def queued(self) -> None:
        """Wait until it is on disk. Raises `StoreError`, and `Failure` where it must not leave."""
        exchange, self._began = self.exchange, asyncio.get_running_loop().time()
        for driver in exchange.drivers:
            driver.carrier = self
        if exchange.blocked is not None:
            raise blocked(exchange.blocked)
        if exchange.attempt is not None:
            self.policy = exchange.attempt.ask.policy
            self.context.health.called(exchange.attempt.ask.server)
        limits = self.policy.timeout
        await in_time(limits, self._began, self._began, exchange.on_disk())

    def begin(self) -> bool:
        """Send it, unless it waits for a slot; return whether it does not."""
        line, retry = self._line, self.policy.retry
        if line is not None:
            outgoing = self.exchange.outgoing(line)
            assert isinstance(outgoing, bytes)
            self._next = outgoing
        repeatable = retry is not None and line is not None and self.exchange.repeatable(line)
        if self.policy.concurrency is not None:
            self._lines.counted.add(self)
        for each in self.exchange.drivers:
            each.on_recorded(is_repeatable=repeatable)
        driver = self.exchange.driver
        if driver is None:
            self._attempt()
        return driver is None or driver.machine.stage is not Stage.QUEUED

    async def in_turn(self) -> None:
        """Wait for its slot. Raises `Failure` where it must not leave any more."""
        slot, limits = self._driver.slot_granted(), self.policy.timeout
        await in_time(limits, self._began, self._began, slot)

    def release_slot(self) -> None:
        """Return its slot to those that wait."""
        driver = self.exchange.driver
        if driver is not None and driver.slot is not None:
            driver.slot.give_back()

    # -- attempts ---------------------------------------------------------------------------

    def _attempt(self) -> None:
        self.is_begun = self._passes()
        if not self.is_begun:
            return
        self._begin_attempt()
        if self._next is not None:
            self._lines.to_server.line(self._next)
            self.on_sent()

    def on_sent(self) -> None:
        """Note that the last piece has been sent."""
        self.exchange.progress.sent()
        self.exchange.acknowledged()

    def _passes(self) -> bool:
        """Return whether an attempt may be made; else fail it."""
        attempt = self.exchange.attempt
        try:
            self._lines.check_server()
            if attempt is not None:
                self.context.health.watch(attempt.ask.server, attempt)
        except Failure as failure:
            self._fail(failure)
            return False
        return True

    def _begin_attempt(self) -> None:
        attempt = self.exchange.attempt
        progress = self.exchange.progress = Progress()
        progress.phase = Phase.SENDING
        if attempt is not None and self.policy.timeout != _NO_RULES.timeout:
            attempt.deadlines = Deadlines(self.policy.timeout, self._began)
            if attempt.deadlines.connected(self._expire):
                progress.deadlines = attempt.deadlines
        begun = self.exchange.begun
        self._awaited = {key: AwaitedAnswer(self, begun.get(key)) for key in self.exchange.awaited}
        for key, one in self._awaited.items():
            self._lines.requests.add(key, one)
        self._lines.on_change()

    def _give_up(self, only: Attempt | None = None) -> None:
        """Expect the answers to the latest attempt no more: the agent gets another one, or is gone.

        `only` is the call that it is about, if there are others in its line.
        """
        for key, one in self._awaited.items():
            if only in {None, one.attempt} and self._lines.requests.give_up(key, one):
                one.is_replaced = True
        self._lines.on_change()

    def on_cancel(self, cancelled: str) -> None:
        """Expect no answer to the request that the agent cancelled; one may come all the same."""
        for key in self.exchange.on_cancel(cancelled):
            one = self._awaited.get(key)
            if one is not None and one.attempt is not None:
                self._lines.requests.give_up(key, one)
            elif one is not None:
                self._lines.requests.remove(key, one)

    def on_answer(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        """Pass on the whole answer, or keep it where another attempt follows."""
        attempt = self.exchange.attempt
        if attempt is not None:
            raw = respelled(attempt, raw)
            raw = self.exchange.amended(raw) or raw
        self._ended(raw, tickets)

    @property
    def is_limited(self) -> bool:
        """Whether a time limit may yet put turnlog's answer in place of the server's."""
        return self.exchange.progress.deadlines is not None

    def on_answer_begun(self) -> None:
        """Stop the time limits: the start of the answer leaves, so nothing can take its place."""
        if (deadlines := self.exchange.progress.deadlines) is not None:
            deadlines.close()

    def on_lost(self, failure: Failure) -> None:
        """Answer the agent: nothing will come from the server any more."""
        if self.exchange.attempt is None or self.exchange.attempt.ending is None:
            made, tickets = self.exchange.broken_off(failure)
            self._hold(line_of(made), tickets)
        self._give(self._given)

    def end_rest(self) -> None:
        """Make no further attempt, because the server is gone: the agent gets the answer that is held."""
        driver = self.exchange.driver
        if driver is not None and driver.machine.stage is Stage.WAITING:
            driver.feed(Overdue(StopReason.STOPPING))

    def _expire(self, kind: ErrorKind, detail: str) -> bool:
        """Fail the attempt, as a time limit was reached, unless it runs on."""
        driver = self.exchange.driver
        failure = Failure(kind, self.exchange.progress.phase, detail)
        if driver is None or not driver.on_expired(failure):
            self._give_up()
            self._fail(failure)
        return True

    def on_left(self) -> None:
        """Mark the agent as gone."""
        for driver in self.exchange.drivers:
            driver.on_left()

    def on_delivery(self) -> OnWritten:
        """Return what to call once the answer, which is on its way, has left."""
        if self.exchange.driver is None or not self.exchange.driver.is_guarded:
            return None
        self._lines.undelivered.add(self)
        return self._on_handed_over

    def _on_handed_over(self) -> None:
        driver = self._driver
        self._lines.undelivered.discard(self)
        if not driver.machine.has_left:
            self._lines.on_delivered(driver)
        self.exchange.over()

    @property
    def _driver(self) -> CallDriver:
        driver = self.exchange.driver
        assert driver is not None  # only a call has one, and asks for anything
        return driver

    def _fail(self, failure: Failure) -> None:
        """End the attempt with an answer of turnlog's."""
        made, tickets = self.exchange.failed(failure)
        self._ended(line_of(made), tickets)

    def _ended(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        """Send the agent the answer to an attempt, unless another attempt follows."""
        self._hold(raw, tickets)
        driver = self.exchange.driver
        if driver is None or driver.machine.stage is not Stage.WAITING:
            self._give(self._given)

    def _hold(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        driver = self.exchange.driver
        number = driver.machine.number if driver is not None else 0
        self._held[number] = (self.exchange.attempt, raw, tickets)

    @property
    def _given(self) -> int:
        """Number of the attempt whose answer goes to the agent."""
        driver = self.exchange.driver
        return driver.machine.given if driver is not None else max(self._held, default=0)

    async def _again(self, delay: float) -> None:
        """Make another attempt after a while, unless the call ends before."""
        driver, line = self._driver, self._line
        assert line is not None  # else it cannot be sent again
        wait = RetryWait(driver, self.exchange, self.context, self._began)
        self._next = await wait.next_attempt(line, delay)
        self.is_resting = False
        if self._next is not None:
            driver.on_recorded(is_repeatable=True)
        # A call that was cancelled or left gets no answer, after which it would be over.
        call = driver.machine
        is_left = call.has_left and call.stage is Stage.ENDED
        if is_left or (call.cancelled_at is not None and not driver.is_over):
            self.exchange.over()

    def _give(self, number: int) -> None:
        """Send the agent the answer to this attempt, if it is held, and forget the others."""
        held = self._held.get(number)
        self._held.clear()
        if held is not None:
            _, raw, tickets = held
            self._lines.answer(raw, tickets, self.on_delivery())
        else:
            self._lines.on_change()


class LargeLine:
    """A line of the agent that is too large to hold: its pieces pass, are dropped, or are kept at first.

    While its call waits for a slot it is kept, as a shorter one is: lines behind it may be what frees the slot.
    """

    def __init__(
        self, to_server: Outbox, carrier: PipeCarrier | None, *, passes: bool | None
    ) -> None:
        """`carrier` is `None` where the line is not recorded; `passes` while that is not decided."""
        self._to_server = to_server
        self._carrier = carrier
        self._passes = passes
        self._kept: list[LinePiece] = []

    def feed(self, piece: LinePiece) -> None:
        """Pass on, keep or drop the next piece."""
        if self._passes is None:
            self._kept.append(piece)
        else:
            self._pass_on(piece)

    def decide(self, *, passes: bool) -> None:
        """Pass on what is kept, and what follows, or drop it."""
        self._passes = passes
        kept, self._kept = self._kept, []
        if kept and kept[-1].ends:
            # Another line may be under way in pieces.
            kept = [LinePiece(b"".join(piece.raw for piece in kept), True, True)]
        for piece in kept:
            self._pass_on(piece)

    def _pass_on(self, piece: LinePiece) -> None:
        if not self._passes:
            return
        if piece.starts and piece.ends:
            self._to_server.line(piece.raw)
        else:
            self._to_server.piece(piece.raw, ends=piece.ends)
        if piece.ends and self._carrier is not None:
            self._carrier.on_sent()


def line_of(made: OwnAnswer) -> bytes:
    """Return an answer of turnlog's as a line; nothing where only HTTP has one for it."""
    # One that came over HTTP may have line ends between its tokens; within them JSON has none.
    whole = made.body.replace(b"\n", b" ").replace(b"\r", b" ")
    return whole + b"\n" if made.status == 200 else b""


def respelled(attempt: Attempt, raw: bytes) -> bytes:
    """Return an answer with the id that the agent gave."""
    if not attempt.wire_id:
        return raw
    return with_id(raw, attempt.caller_id) or raw
