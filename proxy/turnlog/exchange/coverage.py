"""Where never-twice cannot hold: a repeated call is not found again (semantics, section 5). Pure."""

from collections import OrderedDict
from collections.abc import Hashable
from enum import StrEnum
from typing import Final

from turnlog.core.kinds import Rung

_CALLERS: Final = 1024
_SESSIONS: Final = 64
"""Sessions of one caller that are remembered."""
_SINGLE: Final = 3
"""So many sessions in a row with one call each are a client that opens one for each call."""


class CoverageGap(StrEnum):
    """Why a repeated call would not be found."""

    UNNAMED = "unnamed"
    """Its session has no name: it is guessed from credential and client."""
    PER_CALL = "per_call"
    """Its client opens a protocol session for each call."""
    POOLED = "pooled"
    """Its client uses several protocol sessions at once."""
    AMBIGUOUS = "ambiguous"
    """Several of its client's sessions were lost, or begun, at once: none is taken for another's."""


class Coverage:
    """The sessions of calls whose effect is named; tells once of each caller what is wrong with them."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Hashable, OrderedDict[Hashable, int]] = OrderedDict()
        """By caller, calls by session, the newest session at the end."""
        self._told: OrderedDict[tuple[Hashable, CoverageGap], None] = OrderedDict()

    def on_call(self, caller: Hashable, session: Hashable, rung: Rung) -> CoverageGap | None:
        """Take in a call without a key; return what has to be told of its session, if anything."""
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
        if len(self._sessions) > _CALLERS:
            self._sessions.popitem(last=False)
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
        if len(self._told) > _CALLERS:
            self._told.popitem(last=False)
        return gap
