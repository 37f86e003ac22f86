"""Passes the lines of a server on to its agent, in order, and matches their answers with open requests by id.

Whole lines may be held until their outcome is on disk, changed, or withheld. Of a longer line only the
last piece is held; how it goes on is decided at its start.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import structs

from turnlog.core.kinds import Flag
from turnlog.engine.duplicate_index import KEPT
from turnlog.exchange.outcome import is_answer
from turnlog.store.base import Ticket
from turnlog.transport.outbox import OnWritten
from turnlog.wire import mcp
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import (
    Batch,
    Defect,
    Kind,
    Malformed,
    Message,
    id_key,
    texts_of,
)
from turnlog.wire.message import LinePiece, LineReader, MessageReader
from turnlog.wire.outcome_key import OutcomeMask, holds_json, without_outcome
from turnlog.wire.splice import Respelling

from .pipe_carrier import AwaitedAnswer, PipedExchange, respelled
from .stdio_handler import StdioHandler

HELD: Final = 1 << 20
"""bytes: a longer line of the server leaves while it comes, but for its last piece."""
_WAITS: Final = 16 << 20
"""bytes: a longer line leaves even where only its end tells whether it may."""
_FORGED: Final = (Flag.FORGED_OUTCOME,)


class LongLine(StrEnum):
    """The treatment of a long line of the server, decided at its start."""

    PASSES = "passes"
    STAYS = "stays"
    """Withheld: it is late, and the agent already has another answer."""
    WAITS = "waits"
    """Held until its end, which decides."""


class ServerLines:
    """The lines of the server on their way to the agent."""

    def __init__(self, handler: StdioHandler) -> None:
        self._context = handler.context
        self._request = handler.request
        self._process = handler.process
        self._questions = handler.questions
        self._lines = handler.lines
        self._requests = handler.lines.requests
        self._to_agent = handler.lines.to_agent
        self._other = PipedExchange(handler.context, handler.request, ())
        """Reads messages that belong to no request of the agent."""
        self._body = MessageReader()
        self._long_line = LongLine.PASSES
        self._kept: list[bytes] = []
        """The pieces of a line of which only the end tells how it goes on."""
        self._held = b""
        self._reader = LineReader(HELD)
        self._mask: OutcomeMask | None = None
        """Overwrites `turnlog/outcome` in a line that comes in pieces."""

    def feed(self, chunk: bytes) -> None:
        """Read a piece of the server's output."""
        for piece in self._reader.feed(chunk):
            self._read(piece)

    def finish(self) -> None:
        """Read a last line without a newline."""
        for piece in self._reader.finish():
            self._read(piece)

    @property
    def _keep(self) -> int:
        """Bytes of one line that are read along: all of an answer that a duplicate may get."""
        keep = self._context.keep
        return max(keep, KEPT) if self._context.duplicate_index.under_way else keep

    def _read(self, piece: LinePiece) -> None:
        """Pass on a line, or the piece before this one of a long one."""
        if piece.starts:
            self._body = MessageReader(self._keep)
        piece = self._clean(piece)
        self._body.feed(piece.raw)
        if piece.starts and piece.ends:
            self._deliver(piece.raw)
            return
        if piece.starts:
            self._long_line = self._as_long_line(piece.raw)
            self._respelling = Respelling(self._context.calls.spellings(self._request.scope))
        match self._long_line:
            case LongLine.PASSES:
                self._pass(piece.raw, ends=piece.ends)
            case LongLine.STAYS:
                if piece.ends:
                    self._read_long()
            case LongLine.WAITS:
                self._wait(piece)

    def _clean(self, piece: LinePiece) -> LinePiece:
        """Return a line, or a piece of one, without outcomes in turnlog's name."""
        if piece.starts:
            self._mask = None
            if self._request.server in self._context.trusted:
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

    # -- whole lines -----------------------------------------------------------------------

    def _deliver(self, raw: bytes) -> None:
        """Pass on a whole line. Whatever goes wrong in reading along, the line goes on."""
        try:
            self._read_whole(raw, self._body)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._context.recorder.faulted(error)
            self._to_agent.line(raw)

    def _read_whole(self, raw: bytes, body: MessageReader) -> None:
        body.coded_size = len(raw)
        body.finish()
        content = body.content
        if isinstance(content, Message | Outline) and is_answer(content):
            self._deliver_answer(raw, content, body)
        elif isinstance(content, Batch) and any(map(self._is_changed, content.items)):
            for _, each in texts_of(content, raw):
                part = MessageReader(self._keep, notes=body.notes)
                part.feed(each)
                self._read_whole(each + b"\n", part)
        else:
            self._to_agent.line(raw, self._message(content, body))
        self._lines.on_change()

    def _deliver_answer(self, raw: bytes, content: Message | Outline, body: MessageReader) -> None:
        one, is_late, tickets = self._answer(content, body)
        if one is None:
            self._to_agent.line(raw, tickets)
        elif not is_late:
            one.carrier.on_answer(raw, tickets)
        elif not one.is_replaced and one.attempt is not None:
            self._to_agent.line(respelled(one.attempt, raw), tickets)

    # -- messages --------------------------------------------------------------------------

    def _message(
        self, content: Message | Batch | Malformed | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        """Read one line; return what must be on disk before its last byte leaves."""
        match content:
            case Batch(items=items):
                messages = (item for item in items if isinstance(item, Message))
                return [ticket for item in messages for ticket in self._message(item, body)]
            case Malformed():
                self._on_stray(content, body)
                return ()
            case _ if is_answer(content):
                return self._answer(content, body)[2]
            case _:
                self._process.startup.on_message()
                self._on_progress(mcp.progress_token(content))
                if content.id:
                    self._questions[id_key(content.id)] = True
                return self._other.on_message(content, body)

    def _answer(
        self, content: Message | Outline, body: MessageReader
    ) -> tuple[AwaitedAnswer | None, bool, Sequence[Ticket]]:
        """Read a response; return what it answers, whether it is late, and what must be on disk first."""
        self._process.startup.on_message()
        key = self._requests.key_of(content)
        is_late = self._requests.find(key) is None
        one = self._requests.take(key)
        if one is None:
            return None, False, self._other.on_message(content, body)
        exchange = one.carrier.exchange
        if not is_late:
            return one, False, exchange.on_message(content, body)
        assert one.attempt is not None  # only attempts are given up
        return one, True, exchange.late(one.attempt, content, body)

    def _on_progress(self, token: str) -> None:
        for line in self._lines.sent() if token else ():
            attempt = line.exchange.attempt
            if attempt is not None and attempt.deadlines is not None and line.token == token:
                attempt.deadlines.on_data()

    def _on_stray(self, content: Malformed, body: MessageReader) -> None:
        """Flag and log a line that is no message: something else in the server writes to its stdout."""
        if content.reason is Defect.EMPTY:
            return
        for attempt in self._context.calls.of(self._request.scope):
            attempt.marks.add(Flag.STRAY_OUTPUT)
        self._process.log_stray(body.finish(), body.wire_size)

    def _is_changed(self, item: Message | Malformed) -> bool:
        """Return whether the agent must not get an answer as it is: its id is another attempt's, or
        the agent got another answer."""
        if not isinstance(item, Message) or not is_answer(item):
            return False
        key = id_key(item.id)
        late, one = self._requests.late(key), self._requests.find(key)
        attempt = one.carrier.exchange.attempt if one is not None else None
        is_respelled = attempt is not None and attempt.wire_id != b""
        return is_respelled or (late is not None and late.is_replaced)

    # -- lines that are too long to be held ------------------------------------------------

    def _read_long(self) -> tuple[Sequence[Ticket], OnWritten]:
        """Read a whole line; return what its last piece waits for, and what to call once it has left."""
        body = self._body
        body.finish()
        content = body.content
        on_written: OnWritten = None
        if isinstance(content, Message | Outline) and is_answer(content):
            one, is_late, tickets = self._answer(content, body)
            if one is not None and not is_late:
                on_written = one.carrier.on_delivery()
        else:
            tickets = self._message(content, body)
        self._lines.on_change()
        return tickets, on_written

    def _as_long_line(self, start: bytes) -> LongLine:
        """Return how a long line that begins like this goes on."""
        message = mcp.start_of(start)
        if message is not None and message.kind not in {Kind.RESPONSE, Kind.ERROR}:
            return LongLine.PASSES
        if message is None or not message.id:
            # It may be any answer: also a late one, or one that a time limit still counts for.
            is_limited = any(one.is_replaced for one in self._requests.given_up)
            is_limited = is_limited or any(line.is_limited for line in self._lines.sent())
            return LongLine.WAITS if is_limited else LongLine.PASSES
        key = self._requests.key_of(message)
        if (one := self._requests.find(key)) is not None:
            one.carrier.on_answer_begun()
        elif (late := self._requests.late(key)) is not None and late.is_replaced:
            return LongLine.STAYS
        return LongLine.PASSES

    def _wait(self, piece: LinePiece) -> None:
        self._kept.append(piece.raw)
        if not piece.ends and self._body.size <= _WAITS:
            return
        raw = b"".join(self._kept)
        self._kept.clear()
        if piece.ends:
            self._deliver(raw)
        else:
            self._long_line = LongLine.PASSES
            self._pass(raw, ends=False)

    def _pass(self, raw: bytes, *, ends: bool) -> None:
        raw = self._respelling.feed(raw)
        if self._held:
            self._to_agent.piece(self._held, ends=False)
        self._held = raw
        if ends:
            tickets, on_written = self._read_long()
            last = self._held + self._respelling.finish()
            self._to_agent.piece(last, tickets, on_written, ends=True)
            self._held = b""
