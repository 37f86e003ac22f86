"""The writer: one thread that commits everything that queued up while it committed before.

The loop's side (`submit`, `run`, `stop`) never blocks. The thread's side has the engine, and with
it all write transactions, to itself.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, TypeVar

from .base import StoreClosed, StoreError
from .tickets import Pending

LAZY = 0.05
"""Seconds after which a draft that nobody waits for is written all the same."""
T = TypeVar("T")


class Engine(Protocol):
    """What the writer's thread does. All errors it raises are `StoreError`s."""

    def write(self, batch: list[Pending]) -> list[Pending]:
        """Write a batch in one transaction; return further drafts that went along."""
        ...

    def tend(self) -> None:
        """Do what is due after a batch."""
        ...

    def close(self) -> None:
        """Finish and close."""
        ...


class Writer:
    """A queue of drafts with a thread behind it."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._lock = threading.Lock()
        self._queue: list[Pending] = []
        self._jobs: list[Callable[[], None]] = []
        self._closing = False
        self._awake = False
        self._called = False
        # Held while the thread has nothing to do: cheaper than a Condition by a lock for each wait.
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._live, name="turnlog-store", daemon=True)
        self._thread.start()

    def submit(self, pending: Pending, *, wait: bool) -> None:
        """Queue a draft. Raises `StoreClosed`."""
        with self._lock:
            if self._closing:
                raise StoreClosed("the store is closed; open it again to write")
            self._queue.append(pending)
        if not wait and self._timer is None:
            self._timer = self._loop.call_later(LAZY, self._ring)
        if wait and not self._called:
            # Once the loop has done all that is ready, so that its calls share one transaction.
            self._called = True
            self._loop.call_soon(self._call)

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` in the writer's thread, after what is queued. Raises what it raises."""
        future: asyncio.Future[T] = self._loop.create_future()
        with self._lock:
            if self._closing:
                raise StoreClosed("the store is closed; open it again to write")
            self._jobs.append(lambda: self._do(job, future))
            self._nudge()
        return await future

    async def stop(self) -> None:
        """Write what is queued, then end the thread. May be called again."""
        with self._lock:
            self._closing = True
            self._nudge()
        if self._timer:
            self._timer.cancel()
        await asyncio.shield(self._ended)

    def _call(self) -> None:
        self._called = False
        with self._lock:
            self._nudge()

    def _ring(self) -> None:
        self._timer = None
        with self._lock:
            self._nudge()

    def _nudge(self) -> None:
        if not self._awake:
            self._awake = True
            self._sleep.release()

    def _live(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._engine.close()
            self._tell(self._end)

    def _turn(self) -> bool:
        self._sleep.acquire()
        with self._lock:
            batch, self._queue = self._queue, []
            jobs, self._jobs = self._jobs, []
            self._awake = False
            closing = self._closing
        if batch:
            self._write(batch)
        for job in jobs:
            job()
        self._engine.tend()
        return not closing

    def _write(self, batch: list[Pending]) -> None:
        try:
            along = self._engine.write(batch)
        except StoreError as error:
            self._tell(_fail, batch, error)
        except Exception as error:  # noqa: BLE001 - the thread must outlive a bug; the tickets tell
            self._tell(_fail, batch, StoreError(f"cannot write {len(batch)} drafts: {error!r}"))
        else:
            self._tell(_land, batch, along)

    def _do(self, job: Callable[[], T], future: "asyncio.Future[T]") -> None:
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - it goes to the caller
            self._tell(_settle, future, error)
        else:
            self._tell(_settle, future, None, result)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        # A loop that was closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def chained(batch: Iterable[Pending]) -> Iterable[tuple[Pending, Pending | None]]:
    """Yield every draft of a batch, with the one before it in its chain."""
    for first in batch:
        before: Pending | None = None
        link: Pending | None = first
        while link:
            yield link, before
            before, link = link, link.more


def _land(batch: list[Pending], along: list[Pending]) -> None:
    for pending, _ in chained(batch):
        pending.land()
    for pending in along:
        pending.land()


def _fail(batch: list[Pending], error: StoreError) -> None:
    for pending, _ in chained(batch):
        pending.fail(error)


def _settle(
    future: "asyncio.Future[object]", error: Exception | None, result: object = None
) -> None:
    if future.done():
        return
    if error:
        future.set_exception(error)
    else:
        future.set_result(result)
