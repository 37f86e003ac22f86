"""The writer: a queue of drafts on the event loop, and one thread that commits them in groups.

The loop's side (`submit`, `run`, `stop`) never blocks. The thread has the engine, and with it all
write transactions, to itself: while it waits for the disk, the drafts of the next transaction
queue up.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from turnlog.store.base import Draft, StoreClosed, StoreError

from .batch_writer import AGAIN, BatchWriter, Engine, first_batch
from .drafts import fail

LAZY = 0.05
"""Seconds after which a draft submitted without `wait` is written."""
STALLED = 10.0
"""Seconds without a finished write, while some wait, after which the store counts as blocked."""
_STEP = 2.0
"""The most that the time between two looks counts, in seconds: the proxy itself may have been stopped."""
_HANGS = (
    f"no write to the store has ended for {STALLED:.0f} s: the disk hangs, or a process that holds the "
    "lock on the log is stopped; continue or end that process"
)
_CLOSED = "the store is closed; open it again to write"
_ENDED = "the store's writer has ended; open the store again"
_FORKED = "the store was opened before a fork; open it in the child"
_Job = tuple[Callable[[], object], "asyncio.Future[Any]"]
T = TypeVar("T")


class Stall:
    """Measures for how long writes have been waiting while none finished."""

    def __init__(self) -> None:
        self._finished = -1
        self._looked = 0.0
        self._seconds = 0.0

    def seconds(self, submitted: int, finished: int, now: float) -> float:
        """Return for how long nothing has finished; `submitted` and `finished` are counts of bytes."""
        is_waiting = submitted != finished == self._finished
        self._seconds = self._seconds + min(now - self._looked, _STEP) if is_waiting else 0.0
        self._finished, self._looked = finished, now
        return self._seconds


class SubmitQueue:
    """A queue of drafts with a thread behind it."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[StoreError], None],
    ) -> None:
        """`report` gets the errors that no caller would see; the thread calls it."""
        self._loop = loop
        self.submitted = 0
        """Bytes of all drafts so far."""
        self.finished: int = 0
        """Bytes of the drafts that were written or have failed."""
        self.down = ""
        """Why the thread has ended; empty while it runs."""
        self.failing: StoreError | None = None
        """Why the last write failed, where that holds for every write; `None` once one works."""
        self._stall = Stall()
        self._batches = BatchWriter(
            engine, post=self._post, report=report, on_failing=self._on_failing
        )
        # The loop's own: what it has not handed to the thread yet.
        self._gathered: list[Draft] = []
        self._called = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = loop.create_future()
        # Shared, under the lock. `submitted` and `finished`, each with one writer, need none.
        self._lock = threading.Lock()
        self._queue: list[Draft] = []
        self._jobs: list[_Job] = []
        self._writing: list[Draft] = []
        self._running: list[_Job] = []
        """What the thread has taken out of the queues and not finished."""
        self._closed = ""
        """Why nothing can be submitted any more; empty while it can."""
        self._awake = False
        # Held while the thread has nothing to do: cheaper than a Condition by a lock for each wait.
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self._thread = threading.Thread(target=self._live, name="turnlog-store", daemon=True)
        self._thread.start()
        _queues.add(self)

    def submit(self, draft: Draft, wait: bool) -> None:
        """Queue a draft. Raises `StoreClosed`."""
        if self._closed:
            raise StoreClosed(self._closed)
        self._gathered.append(draft)
        self.submitted += draft.size
        if wait and not self._called:
            # Once the loop has done all that is ready, so that its calls share one transaction.
            self._called = True
            self._loop.call_soon(self._hand_over)
        elif not wait and self._timer is None:
            self._timer = self._loop.call_later(LAZY, self._on_timer)

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` in the writer's thread, after what is queued. Raises `StoreError`."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._hand_over()
        with self._lock:
            if self._closed:
                raise StoreClosed(self._closed)
            self._jobs.append((job, future))
            self._wake()
        return await future

    async def stop(self) -> None:
        """Write what is queued, then end the thread. May be called again."""
        self._hand_over()
        with self._lock:
            self._closed = self._closed or _CLOSED
            self._wake()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.shield(self._ended)

    def hangs(self) -> str:
        """Return what to say where writes wait and none ends; else empty. Call it about once a second."""
        waited = self._stall.seconds(self.submitted, self.finished, self._loop.time())
        return _HANGS if waited >= STALLED else ""

    def refuse(self, why: str) -> None:
        """Accept no draft any more."""
        self._closed = why

    def _on_timer(self) -> None:
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        """Pass what was gathered to the thread, unless it has ended meanwhile."""
        self._called = False
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        with self._lock:
            has_ended = self._closed
            if not has_ended:
                self._queue += gathered
                self._wake()
        if has_ended:
            fail(gathered, StoreClosed(_ENDED))

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._sleep.release()

    # -- the thread --------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            while self._turn():
                pass
            self._batches.last()
        except BaseException as error:  # noqa: BLE001 - the thread has no caller
            self.down = f"the store's writer has ended: {error!r}; restart turnlog"
            self._batches.report(StoreError(self.down))
        finally:
            self._abandon()
            self._batches.close()
            self._post(_settle, self._ended, None)

    def _abandon(self) -> None:
        """Reject what is still queued, and all later drafts: the thread has ended."""
        with self._lock:
            self._closed = _CLOSED
            batch, self._queue = [*self._writing, *self._queue], []
            jobs, self._jobs = [*self._running, *self._jobs], []
        closed = StoreClosed(_ENDED)
        if batch:
            self._post(fail, batch, closed)
        for _, future in jobs:
            self._post(_settle, future, closed)
        self._batches.report_rest()

    def _turn(self) -> bool:
        rested = self._sleep.acquire(timeout=AGAIN if self._batches.retries else -1)
        with self._lock:
            if not rested and self._awake:
                # Woken while the time ran out: the next turn must not begin at once.
                self._sleep.acquire()
            self._writing, self._queue = self._queue, []
            jobs = self._running = self._jobs
            self._jobs = []
            self._awake = False
            closing = self._closed
        before = self._batches.again()
        while self._writing:
            self._write(first_batch(self._writing), before)
        while jobs:
            job, future = jobs[0]
            self._post(_settle, future, self._batches.run(job))
            jobs.pop(0)
        self._batches.tend()
        return not closing

    def _write(self, batch: list[Draft], before: StoreError | None) -> None:
        self._batches.write(batch, before)
        self.finished += sum([draft.size for draft in batch])
        with self._lock:
            self._writing = self._writing[len(batch) :]

    def _on_failing(self, error: StoreError | None) -> None:
        self.failing = error

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        """Call something on the loop."""
        # A closed loop has no waiters left.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)


_queues: WeakSet[SubmitQueue] = WeakSet()


def _refuse_after_fork() -> None:
    # The thread is the parent's, and so is the environment of LMDB. To ask for the process id at each
    # draft would be a system call.
    for queue in _queues:
        queue.refuse(_FORKED)


os.register_at_fork(after_in_child=_refuse_after_fork)


def _settle(future: "asyncio.Future[Any]", result: object) -> None:
    """Set the result of a future, which may be an error, unless it was cancelled."""
    if future.done():
        return
    if isinstance(result, StoreError):
        future.set_exception(result)
    else:
        future.set_result(result)
