"""Places of calls under way: a rule may say how many there are; who finds none waits in order."""

import asyncio
from collections import deque

from turnlog.core.kinds import ErrorKind, Phase
from turnlog.record.attempt import Attempt
from turnlog.record.errors import Failure


class _Row:
    """The slots that one rule has given out, and who waits for one."""

    def __init__(self) -> None:
        self.taken = 0
        self.waiting: deque[Slot] = deque()

    def admit(self) -> None:
        """Grant free slots to those who wait, in their order."""
        while self.waiting and self.taken < self.waiting[0].limit:
            self.taken += 1
            self.waiting.popleft().hold()


class Slot:
    """One call's place: it is waited for, then held, then given back."""

    def __init__(self, row: _Row, limit: int) -> None:
        self.limit = limit
        """How many its rule allows; the rules may have been read again since others came."""
        self.is_held = False
        self._row = row
        self._decided = asyncio.Event()

    def hold(self) -> None:
        """Become held."""
        self.is_held = True
        self._decided.set()

    async def wait(self) -> bool:
        """Wait until it is held; false where it was given back meanwhile."""
        await self._decided.wait()
        return self.is_held

    def give_back(self) -> None:
        """Leave it to the next one, or wait for it no more."""
        if self.is_held:
            self.is_held = False
            self._row.taken -= 1
        elif not self._decided.is_set():
            self._row.waiting.remove(self)
            self._decided.set()
        self._row.admit()


class Limiter:
    """The places that the rules of one proxy have given out, by the rules' names."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def claim(self, attempt: Attempt | None) -> Slot | None:
        """Return a call's place, held at once where one is free; `None` where no rule counts it."""
        policy = attempt.ask.policy if attempt is not None else None
        if attempt is None or policy is None or policy.concurrency is None:
            return None
        row = self._rows.setdefault(policy.decided_by["concurrency"], _Row())
        place = Slot(row, policy.concurrency)
        row.waiting.append(place)
        row.admit()
        attempt.unqueue = None if place.is_held else place.give_back
        return place


async def turn(place: Slot, attempt: Attempt) -> None:
    """Wait for a call's place. Raises `Failure` where its caller does not want it any more."""
    try:
        held = await place.wait()
    finally:
        attempt.unqueue = None
    if not held:
        detail = "taken back while it waited to be sent"
        raise Failure(ErrorKind.CANCELLED_BY_CALLER, Phase.QUEUED, detail)
