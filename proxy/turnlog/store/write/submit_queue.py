"""The writer: a queue of drafts on the event loop, and one thread that commits them in groups.

The loop's side (`submit`, `run`, `stop`) never blocks. The thread has the engine, and with it all
write transactions, to itself: while it waits for the disk, the drafts of the next transaction
queue up.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from turnlog.store.base import StoreClosed, StoreError

from .batch_writer import AGAIN, KEPT, MOST, BatchWriter, Engine
from .pending_append import PendingAppend, chained

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
        *,
        keep: int = KEPT,
    ) -> None:
        """`report` gets the errors that no caller would see; the thread calls it.

        `keep` is how many bytes of outcomes that find no room are kept until there is some.
        """
        self._loop = loop
        self.submitted = 0
        """Bytes of all drafts so far."""
        self.finished: int = 0
        """Bytes of the drafts that were written or have failed."""
        self.down = ""
        """Why nothing is written any more; empty while the thread runs."""
        self.failing: StoreError | None = None
        """Why the last write failed, where that holds for every write; `None` once one works."""
        self._stall = Stall()
        self._on_loop = _OnLoop(loop, report, self._set_failing)
        self._batches = BatchWriter(engine, self._on_loop, keep=keep)
        # The loop's own: what it has not handed to the thread yet.
        self._gathered: list[PendingAppend] = []
        self._called = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = loop.create_future()
        # Shared, under the lock. `submitted` and `finished`, each with one writer, need none.
        self._lock = threading.Lock()
        self._queue: list[PendingAppend] = []
        self._jobs: list[_Job] = []
        self._writing: list[PendingAppend] = []
        self._running: list[_Job] = []
        """What the thread has taken out of the queues and not finished."""
        self._closing = False
        self._awake = False
        # Held while the thread has nothing to do: cheaper than a Condition by a lock for each wait.
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self._thread = threading.Thread(target=self._live, name="turnlog-store", daemon=True)
        self._thread.start()

    def submit(self, pending: PendingAppend, wait: bool) -> None:
        """Queue a draft. Raises `StoreClosed`."""
        self._check_open()
        self._gathered.append(pending)
        self.submitted += pending.size
        if not wait and self._timer is None:
            self._timer = self._loop.call_later(LAZY, self._on_timer)
        if wait and not self._called:
            # Once the loop has done all that is ready, so that its calls share one transaction.
            self._called = True
            self._loop.call_soon(self._on_turn_end)

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` in the writer's thread, after what is queued. Raises `StoreError`."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._hand_over()
        with self._lock:
            self._check_open()
            self._jobs.append((job, future))
            self._wake()
        return await future

    async def stop(self) -> None:
        """Write what is queued, then end the thread. May be called again."""
        self._hand_over()
        with self._lock:
            self._closing = True
            self._wake()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.shield(self._ended)

    def hangs(self) -> str:
        """Return what to say where writes wait and none ends; else empty. Call it about once a second."""
        waited = self._stall.seconds(self.submitted, self.finished, self._loop.time())
        return _HANGS if waited >= STALLED else ""

    def _check_open(self) -> None:
        if self._closing:
            raise StoreClosed(_CLOSED)

    def _on_turn_end(self) -> None:
        self._called = False
        self._hand_over()

    def _on_timer(self) -> None:
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        """Pass what was gathered to the thread, unless it has ended meanwhile."""
        gathered, self._gathered = self._gathered, []
        with self._lock:
            has_ended = self._closing
            if not has_ended:
                self._queue += gathered
                self._wake()
        if has_ended:
            self._on_loop.fail(gathered, StoreClosed(_ENDED))

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
            self._batches.say(StoreError(self.down))
        finally:
            self._abandon()
            self._batches.close()
            self._on_loop.call(self._end)

    def _abandon(self) -> None:
        """Reject what is still queued, and all later drafts: the thread has ended."""
        with self._lock:
            self._closing = True
            batch, self._queue = [*self._writing, *self._queue], []
            jobs, self._jobs = [*self._running, *self._jobs], []
        closed = StoreClosed(_ENDED)
        if batch:
            self._on_loop.call(self._on_loop.fail, batch, closed)
        for _, future in jobs:
            self._on_loop.call(_settle, future, closed)
        self._batches.tell_rest()

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
            closing = self._closing
        before = self._batches.again()
        while self._writing:
            self._write(self._writing[:MOST], before)
        while jobs:
            self._do(*jobs[0])
            jobs.pop(0)
        self._batches.tend()
        self._batches.probe()
        return not closing

    def _write(self, batch: list[PendingAppend], before: StoreError | None) -> None:
        self._batches.write(batch, before)
        self.finished += sum([pending.size for pending in batch])
        with self._lock:
            self._writing = self._writing[len(batch) :]

    def _do(self, job: Callable[[], object], future: "asyncio.Future[Any]") -> None:
        result = self._batches.run(job)
        if isinstance(result, StoreError):
            self._on_loop.call(_settle, future, result)
        else:
            self._on_loop.call(_settle, future, None, result)

    # -- on the loop again -------------------------------------------------------------------

    def _set_failing(self, error: StoreError | None) -> None:
        self.failing = error

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class _OnLoop:
    """Resolves the tickets on the loop, and passes errors on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[StoreError], None],
        set_failing: Callable[[StoreError | None], None],
    ) -> None:
        self._loop = loop
        self._report = report
        self._set_failing = set_failing

    def call(self, callback: Callable[..., None], *args: object) -> None:
        """Call something on the loop; may be called from any thread."""
        # A closed loop has no waiters left.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def on_written(self, batch: list[PendingAppend], along: list[PendingAppend]) -> None:
        self.call(self._land, batch, along)

    def on_failed(self, batch: list[PendingAppend], error: StoreError) -> None:
        self.call(self.fail, batch, error)

    def on_error(self, error: StoreError) -> None:
        self._report(error)

    def on_failing(self, error: StoreError | None) -> None:
        self.call(self._set_failing, error)

    def fail(self, batch: Iterable[PendingAppend], error: StoreError) -> None:
        """Reject drafts, and their chains: they were not written. Called on the loop."""
        for pending in chained(batch):
            try:
                pending.fail(error)
            except Exception as failure:  # noqa: BLE001 - the others must be told as well
                self._on_failure(failure)

    def _land(self, batch: list[PendingAppend], along: list[PendingAppend]) -> None:
        for pending in (*chained(batch), *along):
            try:
                pending.land()
            except Exception as failure:  # noqa: BLE001 - the others must be told as well
                self._on_failure(failure)

    def _on_failure(self, failure: Exception) -> None:
        message = "a callback failed that was told what became of a draft"
        self._loop.call_exception_handler({"message": message, "exception": failure})


def _settle(future: "asyncio.Future[Any]", error: Exception | None, result: object = None) -> None:
    """Set the result of a future, unless it was cancelled."""
    if future.done():
        return
    if error:
        future.set_exception(error)
    else:
        future.set_result(result)
