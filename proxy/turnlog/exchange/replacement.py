"""Which protocol session goes on in another one (semantics, section 2, `session_lost`). Pure.

A client whose server broke off, or no longer knows its session, begins a new one by `initialize`
and sends its call again. It counts as the same client only where it cannot be another one.
"""

from collections import OrderedDict
from collections.abc import Hashable
from enum import StrEnum
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import ErrorKind

REPLACE_WITHIN: Final = 60.0
"""s after the break within which the newcomer has to come."""
SESSION_BREAKS: Final = frozenset(
    {
        ErrorKind.SESSION_LOST,
        ErrorKind.CONNECTION_LOST,
        ErrorKind.CONNECT_FAILED,
        ErrorKind.UPSTREAM_UNAVAILABLE,
    }
)
"""Endings of a call after which its session may be lost."""
_CALLERS: Final = 1024
_SESSIONS: Final = 4096
_CHAIN: Final = 8
"""Sessions one after the other that are followed back."""


class SessionStart(StrEnum):
    """What a new session is."""

    NEW = "new"
    REPLACES = "replaces"
    """It goes on where the one that was lost ended."""
    AMBIGUOUS = "ambiguous"
    """Several sessions were lost, or begun, at that time: nobody knows which follows which."""


class _CallerSessions(Struct):
    lost: dict[str, float]
    """Sessions that may be lost, with when they broke."""
    newcomers: dict[str, float]


class Replacements:
    """The sessions that replace others. Times are in seconds, on one clock."""

    def __init__(self) -> None:
        self._callers: OrderedDict[Hashable, _CallerSessions] = OrderedDict()
        self._lost: OrderedDict[str, Hashable] = OrderedDict()
        """Whose the sessions are that may be lost."""
        self._before: OrderedDict[str, str] = OrderedDict()
        """The session that each of these replaces."""

    def on_broken(self, caller: Hashable, session: str, now: float) -> None:
        """Take in that a call of a session ended in one of the `BREAKS`."""
        known = self._callers.setdefault(caller, _CallerSessions({}, {}))
        self._callers.move_to_end(caller)
        if len(self._callers) > _CALLERS:
            self._callers.popitem(last=False)
        if (before := self._before.get(session)) is not None:
            # The newcomer broke as well: now it is the one to be replaced.
            known.lost.pop(before, None)
            known.newcomers.pop(session, None)
        _forget(known, now)
        known.lost[session] = now
        self._lost[session] = caller
        if len(self._lost) > _SESSIONS:
            self._lost.popitem(last=False)

    def on_used(self, session: str) -> None:
        """Take in that a session is used: it is not lost, whatever was taken for its successor."""
        if session not in self._lost:
            return
        known = self._callers.get(self._lost.pop(session))
        if known is not None and known.lost.pop(session, None) is not None:
            self._unlink(session)

    def on_initialized(self, caller: Hashable, session: str, now: float) -> SessionStart:
        """Take in that a caller has begun a session by `initialize`."""
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
        if len(self._before) > _SESSIONS:
            self._before.popitem(last=False)
        return SessionStart.REPLACES

    def predecessors(self, session: str) -> list[str]:
        """Return the sessions that this one goes on with, the latest first."""
        found: list[str] = []
        while (session := self._before.get(session, "")) and len(found) < _CHAIN:
            found.append(session)
        return found

    def _unlink(self, lost: str) -> None:
        for newcomer in [one for one, before in self._before.items() if before == lost]:
            del self._before[newcomer]


def _forget(known: _CallerSessions, now: float) -> None:
    """Forget what is too long ago."""
    known.lost = {one: at for one, at in known.lost.items() if now - at <= REPLACE_WITHIN}
    since = min(known.lost.values(), default=now)
    known.newcomers = {one: at for one, at in known.newcomers.items() if at >= since}
