"""A circuit breaker: a server that fails again and again is left alone for a while.

Closed, it lets everything pass; open, nothing; half open, one attempt that decides which of both it
becomes. Pure: times are seconds on any clock that never goes back.
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
"""What says that the server itself is in trouble; an answer of a tool never does."""
_NEUTRAL: Final = frozenset({ErrorKind.CANCELLED_BY_CALLER, ErrorKind.OUTCOME_UNKNOWN})
"""What says nothing of the server."""


class BreakerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a server is left alone. Times are in seconds."""

    failures: Annotated[int, Meta(ge=1, le=1000)] = 5
    """So many in a row open the circuit."""
    within: Duration = 30.0
    """They count for so long."""
    cool_down: Duration = 30.0
    """For how long it stays open."""


class CircuitState(StrEnum):
    """What a circuit lets pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitPass(Struct, frozen=True):
    """An attempt may go. `probes` tells whether all depends on it."""

    probes: bool


class CircuitBreaker:
    """The circuit of one server."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._failed_at: list[float] = []
        self._until = 0.0
        self._probing = False
        self.state = CircuitState.CLOSED

    def admit(self, now: float) -> CircuitPass | None:
        """Let an attempt pass; `None` where it may not."""
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
        """Return for how many seconds it stays open."""
        return max(self._until - now, 0.0)

    def on_ended(self, passed: CircuitPass, ending: Ending | None, now: float) -> None:
        """Learn how an attempt that passed has ended; `None` where nobody knows."""
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
    """Tell whether an ending speaks for its server, or against it; `None` where it does neither."""
    if ending is None or ending.phase is Phase.QUEUED or ending.kind in _NEUTRAL:
        return None
    if ending.kind in _FAILURES:
        return False
    return None if ending.phase in UNSENT else True
