"""Plays of one call: what happens, and what it commands."""

from math import inf

import pytest
from msgspec import structs

from turnlog.core.classify import failed, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Executed, NoteKind, Phase, Status
from turnlog.core.note import EffectChoice
from turnlog.exchange import events as ev
from turnlog.exchange.call import CallMachine, InvalidEvent, RetryWindow, Stage, Terms
from turnlog.exchange.duplicates import DuplicateAction, EarlierCall, Likeness
from turnlog.rules.model import Jitter, OnDisconnect, OnDuplicate, Retry
from turnlog.rules.retry import StopReason

RETRY = Retry(on=("connection", "rate_limited"), max_attempts=3, jitter=Jitter.NONE)
READ = Terms(effect=Effect.READ)
UNWAITED = Terms(effect=Effect.READ, waits=False)
RETRIED = Terms(effect=Effect.READ, retry=RETRY)
NAMED = Terms(
    effect=Effect.WRITE,
    is_guarded=True,
    is_named=True,
    is_remembered=True,
    on_disconnect=OnDisconnect.DRAIN,
    outlives_limits=True,
)
ABANDONED = ev.Note(NoteKind.ABANDONED)
DELIVERED = ev.Note(NoteKind.DELIVERED, on_outcome=True)
FORWARDED = ev.Note(NoteKind.CANCEL_FORWARDED)
GIVEN_UP = ev.Fail(ErrorKind.CANCELLED_BY_CALLER)
DROPPED = ev.Drop(ErrorKind.CANCELLED_BY_CALLER)
OUTCOME = ev.AppendOutcome()
BEFORE_RETRY = ev.AppendOutcome(is_told=False)
STORED = ev.Recorded(is_repeatable=True)


def answered(number: int = 1) -> ev.Judged:
    return ev.Judged(number=number, ending=succeeded())


def lost(number: int = 1, effect: Effect = Effect.READ, **more: bool) -> ev.Judged:
    ending = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, effect)
    return ev.Judged(
        number=number,
        ending=ending,
        is_own_answer=True,
        has_left=more.get("has_left", False),
        is_stopping=more.get("is_stopping", False),
        has_retry_left=True,
    )


def limited(retry_after: float | None = None, *, quota: bool = True) -> ev.Judged:
    ending = refused(ErrorKind.RATE_LIMITED, Effect.READ)
    return ev.Judged(number=1, ending=ending, retry_after=retry_after, has_retry_left=quota)


class Play:
    """One call on a clock of its own."""

    def __init__(self, terms: Terms) -> None:
        self.call = CallMachine(terms, 0.0)
        if not terms.is_guarded:
            self.call = CallMachine(terms, 0.0, 1, Stage.RECORDING, given=1)
        self.now = 0.0

    def feed(self, event: ev.Event, *expected: ev.Command, at: float | None = None) -> None:
        self.now = self.now if at is None else at
        assert self.call.handle(event, self.now) == expected

    def begun(self) -> None:
        """Bring the call to where its first intent is being written."""
        if self.call.stage is Stage.NEW:
            self.feed(ev.Begin(), ev.LookUp())
            self.feed(ev.LookedUp(()), ev.AppendIntent(1))
        assert (self.call.stage, self.call.number) == (Stage.RECORDING, 1)

    def sent(self) -> None:
        """Bring the call to where its first attempt is on its way."""
        hold = self.call.terms.retry is not None
        self.begun()
        self.feed(STORED, ev.Send(1, hold=hold))


def test_a_call_is_recorded_sent_judged_recorded_and_answered() -> None:
    play = Play(READ)
    play.begun()
    play.feed(ev.Recorded(), ev.Send(1, hold=False))
    play.feed(answered(), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(1))
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    assert (play.call.stage, play.call.ending) == (Stage.DONE, succeeded())


@pytest.mark.promise("REC-8")
def test_the_answer_to_a_read_waits_for_no_disk() -> None:
    play = Play(UNWAITED)
    play.sent()
    play.feed(answered(), OUTCOME, ev.Release(1))
    assert play.call.stage is Stage.ENDED


def test_a_call_that_cannot_be_recorded_is_refused() -> None:
    play = Play(READ)
    play.begun()
    ending = failed(ErrorKind.SESSION_UNAVAILABLE, Phase.QUEUED, Effect.READ)
    play.feed(ev.Judged(number=1, ending=ending, is_own_answer=True), OUTCOME, ev.Release(1))


@pytest.mark.promise("WAIT-10")
def test_an_outcome_that_cannot_be_recorded_holds_no_answer_back() -> None:
    play = Play(READ)
    play.sent()
    play.feed(answered(), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(1))


def test_a_call_that_a_rule_counts_waits_for_a_slot_once_it_is_recorded() -> None:
    play = Play(Terms(is_limited=True))
    play.begun()
    play.feed(ev.Recorded(), ev.Acquire())
    play.feed(ev.SlotGranted(), ev.Send(1, hold=False))


def test_a_call_that_is_cancelled_while_it_waits_for_a_slot_is_never_sent() -> None:
    play = Play(Terms(is_limited=True))
    play.begun()
    play.feed(ev.Recorded(), ev.Acquire())
    play.feed(ev.Cancelled(), ev.Dequeue())
    ending = failed(ErrorKind.CANCELLED_BY_CALLER, Phase.QUEUED, Effect.UNKNOWN)
    release = ev.Release(1, StopReason.CANCELLED)
    play.feed(ev.Judged(number=1, ending=ending, is_own_answer=True), OUTCOME, release)


def test_a_limit_that_is_reached_before_the_call_is_sent_ends_it() -> None:
    play = Play(READ)
    play.begun()
    play.feed(ev.Expired(ErrorKind.QUEUE_TIMEOUT), ev.Fail(ErrorKind.QUEUE_TIMEOUT))


def test_an_event_that_cannot_happen_is_a_bug() -> None:
    with pytest.raises(InvalidEvent, match=r"Woken.*recording"):
        Play(READ).call.handle(ev.Woken(), 0.0)


# -- retries ---------------------------------------------------------------------------------


@pytest.mark.promise("RULE-2")
def test_without_a_rule_nothing_is_sent_again() -> None:
    play = Play(READ)
    play.sent()
    play.feed(lost(), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(1))


def test_a_failure_that_a_rule_names_is_tried_again_after_a_wait() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=True))
    play.feed(answered(2), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(2))


def test_the_answer_to_the_last_attempt_is_not_held() -> None:
    play = Play(Terms(effect=Effect.READ, retry=Retry(on=("connection",), max_attempts=2)))
    play.sent()
    play.call.handle(lost(), 0.0)
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=False))


def test_after_the_last_attempt_the_call_ends() -> None:
    play = Play(Terms(effect=Effect.READ, retry=Retry(on=("connection",), max_attempts=1)))
    play.begun()
    play.feed(STORED, ev.Send(1, hold=False))
    play.feed(lost(), ev.AppendOutcome(StopReason.ATTEMPTS))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (lost(has_left=True), StopReason.RELAYED),
        (lost(is_stopping=True), StopReason.STOPPING),
        (limited(retry_after=3600), StopReason.BUDGET),
        (ev.Judged(number=1, ending=refused(ErrorKind.CONFLICT, Effect.READ)), StopReason.NO_RULE),
    ],
)
def test_no_attempt_follows_where_none_may(event: ev.Judged, reason: StopReason) -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(event, ev.AppendOutcome(reason))


def test_no_attempt_follows_beyond_the_quota_of_the_server() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(limited(quota=False), ev.AppendOutcome(StopReason.QUOTA), ev.RefuseRetry())


def test_no_attempt_follows_where_the_message_cannot_be_sent_again() -> None:
    play = Play(RETRIED)
    play.begun()
    play.feed(ev.Recorded(), ev.Send(1, hold=False))
    play.feed(limited(), ev.AppendOutcome(StopReason.BODY))


def test_no_attempt_follows_a_cancel() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(ev.Cancelled())
    play.feed(limited(), ev.AppendOutcome(StopReason.CANCELLED))


@pytest.mark.promise("RULE-12")
def test_no_attempt_begins_after_the_end_of_the_whole_call() -> None:
    play = Play(Terms(effect=Effect.READ, retry=RETRY, total=10.0))
    play.sent()
    play.feed(limited(), ev.AppendOutcome(StopReason.TOTAL), at=9.9)


def test_a_call_that_may_have_happened_is_not_repeated() -> None:
    play = Play(Terms(effect=Effect.WRITE, retry=RETRY))
    play.sent()
    play.feed(lost(effect=Effect.WRITE), ev.AppendOutcome(StopReason.NOT_REPEATABLE))


def test_the_servers_answer_stands_where_a_later_attempt_has_none() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(limited(), BEFORE_RETRY, ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=True))
    play.feed(lost(2), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.4))
    play.feed(ev.Overdue(StopReason.STOPPING), ev.Release(1, StopReason.STOPPING))


def test_a_refusal_does_not_stand_for_a_call_that_may_have_happened() -> None:
    # 429 says that nothing happened; the second attempt may have been executed.
    play = Play(Terms(effect=Effect.WRITE, is_keyed=True, retry=RETRY))
    play.sent()
    play.feed(limited(), BEFORE_RETRY, ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=True))
    play.call.handle(lost(2, effect=Effect.WRITE), 0.0)
    assert play.call.given == 2


def test_if_the_next_attempt_cannot_be_recorded_the_held_answer_is_given() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(limited(), BEFORE_RETRY, ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(ev.NotRecorded(), ev.Release(1, StopReason.UNRECORDED))
    assert play.call.stage is Stage.ENDED


def test_an_attempt_that_is_recorded_too_late_is_not_sent() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(limited(), BEFORE_RETRY, ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    late = ev.Overdue(StopReason.QUEUE, ErrorKind.QUEUE_TIMEOUT)
    play.feed(late, ev.Fail(ErrorKind.QUEUE_TIMEOUT), ev.Release(1, StopReason.QUEUE))


def test_the_ending_of_a_call_is_that_of_all_its_attempts() -> None:
    play = Play(Terms(effect=Effect.WRITE, is_keyed=True, retry=RETRY))
    play.sent()
    play.call.handle(lost(effect=Effect.WRITE), 0.0)
    play.feed(ev.Woken(), ev.AppendIntent(2))
    assert play.call.overall is None
    play.feed(STORED, ev.Send(2, hold=True))
    play.call.handle(structs.replace(limited(), number=2), 0.0)
    assert play.call.overall is not None
    assert play.call.overall.executed is Executed.MAYBE  # that of the first attempt


def test_a_cancel_between_two_attempts_ends_the_call() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(limited(), BEFORE_RETRY, ev.Rest(0.2))
    play.feed(ev.Cancelled(), ev.Release(1, StopReason.CANCELLED))


def test_a_retry_that_is_cancelled_while_it_is_recorded_is_not_sent() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(limited(), BEFORE_RETRY, ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(ev.Cancelled())
    play.feed(STORED, ev.Fail(ErrorKind.CANCELLED_BY_CALLER))
    unsent = failed(ErrorKind.CANCELLED_BY_CALLER, Phase.QUEUED, Effect.READ)
    release = ev.Release(1, StopReason.CANCELLED)
    play.feed(ev.Judged(number=2, ending=unsent), OUTCOME, release)


def test_a_named_call_that_was_left_between_attempts_is_not_made_again() -> None:
    play = Play(structs.replace(NAMED, retry=RETRIED.retry))
    play.sent()
    play.call.handle(limited(), 0.0)
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Fail(ErrorKind.CANCELLED_BY_CALLER))


def test_a_call_that_was_left_between_attempts_gets_no_answer_when_the_proxy_stops() -> None:
    play = Play(structs.replace(NAMED, retry=RETRIED.retry))
    play.sent()
    play.call.handle(limited(), 0.0)
    play.call.handle(ev.Left(), 0.0)
    play.feed(ev.Stopped(), ev.Drop(ErrorKind.OUTCOME_UNKNOWN))


def test_a_late_answer_before_the_retry_settles_the_call() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(answered(), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(1))
    assert play.call.ending is None
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    assert play.call.ending == succeeded()


def test_a_late_answer_to_a_retry_is_given_in_place_of_an_earlier_one() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(limited(), BEFORE_RETRY, ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=True))
    play.call.handle(lost(2), 0.0)
    assert (play.call.stage, play.call.given) == (Stage.WAITING, 1)
    play.feed(answered(2), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(2))


def test_a_late_answer_settles_the_call_though_another_attempt_has_failed_since() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=True))
    play.call.handle(lost(2), 0.0)
    play.feed(answered(1), ev.AppendOutcome(is_late=True))
    play.feed(ev.OutcomeSettled(), ev.Release(1))
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    ending = play.call.ending
    assert ending is not None
    assert (ending.status, ending.executed) == (Status.OK, Executed.YES)


@pytest.mark.parametrize(
    "late", [limited(), structs.replace(answered(), is_held=False)], ids=["retried", "not here"]
)
def test_a_late_answer_that_cannot_settle_the_call_is_only_recorded(late: ev.Judged) -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(late, OUTCOME)
    play.feed(ev.Woken(), ev.AppendIntent(2))


@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "being recorded"])
def test_a_late_answer_to_an_earlier_attempt_is_given_if_no_later_one_is_answered(
    is_sent: bool,
) -> None:
    play = Play(structs.replace(RETRIED, retry=Retry(max_attempts=2, on=("connection",))))
    play.sent()
    play.call.handle(lost(), 0.0)
    play.feed(ev.Woken(), ev.AppendIntent(2))
    if is_sent:
        play.feed(STORED, ev.Send(2, hold=False))
    play.feed(answered(1), ev.AppendOutcome(is_late=True))
    if not is_sent:
        play.feed(STORED, ev.Send(2, hold=False))
    play.call.handle(lost(2), 0.0)
    play.feed(ev.OutcomeSettled(), ev.Release(1))


def test_a_late_answer_is_given_once_the_attempt_that_runs_has_failed() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=True))
    play.feed(answered(1), ev.AppendOutcome(is_late=True))
    play.feed(lost(2), BEFORE_RETRY)
    play.feed(ev.OutcomeSettled(), ev.Release(1))


def test_a_late_answer_that_is_retried_itself_ends_no_call() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=True))
    play.feed(limited(), ev.AppendOutcome(is_late=True))
    play.feed(lost(2), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.4))


def test_a_late_answer_is_not_given_if_a_later_attempt_is_answered() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=True))
    play.feed(answered(1), ev.AppendOutcome(is_late=True))
    play.feed(answered(2), OUTCOME)
    play.feed(answered(1), ev.AppendOutcome(is_late=True))
    play.feed(ev.OutcomeSettled(), ev.Release(2))


def test_a_late_answer_that_is_too_long_to_be_held_is_only_recorded() -> None:
    play = Play(structs.replace(RETRIED, retry=Retry(max_attempts=2, on=("connection",))))
    play.sent()
    play.call.handle(lost(), 0.0)
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.feed(STORED, ev.Send(2, hold=False))
    play.feed(structs.replace(answered(1), is_held=False), ev.AppendOutcome(is_late=True))
    play.call.handle(lost(2), 0.0)
    play.feed(ev.OutcomeSettled(), ev.Release(2))


WINDOW = RetryWindow(total=20.0, budget=10.0, queue=3.0)


@pytest.mark.parametrize(
    ("now", "is_stopping", "is_cancel_pending", "reason"),
    [
        (5.0, False, False, None),
        (5.0, True, True, StopReason.STOPPING),
        (20.0, False, True, StopReason.TOTAL),
        (10.0, False, True, StopReason.BUDGET),
    ],
)
def test_an_attempt_that_is_due_is_not_made_beyond_its_limits(
    now: float, is_stopping: bool, is_cancel_pending: bool, reason: StopReason | None
) -> None:
    state = {"is_stopping": is_stopping, "is_cancel_pending": is_cancel_pending}
    assert WINDOW.obstacle(now, **state) is reason


def test_a_cancel_that_is_pending_until_the_total_limit_ends_the_call_by_that() -> None:
    window = structs.replace(WINDOW, total=10.0)
    pending = window.obstacle(9.0, is_stopping=False, is_cancel_pending=True)
    assert (pending, window.end) == (StopReason.TOTAL, 10.0)


@pytest.mark.parametrize(
    ("now", "at", "reason", "kind"),
    [
        (5.0, 8.0, StopReason.QUEUE, ErrorKind.QUEUE_TIMEOUT),
        (8.0, 10.0, StopReason.BUDGET, ErrorKind.QUEUE_TIMEOUT),
    ],
)
def test_the_intent_of_a_retry_has_to_be_on_disk_by_the_first_of_its_limits(
    now: float, at: float, reason: StopReason, kind: ErrorKind
) -> None:
    assert WINDOW.deadline(now) == (at, ev.Overdue(reason, kind))


def test_the_total_limit_counts_before_one_that_is_reached_at_the_same_time() -> None:
    window = structs.replace(WINDOW, total=10.0)
    assert window.deadline(9.0) == (
        10.0,
        ev.Overdue(StopReason.TOTAL, ErrorKind.DEADLINE_EXHAUSTED),
    )


# -- callers that leave ------------------------------------------------------------------------


@pytest.mark.promise("RULE-2")
def test_a_call_that_no_rule_names_ends_with_its_caller() -> None:
    play = Play(READ)
    play.sent()
    play.feed(ev.Left(), GIVEN_UP)


@pytest.mark.promise("TWICE-2")
def test_a_named_call_runs_on_without_its_caller_and_is_then_given_up() -> None:
    play = Play(NAMED)
    play.sent()
    assert not play.call.has_left
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    assert play.call.has_left
    play.feed(ev.Drained(), FORWARDED, ev.Disarm(), ev.CancelAtServer(), DROPPED)


def test_a_duplicate_may_join_a_call_that_is_just_given_up() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(ev.Drained(), FORWARDED, ev.Disarm(), ev.CancelAtServer(), DROPPED)
    play.feed(ev.JoinerCame())
    assert not play.call.is_abandoned
    play.feed(ev.JoinerLeft())
    assert play.call.is_abandoned


@pytest.mark.parametrize(
    ("how", "seconds"),
    [(OnDisconnect.DRAIN, 600.0), (OnDisconnect.GRACE, 5.0), (OnDisconnect.CANCEL, 0.0)],
)
def test_how_long_it_runs_on_is_said_by_rule_and_protocol(
    how: OnDisconnect, seconds: float
) -> None:
    play = Play(Terms(is_guarded=True, on_disconnect=how))
    play.sent()
    play.feed(ev.Left(), ABANDONED, ev.Arm(seconds))


@pytest.mark.promise("REC-14")
def test_an_answer_that_comes_after_the_caller_has_left_is_late() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(answered(), ev.AppendOutcome(is_late=True))


@pytest.mark.promise("TWICE-22")
def test_a_named_call_whose_caller_has_left_is_never_sent() -> None:
    play = Play(NAMED)
    play.begun()
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(STORED, GIVEN_UP)


def test_a_call_that_no_rule_names_is_sent_at_once_though_its_caller_may_be_gone() -> None:
    play = Play(READ)
    play.begun()
    play.feed(ev.Recorded(may_be_gone=True), ev.Send(1, hold=False))


@pytest.mark.parametrize("terms", [Terms(effect=Effect.WRITE, is_named=True), NAMED])
def test_a_caller_that_may_be_gone_is_checked_before_a_named_call_is_sent(
    terms: Terms,
) -> None:
    may_be_gone = ev.Recorded(may_be_gone=True)
    there, gone = Play(terms), Play(terms)
    for play in (there, gone):
        play.begun()
        play.feed(may_be_gone, ev.CheckCaller())
    there.feed(ev.CallerChecked(), ev.Send(1, hold=False))
    gone.feed(ev.Left(), GIVEN_UP)


def test_a_call_that_outlives_its_caller_is_sent_and_answered_as_if_that_were_there() -> None:
    play = Play(Terms(is_limited=True, outlives_caller=True))
    play.begun()
    play.feed(ev.Recorded(), ev.Acquire())
    play.feed(ev.Left())
    play.feed(ev.SlotGranted(), ev.Send(1, hold=False))
    play.feed(ev.Left())
    play.feed(ev.ServerAsked())
    play.feed(answered(), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(1))


def test_a_call_that_outlives_its_caller_ends_if_it_was_cancelled_before() -> None:
    play = Play(Terms(outlives_caller=True))
    play.sent()
    play.feed(ev.Cancelled())
    play.feed(ev.Left(), GIVEN_UP)


def test_a_cancel_is_noted_and_the_call_runs_on_for_a_moment_once_its_caller_has_left() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Cancelled(), FORWARDED)
    play.feed(ev.Left(), ABANDONED, ev.Arm(3.0), at=2.0)


def test_a_call_that_outlives_the_time_of_its_caller_tells_it_and_runs_on() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(
        ev.Expired(ErrorKind.RESPONSE_TIMEOUT, can_answer_timeout=True),
        ev.AnswerTimeout(),
        ABANDONED,
        ev.Arm(600.0),
    )
    ending = failed(ErrorKind.RESPONSE_TIMEOUT, Phase.SENT, Effect.WRITE)
    play.feed(ev.TimeoutAnswered(ending), OUTCOME)
    play.feed(ev.Left())
    play.feed(answered(), ev.AppendOutcome(is_late=True))


def test_a_guessed_caller_joins_a_call_whose_caller_was_answered_with_a_timeout() -> None:
    play = Play(NAMED)
    play.sent()
    play.call.handle(ev.Expired(ErrorKind.RESPONSE_TIMEOUT, can_answer_timeout=True), 7.0)
    assert [play.call.may_be_guessed(now) for now in (12.0, 12.1)] == [True, False]


def test_a_call_that_is_never_answered_after_its_timeout_gets_a_note() -> None:
    play = Play(NAMED)
    play.sent()
    play.call.handle(ev.Expired(ErrorKind.RESPONSE_TIMEOUT, can_answer_timeout=True), 0.0)
    play.feed(
        ev.TimeoutAnswered(failed(ErrorKind.RESPONSE_TIMEOUT, Phase.SENT, Effect.WRITE)), OUTCOME
    )
    unanswered = ev.Note(NoteKind.UNANSWERED, on_outcome=True)
    play.feed(ev.Over(), ev.Disarm(), unanswered, ev.Close())


def test_a_call_that_is_answered_after_its_timeout_gets_no_note_of_silence() -> None:
    play = Play(NAMED)
    play.sent()
    play.call.handle(ev.Expired(ErrorKind.RESPONSE_TIMEOUT, can_answer_timeout=True), 0.0)
    play.feed(
        ev.TimeoutAnswered(failed(ErrorKind.RESPONSE_TIMEOUT, Phase.SENT, Effect.WRITE)), OUTCOME
    )
    play.feed(answered(), ev.AppendOutcome(is_late=True))
    play.feed(ev.Over(), ev.Disarm(), ev.Close())


@pytest.mark.parametrize("can_answer_timeout", [True, False])
def test_at_a_limit_a_call_ends_that_does_not_outlive_it(can_answer_timeout: bool) -> None:
    play = Play(READ if can_answer_timeout else NAMED)
    play.sent()
    failure = ev.Fail(ErrorKind.RESPONSE_TIMEOUT)
    play.feed(
        ev.Expired(ErrorKind.RESPONSE_TIMEOUT, can_answer_timeout=can_answer_timeout), failure
    )


def test_a_question_of_the_server_ends_a_call_that_nobody_waits_for() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.ServerAsked())
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(ev.ServerAsked(), FORWARDED, ev.Disarm(), ev.CancelAtServer(), DROPPED)


def test_a_stream_that_resumes_the_calls_own_takes_it_from_one_that_nobody_waits_for() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Resumed())
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(ev.Resumed(), DROPPED)


def test_an_answer_does_not_wait_for_a_call_that_was_cancelled_before_its_caller_left() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Cancelled(), FORWARDED, at=1.0)
    play.feed(ev.Left(), ABANDONED, ev.Arm(4.0), at=2.0)
    assert not play.call.may_be_guessed(2.0)
    play.feed(ev.Drained(), ev.Disarm(), DROPPED)  # the server has its cancel already


def test_a_cancel_while_the_intent_is_written_does_not_stop_a_call_without_a_rule() -> None:
    play = Play(READ)
    play.begun()
    play.feed(ev.Cancelled())
    play.feed(ev.Recorded(), ev.Send(1, hold=False))


def test_a_cancel_while_the_caller_is_checked_ends_the_call() -> None:
    play = Play(NAMED)
    play.begun()
    play.feed(ev.Recorded(may_be_gone=True), ev.CheckCaller())
    play.feed(ev.Cancelled(), GIVEN_UP)


def test_a_guessed_caller_joins_a_call_that_was_left_before_it_was_sent() -> None:
    play = Play(NAMED)
    play.begun()
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0), at=7.0)
    assert [play.call.may_be_guessed(now) for now in (12.0, 12.1)] == [True, False]


def test_a_dropped_call_ends_with_the_outcome_of_its_attempt() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Stopped(), ev.Drop(ErrorKind.OUTCOME_UNKNOWN))
    dropped = play.call.stage
    play.feed(ev.Left())
    assert not play.call.has_left
    play.feed(answered(), OUTCOME)
    assert (dropped, play.call.stage) == (Stage.WITHDRAWN, Stage.ENDED)


def test_a_guessed_caller_joins_a_call_from_when_it_was_left() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0), at=7.0)
    assert [play.call.may_be_guessed(now) for now in (12.0, 12.1)] == [True, False]


@pytest.mark.parametrize("event", [ev.Left(), ev.Cancelled()])
def test_a_caller_that_gives_up_between_two_attempts_ends_the_call(event: ev.Event) -> None:
    play = Play(RETRIED)
    play.sent()
    play.call.handle(limited(), 0.0)
    play.call.handle(event, 0.0)
    assert play.call.stage is Stage.ENDED


# -- others that wait --------------------------------------------------------------------------


def test_a_call_runs_on_for_those_that_have_joined_it() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(ev.JoinerCame(), ev.Disarm())
    play.feed(ev.Drained())
    play.feed(ev.JoinerLeft(), ev.Arm(600.0))


def test_a_queued_call_that_was_left_is_dropped_with_its_last_joiner() -> None:
    play = Play(structs.replace(NAMED, is_limited=True))
    play.begun()
    play.feed(ev.Recorded(), ev.Acquire())
    play.feed(ev.JoinerCame(), ev.Disarm())
    play.feed(ev.JoinerCame(), ev.Disarm())
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(ev.JoinerLeft())
    play.feed(ev.JoinerLeft(), ev.Dequeue())


def test_a_call_that_was_taken_back_is_joined_for_a_moment_only() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Cancelled(), FORWARDED)
    play.feed(ev.JoinerCame(), ev.Arm(4.0), at=1.0)
    play.feed(ev.Drained(), ev.Disarm(), DROPPED)


# -- after the end -----------------------------------------------------------------------------


def test_that_an_answer_arrived_is_noted_of_what_can_be_asked_again() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(answered(), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(1))
    play.feed(ev.Delivered(), DELIVERED)
    play.feed(ev.Delivered())
    play.feed(ev.Left(), DROPPED)


def test_a_cancel_that_crosses_the_answer_counts_it_as_not_delivered() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(answered(), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(1))
    play.feed(ev.Delivered(), DELIVERED)
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    play.feed(ev.CancelledLate(), ev.Note(NoteKind.ABANDONED, on_outcome=True))
    play.feed(ev.CancelledLate(), at=5.0)


def test_a_repeat_that_is_cancelled_right_after_its_answer_counts_however_old_the_call_is() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(answered(), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(1))
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    play.feed(ev.Delivered(), DELIVERED, at=500.0)
    play.feed(ev.CancelledLate(at_any_time=True), ev.Note(NoteKind.ABANDONED, on_outcome=True))
    assert not play.call.seen(500.0).delivered


def test_an_answer_may_come_on_another_stream_after_the_calls_own_has_ended() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    assert (play.call.stage, play.call.ending) == (Stage.OPEN, None)
    play.feed(ev.Left())  # its stream is over, and the answer is to come
    play.feed(answered(), OUTCOME)
    assert (play.call.stage, play.call.ending) == (Stage.DONE, succeeded())


def test_a_repeat_sees_that_a_call_was_cancelled_after_its_stream_had_ended() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Over(), ev.Disarm(), ev.Close(), at=1.0)
    assert play.call.seen(1.0).cancelled is None
    play.feed(ev.Cancelled(), at=2.0)
    assert play.call.seen(5.0).cancelled == 3.0


def test_an_answer_on_another_stream_is_late_if_the_caller_has_left() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    play.feed(answered(), ev.AppendOutcome(is_late=True), at=3.0)
    assert play.call.seen(5.0).ended == 2.0


def test_a_late_cancel_of_a_call_that_was_not_sent_counts_for_a_moment() -> None:
    play = looking()
    play.feed(found(NOBODY_KNOWS), withheld(DuplicateAction.UNKNOWN), at=2.0)
    play.feed(ev.CancelledLate(), ev.Note(NoteKind.ABANDONED, on_outcome=True), at=6.9)
    play.feed(ev.CancelledLate(), at=7.0)


def test_a_delivery_between_two_attempts_is_not_that_of_the_answer() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(ev.Delivered())
    play.feed(ev.Overdue(StopReason.TOTAL), ev.Release(1, StopReason.TOTAL))
    assert not play.call.seen(0.0).delivered


def test_a_proxy_that_stops_gives_the_call_up() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Stopped(), ev.Drop(ErrorKind.OUTCOME_UNKNOWN))


def test_a_call_that_waits_between_attempts_gets_the_answer_it_has_when_the_proxy_stops() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    release = ev.Release(1, StopReason.STOPPING)
    play.feed(ev.Stopped(), release, ev.Drop(ErrorKind.OUTCOME_UNKNOWN))
    assert play.call.stage is Stage.ENDED


def test_if_a_retry_cannot_be_recorded_the_earlier_answer_is_given() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    full = failed(ErrorKind.SESSION_UNAVAILABLE, Phase.QUEUED, Effect.READ)
    play.feed(ev.Judged(number=2, ending=full), OUTCOME, ev.Release(1, StopReason.UNRECORDED))
    play.feed(ev.NotRecorded())


def test_if_a_retry_is_not_sent_the_earlier_answer_is_given() -> None:
    play = Play(RETRIED)
    play.sent()
    play.feed(lost(), BEFORE_RETRY, ev.CancelAtServer(), ev.Rest(0.2))
    play.feed(ev.Woken(), ev.AppendIntent(2))
    gone = failed(ErrorKind.CANCELLED_BY_CALLER, Phase.QUEUED, Effect.READ)
    play.feed(ev.Judged(number=2, ending=gone), OUTCOME, ev.Release(1))


# -- beside an earlier call that is the same ---------------------------------------------------

RUNS = EarlierCall(ending=None, began=1.0, is_carried=True)
LEFT = structs.replace(RUNS, abandoned=True)
ELSEWHERE = EarlierCall(ending=None, began=1.0, elsewhere=True)
LOST = EarlierCall(ending=succeeded(), began=9.0, ended=5.0)
DELIVERED_EARLIER = structs.replace(LOST, delivered=True)
NOBODY_KNOWS = structs.replace(
    LOST, ending=failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.WRITE)
)
ANOTHERS = structs.replace(LOST, likeness=Likeness.OTHERS)
HIDDEN = structs.replace(DELIVERED_EARLIER, likeness=Likeness.DISCARDED)
GUESSED = structs.replace(RUNS, likeness=Likeness.GUESSED)
CHECKS_EARLIER = structs.replace(NAMED, checks_earlier_caller=True)


def looking(terms: Terms = NAMED) -> Play:
    """Return a call whose earlier ones are being looked for."""
    play = Play(terms)
    play.feed(ev.Begin(), ev.LookUp())
    return play


def found(*earlier: EarlierCall) -> ev.LookedUp:
    return ev.LookedUp(earlier)


def withheld(action: DuplicateAction, waited: float | None = None, place: int = 0) -> ev.Withhold:
    return ev.Withhold(action, place, waited)


def joining(terms: Terms = NAMED, earlier: EarlierCall = LEFT, delay: float = inf) -> Play:
    """Return a call that waits for an earlier one since 0."""
    play = looking(terms)
    play.feed(found(earlier), ev.Join(0, delay))
    return play


@pytest.mark.parametrize(
    ("earlier", "action"),
    [
        (LOST, DuplicateAction.REPLAY),
        (NOBODY_KNOWS, DuplicateAction.UNKNOWN),
        (structs.replace(LOST, keyed=True, same_input=False), DuplicateAction.CONFLICT),
    ],
)
def test_a_call_for_which_an_earlier_one_stands_is_not_sent(
    earlier: EarlierCall, action: DuplicateAction
) -> None:
    play = looking()
    play.feed(found(earlier), withheld(action))
    assert play.call.is_over


@pytest.mark.promise("LEDGER-1", "LEDGER-2")
@pytest.mark.parametrize(
    ("earlier", "action"),
    [
        (HIDDEN, DuplicateAction.REPLAY),
        (structs.replace(HIDDEN, same_input=False), DuplicateAction.DISCARDED),
    ],
)
def test_a_call_with_an_effect_of_another_branch_is_not_sent(
    earlier: EarlierCall, action: DuplicateAction
) -> None:
    play = looking()
    play.feed(found(earlier, DELIVERED_EARLIER), withheld(action))
    assert play.call.is_over


@pytest.mark.promise("LEDGER-3")
def test_a_call_with_an_effect_of_another_branch_is_sent_once_somebody_has_said_so() -> None:
    play = looking()
    redone = structs.replace(HIDDEN, choice=EffectChoice.REDO)
    play.feed(found(redone, DELIVERED_EARLIER), ev.AppendIntent(1))


def test_a_call_waits_for_one_of_another_branch_that_still_runs() -> None:
    play = looking()
    running = structs.replace(RUNS, likeness=Likeness.DISCARDED, elsewhere=True)
    play.feed(found(running), ev.Join(0, inf))
    play.feed(ev.EarlierEnded(), ev.StopWaiting(), ev.LookUp(), at=3.0)
    play.feed(found(HIDDEN), withheld(DuplicateAction.REPLAY, waited=3.0))


def test_a_rule_refuses_a_second_call_beside_one_that_runs() -> None:
    play = looking(structs.replace(NAMED, on_duplicate=OnDuplicate.BLOCK))
    play.feed(found(RUNS), withheld(DuplicateAction.BLOCK))


def test_a_call_after_one_that_was_delivered_is_sent() -> None:
    play = looking()
    play.feed(found(DELIVERED_EARLIER), ev.AppendIntent(1))


def test_a_call_after_one_whose_answer_was_slow_gets_that_where_a_rule_says_so() -> None:
    play = looking(structs.replace(NAMED, slower_than=3.0))
    play.feed(found(DELIVERED_EARLIER), withheld(DuplicateAction.REPLAY))


def test_a_call_that_may_repeat_an_effect_is_sent_and_later_ones_see_that() -> None:
    play = looking()
    warned = structs.replace(NOBODY_KNOWS, warned=True)
    play.feed(found(warned), ev.AppendIntent(1, is_repeat=True))
    assert play.call.seen(1.0).repeats


def test_the_answer_to_another_principal_is_not_given_and_the_call_may_be_a_repeat() -> None:
    play = looking()
    play.feed(found(DELIVERED_EARLIER, ANOTHERS), ev.AppendIntent(1, is_repeat=True))


def test_a_call_that_may_be_a_repeat_is_not_compared_further() -> None:
    play = looking()
    warned = structs.replace(NOBODY_KNOWS, warned=True)
    play.feed(found(warned, structs.replace(LEFT, keyed=True)), ev.AppendIntent(1, is_repeat=True))


def test_a_call_that_joins_an_abandoned_one_gets_its_answer() -> None:
    play = joining()
    assert play.call.is_undecided
    play.feed(ev.EarlierEnded(), ev.StopWaiting(), ev.LookUp(), at=3.0)
    # Another call that waited has had it; this one has not.
    play.feed(found(DELIVERED_EARLIER), withheld(DuplicateAction.REPLAY, waited=3.0))


def test_a_call_that_only_waited_for_another_process_is_sent_once_that_one_is_delivered() -> None:
    play = joining(earlier=ELSEWHERE)
    play.feed(ev.EarlierEnded(), ev.StopWaiting(), ev.LookUp(), at=0.1)
    play.feed(found(DELIVERED_EARLIER), ev.AppendIntent(1))


def test_time_spent_waiting_does_not_make_an_earlier_call_old_enough_to_be_joined() -> None:
    play = joining(earlier=ELSEWHERE)
    play.feed(ev.EarlierEnded(), ev.StopWaiting(), ev.LookUp(), at=3.0)
    play.feed(found(structs.replace(ELSEWHERE, began=6.0)), ev.Join(0, inf))
    play.feed(ev.EarlierEnded(), ev.StopWaiting(), ev.LookUp(), at=3.1)
    play.feed(found(DELIVERED_EARLIER), ev.AppendIntent(1))


def test_waiting_goes_on_as_long_as_the_earlier_call_runs_up_to_the_calls_own_limit() -> None:
    play = joining(structs.replace(NAMED, waits_for_earlier=60.0), delay=60.0)
    play.feed(ev.EarlierEnded(), ev.StopWaiting(), ev.LookUp(), at=30.0)
    play.feed(found(GUESSED, LEFT), ev.Join(1, 30.0))
    late = withheld(DuplicateAction.LATE, waited=60.0, place=1)
    play.feed(ev.Expired(ErrorKind.RESPONSE_TIMEOUT), ev.StopWaiting(), late, at=60.0)


@pytest.mark.parametrize(
    ("event", "action"),
    [
        (ev.Left(), DuplicateAction.LEFT),
        (ev.Cancelled(), DuplicateAction.LEFT),
        (ev.Stopped(), DuplicateAction.STOPPED),
    ],
)
def test_a_call_that_waits_no_more_is_recorded_and_not_sent(
    event: ev.Event, action: DuplicateAction
) -> None:
    play = joining()
    play.feed(event, ev.StopWaiting(), withheld(action, waited=2.0), at=2.0)
    assert play.call.is_over
    assert play.call.has_left is (action is DuplicateAction.LEFT)


def test_after_the_server_is_gone_a_call_waits_for_no_further_call() -> None:
    play = joining()
    play.feed(ev.ServerGone())
    play.feed(ev.EarlierEnded(), ev.StopWaiting(), ev.LookUp(), at=1.0)
    play.feed(found(LEFT), withheld(DuplicateAction.UNKNOWN, waited=1.0))


def test_before_a_call_is_sent_the_caller_of_a_running_duplicate_is_checked() -> None:
    play = looking(CHECKS_EARLIER)
    play.feed(found(RUNS), ev.CheckEarlierCaller(0))
    play.feed(ev.EarlierCallerChecked(), ev.LookUp())
    play.feed(found(RUNS), ev.AppendIntent(1))


def test_a_call_joins_one_that_turns_out_to_be_given_up() -> None:
    play = looking(CHECKS_EARLIER)
    play.feed(found(RUNS), ev.CheckEarlierCaller(0))
    play.feed(ev.EarlierCallerChecked(), ev.LookUp())
    play.feed(found(LEFT), ev.Join(0, inf))


ANSWERED_ELSEWHERE = structs.replace(LOST, delivered=True, elsewhere=True)


def test_the_caller_of_a_call_that_may_have_been_repeated_and_answered_elsewhere_is_checked() -> (
    None
):
    play = looking(CHECKS_EARLIER)
    play.feed(found(ANSWERED_ELSEWHERE), ev.CheckEarlierCaller(0))
    play.feed(ev.EarlierCallerChecked(), ev.LookUp())
    play.feed(found(ANSWERED_ELSEWHERE), ev.AppendIntent(1))
    anothers = structs.replace(ANSWERED_ELSEWHERE, likeness=Likeness.OTHERS)
    for not_repeated in (DELIVERED_EARLIER, anothers):
        looking(CHECKS_EARLIER).feed(found(not_repeated), ev.AppendIntent(1))


def test_a_repeat_waits_while_the_answer_is_given_again_to_a_caller_that_may_have_left() -> None:
    given = structs.replace(LOST, is_given=True)
    play = looking(CHECKS_EARLIER)
    play.feed(found(given), ev.CheckEarlierCaller(0))
    play.feed(ev.EarlierCallerChecked(), ev.LookUp())
    play.feed(found(DELIVERED_EARLIER), ev.AppendIntent(1))
    looking().feed(found(given), withheld(DuplicateAction.REPLAY))
    keyed = structs.replace(given, keyed=True)
    looking(CHECKS_EARLIER).feed(found(keyed), withheld(DuplicateAction.REPLAY))


def test_the_caller_of_each_call_that_is_found_after_waiting_for_another_is_checked() -> None:
    play = looking(CHECKS_EARLIER)
    play.feed(found(RUNS), ev.CheckEarlierCaller(0))
    play.feed(ev.EarlierCallerChecked(), ev.LookUp())
    play.feed(found(ELSEWHERE), ev.Join(0, inf))
    play.feed(ev.EarlierEnded(), ev.StopWaiting(), ev.LookUp())
    play.feed(found(RUNS), ev.CheckEarlierCaller(0))


def test_a_call_given_up_before_the_decision_is_recorded_and_not_sent() -> None:
    for event in (ev.Left(), ev.Cancelled()):
        play = looking(CHECKS_EARLIER)
        play.feed(found(RUNS), ev.CheckEarlierCaller(0))
        play.feed(event, withheld(DuplicateAction.GIVEN_UP))
        assert play.call.is_over
        assert play.call.has_left


def test_if_another_process_was_first_the_call_is_decided_again() -> None:
    play = Play(CHECKS_EARLIER)
    play.begun()
    play.feed(ev.JoinerCame(), ev.Disarm())
    play.feed(ev.Conflicted(), ev.Disarm(), ev.RetractIntent(), ev.LookUp())
    assert (play.call.joiners, play.call.is_over) == (0, False)
    play.feed(found(ELSEWHERE), ev.Join(0, inf))
    play.feed(ev.EarlierEnded(), ev.StopWaiting(), ev.LookUp())
    play.feed(found(), ev.AppendIntent(1))
    play.feed(STORED, ev.Send(1, hold=False))


def test_a_call_that_was_cancelled_is_not_decided_again() -> None:
    play = Play(NAMED)
    play.begun()
    play.feed(ev.Cancelled(), FORWARDED)
    given_up = withheld(DuplicateAction.GIVEN_UP)
    play.feed(ev.Conflicted(), ev.Disarm(), ev.RetractIntent(), given_up)
    assert play.call.is_over


def test_a_call_that_a_stopping_turnlog_has_ended_is_not_decided_again() -> None:
    play = Play(NAMED)
    play.begun()
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    play.feed(ev.Conflicted())
    assert play.call.stage is Stage.OPEN


def test_a_call_is_not_recorded_if_turnlog_stops_before_the_decision() -> None:
    play = looking(CHECKS_EARLIER)
    play.feed(found(RUNS), ev.CheckEarlierCaller(0))
    play.feed(ev.Stopped())
    assert play.call.is_over
    assert play.call.has_left


def test_if_a_rule_lets_duplicates_pass_only_a_guessed_caller_is_checked() -> None:
    passes = structs.replace(CHECKS_EARLIER, on_duplicate=OnDuplicate.PASS)
    looking(passes).feed(found(RUNS), ev.AppendIntent(1))
    looking(passes).feed(found(GUESSED), ev.CheckEarlierCaller(0))


def test_a_guessed_caller_joins_only_what_may_be_its_own() -> None:
    looking().feed(found(GUESSED), ev.AppendIntent(1))
    looking().feed(found(structs.replace(GUESSED, abandoned=True)), ev.Join(0, inf))


def test_the_earlier_answer_counts_as_delivered_unless_its_caller_cancels_right_after_it() -> None:
    play = looking()
    play.feed(found(LOST), withheld(DuplicateAction.REPLAY))
    play.feed(ev.Delivered(), ev.CreditEarlier(delivered=True))
    play.feed(ev.CancelledLate(), ev.CreditEarlier(delivered=False))
    play.feed(ev.Delivered())
    play.feed(ev.Over())
    assert play.call.stage is Stage.REPLAYED


# -- what others ask ---------------------------------------------------------------------------


def test_a_later_call_sees_how_long_one_runs_and_that_its_caller_has_left() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0), at=2.0)
    seen = play.call.seen(3.0)
    assert (seen.ending, seen.began, seen.abandoned, seen.delivered) == (None, 3.0, True, False)


def test_an_answer_that_is_on_disk_counts_as_delivered_to_a_caller_that_is_there() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(answered(), OUTCOME)
    assert play.call.seen(1.0).ending is None
    play.feed(ev.OutcomeSettled(), ev.Release(1))
    seen = play.call.seen(1.0)
    assert (seen.ending, seen.delivered, seen.repeats) == (succeeded(), True, False)


def test_a_failure_that_its_caller_was_told_has_ended_the_call() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(lost(effect=Effect.WRITE), OUTCOME)
    play.feed(ev.OutcomeSettled(), ev.Release(1))
    assert play.call.seen(1.0).ending is None
    play.feed(ev.Delivered(), DELIVERED)
    seen = play.call.seen(1.0)
    assert seen.ending is not None
    assert (seen.ending.status, seen.delivered) == (Status.UNKNOWN, True)


def test_an_ended_call_knows_when_it_ended() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Cancelled(), FORWARDED, at=1.0)
    play.feed(answered(), OUTCOME, at=2.0)
    play.feed(ev.OutcomeSettled(), ev.Release(1))
    play.feed(ev.Over(), ev.Disarm(), ev.Close(), at=3.0)
    seen = play.call.seen(5.0)
    assert (seen.ended, seen.cancelled, seen.delivered) == (2.0, 4.0, False)


def test_a_guessed_caller_joins_a_call_that_was_left_a_moment_ago() -> None:
    play = Play(NAMED)
    play.sent()
    assert not play.call.may_be_guessed(0.0)
    play.feed(ev.Left(), ABANDONED, ev.Arm(600.0))
    assert [play.call.may_be_guessed(now) for now in (5.0, 5.1)] == [True, False]
    play.feed(ev.JoinerCame(), ev.Disarm())
    play.feed(ev.JoinerLeft(is_guessed=True), ev.Arm(600.0), at=3.0)
    assert [play.call.may_be_guessed(now) for now in (8.0, 8.1)] == [True, False]
    seen = play.call.seen_by_guess(8.0, is_alone=True, may_be_gone=False)
    assert (seen.likeness, seen.abandoned, seen.is_carried) == (Likeness.GUESSED, True, False)
    assert not play.call.seen_by_guess(8.0, is_alone=False, may_be_gone=False).abandoned


def test_a_call_is_closed_once() -> None:
    play = Play(NAMED)
    play.sent()
    play.call.handle(ev.Expired(ErrorKind.RESPONSE_TIMEOUT, can_answer_timeout=True), 0.0)
    play.feed(
        ev.TimeoutAnswered(failed(ErrorKind.RESPONSE_TIMEOUT, Phase.SENT, Effect.WRITE)), OUTCOME
    )
    unanswered = ev.Note(NoteKind.UNANSWERED, on_outcome=True)
    play.feed(ev.Over(), ev.Disarm(), unanswered, ev.Close())
    assert play.call.stage is Stage.DONE  # what its caller was told is its ending
    play.feed(ev.Over(), at=4.0)
    assert play.call.seen(6.0).ended == 2.0


def test_a_call_without_an_answer_is_closed_once() -> None:
    play = Play(NAMED)
    play.sent()
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    play.feed(ev.Over())
    assert play.call.stage is Stage.OPEN


@pytest.mark.parametrize(
    "event", [ev.NotRecorded(), ev.Overdue(StopReason.QUEUE, ErrorKind.QUEUE_TIMEOUT)]
)
def test_a_call_whose_retry_was_not_begun_has_ended(event: ev.Event) -> None:
    play = Play(structs.replace(NAMED, effect=Effect.IDEMPOTENT_WRITE, retry=RETRY))
    play.sent()
    play.call.handle(limited(), 0.0)
    play.feed(ev.Woken(), ev.AppendIntent(2))
    play.call.handle(event, 0.0)
    play.feed(ev.Over(), ev.Disarm(), ev.Close())
    ending = play.call.seen(1.0).ending
    assert ending is not None
    assert ending.executed is Executed.NO


def test_after_a_bug_a_call_is_over_and_ignores_what_cannot_happen() -> None:
    play = Play(NAMED)
    play.sent()
    with pytest.raises(InvalidEvent):
        play.call.handle(ev.Woken(), 1.0)
    assert play.call.is_over
    assert play.call.seen(3.0).ended == 2.0
    play.feed(ev.Woken())
    play.feed(answered(), OUTCOME)
    assert play.call.ending == succeeded()


def test_a_late_cancel_while_the_caller_is_looked_for_keeps_a_named_call_from_being_sent() -> None:
    play = Play(NAMED)
    play.begun()
    play.feed(ev.Recorded(may_be_gone=True), ev.CheckCaller())
    play.feed(ev.CancelledLate(), ev.Note(NoteKind.ABANDONED, on_outcome=True))
    play.feed(ev.CallerChecked(), GIVEN_UP)
