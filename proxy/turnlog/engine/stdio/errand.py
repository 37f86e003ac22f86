"""One line of an agent on its way through a pipe: its attempts, and which answer the agent gets."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Final, Protocol

from turnlog.core.kinds import ErrorKind, Phase
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.concurrency import Slot, turn
from turnlog.engine.context import Context
from turnlog.engine.retry_limits import RetryLimits, TooLate
from turnlog.exchange.call import Stage
from turnlog.exchange.events import NotRecorded, Overdue, Recorded, SlotGranted, Woken
from turnlog.record.attempt import Attempt
from turnlog.record.deadlines import Deadlines
from turnlog.record.errors import Failure, Progress, blocked, in_time
from turnlog.record.own_answers import OwnAnswer
from turnlog.rules.policy import Policy
from turnlog.rules.retry import StopReason
from turnlog.store.base import StoreError, Ticket
from turnlog.transport.outbox import Outbox, Told
from turnlog.wire.splice import with_id

from .piped import PipedExchange

_NO_RULES: Final = Policy()


class ErrandPipe(Protocol):
    """The pipe that an errand goes through."""

    context: Context
    to_server: Outbox
    unheard: set["PipeCarrier"]
    """Guarded calls whose answers are on their way to the agent."""

    def expect(self, errand: "PipeCarrier") -> None:
        """Wait for what answers an errand."""
        ...

    def give_up(self, errand: "PipeCarrier", attempt: Attempt) -> None:
        """Wait for an attempt's answer no more."""
        ...

    def later(self, errand: "PipeCarrier", attempt: Coroutine[None, None, None]) -> None:
        """Make another attempt of an errand in its own time."""
        ...

    def say(self, line: bytes, tickets: Sequence[Ticket] = (), told: Told | None = None) -> None:
        """Give the agent an answer, if there is one."""
        ...


class PipeCarrier:
    """One line of the agent on its way to the server, and what comes back of it.

    Carries its call, if it holds exactly one (`engine.call_driver.Carrier`).
    """

    has_left = False
    """Whether some of the answer has left: lines leave whole."""
    is_held = True
    hears = True
    is_in_doubt = False
    can_tell = True

    def __init__(self, pipe: ErrandPipe, exchange: PipedExchange, line: bytes | None) -> None:
        """`line` is `None` where it comes in pieces, and cannot be sent again."""
        self._pipe = pipe
        self._context = pipe.context
        self._line = line or b""
        self._whole = line is not None
        self._began = asyncio.get_running_loop().time()
        self._held: dict[int, tuple[bytes, Sequence[Ticket]]] = {}
        """Answers by the numbers of their attempts; 0 where there is no call."""
        self._place: Slot | None = None
        """Among the calls under way, where a rule counts them."""
        self.exchange = exchange
        self.token = ""
        """With which its progress is reported, where the agent asked for that."""
        if exchange.driver is not None:
            exchange.driver.carried_by(self)

    @property
    def policy(self) -> Policy:
        """What the rules come to for its call; nothing where it is none."""
        attempt = self.exchange.attempt
        return attempt.ask.policy if attempt is not None else _NO_RULES

    # -- what carries a call ----------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """Whether the proxy stops."""
        return self._context.stop.is_set()

    def may_retry(self) -> bool:
        """Spend one retry of the server's quota; false where none is left."""
        attempt = self.exchange.attempt
        return attempt is not None and self._context.health.may_retry(attempt.ask.server)

    def tell(self, failure: Failure) -> None:
        """Record that the caller's time is over, and tell it; the call runs on."""
        assert self.exchange.attempt is not None  # it has time limits
        self._pipe.give_up(self, self.exchange.attempt)
        made, tickets = self.exchange.failed(failure)
        self._pipe.say(line_of(made), tickets)

    def fail(self, kind: ErrorKind) -> None:
        """Record that the latest attempt failed so."""
        if self.exchange.attempt is not None:
            self._pipe.give_up(self, self.exchange.attempt)
        self.exchange.left(kind)

    def take_back(self) -> None:
        """Cancel the latest attempt at the server."""
        if cancel := self.exchange.cancelling():
            self._pipe.to_server.line(cancel + b"\n")

    def drop(self, kind: ErrorKind) -> None:
        """Stop carrying the call; record what is open as failed so."""
        self.fail(kind)
        self.exchange.over()
        self.over()

    # -- before it is sent ------------------------------------------------------------------

    async def queued(self) -> None:
        """Wait until it is on disk. Raises `StoreError`, and `Failure` where it must not leave."""
        if ask := self.exchange.blocked:
            raise blocked(ask)
        limits = self.policy.timeout
        if self.exchange.attempt is not None:
            self._context.health.called(self.exchange.attempt.ask.server)
        await in_time(limits, self._began, self._began, self.exchange.on_disk())

    def is_free(self) -> bool:
        """Claim a slot among the calls under way; tell whether it may leave at once."""
        driver = self.exchange.driver
        if driver is None:
            return True
        retry = self.policy.retry
        repeatable = retry is not None and self._whole and self.exchange.repeatable(self._line)
        driver.feed(Recorded(is_repeatable=repeatable))
        if driver.call.stage is not Stage.QUEUED:
            return True
        self._place = self._context.places.claim(self.exchange.attempt)
        if self._place is not None and not self._place.is_held:
            return False
        driver.feed(SlotGranted())
        return True

    async def in_turn(self) -> None:
        """Wait for that slot. Raises `Failure` where it must not leave any more."""
        attempt, driver = self.exchange.attempt, self.exchange.driver
        assert self._place is not None
        assert attempt is not None  # only a call has rules
        assert driver is not None
        limits = self.policy.timeout
        await in_time(limits, self._began, self._began, turn(self._place, attempt))
        driver.feed(SlotGranted())

    def over(self) -> None:
        """Release that slot."""
        if self._place is not None:
            self._place.give_back()

    def _leaves(self) -> bool:
        """Return whether it is to be sent now: its caller may have left meanwhile."""
        driver = self.exchange.driver
        return driver is None or driver.take_send() is not None

    # -- attempts ---------------------------------------------------------------------------

    def send(self) -> None:
        """Make the first attempt, unless its server is left alone."""
        line = self.exchange.outgoing(self._line)
        assert isinstance(line, bytes)
        if self._leaves():
            self._send(line)

    def begin(self) -> bool:
        """Make the only attempt, whose pieces are sent by somebody else; false where it must not be
        sent."""
        if not (self.is_free() and self._leaves() and self._passes()):
            return False
        self._sending()
        return True

    def sent(self) -> None:
        """Note that the last piece has been sent."""
        self.exchange.progress.sent()
        self.exchange.acknowledge()

    def _passes(self) -> bool:
        """Return whether an attempt may be made; answer it where the circuit is open."""
        attempt = self.exchange.attempt
        if attempt is None:
            return True
        try:
            self._context.health.watch(attempt.ask.server, attempt)
        except Failure as failure:
            made, tickets = self.exchange.failed(failure)
            self._over(line_of(made), tickets)
            return False
        return True

    def _send(self, line: bytes) -> None:
        if not self._passes():
            return
        self._sending()
        self._pipe.to_server.line(line)
        self.sent()

    def _sending(self) -> None:
        attempt = self.exchange.attempt
        progress = self.exchange.progress = Progress()
        progress.phase = Phase.SENDING
        if attempt is not None:
            attempt.patience = Deadlines(attempt.ask.policy.timeout, self._began)
            if attempt.patience.connected(self._expire):
                progress.patience = attempt.patience
        self._pipe.expect(self)

    def came(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        """Pass on the whole answer, or keep it where another attempt follows."""
        attempt = self.exchange.attempt
        if attempt is not None:
            raw = _amended(self.exchange, respelled(attempt, raw))
        self._over(raw, tickets)

    @property
    def is_limited(self) -> bool:
        """Whether a rule may yet take another answer in place of the one to come."""
        return self.exchange.progress.patience is not None

    def answering(self) -> None:
        """Count no time any more, as the answer has begun to come: it cannot be taken back."""
        if (patience := self.exchange.progress.patience) is not None:
            patience.close()

    def lost(self, failure: Failure) -> None:
        """Answer the agent: nothing will come from the server any more."""
        if self.exchange.attempt is None or self.exchange.attempt.ending is None:
            made, tickets = self.exchange.broken_off(failure)
            self._held[self._number] = (line_of(made), tickets)
        self._give()

    def _expire(self, kind: ErrorKind, detail: str) -> bool:
        """Give the attempt up, as a time limit was reached, unless it runs on."""
        attempt, driver = self.exchange.attempt, self.exchange.driver
        assert attempt is not None
        failure = Failure(kind, self.exchange.progress.phase, detail)
        if driver is not None and driver.on_expired(failure):
            return True
        self._pipe.give_up(self, attempt)
        made, tickets = self.exchange.failed(failure)
        self._over(line_of(made), tickets)
        return True

    def left(self) -> None:
        """Mark the agent as gone."""
        if self.exchange.driver is not None and self.exchange.driver.is_guarded:
            self.exchange.driver.on_left()

    def given(self) -> Told | None:
        """Return who wants to know that the answer, which is on its way, has left."""
        if self.exchange.driver is None or not self.exchange.driver.is_guarded:
            return None
        self._pipe.unheard.add(self)
        return self._handed_over

    def _handed_over(self) -> None:
        driver = self.exchange.driver
        assert driver is not None
        self._pipe.unheard.discard(self)
        if not driver.has_left:
            driver.on_delivered()
        self.exchange.over()

    @property
    def _number(self) -> int:
        attempt = self.exchange.attempt
        return attempt.ask.number if attempt is not None else 0

    def _over(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        """Give the agent an answer, or make another attempt."""
        self._held[self._number] = (raw, tickets)
        attempt, driver = self.exchange.attempt, self.exchange.driver
        if attempt is not None and driver is not None and driver.call.stage is Stage.WAITING:
            self._context.recorder.retried(attempt, driver.delay)
            self._pipe.later(self, self._again(attempt, driver))
        else:
            self._give()

    async def _again(self, before: Attempt, driver: CallDriver) -> None:
        """Make another attempt after a while, unless nobody wants it any more."""
        limits = RetryLimits(self.policy, self._began, self._context.stop)
        await self.exchange.rest(limits.pause(driver.delay))
        if driver.is_over:  # it was dropped meanwhile
            self._dropped(before, driver)
        elif self._is_withdrawn(before):
            return
        elif reason := limits.overdue(None):
            driver.feed(Overdue(reason))
            self._release(before, reason)
        else:
            driver.feed(Woken())
            await self._begin_again(before, driver, limits)

    async def _begin_again(self, before: Attempt, driver: CallDriver, limits: RetryLimits) -> None:
        try:
            line = await limits.in_time(self.exchange.again(self._line))
        except StoreError:
            driver.feed(NotRecorded())
            self._release(before, StopReason.UNRECORDED)
        except TooLate as late:
            if driver.is_over:
                self._dropped(before, driver)
                return
            driver.feed(Overdue(late.reason, late.kind))
            self._release(before, late.reason)
        else:
            if not self._is_withdrawn(before):
                driver.feed(Recorded(is_repeatable=True))
                if self._leaves():
                    self._send(line)

    def _dropped(self, before: Attempt, driver: CallDriver) -> None:
        """Send the agent the answer that there is, where the proxy stops; else nobody waits for one."""
        if not driver.has_left:
            self._release(before, StopReason.STOPPING)

    def _is_withdrawn(self, before: Attempt) -> bool:
        """Return whether the call was cancelled; nobody answers what was (MCP, cancellation)."""
        if self.exchange.withdrawn() is None:
            return False
        self._context.recorder.abandoned(before, StopReason.CANCELLED)
        self.exchange.over()
        return True

    def _release(self, before: Attempt, reason: StopReason) -> None:
        """Give the agent the answer to an attempt that no other follows."""
        self._context.recorder.abandoned(before, reason)
        self._give()

    def _give(self) -> None:
        driver = self.exchange.driver
        number = driver.call.given if driver is not None else self._number
        raw, tickets = self._held.get(number, (b"", ()))
        self._held.clear()
        self._pipe.say(raw, tickets, self.given())


class PendingAnswers:
    """Errands by the keys of the ids that the server knows.

    An agent may give an id again before it is answered: the newest is the one that is answered.
    """

    def __init__(self) -> None:
        self._errands: dict[str, list[PipeCarrier]] = {}

    def __len__(self) -> int:
        return len(self._errands)

    def __contains__(self, key: str) -> bool:
        return key in self._errands

    def __iter__(self) -> Iterator[PipeCarrier]:
        """Go through all errands, each once, in the order in which their ids were given."""
        return iter(dict.fromkeys(one for many in self._errands.values() for one in many))

    @property
    def first_key(self) -> str:
        """The key that was given first of those that are awaited."""
        return next(iter(self._errands))

    def add(self, key: str, errand: PipeCarrier) -> None:
        """Wait for an answer with this id."""
        self._errands.setdefault(key, []).append(errand)

    def find(self, key: str) -> PipeCarrier | None:
        """Return what an answer with this id is for."""
        return self._errands[key][-1] if key in self._errands else None

    def drop(self, key: str, errand: PipeCarrier) -> bool:
        """Wait no more for an answer with this id to this errand; tell whether that was so."""
        errands = self._errands.get(key, [])
        if errand not in errands:
            return False
        errands.remove(errand)
        if not errands:
            del self._errands[key]
        return True

    def take(self, key: str) -> PipeCarrier | None:
        """Return what an answer with this id is for, which has come."""
        errand = self.find(key)
        if errand is not None:
            self.drop(key, errand)
        return errand

    def heard(self, token: str) -> None:
        """Note that a call goes on: its progress was reported with this token, if any."""
        for errand in self if token else ():
            attempt = errand.exchange.attempt
            if attempt is not None and attempt.patience is not None and errand.token == token:
                attempt.patience.heard()

    def clear(self) -> None:
        """Wait for nothing."""
        self._errands.clear()


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


def _amended(exchange: PipedExchange, raw: bytes) -> bytes:
    return exchange.amended(raw) or raw
