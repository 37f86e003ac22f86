"""Reads a command's output as whole lines, while there is room for them."""

import asyncio
from collections.abc import Callable
from typing import Final

from turnlog.wire.message import LinePiece, LineReader

from .process import GRACE, Process
from .reply import CommandReply

LONGEST: Final = 64 << 20
"""bytes: a command that writes a longer line is ended."""
_LINE: Final = 1 << 20
"""bytes: a longer line is put together from pieces."""


class OutputLines:
    """Reads one process. `take` gets each of its lines, without what ends it.

    `crowded` tells which answer its agent leaves too much of unread, if any.
    """

    def __init__(
        self,
        process: Process,
        take: Callable[[bytes], None],
        crowded: Callable[[], CommandReply | None],
    ) -> None:
        self._process = process
        self._reader = LineReader(_LINE)
        self._take = take
        self._crowded = crowded
        self._parts: list[bytes] = []
        self._size = 0
        self._waits_for: CommandReply | None = None
        self._lifted = False

    def take(self, chunk: bytes) -> None:
        """Read a piece of its output; nothing more after a line that is too long."""
        if self._size > LONGEST:
            return
        for piece in self._reader.feed(chunk):
            self._add(piece)
        if self._size > LONGEST:
            self._parts.clear()
            self._process.leave()

    async def room(self) -> None:
        """Wait until its agents have read enough, or there is an end to waiting."""
        while not self._lifted and (reply := self._crowded()) is not None:
            self._waits_for = reply
            await reply.room()

    def lift(self) -> None:
        """Wait for no agent any more."""
        self._lifted = True
        if self._waits_for is not None:
            self._waits_for.lift()

    def unheard(self) -> None:
        """End it soon: it may yet answer what it has read, but nothing else."""
        asyncio.get_running_loop().call_later(GRACE, self._process.leave)

    async def finish(self) -> None:
        """Read a last line that has no end."""
        for piece in self._reader.finish():
            self._add(piece)

    def _add(self, piece: LinePiece) -> None:
        self._parts.append(piece.raw)
        self._size += len(piece.raw)
        if piece.ends:
            whole = b"".join(self._parts).rstrip(b"\r\n")
            self._parts.clear()
            self._size = 0
            self._take(whole)
