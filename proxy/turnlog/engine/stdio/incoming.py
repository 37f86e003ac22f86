"""What a wrapped command says, on its way to the client that has started it."""

from typing import Final

from msgspec import structs

from turnlog.core.kinds import Flag
from turnlog.transport.outbox import Outbox
from turnlog.wire.message import LinePiece, LineReader, MessageReader
from turnlog.wire.outcome_key import OutcomeMask, holds_json, without_outcome

from .given_up import Opening
from .pipe import Pipe

HELD: Final = 1 << 20
"""bytes: a longer line leaves while it comes, but for its last piece."""
_FORGED: Final = (Flag.FORGED_OUTCOME,)
_WAITS: Final = 16 << 20
"""bytes: a longer line leaves even where its end would tell what becomes of it."""


class Incoming:
    """The lines of the server on their way to the agent."""

    def __init__(self, pipe: Pipe, to_agent: Outbox) -> None:
        self._pipe = pipe
        self._to_agent = to_agent
        self._body = MessageReader()
        self._opening = Opening.PASSES
        self._kept: list[bytes] = []
        """The pieces of a line of which only its end tells what becomes of it."""
        self._held = b""
        self._reader = LineReader(HELD)
        self._mask: OutcomeMask | None = None
        """What overwrites `turnlog/outcome` in a line that comes in pieces."""

    def take(self, chunk: bytes) -> None:
        """Take what the server says, piece by piece."""
        for piece in self._reader.feed(chunk):
            self._take(piece)

    def finish(self) -> None:
        """Take what is left when it says nothing more."""
        for piece in self._reader.finish():
            self._take(piece)

    def _take(self, piece: LinePiece) -> None:
        """Pass on a line, or the last piece of a long one but this."""
        if piece.starts:
            self._body = MessageReader(self._pipe.keep)
        piece = self._clean(piece)
        self._body.feed(piece.raw)
        if piece.starts and piece.ends:
            self._deliver(piece.raw)
            return
        if piece.starts:
            self._opening = self._pipe.matching.opening(piece.raw)
            self._respelling = self._pipe.respelling()
        match self._opening:
            case Opening.PASSES:
                self._pass(piece.raw, ends=piece.ends)
            case Opening.STAYS:
                if piece.ends:
                    self._pipe.passing(self._body)
            case Opening.WAITS:
                self._wait(piece)

    def _clean(self, piece: LinePiece) -> LinePiece:
        """Return a line, or a piece of one, without outcomes in turnlog's name."""
        if piece.starts:
            self._mask = None
            if self._pipe.is_trusted:
                return piece
            if piece.ends:
                clean = without_outcome(piece.raw) if holds_json(piece.raw) else None
                if clean is None:
                    return piece
                self._body.notes = _FORGED
                return structs.replace(piece, raw=clean)
            self._mask = OutcomeMask(looks=True)
        if self._mask is None:
            return piece
        raw = self._mask.feed(piece.raw) + (self._mask.finish() if piece.ends else b"")
        if self._mask.found:
            self._body.notes = _FORGED
        return structs.replace(piece, raw=raw)

    def _deliver(self, raw: bytes) -> None:
        """Pass on a whole line. Whatever goes wrong in reading along, the line goes on."""
        try:
            self._pipe.deliver(raw, self._body)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._pipe.context.recorder.faulted(error)
            self._to_agent.line(raw)

    def _wait(self, piece: LinePiece) -> None:
        self._kept.append(piece.raw)
        if not piece.ends and self._body.size <= _WAITS:
            return
        raw = b"".join(self._kept)
        self._kept.clear()
        if piece.ends:
            self._deliver(raw)
        else:
            self._opening = Opening.PASSES
            self._pass(raw, ends=False)

    def _pass(self, raw: bytes, *, ends: bool) -> None:
        self._hold(self._respelling.feed(raw))
        if ends:
            tickets, told = self._pipe.passing(self._body)
            last = self._held + self._respelling.finish()
            self._to_agent.piece(last, tickets, told, ends=True)
            self._held = b""

    def _hold(self, raw: bytes) -> None:
        if self._held:
            self._to_agent.piece(self._held, ends=False)
        self._held = raw
