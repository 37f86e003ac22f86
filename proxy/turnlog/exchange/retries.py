"""The life of one call, without I/O: what to do next, told by what has happened.

A generator yields commands and is sent what came of each; `engine.http.runner` carries them out and knows
no policy. Tests step it by hand.
"""

from collections.abc import Callable, Generator

from msgspec import Struct

from turnlog.rules.policy import Policy
from turnlog.rules.retry import EndedAttempt, RetryIn, StopReason, decide_retry


class Forward(Struct, frozen=True):
    """Make attempt `number`; answer with how it ended. `hold` its answer back until then."""

    number: int
    hold: bool


class Wait(Struct, frozen=True):
    """Let `delay` seconds pass; answer with nothing."""

    delay: float


Command = Forward | Wait
Steps = Generator[Command, EndedAttempt | None, StopReason]


def exchange(policy: Policy, dice: Callable[[], float], *, repeatable: bool = True) -> Steps:
    """Yield what to do next; return why the last attempt's answer is the caller's.

    `dice` gives numbers in [0, 1). What is not `repeatable` as a message (its body is not held, or
    several calls came in one) is forwarded once.
    """
    rule = policy.retry
    number = 1
    while True:
        more = repeatable and rule is not None and number < rule.max_attempts
        tried = yield Forward(number, hold=more)
        assert tried is not None
        verdict = decide_retry(rule, tried, total=policy.timeout.total, dice=dice())
        if not isinstance(verdict, RetryIn):
            return verdict.reason
        if not repeatable:
            return StopReason.BODY
        yield Wait(verdict.delay)
        number += 1
