"""Sessions in which duplicates of a call cannot be found."""

from collections import OrderedDict
from collections.abc import Hashable
from enum import StrEnum
from typing import Final

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.kinds import Rung

_CALLERS: Final = 1024
_SESSIONS: Final = 64  # remembered of one caller
_SINGLE: Final = 3
"""Sessions in a row with one call each, after which a client is taken to open one for each call."""


class CoverageGap(StrEnum):
    """Why a duplicate would not be found."""

    UNNAMED = "unnamed"
    """The session has no name: it is guessed from credential and client."""
    PER_CALL = "per_call"
    """The client opens a protocol session for each call."""
    POOLED = "pooled"
    """The client uses several protocol sessions at once."""
    AMBIGUOUS = "ambiguous"
    """Several sessions of the client were lost, or begun, at once: none replaces another."""


class Coverage:
    """Watches the sessions of calls with a known effect; reports each gap once per caller."""

    def __init__(self) -> None:
        self._sessions: BoundedDict[Hashable, OrderedDict[Hashable, int]] = BoundedDict(_CALLERS)
        """By caller and session: the number of calls; the newest session is last."""
        self._told: BoundedDict[tuple[Hashable, CoverageGap], None] = BoundedDict(_CALLERS)

    def on_call(self, caller: Hashable, session: Hashable, rung: Rung) -> CoverageGap | None:
        """Count a call without an idempotency key; return a gap to report, if any."""
        match rung:
            case Rung.IMPLICIT:
                return self._once(caller, CoverageGap.UNNAMED)
            case Rung.TRANSPORT:
                gap = self._gap(caller, session)
                return self._once(caller, gap) if gap is not None else None
            case _:
                return None

    def _gap(self, caller: Hashable, session: Hashable) -> CoverageGap | None:
        sessions = self._sessions.setdefault(caller, OrderedDict())
        self._sessions.move_to_end(caller)
        is_new = session not in sessions
        returns = not is_new and next(reversed(sessions)) != session
        sessions[session] = sessions.get(session, 0) + 1
        if returns:
            return CoverageGap.POOLED
        if len(sessions) > _SESSIONS:
            sessions.popitem(last=False)
        latest = list(sessions.values())[-_SINGLE:]
        return CoverageGap.PER_CALL if is_new and latest == [1] * _SINGLE else None

    def _once(self, whose: Hashable, gap: CoverageGap) -> CoverageGap | None:
        if (whose, gap) in self._told:
            return None
        self._told[whose, gap] = None
        return gap
