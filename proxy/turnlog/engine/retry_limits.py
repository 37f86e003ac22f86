"""Waiting for the next attempt of a call."""

import asyncio
from collections.abc import Coroutine
from math import inf

from turnlog.core.kinds import ErrorKind
from turnlog.exchange.call import STOPPED_WHILE_RECORDED, RetryWindow
from turnlog.exchange.events import NotRecorded, Overdue, Woken
from turnlog.record.deadlines import Progress
from turnlog.rules.policy import Policy
from turnlog.store.base import StoreError

from .call_driver import CallDriver
from .mcp.mcp_exchange import McpExchange
from .plain_call import PlainCall


class _TooLate(Exception):
    """The attempt that is due does not begin any more."""

    def __init__(self, event: Overdue) -> None:
        super().__init__(event.reason)
        self.event = event


class RetryLimits:
    """Waits for the further attempts of one call, as long as they may begin (`RetryWindow`)."""

    def __init__(self, policy: Policy, began: float, stop: asyncio.Event) -> None:
        """`began` is on the loop's clock; `stop` is set when nothing new may begin."""
        retry, limits = policy.retry, policy.timeout
        budget = retry.budget if retry is not None else inf
        self._window = RetryWindow(
            total=began + limits.total, budget=began + budget, queue=limits.queue
        )
        self._stop = stop

    @property
    def left(self) -> float:
        """For how many seconds another attempt may still begin."""
        return self._window.end - asyncio.get_running_loop().time()

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
        reason = self._window.obstacle(
            asyncio.get_running_loop().time(),
            is_stopping=self._stop.is_set(),
            is_cancel_pending=notice is not None and not notice.done(),
        )
        if reason is not None:
            driver.feed(Overdue(reason))
            return None
        driver.feed(Woken())
        exchange.progress = Progress()
        try:
            again = await self._in_time(exchange.again(body))
        except StoreError:
            exchange.left(ErrorKind.SESSION_UNAVAILABLE)
            driver.feed(NotRecorded())
        except _TooLate as late:
            if not driver.is_over:
                driver.feed(late.event)
        else:
            if driver.machine.cancelled_at is None:
                return again
        return None

    async def _in_time(self, step: Coroutine[None, None, bytes]) -> bytes:
        """Do what comes before an attempt. Raises `StoreError`, and `_TooLate`."""
        at, overdue = self._window.deadline(asyncio.get_running_loop().time())
        limit = asyncio.timeout_at(at if at < inf else None)
        try:
            async with limit:
                done = await self._unless_stopped(step, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            if not self._stop.is_set():
                raise _TooLate(overdue) from None
        else:
            if not self._stop.is_set():
                return done
        raise _TooLate(STOPPED_WHILE_RECORDED)

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
