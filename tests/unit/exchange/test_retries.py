"""The life of one call, stepped by hand."""

import pytest

from turnlog.core.classify import failed, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.exchange.retries import Forward, Steps, Wait, exchange
from turnlog.rules.model import Jitter, Retry, Timeouts
from turnlog.rules.policy import Policy
from turnlog.rules.retry import EndedAttempt, StopReason

RETRY = Retry(on=("connection", "rate_limited"), max_attempts=3, jitter=Jitter.NONE)


def lost(number: int, *, elapsed: float = 0.0) -> EndedAttempt:
    ending = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.READ)
    return EndedAttempt(ending=ending, effect=Effect.READ, number=number, elapsed=elapsed)


def answered(number: int) -> EndedAttempt:
    return EndedAttempt(ending=succeeded(), effect=Effect.READ, number=number, elapsed=0.0)


def end(steps: Steps, tried: EndedAttempt) -> StopReason:
    with pytest.raises(StopIteration) as stopped:
        steps.send(tried)
    reason = stopped.value.value
    assert isinstance(reason, StopReason)
    return reason


def test_without_a_rule_a_call_is_forwarded_once_and_not_held_back() -> None:
    steps = exchange(Policy(), lambda: 0.5)
    assert next(steps) == Forward(1, hold=False)
    assert end(steps, lost(1)) is StopReason.NO_RULE


def test_a_failure_that_a_rule_names_is_retried_after_a_delay() -> None:
    steps = exchange(Policy(retry=RETRY), lambda: 0.5)
    assert next(steps) == Forward(1, hold=True)
    assert steps.send(lost(1)) == Wait(0.2)
    assert next(steps) == Forward(2, hold=True)
    assert end(steps, answered(2)) is StopReason.ANSWERED


def test_the_last_attempt_is_not_held_back_and_ends_the_call() -> None:
    steps = exchange(Policy(retry=RETRY), lambda: 0.5)
    next(steps)
    for number in (1, 2):
        assert isinstance(steps.send(lost(number)), Wait)
        assert next(steps) == Forward(number + 1, hold=number == 1)
    assert end(steps, lost(3)) is StopReason.ATTEMPTS


def test_no_attempt_starts_after_the_total_timeout() -> None:
    steps = exchange(Policy(retry=RETRY, timeout=Timeouts(total=10)), lambda: 0.5)
    next(steps)
    assert end(steps, lost(1, elapsed=9.9)) is StopReason.TOTAL


def test_a_message_that_cannot_be_repeated_is_forwarded_once() -> None:
    steps = exchange(Policy(retry=RETRY), lambda: 0.5, repeatable=False)
    assert next(steps) == Forward(1, hold=False)
    assert end(steps, lost(1)) is StopReason.BODY


def test_a_refusal_with_too_long_a_delay_is_passed_on() -> None:
    steps = exchange(Policy(retry=RETRY), lambda: 0.5)
    next(steps)
    limited = EndedAttempt(
        ending=refused(ErrorKind.RATE_LIMITED, Effect.READ),
        effect=Effect.READ,
        number=1,
        elapsed=0.0,
        retry_after=3600,
    )
    assert end(steps, limited) is StopReason.BUDGET
