"""The driver of one call: feeds events to its machine (`exchange.call`) and carries out the commands."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product
from typing import Any, ClassVar, Final, Protocol

from msgspec import Struct

from turnlog.core.classify import Ending
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.exchange import events as ev
from turnlog.exchange.call import (
    RECORDED,
    CallerState,
    CallMachine,
    Commands,
    InvalidEvent,
    Stage,
    Terms,
)
from turnlog.exchange.duplicates import EarlierCall, NeverTwice, disconnect_action
from turnlog.record.attempt import NO_LINKS, Ask, Attempt, GuessedCaller
from turnlog.record.errors import Failure
from turnlog.record.own_answers import OwnAnswer
from turnlog.record.recorder import Recorder
from turnlog.record.unread import all_read
from turnlog.rules.model import OnDisconnect
from turnlog.rules.retry import StopReason
from turnlog.transport.async_pipes import DOUBT

from .concurrency import Limiter, Slot
from .upstream_health import Health

_RETRYING: Final = frozenset({Stage.RECORDING, Stage.CHECKING, Stage.SENT})
"""Stages of a further attempt whose answer may yet be missing."""


class Shared(Struct, frozen=True, kw_only=True):
    """The parts of the proxy that each carried call needs (`engine.context`)."""

    limiter: Limiter
    health: Health
    stop: asyncio.Event
    """Set as soon as the proxy stops: no further attempt begins."""


class Carrier(Protocol):
    """Carries a call to its server, and its answer back: a request over HTTP, or a pipe.

    The properties are what the machine has to know; the methods carry out its commands.
    """

    @property
    def context(self) -> Shared:
        """The parts of the proxy that it needs."""
        ...

    @property
    def may_be_gone(self) -> bool:
        """Whether the caller has closed its sending side: it may be gone, or only half-closed."""
        ...

    @property
    def has_left(self) -> bool:
        """Whether part of the latest answer was already sent."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether the latest answer can still be withheld from the caller."""
        ...

    @property
    def can_answer_timeout(self) -> bool:
        """Whether the caller can be answered with a timeout now."""
        ...

    def check_caller(self) -> None:
        """Check whether the caller is still there, before the call is sent."""
        ...

    def send(self, *, hold: bool) -> None:
        """Send the latest attempt; with `hold`, hold its answer until it is judged."""
        ...

    def rest(self, delay: float) -> None:
        """Hold the answer to the latest attempt, and begin another one after `delay` seconds."""
        ...

    def release(self, number: int, reason: StopReason | None) -> None:
        """Send the caller the answer to attempt `number` if it is held; `reason` is why no retry follows.

        An answer that is not held goes to the caller by itself.
        """
        ...

    def hold(self, late: Attempt) -> None:
        """Hold the late answer to an attempt in place of the one to it that is held."""
        ...

    def answer_timeout(self, failure: Failure) -> None:
        """Record the timeout and answer the caller with it; the call runs on."""
        ...

    def fail(self, attempt: Attempt, kind: ErrorKind) -> None:
        """Record an attempt as failed, unless its answer may still come on another stream."""
        ...

    def cancel_at_server(self) -> None:
        """Cancel the latest attempt at the server."""
        ...

    def drop(self, kind: ErrorKind) -> None:
        """Stop carrying the call; record an open attempt as failed, unless its answer is here."""
        ...

    def on_bug(self, attempt: Attempt) -> None:
        """End the call because of a bug: record its latest attempt as failed, unless it has an outcome."""
        ...


class Unsent(Struct, frozen=True):
    """The result of a call that is not sent because an earlier one stands for it."""

    attempt: Attempt
    """Its only attempt, with the ending."""
    answer: OwnAnswer | None
    """The answer of the earlier call; `None` where turnlog answers with `sentence`."""
    sentence: str
    earlier: bytes
    """Id of the earlier call."""


# One is made for each call, and a struct takes a third of the time of another class.
class CallDriver(Struct, eq=False, weakref=True):
    """A running or recently ended call. Points in time are seconds on the monotonic clock."""

    ask: Ask
    machine: CallMachine
    _recorder: Recorder
    attempt: Attempt | None = None
    """The latest attempt."""
    is_guarded: bool = False
    """Whether a later duplicate may join it, or be answered from it."""
    unsent: Unsent | None = None
    """The result for its caller if it is not sent because of an earlier call."""
    found_by: tuple[bytes, ...] = ()
    """Its keys in the duplicate index."""
    kept: OwnAnswer | None = None
    """The whole answer, for later duplicates."""
    left_by: frozenset[int | str] = frozenset()
    """Connections of guessed callers that joined it and have left too."""
    slot: Slot | None = None
    """Its slot, if a rule limits how many such calls run at once."""
    carrier: Carrier | None = None
    """Carries the call; `None` when it is over or detached."""
    rest_over: asyncio.Event | None = None
    """Set when the wait for the next attempt has to end early."""
    _failure: Failure | None = None
    """The timeout, while the caller is being answered with it."""
    _joiners: tuple[asyncio.Event, ...] = ()
    """Set at its end, one for each joined call."""
    _ended: asyncio.Event | None = None
    """Set at its end, if a task waits for it."""
    _left: asyncio.Event | None = None
    """Set when its caller leaves, if a task waits for that."""
    _timer: asyncio.TimerHandle | None = None

    # -- state --------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of the answer that is held."""
        return len(self.kept.body) if self.kept is not None else 0

    @property
    def is_over(self) -> bool:
        """Whether it has no carrier any more; its answer may still come on another stream."""
        return self.machine.is_over

    @property
    def may_be_gone(self) -> bool:
        """Whether its caller may be gone: it has closed its sending side and has not disconnected."""
        return self.carrier is not None and not self.machine.has_left and self.carrier.may_be_gone

    @property
    def is_awaited(self) -> bool:
        """Whether its caller waits for the answer: who has cancelled ignores it (MCP, cancellation)."""
        return self.machine.caller is CallerState.HERE

    @property
    def is_written(self) -> bool:
        """Whether the intent of its latest attempt is on disk."""
        intent = self.attempt.intent if self.attempt is not None else None
        return intent is not None and intent.placed is not None

    def seen(self) -> EarlierCall:
        """Return the state that decides about a later duplicate."""
        return self.machine.seen(self._recorder.clock.monotonic() / 1e9)

    def seen_by_guess(self, *, is_alone: bool) -> EarlierCall:
        """Return the state that decides about a later call that is from the same caller by a guess."""
        now = self._recorder.clock.monotonic() / 1e9
        return self.machine.seen_by_guess(now, is_alone=is_alone, may_be_gone=self.may_be_gone)

    # -- events from its carrier --------------------------------------------------------------

    def begins(self, attempt: Attempt) -> None:
        """Set the attempt whose intent was just queued."""
        self.attempt = attempt
        attempt.driver = self

    def on_recorded(self, *, is_repeatable: bool) -> None:
        """Go on once the intent of its latest attempt is on disk, or does not have to be."""
        # `may_be_gone` costs a system call, and only named calls need it.
        may_be_gone = self.machine.terms.is_named and self.may_be_gone
        self.feed(ev.Recorded(may_be_gone=may_be_gone, is_repeatable=is_repeatable))

    def feed(self, event: ev.Event) -> Commands:
        """Feed an event to the machine, carry out its commands, and return them."""
        try:
            commands = self.machine.handle(event, self._recorder.clock.monotonic() / 1e9)
        except InvalidEvent as bug:
            self._on_bug(*bug.args)
            return ()
        for command in commands:
            if (action := self.ACTIONS.get(type(command))) is not None:
                action(self, command)
        return commands

    def on_judged(self, attempt: Attempt, *, is_own_answer: bool) -> ev.AppendOutcome:
        """Decide what follows the end of an attempt; return the outcome to record.

        `is_own_answer` is whether turnlog answers in place of the server.
        """
        ending, number = attempt.ending, attempt.ask.number
        assert ending is not None
        if self._failure is not None:
            self.feed(ev.TimeoutAnswered(ending))
            return RECORDED
        carrier = self.carrier
        if carrier is None or self.machine.terms.retry is None:
            judged = ev.Judged(number=number, ending=ending, is_own_answer=is_own_answer)
        elif self.may_give_late(attempt):
            judged = ev.Judged(number=number, ending=ending, is_held=bool(attempt.message))
        else:
            judged = self._judged(carrier, attempt, ending, is_own_answer=is_own_answer)
        commands = self.feed(judged)
        outcome = commands[0] if commands else RECORDED
        assert isinstance(outcome, ev.AppendOutcome)  # always the first command
        stage = self.machine.stage
        attempt.yields = not outcome.is_told and stage is not Stage.WAITING
        if stage is Stage.DONE and not self.is_guarded:
            attempt.driver = None  # its answer came on another stream; as in `close`
        return outcome

    def may_give_late(self, attempt: Attempt) -> bool:
        """Return whether a late answer to an attempt may go to the caller, because the call is retried."""
        stage, is_earlier = self.machine.stage, attempt.ask.number < self.machine.number
        return stage is Stage.WAITING or (is_earlier and stage in _RETRYING)

    def on_late_answer(self, late: Attempt) -> None:
        """Hold a late answer that may go to the caller; release it if it has settled the call."""
        assert self.carrier is not None  # the call is being retried
        assert self.attempt is not None
        if late.message:  # else it is too long
            self.carrier.hold(late)
        if self.machine.stage is Stage.SETTLING:
            self._recorder.abandoned(self.attempt, StopReason.ANSWERED)
            if not late.waits:
                self.on_outcome_settled()

    def _on_bug(self, happened: str, stage: str) -> None:
        """End this call, and no other."""
        self._recorder.on_bug(self.ask, stage, happened)
        self.do_disarm(ev.Disarm())
        if self.rest_over is not None:
            self.rest_over.set()
        # After a timeout its connection ends it.
        if self._failure is None and self.carrier is not None and self.attempt is not None:
            self.carrier.on_bug(self.attempt)
        self.do_close(ev.Close())

    def _judged(
        self, carrier: Carrier, attempt: Attempt, ending: Ending, *, is_own_answer: bool
    ) -> ev.Judged:
        return ev.Judged(
            number=attempt.ask.number,
            ending=ending,
            is_own_answer=is_own_answer,
            retry_after=attempt.retry_after,
            has_left=carrier.has_left,
            is_held=carrier.is_held,
            is_stopping=carrier.context.stop.is_set(),
            jitter=int.from_bytes(self._recorder.clock.entropy(4), "big") / (1 << 32),
            has_retry_left=carrier.context.health.has_retry_left(self.ask.server),
        )

    def on_outcome_settled(self) -> None:
        """Release the answer: its outcome is on disk, or could not be written."""
        if self.machine.stage is Stage.SETTLING:
            self.feed(ev.OutcomeSettled())

    def on_expired(self, failure: Failure) -> bool:
        """Handle a timeout; return whether the call runs on while its caller is answered."""
        can_answer_timeout = self.carrier is not None and self.carrier.can_answer_timeout
        self._failure = failure
        try:
            commands = self.feed(ev.Expired(failure.kind, can_answer_timeout=can_answer_timeout))
        finally:
            self._failure = None
        return any(isinstance(command, ev.AnswerTimeout) for command in commands)

    # -- events from its caller, and from other calls -----------------------------------------

    def on_left(self) -> None:
        """Mark the caller as gone, which may start the drain timer."""
        if self.attempt is not None:
            self.feed(ev.Left())
        if self._left is not None:
            self._left.set()

    def on_late_cancel(self, *, at_any_time: bool = False) -> bool:
        """Handle a cancel that crossed the answer; return whether the answer counts as undelivered.

        `at_any_time` is whether it counts however long ago the call ended.
        """
        event = ev.CancelledLate(at_any_time=at_any_time)
        return self.attempt is not None and bool(self.feed(event))

    def on_delivered(self) -> None:
        """Mark the whole answer as delivered to a caller."""
        if self.attempt is not None and self.attempt.ending is not None:
            self.on_outcome_settled()  # no answer leaves before
            self.feed(ev.Delivered())

    async def resumed(self) -> None:
        """End it in favour of the stream that resumes its own, if its caller has left."""
        if self.machine.is_abandoned and self.carrier is not None:
            self.feed(ev.Resumed())
            await self.ended()

    async def caller_checked(self) -> None:
        """Wait until its caller has shown that it is gone, or the time for that is over."""
        for wait in DOUBT:
            if not self.may_be_gone:
                return
            if self._left is None:
                self._left = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._left.wait()

    async def checked_for_duplicate(self) -> None:
        """Wait until its caller has shown that it abandoned it, after a duplicate has arrived."""
        # Its close or cancel comes on another connection, and may be read after the duplicate.
        await all_read()
        await self.caller_checked()

    async def slot_granted(self) -> None:
        """Wait for its slot. Raises `Failure` if it is given up while queued."""
        assert self.slot is not None  # a rule counts it
        if not await self.slot.wait():
            detail = "taken back while it waited to be sent"
            raise Failure(ErrorKind.CANCELLED_BY_CALLER, Phase.QUEUED, detail)
        self.feed(ev.SlotGranted(may_be_gone=self.may_be_gone))

    async def ended(self) -> None:
        """Wait for its end."""
        if self.is_over:
            return
        if self._ended is None:
            self._ended = asyncio.Event()
        await self._ended.wait()

    def join(self, ended: asyncio.Event) -> None:
        """Register another call that waits for this one's answer: `ended` is set at its end."""
        self._joiners = (*self._joiners, ended)
        self.feed(ev.JoinerCame())

    def leave(self, ended: asyncio.Event, guess: GuessedCaller | None = None) -> None:
        """Unregister a call that waited for this one's answer; `guess` is its caller if that has left."""
        if guess is not None:
            self.left_by |= {guess.connection}
        if ended in self._joiners:
            self._joiners = tuple(each for each in self._joiners if each is not ended)
            self.feed(ev.JoinerLeft(is_guessed=guess is not None))

    def close(self) -> None:
        """Release a call that no later one can find."""
        if self.slot is not None:
            self.slot.give_back()
        self.carrier, attempt = None, self.attempt
        if attempt is not None and attempt.ended:
            attempt.driver = None  # else both would wait for the collector
        elif attempt is not None:
            self.feed(ev.Over())
            self.ask = attempt.ask  # without the input

    # -- in the duplicate index ---------------------------------------------------------------

    def shrink(self) -> None:
        """Release what is not needed after the end: many ended calls stay in the index."""
        self.carrier = None
        if self.attempt is not None:
            self.attempt.retire()
            self.ask = self.attempt.ask

    def forgotten(self) -> None:
        """Break the reference cycle with the attempt: the collector rarely visits old objects."""
        if self.is_over and self.attempt is not None and self.attempt.ended:
            self.attempt.driver = None

    # -- commands; `AppendIntent` and `AppendOutcome` are carried out by whoever feeds the event --

    def do_note(self, note: ev.Note) -> None:
        """Append a note to the log."""
        if (attempt := self.attempt) is not None:
            follows = (attempt.outcome or attempt.intent) if note.on_outcome else attempt.intent
            self._recorder.note(note.kind, self.ask.session, attempt.facts, follows)

    def do_arm(self, command: ev.Arm) -> None:
        """Start the drain timer."""
        self.do_disarm(ev.Disarm())
        self._timer = asyncio.get_running_loop().call_later(command.delay, self.feed, ev.Drained())

    def do_disarm(self, _: ev.Disarm) -> None:
        """Stop the timer."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def do_check_caller(self, _: ev.CheckCaller) -> None:
        """Check whether the caller is still there."""
        if self.carrier is not None:
            self.carrier.check_caller()

    def do_send(self, command: ev.Send) -> None:
        """Send the latest attempt."""
        if self.carrier is not None:
            self.carrier.send(hold=command.hold)

    def do_rest(self, command: ev.Rest) -> None:
        """Begin another attempt later, which counts as a retry of the server's quota."""
        if self.carrier is not None:
            self.carrier.context.health.on_retry(self.ask.server)
            self.carrier.rest(command.delay)

    def do_refuse_retry(self, _: ev.RefuseRetry) -> None:
        """Count a retry that the server's quota refused."""
        if self.carrier is not None:
            self.carrier.context.health.on_retry_refused(self.ask.server)

    def do_release(self, command: ev.Release) -> None:
        """Send the caller the answer that is held for it."""
        if self.machine.terms.retry is None and command.reason is None:
            return  # nothing is held: most calls
        if self.rest_over is not None:
            self.rest_over.set()
        if self.carrier is not None:
            self.carrier.release(command.number, command.reason)

    def do_acquire(self, _: ev.Acquire) -> None:
        """Claim a slot, and go on at once if it is free."""
        assert self.carrier is not None  # the carrier has recorded the intent
        self.slot = self.carrier.context.limiter.claim(self.ask.policy)
        if self.slot.is_held:
            self.feed(ev.SlotGranted(may_be_gone=self.may_be_gone))

    def do_dequeue(self, _: ev.Dequeue) -> None:
        """Leave the queue for a slot."""
        assert self.slot is not None  # it is queued
        self.slot.give_back()

    def do_answer_timeout(self, _: ev.AnswerTimeout) -> None:
        """Answer the caller with a timeout."""
        assert self._failure is not None  # a limit was reached
        assert self.carrier is not None  # its `can_answer_timeout` was true
        self.carrier.answer_timeout(self._failure)

    def do_fail(self, command: ev.Fail) -> None:
        """End the attempt as failed; after a timeout its connection does that."""
        if self._failure is None and self.carrier is not None and self.attempt is not None:
            self.carrier.fail(self.attempt, command.kind)

    def do_cancel_at_server(self, _: ev.CancelAtServer) -> None:
        """Cancel the latest attempt at the server."""
        if self.carrier is not None:
            self.carrier.cancel_at_server()

    def do_drop(self, command: ev.Drop) -> None:
        """Detach the carrier."""
        if self.rest_over is not None:
            self.rest_over.set()
        if self.carrier is not None:
            self.carrier.drop(command.kind)

    def do_close(self, _: ev.Close) -> None:
        """Wake everything that waits for its end."""
        for each in (self._ended, *self._joiners):
            if each is not None:
                each.set()
        self._joiners = ()

    ACTIONS: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        ev.Note: do_note,
        ev.Arm: do_arm,
        ev.Disarm: do_disarm,
        ev.CheckCaller: do_check_caller,
        ev.Send: do_send,
        ev.Rest: do_rest,
        ev.RefuseRetry: do_refuse_retry,
        ev.Release: do_release,
        ev.Acquire: do_acquire,
        ev.Dequeue: do_dequeue,
        ev.AnswerTimeout: do_answer_timeout,
        ev.Fail: do_fail,
        ev.CancelAtServer: do_cancel_at_server,
        ev.Drop: do_drop,
        ev.Close: do_close,
    }


_PLAIN: Final = {
    each: Terms(effect=each[0], waits=each[1], outlives_caller=each[2])
    for each in product(Effect, (False, True), (False, True))
}
"""Terms of calls without a rule: most calls."""


def unguarded(
    attempt: Attempt, recorder: Recorder, *, is_member: bool = False, is_piped: bool = False
) -> CallDriver:
    """Return the driver of a call that has begun and that no later call can find.

    `is_member` is whether it is not alone in its request, or gets no answer; it is neither limited nor
    retried then.
    """
    ask, policy, waits = attempt.ask, attempt.ask.policy, attempt.waits
    # A call in a batch, or with a body too large to hold, is unguarded but may still be named.
    is_named = ask.is_named or bool(ask.key)
    is_plain = is_member or (policy.retry is None and policy.concurrency is None)
    if is_plain and not is_named:
        terms = _PLAIN[ask.effect, waits, is_piped]
    else:
        terms = Terms(
            waits=waits,
            effect=ask.effect,
            is_named=is_named,
            is_member=is_member,
            is_limited=policy.concurrency is not None and not is_member,
            is_keyed=bool(ask.key_sent),
            retry=None if is_member else policy.retry,
            total=policy.timeout.total,
            # An agent that has closed its pipe tells the server of no cancel.
            outlives_caller=is_piped,
        )
    # Not `loop.time()`: its check of the process id is a system call.
    now, number = recorder.clock.monotonic() / 1e9, ask.number
    machine = CallMachine(terms, now, number, Stage.RECORDING, given=number, past=ask.past)
    driver = attempt.driver = CallDriver(ask, machine, recorder, attempt)
    return driver


def guarded_terms(
    ask: Ask,
    limits: NeverTwice,
    *,
    waits: bool,
    stateless: bool,
    is_findable: bool,
    checks_earlier_caller: bool = False,
) -> Terms:
    """Return the terms of a call that must not happen twice.

    `is_findable` is whether the call has a key in the duplicate index.
    """
    policy = ask.policy
    # It may be retried, so its caller is kept waiting for the result of that.
    repeats = policy.retry is not None and (
        ask.effect is Effect.IDEMPOTENT_WRITE or bool(ask.key_sent)
    )
    stays = policy.on_disconnect is not OnDisconnect.CANCEL and ask.is_named and not repeats
    findable = ask.guess is None or is_findable
    return Terms(
        effect=ask.effect,
        is_guarded=True,
        is_named=True,
        waits=waits,
        is_limited=policy.concurrency is not None,
        is_keyed=bool(ask.key_sent),
        is_remembered=ask.links is not NO_LINKS,
        retry=policy.retry,
        total=policy.timeout.total,
        on_disconnect=disconnect_action(
            policy.on_disconnect, stateless=stateless, is_findable=findable
        ),
        outlives_limits=stays,
        limits=limits,
        on_duplicate=policy.on_duplicate,
        slower_than=policy.replay_if_slower_than,
        waits_for_earlier=min(policy.timeout.response, policy.timeout.total),
        checks_earlier_caller=checks_earlier_caller,
    )
