"""The writer in a process of its own, as the proxy sees it: what `writer` is with a thread.

The loop sends drafts and reads receipts; both take it as long as making the bytes takes, and no longer.
When the process dies another is started, and what it had not told of is written again: a commit
that is on disk already is found there, and not written twice.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from msgspec import Struct, structs

from .base import StoreClosed, StoreError
from .line import Line
from .parcels import (
    Closed,
    Delivery,
    Errand,
    Opening,
    Outbox,
    Parcel,
    Place,
    framed,
    put,
    read_receipt,
)
from .room import Room
from .scribe import MOST, chained
from .tickets import Pending
from .writer import GONE, LAZY, fail, settle

PIECE = 32
"""Drafts that are sent without waiting for what else the loop will submit in this turn: they are
written while the loop makes the others."""
TRIES = 4
"""Processes in a row that may die, or not start, without having written anything."""
PAUSE = 1.0
"""Seconds before another is started: none at first, then this, then twice as long."""


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
        """Start the process; `opening.after` is where the log ends. Raises `StoreError`."""
        self._opening = opening
        self._loop = loop
        self._source = source
        self.submitted = self.finished = 0
        """Bytes of all drafts, and of those that were written or have failed."""
        self._gathered: list[Pending] = []
        self._sent: dict[int, Pending] = {}
        """By number, in order: what no receipt has told of, the first of each chain."""
        self._kept: dict[int, Pending] = {}
        """Those that found no room, and are tried again."""
        self._failed: WeakValueDictionary[int, Pending] = WeakValueDictionary()
        """Those that may yet be written along with what follows them, as long as somebody has them."""
        self._errands: dict[int, tuple[Errand, int, asyncio.Future[Closed]]] = {}
        self._newest = 0
        """The latest number."""
        self._last = opening.after or 0
        """Position of the newest commit that a receipt has told of."""
        self._deaths = 0
        """Of processes, since one has written something."""
        self._called = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = loop.create_future()
        # The first has nobody before it.
        self._line: Line | None = self._another(structs.replace(opening, after=None))

    @property
    def process(self) -> int | None:
        """The id of the process, if there is one at the moment."""
        return self._line.pid if self._line is not None else None

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
        elif len(self._gathered) >= PIECE:
            self._hand_over()
        elif not self._called:
            # Once the loop has done all that is ready, so that its calls share one transaction.
            self._called = True
            self._loop.call_soon(self._call)

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

    def _hand_over(self) -> None:
        """Send what was gathered, unless the writer has ended by itself meanwhile."""
        gathered, self._gathered = self._gathered, []
        if self._ended.done():
            fail(gathered, StoreClosed(GONE))
        elif gathered:
            for pending in gathered:
                self._sent[pending.number] = pending
            self._deliver(gathered)

    def _deliver(
        self,
        drafts: Sequence[Pending] = (),
        errands: tuple[tuple[int, Errand, int], ...] = (),
        *,
        is_last: bool = False,
    ) -> None:
        """Send to the process, if there is one: another gets what there is when it starts."""
        if self._line is None:
            return
        source, parcels = self._source, list[Parcel]()
        oldest = next(iter(self._sent), self._newest + 1)
        try:
            parcels += map(self._outbox.pack, drafts)
            data = framed(Delivery(source.now(), source.clock(), oldest, parcels, errands, is_last))
        except Exception as error:  # noqa: BLE001 - a bug; nobody who waits may be left without an answer
            self._lose(
                [pending.number for pending in drafts],
                (),
                StoreError(f"cannot write {len(drafts)} drafts: {error!r}"),
            )
            data = framed(Delivery(source.now(), source.clock(), oldest, [], errands, is_last))
        self._line.send(data)
        for intent in self._outbox.take_along():
            self._failed[intent.number] = intent

    def _hear(self, message: bytes) -> None:
        receipt = read_receipt(message)
        self._source.room.spare = receipt.spare
        if receipt.landed:
            self._deaths = 0
        for number, places in receipt.landed:
            self._land(number, places)
        for lost in receipt.lost:
            self._lose(lost.numbers, lost.kept, lost.trouble.error())
        for number, closed, trouble in receipt.done:
            _, _, future = self._errands.pop(number)
            settle(future, trouble.error() if trouble else None, closed)
        for reason in receipt.reports:
            self._say(StoreError(reason))
        if receipt.trimmed:
            self._guarded(self._source.trimmed, receipt.trimmed)

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
            self._last = max(self._last, place.position)
            self._guarded(pending.land)
            if place.refused is not None:
                self._failed[pending.number] = pending
            pending = pending.more

    def _lose(self, numbers: Iterable[int], kept: Collection[int], error: StoreError) -> None:
        for number in numbers:
            pending = self._sent.pop(number, None)
            if pending is not None:
                self.finished += pending.size
            else:
                # It was tried again.
                pending = self._kept.pop(number, None)
            if pending is None:
                continue
            if number in kept:
                self._kept[number] = pending
            for one in chained((pending,)):
                self._failed[one.number] = one
            self._guarded(fail, (pending,), error)

    def _another(self, opening: Opening) -> Line:
        """Start a process. Raises `StoreError`."""
        line = Line(opening, self._loop, self._hear, self._break)
        self._outbox = Outbox(self._newest)
        return line

    def _break(self) -> None:
        """Start another process, unless the one that has ended has done all that it should."""
        if self._line is None:
            return
        pid, code = self._line.pid, self._line.close()
        self._line = None
        if self._closing and code == 0:
            self._end()
        else:
            self._mourn(f"the process that writes the store ({pid}) has ended with {code}")

    def _mourn(self, said: str) -> None:
        self._deaths += 1
        if self._deaths >= TRIES:
            self._give_up(StoreError(f"{said}, and those before it wrote nothing; restart turnlog"))
            return
        waiting = len(self._kept) + len(self._sent)
        self._loop.call_later(PAUSE * (self._deaths - 1), self._start_again)
        self._say(StoreError(f"{said}; another writes the {waiting} drafts that wait"))

    def _start_again(self) -> None:
        """Have another process write what the one before did not tell of."""
        try:
            self._line = self._another(structs.replace(self._opening, after=self._last))
        except StoreError as error:
            self._mourn(str(error))
            return
        drafts = [*self._kept.values(), *self._sent.values()]
        for start in range(0, len(drafts), MOST):
            self._deliver(drafts[start : start + MOST])
        errands = tuple((number, *found[:2]) for number, found in self._errands.items())
        if errands or self._closing:
            self._deliver((), errands, is_last=self._closing)

    def _give_up(self, error: StoreError) -> None:
        """Refuse what comes from now on, and what is still queued: nobody would write it."""
        self._closing = True
        closed = StoreClosed(GONE)
        self._lose([*self._kept, *self._sent], (), closed)
        gathered, self._gathered = self._gathered, []
        self._guarded(fail, gathered, closed)
        errands, self._errands = self._errands, {}
        for _, _, future in errands.values():
            settle(future, closed)
        self._say(error)
        self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._guarded(self._source.ended)

    def _say(self, error: StoreError) -> None:
        with suppress(Exception):
            self._source.report(error)

    def _guarded(self, tell: Callable[..., None], *args: object) -> None:
        """Tell somebody: what goes wrong there is told to the loop, and ends nothing here."""
        try:
            tell(*args)
        except Exception as error:  # noqa: BLE001 - all others that wait must hear as well
            self._loop.call_exception_handler(
                {"message": "told of what was written, somebody failed", "exception": error}
            )
