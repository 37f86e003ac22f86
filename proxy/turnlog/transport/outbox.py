"""The queue of lines to a pipe: sent in order, each once its outcome is on disk."""

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
"""bytes: with more than this queued nothing more is read from the other side."""
OnWritten = Callable[[], None] | None
"""Called when a line was written whole."""
_Write = tuple[bytes, Sequence[Ticket], OnWritten]


class Outbox:
    """The queue of lines to one write end; a line sent in pieces is not interrupted by others."""

    def __init__(self, end: WriteEnd, recorder: Recorder) -> None:
        self.end = end
        self._recorder = recorder
        self._writes: deque[_Write] = deque()
        self._queued_lines: list[_Write] = []
        """Lines that wait until the one that is sent in pieces has ended."""
        self._is_in_pieces = False
        self._torn = False
        """Whether the last line was sent without a newline, because the stream that it came from has ended."""
        self._size = 0
        self._room = ROOM
        self.is_closing = False
        """Whether no more lines are sent: there is no reader, or the end is to be closed."""
        self._is_idle = False
        """Whether `run` waits for a line."""
        self._changed = asyncio.Event()

    def line(
        self, raw: bytes, tickets: Sequence[Ticket] = (), on_written: OnWritten = None
    ) -> None:
        """Send a whole line once the commits of `tickets` are on disk."""
        if self._is_in_pieces:
            self._queued_lines.append((raw, tickets, on_written))
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
        """Send a piece of a line that is sent in pieces; `ends` with the last one."""
        self._is_in_pieces = not ends
        self._add(raw, tickets, on_written)
        if not ends:
            return
        self._torn = not raw.endswith(b"\n")
        queued, self._queued_lines = self._queued_lines, []
        for line, its_tickets, its_callback in queued:
            self._size -= len(line)
            self.line(line, its_tickets, its_callback)

    def close(self) -> None:
        """Close the end once everything is sent."""
        self.is_closing = True
        self._changed.set()

    def remove_limit(self) -> None:
        """Accept lines without a bound: there may be no reader any more, and they are few."""
        self._room = sys.maxsize
        self._changed.set()

    @property
    def has_room(self) -> bool:
        """Whether more lines may be added."""
        return self._size <= self._room or self.is_closing

    async def wait_for_room(self) -> None:
        """Wait while too much is queued."""
        while not self.has_room:
            await self._wait_for_change()

    async def run(self) -> None:
        """Write until closed. Raises `BrokenPipeError` when there is no reader."""
        try:
            while self._writes or not self.is_closing:
                if not self._writes:
                    self._is_idle = True
                    await self._wait_for_change()
                    self._is_idle = False
                    continue
                raw, tickets, on_written = self._writes.popleft()
                if tickets:
                    await self._recorder.settle(tickets)
                await self.end.write(raw)
                if on_written is not None:
                    on_written()
                self._size -= len(raw)
                self._changed.set()
        finally:
            self.is_closing = True
            self._writes = deque(maxlen=0)  # nothing is kept any more
            self._changed.set()
            self.end.close()

    def _add(self, raw: bytes, tickets: Sequence[Ticket], on_written: OnWritten) -> None:
        # Most lines wait for nothing, and are written without a turn of the loop, as in asyncio's transports.
        if self._is_idle and not (self._writes or tickets or on_written):
            with suppress(BrokenPipeError):  # `run` gets it again
                raw = bytes(self.end.write_now(raw))
                if not raw:
                    return
        self._writes.append((raw, tickets, on_written))
        self._size += len(raw)
        self._changed.set()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
