"""The writer in a process of its own, as the proxy sees it: what `writer` is with a thread.

The loop sends drafts and reads receipts; it never blocks, and shares its interpreter with nobody.
When the process dies another is started, and what it had not told of is written again: a commit
that is on disk already is found there, and not written twice.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from .base import StoreClosed, StoreError
from .line import Line
from .parcels import (
    Closed,
    Delivery,
    Errand,
    Opening,
    Outbox,
    Place,
    framed,
    put,
    read_receipt,
)
from .room import Room
from .scribe import chained
from .tickets import Pending
from .writer import GONE, LAZY, fail, settle

PIECE = 16
"""Drafts that are sent without waiting for what else the loop will submit in this turn."""
TRIES = 3
"""Processes in a row that may die without having written anything."""
_FAILED: Final = 1024
"""Failed drafts that are remembered: an outcome may take its intent along."""


class Source(Struct, frozen=True, kw_only=True):
    """What a writer in a process of its own has to do with the rest of its store."""

    now: Callable[[], int]
    """Wall clock, ns UTC."""
    clock: Callable[[], int]
    """Monotonic clock, ns."""
    report: Callable[[StoreError], None]
    """Gets the errors that no caller would see."""
    trimmed: Callable[[int], None]
    """Gets the bytes of content that were given up to make room."""
    ended: Callable[[], None]
    """Called once nothing will be written any more."""
    room: Room
    """Is told what the process measures."""


class Apart:
    """A queue of drafts with a process behind it. Belongs to the loop."""

    def __init__(self, opening: Opening, loop: asyncio.AbstractEventLoop, source: Source) -> None:
        """Start the process. Raises `StoreError`."""
        self._opening = opening
        self._loop = loop
        self._source = source
        self.submitted = self.finished = 0
        """Bytes of all drafts, and of those that were written or have failed."""
        self._newest = 0
        """The latest number."""
        self._gathered: list[Pending] = []
        self._sent: dict[int, Pending] = {}
        """By number, in order: what no receipt has told of, the first of each chain."""
        self._kept: dict[int, Pending] = {}
        """Those that found no room, and are tried again."""
        self._failed: dict[int, Pending] = {}
        self._errands: dict[int, tuple[Errand, int, asyncio.Future[Closed]]] = {}
        self._deaths = 0
        """Of processes, since one has written something."""
        self._called = False
        self._awaited = False
        """Whether the process was told that more follows."""
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = loop.create_future()
        self._line = self._start()

    def submit(self, pending: Pending, wait: bool) -> None:
        """Queue a draft. Raises `StoreClosed`."""
        if self._closing:
            raise StoreClosed("the store is closed; open it again to write")
        link: Pending | None = pending
        while link is not None:
            self._newest = link.number = self._newest + 1
            link = link.more
        self._gathered.append(pending)
        self.submitted += pending.size
        if not wait:
            if self._timer is None:
                self._timer = self._loop.call_later(LAZY, self._ring)
        elif not self._called:
            self._called = True
            self._loop.call_soon(self._call)
        elif len(self._gathered) >= PIECE:
            # It gets its place in the log while the loop makes what comes behind it.
            self._hand_over(more_follows=True)

    async def run(self, errand: Errand, at: int = 0) -> Closed:
        """Have an errand run, behind what is queued. Raises `StoreError`."""
        if self._closing:
            raise StoreClosed("the store is closed; open it again to write")
        self._hand_over()
        number = self._newest = self._newest + 1
        future: asyncio.Future[Closed] = self._loop.create_future()
        self._errands[number] = (errand, at, future)
        self._deliver((), ((number, errand, at),))
        return await future

    async def stop(self) -> None:
        """Write what is queued, then end the process. May be called again."""
        if not self._closing:
            self._hand_over()
            self._closing = True
            self._deliver((), is_last=True)
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.shield(self._ended)

    def _call(self) -> None:
        self._called = False
        self._hand_over()

    def _ring(self) -> None:
        self._timer = None
        self._hand_over()

    def _hand_over(self, *, more_follows: bool = False) -> None:
        """Send what was gathered, unless the writer has ended by itself meanwhile."""
        gathered, self._gathered = self._gathered, []
        if self._ended.done():
            fail(gathered, StoreClosed(GONE))
            return
        for pending in gathered:
            self._sent[pending.number] = pending
        if gathered or self._awaited:
            self._awaited = more_follows
            self._deliver(gathered, more_follows=more_follows)

    def _deliver(
        self,
        drafts: Sequence[Pending],
        errands: tuple[tuple[int, Errand, int], ...] = (),
        *,
        more_follows: bool = False,
        is_last: bool = False,
    ) -> None:
        try:
            data = framed(
                Delivery(
                    self._source.now(),
                    self._source.clock(),
                    next(iter(self._sent), self._newest + 1),
                    [self._outbox.pack(pending) for pending in drafts],
                    errands,
                    more_follows,
                    is_last,
                )
            )
        except Exception as error:  # noqa: BLE001 - a bug; nobody who waits may be left without an answer
            numbers = [pending.number for pending in drafts]
            self._lose(numbers, (), StoreError(f"cannot write {len(numbers)} drafts: {error!r}"))
        else:
            self._line.send(data)
        for intent in self._outbox.along:
            self._remember(intent)
        self._outbox.along.clear()

    def _hear(self, message: bytes) -> None:
        receipt = read_receipt(message)
        self._source.room.spare = receipt.spare
        if receipt.landed or receipt.lost or receipt.done:
            self._deaths = 0
        for number, places in receipt.landed:
            self._land(number, places)
        for lost in receipt.lost:
            self._lose(lost.numbers, lost.kept, lost.trouble.error())
        for number, closed, trouble in receipt.done:
            _, _, future = self._errands.pop(number)
            settle(future, trouble.error() if trouble else None, closed)
        for reason in receipt.reports:
            self._source.report(StoreError(reason))
        if receipt.trimmed:
            self._source.trimmed(receipt.trimmed)

    def _land(self, number: int, places: list[Place]) -> None:
        pending = self._sent.pop(number, None)
        if pending is not None:
            self.finished += pending.size
        else:
            pending = self._kept.pop(number, None) or self._failed.pop(number, None)
        for place in places:
            if pending is None:
                break
            put(pending, place)
            pending.land()
            if place.refused is not None:
                self._remember(pending)
            pending = pending.more

    def _lose(self, numbers: Iterable[int], kept: Sequence[int], error: StoreError) -> None:
        for number in numbers:
            pending = self._sent.pop(number, None)
            if pending is not None:
                self.finished += pending.size
            else:
                # It was tried again by another process.
                pending = self._kept.pop(number, None)
            if pending is None:
                continue
            if number in kept:
                self._kept[number] = pending
            else:
                for one in chained((pending,)):
                    self._remember(one)
            fail((pending,), error)

    def _remember(self, pending: Pending) -> None:
        """Keep a failed draft for a while: what was sent meanwhile may take it along."""
        self._failed[pending.number] = pending
        while len(self._failed) > _FAILED:
            del self._failed[next(iter(self._failed))]

    def _start(self) -> Line:
        self._outbox = Outbox(self._newest)
        return Line(self._opening, self._loop, self._hear, self._break)

    def _break(self) -> None:
        """Start another process, and have it write what the one that has ended did not tell of."""
        pid, code = self._line.pid, self._line.close()
        if self._closing and not (self._sent or self._errands):
            self._end()
            return
        self._deaths += 1
        ended = f"the process that writes the store ({pid}) has ended with {code}"
        if self._deaths >= TRIES:
            self._give_up(StoreError(f"{ended}, as did those before it; restart turnlog"))
            return
        try:
            self._line = self._start()
        except StoreError as error:
            self._give_up(error)
            return
        drafts = [*self._kept.values(), *self._sent.values()]
        again = f"; another writes what it had not, {len(drafts)} drafts"
        self._source.report(StoreError(ended + again))
        errands = tuple((number, *found[:2]) for number, found in self._errands.items())
        self._deliver(drafts, errands, is_last=self._closing)

    def _give_up(self, error: StoreError) -> None:
        """Refuse what comes from now on, and what is still queued: nobody would write it."""
        self._closing = True
        self._end()
        self._source.report(error)
        closed = StoreClosed(GONE)
        self._lose([*self._kept, *self._sent], (), closed)
        self._hand_over()
        errands, self._errands = self._errands, {}
        for _, _, future in errands.values():
            settle(future, closed)

    def _end(self) -> None:
        self._ended.set_result(None)
        self._source.ended()
