"""Retries: whether a failed attempt is repeated, after which delay, and the quota per server.

Times are seconds on any monotonic clock.
"""

from enum import StrEnum
from math import inf
from typing import Annotated

from msgspec import Meta, Struct

from turnlog.core.classify import UNSENT, Ending
from turnlog.core.kinds import Effect, ErrorKind, Phase, RetryClass

from .model import Jitter, Retry

_LONGEST_POWER = 63
_GIVEN_UP = frozenset(
    {ErrorKind.RESPONSE_TIMEOUT, ErrorKind.PROGRESS_TIMEOUT, ErrorKind.DEADLINE_EXHAUSTED}
)
_BROKEN = frozenset({ErrorKind.CONNECTION_LOST, ErrorKind.MALFORMED_RESULT})


class StopReason(StrEnum):
    """Why there is no further attempt."""

    ANSWERED = "answered"
    """The attempt succeeded."""
    NO_RULE = "no_rule"
    """No rule names this failure."""
    NOT_REPEATABLE = "not_repeatable"
    """The effect could happen twice, or it would fail again."""
    ATTEMPTS = "attempts"
    """The rule's number of attempts is reached."""
    BUDGET = "budget"
    """The next attempt would start after the rule's budget."""
    TOTAL = "total"
    """The next attempt would start after the total timeout of the call."""
    BODY = "body"
    """The request cannot be sent again: its body was not kept, or is shared with other calls."""
    RELAYED = "relayed"
    """A part of the answer was passed on, or it is too large to be held back."""
    CANCELLED = "cancelled"
    """The caller cancelled the call."""
    STOPPING = "stopping"
    """The proxy is stopping."""
    QUEUE = "queue"
    """The intent of the next attempt was not on disk in time."""
    QUOTA = "quota"
    """The server's retry quota is used up."""
    UNRECORDED = "unrecorded"
    """The next attempt cannot be recorded."""


class EndedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that ended, as input of a retry rule."""

    ending: Ending
    effect: Effect
    keyed: bool = False
    """Whether it had an idempotency key that the server honours."""
    number: int
    """Number of the attempt, from 1."""
    elapsed: float
    """Time since the first attempt began."""
    retry_after: float | None = None
    """Delay that the server asked for."""


class RetryIn(Struct, frozen=True):
    """Repeat the attempt after `delay` seconds."""

    delay: float


class NoRetry(Struct, frozen=True):
    """Do not repeat the attempt."""

    reason: StopReason


def decide_retry(
    rule: Retry | None, attempt: EndedAttempt, *, total: float = inf, jitter: float
) -> RetryIn | NoRetry:
    """Return whether and when to repeat an attempt.

    `jitter` is a random number in [0, 1), `total` the call's total timeout.
    """
    if not attempt.ending.error:
        return NoRetry(StopReason.ANSWERED)
    if rule is None or {attempt.ending.error, attempt.ending.kind}.isdisjoint(rule.on):
        return NoRetry(StopReason.NO_RULE)
    if not is_repeatable(attempt.ending, attempt.effect, keyed=attempt.keyed):
        return NoRetry(StopReason.NOT_REPEATABLE)
    if attempt.number >= rule.max_attempts:
        return NoRetry(StopReason.ATTEMPTS)
    spread = jitter if rule.jitter is Jitter.FULL else 1.0
    # A delay that the server asks for is never shortened: if it does not fit, the call ends now.
    delay = max(backoff(rule, attempt.number) * spread, attempt.retry_after or 0.0)
    if attempt.elapsed + delay > rule.budget:
        return NoRetry(StopReason.BUDGET)
    if attempt.elapsed + delay >= total:
        return NoRetry(StopReason.TOTAL)
    return RetryIn(delay)


def is_repeatable(ending: Ending, effect: Effect, *, keyed: bool) -> bool:
    """Return whether an attempt can be repeated without its effect happening twice.

    `keyed` is whether it had an idempotency key that the server honours.
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
    """Return whether the server may still be working on an attempt that ended, so that it is cancelled.

    `again` is whether another attempt follows.
    """
    if ending.phase in UNSENT:
        return False
    if ending.phase is Phase.DONE:
        # A gateway that timed out answers in place of the server (504, 408).
        return again and ending.kind == ErrorKind.RESPONSE_TIMEOUT
    return ending.kind in _GIVEN_UP or (again and ending.kind in _BROKEN)


def backoff(rule: Retry, number: int) -> float:
    """Return the longest delay after attempt `number`: exponential with a maximum."""
    # Full jitter takes a random part of it, which spreads callers best (Brooker, "Exponential Backoff
    # And Jitter", AWS Architecture Blog, 2015).
    power = min(number - 1, _LONGEST_POWER)
    return min(rule.base_interval * rule.factor**power, rule.max_interval)


class RetryQuota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of retries allowed per server."""

    ratio: Annotated[float, Meta(ge=0, le=10)] = 0.2
    """Retries for each call."""
    min_per_second: Annotated[float, Meta(ge=0, le=10_000)] = 1.0
    """Retries for each second, for servers with few calls."""
    burst: Annotated[float, Meta(ge=1, le=100_000)] = 10.0
    """Largest number that is saved up, and the number at the start."""


class RetryBucket:
    """The retry quota of one server: a token bucket that calls fill, as Finagle's retry budget."""

    def __init__(self, settings: RetryQuota, now: float) -> None:
        self._settings = settings
        self._left = settings.burst
        self._at = now

    def on_call(self, now: float) -> None:
        """Add the share of a call."""
        self._fill(now, self._settings.ratio)

    def has_left(self, now: float) -> bool:
        """Return whether a retry is left."""
        self._fill(now, 0.0)
        return self._left >= 1

    def spend(self) -> None:
        """Use up one retry."""
        self._left -= 1

    def _fill(self, now: float, more: float) -> None:
        more += (now - self._at) * self._settings.min_per_second
        self._at = now
        self._left = min(self._left + more, self._settings.burst)
