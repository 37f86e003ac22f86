"""A quota of retries: a token bucket that calls fill, so that retries stay a share of them.

As Finagle's retry budget has it: what a server cannot do is not asked for ever more often. Pure:
times are seconds on any clock that never goes back.
"""

from typing import Annotated

from msgspec import Meta, Struct


class RetryQuota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many further attempts there may be beside the calls of a server."""

    ratio: Annotated[float, Meta(ge=0, le=10)] = 0.2
    """So many for each call."""
    min_per_second: Annotated[float, Meta(ge=0, le=10_000)] = 1.0
    """So many besides, for servers with few calls."""
    burst: Annotated[float, Meta(ge=1, le=100_000)] = 10.0
    """Most that are saved up; that many there are at the start."""


class RetryBucket:
    """What is left of one server's."""

    def __init__(self, settings: RetryQuota, now: float) -> None:
        self._settings = settings
        self._left = settings.burst
        self._at = now

    def on_call(self, now: float) -> None:
        """Count a call."""
        self._fill(now, self._settings.ratio)

    def take(self, now: float) -> bool:
        """Take one attempt out; false where there is none."""
        self._fill(now, 0.0)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _fill(self, now: float, more: float) -> None:
        more += (now - self._at) * self._settings.min_per_second
        self._at = now
        self._left = min(self._left + more, self._settings.burst)
