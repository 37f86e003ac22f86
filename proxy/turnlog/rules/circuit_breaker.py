"""A circuit breaker: no attempts are sent for a while to a server that keeps failing.

Closed, it lets every attempt pass; open, none; half open, one, whose ending closes or opens it.
Times are seconds on any monotonic clock.
"""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from turnlog.core.classify import UNSENT, Ending
from turnlog.core.kinds import ErrorKind, Phase
from turnlog.core.text.units import Duration

_FAILURES: Final = frozenset(
    {
        ErrorKind.CONNECT_TIMEOUT,
        ErrorKind.CONNECT_FAILED,
        ErrorKind.CONNECTION_LOST,
        ErrorKind.RESPONSE_TIMEOUT,
        ErrorKind.PROGRESS_TIMEOUT,
        ErrorKind.DEADLINE_EXHAUSTED,
        ErrorKind.UPSTREAM_UNAVAILABLE,
    }
)
"""Failures of the server itself; an answer of a tool is never one."""
_NEUTRAL: Final = frozenset({ErrorKind.CANCELLED_BY_CALLER, ErrorKind.OUTCOME_UNKNOWN})
"""Endings that say nothing about the server."""


class BreakerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a circuit opens, and for how long."""

    failures: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Failures in a row that open the circuit."""
    within: Duration = 30.0
    """Time for which a failure counts."""
    cool_down: Duration = 30.0
    """Time for which the circuit stays open."""


class CircuitState(StrEnum):
    """The state of a circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitPass(Struct, frozen=True):
    """An attempt that may be sent. `probes` is whether its ending closes or opens the circuit."""

    probes: bool


class CircuitBreaker:
    """The circuit breaker of one server."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._failed_at: list[float] = []
        self._until = 0.0
        self._probing = False
        self.state = CircuitState.CLOSED

    def admit(self, now: float) -> CircuitPass | None:
        """Return the pass of an attempt; `None` if it must not be sent."""
        if self.state is CircuitState.OPEN and now >= self._until:
            self.state = CircuitState.HALF_OPEN
        match self.state:
            case CircuitState.CLOSED:
                return CircuitPass(probes=False)
            case CircuitState.HALF_OPEN if not self._probing:
                self._probing = True
                return CircuitPass(probes=True)
            case _:
                return None

    def seconds_left(self, now: float) -> float:
        """Return for how many seconds the circuit stays open."""
        return max(self._until - now, 0.0)

    def on_ended(self, passed: CircuitPass, ending: Ending | None, now: float) -> None:
        """Count the ending of an attempt that passed; `None` if it is not known."""
        good = _is_success(ending)
        if passed.probes:
            self._probing = False
            if good is not None:
                self._decide(good, now)
        elif self.state is CircuitState.CLOSED and good is not None:
            self._count(good, now)

    def _decide(self, good: bool, now: float) -> None:
        if good:
            self._failed_at.clear()
            self.state = CircuitState.CLOSED
        else:
            self._open(now)

    def _count(self, good: bool, now: float) -> None:
        if good:
            self._failed_at.clear()
            return
        since = now - self._settings.within
        self._failed_at = [at for at in self._failed_at if at > since] + [now]
        if len(self._failed_at) >= self._settings.failures:
            self._open(now)

    def _open(self, now: float) -> None:
        self.state = CircuitState.OPEN
        self._until = now + self._settings.cool_down


def _is_success(ending: Ending | None) -> bool | None:
    """Return whether an ending shows that its server works; `None` if it shows neither."""
    if ending is None or ending.phase is Phase.QUEUED or ending.kind in _NEUTRAL:
        return None
    if ending.kind in _FAILURES:
        return False
    return None if ending.phase in UNSENT else True
