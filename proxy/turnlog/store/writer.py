"""The writer: one thread that commits what queued up while it committed before, up to `MOST` at once.

The loop's side (`submit`, `run`, `stop`) never blocks. The thread's side has the engine, and with
it all write transactions, to itself. `apart` does the same with a process.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from .base import StoreClosed, StoreError
from .gathering import Gathering, fail, settle
from .scribe import AGAIN, KEPT, MOST, Engine, Scribe
from .tickets import Pending, chained

_ENDED = "the store's writer has ended; open the store again"
_Job = tuple[Callable[[], object], "asyncio.Future[Any]"]
T = TypeVar("T")


class Writer(Gathering):
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
        super().__init__(loop)
        self._scribe = Scribe(engine, _InLoop(self._tell, report, self._set_failing), keep=keep)
        self._lock = threading.Lock()
        self._queue: list[Pending] = []
        self._jobs: list[_Job] = []
        self._writing: list[Pending] = []
        self._running: list[_Job] = []
        """What the thread has taken out of the queues and not finished."""
        # `submitted` and `finished`, each with one writer, need no lock.
        self._awake = False
        # Held while the thread has nothing to do: cheaper than a Condition by a lock for each wait.
        self._sleep = threading.Lock()
        self._sleep.acquire()
        self._thread = threading.Thread(target=self._live, name="turnlog-store", daemon=True)
        self._thread.start()

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` in the writer's thread, after what is queued. Raises `StoreError`."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._hand_over()
        with self._lock:
            self._check_open()
            self._jobs.append((job, future))
            self._nudge()
        return await future

    async def stop(self) -> None:
        """Write what is queued, then end the thread. May be called again."""
        self._hand_over()
        with self._lock:
            self._closing = True
            self._nudge()
        await self._until_ended()

    def _hand_over(self) -> None:
        gathered = self._take()
        with self._lock:
            ended = self._closing
            if not ended:
                self._queue += gathered
                self._nudge()
        if ended:
            fail(gathered, StoreClosed(_ENDED))

    def _nudge(self) -> None:
        if not self._awake:
            self._awake = True
            self._sleep.release()

    def _live(self) -> None:
        try:
            while self._turn():
                pass
            self._scribe.last()
        except BaseException as error:  # noqa: BLE001 - nobody stands above the thread
            self.down = f"the store's writer has ended: {error!r}; restart turnlog"
            self._scribe.say(StoreError(self.down))
        finally:
            self._abandon()
            self._scribe.close()
            self._tell(self._end)

    def _abandon(self) -> None:
        """Refuse what comes from now on, and what is still queued: nobody would write it."""
        with self._lock:
            self._closing = True
            batch, self._queue = [*self._writing, *self._queue], []
            jobs, self._jobs = [*self._running, *self._jobs], []
        closed = StoreClosed(_ENDED)
        if batch:
            self._tell(fail, batch, closed)
        for _, future in jobs:
            self._tell(settle, future, closed)
        self._scribe.tell_rest()

    def _turn(self) -> bool:
        rested = self._sleep.acquire(timeout=AGAIN if self._scribe.retries else -1)
        with self._lock:
            if not rested and self._awake:
                # Called while this woke by itself: the next turn must not begin at once.
                self._sleep.acquire()
            self._writing, self._queue = self._queue, []
            jobs = self._running = self._jobs
            self._jobs = []
            self._awake = False
            closing = self._closing
        before = self._scribe.again()
        while self._writing:
            self._write(self._writing[:MOST], before)
        while jobs:
            self._do(*jobs[0])
            jobs.pop(0)
        self._scribe.tend()
        self._scribe.probe()
        return not closing

    def _write(self, batch: list[Pending], before: StoreError | None) -> None:
        self._scribe.write(batch, before)
        self.finished += sum([pending.size for pending in batch])
        with self._lock:
            self._writing = self._writing[len(batch) :]

    def _do(self, job: Callable[[], object], future: "asyncio.Future[Any]") -> None:
        result = self._scribe.run(job)
        if isinstance(result, StoreError):
            self._tell(settle, future, result)
        else:
            self._tell(settle, future, None, result)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        # A loop that was closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class _InLoop:
    """Tells the tickets on the loop what the thread did with them."""

    def __init__(
        self,
        tell: Callable[..., None],
        report: Callable[[StoreError], None],
        set_failing: Callable[[StoreError | None], None],
    ) -> None:
        self._tell = tell
        self._report = report
        self._set_failing = set_failing

    def landed(self, batch: list[Pending], along: list[Pending]) -> None:
        self._tell(_land, batch, along)

    def failed(self, batch: list[Pending], error: StoreError, kept: list[Pending]) -> None:
        self._tell(fail, batch, error)

    def report(self, error: StoreError) -> None:
        self._report(error)

    def on_failing(self, error: StoreError | None) -> None:
        self._tell(self._set_failing, error)


def _land(batch: list[Pending], along: list[Pending]) -> None:
    for pending in (*chained(batch), *along):
        pending.land()
