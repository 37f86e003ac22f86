"""One line of an agent on its way through a pipe: its attempts, and which answer the agent gets."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

from turnlog.core.kinds import ErrorKind, Phase
from turnlog.engine.concurrency import Place, turn
from turnlog.engine.context import Context
from turnlog.engine.http.course import Course, Late
from turnlog.record.attempt import Attempt
from turnlog.record.deadlines import Patience
from turnlog.record.errors import Failure, Progress, blocked, in_time
from turnlog.record.own_answers import Made
from turnlog.rules.policy import Policy
from turnlog.rules.retry import StopReason
from turnlog.store.base import StoreError, Ticket
from turnlog.transport.outbox import Outbox, Told
from turnlog.wire.splice import with_id

from .piped import PipedExchange

_NO_RULES: Final = Policy()


class Carrier(Protocol):
    """The pipe that an errand goes through."""

    context: Context
    to_server: Outbox
    unheard: set["Errand"]
    """Guarded calls whose answers are on their way to the agent."""

    def expect(self, errand: "Errand") -> None:
        """Wait for what answers an errand."""
        ...

    def give_up(self, errand: "Errand", attempt: Attempt) -> None:
        """Wait for an attempt's answer no more."""
        ...

    def later(self, errand: "Errand", attempt: Coroutine[None, None, None]) -> None:
        """Make another attempt of an errand in its own time."""
        ...

    def say(self, line: bytes, tickets: Sequence[Ticket] = (), told: Told | None = None) -> None:
        """Give the agent an answer, if there is one."""
        ...


class Errand:
    """One line of the agent on its way to the server, and what comes back of it."""

    def __init__(self, pipe: Carrier, exchange: PipedExchange, line: bytes | None) -> None:
        """`line` is `None` where it comes in pieces, and cannot be sent again."""
        self._pipe = pipe
        self._context = pipe.context
        self._line = line or b""
        self._whole = line is not None
        self._began = asyncio.get_running_loop().time()
        self._course: Course | None = None
        """What follows each attempt, where a rule may want another one."""
        self._held: tuple[bytes, Sequence[Ticket]] = (b"", ())
        """The last answer that did not go to the agent."""
        self._place: Place | None = None
        """Among the calls under way, where a rule counts them."""
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
        if ask := self.exchange.blocked:
            raise blocked(ask)
        limits = self.policy.timeout
        if self.exchange.attempt is not None:
            self._context.health.called(self.exchange.attempt.ask.server)
        await in_time(limits, self._began, self._began, self.exchange.on_disk())

    def is_free(self) -> bool:
        """Claim a place among the calls under way; tell whether it may leave at once."""
        self._place = self._context.places.claim(self.exchange.attempt)
        return self._place is None or self._place.is_held

    async def in_turn(self) -> None:
        """Wait for that place. Raises `Failure` where it must not leave any more."""
        attempt = self.exchange.attempt
        assert self._place is not None
        assert attempt is not None  # only a call has rules
        limits = self.policy.timeout
        await in_time(limits, self._began, self._began, turn(self._place, attempt))

    def over(self) -> None:
        """Give up that place: the call has ended, however that was."""
        if self._place is not None:
            self._place.give_back()

    def send(self) -> None:
        """Make the first attempt, unless its server is left alone."""
        line = self.exchange.outgoing(self._line)
        assert isinstance(line, bytes)
        self._prepare()
        self._send(line)

    def _prepare(self) -> None:
        if self.exchange.running is not None:
            self.exchange.running.carried_by(self._withdraw, self._outlived)
        if self.policy.retry is not None:
            clock, stop = self._context.clock, self._context.stop
            health = self._context.health
            repeatable = self._whole and self.exchange.repeatable(self._line)
            self._course = Course(
                self.policy, clock, health, self._began, stop, repeatable=repeatable
            )
            self._course.go_on()

    def begin(self) -> bool:
        """Make the only attempt, whose pieces are sent by somebody else; false where its server is left
        alone."""
        self._prepare()
        if not self._passes():
            return False
        self._sending()
        return True

    def sent(self) -> None:
        """Note that the last piece has been sent."""
        self.exchange.progress.sent()
        self.exchange.acknowledge()

    def _passes(self) -> bool:
        """Tell whether an attempt may be made; answer it where its server is left alone."""
        attempt = self.exchange.attempt
        if attempt is None:
            return True
        if self._course is not None:
            self._course.follow(attempt)
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
            attempt.patience = Patience(attempt.ask.policy.timeout, self._began)
            if attempt.patience.connected(self._expire):
                progress.patience = attempt.patience
        self._pipe.expect(self)

    def came(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        """Take the whole answer, which was read already."""
        attempt = self.exchange.attempt
        if attempt is not None:
            raw = _amended(self.exchange, respelled(attempt, raw))
        self._over(raw, tickets)

    @property
    def is_limited(self) -> bool:
        """Whether a rule may yet take another answer in place of the one to come."""
        return self.exchange.progress.patience is not None

    def answering(self) -> None:
        """Learn that the answer has begun to come: what has left cannot be taken back."""
        if (patience := self.exchange.progress.patience) is not None:
            patience.close()

    def lost(self, failure: Failure) -> None:
        """Learn that there will be no answer, of this attempt or any other."""
        if self.exchange.attempt is None or self.exchange.attempt.ending is None:
            made, tickets = self.exchange.broken_off(failure)
            self._held = (line_of(made), tickets)
        self._give(*self._held)

    def _expire(self, kind: ErrorKind, detail: str) -> bool:
        """Give the attempt up: a time limit was reached."""
        attempt = self.exchange.attempt
        assert attempt is not None
        failure = Failure(kind, self.exchange.progress.phase, detail)
        running = self.exchange.running
        if running is not None and running.time_out(failure):
            running.left()
            return True
        self._pipe.give_up(self, attempt)
        made, tickets = self.exchange.failed(failure)
        if cancel := self.exchange.cancelling():
            self._pipe.to_server.line(cancel + b"\n")
        self._over(line_of(made), tickets)
        return True

    def _outlived(self, failure: Failure) -> bool:
        """Answer a caller whose time is over, while its call runs on."""
        assert self.exchange.attempt is not None  # it has time limits
        self._pipe.give_up(self, self.exchange.attempt)
        made, tickets = self.exchange.failed(failure)
        self._pipe.say(line_of(made), tickets)
        return True

    def _withdraw(self) -> None:
        """Give a call up that nobody waits for; where the caller did, the server knows."""
        attempt, running = self.exchange.attempt, self.exchange.running
        assert attempt is not None  # only a call is guarded
        assert running is not None
        self._pipe.give_up(self, attempt)
        if not attempt.cancelled and (cancel := self.exchange.cancelling()):
            self._pipe.to_server.line(cancel + b"\n")
        given_up = running.is_given_up
        kind = ErrorKind.CANCELLED_BY_CALLER if given_up else ErrorKind.OUTCOME_UNKNOWN
        self.exchange.left(kind)
        self.exchange.over()
        self.over()

    def left(self) -> None:
        """Learn that the agent is gone."""
        if self.exchange.running is not None:
            self.exchange.running.left()

    def given(self) -> Told | None:
        """Learn that the agent's answer is on its way; return who wants to know that it has left."""
        if self.exchange.running is None:
            return None
        self._pipe.unheard.add(self)
        return self._handed_over

    def _handed_over(self) -> None:
        running = self.exchange.running
        assert running is not None
        self._pipe.unheard.discard(self)
        if not running.has_left:
            running.arrived()
        self.exchange.over()

    def _over(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        """Decide what becomes of an answer: it is the agent's, or another attempt follows."""
        self._held = (raw, tickets)
        attempt = self.exchange.attempt
        wait = self._course.next if self._course is not None else None
        if attempt is None or wait is None:
            self._give(raw, tickets)
        else:
            self._context.recorder.retried(attempt, wait.delay)
            self._pipe.later(self, self._again(attempt, wait.delay))

    async def _again(self, before: Attempt, delay: float) -> None:
        """Make another attempt after a while, unless nobody wants it any more."""
        assert self._course is not None
        await self.exchange.rest(self._pause(delay))
        if self._is_withdrawn(before):
            return
        if late := self._course.late(None):
            self._release(before, late)
        else:
            self._course.go_on()
            await self._attempt(before, self._course)

    async def _attempt(self, before: Attempt, course: Course) -> None:
        try:
            line = await course.in_time(self.exchange.again(self._line))
        except StoreError:
            self._release(before, StopReason.UNRECORDED)
        except Late as late:
            self.exchange.left(late.kind)
            self._release(before, late.reason)
        else:
            if not self._is_withdrawn(before):
                self._send(line)

    def _is_withdrawn(self, before: Attempt) -> bool:
        """Tell whether the call was cancelled; nobody answers what was (MCP, cancellation)."""
        if self.exchange.withdrawn() is None:
            return False
        self._context.recorder.abandoned(before, StopReason.CANCELLED)
        self.exchange.over()
        return True

    async def _pause(self, delay: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._context.stop.wait()

    def _release(self, before: Attempt, reason: StopReason) -> None:
        """Give the agent the answer to an attempt that no other follows."""
        self._context.recorder.abandoned(before, reason)
        self._give(*self._held)

    def _give(self, raw: bytes, tickets: Sequence[Ticket]) -> None:
        self._pipe.say(raw, tickets, self.given())
        self._held = (b"", ())


class Awaited:
    """Errands by the keys of the ids that the server knows.

    An agent may give an id again before it is answered: the newest is the one that is answered.
    """

    def __init__(self) -> None:
        self._errands: dict[str, list[Errand]] = {}

    def __len__(self) -> int:
        return len(self._errands)

    def __contains__(self, key: str) -> bool:
        return key in self._errands

    def __iter__(self) -> Iterator[Errand]:
        """Go through all errands, each once, in the order in which their ids were given."""
        return iter(dict.fromkeys(one for many in self._errands.values() for one in many))

    @property
    def first_key(self) -> str:
        """The key that was given first of those that are awaited."""
        return next(iter(self._errands))

    def add(self, key: str, errand: Errand) -> None:
        """Wait for an answer with this id."""
        self._errands.setdefault(key, []).append(errand)

    def find(self, key: str) -> Errand | None:
        """Return what an answer with this id is for."""
        return self._errands[key][-1] if key in self._errands else None

    def drop(self, key: str, errand: Errand) -> bool:
        """Wait no more for an answer with this id to this errand; tell whether that was so."""
        errands = self._errands.get(key, [])
        if errand not in errands:
            return False
        errands.remove(errand)
        if not errands:
            del self._errands[key]
        return True

    def take(self, key: str) -> Errand | None:
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


def line_of(made: Made) -> bytes:
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
