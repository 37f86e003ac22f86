"""What is to be done next about one call, by its policy: `core.exchange` with a clock and dice."""

import asyncio
from functools import partial
from typing import Final, Protocol

from turnlog.core.exchange import Command, exchange
from turnlog.core.kinds import ErrorKind, Phase
from turnlog.core.policy import Policy
from turnlog.core.retry import Tried

from .attempt import Attempt
from .clock import Clock
from .fault import Failure
from .patience import Patience

_NO_RULES: Final = Policy()


class Queued(Protocol):
    """Calls whose intents are on their way to the disk."""

    @property
    def is_unverified(self) -> bool:
        """Whether a rule demands pinned definitions and one is not."""
        ...

    async def on_disk(self) -> None:
        """Wait for the intents. Raises `StoreError`."""
        ...


class Steps:
    """The steps of one exchange of an agent. `began` is when, on the loop's clock."""

    def __init__(self, attempt: Attempt | None, clock: Clock, *, repeatable: bool) -> None:
        self.policy = attempt.ask.policy if attempt is not None else _NO_RULES
        self.began = asyncio.get_running_loop().time()
        self.next: Command | None = None
        """What the last attempt came to: another one after a while, or nothing more."""
        self._steps = exchange(self.policy, partial(_dice, clock), repeatable=repeatable)

    async def queued(self, exchange: Queued) -> None:
        """Wait until a call may leave. Raises `StoreError`, and `Failure` where it must not."""
        if exchange.is_unverified:
            raise Failure(ErrorKind.UNVERIFIED_PROVENANCE, Phase.QUEUED, "not pinned")
        if not self.policy.timeout.bounds_queue:
            await exchange.on_disk()
            return
        patience = Patience(self.policy.timeout, self.began)
        at, kind = patience.queue_by(self.began)
        limit = asyncio.timeout_at(at)
        try:
            async with limit:
                await exchange.on_disk()
        except TimeoutError:
            if not limit.expired():
                raise
            raise Failure(kind, Phase.QUEUED, patience.detail(kind)) from None

    def go_on(self) -> Command:
        """Return what to do next, at the beginning and when a wait is over."""
        return next(self._steps)

    def is_last(self, attempt: Attempt | None) -> bool:
        """Tell what came of an attempt; return whether its answer is the agent's."""
        self.next = None
        if attempt is None or attempt.ending is None or attempt.cancelled:
            return True
        tried = Tried(
            ending=attempt.ending,
            effect=attempt.ask.effect,
            number=attempt.ask.number,
            elapsed=asyncio.get_running_loop().time() - self.began,
            retry_after=attempt.retry_after,
        )
        try:
            self.next = self._steps.send(tried)
        except StopIteration:
            return True
        return False


def _dice(clock: Clock) -> float:
    """Return a number in [0, 1)."""
    return int.from_bytes(clock.entropy(4), "big") / (1 << 32)
