"""The laws of a call, held against every short sequence of events, and against long random ones."""

import copy
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from turnlog.core.classify import Ending, failed, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, NoteKind, Phase
from turnlog.exchange import events as ev
from turnlog.exchange.call import TRANSITIONS, CallerState, CallMachine, Stage, Terms
from turnlog.exchange.duplicates import DuplicateAction, EarlierCall, Likeness
from turnlog.rules.model import Jitter, OnDisconnect, OnDuplicate, Retry
from turnlog.rules.retry import StopReason

DEPTH = 7
"""Events of the longest sequence that is walked; hypothesis goes further."""
RETRY = Retry(on=("connection", "rate_limited", "timeout"), max_attempts=3, jitter=Jitter.NONE)
BESIDE = Terms(effect=Effect.WRITE, is_guarded=True, is_named=True, may_doubt=True)
POLICIES = {
    "read": Terms(effect=Effect.READ, waits=False),
    "write": Terms(effect=Effect.UNKNOWN),
    "named write of a batch": Terms(effect=Effect.WRITE, is_named=True),
    "limited": Terms(effect=Effect.READ, is_limited=True),
    "retried read": Terms(effect=Effect.READ, retry=RETRY),
    "named write": Terms(
        effect=Effect.WRITE,
        is_guarded=True,
        is_named=True,
        is_remembered=True,
        on_disconnect=OnDisconnect.DRAIN,
        outlives_limits=True,
    ),
    "named write beside others": BESIDE,
    "named write that a rule refuses beside others": structs.replace(
        BESIDE, on_duplicate=OnDuplicate.BLOCK
    ),
    "named write that is retried": Terms(
        effect=Effect.IDEMPOTENT_WRITE,
        is_guarded=True,
        is_named=True,
        is_limited=True,
        retry=RETRY,
        on_disconnect=OnDisconnect.GRACE,
    ),
}
LOST = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.READ)
LIMITED = refused(ErrorKind.RATE_LIMITED, Effect.READ)
TIMED_OUT = failed(ErrorKind.RESPONSE_TIMEOUT, Phase.SENT, Effect.WRITE)


TIMES = {"began", "cancelled_at", "ended_at", "_left_at", "_waits_since"}


def yes() -> bool:
    return True


Make = Callable[["Play"], ev.Event | None]


def always(event: ev.Event) -> Make:
    """Return what may happen at any time."""
    return lambda play: event


def judged(ending: Ending, *, ours: bool = False) -> Make:
    """Return the end of the latest attempt, where that is open."""
    return lambda play: (
        ev.Judged(number=play.call.number, ending=ending, ours=ours, may_retry=yes)
        if play.is_open
        else None
    )


def found(*earlier: EarlierCall) -> Make:
    """Return what was found of earlier calls, where they are looked for."""
    return lambda play: ev.LookedUp(earlier) if play.looks else None


RUNS = EarlierCall(ending=None, began=1.0, is_carried=True)
ALPHABET: dict[str, Make] = {
    "begin": lambda play: None if play.has_begun else ev.Begin(),
    "nothing found": found(),
    "found one that runs": found(RUNS),
    "found one that was left": found(structs.replace(RUNS, abandoned=True)),
    "found one of another process": found(structs.replace(RUNS, is_carried=False, elsewhere=True)),
    "found one of another principal": found(structs.replace(RUNS, likeness=Likeness.OTHERS)),
    "found one that was lost": found(EarlierCall(ending=succeeded(), began=2.0, ended=1.0)),
    "found one of which nobody knows": found(EarlierCall(ending=TIMED_OUT, began=2.0, ended=1.0)),
    "certain": always(ev.CertaintyCame()),
    "earlier ended": always(ev.EarlierEnded()),
    "server gone": always(ev.ServerGone()),
    "recorded": always(ev.Recorded(is_repeatable=True)),
    "recorded, caller in doubt": always(ev.Recorded(in_doubt=True, is_repeatable=True)),
    "not recorded": always(ev.NotRecorded()),
    "slot": always(ev.SlotGranted()),
    "checked": always(ev.CallerChecked()),
    "answered": judged(succeeded()),
    "refused": judged(LIMITED),
    "lost": judged(LOST, ours=True),
    "left": always(ev.Left()),
    "cancelled": always(ev.Cancelled()),
    "cancelled late": always(ev.CancelledLate()),
    "delivered": always(ev.Delivered()),
    "expired": always(ev.Expired(ErrorKind.RESPONSE_TIMEOUT)),
    "expired, can tell": always(ev.Expired(ErrorKind.RESPONSE_TIMEOUT, can_tell=True)),
    "drained": lambda play: ev.Drained() if play.is_armed else None,
    "woken": always(ev.Woken()),
    "overdue": lambda play: ev.Overdue(StopReason.STOPPING) if play.rests else None,
    "joiner came": lambda play: ev.JoinerCame() if play.call.joiners < 2 else None,
    "joiner left": lambda play: ev.JoinerLeft() if play.call.joiners else None,
    "server asks": always(ev.ServerAsked()),
    "resumed": always(ev.Resumed()),
    "stopped": always(ev.Stopped()),
    "over": always(ev.Over()),
}


class Play:
    """One call beside what came of it; carries out at once what a driver does at once."""

    call: CallMachine
    is_armed: bool
    rests: int
    has_begun: bool

    def __init__(self, terms: Terms) -> None:
        self.call = CallMachine(terms, 0.0)
        if not terms.is_guarded:
            self.call = CallMachine(terms, 0.0, 1, Stage.RECORDING, given=1)
        self.has_begun = not terms.is_guarded
        self.looks = False
        """Whether earlier calls are being looked for: a driver does that at once."""
        self.joins = 0
        """How many earlier calls it waits for."""
        self.withheld: list[DuplicateAction] = []
        self.now = 0.0
        self.trace: list[str] = []
        """What has happened, and at which stage."""
        self.sent: list[int] = []
        self.recorded: set[int] = set()
        self.intents = [self.call.number] if self.call.number else []
        self.outcomes: list[int] = []
        self.ended: set[int] = set()
        self.told: set[int] = set()
        """Attempts with the outcome that their caller was told, while they ran on."""
        self.answers = 0
        self.releases = 0
        self.unwanted = 0
        """Attempts that were sent for a caller that was gone."""
        self.notes: list[NoteKind] = []
        self.rests = 0
        self.is_armed = False
        self.is_dropped = False

    def __deepcopy__(self, memo: dict[int, object]) -> "Play":
        other = copy.copy(self)
        other.call = copy.copy(self.call)
        for name in (
            "withheld",
            "trace",
            "sent",
            "recorded",
            "intents",
            "outcomes",
            "ended",
            "told",
            "notes",
        ):
            setattr(other, name, getattr(self, name).copy())
        return other

    @property
    def is_open(self) -> bool:
        """Whether the latest attempt has begun, and no end."""
        return self.call.number in self.intents and self.call.number not in self.ended

    def event(self, name: str) -> ev.Event | None:
        """Return the event of this name; `None` where no driver would send it now."""
        event = ALPHABET[name](self)
        if (self.looks or not self.has_begun) and not isinstance(event, ev.LookedUp | ev.Begin):
            return None
        return event if (self.call.stage, type(event)) in TRANSITIONS else None

    def feed(self, event: ev.Event) -> None:
        """Hand the call an event, and carry out what it commands."""
        self.now += 1.0
        call, before = self.call, self.call.stage
        self.trace.append(f"{before.value}: {event}")
        self.has_begun, self.looks = True, False
        if isinstance(event, ev.Recorded) and before is Stage.RECORDING:
            self.recorded.add(call.number)
        commands = call.handle(event, self.now)
        if isinstance(event, ev.Judged):
            assert sum(isinstance(each, ev.AppendOutcome) for each in commands) == 1
            self.outcomes.append(event.number)
            self.ended.add(event.number)
        for command in commands:
            self._do(command)

    def _do(self, command: ev.Command) -> None:
        call = self.call
        match command:
            case ev.LookUp() | ev.Join() | ev.StopWaiting() | ev.Withhold():
                self._do_beside(command)
            case ev.AppendIntent():
                self.intents.append(command.number)
            case ev.Send():
                self.sent.append(command.number)
                self.unwanted += call.terms.is_guarded and call.has_given_up
            case ev.Release():
                self.releases += 1
                self.answers += call.caller is not CallerState.GONE
            case ev.Tell():
                self.answers += 1
                self.feed_told()
            case ev.Fail() | ev.Dequeue() | ev.Drop() if self.is_open:
                self._note(command)
                ending = failed(LEFT, Phase.SENT, call.terms.effect)
                self.feed(ev.Judged(number=call.number, ending=ending, ours=True))
            case _:
                self._note(command)

    def _note(self, command: ev.Command) -> None:
        self.rests += isinstance(command, ev.Rest)
        self.is_armed = isinstance(command, ev.Arm) or (
            self.is_armed and not isinstance(command, ev.Disarm)
        )
        self.is_dropped = self.is_dropped or isinstance(command, ev.Drop)
        if isinstance(command, ev.Note):
            self.notes.append(command.kind)

    def _do_beside(self, command: ev.LookUp | ev.Join | ev.StopWaiting | ev.Withhold) -> None:
        """Carry out what is commanded because of an earlier call."""
        self.looks = isinstance(command, ev.LookUp)
        self.joins += isinstance(command, ev.Join) - isinstance(command, ev.StopWaiting)
        if isinstance(command, ev.Withhold):
            self.withheld.append(command.action)
            self.answers += self.call.caller is not CallerState.GONE

    def feed_told(self) -> None:
        for command in self.call.handle(ev.Told(TIMED_OUT), self.now):
            assert isinstance(command, ev.AppendOutcome)
        self.told.add(self.call.number)

    def check(self) -> None:
        """Hold the laws of a call against what has happened."""
        broken = [law for law, holds in self.laws() if not holds]
        assert not broken, "\n".join([*broken, *self.trace])

    @property
    def likeness(self) -> object:
        """What tells plays apart, but for points in time."""
        call = self.call
        of_call = tuple(getattr(call, name) for name in call.__struct_fields__ if name not in TIMES)
        return (
            *of_call,
            *(call.cancelled_at is None, call.ended_at == 0, self.answers, self.is_armed),
            *(self.rests, self.is_dropped, tuple(self.sent), frozenset(self.ended)),
            *(frozenset(self.told), len(self.outcomes), bool(self.notes)),
            *(self.looks, self.joins, tuple(self.withheld)),
        )

    def laws(self) -> Iterator[tuple[str, bool]]:
        """Yield each law, and whether it holds."""
        call = self.call
        yield "a caller is answered at most once", self.answers <= 1
        yield "an answer is released at most once", self.releases <= 1
        yield "what is guarded is not sent for a caller that is gone", not self.unwanted
        yield (
            "an earlier call is waited for while that is the stage",
            self.joins == (call.stage is Stage.JOINING),
        )
        yield (
            "a call is withheld once, or begun, not both",
            len(self.withheld) + bool(self.intents) <= 1,
        )
        yield "an attempt is sent at most once", len(self.sent) == len(set(self.sent))
        yield "nothing is sent before its intent is recorded", set(self.sent) <= self.recorded
        yield "an attempt has one outcome", len(self.outcomes) == len(set(self.outcomes))
        if call.terms.retry is None:
            yield "nothing is sent again without a rule", len(self.sent) <= 1
        if not call.terms.is_guarded:
            yield "only what must not happen twice has notes", not self.notes
        if call.stage in {Stage.DONE, Stage.ENDED}:
            yield (
                "what was sent has an outcome in the end",
                set(self.sent) <= self.ended | self.told,
            )
        if call.stage is Stage.ENDED and not self.is_dropped:
            is_gone = call.caller not in {CallerState.HERE, CallerState.CANCELLED}
            yield "a caller is answered, or gone", bool(self.answers) or is_gone
        if self.withheld:
            yield "what is withheld has ended", call.is_over

    def finish(self) -> None:
        """Let each stage end as it does where nothing else happens."""
        while self.call.stage not in {Stage.OPEN, Stage.DONE, Stage.REPLAYED}:
            self.feed(self._next())

    def _next(self) -> ev.Event:
        if self.call.stage is Stage.NEW:
            return ev.LookedUp(()) if self.looks else ev.Begin()
        if self.call.stage is Stage.SENT:
            return ev.Judged(number=self.call.number, ending=succeeded())
        return NEXT.get(self.call.stage, ev.Over())


NEXT: dict[Stage, ev.Event] = {
    Stage.DOUBTING: ev.CertaintyCame(),
    Stage.JOINING: ev.EarlierEnded(),
    Stage.RECORDING: ev.Recorded(),
    Stage.SETTLING: ev.Recorded(),
    Stage.QUEUED: ev.SlotGranted(),
    Stage.CHECKING: ev.CallerChecked(),
    Stage.WAITING: ev.Overdue(StopReason.TOTAL),
}
"""What ends each stage where nothing else happens."""
LEFT = ErrorKind.CANCELLED_BY_CALLER


def walk(terms: Terms) -> Iterator[Play]:
    """Go through all that may come of a call in `DEPTH` events; what is alike is followed once."""
    known: set[object] = set()
    plays = [Play(terms)]
    for _ in range(DEPTH):
        plays = [after for play in plays for after in following(play) if is_new(after, known)]
        yield from plays


def is_new(play: Play, known: set[object]) -> bool:
    """Tell whether none was like this one before."""
    before = len(known)
    known.add(play.likeness)
    return len(known) > before


def following(play: Play) -> Iterator[Play]:
    """Yield what may come of a play with the next event."""
    for name in ALPHABET:
        if event := play.event(name):
            after = copy.deepcopy(play)
            after.feed(event)
            yield after


@pytest.mark.parametrize("name", POLICIES)
def test_every_sequence_of_events_keeps_the_laws(name: str) -> None:
    stages = set[Stage]()
    for play in walk(POLICIES[name]):
        play.check()
        stages.add(play.call.stage)
        rest = copy.deepcopy(play)
        rest.finish()
        rest.check()
    assert {Stage.SENT, Stage.ENDED, Stage.OPEN, Stage.DONE} <= stages


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(POLICIES)), st.lists(st.sampled_from(sorted(ALPHABET)), max_size=40))
def test_long_sequences_of_events_keep_the_laws(policy: str, names: list[str]) -> None:
    play = Play(POLICIES[policy])
    for name in names:
        if event := play.event(name):
            play.feed(event)
            play.check()
