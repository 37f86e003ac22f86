"""The calls that are open right now, found again by what later messages say of them.

An answer is matched with its own HTTP exchange first. What is left comes here: cancellations,
answers on another stream of the same protocol session, further legs, the end of a task.
"""

from collections import OrderedDict
from typing import Final

from turnlog.core.commit import Commit

from .attempt import Attempt

DETACHED_LIFE: Final = 600 * 1_000_000_000
"""ns: how long a call whose stream ended waits for a resuming GET (no default is shorter)."""
_PARKED: Final = 65_536
"""Most parked calls held in memory; older ones are found through the store."""

Scope = tuple[str, str]
"""Upstream name, and the protocol session or connection within which JSON-RPC ids are unique."""


class OpenCalls:
    """Attempts without an outcome, and calls that wait for another leg."""

    def __init__(self) -> None:
        self._open: dict[tuple[Scope, str], list[Attempt]] = {}
        self._detached: dict[tuple[Scope, str], list[tuple[Attempt, int]]] = {}
        self._parked: OrderedDict[bytes, Attempt] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def add(self, scope: Scope, id_key: str, attempt: Attempt) -> None:
        """Take in an attempt that starts."""
        self._open.setdefault((scope, id_key), []).append(attempt)

    def has(self, scope: Scope, id_key: str) -> bool:
        """Tell whether a call with this id is under way (an id must not be reused before)."""
        return (scope, id_key) in self._open

    def of(self, scope: Scope) -> list[Attempt]:
        """Return the calls under way in a scope."""
        found = [attempts for (where, _), attempts in self._open.items() if where == scope]
        return [attempt for attempts in found for attempt in attempts]

    def remove(self, scope: Scope, id_key: str, attempt: Attempt) -> None:
        """Forget an attempt that ended."""
        _drop(self._open, (scope, id_key), attempt)

    def cancel(self, scope: Scope, id_key: str) -> None:
        """Note that the caller cancelled the newest call with this id."""
        if attempts := self._open.get((scope, id_key)):
            attempts[-1].cancelled = True

    def detach(self, scope: Scope, id_key: str, attempt: Attempt, now: int) -> None:
        """Keep a call open whose own stream ended: its answer may come on a resuming GET."""
        self._detached.setdefault((scope, id_key), []).append((attempt, now + DETACHED_LIFE))

    def claim(self, scope: Scope, id_key: str) -> Attempt | None:
        """Take the call that an answer on another stream belongs to: the newest whose own stream
        has ended, else the newest."""
        waiting = self._detached.get((scope, id_key))
        if not waiting:
            attempts = self._open.get((scope, id_key))
            attempt = attempts[-1] if attempts else None
            if attempt is not None:
                self.remove(scope, id_key, attempt)
            return attempt
        attempt, _ = waiting.pop()
        if not waiting:
            del self._detached[scope, id_key]
        self.remove(scope, id_key, attempt)
        return attempt

    def overdue(self, now: int) -> list[Attempt]:
        """Take the detached calls that nobody resumed in time."""
        late: list[Attempt] = []
        for key, waiting in list(self._detached.items()):
            late += [attempt for attempt, deadline in waiting if deadline <= now]
            kept = [(attempt, deadline) for attempt, deadline in waiting if deadline > now]
            if kept:
                self._detached[key] = kept
            else:
                del self._detached[key]
            for attempt in late:
                _drop(self._open, key, attempt)
        return late

    def everything_detached(self) -> list[Attempt]:
        """Take all detached calls; the process ends."""
        return self.overdue(1 << 63)

    def park(self, links: tuple[bytes, ...], attempt: Attempt) -> None:
        """Remember a call that waits for another leg, under each key that leg may bring."""
        for link in links:
            self._parked[link] = attempt
            self._parked.move_to_end(link)
        while len(self._parked) > _PARKED:
            self._parked.popitem(last=False)

    def parked(self, links: tuple[bytes, ...]) -> Attempt | None:
        """Return the parked call that one of the keys names, the first that does."""
        return next((self._parked[link] for link in links if link in self._parked), None)

    def unpark(self, links: tuple[bytes, ...]) -> None:
        """Forget keys whose call went on."""
        for link in links:
            self._parked.pop(link, None)


class Settled:
    """A ticket for a commit that has long been on disk."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit

    @property
    def placed(self) -> Commit:
        """The commit."""
        return self._commit

    @property
    def more(self) -> None:
        """Nothing was appended with it."""
        return

    async def done(self) -> Commit:
        """Return the commit at once."""
        return self._commit


def _drop(
    table: dict[tuple[Scope, str], list[Attempt]], key: tuple[Scope, str], attempt: Attempt
) -> None:
    attempts = table.get(key)
    if attempts and attempt in attempts:
        attempts.remove(attempt)
        if not attempts:
            del table[key]
