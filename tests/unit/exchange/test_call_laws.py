"""The laws of a call: held in every state that a call can reach, and in long random sequences of events."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from turnlog.core.classify import failed, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, NoteKind, Phase
from turnlog.exchange import events as ev
from turnlog.exchange.call import TRANSITIONS, CallerState, CallMachine, Stage, Terms
from turnlog.exchange.duplicates import EarlierCall, Likeness
from turnlog.rules.model import Jitter, OnDisconnect, OnDuplicate, Retry
from turnlog.rules.retry import StopReason

RETRY = Retry(on=("connection", "rate_limited", "timeout"), max_attempts=2, jitter=Jitter.NONE)
GUARDED = Terms(effect=Effect.WRITE, is_guarded=True, is_named=True)
POLICIES = {
    "read": Terms(effect=Effect.READ, waits=False),
    "write": Terms(effect=Effect.UNKNOWN),
    "named write that is too large to hold": Terms(effect=Effect.WRITE, is_named=True),
    "named write of a batch": Terms(effect=Effect.WRITE, is_named=True, is_member=True),
    "limited": Terms(effect=Effect.READ, is_limited=True),
    "limited named write that is too large to hold": Terms(
        effect=Effect.WRITE, is_named=True, is_limited=True
    ),
    "write on a pipe": Terms(effect=Effect.UNKNOWN, outlives_caller=True),
    "limited named write on a pipe": Terms(
        effect=Effect.WRITE, is_named=True, is_limited=True, outlives_caller=True
    ),
    "retried read on a pipe": Terms(effect=Effect.READ, retry=RETRY, outlives_caller=True),
    "retried read": Terms(effect=Effect.READ, retry=RETRY),
    "guarded write": structs.replace(
        GUARDED, is_remembered=True, on_disconnect=OnDisconnect.DRAIN, outlives_limits=True
    ),
    "guarded write with duplicates": structs.replace(GUARDED, checks_earlier_caller=True),
    "guarded write whose duplicates are blocked": structs.replace(
        GUARDED, checks_earlier_caller=True, on_duplicate=OnDuplicate.BLOCK
    ),
    "guarded write that is retried": structs.replace(
        GUARDED, effect=Effect.IDEMPOTENT_WRITE, retry=RETRY, waits=False
    ),
    "guarded write that is limited": structs.replace(
        GUARDED, is_limited=True, on_disconnect=OnDisconnect.GRACE
    ),
}
LOST = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.READ)
LIMITED = refused(ErrorKind.RATE_LIMITED, Effect.READ)
TIMED_OUT = failed(ErrorKind.RESPONSE_TIMEOUT, Phase.SENT, Effect.WRITE)
CANCELLED = failed(ErrorKind.CANCELLED_BY_CALLER, Phase.SENT, Effect.WRITE)
RUNS = EarlierCall(ending=None, began=1.0, is_carried=True)
FOUND = (
    RUNS,
    structs.replace(RUNS, abandoned=True),
    structs.replace(RUNS, is_carried=False, elsewhere=True),
    structs.replace(RUNS, likeness=Likeness.OTHERS),
    EarlierCall(ending=succeeded(), began=2.0, ended=1.0),
    EarlierCall(ending=TIMED_OUT, began=2.0, ended=1.0),
    EarlierCall(ending=succeeded(), began=2.0, likeness=Likeness.DISCARDED, same_input=False),
    EarlierCall(ending=succeeded(), began=2.0, likeness=Likeness.RECORDED),
    EarlierCall(ending=None, began=0.0, likeness=Likeness.RECORDED, same_input=False),
)
OF_STAGE: dict[Stage, tuple[ev.Event, ...]] = {
    Stage.CHECKING_EARLIER: (ev.EarlierCallerChecked(),),
    Stage.JOINING: (ev.EarlierEnded(), ev.Expired(ErrorKind.RESPONSE_TIMEOUT)),
    Stage.CHECKING: (ev.CallerChecked(),),
    Stage.SETTLING: (ev.OutcomeSettled(),),
    Stage.WAITING: (ev.Woken(), ev.Overdue(StopReason.TOTAL)),
}
"""The events that a driver feeds at one stage only."""
TIMES = frozenset({"began", "cancelled_at", "ended_at", "_left_at", "_waits_since"})
_BEFORE_DECISION = TIMES | {
    "_is_caller_checked",
    "_waits_for_no_other",
    "_earlier",
    "_has_joined",
    "_is_repeat",
}
"""Fields that no longer matter once the first intent is on disk."""
OVER = frozenset({Stage.OPEN, Stage.DONE, Stage.REPLAYED})
MAY_CONFLICT = frozenset({Stage.RECORDING, Stage.WITHDRAWN, Stage.OPEN})
"""Stages of a guarded call whose first intent is being written: it has no carrier yet."""
UNDECIDED = frozenset({Stage.CHECKING_EARLIER, Stage.JOINING})


class Play:
    """One call with its driver and its caller; knows which events can happen now.

    Every field is a number, a text or a frozen collection, so that a shallow copy is a copy.
    """

    call: CallMachine
    now: float
    trace: tuple[Any, ...] = ()
    """What has happened, as a chain of (earlier, (stage, event))."""
    most_joiners: int = 1
    has_begun: bool
    looks: bool = False
    """Whether duplicates are being looked up."""
    joins: int = 0
    """How many earlier calls it waits for."""
    withheld: bool = False
    sent: tuple[int, ...] = ()
    recorded: frozenset[int] = frozenset()
    """Attempts whose intent is on disk."""
    intents: frozenset[int] = frozenset()
    unwritten: int = 0
    """The attempt whose intent is being written."""
    ended: frozenset[int] = frozenset()
    """Attempts with an outcome."""
    replaceable: frozenset[int] = frozenset()
    """Attempts that turnlog ended, so that an answer may still come."""
    told: frozenset[int] = frozenset()
    """Attempts that run on though their caller was answered with a timeout."""
    answers: int = 0
    releases: int = 0
    closes: int = 0
    unanswered: int = 0
    """Notes that no answer has come."""
    has_notes: bool = False
    broken: tuple[str, ...] = ()
    """Laws about single commands that were broken."""
    is_armed: bool = False
    is_dequeued: bool = False
    is_stopping: bool = False
    is_refused: bool = False
    """Whether it was over before its intent was on disk: its driver answers the caller."""

    def __init__(self, terms: Terms) -> None:
        self.now = 0.0
        self.call = CallMachine(terms, 0.0)
        self.has_begun = not terms.is_guarded
        if not terms.is_guarded:
            self.call = CallMachine(terms, 0.0, 1, Stage.RECORDING, given=1)
            self.intents, self.unwritten = frozenset({1}), 1

    def copy(self) -> "Play":
        other = copy.copy(self)
        other.call = copy.copy(self.call)
        return other

    @property
    def is_open(self) -> bool:
        """Whether the latest attempt has begun and has no outcome."""
        return self.call.number in self.intents and self.call.number not in self.ended

    @property
    def has_attempt(self) -> bool:
        """Whether something is recorded of the call, so that others can refer to it."""
        return bool(self.intents or self.withheld)

    # -- what happens ---------------------------------------------------------------------------

    def events(self) -> Iterator[ev.Event]:
        """Yield the events that can happen now."""
        if self.looks or not self.has_begun:
            yield from self._events_of_lookup()
            return
        yield from OF_STAGE.get(self.call.stage, ())
        if self.call.stage in UNDECIDED:
            yield from (ev.ServerGone(), ev.Left(), ev.Cancelled(), ev.Stopped())
            return
        yield from self._events_of_attempt()
        yield from self._ends_of_attempts()
        yield from self._events_of_caller()
        yield from self._events_of_others()

    def _events_of_lookup(self) -> Iterator[ev.Event]:
        if self.has_begun:
            yield ev.LookedUp(())
            for found in FOUND if self.call.terms.checks_earlier_caller else ():
                yield ev.LookedUp((found,))
        else:
            yield ev.Begin()
        yield ev.Over()  # the store cannot be read

    def _events_of_attempt(self) -> Iterator[ev.Event]:
        stage = self.call.stage
        if self.unwritten:
            yield ev.Recorded(is_repeatable=True)
            yield ev.Recorded(may_be_gone=True, is_repeatable=True)
            if self.unwritten > 1:  # that of a first attempt ends the attempt
                yield ev.NotRecorded()
            elif self.call.terms.is_guarded and stage in MAY_CONFLICT:
                yield ev.Conflicted()
        if stage is Stage.QUEUED and not self.is_dequeued:
            yield ev.SlotGranted()
            yield ev.SlotGranted(may_be_gone=True)
        if stage is Stage.RECORDING and self.call.number > 1:
            yield ev.Overdue(StopReason.QUEUE)
        if self.intents:
            yield ev.Expired(ErrorKind.RESPONSE_TIMEOUT)
            yield ev.Expired(ErrorKind.RESPONSE_TIMEOUT, can_answer_timeout=True)

    def _ends_of_attempts(self) -> Iterator[ev.Event]:
        number = self.call.number
        if self.is_refused:
            return
        if self.is_open and number not in self.sent:
            yield ev.Judged(number=number, ending=CANCELLED, is_own_answer=True)
        if self.is_open and number in self.sent:
            yield ev.Judged(number=number, ending=succeeded(), has_retry_left=True)
            yield ev.Judged(number=number, ending=LOST, is_own_answer=True, has_retry_left=True)
            if self.call.terms.retry is not None:
                yield ev.Judged(number=number, ending=LIMITED, has_retry_left=True)
            yield ev.Over()
        for earlier in sorted(self.replaceable):
            yield ev.Judged(number=earlier, ending=succeeded())
            if self.call.stage is Stage.WAITING:
                yield ev.Judged(number=earlier, ending=succeeded(), is_held=False)
                yield ev.Judged(number=earlier, ending=LIMITED)

    def _events_of_caller(self) -> Iterator[ev.Event]:
        if not self.has_attempt:
            return
        yield ev.Left()
        yield ev.CancelledLate()
        is_replayed = self.call.stage is Stage.REPLAYED
        if not is_replayed:
            yield ev.Cancelled()
        if is_replayed or (self.ended and self.call.stage is not Stage.SETTLING):
            yield ev.Delivered()

    def _events_of_others(self) -> Iterator[ev.Event]:
        call, is_over = self.call, self.call.stage in OVER
        if self.is_armed:
            yield ev.Drained()
        if call.terms.is_guarded:
            if call.joiners:
                yield ev.JoinerLeft()
                yield ev.JoinerLeft(is_guessed=True)
            if call.joiners < self.most_joiners and not is_over:
                yield ev.JoinerCame()
            if call.is_abandoned and not is_over:
                yield ev.Resumed()
            yield ev.Over()
        if self.intents:
            yield ev.ServerAsked()
        if not is_over:
            yield ev.Stopped()

    # -- what follows ---------------------------------------------------------------------------

    def feed(self, event: ev.Event, now: float) -> None:
        """Feed the call an event, and carry out the commands as a driver does."""
        call, before = self.call, self.call.stage
        self.now = now
        self.trace = (self.trace, (before, event))
        self.has_begun, self.looks = True, False
        self._observe(event, before)
        commands = call.handle(event, now)
        if isinstance(event, ev.Judged):
            outcomes = [isinstance(each, ev.AppendOutcome) for each in commands]
            self._expect(
                outcomes[:1] == [True] and not any(outcomes[1:]),
                "the end of an attempt has one outcome, which comes first",
            )
        for command in commands:
            self._do(command)

    def _observe(self, event: ev.Event, before: Stage) -> None:
        match event:
            case ev.Recorded() | ev.NotRecorded() if self.unwritten:
                if isinstance(event, ev.Recorded):
                    self.recorded |= {self.unwritten}
                self.unwritten = 0
            case ev.Stopped():
                self.is_stopping = True
            case ev.Over():
                self.is_refused |= before is Stage.RECORDING
                # A pipe sends the answer that is there itself, once the outcome is on disk.
                is_sent = before is Stage.SETTLING or before is Stage.WAITING
                self.answers += is_sent and self._is_caller_there
            case ev.Judged():
                is_first = event.number not in self.ended
                self.ended |= {event.number}
                self.replaceable -= {event.number}
                if is_first and event.is_own_answer and event.number in self.sent:
                    self.replaceable |= {event.number}
                # An answer on another stream is passed on by that stream.
                is_awaited = before is Stage.OPEN and event.number == self.call.number
                self.answers += is_awaited and self._is_caller_there
            case _:
                return

    @property
    def _is_caller_there(self) -> bool:
        return self.call.caller is not CallerState.GONE

    def _expect(self, holds: bool, law: str) -> None:
        if not holds:
            self.broken += (law,)

    def _do(self, command: ev.Command) -> None:
        match command:
            case ev.AppendIntent():
                self.intents |= {command.number}
                self.unwritten = command.number
            case ev.Send():
                self.sent += (command.number,)
                is_wanted = not (self.call.terms.is_guarded and self.call.has_given_up)
                self._expect(is_wanted, "a guarded call is not sent for a caller that is gone")
            case ev.AnswerTimeout():
                self._tell()
            case ev.Fail():
                runs_on = self.call.terms.outlives_caller and self.call.cancelled_at is None
                is_given_up = command.kind is ErrorKind.CANCELLED_BY_CALLER
                self._expect(not (runs_on and is_given_up), "a call may outlive its caller")
                self._fail()
            case ev.Dequeue():
                self.is_dequeued = True
            case ev.Arm() | ev.Disarm():
                self.is_armed = isinstance(command, ev.Arm)
            case _:
                self._do_at_end(command)

    def _do_at_end(self, command: ev.Command) -> None:
        """Carry out the commands that end a call, or its attempt."""
        match command:
            case ev.Release():
                self.releases += 1
                self.answers += self._is_caller_there
            case ev.Drop():
                given_up = self.call.has_given_up or self.call.caller is CallerState.ANSWERED
                is_free = given_up or self.is_stopping
                self._expect(is_free, "only a stopping proxy drops a call whose caller waits")
            case ev.Note():
                self.has_notes = True
                self.unanswered += command.kind is NoteKind.UNANSWERED
            case ev.Close():
                self.closes += 1
            case _:
                self._do_beside(command)

    def _do_beside(self, command: ev.Command) -> None:
        """Carry out the commands about earlier calls."""
        match command:
            case ev.LookUp():
                self.looks = True
            case ev.Join():
                self.joins += 1
            case ev.StopWaiting():
                self.joins -= 1
            case ev.RetractIntent():
                self.intents, self.unwritten = frozenset(), 0
            case ev.Withhold():
                self._expect(not self.withheld, "a call is withheld once")
                self.withheld = True
                self.answers += self._is_caller_there
            case _:
                return

    def _tell(self) -> None:
        # The answer is recorded and sent before `feed` returns.
        self.answers += 1
        self.told |= {self.call.number}
        self.replaceable |= {self.call.number}
        self.feed(ev.TimeoutAnswered(TIMED_OUT), self.now)

    def _fail(self) -> None:
        # The attempt is recorded as failed before `feed` returns, unless it has an outcome.
        if self.is_open:
            self.feed(
                ev.Judged(number=self.call.number, ending=CANCELLED, is_own_answer=True), self.now
            )

    # -- the laws -------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the laws of a call against what has happened."""
        broken = [*self.broken, *(law for law, holds in self.laws() if not holds)]
        assert not broken, "\n".join([*broken, *map(str, unlinked(self.trace))])

    def laws(self) -> Iterator[tuple[str, bool]]:
        """Yield each law, and whether it holds."""
        call = self.call
        yield "a caller is answered at most once", self.answers <= 1
        yield "an answer is released at most once", self.releases <= 1
        yield "an attempt is sent at most once", len(self.sent) == len(set(self.sent))
        yield "nothing is sent before its intent is recorded", set(self.sent) <= self.recorded
        yield "without a rule nothing is sent again", bool(call.terms.retry) or len(self.sent) <= 1
        yield "only a guarded call has notes", call.terms.is_guarded or not self.has_notes
        yield "a missing answer is noted at most once", self.unanswered <= 1
        yield "a call is withheld or begun", not (self.withheld and self.intents)
        yield (
            "it waits for an earlier call in one stage",
            self.joins == (call.stage is Stage.JOINING),
        )
        yield "a call is closed at most once", self.closes <= 1
        if self.intents and call.stage in {Stage.OPEN, Stage.DONE}:
            yield "a call that was begun is closed in the end", self.closes == 1
        if call.stage is Stage.DONE or call.stage is Stage.ENDED:
            is_complete = set(self.sent) <= self.ended | self.told
            yield "an attempt that was sent has an outcome in the end", is_complete
            yield "in the end its caller is answered, or does not wait", self.is_served

    @property
    def is_served(self) -> bool:
        """Whether the caller is answered, waits for no answer, or is answered by someone else."""
        waits = self.call.caller is CallerState.HERE
        # A stopping proxy closes the caller's connection.
        elsewhere = self.is_stopping or self.is_refused
        return bool(self.answers) or not waits or elsewhere or not self.has_attempt

    @property
    def state(self) -> tuple[object, ...]:
        """What tells this play from others: all but points in time, and what no longer matters."""
        call, ignored = self.call, _BEFORE_DECISION if self.recorded else TIMES
        fields = (getattr(call, name) for name in call.__struct_fields__ if name not in ignored)
        observed = (getattr(self, name) for name in OBSERVED)
        return (*fields, *observed, call.cancelled_at is None)

    @property
    def rough_state(self) -> tuple[object, ...]:
        """A part of `state` that is enough to reach every pair of the table."""
        call = self.call
        rough = (call.stage, call.caller, call.number, call.joiners, call.last is None, self.looks)
        return (*rough, self.unwritten, self.is_armed, self.ended, self.has_begun, self.sent)


OBSERVED = tuple(name for name in Play.__annotations__ if name not in {"call", "now", "trace"})


def walk(terms: Terms, state: Callable[[Play], object], joiners: int = 1) -> Iterator[Play]:
    """Yield a play for each step from each state that a call can reach; each state is followed once."""
    start = Play(terms)
    start.most_joiners = joiners
    known, plays = {state(start)}, [start]
    while plays:
        play = plays.pop()
        for event in play.events():
            after = play.copy()
            after.feed(event, 0.0)
            yield after
            if (reached := state(after)) not in known:
                known.add(reached)
                plays.append(after)


def unlinked(chain: tuple[Any, ...]) -> list[tuple[Stage, ev.Event]]:
    """Return the items of a chain of (earlier, item), oldest first."""
    items: list[tuple[Stage, ev.Event]] = []
    while chain:
        chain, item = chain
        items.append(item)
    return items[::-1]


@pytest.mark.parametrize("name", POLICIES)
def test_the_laws_hold_in_every_state_that_a_call_can_reach(name: str) -> None:
    terms = POLICIES[name]
    stages = set[Stage]()
    # With retries and joiners together there are too many states for a unit test.
    for play in walk(terms, lambda play: play.state, joiners=terms.retry is None):
        play.check()
        stages.add(play.call.stage)
    assert {Stage.SENT, Stage.ENDED, Stage.WITHDRAWN} <= stages


def test_every_pair_of_the_table_is_reached() -> None:
    pairs = {
        (stage, type(event))
        for terms in POLICIES.values()
        for play in walk(terms, lambda play: play.rough_state)
        for stage, event in unlinked(play.trace)[-2:]  # one may be fed while another is handled
    }
    after_a_bug = {pair for pair in TRANSITIONS if pair[0] is Stage.BROKEN}
    assert set(TRANSITIONS) - after_a_bug == pairs


TERMS = st.builds(
    Terms,
    effect=st.sampled_from(Effect),
    is_guarded=st.booleans(),
    is_named=st.just(True),
    is_member=st.booleans(),
    is_limited=st.booleans(),
    is_keyed=st.booleans(),
    waits=st.booleans(),
    is_remembered=st.booleans(),
    retry=st.sampled_from([None, RETRY, structs.replace(RETRY, max_attempts=3)]),
    total=st.sampled_from([60.0, 10_000.0]),
    on_disconnect=st.sampled_from(OnDisconnect),
    outlives_limits=st.booleans(),
    on_duplicate=st.sampled_from(OnDuplicate),
    slower_than=st.sampled_from([3.0, 10_000.0]),
    waits_for_earlier=st.sampled_from([60.0, 10_000.0]),
    checks_earlier_caller=st.booleans(),
    outlives_caller=st.booleans(),
).filter(lambda terms: not (terms.outlives_caller if terms.is_guarded else terms.outlives_limits))
"""`engine.call_driver` makes no others: a guarded call may outlive limits, another one its caller."""


@settings(max_examples=40, deadline=None)
@given(TERMS, st.data())
def test_the_laws_hold_in_long_sequences_of_events(terms: Terms, data: st.DataObject) -> None:
    play = Play(terms)
    play.most_joiners = 3
    for _ in range(35):
        event = data.draw(st.sampled_from(list(play.events())))
        play.feed(event, play.now + data.draw(st.sampled_from([0.0, 0.5, 4.0, 6.0, 700.0])))
        play.check()
