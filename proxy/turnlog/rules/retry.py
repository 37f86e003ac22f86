"""Decide what follows a failed attempt: another one, or the error to the caller.

Pure. The clock and the dice belong to the caller (`engine.http.runner`).
"""

from enum import StrEnum
from math import inf

from msgspec import Struct

from turnlog.core.classify import UNSENT, Ending
from turnlog.core.kinds import Effect, ErrorKind, Phase, RetryClass

from .model import Jitter, Retry

_LONGEST_POWER = 63
_DONE = Phase.DONE
_GIVEN_UP = frozenset(
    {ErrorKind.RESPONSE_TIMEOUT, ErrorKind.PROGRESS_TIMEOUT, ErrorKind.DEADLINE_EXHAUSTED}
)
_BROKEN = frozenset({ErrorKind.CONNECTION_LOST, ErrorKind.MALFORMED_RESULT})


class StopReason(StrEnum):
    """Why there is no other attempt."""

    ANSWERED = "answered"
    """It did not fail."""
    NO_RULE = "no_rule"
    """No rule names this failure."""
    NOT_REPEATABLE = "not_repeatable"
    """Its effect could happen twice, or it would fail again."""
    ATTEMPTS = "attempts"
    """As many were made as the rule allows."""
    BUDGET = "budget"
    """The next one would start too late."""
    TOTAL = "total"
    """The next one would start after the call's own end."""
    BODY = "body"
    """Its request cannot be sent again: the body is not held, or has no id of its own."""
    RELAYED = "relayed"
    """Some of the answer has left, or is too large to be held."""
    CANCELLED = "cancelled"
    """The caller took the call back."""
    STOPPING = "stopping"
    """The proxy stops."""
    QUEUE = "queue"
    """The intent of the next one was not on disk in time."""
    QUOTA = "quota"
    """Its server has had as many retries as its quota allows."""
    UNRECORDED = "unrecorded"
    """The next one cannot be recorded."""


class EndedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that has ended, as far as a rule looks at it. Times are in seconds."""

    ending: Ending
    effect: Effect
    keyed: bool = False
    """Whether it had an idempotency key that the server honours."""
    number: int
    """The first one is 1."""
    elapsed: float
    """Since the first one began."""
    retry_after: float | None = None
    """What the server asked to wait."""


class RetryIn(Struct, frozen=True):
    """Try again after `delay` seconds."""

    delay: float


class NoRetry(Struct, frozen=True):
    """Let the caller have what there is."""

    reason: StopReason


def decide_retry(
    rule: Retry | None, tried: EndedAttempt, *, total: float = inf, dice: float
) -> RetryIn | NoRetry:
    """Return what follows an attempt. `dice` is a number in [0, 1), `total` the call's own limit.

    A wait that the server asks for counts from now and is never shortened: where it does not fit,
    the refusal is the caller's at once.
    """
    if not tried.ending.error:
        return NoRetry(StopReason.ANSWERED)
    if rule is None or {tried.ending.error, tried.ending.kind}.isdisjoint(rule.on):
        return NoRetry(StopReason.NO_RULE)
    if not is_repeatable(tried.ending, tried.effect, keyed=tried.keyed):
        return NoRetry(StopReason.NOT_REPEATABLE)
    if tried.number >= rule.max_attempts:
        return NoRetry(StopReason.ATTEMPTS)
    spread = dice if rule.jitter is Jitter.FULL else 1.0
    delay = max(backoff(rule, tried.number) * spread, tried.retry_after or 0.0)
    if tried.elapsed + delay > rule.budget:
        return NoRetry(StopReason.BUDGET)
    if tried.elapsed + delay >= total:
        return NoRetry(StopReason.TOTAL)
    return RetryIn(delay)


def is_repeatable(ending: Ending, effect: Effect, *, keyed: bool) -> bool:
    """Tell whether a failed attempt may be made again without its effect happening twice.

    `keyed` tells whether it had an idempotency key that the server honours.
    """
    match ending.retry:
        case RetryClass.SAFE:
            return True
        case RetryClass.IF_IDEMPOTENT:
            return keyed or effect is Effect.IDEMPOTENT_WRITE
        case RetryClass.UNSAFE:
            return keyed
        case _:
            return False


def may_still_run(ending: Ending, *, again: bool) -> bool:
    """Tell whether a server may still work on an attempt that has ended so, so that it is to be taken
    back. `again` tells whether another one follows: only then what others did counts.
    """
    if ending.phase in UNSENT:
        return False
    if ending.phase is _DONE:
        # A gateway that waited in vain answers in the server's place (504, 408).
        return again and ending.kind == ErrorKind.RESPONSE_TIMEOUT
    return ending.kind in _GIVEN_UP or (again and ending.kind in _BROKEN)


def backoff(rule: Retry, number: int) -> float:
    """Return the longest wait after attempt `number`, in seconds: exponential, capped.

    Full jitter then takes any part of it, which spreads callers best (Brooker, "Exponential Backoff
    And Jitter", AWS Architecture Blog, 2015).
    """
    power = min(number - 1, _LONGEST_POWER)
    return min(rule.base_interval * rule.factor**power, rule.max_interval)
