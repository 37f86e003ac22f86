"""The wait between two attempts of a call, and the start of the next one."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from math import inf

from turnlog.core.kinds import ErrorKind
from turnlog.exchange.call import STOPPED_WHILE_RECORDED, RetryWindow, Stage
from turnlog.exchange.events import NotRecorded, Overdue, Woken
from turnlog.record.deadlines import Progress
from turnlog.store.base import StoreError

from .call_driver import CallDriver
from .context import Context
from .mcp.mcp_exchange import McpExchange
from .plain_call import PlainCall


class RetryWait:
    """The wait before one further attempt, which begins as long as it may (`RetryWindow`)."""

    def __init__(
        self,
        driver: CallDriver,
        exchange: McpExchange | PlainCall,
        context: Context,
        began: float,
    ) -> None:
        """`began` is when the call did, on the loop's clock."""
        retry, limits = driver.ask.policy.retry, driver.ask.policy.timeout
        budget = retry.budget if retry is not None else inf
        self._window = RetryWindow(
            total=began + limits.total, budget=began + budget, queue=limits.queue
        )
        self._driver = driver
        self._exchange = exchange
        self._recorder = context.recorder
        self._stop = context.stop
        self._over = driver.rest_over = asyncio.Event()
        self._limit: asyncio.Timeout | None = None
        """Bounds the record of the next attempt."""

    async def next_attempt(
        self, body: bytes, delay: float, notice: asyncio.Task[None] | None = None
    ) -> bytes | None:
        """Wait `delay` seconds and begin another attempt; return its body, `None` if the call has ended.

        `notice` is the task that sends the cancel of the attempt before; it is waited for too.
        """
        attempt = self._exchange.attempt
        assert attempt is not None  # it has just failed
        self._recorder.retried(attempt, delay)
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._end_at_stop())
            try:
                await self._exchange.rest(self._pause(delay, notice))
                is_pending = notice is not None and not notice.done()
                return await self._begun(body, is_cancel_pending=is_pending)
            finally:
                watch.cancel()

    async def _pause(self, delay: float, notice: asyncio.Task[None] | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._over.wait()
        if notice is not None and not self._over.is_set():
            # `asyncio.wait` takes no `inf`.
            left = self._window.end - asyncio.get_running_loop().time()
            await asyncio.wait({notice}, timeout=left if left < inf else None)

    async def _begun(self, body: bytes, *, is_cancel_pending: bool) -> bytes | None:
        """Begin the attempt that is due, unless the call has ended meanwhile; return its body."""
        driver = self._driver
        if driver.machine.stage is not Stage.WAITING:
            return None
        reason = self._window.obstacle(
            asyncio.get_running_loop().time(),
            is_stopping=self._stop.is_set(),
            is_cancel_pending=is_cancel_pending,
        )
        if reason is not None:
            driver.feed(Overdue(reason))
            return None
        driver.feed(Woken())
        self._exchange.progress = Progress()
        try:
            begun = await self._in_time(self._exchange.again(body))
        except StoreError:
            self._exchange.left(ErrorKind.SESSION_UNAVAILABLE)
            driver.feed(NotRecorded())
            return None
        if isinstance(begun, bytes):
            return begun
        if not driver.is_over:
            driver.feed(begun)
        return None

    async def _in_time(self, step: Coroutine[None, None, bytes]) -> bytes | Overdue:
        """Record the attempt that is due; return its body, or why it is not made. Raises `StoreError`."""
        at, overdue = self._window.deadline(asyncio.get_running_loop().time())
        limit = self._limit = asyncio.timeout_at(at if at < inf else None)
        try:
            async with limit:
                begun = await step
        except TimeoutError:
            if not limit.expired():
                raise
            return STOPPED_WHILE_RECORDED if self._stop.is_set() else overdue
        return STOPPED_WHILE_RECORDED if self._stop.is_set() else begun

    async def _end_at_stop(self) -> None:
        """End the wait, or what follows it, as soon as the proxy stops."""
        await self._stop.wait()
        self._over.set()
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())
