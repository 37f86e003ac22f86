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

from .base import StoreError
from .engine import Setup
from .errands import Closed, Errand
from .gathering import Gathering, fail, settle
from .line import Line
from .packing import Outbox, put
from .parcels import Delivery, Place, framed, read_receipt
from .room import Room
from .scribe import MOST
from .tickets import Pending, chained

PIECE = 32
"""Drafts that are sent without waiting for what else the loop will submit in this turn: they are
written while the loop makes the others."""
TRIES = 4
"""Processes in a row that may die, or not start, without having done anything."""
PAUSE = 1.0
"""Seconds before another is started: none at first, then this, then twice as long."""
REST = 30.0
"""Seconds before another is started once so many have failed: meanwhile nothing is written."""


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


class Apart(Gathering):
    """A queue of drafts with a process behind it. Belongs to the loop."""

    def __init__(self, setup: Setup, loop: asyncio.AbstractEventLoop, source: Source) -> None:
        """Start the process; `setup.after` is where the log ends. Raises `StoreError`."""
        super().__init__(loop)
        self._setup = setup
        self._source = source
        self._sent: dict[int, Pending] = {}
        """By number, in order: what no receipt has told of, the first of each chain."""
        self._kept: dict[int, Pending] = {}
        """Those that found no room, and are tried again."""
        self._failed: WeakValueDictionary[int, Pending] = WeakValueDictionary()
        """Those that may yet be written along with what follows them, as long as somebody has them."""
        self._errands: dict[int, tuple[Errand, int, asyncio.Future[Closed]]] = {}
        self._newest = 0
        """The latest number."""
        self._last = setup.after or 0
        """Position of the newest commit that a receipt has told of."""
        self._deaths = 0
        """Of processes, since one has written something, or run an errand."""
        # The first has nobody before it.
        self._line: Line | None = self._another(structs.replace(setup, after=None))

    def submit(self, pending: Pending, wait: bool) -> None:
        link: Pending | None = pending
        while link is not None:
            self._newest = link.number = self._newest + 1
            link = link.more
        super().submit(pending, wait)
        if wait and len(self._gathered) >= PIECE:
            self._hand_over()

    async def run(self, errand: Errand, at: int = 0) -> Closed:
        """Have an errand run, behind what is queued. Raises `StoreError`."""
        self._check_open()
        if self.down:
            raise StoreError(self.down)
        self._hand_over()
        number = self._newest = self._newest + 1
        future: asyncio.Future[Closed] = self._loop.create_future()
        self._errands[number] = (errand, at, future)
        self._send(errands=((number, errand, at),))
        return await future

    async def stop(self) -> None:
        """Write what is queued, then end the process. May be called again."""
        if not self._closing:
            self._hand_over()
            self._closing = True
            if self.down:
                self._end()
            self._send(is_last=True)
        await self._until_ended()

    def _hand_over(self) -> None:
        gathered = self._take()
        if self.down:
            self._refuse(gathered, StoreError(self.down))
        elif gathered:
            for pending in gathered:
                self._sent[pending.number] = pending
            self._deliver(gathered)

    def _deliver(self, drafts: Sequence[Pending]) -> None:
        try:
            self._send(drafts)
        except Exception as error:  # noqa: BLE001 - whatever cannot be packed: who waits for it must hear
            if len(drafts) == 1:
                self._lose((drafts[0].number,), (), StoreError(f"cannot write a draft: {error!r}"))
            else:
                # Those beside it can do nothing for it.
                for one in drafts:
                    self._deliver((one,))

    def _send(
        self,
        drafts: Sequence[Pending] = (),
        errands: tuple[tuple[int, Errand, int], ...] = (),
        *,
        is_last: bool = False,
    ) -> None:
        """Send to the process, if there is one: another gets what there is when it starts."""
        if self._line is None:
            return
        delivery = Delivery(
            self._source.now(),
            self._source.clock(),
            next(iter(self._sent), self._newest + 1),
            [self._outbox.pack(pending) for pending in drafts],
            errands,
            is_last,
        )
        self._line.send(framed(delivery))
        for intent in self._outbox.take_along():
            self._failed[intent.number] = intent

    def _hear(self, message: bytes) -> None:
        receipt = read_receipt(message)
        self._source.room.spare = receipt.spare
        self._set_failing(receipt.failing.error() if receipt.failing else None)
        if receipt.landed or receipt.done:
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

    def _another(self, setup: Setup) -> Line:
        """Start a process. Raises `StoreError`."""
        line = Line(setup, self._loop, self._hear, self._break)
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
        if self._deaths < TRIES:
            self._loop.call_later(PAUSE * (self._deaths - 1), self._start_again)
            waiting = len(self._kept) + len(self._sent)
            self._say(StoreError(f"{said}; another goes on (drafts that wait: {waiting})"))
            return
        self.down = (
            f"{said}, as {self._deaths - 1} before it that did nothing; another is started every "
            f"{REST:.0f} s, and nothing is written until one works"
        )
        self._give_up(StoreError(self.down))
        if self._closing:
            self._end()
        else:
            self._loop.call_later(REST, self._start_again)

    def _start_again(self) -> None:
        """Have another process write what the one before did not tell of."""
        if self._ended.done():
            return
        try:
            self._line = self._another(structs.replace(self._setup, after=self._last))
        except StoreError as error:
            self._mourn(str(error))
            return
        self.down = ""
        drafts = [*self._kept.values(), *self._sent.values()]
        for start in range(0, len(drafts), MOST):
            self._deliver(drafts[start : start + MOST])
        errands = tuple((number, *found[:2]) for number, found in self._errands.items())
        if errands or self._closing:
            self._send(errands=errands, is_last=self._closing)

    def _give_up(self, error: StoreError) -> None:
        """Refuse what is queued: nobody waits until it might be written, and it may be what kills."""
        self._lose([*self._kept, *self._sent], (), error)
        self._refuse(self._take(), error)
        errands, self._errands = self._errands, {}
        for _, _, future in errands.values():
            settle(future, error)
        self._say(error)

    def _refuse(self, gathered: Sequence[Pending], error: StoreError) -> None:
        self.finished += sum([pending.size for pending in gathered])
        self._guarded(fail, gathered, error)

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
