"""Slots of calls under way: a rule may say how many there are; a call that finds none waits in order."""

import asyncio
from collections import deque

from turnlog.rules.policy import Policy


class _Row:
    """The slots granted by one rule, and the queue for them."""

    def __init__(self) -> None:
        self.taken = 0
        self.waiting: deque[Slot] = deque()

    def admit(self) -> None:
        """Grant free slots in the order of the queue."""
        while self.waiting and self.taken < self.waiting[0].limit:
            self.taken += 1
            self.waiting.popleft().hold()


class Slot:
    """One call's slot: it is waited for, then held, then given back."""

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
    """The slots that the rules of one proxy have given out, by the rules' names."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def claim(self, policy: Policy) -> Slot:
        """Return the slot of a call that a rule counts, held at once where one is free."""
        assert policy.concurrency is not None
        row = self._rows.setdefault(policy.decided_by["concurrency"], _Row())
        slot = Slot(row, policy.concurrency)
        row.waiting.append(slot)
        row.admit()
        return slot
