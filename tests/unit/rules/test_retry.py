"""Decisions after a failed attempt."""

import pytest
from msgspec import structs

from turnlog.core.classify import Ending, failed, refused, succeeded
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.rules.model import Jitter, Retry
from turnlog.rules.retry import (
    EndedAttempt,
    NoRetry,
    RetryIn,
    StopReason,
    backoff,
    decide_retry,
    may_still_run,
)

RULE = Retry(on=("timeout", "connection", "rate_limited", "conflict"), jitter=Jitter.NONE)


def tried(
    kind: ErrorKind,
    effect: Effect = Effect.READ,
    phase: Phase = Phase.SENT,
    *,
    number: int = 1,
    elapsed: float = 0.0,
    retry_after: float | None = None,
) -> EndedAttempt:
    return EndedAttempt(
        ending=failed(kind, phase, effect),
        effect=effect,
        number=number,
        elapsed=elapsed,
        retry_after=retry_after,
    )


@pytest.mark.promise("RULE-8")
@pytest.mark.parametrize(
    ("kind", "effect", "phase", "again"),
    [
        (ErrorKind.CONNECTION_LOST, Effect.READ, Phase.SENT, True),
        (ErrorKind.CONNECTION_LOST, Effect.UNKNOWN, Phase.SENT, False),
        (ErrorKind.CONNECTION_LOST, Effect.WRITE, Phase.SENT, False),
        (ErrorKind.CONNECTION_LOST, Effect.IDEMPOTENT_WRITE, Phase.SENT, True),
        (ErrorKind.CONNECTION_LOST, Effect.IRREVERSIBLE, Phase.SENT, False),
        (ErrorKind.CONNECT_FAILED, Effect.IRREVERSIBLE, Phase.CONNECTING, True),
        (ErrorKind.CONFLICT, Effect.WRITE, Phase.DONE, False),
        (ErrorKind.CONFLICT, Effect.IDEMPOTENT_WRITE, Phase.DONE, True),
        (ErrorKind.RATE_LIMITED, Effect.WRITE, Phase.DONE, True),
    ],
)
def test_only_a_call_whose_effect_cannot_happen_twice_is_retried(
    kind: ErrorKind, effect: Effect, phase: Phase, again: bool
) -> None:
    verdict = decide_retry(RULE, tried(kind, effect, phase), jitter=0.5)
    assert verdict == (RetryIn(0.2) if again else NoRetry(StopReason.NOT_REPEATABLE))


@pytest.mark.promise("RULE-8")
@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize(
    ("kind", "again"),
    [
        (ErrorKind.CONNECTION_LOST, True),
        (ErrorKind.CONFLICT, True),
        (ErrorKind.UNAUTHENTICATED, False),
    ],
)
def test_with_an_honoured_idempotency_key_every_effect_is_retried(
    effect: Effect, kind: ErrorKind, again: bool
) -> None:
    rule = structs.replace(RULE, on=(*RULE.on, "auth"))
    case = structs.replace(tried(kind, effect), keyed=True)
    assert decide_retry(rule, case, jitter=0.5) == (
        RetryIn(0.2) if again else NoRetry(StopReason.NOT_REPEATABLE)
    )


def test_a_success_is_not_retried() -> None:
    good = EndedAttempt(ending=succeeded(), effect=Effect.READ, number=1, elapsed=0.0)
    assert decide_retry(RULE, good, jitter=0.5) == NoRetry(StopReason.ANSWERED)


@pytest.mark.promise("RULE-11")
@pytest.mark.parametrize("rule", [None, Retry(on=("auth",))])
def test_a_failure_that_no_rule_names_is_not_retried(rule: Retry | None) -> None:
    lost = tried(ErrorKind.CONNECTION_LOST)
    assert decide_retry(rule, lost, jitter=0.5) == NoRetry(StopReason.NO_RULE)


@pytest.mark.parametrize("named", ["connection_lost", "connection"])
def test_a_rule_names_kinds_or_families(named: str) -> None:
    rule = Retry(on=(named,), jitter=Jitter.NONE)
    assert decide_retry(rule, tried(ErrorKind.CONNECTION_LOST), jitter=0.5) == RetryIn(0.2)


@pytest.mark.promise("RULE-12")
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (tried(ErrorKind.CONNECTION_LOST, number=3), StopReason.ATTEMPTS),
        (tried(ErrorKind.CONNECTION_LOST, elapsed=59.9), StopReason.BUDGET),
        (tried(ErrorKind.RATE_LIMITED, retry_after=61), StopReason.BUDGET),
        (tried(ErrorKind.RATE_LIMITED, elapsed=20, retry_after=11), StopReason.TOTAL),
    ],
)
def test_there_is_no_retry_beyond_a_limit(case: EndedAttempt, reason: StopReason) -> None:
    assert decide_retry(RULE, case, total=30, jitter=0.5) == NoRetry(reason)


def test_the_delay_that_the_server_asks_for_is_not_shortened() -> None:
    limited = tried(ErrorKind.RATE_LIMITED, retry_after=7)
    assert decide_retry(RULE, limited, jitter=0.5) == RetryIn(7)


def test_full_jitter_takes_any_part_of_the_delay() -> None:
    rule = Retry(on=("connection",))
    lost = tried(ErrorKind.CONNECTION_LOST, number=2)
    assert decide_retry(rule, lost, jitter=0.0) == RetryIn(0.0)
    assert decide_retry(rule, lost, jitter=0.5) == RetryIn(0.2)


def test_the_delay_grows_by_its_factor_up_to_its_maximum() -> None:
    assert [backoff(RULE, number) for number in (1, 2, 3, 4, 5, 6, 2000)] == [
        *(0.2, 0.4, 0.8, 1.6, 3.2),
        *(5.0, 5.0),
    ]


@pytest.mark.parametrize(
    ("ending", "again", "runs"),
    [
        (failed(ErrorKind.CONNECT_TIMEOUT, Phase.CONNECTING, Effect.WRITE), True, False),
        (failed(ErrorKind.RESPONSE_TIMEOUT, Phase.SENT, Effect.WRITE), False, True),
        (failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.WRITE), False, False),
        (failed(ErrorKind.CONNECTION_LOST, Phase.SENT, Effect.WRITE), True, True),
        (refused(ErrorKind.RESPONSE_TIMEOUT, Effect.WRITE), True, True),
        (refused(ErrorKind.RESPONSE_TIMEOUT, Effect.WRITE), False, False),
        (succeeded(), True, False),
    ],
)
def test_a_server_may_still_run_an_attempt_that_was_given_up(
    ending: Ending, again: bool, runs: bool
) -> None:
    assert may_still_run(ending, again=again) is runs
