"""The attempts of one call without I/O: a generator of commands, which is sent their results.

`engine.http.runner` carries the commands out.
"""

from collections.abc import Callable, Generator

from msgspec import Struct

from turnlog.rules.policy import Policy
from turnlog.rules.retry import EndedAttempt, RetryIn, StopReason, decide_retry


class Forward(Struct, frozen=True):
    """Make attempt `number` and send its ending. `hold` back its answer until then."""

    number: int
    hold: bool


class Wait(Struct, frozen=True):
    """Wait for `delay` seconds."""

    delay: float


Command = Forward | Wait
Steps = Generator[Command, EndedAttempt | None, StopReason]


def exchange(policy: Policy, dice: Callable[[], float], *, repeatable: bool = True) -> Steps:
    """Yield the next command; return why there is no further attempt.

    `dice` returns random numbers in [0, 1). A message that is not `repeatable` (its body is not
    kept, or it holds several calls) is forwarded once.
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
