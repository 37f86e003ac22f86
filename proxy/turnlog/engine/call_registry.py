"""The open calls of all exchanges, for messages that come in another exchange than the call.

These are cancellations, answers on another stream of the same protocol session, further legs, and the
end of a task.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from turnlog.core.bounded_dict import BoundedDict
from turnlog.exchange.events import Cancelled
from turnlog.record.attempt import Attempt, Driver
from turnlog.record.deadlines import Deadlines

DETACHED_LIFE: Final = 600 * 1_000_000_000
"""ns: how long a call whose stream ended waits for a resuming GET if no rule has a limit."""
_PARKED: Final = 65_536
"""Most parked calls held in memory; older ones are found through the store."""

Scope = tuple[str, str]
"""Upstream name, and the protocol session or connection within which JSON-RPC ids are unique."""


class CallRegistry:
    """Attempts without an outcome, and calls that wait for another leg."""

    def __init__(self) -> None:
        self._open: dict[tuple[Scope, str], list[Attempt]] = {}
        """By scope and key of the id: a client that reuses an id has several."""
        self._detached: dict[Attempt, tuple[Scope, str, int]] = {}
        """Calls whose own stream has ended, oldest first, with the key of the id and the deadline."""
        self._parked: BoundedDict[bytes, Attempt] = BoundedDict(_PARKED)
        self._resting: dict[tuple[Scope, str], Attempt] = {}
        self._joining: dict[tuple[Scope, str], list[tuple[str, Driver]]] = {}
        """Calls that wait for an earlier call, with `Attempt.kin`; they were not sent."""
        self._asked: BoundedDict[tuple[Scope, str], tuple[str, list[Deadlines]]] = BoundedDict(
            _PARKED
        )
        """Open requests of servers: the client (`Attempt.kin`), and the limits paused until the answer."""

    def add(self, scope: Scope, id_key: str, attempt: Attempt) -> None:
        """Add an attempt that starts."""
        self._open.setdefault((scope, id_key), []).append(attempt)

    def has(self, scope: Scope, id_key: str) -> bool:
        """Return whether a call with this id is open."""
        return (scope, id_key) in self._open

    def of(self, scope: Scope) -> list[Attempt]:
        """Return the open calls of a scope."""
        return [each for (its, _), open_ in self._open.items() if its == scope for each in open_]

    def remove(self, scope: Scope, id_key: str, attempt: Attempt) -> None:
        """Forget an attempt that ended."""
        attempts = self._open.get((scope, id_key))
        if attempts is not None and attempt in attempts:
            attempts.remove(attempt)
            if not attempts:
                del self._open[scope, id_key]

    @contextmanager
    def joining(self, scope: Scope, id_key: str, kin: str, call: Driver) -> Generator[None]:
        """Register a call that waits for an earlier one, within the block."""
        waiting = self._joining.setdefault((scope, id_key), [])
        waiting.append((kin, call))
        try:
            yield
        finally:
            waiting.remove((kin, call))
            if not waiting:
                del self._joining[scope, id_key]

    def leave(self, scope: Scope, id_key: str, kin: str = "") -> bool:
        """Cancel the newest call with this id that waits for an earlier one; return whether there is one.

        On another connection (see `cancel`) it is the only such call of the same client.
        """
        waiting = self._joining.get((scope, id_key), ())
        if not waiting and kin and not self._named(scope, id_key):
            waiting = [
                each
                for (_, its), calls in self._joining.items()
                for each in calls
                if its == id_key and each[0] == kin
            ]
            waiting = waiting if len(waiting) == 1 else ()
        if waiting:
            waiting[-1][1].feed(Cancelled())
        return bool(waiting)

    def is_answered(self, scope: Scope, id_key: str, kin: str = "") -> bool:
        """Return whether the newest call with this id runs on although its caller has an answer."""
        # A cancel for it comes too late (MCP, cancellation) and must not end it.
        found = self._meant_by(scope, id_key, kin)
        return bool(found) and found[0].is_answered

    def cancel(self, scope: Scope, id_key: str, kin: str = "") -> bytes | None:
        """Cancel the newest call with this id; return its id at the server, empty if it is the caller's.

        `None` if there is no such call. A client without a protocol session sends its cancel on another
        connection: then it is for the only open call of the same client (`kin`) with that id.
        """
        found = self._meant_by(scope, id_key, kin)
        for attempt in found:
            if attempt.driver is not None:
                attempt.driver.feed(Cancelled())
        return found[-1].wire_id if found else None

    def _meant_by(self, scope: Scope, id_key: str, kin: str) -> list[Attempt]:
        """Return the attempts of the call that a cancel is for, the newest first."""
        return self._named(scope, id_key) or self._of_kin(kin, id_key)

    def _named(self, scope: Scope, id_key: str) -> list[Attempt]:
        """Return the newest attempt with this id; last comes the one that the server knows."""
        attempts = self._open.get((scope, id_key)) or [
            attempt for attempt in self.of(scope) if attempt.caller_key == id_key
        ]
        # Until the next attempt is sent, the server knows the call by the attempt before.
        resting = self._resting.get((scope, id_key))
        return [*attempts[-1:], resting] if resting is not None else attempts[-1:]

    def _of_kin(self, kin: str, id_key: str) -> list[Attempt]:
        """Return the same of a client's only call with this id, on whatever connection."""
        if not kin:
            return []
        everywhere = [attempt for attempts in self._open.values() for attempt in attempts]
        everywhere += self._resting.values()
        found = [a for a in everywhere if a.kin == kin and a.caller_key == id_key]
        return found if len({attempt.ask.call for attempt in found}) == 1 else []

    async def resume(self, scope: Scope, event_id: str) -> Attempt | None:
        """Return the call whose stream goes on behind an event; a guarded one that runs on alone is
        left to the stream to come."""
        for attempt in self.of(scope):
            if event_id in (attempt.event_ids or ()):
                if attempt.driver is not None:
                    await attempt.driver.resumed()
                return attempt
        return None

    @contextmanager
    def resting(self, scope: Scope, attempt: Attempt) -> Generator[None]:
        """Note within the block that a call's next attempt has not left: its caller may cancel meanwhile."""
        key = (scope, attempt.caller_key)
        self._resting[key] = attempt
        try:
            yield
        finally:
            self._resting.pop(key, None)

    def spellings(self, scope: Scope) -> dict[bytes, bytes]:
        """Return the ids of later attempts in a scope, and those the callers gave."""
        return {a.wire_id: a.caller_id for a in self.of(scope) if a.wire_id}

    def on_server_request(self, scope: Scope, id_key: str, attempts: list[Attempt]) -> None:
        """Note that the server has asked the caller something: limits pause until it answers."""
        waiting = [a.deadlines for a in attempts if a.deadlines is not None]
        for deadlines in waiting:
            deadlines.on_server_request(id_key)
        if waiting:
            self._asked[scope, id_key] = (attempts[0].kin, waiting)

    def on_server_request_settled(self, scope: Scope, id_key: str, kin: str = "") -> None:
        """Resume the time limits that wait for a request of the server: it was answered or cancelled.

        As with `cancel`, an answer on another connection is for the only open request with that id.
        """
        key = (scope, id_key)
        if kin and key not in self._asked:
            open_ones = [
                each
                for each, (its, waiting) in self._asked.items()
                if each[1] == id_key and its == kin and any(p.runs for p in waiting)
            ]
            key = open_ones[0] if len(open_ones) == 1 else key
        _, all_deadlines = self._asked.pop(key, ("", ()))
        for deadlines in all_deadlines:
            deadlines.on_server_request_settled(id_key)

    def detach(self, scope: Scope, id_key: str, attempt: Attempt, now: int) -> None:
        """Keep a call open whose own stream has ended, as its answer may come on a resuming GET."""
        attempt.shrink()
        life = DETACHED_LIFE
        if attempt.deadlines is not None:
            loop_time = asyncio.get_running_loop().time()
            life = round(attempt.deadlines.resumable(life / 1e9, loop_time) * 1e9)
        self._detached[attempt] = (scope, id_key, now + life)

    def claim(self, scope: Scope, id_key: str) -> Attempt | None:
        """Remove and return the call that an answer on another stream belongs to.

        It is the newest whose own stream has ended, else the newest.
        """
        found = [each for each, (*its, _) in self._detached.items() if its == [scope, id_key]]
        found = found or self._open.get((scope, id_key), [])
        if not found:
            return None
        attempt = found[-1]
        self._detached.pop(attempt, None)
        self.remove(scope, id_key, attempt)
        return attempt

    def take(self, scope: Scope, attempt: Attempt) -> bool:
        """Remove a detached call; return whether it was there, and so is not answered."""
        return bool(self._taken(lambda each, its, _: each is attempt and its == scope))

    def overdue(self, now: int) -> list[Attempt]:
        """Remove and return the detached calls that were not resumed in time."""
        return self._taken(lambda _, __, deadline: deadline <= now)

    def detached(self, scope: Scope) -> list[Attempt]:
        """Remove and return the detached calls of a scope."""
        return self._taken(lambda _, its, __: its == scope)

    def _taken(self, is_wanted: Callable[[Attempt, Scope, int], bool]) -> list[Attempt]:
        """Remove and return detached calls, chosen by attempt, scope and deadline."""
        detached = self._detached
        taken = [each for each, (its, _, until) in detached.items() if is_wanted(each, its, until)]
        for attempt in taken:
            scope, id_key, _ = detached.pop(attempt)
            self.remove(scope, id_key, attempt)
        return taken

    def everything_detached(self) -> list[Attempt]:
        """Remove and return all detached calls, because the process ends."""
        return self.overdue(1 << 63)

    def park(self, links: tuple[bytes, ...], attempt: Attempt) -> None:
        """Remember a call that waits for another leg, by each key that the leg may bring, without its input."""
        attempt.shrink()
        for link in links:
            self._parked[link] = attempt

    def parked(self, links: tuple[bytes, ...]) -> Attempt | None:
        """Return the first parked call that one of the keys names."""
        return next((self._parked[link] for link in links if link in self._parked), None)

    def unpark(self, links: tuple[bytes, ...]) -> None:
        """Forget the keys of a call that has gone on."""
        for link in links:
            self._parked.pop(link, None)
