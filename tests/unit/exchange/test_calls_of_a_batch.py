"""Plays of the calls of one batch: each has its own life, and they are sent together or not at all."""

import pytest

from turnlog.core.classify import failed, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.exchange import events as ev
from turnlog.exchange.call import CallerState, CallMachine, Stage, Terms

WRITE = Terms(effect=Effect.UNKNOWN)
NAMED = Terms(effect=Effect.WRITE, is_named=True, is_member=True)
OUTCOME = ev.AppendOutcome()
RELEASED = ev.Release(1)
SEND = ev.Send(1, hold=False)
GIVEN_UP = ev.Fail(ErrorKind.CANCELLED_BY_CALLER)


def batch(*terms: Terms) -> list[CallMachine]:
    """Return calls whose intents are being written."""
    return [CallMachine(each, 0.0, 1, Stage.RECORDING, given=1) for each in terms]


def sent(*terms: Terms) -> list[CallMachine]:
    """Return calls that are at the server."""
    calls = batch(*terms)
    for call in calls:
        assert call.handle(ev.Recorded(), 0.0) == (SEND,)
    return calls


def answered() -> ev.Judged:
    return ev.Judged(number=1, ending=succeeded())


def unanswered(call: CallMachine, kind: ErrorKind, phase: Phase = Phase.BODY) -> ev.Judged:
    """Return the end of a call that gets no answer for this reason."""
    ending = failed(call.cause(kind), phase, call.terms.effect)
    return ev.Judged(number=1, ending=ending, is_own_answer=True)


def test_a_cancel_is_for_one_call_and_the_others_run_on() -> None:
    cancelled, other = sent(WRITE, WRITE)
    assert cancelled.handle(ev.Cancelled(), 1.0) == ()
    assert (cancelled.caller, other.caller) == (CallerState.CANCELLED, CallerState.HERE)
    assert other.handle(answered(), 2.0) == (OUTCOME,)
    assert other.handle(ev.OutcomeSettled(), 2.0) == (RELEASED,)
    assert cancelled.stage is Stage.SENT


def test_a_call_whose_caller_cancels_and_waits_no_longer_fails_alone() -> None:
    cancelled, other = sent(WRITE, WRITE)
    cancelled.handle(ev.Cancelled(), 1.0)
    assert cancelled.handle(ev.Left(), 1.0) == (GIVEN_UP,)
    ended = unanswered(cancelled, ErrorKind.CANCELLED_BY_CALLER)
    assert cancelled.handle(ended, 1.0) == (OUTCOME,)
    assert cancelled.overall == ended.ending
    assert (other.stage, other.caller) == (Stage.SENT, CallerState.HERE)


def test_a_cancelled_call_may_still_be_answered() -> None:
    call, _ = sent(WRITE, WRITE)
    call.handle(ev.Cancelled(), 1.0)
    assert call.handle(answered(), 2.0) == (OUTCOME,)
    assert call.overall == succeeded()


def test_if_the_stream_is_lost_an_answered_call_stays_answered_and_a_cancelled_one_was_cancelled() -> (
    None
):
    answered_one, cancelled, lost = calls = sent(WRITE, WRITE, WRITE)
    answered_one.handle(answered(), 1.0)
    answered_one.handle(ev.OutcomeSettled(), 1.0)
    cancelled.handle(ev.Cancelled(), 1.0)
    for call in (cancelled, lost):
        assert call.handle(unanswered(call, ErrorKind.CONNECTION_LOST), 2.0) == (OUTCOME,)
    kinds = [call.overall.kind for call in calls if call.overall is not None]
    assert kinds == ["", ErrorKind.CANCELLED_BY_CALLER, ErrorKind.CONNECTION_LOST]


def test_if_the_caller_leaves_each_open_call_fails_and_an_answered_one_does_not() -> None:
    answered_one, open_one = sent(WRITE, WRITE)
    answered_one.handle(answered(), 1.0)
    assert answered_one.handle(ev.Left(), 2.0) == ()
    assert open_one.handle(ev.Left(), 2.0) == (GIVEN_UP,)


def test_a_batch_with_a_denied_call_ends_all_its_calls_before_one_is_sent() -> None:
    calls = batch(WRITE, NAMED)
    for call in calls:
        judged = unanswered(call, ErrorKind.POLICY_BLOCKED, Phase.QUEUED)
        assert call.handle(judged, 0.0) == (OUTCOME, RELEASED)
        assert call.handle(ev.Recorded(), 0.0) == ()
        assert call.stage is Stage.ENDED


def test_a_late_answer_replaces_the_failure_of_its_call_only() -> None:
    late, other = sent(WRITE, WRITE)
    for call in (late, other):
        call.handle(unanswered(call, ErrorKind.CONNECTION_LOST), 1.0)
        call.handle(ev.OutcomeSettled(), 1.0)
    assert late.handle(answered(), 2.0) == (OUTCOME,)
    assert late.overall == succeeded()
    assert other.overall is not None
    assert other.overall.kind is ErrorKind.CONNECTION_LOST


def test_a_call_whose_stream_has_ended_may_be_answered_on_another_one() -> None:
    call, _ = sent(WRITE, WRITE)
    assert call.handle(ev.Over(), 1.0) == (ev.Disarm(), ev.Close())
    assert call.stage is Stage.OPEN
    assert call.handle(answered(), 2.0) == (OUTCOME,)
    assert (call.stage, call.ending) == (Stage.DONE, succeeded())


@pytest.mark.parametrize("times", [1, 2])
def test_a_call_that_is_cancelled_after_its_stream_has_ended_was_cancelled(times: int) -> None:
    call, _ = sent(WRITE, WRITE)
    call.handle(ev.Over(), 1.0)
    for at in range(times):
        assert call.handle(ev.Cancelled(), 2.0 + at) == ()
    assert call.cancelled_at == 2.0
    assert call.cause(ErrorKind.CONNECTION_LOST) is ErrorKind.CANCELLED_BY_CALLER


def test_a_batch_is_sent_whole_even_if_a_named_call_of_it_was_cancelled() -> None:
    cancelled, other = batch(NAMED, NAMED)
    assert cancelled.handle(ev.Cancelled(), 0.0) == ()
    for call in (cancelled, other):
        assert call.handle(ev.Recorded(), 0.0) == (SEND,)


def test_named_calls_of_a_batch_are_sent_once_it_is_clear_that_their_caller_is_there() -> None:
    cancelled, other = batch(NAMED, NAMED)
    for call in (cancelled, other):
        assert call.handle(ev.Recorded(may_be_gone=True), 0.0) == (ev.CheckCaller(),)
    assert cancelled.handle(ev.Cancelled(), 0.0) == ()
    for call in (cancelled, other):
        assert call.handle(ev.CallerChecked(), 0.1) == (SEND,)


def test_named_calls_of_a_batch_whose_caller_turns_out_to_be_gone_are_not_sent() -> None:
    for call in batch(NAMED, NAMED):
        call.handle(ev.Recorded(may_be_gone=True), 0.0)
        assert call.handle(ev.Left(), 0.1) == (GIVEN_UP,)
        judged = unanswered(call, ErrorKind.CANCELLED_BY_CALLER, Phase.QUEUED)
        assert call.handle(judged, 0.1) == (OUTCOME,)
        assert call.stage is Stage.ENDED
