"""Lines on their way out through a pipe, in order, each once its outcome is on disk."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from turnlog.record.recorder import Recorder
from turnlog.store.base import Ticket

from .async_pipes import WriteEnd

ROOM: Final = 4 << 20
"""bytes: with more than this on its way nothing more is read from the other side."""
OnWritten = Callable[[], None] | None
"""Called when a line was handed over whole."""
_Parcel = tuple[bytes, Sequence[Ticket], OnWritten]


class Outbox:
    """The queue of lines to one write end; a line sent in pieces is not interrupted by others."""

    def __init__(self, end: WriteEnd, recorder: Recorder) -> None:
        self.end = end
        self._recorder = recorder
        self._parcels: deque[_Parcel] = deque()
        self._behind: list[_Parcel] = []
        """Lines that wait until the one that comes in pieces is over."""
        self._in_line = False
        self._torn = False
        """Whether the last line came without its newline: the stream it came from has ended."""
        self._size = 0
        self._room = ROOM
        self.is_closing = False
        """Whether nothing more is to leave: there is no reader, or it gets the end."""
        self._is_idle = False
        """Whether `run` waits for a line."""
        self._changed = asyncio.Event()

    def line(
        self, raw: bytes, tickets: Sequence[Ticket] = (), on_written: OnWritten = None
    ) -> None:
        """Send a whole line once what `tickets` stand for is on disk."""
        if self._in_line:
            self._behind.append((raw, tickets, on_written))
            self._size += len(raw)
        else:
            self._add(b"\n" + raw if self._torn else raw, tickets, on_written)
            self._torn = not raw.endswith(b"\n")

    def piece(
        self,
        raw: bytes,
        tickets: Sequence[Ticket] = (),
        on_written: OnWritten = None,
        *,
        ends: bool,
    ) -> None:
        """Send a piece of the line that comes in pieces."""
        self._in_line = not ends
        self._add(raw, tickets, on_written)
        if not ends:
            return
        self._torn = not raw.endswith(b"\n")
        behind, self._behind = self._behind, []
        for waiting, its, teller in behind:
            self._size -= len(waiting)
            self.line(waiting, its, teller)

    def close(self) -> None:
        """Close the end when everything has left."""
        self.is_closing = True
        self._changed.set()

    def lift(self) -> None:
        """Accept lines without a bound: there may be no reader any more, and they are few."""
        self._room = sys.maxsize
        self._changed.set()

    @property
    def has_room(self) -> bool:
        """Whether more may come."""
        return self._size <= self._room or self.is_closing

    async def room(self) -> None:
        """Wait while too much is on its way."""
        while not self.has_room:
            await self._changes()

    async def run(self) -> None:
        """Write until closed. Raises `BrokenPipeError` when there is no reader."""
        try:
            while self._parcels or not self.is_closing:
                if not self._parcels:
                    self._is_idle = True
                    await self._changes()
                    self._is_idle = False
                    continue
                raw, tickets, on_written = self._parcels.popleft()
                if tickets:
                    await self._recorder.settle(tickets)
                await self.end.write(raw)
                if on_written is not None:
                    on_written()
                self._size -= len(raw)
                self._changed.set()
        finally:
            self.is_closing = True
            self._parcels = deque(maxlen=0)  # nothing is kept any more
            self._changed.set()
            self.end.close()

    def _add(self, raw: bytes, tickets: Sequence[Ticket], on_written: OnWritten) -> None:
        # Most lines wait for nothing, and leave without a turn of the loop, as in asyncio's transports.
        if self._is_idle and not (self._parcels or tickets or on_written):
            with suppress(BrokenPipeError):  # `run` finds that out
                raw = bytes(self.end.write_now(raw))
                if not raw:
                    return
        self._parcels.append((raw, tickets, on_written))
        self._size += len(raw)
        self._changed.set()

    async def _changes(self) -> None:
        self._changed.clear()
        await self._changed.wait()
