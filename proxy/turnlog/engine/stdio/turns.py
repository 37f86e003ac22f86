"""The errands of one pipe that a rule counts: those under way, and those that wait to be sent."""

import asyncio
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager

from .errand import PipeCarrier


class QueuedLines:
    """Which errands hold places among the calls under way."""

    def __init__(self) -> None:
        self._queued: set[PipeCarrier] = set()
        self._counted: set[PipeCarrier] = set()
        self.all_sent = asyncio.Event()
        """Whether nothing waits to be sent."""
        self.all_sent.set()

    def __iter__(self) -> Iterator[PipeCarrier]:
        """Go through those that wait to be sent."""
        return iter(list(self._queued))

    def sent(self, errand: PipeCarrier) -> None:
        """Learn that an errand leaves."""
        if errand.policy.concurrency is not None:
            self._counted.add(errand)

    def queue(self, errand: PipeCarrier) -> None:
        """Take in one that waits to be sent."""
        self._queued.add(errand)
        self.all_sent.clear()

    @contextmanager
    def waiting(self, errand: PipeCarrier) -> Generator[None]:
        """Let one wait within the block; of one that was not sent then the place is given back."""
        try:
            yield
        finally:
            if errand not in self._counted:
                errand.over()
            self._queued.discard(errand)
            if not self._queued:
                self.all_sent.set()

    def settle(self, resting: Collection[PipeCarrier]) -> None:
        """Give back the places of those that have ended, and are not about to be made again."""
        ended = [e for e in self._counted if not e.exchange.attempts and e not in resting]
        for errand in ended:
            self._counted.discard(errand)
            errand.over()
