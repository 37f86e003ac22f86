"""Drives one call: turns what happens to it into events, and carries out what `exchange.call` decides."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final, Protocol

from msgspec import Struct

from turnlog.core.classify import Ending
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.exchange import events as ev
from turnlog.exchange.call import CallerState, CallMachine, Commands, InvalidEvent, Stage, Terms
from turnlog.exchange.duplicates import EarlierCall, NeverTwice, disconnect_action
from turnlog.observe.clock import Clock
from turnlog.record.attempt import NO_LINKS, Ask, Attempt
from turnlog.record.errors import Failure
from turnlog.record.own_answers import OwnAnswer
from turnlog.record.recorder import Recorder
from turnlog.record.unread import all_read
from turnlog.rules.model import OnDisconnect
from turnlog.transport.async_pipes import DOUBT

from .concurrency import Slot


class Carrier(Protocol):
    """Carries a call to its server, and its answer back: a request over HTTP, or a pipe."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the caller has closed its side: it may be gone, or only have no more to say."""
        ...

    @property
    def hears(self) -> bool:
        """Whether what is written goes to the caller."""
        ...

    @property
    def has_left(self) -> bool:
        """Whether some of the latest answer has left."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether the latest answer can still be kept from the caller."""
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether the proxy stops."""
        ...

    @property
    def can_tell(self) -> bool:
        """Whether the caller can be told now that its time is over."""
        ...

    def claim_slot(self) -> Slot:
        """Return the call's slot among those that its rule counts."""
        ...

    def may_retry(self) -> bool:
        """Spend one retry of the server's quota; false where none is left."""
        ...

    def tell(self, failure: Failure) -> None:
        """Record that the caller's time is over, and tell it; the call runs on."""
        ...

    def fail(self, kind: ErrorKind) -> None:
        """Record that the latest attempt failed so, unless its answer may come on another stream."""
        ...

    def take_back(self) -> None:
        """Cancel the latest attempt at the server."""
        ...

    def drop(self, kind: ErrorKind) -> None:
        """Stop carrying the call; record what is open as failed so, unless its answer is at hand."""
        ...


class Unsent(Struct, frozen=True):
    """The result of a call that is not sent because an earlier one stands for it."""

    attempt: Attempt
    """The call's only one, with its ending."""
    answer: OwnAnswer | None
    """The earlier call's; `None` where turnlog says something itself."""
    sentence: str


class CallDriver:
    """One call under way, or lately ended. Points in time are in seconds, on the monotonic clock."""

    # Most calls keep these, and are made faster when they need not set them.
    is_guarded: bool
    """Whether a later call may join it, or be answered from it (semantics, section 5)."""
    unsent: Unsent | None = None
    """What its caller gets where it is not sent, because of an earlier one."""
    found_by: tuple[bytes, ...] = ()
    """Links by which it is found."""
    attempt: Attempt | None = None
    """The latest one."""
    kept: OwnAnswer | None = None
    """The whole answer, for a later call that is the same."""
    left_by: frozenset[int | str] = frozenset()
    """Connections of guessed callers that joined it, and have left as well."""
    to_send: ev.Send | None = None
    """The attempt that is to be sent now, until somebody takes it."""
    delay = 0.0
    """s to wait before the next attempt."""
    released: ev.Release | None = None
    """Which answer is the caller's, once that is decided."""
    slot: Slot | None = None
    """Among the calls that its rule counts, where one does."""
    carrier: Carrier | None = None
    """Carries it out, while somebody does."""
    _failure: Failure | None = None
    """Why the caller's time is over, while it is told."""
    _joiners: tuple[asyncio.Event, ...] = ()
    """Set at its end, for other calls that wait for its answer."""
    _ended: asyncio.Event | None = None
    """Set at its end, where somebody waits for it."""
    _left: asyncio.Event | None = None
    """Set when its caller leaves, where somebody waits to know."""
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        ask: Ask,
        terms: Terms,
        recorder: Recorder,
        clock: Clock,
        *,
        attempt: Attempt | None = None,
    ) -> None:
        """`attempt` is the first one, where its intent is queued already."""
        self.ask = ask
        self.is_guarded = terms.is_guarded
        self._recorder = recorder
        self._clock = clock
        # Not by the loop, as that asks for the id of the process: a system call.
        now, number, past = clock.monotonic() / 1e9, ask.number, ask.past
        if attempt is not None:
            self.attempt, attempt.driver = attempt, self
            recording = Stage.RECORDING
            self.machine = CallMachine(terms, now, number, recording, given=number, past=past)
        else:
            self.machine = CallMachine(terms, now, number - 1, past=past)

    # -- what is known of it ----------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of the answer that is held."""
        return len(self.kept.body) if self.kept is not None else 0

    @property
    def is_over(self) -> bool:
        """Whether nobody carries it any more; its answer may yet come on another stream."""
        return self.machine.is_over

    @property
    def may_be_guessed(self) -> bool:
        """Whether a caller that is only guessed may join it."""
        return self.machine.may_be_guessed(self._clock.monotonic() / 1e9)

    @property
    def is_in_doubt(self) -> bool:
        """Whether its caller may be gone without a word."""
        return self.carrier is not None and not self.machine.has_left and self.carrier.is_in_doubt

    @property
    def is_heard(self) -> bool:
        """Whether its caller is surely there and has not had the answer."""
        is_waiting = self.machine.caller in (CallerState.HERE, CallerState.CANCELLED)
        hears = self.carrier is not None and self.carrier.hears
        return is_waiting and hears and not self.is_in_doubt

    @property
    def is_written(self) -> bool:
        """Whether the intent of its latest attempt is on disk."""
        intent = self.attempt.intent if self.attempt is not None else None
        return intent is not None and intent.placed is not None

    def seen(self) -> EarlierCall:
        """Return what a later call that asks the same has to know of it."""
        return self.machine.seen(self._clock.monotonic() / 1e9)

    # -- events of whoever carries it -------------------------------------------------------

    def begins(self, attempt: Attempt) -> None:
        """Set the attempt whose intent was queued."""
        self.attempt = attempt
        attempt.driver = self

    def on_recorded(self, *, is_repeatable: bool) -> None:
        """Mark the intent of its latest attempt as written, or as not to be waited for."""
        # Whether its caller is in doubt costs a system call, and of most calls it does not matter.
        in_doubt = self.machine.terms.is_named and self.is_in_doubt
        self.feed(ev.Recorded(in_doubt=in_doubt, is_repeatable=is_repeatable))

    def feed(self, event: ev.Event) -> Commands:
        """Carry out what follows an event; return it."""
        try:
            commands = self.machine.handle(event, self._clock.monotonic() / 1e9)
        except InvalidEvent:
            self._on_bug(event)
            return ()
        for command in commands:
            if (action := self.ACTIONS.get(type(command))) is not None:
                action(self, command)
        return commands

    def on_judged(self, attempt: Attempt, *, ours: bool) -> ev.AppendOutcome:
        """Decide what follows the end of an attempt; return what to record of it.

        `ours` tells whether turnlog answers in the server's place.
        """
        ending = attempt.ending
        assert ending is not None
        if self._failure is not None:
            self.feed(ev.Told(ending))
            return ev.AppendOutcome()
        carrier = self.carrier
        if carrier is None or self.machine.terms.retry is None:
            judged = ev.Judged(number=attempt.ask.number, ending=ending, ours=ours)
        else:
            judged = self._judged(carrier, attempt, ending, ours=ours)
        commands = self.feed(judged)
        outcome = commands[0] if commands else ev.AppendOutcome()
        assert isinstance(outcome, ev.AppendOutcome)  # it always is the first
        attempt.yields = not outcome.is_told and self.machine.stage is not Stage.WAITING
        return outcome

    def _on_bug(self, event: ev.Event) -> None:
        """End this call, and no other."""
        self._recorder.on_bug(self.ask, self.machine.stage.value, type(event).__name__)
        self.machine.give_up(self._clock.monotonic() / 1e9)
        self.do_disarm(ev.Disarm())
        self.do_fail(ev.Fail(ErrorKind.OUTCOME_UNKNOWN))
        self.do_drop(ev.Drop(ErrorKind.OUTCOME_UNKNOWN))
        self.do_close(ev.Close())

    def _judged(
        self, carrier: Carrier, attempt: Attempt, ending: Ending, *, ours: bool
    ) -> ev.Judged:
        return ev.Judged(
            number=attempt.ask.number,
            ending=ending,
            ours=ours,
            retry_after=attempt.retry_after,
            has_left=carrier.has_left,
            is_held=carrier.is_held,
            is_stopping=carrier.is_stopping,
            dice=int.from_bytes(self._clock.entropy(4), "big") / (1 << 32),
            may_retry=carrier.may_retry,
        )

    def on_outcome_written(self, *, written: bool) -> None:
        """Release the answer: its outcome is on disk, or will never be."""
        if self.machine.stage is Stage.SETTLING:
            self.feed(ev.Recorded() if written else ev.NotRecorded())

    def on_expired(self, failure: Failure) -> bool:
        """Return whether the call runs on, now that its caller's time is over."""
        can_tell = self.carrier is not None and self.carrier.can_tell
        self._failure = failure
        try:
            commands = self.feed(ev.Expired(failure.kind, can_tell=can_tell))
        finally:
            self._failure = None
        return any(isinstance(command, ev.Tell) for command in commands)

    # -- events of its caller, and of others ------------------------------------------------

    def on_left(self) -> None:
        """Mark the caller as gone; starts the drain timer."""
        if self.attempt is not None:
            self.feed(ev.Left())
        if self._left is not None:
            self._left.set()

    def on_late_cancel(self) -> bool:
        """Return whether a cancel that crossed the answer makes it undelivered."""
        return self.attempt is not None and bool(self.feed(ev.CancelledLate()))

    def on_delivered(self) -> None:
        """Note that the whole answer was handed to a caller."""
        if self.attempt is not None and self.attempt.ending is not None:
            self.on_outcome_written(written=True)  # no answer leaves before
            self.feed(ev.Delivered())

    def on_guess_left(self, connection: int | str) -> None:
        """Count a guessed caller that is gone as its caller: what that one asks next may join it."""
        self.left_by |= {connection}
        self.machine.on_guess_left(self._clock.monotonic() / 1e9)

    async def resumed(self) -> None:
        """End it for the stream that resumes its own, if its caller has left."""
        if self.machine.is_abandoned and self.carrier is not None:
            self.feed(ev.Resumed())
            await self.ended()

    async def made_certain(self) -> None:
        """Wait until it is known whether its caller is gone, as far as that shows in time."""
        for wait in DOUBT:
            if not self.is_in_doubt:
                return
            if self._left is None:
                self._left = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._left.wait()

    async def asked_beside(self) -> None:
        """Wait until it is known whether its caller has given it up: the same call was made again.

        A close or a cancel comes on another connection, and may be read after the call behind it.
        """
        await all_read()
        await self.made_certain()

    async def slot_granted(self) -> None:
        """Wait for its slot. Raises `Failure` where its caller gives it up before."""
        assert self.slot is not None  # a rule counts it
        if not await self.slot.wait():
            detail = "taken back while it waited to be sent"
            raise Failure(ErrorKind.CANCELLED_BY_CALLER, Phase.QUEUED, detail)
        self.feed(ev.SlotGranted(in_doubt=self.is_in_doubt))

    async def ended(self) -> None:
        """Wait for its end."""
        if self.is_over:
            return
        if self._ended is None:
            self._ended = asyncio.Event()
        await self._ended.wait()

    def join(self, ended: asyncio.Event) -> None:
        """Wait for its answer, beside its caller or in its place: set `ended` at its end."""
        self._joiners = (*self._joiners, ended)
        self.feed(ev.JoinerCame())

    def leave(self, ended: asyncio.Event) -> None:
        """Wait for its answer no more."""
        self._joiners = tuple(each for each in self._joiners if each is not ended)
        self.feed(ev.JoinerLeft())

    def close(self) -> None:
        """Mark a call as over that no later one can ask for."""
        self.carrier = None
        if self.attempt is not None:
            self.attempt.driver = None  # else both would wait for the collector

    # -- when it is remembered --------------------------------------------------------------

    def shrink(self) -> None:
        """Release what is not needed after the end: many calls are remembered."""
        self.carrier = None
        if self.attempt is not None:
            self.attempt.retire()
            self.ask = self.attempt.ask

    def forgotten(self) -> None:
        """Break the cycle with the attempt: the collector hardly looks at what has lived for long."""
        if self.is_over and self.attempt is not None and self.attempt.ended:
            self.attempt.driver = None

    # -- commands; those that are missing here are for whoever carries the call --------------

    def do_note(self, note: ev.Note) -> None:
        """Append a note."""
        if (attempt := self.attempt) is not None:
            follows = (attempt.outcome or attempt.intent) if note.on_outcome else attempt.intent
            self._recorder.note(note.kind, self.ask.session, attempt.facts, follows)

    def do_arm(self, command: ev.Arm) -> None:
        """Begin to count the time for which it runs on alone."""
        self.do_disarm(ev.Disarm())
        self._timer = asyncio.get_running_loop().call_later(command.delay, self.feed, ev.Drained())

    def do_disarm(self, _: ev.Disarm) -> None:
        """Count that time no more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def do_send(self, command: ev.Send) -> None:
        """Set the attempt that is to be sent."""
        self.to_send = command

    def do_rest(self, command: ev.Rest) -> None:
        """Set how long to wait before the next attempt."""
        self.delay = command.delay

    def do_release(self, command: ev.Release) -> None:
        """Set which answer is the caller's."""
        self.released = command

    def do_acquire(self, _: ev.Acquire) -> None:
        """Claim its slot."""
        assert self.carrier is not None  # its intent is recorded by whoever carries it
        self.slot = self.carrier.claim_slot()
        if self.slot.is_held:
            self.feed(ev.SlotGranted(in_doubt=self.is_in_doubt))

    def do_dequeue(self, _: ev.Dequeue) -> None:
        """End its wait for a slot."""
        assert self.slot is not None  # it waits for it
        self.slot.give_back()

    def do_tell(self, _: ev.Tell) -> None:
        """Answer the caller, whose time is over."""
        assert self._failure is not None  # a limit was reached
        assert self.carrier is not None  # who said that it can
        self.carrier.tell(self._failure)

    def do_fail(self, command: ev.Fail) -> None:
        """End the attempt as failed; where a limit was reached its connection does that."""
        if self._failure is None and self.carrier is not None:
            self.carrier.fail(command.kind)

    def do_take_back(self, _: ev.TakeBack) -> None:
        """Cancel the latest attempt at the server."""
        if self.carrier is not None:
            self.carrier.take_back()

    def do_drop(self, command: ev.Drop) -> None:
        """Stop carrying it."""
        if self.carrier is not None:
            self.carrier.drop(command.kind)

    def do_close(self, _: ev.Close) -> None:
        """Wake those that wait for its end."""
        for each in (self._ended, *self._joiners):
            if each is not None:
                each.set()

    ACTIONS: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        ev.Note: do_note,
        ev.Arm: do_arm,
        ev.Disarm: do_disarm,
        ev.Send: do_send,
        ev.Rest: do_rest,
        ev.Release: do_release,
        ev.Acquire: do_acquire,
        ev.Dequeue: do_dequeue,
        ev.Tell: do_tell,
        ev.Fail: do_fail,
        ev.TakeBack: do_take_back,
        ev.Drop: do_drop,
        ev.Close: do_close,
    }


_PLAIN: Final = {
    effect: tuple(Terms(effect=effect, waits=waits) for waits in (False, True)) for effect in Effect
}
"""Terms of calls of which no rule says anything: most."""


def unguarded(attempt: Attempt, recorder: Recorder, clock: Clock) -> CallDriver:
    """Return what drives a call that has begun, and that no later one can find."""
    ask, policy, waits = attempt.ask, attempt.ask.policy, attempt.waits
    # One of a batch, or whose body is too large to hold, may be named all the same.
    is_named = ask.is_named or bool(ask.key)
    if policy.retry is None and policy.concurrency is None and not is_named:
        terms = _PLAIN[ask.effect][waits]
    else:
        terms = Terms(
            waits=waits,
            effect=ask.effect,
            is_named=is_named,
            is_limited=policy.concurrency is not None,
            is_keyed=bool(ask.key_sent),
            retry=policy.retry,
            total=policy.timeout.total,
        )
    return CallDriver(ask, terms, recorder, clock, attempt=attempt)


def guarded_terms(
    ask: Ask,
    limits: NeverTwice,
    *,
    waits: bool,
    stateless: bool,
    is_findable: bool,
    may_doubt: bool = False,
) -> Terms:
    """Return what rules and protocol say of a call that must not happen twice.

    `is_findable` is whether there is a link by which a later call finds it.
    """
    policy = ask.policy
    # Another attempt could follow: its caller is better told how that ends.
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
        may_doubt=may_doubt,
    )
