"""The loop's side of a writer: drafts that are handed over together, and what is told of them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from .base import StoreClosed, StoreError
from .tickets import Pending, chained

LAZY = 0.05
"""Seconds after which a draft that nobody waits for is written all the same."""
STALLED = 10.0
"""Seconds without a write that has ended, while some wait, after which the store counts as blocked."""
_STEP = 2.0
"""Seconds between two looks that count at most: a proxy that was stopped itself knows nothing of the time."""
_HANGS = (
    f"no write to the store has ended for {STALLED:.0f} s: the disk hangs, or a process that holds the "
    "lock on the log is stopped; continue or end that process"
)
_CLOSED = "the store is closed; open it again to write"


class Stall:
    """How long writes wait of which none ends. It is to be looked at now and then."""

    def __init__(self) -> None:
        self._finished = 0
        self._looked = 0.0
        self._seconds = 0.0

    def seconds(self, submitted: int, finished: int, now: float) -> float:
        """Return for how long nothing has ended; `submitted` and `finished` are counts of bytes."""
        is_waiting = submitted != finished == self._finished
        self._seconds = self._seconds + min(now - self._looked, _STEP) if is_waiting else 0.0
        self._finished, self._looked = finished, now
        return self._seconds


class Gathering(ABC):
    """What was submitted since it was handed over last. Belongs to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.submitted = 0
        """Bytes of all drafts."""
        self.finished: int = 0
        """Bytes of the drafts that were written or have failed."""
        self._stall = Stall()
        self.down = ""
        """Why nothing is written at the moment; empty where it is."""
        self.failing: StoreError | None = None
        """Why the last write failed, where that holds for all that is written; `None` once one works."""
        self._gathered: list[Pending] = []
        self._closing = False
        self._called = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = loop.create_future()

    def submit(self, pending: Pending, wait: bool) -> None:
        """Queue a draft. Raises `StoreClosed`."""
        self._check_open()
        self._gathered.append(pending)
        self.submitted += pending.size
        if not wait and self._timer is None:
            self._timer = self._loop.call_later(LAZY, self._ring)
        if wait and not self._called:
            # Once the loop has done all that is ready, so that its calls share one transaction.
            self._called = True
            self._loop.call_soon(self._call)

    def hangs(self) -> str:
        """Return what to say where writes wait and none ends; else empty. Called now and then."""
        waited = self._stall.seconds(self.submitted, self.finished, self._loop.time())
        return _HANGS if waited >= STALLED else ""

    def _set_failing(self, error: StoreError | None) -> None:
        self.failing = error

    @abstractmethod
    def _hand_over(self) -> None:
        """Give what was gathered to who writes, unless he has ended by himself meanwhile."""

    def _check_open(self) -> None:
        if self._closing:
            raise StoreClosed(_CLOSED)

    def _take(self) -> list[Pending]:
        gathered, self._gathered = self._gathered, []
        return gathered

    async def _until_ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.shield(self._ended)

    def _call(self) -> None:
        self._called = False
        self._hand_over()

    def _ring(self) -> None:
        self._timer = None
        self._hand_over()


def fail(batch: Iterable[Pending], error: StoreError) -> None:
    """Say to drafts, and their chains, that they were not written."""
    for pending in chained(batch):
        pending.fail(error)


def settle(future: "asyncio.Future[Any]", error: Exception | None, result: object = None) -> None:
    """Give a future what it waits for, unless nobody does any more."""
    if future.done():
        return
    if error:
        future.set_exception(error)
    else:
        future.set_result(result)
