"""The life of one call, from its first record to its last, whatever carries it. Pure.

Two coupled state machines: the attempt (`Stage`) and the caller (`CallerState`). A driver turns what
happens into events, and carries out the commands that `CallMachine.handle` returns. `TRANSITIONS` is the
table of all legal events by stage; any other event is a bug of the driver.
"""

from collections.abc import Callable
from enum import StrEnum
from math import inf
from typing import Any, Final

from msgspec import Struct, structs

from turnlog.core.classify import (
    EarlierAttempts,
    Ending,
    ending_of_call,
    failed,
    more_executed,
    with_attempt,
)
from turnlog.core.kinds import Effect, ErrorKind, NoteKind, Phase
from turnlog.rules.model import OnDisconnect, OnDuplicate, Retry
from turnlog.rules.retry import (
    EndedAttempt,
    NoRetry,
    RetryIn,
    StopReason,
    decide_retry,
    may_still_run,
)

from . import events as ev
from .duplicates import (
    CANCELLED_LIFE,
    DuplicateAction,
    EarlierCall,
    Likeness,
    NeverTwice,
    NewCall,
    decide_duplicate,
)

Commands = tuple[ev.Command, ...]
_NOTHING: Final[Commands] = ()
RECORDED: Final = ev.AppendOutcome()
"""The outcome of most attempts."""
_LATE_OUTCOME: Final[Commands] = (ev.AppendOutcome(is_late=True),)
"""The outcome of an answer to an earlier attempt than the latest."""


_LEFT_ANSWER: Final = ev.Note(NoteKind.ABANDONED, on_outcome=True)


class Stage(StrEnum):
    """The stage of the latest attempt."""

    NEW = "new"
    """Duplicates are being looked up; nothing is recorded."""
    CHECKING_EARLIER = "checking_earlier"
    """A duplicate was found; it is being checked whether its caller, or that of this call, has left."""
    JOINING = "joining"
    """Waits for the end of the earlier call."""
    REPLAYED = "replayed"
    """Was not sent; answered from the earlier call."""
    RECORDING = "recording"
    """The intent is being written; nothing was sent."""
    QUEUED = "queued"
    """Waits for a slot of its concurrency limit."""
    CHECKING = "checking"
    """About to be sent; it is being checked whether the caller is still connected."""
    SENT = "sent"
    """Being sent, or at the server."""
    SETTLING = "settling"
    """Was the last attempt; its outcome is being written and the answer held."""
    WAITING = "waiting"
    """Failed; waits for the delay before the next attempt."""
    WITHDRAWN = "withdrawn"
    """Was given up because no caller waits for it."""
    ENDED = "ended"
    """Was the last attempt; its answer may still be in transfer."""
    OPEN = "open"
    """Has no carrier any more; its answer may still come on another stream."""
    DONE = "done"
    BROKEN = "broken"
    """Was ended because of a bug of its driver; an event that the table lacks is ignored."""


class CallerState(StrEnum):
    """Whether the caller is connected, has cancelled, has left or has been answered."""

    HERE = "here"
    CANCELLED = "cancelled"
    """Has cancelled the call, and is still connected."""
    GONE = "gone"
    """Has disconnected, or was answered with a timeout."""
    ANSWERED = "answered"


(
    NEW,
    CHECKING_EARLIER,
    JOINING,
    REPLAYED,
    RECORDING,
    QUEUED,
    CHECKING,
    SENT,
    SETTLING,
    WAITING,
    WITHDRAWN,
    ENDED,
    OPEN,
    DONE,
    BROKEN,
) = Stage
HERE, CANCELLED, GONE, ANSWERED = CallerState
_OVER: Final = frozenset({REPLAYED, OPEN, DONE, BROKEN})


class Terms(Struct, frozen=True, kw_only=True, gc=False):
    """The terms of a call, from rules and protocol, fixed before it begins. Times are in seconds."""

    effect: Effect = Effect.UNKNOWN
    is_guarded: bool = False
    """Whether a later duplicate may join it, or be answered from it."""
    is_named: bool = False
    """Whether its effect is named or it has a key: it is not sent if its caller is gone."""
    is_limited: bool = False
    """Whether a rule limits how many such calls run at once."""
    is_keyed: bool = False
    """Whether it carries an idempotency key that its server honours."""
    waits: bool = True
    """Whether an answer is held until its outcome is on disk."""
    is_remembered: bool = False
    """Whether later calls can be found to be duplicates of it."""
    retry: Retry | None = None
    total: float = inf
    """Time limit for all attempts together."""
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    """What happens to it when its caller disconnects, if it is guarded."""
    outlives_caller: bool = False
    """Whether it goes on when its caller disconnects, if it is not guarded: no cancel was sent."""
    outlives_limits: bool = False
    """Whether it runs on after its caller was answered with a timeout."""
    limits: NeverTwice = NeverTwice()
    on_duplicate: OnDuplicate = OnDuplicate.JOIN
    slower_than: float = inf
    """An answer that took longer is replayed even if it was delivered."""
    waits_for_earlier: float = inf
    """Time limit for waiting for an earlier call."""
    is_member: bool = False
    """Whether it is sent in one batch with others, even if its caller cancels it before."""
    checks_earlier_caller: bool = False
    """Whether a caller may abandon a call on one connection and repeat it on another."""


class RetryWindow(Struct, frozen=True, kw_only=True):
    """Until when further attempts of a call may begin. Points in time are in seconds, on one clock."""

    total: float
    """End of the time limit for all attempts together."""
    budget: float
    """End of the rule's time for retries."""
    queue: float
    """Seconds in which the intent of an attempt that is due has to be on disk."""

    @property
    def end(self) -> float:
        """After this no attempt begins."""
        return min(self.total, self.budget)

    def obstacle(
        self, now: float, *, is_stopping: bool, is_cancel_pending: bool
    ) -> StopReason | None:
        """Return why the attempt that is due now is not made.

        `is_cancel_pending` is whether the server still has to be told to cancel the attempt before.
        """
        if is_stopping:
            return StopReason.STOPPING
        if self.total <= now:
            return StopReason.TOTAL
        if is_cancel_pending:  # it was waited for until the end
            return StopReason.TOTAL if self.total <= self.budget else StopReason.BUDGET
        return None

    def deadline(self, now: float) -> tuple[float, ev.Overdue]:
        """Return until when the intent of an attempt that is due has to be on disk, and what happens if not."""
        return min(
            (self.total, ev.Overdue(StopReason.TOTAL, ErrorKind.DEADLINE_EXHAUSTED)),
            (now + self.queue, ev.Overdue(StopReason.QUEUE)),
            (self.budget, ev.Overdue(StopReason.BUDGET)),
            key=lambda limit: limit[0],
        )


STOPPED_WHILE_RECORDED: Final = ev.Overdue(StopReason.STOPPING, ErrorKind.OUTCOME_UNKNOWN)
"""What happens to an attempt whose intent is not on disk as the proxy stops."""


class InvalidEvent(Exception):
    """An event that cannot happen at this stage: a bug of the driver. Its arguments are both names."""


class CallMachine(Struct, eq=False):
    """The life of one call. Points in time are in seconds, on one clock."""

    terms: Terms
    began: float
    number: int = 0
    """Number of the latest attempt; after a redirect it continues that of the redirected call's machine."""
    stage: Stage = NEW
    """A call that can have no duplicate begins at `RECORDING`."""
    caller: CallerState = HERE
    past: EarlierAttempts | None = None
    """The combined result of the attempts before the latest."""
    last: Ending | None = None
    """The ending of the latest attempt; `None` while it runs."""
    joiners: int = 0
    """How many other calls wait for this one's answer."""
    cancelled_at: float | None = None
    """When the caller cancelled."""
    ended_at: float = 0.0
    """When it was over, or its answer came after that."""
    given: int = 0
    """Number of the attempt whose answer goes to the caller, unless another attempt follows."""
    _is_caller_checked: bool = False
    """Whether the check for an abandoned earlier call is done (`CHECKING_EARLIER`)."""
    _waits_for_no_other: bool = False
    """Whether it no longer waits for earlier calls, because the server is gone."""
    _earlier: int = 0
    """Index, among the duplicates found, of the one it waited for last."""
    _waits_since: float | None = None
    """When it first began to wait for an earlier call."""
    _has_joined: bool = False
    """Whether it has joined an earlier call for its answer, and not only waited for its end."""
    _is_repeat: bool = False
    """Whether it was sent although the outcome of an earlier duplicate is unknown."""
    _is_retry: bool = False
    """Whether the latest attempt is a retry."""
    _left_at: float = 0.0
    _may_resend: bool = False
    _has_timed_out: bool = False
    """Whether the caller was answered with a timeout, and no answer has come since."""
    _answered: tuple[int, Ending] | None = None
    """Number and ending of the attempt that the server itself answered last."""

    def handle(self, event: ev.Event, now: float) -> Commands:
        """Return the commands that follow from an event. Raises `InvalidEvent`, and the call is over then."""
        step = TRANSITIONS.get((self.stage, type(event)))
        if step is None:
            stage = self.stage
            if stage is BROKEN:
                return _NOTHING
            self.stage, self.ended_at = BROKEN, now
            raise InvalidEvent(type(event).__name__, stage.value)
        return step(self, event, now)

    # -- state, for others ------------------------------------------------------------------

    @property
    def has_left(self) -> bool:
        """Whether the caller is gone."""
        return self.caller is GONE

    def cause(self, kind: ErrorKind) -> ErrorKind:
        """Return the kind to record of a failure: if the caller had cancelled before, it is a cancel."""
        return kind if self.cancelled_at is None else ErrorKind.CANCELLED_BY_CALLER

    @property
    def is_abandoned(self) -> bool:
        """Whether the caller is gone and no other call waits."""
        return self.caller is GONE and not self.joiners

    @property
    def has_given_up(self) -> bool:
        """Whether the caller has left or cancelled, and so ignores any answer (MCP, cancellation)."""
        return self.caller is GONE or self.cancelled_at is not None

    @property
    def is_over(self) -> bool:
        """Whether it has no carrier any more; an answer may still come on another stream."""
        return self.stage in _OVER

    @property
    def is_undecided(self) -> bool:
        """Whether it is not yet decided if it is sent."""
        return self.stage is JOINING or self.stage is CHECKING_EARLIER

    @property
    def overall(self) -> Ending | None:
        """The ending of the call over all its attempts so far; `None` if the latest has not ended."""
        return ending_of_call(self.last, self.past) if self.last is not None else None

    @property
    def ending(self) -> Ending | None:
        """The final ending of the call; `None` while it is carried out or may still be answered."""
        return self.overall if self.is_over else None

    def may_be_guessed(self, now: float) -> bool:
        """Return whether a caller identified by a guess may join it: its own caller left a moment ago."""
        lately = now - self._left_at <= self.terms.limits.cancel_grace
        return self.caller is GONE and lately and not self.is_over and self.cancelled_at is None

    def seen(self, now: float) -> EarlierCall:
        """Return the state of this call that decides about a later duplicate."""
        is_told = self._is_whole or self.caller is ANSWERED
        answered = self.stage is ENDED and not self.has_given_up and is_told
        cancelled = self.cancelled_at
        return EarlierCall(
            ending=self.overall if answered else self.ending,
            began=now - self.began,
            ended=now - self.ended_at if self.is_over else 0.0,
            abandoned=self.caller is GONE,
            cancelled=None if cancelled is None else now - cancelled,
            is_carried=not self.is_over,
            delivered=self.caller is ANSWERED or answered,
            repeats=self._is_repeat,
        )

    def seen_by_guess(self, now: float, *, is_alone: bool, may_be_gone: bool) -> EarlierCall:
        """Return the state that decides about a later call that may be its caller's, by a guess.

        `is_alone` is whether no third connection may be the caller's.
        """
        return structs.replace(
            self.seen(now),
            abandoned=is_alone and self.may_be_guessed(now),
            is_carried=may_be_gone and not self.is_over,
            likeness=Likeness.GUESSED,
        )

    @property
    def _is_whole(self) -> bool:
        """Whether the whole answer is here; anything after it on the stream does not belong to it."""
        return self.last is not None and self.last.phase is Phase.DONE and self.terms.retry is None

    # -- duplicates: before it is decided whether the call is sent ----------------------------

    def on_begin(self, _: ev.Begin, __: float) -> Commands:
        return (ev.LookUp(),)

    def on_looked_up(self, event: ev.LookedUp, now: float) -> Commands:
        for place, earlier in enumerate(event.found):
            action = self._action_for(earlier, now)
            passes = action is DuplicateAction.FORWARD
            if (passes or earlier.is_given) and self._must_check_caller_of(earlier):
                self.stage, self._earlier = CHECKING_EARLIER, place
                return (ev.CheckEarlierCaller(place),)
            if passes:
                continue
            if action is DuplicateAction.AGAIN:
                self._is_repeat = True
                break
            if action is DuplicateAction.JOIN or action is DuplicateAction.WAIT:
                return self._wait(action, place, now)
            return (self._withhold(action, place, now),)
        self.number = self.given = self.number + 1
        self.stage = RECORDING
        return (ev.AppendIntent(self.number, is_repeat=self._is_repeat),)

    def _action_for(self, earlier: EarlierCall, now: float) -> DuplicateAction:
        terms, since = self.terms, self._waits_since
        if self._has_joined and earlier.likeness is not Likeness.GUESSED:
            # A call that joined has not had the answer, even if another caller has. And if several
            # joined a call that failed, one of them is to be sent.
            earlier = structs.replace(earlier, delivered=False, abandoned=True, settling=False)
        asked = NewCall(
            effect=terms.effect,
            on_duplicate=terms.on_duplicate,
            keyed=earlier.keyed,
            slower_than=terms.slower_than,
            waited=0.0 if since is None else now - since,
        )
        return decide_duplicate(earlier, asked, terms.limits)

    def _must_check_caller_of(self, earlier: EarlierCall) -> bool:
        """Return whether it must be checked first if a caller has given up the earlier call, or this one."""
        if self._is_caller_checked or not self.terms.checks_earlier_caller:
            return False
        if earlier.is_given:
            return not earlier.keyed  # a key is answered in any case
        if earlier.is_carried:
            passes = self.terms.on_duplicate is OnDuplicate.PASS
            return not passes or earlier.likeness is Likeness.GUESSED
        # Given up here, while this process was stopped, it may have been repeated there (decision 79).
        return earlier.elsewhere and earlier.delivered and earlier.likeness is Likeness.SAME

    def _wait(self, action: DuplicateAction, place: int, now: float) -> Commands:
        if self._waits_for_no_other:
            return (self._withhold(DuplicateAction.UNKNOWN, place, now),)
        if self._waits_since is None:
            self._waits_since = now
        self.stage, self._earlier = JOINING, place
        self._has_joined = self._has_joined or action is DuplicateAction.JOIN
        left = self._waits_since + self.terms.waits_for_earlier - now
        return (ev.Join(place, max(left, 0.0)),)

    def _withhold(self, action: DuplicateAction, place: int, now: float) -> ev.Command:
        self.stage = REPLAYED if action is DuplicateAction.REPLAY else DONE
        since, self.ended_at = self._waits_since, now
        return ev.Withhold(action, place, None if since is None else now - since)

    def on_earlier_caller_checked(self, _: ev.EarlierCallerChecked, __: float) -> Commands:
        self.stage, self._is_caller_checked = NEW, True
        return (ev.LookUp(),)

    def on_earlier_ended(self, _: ev.EarlierEnded, __: float) -> Commands:
        # It may meet another call now.
        self.stage, self._is_caller_checked = NEW, False
        return (ev.StopWaiting(), ev.LookUp())

    def on_server_gone(self, _: ev.ServerGone, __: float) -> Commands:
        self._waits_for_no_other = True
        return _NOTHING

    def on_waited_too_long(self, _: ev.Expired, now: float) -> Commands:
        return self._stop_waiting(DuplicateAction.LATE, now)

    def on_left_waiting(self, _: ev.Left | ev.Cancelled, now: float) -> Commands:
        self.caller = GONE
        return self._stop_waiting(DuplicateAction.LEFT, now)

    def on_stopped_waiting(self, _: ev.Stopped, now: float) -> Commands:
        return self._stop_waiting(DuplicateAction.STOPPED, now)

    def _stop_waiting(self, action: DuplicateAction, now: float) -> Commands:
        return (ev.StopWaiting(), self._withhold(action, self._earlier, now))

    def on_left_undecided(self, _: ev.Left | ev.Cancelled, now: float) -> Commands:
        self.caller = GONE
        return (self._withhold(DuplicateAction.GIVEN_UP, self._earlier, now),)

    def on_stopped_undecided(self, _: ev.Stopped, __: float) -> Commands:
        """End a call that has no record, and gets none."""
        self.caller, self.stage = GONE, DONE
        return _NOTHING

    def on_replay_delivered(self, _: ev.Delivered, __: float) -> Commands:
        return _NOTHING if self.caller is GONE else (ev.CreditEarlier(delivered=True),)

    def on_replay_cancelled(self, _: ev.CancelledLate, __: float) -> Commands:
        self.caller = GONE
        return (ev.CreditEarlier(delivered=False),)

    def on_conflicted(self, _: ev.Conflicted, now: float) -> Commands:
        """Look up duplicates again, unless the call was given up meanwhile."""
        self.number, self.joiners = self.number - 1, 0
        self._is_repeat = self._is_caller_checked = False
        back = (ev.Disarm(), ev.RetractIntent())
        if self.has_given_up:
            return (*back, self._withhold(DuplicateAction.GIVEN_UP, self._earlier, now))
        self.stage = NEW
        return (*back, ev.LookUp())

    # -- before anything is sent ------------------------------------------------------------

    def on_woken(self, _: ev.Woken, __: float) -> Commands:
        assert self.last is not None  # another one follows it
        self.past, self.last = with_attempt(self.past, self.last), None
        self.stage, self.number, self._is_retry = RECORDING, self.number + 1, True
        return (ev.AppendIntent(self.number),)

    def on_intent_recorded(self, event: ev.Recorded, _: float) -> Commands:
        self._may_resend = event.is_repeatable
        if self._is_retry and self.cancelled_at is not None:
            return (ev.Fail(ErrorKind.CANCELLED_BY_CALLER),)
        if self.terms.is_limited and not self._is_retry:
            self.stage = QUEUED
            return (ev.Acquire(),)
        if not self.terms.is_named:  # most calls
            return self._send()
        return self._send_if_caller_is_there(may_be_gone=event.may_be_gone)

    def on_slot(self, event: ev.SlotGranted, _: float) -> Commands:
        return self._send_if_caller_is_there(may_be_gone=event.may_be_gone)

    def _send_if_caller_is_there(self, *, may_be_gone: bool) -> Commands:
        # A proxy that was suspended for a while must not send a call that its caller has abandoned
        # and may have repeated elsewhere.
        # A call that no rule names is forwarded as it would be without turnlog, and so is a batch.
        if not self.terms.is_named:
            return self._send()
        if self.caller is GONE or (self.cancelled_at is not None and not self.terms.is_member):
            return (ev.Fail(ErrorKind.CANCELLED_BY_CALLER),)
        if may_be_gone:
            self.stage = CHECKING
            return (ev.CheckCaller(),)
        return self._send()

    def on_caller_checked(self, _: ev.CallerChecked, __: float) -> Commands:
        # If the check found nothing, the caller counts as connected.
        return self._send_if_caller_is_there(may_be_gone=False)

    def _send(self) -> Commands:
        self.stage, retry = SENT, self.terms.retry
        hold = retry is not None and self._may_resend and self.number < retry.max_attempts
        return (ev.Send(self.number, hold=hold),)

    def on_intent_lost(self, _: ev.NotRecorded, __: float) -> Commands:
        self._end_unsent(ErrorKind.SESSION_UNAVAILABLE)
        return (ev.Release(self.given, StopReason.UNRECORDED),)

    def on_left_unsent(self, _: ev.Left, now: float) -> Commands:
        if self.terms.outlives_caller:
            return _NOTHING
        self.caller, self._left_at = GONE, now
        if not self.terms.is_guarded or self.stage is CHECKING:
            return (ev.Fail(ErrorKind.CANCELLED_BY_CALLER),)
        if self.stage is QUEUED and not self.joiners:
            return (ev.Dequeue(),)
        return (ev.Note(NoteKind.ABANDONED), *self._start_drain_timer(now))

    def on_cancelled_unsent(self, event: ev.Cancelled, now: float) -> Commands:
        # A call that no rule names is sent and then cancelled, as it would be without turnlog.
        if self.stage is QUEUED:
            self._mark_cancelled(now)
            return (ev.Dequeue(),)
        if self.stage is CHECKING and not self.terms.is_member:
            self._mark_cancelled(now)
            return (ev.Fail(ErrorKind.CANCELLED_BY_CALLER),)
        return self.on_cancelled(event, now)

    def _end_unsent(self, kind: ErrorKind) -> None:
        # It may never be judged: an attempt that could not be recorded was not made.
        self.stage, self.last = ENDED, failed(kind, Phase.QUEUED, self.terms.effect)

    def on_late_start(self, event: ev.Overdue, _: float) -> Commands:
        self._end_unsent(event.kind)
        return (ev.Fail(event.kind), ev.Release(self.given, event.reason))

    def on_unsent_judged(self, event: ev.Judged, _: float) -> Commands:
        """End an attempt that was not sent: no retry follows, and its answer does not wait for the disk."""
        if event.number != self.number:
            return self._on_earlier_judged(event)
        self.last, self.stage = event.ending, ENDED
        outcome = RECORDED
        if self.caller is GONE:
            return (outcome,)
        reason = None
        if self.cancelled_at is not None:
            reason = StopReason.CANCELLED
        elif self._is_retry and event.ending.kind is ErrorKind.SESSION_UNAVAILABLE:
            reason = StopReason.UNRECORDED
        # The answer to the attempt before a retry is still held.
        return (outcome, ev.Release(self.given if self._is_retry else self.number, reason))

    def on_expired_unsent(self, event: ev.Expired, _: float) -> Commands:
        return (ev.Fail(event.kind),)

    # -- while it is sent -------------------------------------------------------------------

    def on_expired(self, event: ev.Expired, now: float) -> Commands:
        stays = self.terms.outlives_limits and event.can_answer_timeout
        if not stays or self.caller is GONE or self.joiners:
            return (ev.Fail(event.kind),)
        self.caller, self._left_at, self._has_timed_out = GONE, now, True
        drain = ev.Arm(self.terms.limits.drain)
        return (ev.AnswerTimeout(), ev.Note(NoteKind.ABANDONED), drain)

    def on_timeout_answered(self, event: ev.TimeoutAnswered, _: float) -> Commands:
        self.last = event.ending
        return (RECORDED,)

    def on_left(self, _: ev.Left, now: float) -> Commands:
        runs_on = self.terms.outlives_caller and self.cancelled_at is None
        if self.caller is GONE or runs_on:
            return _NOTHING
        if self.caller is ANSWERED:
            # The rest of the transfer has no reader.
            return (ev.Drop(ErrorKind.CANCELLED_BY_CALLER),)
        self.caller, self._left_at = GONE, now
        if self.terms.is_guarded:
            return (ev.Note(NoteKind.ABANDONED), *self._start_drain_timer(now))
        if self.stage is SENT:
            return (ev.Fail(ErrorKind.CANCELLED_BY_CALLER),)
        self.stage = ENDED
        return _NOTHING

    def on_cancelled(self, _: ev.Cancelled, now: float) -> Commands:
        if self.cancelled_at is not None:
            return _NOTHING
        self._mark_cancelled(now)
        if not self.terms.is_guarded:
            return _NOTHING
        runs_on = self._start_drain_timer(now) if self.caller is GONE or self.joiners else _NOTHING
        return (ev.Note(NoteKind.CANCEL_FORWARDED), *runs_on)

    def on_cancelled_between(self, event: ev.Cancelled, now: float) -> Commands:
        """End the call between two attempts, with the answer that is held."""
        commands = self.on_cancelled(event, now)
        self.stage = ENDED
        return (*commands, ev.Release(self.given, StopReason.CANCELLED))

    def _mark_cancelled(self, now: float) -> None:
        self.cancelled_at = now
        if self.caller is HERE:
            self.caller = CANCELLED

    def on_joined(self, _: ev.JoinerCame, now: float) -> Commands:
        self.joiners += 1
        # A server may never answer a call that it was told to cancel.
        return (ev.Disarm(),) if self.cancelled_at is None else self._start_drain_timer(now)

    def on_joiner_left(self, event: ev.JoinerLeft, now: float) -> Commands:
        self.joiners -= 1
        if event.is_guessed:
            self._left_at = now
        if not self.is_abandoned:
            return _NOTHING if self.joiners else (ev.Disarm(),)
        return (ev.Dequeue(),) if self.stage is QUEUED else self._start_drain_timer(now)

    def on_joined_late(self, _: ev.JoinerCame, __: float) -> Commands:
        self.joiners += 1
        return _NOTHING

    def on_joiner_left_late(self, _: ev.JoinerLeft, __: float) -> Commands:
        self.joiners -= 1
        return _NOTHING

    def _start_drain_timer(self, now: float) -> Commands:
        """Return the timer for how long a call may run without a caller."""
        limits = self.terms.limits
        if self.cancelled_at is not None:
            left = self.cancelled_at + CANCELLED_LIFE - now
        elif self._has_timed_out or self.terms.on_disconnect is OnDisconnect.DRAIN:
            left = limits.drain
        elif self.terms.on_disconnect is OnDisconnect.GRACE:
            left = limits.cancel_grace
        else:
            left = 0.0
        return (ev.Arm(max(left, 0.0)),)

    def on_drained(self, _: ev.Drained, now: float) -> Commands:
        if self.joiners and self.cancelled_at is None:
            return _NOTHING
        return self._give_up(now)

    def on_server_asks(self, _: ev.ServerAsked, now: float) -> Commands:
        # A caller that is gone cannot answer the server's request.
        return self._give_up(now) if self.is_abandoned else _NOTHING

    def _give_up(self, now: float) -> Commands:
        """Return the commands that end a call without a caller; it is cancelled at the server, once."""
        told = self.on_cancelled(ev.Cancelled(), now)[:1]
        if self.stage is ENDED or self.stage is SETTLING:
            return (*told, ev.Disarm(), ev.Drop(ErrorKind.CANCELLED_BY_CALLER))
        back = (ev.CancelAtServer(),) if told and self.stage is SENT else _NOTHING
        self.stage = WITHDRAWN
        return (*told, ev.Disarm(), *back, ev.Drop(ErrorKind.CANCELLED_BY_CALLER))

    def on_resumed(self, _: ev.Resumed, __: float) -> Commands:
        return (ev.Drop(ErrorKind.CANCELLED_BY_CALLER),) if self.is_abandoned else _NOTHING

    def on_stopped(self, _: ev.Stopped, __: float) -> Commands:
        self.stage = WITHDRAWN
        return (ev.Drop(ErrorKind.OUTCOME_UNKNOWN),)

    def on_stopped_between(self, _: ev.Stopped, __: float) -> Commands:
        self.stage = ENDED
        drop = ev.Drop(ErrorKind.OUTCOME_UNKNOWN)
        if self.caller is GONE:
            return (drop,)
        return (ev.Release(self.given, StopReason.STOPPING), drop)

    def on_stopped_at_end(self, _: ev.Stopped, __: float) -> Commands:
        return (ev.Drop(ErrorKind.OUTCOME_UNKNOWN),)

    # -- the end of an attempt --------------------------------------------------------------

    def on_judged(self, event: ev.Judged, now: float) -> Commands:
        """Decide what follows the end of an attempt that was sent: retry, hold the answer, or release it."""
        if event.number != self.number:
            return self._on_earlier_judged(event)
        ending, terms = event.ending, self.terms
        self.last, self._has_timed_out = ending, False
        self.given = self.number
        verdict: RetryIn | StopReason = StopReason.ANSWERED
        if terms.retry is not None:
            self._choose_answer(event)
            verdict = self._verdict(event, now)
        back = self._cancel_ended_attempt(ending, verdict) if ending.error else _NOTHING
        outcome = RECORDED
        if terms.retry is not None or terms.is_guarded:
            outcome = self._outcome(verdict)
        if isinstance(verdict, RetryIn):
            self.stage = WAITING
            return (outcome, *back, ev.Rest(verdict.delay))
        if verdict is StopReason.QUOTA:
            back = (*back, ev.RefuseRetry())
        if terms.waits:
            self.stage = SETTLING
            return (outcome, *back)
        self.stage = ENDED
        return (outcome, *back, ev.Release(self.given))

    def _outcome(self, verdict: RetryIn | StopReason) -> ev.AppendOutcome:
        """Return the outcome of an attempt after which this was decided."""
        is_late = self.terms.is_guarded and self.caller is GONE
        if isinstance(verdict, RetryIn):
            return ev.AppendOutcome(is_told=False, is_late=is_late)
        reason = "" if verdict is StopReason.ANSWERED else verdict.value
        return ev.AppendOutcome(reason, is_told=self.given == self.number, is_late=is_late)

    def _choose_answer(self, event: ev.Judged) -> None:
        """Choose the answer for the caller: an earlier one of the server's may be better than turnlog's."""
        before = self._answered
        if not event.is_own_answer:
            self._answered = event.number, event.ending
        elif before is not None and not event.has_left and self._may_answer_the_call(before[1]):
            self.given = before[0]

    def _cancel_ended_attempt(self, ending: Ending, verdict: RetryIn | StopReason) -> Commands:
        """Return the command that cancels an ended attempt at the server, if it may still run there."""
        again = isinstance(verdict, RetryIn)
        if self.cancelled_at is not None or not may_still_run(ending, again=again):
            return _NOTHING
        return (ev.CancelAtServer(),)

    def _verdict(self, event: ev.Judged, now: float) -> RetryIn | StopReason:
        """Return the delay before the next attempt, or the reason why none follows."""
        verdict = self._decide_retry(event, now)
        if not isinstance(verdict, RetryIn):
            return verdict.reason
        if self.given != self.number and self._answered is not None:
            # The answer to an earlier attempt came late: it would have settled the call between attempts.
            held = structs.replace(event, ending=self._answered[1])
            if not isinstance(self._decide_retry(held, now), RetryIn):
                return StopReason.ANSWERED
        return self._obstacle_to_retry(event) or verdict

    def _decide_retry(self, event: ev.Judged, now: float) -> RetryIn | NoRetry:
        """Return what the rule says of the attempt that has ended."""
        terms = self.terms
        tried = EndedAttempt(
            ending=event.ending,
            effect=terms.effect,
            keyed=terms.is_keyed,
            number=self.number,
            elapsed=now - self.began,
            retry_after=event.retry_after,
        )
        return decide_retry(terms.retry, tried, total=terms.total, jitter=event.jitter)

    def _obstacle_to_retry(self, event: ev.Judged) -> StopReason | None:
        if not self._may_resend:
            return StopReason.BODY
        if self.cancelled_at is not None:
            return StopReason.CANCELLED
        if event.is_stopping:
            return StopReason.STOPPING
        if event.has_left or not event.is_held:
            return StopReason.RELAYED
        return None if event.has_retry_left else StopReason.QUOTA

    def _may_answer_the_call(self, said: Ending) -> bool:
        """Return whether the server's answer to an earlier attempt may be the answer to the call."""
        # It must not claim less effect than the call may have had (a 429 claims none).
        whole = self.overall
        assert whole is not None  # it has just ended
        return self.terms.effect is Effect.READ or (
            more_executed(said.executed, whole.executed) is said.executed
        )

    def _on_earlier_judged(self, event: ev.Judged) -> Commands:
        """Record a late answer to an earlier attempt; the caller gets it if no later one is answered."""
        if event.is_held:
            self._choose_answer(event)
        return _LATE_OUTCOME

    def on_judged_between(self, event: ev.Judged, now: float) -> Commands:
        """Settle the call by a late answer to any of its attempts, unless a retry of that may follow too."""
        before, commands = self.last, self.on_judged_again(event, now)
        if not event.is_held:
            return commands
        self._choose_answer(event)
        if not isinstance(self._decide_retry(event, now), RetryIn):
            assert before is not None  # the call waits for the next attempt
            if event.number != self.number:  # it counts as the last
                self.past, self.last = with_attempt(self.past, before), event.ending
            self.stage, self.given = SETTLING, event.number
        return commands

    def on_judged_again(self, event: ev.Judged, now: float) -> Commands:
        """Record an outcome that comes after the end; it replaces the earlier one."""
        if event.number != self.number:
            return _LATE_OUTCOME
        self.last, self.ended_at, self._has_timed_out = event.ending, now, False
        if self.stage is OPEN:
            self.stage = DONE
        elif self.stage is WITHDRAWN:
            self.stage = ENDED
        is_late = self.terms.is_guarded and self.caller is GONE
        return (ev.AppendOutcome(is_late=is_late),)

    def on_outcome_settled(self, _: ev.OutcomeSettled, __: float) -> Commands:
        # If the outcome cannot be written the answer leaves all the same (flag `unrecorded`).
        self.stage = ENDED
        return (ev.Release(self.given),)

    def on_overdue(self, event: ev.Overdue, _: float) -> Commands:
        self.stage = ENDED
        return (ev.Release(self.given, event.reason),)

    # -- after the end ----------------------------------------------------------------------

    def on_delivered(self, _: ev.Delivered, __: float) -> Commands:
        if self.last is None or self.caller is ANSWERED:
            return _NOTHING
        # If no later call can find it, the note is of use only where the caller had left.
        is_of_use = self.terms.is_guarded and (self.caller is GONE or self.terms.is_remembered)
        self.caller = ANSWERED
        return (ev.Note(NoteKind.DELIVERED, on_outcome=True),) if is_of_use else _NOTHING

    def on_left_late(self, _: ev.Left, now: float) -> Commands:
        """Mark the caller as gone after the end of the last attempt."""
        if self.caller is GONE or self.caller is ANSWERED or self.stage is OPEN:
            return _NOTHING
        self.caller, self._left_at = GONE, now
        return (_LEFT_ANSWER,) if self.terms.is_guarded else _NOTHING

    def on_cancelled_late(self, event: ev.CancelledLate, now: float) -> Commands:
        long_ago = self.is_over and now - self.ended_at >= CANCELLED_LIFE
        too_late = long_ago and not event.at_any_time
        if too_late or not self.terms.is_guarded:
            return _NOTHING
        self.caller = GONE
        return (_LEFT_ANSWER,)

    def on_cancelled_at_end(self, _: ev.Cancelled, now: float) -> Commands:
        """Mark a call as cancelled that is no longer carried, and has no answer."""
        if self.cancelled_at is None:
            self._mark_cancelled(now)
        return _NOTHING

    def on_over(self, _: ev.Over, now: float) -> Commands:
        unanswered = self._has_timed_out and self.cancelled_at is None
        self.stage, self.ended_at = OPEN if self.last is None else DONE, now
        # The log holds only that the caller was answered with a timeout.
        silence = (ev.Note(NoteKind.UNANSWERED, on_outcome=True),) if unanswered else _NOTHING
        return (ev.Disarm(), *silence, ev.Close())

    def on_over_again(self, _: ev.Over, now: float) -> Commands:
        # The time in which a duplicate gets its answer begins once the answer has been handed over.
        self.ended_at = now
        return _NOTHING

    def ignore(self, _: ev.Event, __: float) -> Commands:
        return _NOTHING


Step = Callable[[CallMachine, Any, float], Commands]


def _table() -> dict[tuple[Stage, type], Step]:
    """Return the step for each event at each stage; a missing pair is a bug of the driver."""
    sendable: dict[type, Step] = {
        ev.JoinerCame: CallMachine.on_joined,
        ev.JoinerLeft: CallMachine.on_joiner_left,
        ev.Cancelled: CallMachine.on_cancelled,
        ev.CancelledLate: CallMachine.on_cancelled_late,
        ev.Left: CallMachine.on_left,
        ev.Drained: CallMachine.on_drained,
        ev.ServerAsked: CallMachine.on_server_asks,
        ev.Resumed: CallMachine.on_resumed,
        ev.Stopped: CallMachine.on_stopped,
        ev.Over: CallMachine.on_over,
    }
    unsent: dict[type, Step] = {
        **sendable,
        ev.Left: CallMachine.on_left_unsent,
        ev.Cancelled: CallMachine.on_cancelled_unsent,
        ev.Expired: CallMachine.on_expired_unsent,
        ev.Judged: CallMachine.on_unsent_judged,
    }
    ended: dict[type, Step] = {
        **sendable,
        ev.Judged: CallMachine.on_judged_again,
        ev.Stopped: CallMachine.on_stopped_at_end,
        ev.Expired: CallMachine.ignore,
    }
    over: dict[type, Step] = {
        ev.JoinerLeft: CallMachine.on_joiner_left_late,
        ev.Judged: CallMachine.on_judged_again,
        ev.Left: CallMachine.on_left_late,
        ev.Cancelled: CallMachine.ignore,
        ev.CancelledLate: CallMachine.on_cancelled_late,
        ev.Delivered: CallMachine.on_delivered,
        ev.Recorded: CallMachine.ignore,
        ev.NotRecorded: CallMachine.ignore,
        ev.ServerAsked: CallMachine.ignore,
        ev.Expired: CallMachine.ignore,
        ev.Over: CallMachine.on_over_again,
    }
    rows: dict[Stage, dict[type, Step]] = {
        NEW: {
            ev.Begin: CallMachine.on_begin,
            ev.LookedUp: CallMachine.on_looked_up,
            ev.Over: CallMachine.on_over,
        },
        CHECKING_EARLIER: {
            ev.EarlierCallerChecked: CallMachine.on_earlier_caller_checked,
            ev.ServerGone: CallMachine.on_server_gone,
            ev.Left: CallMachine.on_left_undecided,
            ev.Cancelled: CallMachine.on_left_undecided,
            ev.Stopped: CallMachine.on_stopped_undecided,
        },
        JOINING: {
            ev.EarlierEnded: CallMachine.on_earlier_ended,
            ev.ServerGone: CallMachine.on_server_gone,
            ev.Expired: CallMachine.on_waited_too_long,
            ev.Left: CallMachine.on_left_waiting,
            ev.Cancelled: CallMachine.on_left_waiting,
            ev.Stopped: CallMachine.on_stopped_waiting,
        },
        REPLAYED: {
            ev.Left: CallMachine.ignore,
            ev.Delivered: CallMachine.on_replay_delivered,
            ev.CancelledLate: CallMachine.on_replay_cancelled,
            ev.Over: CallMachine.ignore,
        },
        RECORDING: {
            **unsent,
            ev.Recorded: CallMachine.on_intent_recorded,
            ev.NotRecorded: CallMachine.on_intent_lost,
            ev.Conflicted: CallMachine.on_conflicted,
            ev.Overdue: CallMachine.on_late_start,
            ev.Delivered: CallMachine.ignore,
        },
        QUEUED: {**unsent, ev.SlotGranted: CallMachine.on_slot},
        CHECKING: {
            **unsent,
            ev.CallerChecked: CallMachine.on_caller_checked,
            ev.Delivered: CallMachine.ignore,
        },
        SENT: {
            **sendable,
            ev.Judged: CallMachine.on_judged,
            ev.TimeoutAnswered: CallMachine.on_timeout_answered,
            ev.Expired: CallMachine.on_expired,
            ev.Delivered: CallMachine.ignore,
        },
        SETTLING: {
            **ended,
            ev.OutcomeSettled: CallMachine.on_outcome_settled,
        },
        WAITING: {
            **ended,
            ev.Judged: CallMachine.on_judged_between,
            ev.Woken: CallMachine.on_woken,
            ev.Overdue: CallMachine.on_overdue,
            ev.Cancelled: CallMachine.on_cancelled_between,
            ev.Stopped: CallMachine.on_stopped_between,
            ev.Delivered: CallMachine.ignore,
        },
        WITHDRAWN: {
            **over,
            ev.Left: CallMachine.ignore,
            ev.Cancelled: CallMachine.on_cancelled_at_end,
            ev.Delivered: CallMachine.ignore,
            ev.Conflicted: CallMachine.on_conflicted,
            ev.JoinerCame: CallMachine.on_joined_late,
            ev.Drained: CallMachine.ignore,
            ev.Resumed: CallMachine.ignore,
            ev.Stopped: CallMachine.ignore,
            ev.Over: CallMachine.on_over,
        },
        ENDED: {
            **ended,
            ev.Recorded: CallMachine.ignore,
            ev.NotRecorded: CallMachine.ignore,
            ev.Delivered: CallMachine.on_delivered,
        },
        OPEN: {
            **over,
            ev.Cancelled: CallMachine.on_cancelled_at_end,
            ev.Conflicted: CallMachine.ignore,  # turnlog stops
        },
        DONE: over,
        BROKEN: over,
    }
    return {(stage, event): step for stage, row in rows.items() for event, step in row.items()}


TRANSITIONS: Final = _table()
