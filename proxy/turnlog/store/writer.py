"""The writer: one thread that commits what queued up while it committed before, up to `MOST` at once.

The loop's side (`submit`, `run`, `stop`) never blocks. The thread's side has the engine, and with
it all write transactions, to itself.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from .base import StoreClosed, StoreError, StoreFull
from .kept import Kept
from .tickets import Pending

_Job = tuple[Callable[[], object], "asyncio.Future[Any]"]

LAZY = 0.05
"""Seconds after which a draft that nobody waits for is written all the same."""
MOST = 1024
"""Drafts in one transaction, which takes some 1.5 KB more for each: memory that is hardly given back."""
AGAIN = 1.0
"""Seconds after which outcomes that found no room are tried again."""
KEPT = 64 << 20
"""Bytes of such outcomes that are kept."""
_GONE = "the store's writer has ended; open the store again"
T = TypeVar("T")


class Engine(Protocol):
    """What the writer's thread does. All errors it raises are `StoreError`s, but for bugs."""

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
        self._engine = engine
        self._loop = loop
        self._report = report
        self._gathered: list[Pending] = []
        """What was submitted since the thread was called; the loop's alone."""
        self._lock = threading.Lock()
        self._queue: list[Pending] = []
        self._jobs: list[_Job] = []
        self._writing: list[Pending] = []
        self._running: list[_Job] = []
        """What the thread has taken out of the queues and not finished."""
        # Two counts, each with one writer, need no lock.
        self.submitted = self.finished = 0
        """Bytes of all drafts, and of those that were written or have failed."""
        self._kept = Kept(keep)
        self._told = False
        """Whether writes fail, and that was reported."""
        self._unsaid = 0
        """Drafts nobody waited for that were lost since the failure was reported."""
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

    def submit(self, pending: Pending, wait: bool) -> None:
        """Queue a draft. Raises `StoreClosed`."""
        if self._closing:
            raise StoreClosed("the store is closed; open it again to write")
        self._gathered.append(pending)
        self.submitted += pending.size
        if not wait and self._timer is None:
            self._timer = self._loop.call_later(LAZY, self._ring)
        if wait and not self._called:
            # Once the loop has done all that is ready, so that its calls share one transaction.
            self._called = True
            self._loop.call_soon(self._call)

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` in the writer's thread, after what is queued. Raises `StoreError`."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._hand_over()
        with self._lock:
            if self._closing:
                raise StoreClosed("the store is closed; open it again to write")
            self._jobs.append((job, future))
            self._nudge()
        return await future

    async def stop(self) -> None:
        """Write what is queued, then end the thread. May be called again."""
        self._hand_over()
        with self._lock:
            self._closing = True
            self._nudge()
        if self._timer:
            self._timer.cancel()
        await asyncio.shield(self._ended)

    def _call(self) -> None:
        self._called = False
        self._hand_over()

    def _ring(self) -> None:
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        """Give the thread what was gathered, unless it has ended by itself meanwhile."""
        gathered, self._gathered = self._gathered, []
        with self._lock:
            ended = self._closing
            if not ended:
                self._queue += gathered
                self._nudge()
        if ended:
            _fail(gathered, StoreClosed(_GONE))

    def _nudge(self) -> None:
        if not self._awake:
            self._awake = True
            self._sleep.release()

    def _live(self) -> None:
        try:
            while self._turn():
                pass
            # What the last turn did may have made room.
            if error := self._again():
                self._missed(len(self._kept), error)
        except BaseException as error:  # noqa: BLE001 - nobody stands above the thread
            self._say(StoreError(f"the store's writer has ended: {error!r}; restart turnlog"))
        finally:
            self._abandon()
            self._guarded("close the store", self._engine.close)
            self._tell(self._end)

    def _abandon(self) -> None:
        """Refuse what comes from now on, and what is still queued: nobody would write it."""
        with self._lock:
            self._closing = True
            batch, self._queue = [*self._writing, *self._queue], []
            jobs, self._jobs = [*self._running, *self._jobs], []
        closed = StoreClosed(_GONE)
        if batch:
            self._tell(_fail, batch, closed)
        for _, future in jobs:
            self._tell(_settle, future, closed)
        self._tell_rest()

    def _turn(self) -> bool:
        rested = self._sleep.acquire(timeout=AGAIN if self._kept else -1)
        with self._lock:
            if not rested and self._awake:
                # Called while this woke by itself: the next turn must not begin at once.
                self._sleep.acquire()
            self._writing, self._queue = self._queue, []
            jobs = self._running = self._jobs
            self._jobs = []
            self._awake = False
            closing = self._closing
        full = self._again() if self._kept else None
        while self._writing:
            self._write_some(self._writing[:MOST], full)
        while jobs:
            self._do(*jobs[0])
            jobs.pop(0)
        self._guarded("tend the store", self._engine.tend)
        return not closing

    def _write_some(self, batch: list[Pending], full: StoreFull | None) -> None:
        self._write(batch, full)
        self.finished += sum([pending.size for pending in batch])
        with self._lock:
            self._writing = self._writing[len(batch) :]

    def _write(self, batch: list[Pending], full: StoreFull | None) -> None:
        """Write a batch, unless what came before it has no room."""
        error = full or self._put(batch)
        if error:
            self._lost(batch, error)
        elif self._told:
            self._tell_rest()
            self._told = False

    def _put(self, batch: list[Pending]) -> StoreError | None:
        """Write a batch; return why that failed."""
        try:
            along = self._engine.write(batch)
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the thread must outlive a bug; the tickets tell
            return StoreError(f"cannot write {len(batch)} drafts: {error!r}")
        self._tell(_land, batch, along)
        return None

    def _again(self) -> StoreFull | None:
        """Write the outcomes that are kept; return why there is no room yet."""
        for piece in self._kept.pieces():
            error = self._put(piece)
            if isinstance(error, StoreFull):
                return error
            if error:
                self._missed(len(piece), error)
        return None

    def _lost(self, batch: list[Pending], error: StoreError) -> None:
        """Fail a batch. What finds no room and is an outcome is kept, to be tried again."""
        self._tell(_fail, batch, error)
        full = isinstance(error, StoreFull)
        gone = [pending for pending in batch if not (full and self._kept.take(pending))]
        self._missed(sum(pending.lazy for pending in chained(gone)), error)

    def _missed(self, unseen: int, error: StoreError) -> None:
        """Report the first failure of a row of drafts that nobody waits for."""
        if unseen and not self._told:
            self._told = True
            self._say(StoreError(f"{error} ({unseen} drafts were not written)"))
        else:
            self._unsaid += unseen

    def _tell_rest(self) -> None:
        if self._unsaid:
            self._say(StoreError(f"{self._unsaid} more drafts were not written since then"))
        self._unsaid = 0

    def _guarded(self, doing: str, action: Callable[[], None]) -> None:
        try:
            action()
        except StoreError as error:
            self._say(error)
        except Exception as error:  # noqa: BLE001 - the thread must outlive a bug
            self._say(StoreError(f"cannot {doing}: {error!r}; restart turnlog if this comes again"))

    def _say(self, error: StoreError) -> None:
        with suppress(Exception):
            self._report(error)

    def _do(self, job: Callable[[], object], future: "asyncio.Future[Any]") -> None:
        try:
            result = job()
        except StoreError as error:
            self._tell(_settle, future, error)
        except Exception as error:  # noqa: BLE001 - it goes to the caller, who expects errors of one kind
            self._tell(_settle, future, StoreError(f"the store's work failed: {error!r}"))
        else:
            self._tell(_settle, future, None, result)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        # A loop that was closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def chained(batch: Iterable[Pending]) -> list[Pending]:
    """Return every draft of a batch, each before what follows in its chain."""
    found: list[Pending] = []
    for first in batch:
        link: Pending | None = first
        while link is not None:
            found.append(link)
            link = link.more
    return found


def _land(batch: list[Pending], along: list[Pending]) -> None:
    for pending in (*chained(batch), *along):
        pending.land()


def _fail(batch: list[Pending], error: StoreError) -> None:
    for pending in chained(batch):
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
