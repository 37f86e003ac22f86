"""A line of the agent that is too large to hold, on its way to the server in pieces."""

import asyncio

from turnlog.transport.outbox import ROOM, Outbox
from turnlog.wire.message import LinePiece

from .pipe_carrier import PipeCarrier


class LargeLine:
    """Takes the pieces of one line: passes them on, drops them, or keeps them until that is decided.

    While its call waits for a slot, it keeps up to `ROOM` bytes beside the start, so that the lines
    behind it can be read.
    """

    def __init__(self, outbox: Outbox, carrier: PipeCarrier | None, *, passes: bool | None) -> None:
        """`carrier` is `None` where the line is not recorded; `passes` while that is not decided."""
        self._outbox = outbox
        self._carrier = carrier
        self._passes = passes
        self._kept: list[LinePiece] = []
        self._decided = asyncio.Event()

    async def feed(self, piece: LinePiece) -> None:
        """Take the next piece; wait while there is no room for another one."""
        if self._passes is not None:
            self._pass_on(piece)
            return
        self._kept.append(piece)
        if not piece.ends and sum(len(kept.raw) for kept in self._kept[1:]) > ROOM:
            await self._decided.wait()

    def decide(self, *, passes: bool) -> None:
        """Pass on what is kept, and what follows, or drop it."""
        self._passes = passes
        kept, self._kept = self._kept, []
        if kept and kept[-1].ends:
            # Another line may be under way in pieces.
            kept = [LinePiece(b"".join(piece.raw for piece in kept), True, True)]
        for piece in kept:
            self._pass_on(piece)
        self._decided.set()

    def _pass_on(self, piece: LinePiece) -> None:
        if not self._passes:
            return
        if piece.starts and piece.ends:
            self._outbox.line(piece.raw)
        else:
            self._outbox.piece(piece.raw, ends=piece.ends)
        if piece.ends and self._carrier is not None:
            self._carrier.on_sent()
