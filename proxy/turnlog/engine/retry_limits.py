"""Until when the next attempt of a call may begin."""

import asyncio
from collections.abc import Coroutine
from math import inf

from turnlog.core.kinds import ErrorKind
from turnlog.exchange.events import NotRecorded, Overdue, Woken
from turnlog.record.deadlines import Progress
from turnlog.rules.policy import Policy
from turnlog.rules.retry import StopReason
from turnlog.store.base import StoreError

from .call_driver import CallDriver
from .http.plain import PlainCall
from .mcp.mcp_exchange import McpExchange


class TooLate(Exception):
    """The attempt that is due does not begin any more; `kind` is how it ends."""

    def __init__(self, reason: StopReason, kind: ErrorKind) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


class RetryLimits:
    """The limits of one call's further attempts. Points in time are on the loop's clock, in s."""

    def __init__(self, policy: Policy, began: float, stop: asyncio.Event) -> None:
        """`stop` is set when nothing new may begin."""
        retry, limits = policy.retry, policy.timeout
        self._total = began + limits.total
        self._budget = began + (retry.budget if retry is not None else inf)
        self._queue = limits.queue
        self._stop = stop

    @property
    def left(self) -> float:
        """For how many seconds another attempt may still begin."""
        return min(self._total, self._budget) - asyncio.get_running_loop().time()

    def overdue(self, notice: "asyncio.Task[None] | None") -> StopReason | None:
        """Return why it may not begin; `notice` takes the attempt before back."""
        if self._stop.is_set():
            return StopReason.STOPPING
        if self._total <= asyncio.get_running_loop().time():
            return StopReason.TOTAL
        if notice is not None and not notice.done():
            return StopReason.TOTAL if self._total <= self._budget else StopReason.BUDGET
        return None

    async def pause(self, delay: float) -> None:
        """Wait `delay` seconds, or until the proxy stops."""
        try:
            async with asyncio.timeout(delay):
                await self._stop.wait()
        except TimeoutError:
            return

    async def another(
        self,
        driver: CallDriver,
        exchange: McpExchange | PlainCall,
        body: bytes,
        pause: Coroutine[None, None, None],
        notice: "asyncio.Task[None] | None" = None,
    ) -> bytes | None:
        """Wait for `pause`, and begin another attempt; return its body, `None` where none is made."""
        await exchange.rest(pause)
        if driver.is_over or driver.machine.cancelled_at is not None:
            return None
        if reason := self.overdue(notice):
            driver.feed(Overdue(reason))
            return None
        driver.feed(Woken())
        exchange.progress = Progress()
        try:
            again = await self.in_time(exchange.again(body))
        except StoreError:
            driver.feed(NotRecorded())
        except TooLate as late:
            if not driver.is_over:
                driver.feed(Overdue(late.reason, late.kind))
        else:
            if driver.machine.cancelled_at is None:
                return again
        return None

    async def in_time(self, step: Coroutine[None, None, bytes]) -> bytes:
        """Do what comes before an attempt. Raises `StoreError`, and `TooLate`."""
        at, reason, kind = self._last_moment(asyncio.get_running_loop().time())
        limit = asyncio.timeout_at(at if at < inf else None)
        try:
            async with limit:
                done = await self._unless_stopped(step, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            if not self._stop.is_set():
                raise TooLate(reason, kind) from None
        else:
            if not self._stop.is_set():
                return done
        raise TooLate(StopReason.STOPPING, ErrorKind.OUTCOME_UNKNOWN)

    async def _unless_stopped(
        self, step: Coroutine[None, None, bytes], limit: asyncio.Timeout
    ) -> bytes:
        """Do a step; where the proxy stops meanwhile, the limit is reached at once."""
        failed: StoreError | None = None
        done = b""
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._end_at_stop(limit))
            try:
                done = await step
            except StoreError as error:
                failed = error  # a group would wrap it
            finally:
                watch.cancel()
        if failed is not None:
            raise failed
        return done

    async def _end_at_stop(self, limit: asyncio.Timeout) -> None:
        await self._stop.wait()
        if not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time())

    def _last_moment(self, now: float) -> tuple[float, StopReason, ErrorKind]:
        """Return when an attempt that is due `now` has to begin."""
        return min(
            (self._total, StopReason.TOTAL, ErrorKind.DEADLINE_EXHAUSTED),
            (now + self._queue, StopReason.QUEUE, ErrorKind.QUEUE_TIMEOUT),
            (self._budget, StopReason.BUDGET, ErrorKind.QUEUE_TIMEOUT),
            key=lambda end: end[0],
        )
