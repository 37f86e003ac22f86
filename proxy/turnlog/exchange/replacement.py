"""Protocol sessions that replace a lost one.

A client whose server failed, or forgot its session, begins a new one by `initialize` and sends its
call again. The new session replaces the old one only if it cannot be another client's.
"""

from collections.abc import Hashable
from enum import StrEnum
from typing import Final

from msgspec import Struct

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.kinds import ErrorKind

REPLACE_WITHIN: Final = 60.0
"""s after a failure within which the new session must begin."""
SESSION_BREAKS: Final = frozenset(
    {
        ErrorKind.SESSION_LOST,
        ErrorKind.CONNECTION_LOST,
        ErrorKind.CONNECT_FAILED,
        ErrorKind.UPSTREAM_UNAVAILABLE,
    }
)
"""Kinds of errors after which the session may be lost."""
_CALLERS: Final = 1024
_SESSIONS: Final = 4096
_CHAIN: Final = 8  # of sessions that replace each other


class SessionStart(StrEnum):
    """Whether a new session replaces a lost one."""

    NEW = "new"
    REPLACES = "replaces"
    AMBIGUOUS = "ambiguous"
    """Several sessions were lost, or begun, at that time: it is unknown which replaces which."""


class _CallerSessions(Struct):
    lost: dict[str, float]
    """Sessions that may be lost, with the time of the failure."""
    newcomers: dict[str, float]


class Replacements:
    """The sessions that replace others. Times are seconds on one clock."""

    def __init__(self) -> None:
        self._callers: BoundedDict[Hashable, _CallerSessions] = BoundedDict(_CALLERS)
        self.lost: BoundedDict[str, Hashable] = BoundedDict(_SESSIONS)
        """The caller of each session that may be lost."""
        self._before: BoundedDict[str, str] = BoundedDict(_SESSIONS)
        """The session that each new one replaces."""

    def on_broken(self, caller: Hashable, session: str, now: float) -> None:
        """Record that a call of a session ended in one of `SESSION_BREAKS`."""
        known = self._callers.setdefault(caller, _CallerSessions({}, {}))
        self._callers.move_to_end(caller)
        if (before := self._before.get(session)) is not None:
            # The new session failed as well: now it is the one to be replaced.
            known.lost.pop(before, None)
            known.newcomers.pop(session, None)
        _forget(known, now)
        known.lost[session] = now
        self.lost[session] = caller

    def on_used(self, session: str) -> None:
        """Record that a session is used: it is not lost, and nothing replaces it."""
        if session not in self.lost:
            return
        known = self._callers.get(self.lost.pop(session))
        if known is not None and known.lost.pop(session, None) is not None:
            self._unlink(session)

    def on_initialized(self, caller: Hashable, session: str, now: float) -> SessionStart:
        """Record a new session of a caller; return whether it replaces another."""
        known = self._callers.get(caller)
        if known is None:
            return SessionStart.NEW
        _forget(known, now)
        if not known.lost:
            return SessionStart.NEW
        known.newcomers[session] = now
        if len(known.lost) > 1 or len(known.newcomers) > 1:
            for lost in known.lost:
                self._unlink(lost)
            return SessionStart.AMBIGUOUS
        self._before[session] = next(iter(known.lost))
        return SessionStart.REPLACES

    def predecessors(self, session: str) -> list[str]:
        """Return the sessions that this one replaces, the latest first."""
        found: list[str] = []
        while (session := self._before.get(session, "")) and len(found) < _CHAIN:
            found.append(session)
        return found

    def _unlink(self, lost: str) -> None:
        for newcomer in [one for one, before in self._before.items() if before == lost]:
            del self._before[newcomer]


def _forget(known: _CallerSessions, now: float) -> None:
    """Drop sessions that were lost too long ago."""
    known.lost = {one: at for one, at in known.lost.items() if now - at <= REPLACE_WITHIN}
    since = min(known.lost.values(), default=now)
    known.newcomers = {one: at for one, at in known.newcomers.items() if at >= since}
