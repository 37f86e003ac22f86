"""An answer on its way from the upstream to the agent, of which the exchange reads a copy.

Of an answer to a recorded call the last piece is held back until its outcome is on disk: of an event
stream the event that holds the response, of JSON the last chunk, of an answer without body the head.
JSON of known and moderate length goes out in one piece, and so does an event of up to `HOLD` bytes, to
which its outcome may be added. While a rule may want another attempt, so does everything.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, TypeVarTuple

from msgspec import Struct, structs

from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.engine.command.reply import CommandReply
from turnlog.engine.mcp.mcp_exchange import McpExchange
from turnlog.exchange.delivery import BrokenAnswer
from turnlog.record.own_answers import call_lines
from turnlog.record.recorder import Recorder
from turnlog.store.base import Ticket
from turnlog.transport.http_client import Answer, Failure
from turnlog.transport.message_heads import Raw
from turnlog.wire.http.content_coding import ContentDecoder, decoder_for
from turnlog.wire.http.head import Body, changed_body, fields, lines
from turnlog.wire.http.response_head import ResponseHead
from turnlog.wire.message import MessageReader
from turnlog.wire.outcome_key import (
    MASK,
    EitherMask,
    OtherReadings,
    OutcomeMask,
    has_hint,
    holds_json,
    is_wide,
    mask_for,
    without_mask,
    without_outcome,
)
from turnlog.wire.splice import Respelling, as_event, with_data
from turnlog.wire.sse import Event, EventReader

from .agent_side import AgentSide
from .plain import PlainCall

HOLD: Final = 1 << 20
"""bytes: more than this is not held back."""
Gate = Callable[[], bool]
"""Asked once, when it is known how an attempt ended: may its answer go to the agent?"""
Exchange = McpExchange | PlainCall
"""One request of an agent, and what reads its answers: MCP messages, or a plain HTTP call."""
_Said = TypeVarTuple("_Said")
_EVENTS: Final = "text/event-stream"
# To look a member up costs more than to compare it.
_NONE: Final = Body.NONE
_USUAL: Final = b'{"'
"""What most answers begin with; none of several bytes to a letter does."""
_DECODED: Final = 16 << 20
"""bytes: an encoded answer that grows beyond this is not read any further (it is relayed)."""
_FORGED: Final = (Flag.FORGED_OUTCOME,)
_UNSEARCHED: Final = (Flag.NOT_SEARCHED,)
_FORGED_DETAIL: Final = (
    "it speaks in turnlog's name, and its coding keeps that from being taken out"
)


class HeldAnswer(Struct, frozen=True):
    """A whole withheld answer. `lines` are the lines of its head, each with CRLF before it."""

    way: AgentSide
    status: int
    reason: bytes
    lines: bytes
    body: bytes | None
    """`None` for an answer that never has a body."""

    async def send(self) -> None:
        """Send the answer."""
        if self.body is None:
            await self.way.bodiless(self.status, self.reason, self.lines)
        else:
            await self.way.answer(self.status, self.reason, self.lines, self.body)


class Withheld(Exception):
    """Raised instead of sending an answer that is withheld: a retry follows, or another answer is better."""

    def __init__(self, held: HeldAnswer) -> None:
        super().__init__()
        self.held = held


# One is made for each call, and a struct takes a third of the time of another class.
class ResponseBuffer(Struct, eq=False):
    """The buffer between one attempt's answer and the agent. Raises `Gone` if the agent has left.

    With a `gate` nothing is sent before the gate was asked, unless more than `HOLD` bytes are held. A
    `respelling` replaces the attempt's id in the answer by the caller's, which changes the length.
    """

    _down: AgentSide
    gate: Gate | None
    respelling: Respelling | None
    _head: tuple[int, bytes, bytes, int | None] | None = None
    _held: list[bytes] = []
    _size: int = 0
    _is_withheld: bool = False
    left: bool = False
    """Whether part of the answer was sent, or can no longer be withheld."""

    def judged(self) -> None:
        """Open the gate once the answer is judged; if it stays shut, sending raises `Withheld`."""
        gate, self.gate = self.gate, None
        if gate is not None and not gate():
            self.withhold()

    def withhold(self) -> None:
        """Keep the answer from leaving: sending it raises `Withheld`."""
        self._is_withheld = True

    def _tail(self) -> bytes:
        return self.respelling.finish() if self.respelling is not None else b""

    async def start(
        self,
        status: int,
        reason: bytes,
        lines: bytes,
        length: int | None,
        *,
        at_once: bool = True,
    ) -> None:
        """Send the head of an answer, `at_once` or together with the first piece of its body."""
        self._head = (status, reason, lines, length if self.respelling is None else None)
        if at_once:
            await self._flush()
        else:
            self.left = self.gate is None

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; wait while the agent reads slowly."""
        if data and self.respelling is not None:
            data = self.respelling.feed(data)
        if self._head is None:
            if data:
                await self._down.write(data)
            return
        if data:
            self._held.append(data)
            self._size += len(data)
        if self._size > HOLD:
            self.gate = None
        await self._flush()

    async def end(self, last: bytes = b"") -> None:
        """Send the last piece of the body, and what is still held."""
        self.gate = None
        if self._head is not None:
            await self.write(last)
            last = b""
        elif last and self.respelling is not None:
            last = self.respelling.feed(last)
        await self._down.end(last + self._tail())

    def answer(
        self, status: int, reason: bytes, lines: bytes, body: bytes
    ) -> Coroutine[None, None, None]:
        """Send a whole answer in one piece, in place of what was held."""
        if self.respelling is not None:
            body = self.respelling.feed(body) + self._tail()
        if self._is_withheld:
            raise Withheld(HeldAnswer(self._down, status, reason, lines, body))
        self.left = True
        return self._down.answer(status, reason, lines, body)

    async def bodiless(self, status: int, reason: bytes, lines: bytes) -> None:
        """Send an answer that never has a body."""
        if self._is_withheld:
            raise Withheld(HeldAnswer(self._down, status, reason, lines, None))
        self.left = True
        await self._down.bodiless(status, reason, lines)

    async def cut(self) -> None:
        """Send what is held, then abort the connection, so that the answer counts as truncated."""
        self.gate = None
        await self._flush()
        self._down.abort()

    async def _flush(self) -> None:
        if self.gate is not None or self._head is None:
            return
        head, held = self._head, b"".join(self._held)
        if self._is_withheld:
            # The response is complete here; anything the server may send behind it is not awaited.
            raise Withheld(HeldAnswer(self._down, *head[:3], held + self._tail()))
        self._head = None
        self._held.clear()
        self.left = True
        await self._down.start(*head, held)


# One is made for each call, and a struct takes a third of the time of another class.
class Relay(Struct, eq=False):
    """The relay of one answer to the agent."""

    _out: ResponseBuffer
    _answer: Answer
    _head: ResponseHead
    _lines_of: Callable[[Raw], bytes]
    """Returns the lines for the agent of other fields of an answer."""
    _exchange: Exchange
    _recorder: Recorder
    _keep: int
    """How much of one message is kept for the observer, in bytes."""
    _trusted: bool
    """Whether the server may send outcomes in turnlog's name (`turnlog/outcome`)."""
    _lines: bytes
    """The lines of the head for the agent, unless the body is changed."""
    _length: int | None = None
    """Length of the body, if known."""
    _decoder: ContentDecoder | None = None
    """`None` if the body has no coding, or an unknown one."""
    _decodes: bool = False
    """Whether the body is sent decoded, because it may have to be changed."""
    _keeps_coded: bool = False
    """Whether the body is sent in its coding, and only a copy is decoded."""
    _partial: bytes = b""
    """The start of an event, held until it is complete."""
    _torn: bool = False
    """Whether the start of an event was sent without its end."""
    _begun: bool = False
    """Whether an event has come: only the first may follow a byte order mark."""
    _mask: OutcomeMask | EitherMask | None = None
    """Overwrites `turnlog/outcome` in a body that is sent in pieces."""
    _readings: OtherReadings | None = None
    """Searches for it in other ways in which a client may decode the body."""
    _is_forged: bool = False
    """Whether the stream holds a forged outcome that cannot be removed."""

    async def run(self) -> None:
        """Relay head and body; some bodies of moderate size are sent only once they are whole.

        Raises `Gone` when the agent leaves, `Withheld` when another attempt is to be made.
        """
        head, self._length = self._head, self._answer.length
        if head.codings or head.charsets or self._out.respelling is not None:
            await self._prepare()
        if head.body is _NONE:
            await self._head_alone()
        elif self._length is None and isinstance(self._answer, CommandReply):
            await self._messages(self._answer)
        elif head.media == _EVENTS and not (head.codings and self._decoder is None):
            await self._stream()
        elif self._length is not None and self._length > HOLD:
            await self._flow()
        elif (head.is_json and self._length is not None) or self._is_awaited_whole:
            await self._in_one_piece()
        else:
            await self._flow()

    async def _prepare(self) -> None:
        """Set up how a body with a coding or charset is decoded for reading, and whether it is sent decoded."""
        head, respells = self._head, self._out.respelling is not None
        if head.codings:
            self._decoder = decoder_for(head.codings, _DECODED)
            changes = respells or (head.media == _EVENTS and self._may_amend)
            self._decodes = changes and self._decoder is not None
            self._keeps_coded = not self._decodes
        if respells or self._decodes:
            self._lines = self._changed_lines()
        if (head.codings or head.charsets) and not self._trusted:
            self._readings = OtherReadings(
                head.charsets,
                is_coded=bool(head.codings),
                in_events=head.media == _EVENTS,
                looks=not self._says_json,
            )
        if self._decodes and head.body is not _NONE:
            self._answer, is_sound = await _peeked(self._answer, head.codings)
            if not is_sound:
                self._keep_coding()

    def _keep_coding(self) -> None:
        """Relay the body unchanged: its coding is not the one in its head."""
        self._decodes, self._keeps_coded = False, True
        respells = self._out.respelling is not None
        self._lines = self._changed_lines() if respells else self._head.lines

    @property
    def _is_awaited_whole(self) -> bool:
        """Whether a body of moderate size is sent only once it is whole."""
        # A change that would break a digest in the head must be known before the head is sent.
        seals = self._head.is_sealed and not self._trusted
        is_whole = self._head.is_json and (self._exchange.judges or seals)
        return is_whole or self._out.gate is not None or self._may_amend

    @property
    def _says_json(self) -> bool:
        """Whether the media type is JSON, or a stream of events with JSON."""
        return self._head.is_json or self._head.media == _EVENTS

    @property
    def _may_amend(self) -> bool:
        """Whether a rule may make the answer an error, so that it would have to be amended."""
        exchange = self._exchange
        return exchange.judges and exchange.amends and not self._head.is_sealed

    def _changed_lines(self, *, decoded: bool = False) -> bytes:
        kept = changed_body(self._head.raw, decoded=decoded or self._decodes)
        return self._lines_of(tuple(kept))

    # -- answers without a body, or with a small one ------------------------------------------

    async def _head_alone(self) -> None:
        body = MessageReader(0)
        await self._settle(self._exchange.whole, body, self._head.media, 0)
        # In answers to HEAD and in a 304, Content-Length is that of the body not sent (RFC 9110, 8.6).
        given = lines([(b"Content-Length", each) for each in self._head.lengths])
        status, reason = self._head.status, self._head.reason
        said = call_lines(self._exchange.attempt, whole=True)
        await self._out.bodiless(status, reason, self._lines + given + said)

    async def _in_one_piece(self) -> None:
        size, goes_on = 0, False
        pieces: list[bytes] = []
        so_far = MessageReader(self._keep)
        try:
            while size <= HOLD and size != self._length and not goes_on:
                if not (chunk := await self._answer.read()):
                    break
                pieces.append(chunk)
                size += len(chunk)
                if size != self._length:
                    self._restart_idle()
                    so_far.feed(chunk)
                    goes_on = self._is_answered(so_far, cut=False)
        except asyncio.CancelledError:
            self._record_left(so_far)
            raise
        except Failure as failure:
            if not self._is_answered(so_far, cut=True):
                await self._broken(failure, b"".join(pieces))
                return
        raw = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if goes_on or size <= HOLD:
            await self._read_whole(raw, goes_on=goes_on)
            return
        self._out.gate = None
        await self._start(self._length)
        await self._chunks(raw, keep_one=self._head.is_json and self._exchange.waits)

    async def _read_whole(self, raw: bytes, *, goes_on: bool) -> None:
        """Relay a body that is complete, and the rest of its transfer if that `goes_on`."""
        codings = self._head.codings
        text = self._decoded(raw) if codings else raw
        clean, notes = self._clean(text)
        if self._readings is not None and self._is_beyond_cleaning(raw, text, clean):
            await self._forged()
            return
        known = self._answer.content if isinstance(self._answer, CommandReply) else None
        content = known if clean is None else None
        body = MessageReader.of(text if clean is None else clean, self._keep, notes, content)
        if codings:
            body.unread = self._gave_up
        await self._settle(self._exchange.whole, body, self._head.media, len(raw))
        if self._decodes and self._decoder is not None and self._decoder.failed:
            self._keep_coding()
        attempt = self._exchange.attempt
        if not goes_on or clean is not None or (attempt is not None and attempt.amends):
            await self._send(raw, text if clean is None else clean, changed=clean is not None)
        else:
            await self._start(self._length, whole=True)
            await self._pass_on(raw)

    def _clean(self, text: bytes) -> tuple[bytes | None, tuple[Flag, ...]]:
        """Return a whole text without forged outcomes, `None` if it has none, and the flags to record."""
        is_clear = not self._head.codings and text.startswith(_USUAL) and not has_hint(text)
        if is_clear or self._trusted or not (self._head.is_json or holds_json(text)):
            return None, ()
        clean = without_outcome(text)
        if clean is not None:
            return clean, _FORGED
        return None, _UNSEARCHED if self._is_unsearched(text) else ()

    def _is_beyond_cleaning(self, raw: bytes, text: bytes, clean: bytes | None) -> bool:
        """Return whether a forged outcome may remain in a whole body with a coding or charset."""
        return self._is_misread(raw, text) if clean is None else self._is_unread

    async def _send(self, raw: bytes, text: bytes, *, changed: bool) -> None:
        """Send a whole answer: `raw`, or its decoded `text` if something is changed in it."""
        status, reason = self._head.status, self._head.reason
        attempt, amended = self._exchange.attempt, None
        said = call_lines(attempt, whole=True)
        if attempt is None or attempt.amends:
            amended = self._exchange.amended(text)
        if changed or (amended is not None and not self._head.is_sealed):
            said += self._changed_lines(decoded=self._decoder is not None)
            await self._out.answer(status, reason, said, amended or text)
        else:
            body = text if self._decodes else raw
            await self._out.answer(status, reason, self._lines + said, body)

    # -- answers whose transfer does not end where they do --------------------------------------

    def _is_answered(self, body: MessageReader, *, cut: bool) -> bool:
        """Return whether the response is complete although its transfer was cut or goes on."""
        if self._out.gate is not None:
            return False  # it is held for a retry: nothing was sent, so a cut counts as a failure
        goes_on = cut or not self._answer.at_end
        return not self._head.codings and goes_on and self._exchange.is_answered_by(body, cut=cut)

    async def _pass_on(self, held: bytes) -> None:
        """Send what is held of a recorded answer, then the rest of its transfer as it comes."""
        try:
            is_heard = self._exchange.is_heard
            await self._out.write(held)
            if is_heard:
                self._exchange.handed_over()
            while chunk := await self._answer.read():
                self._restart_idle()
                await self._out.write(self._mask.feed(chunk) if self._mask is not None else chunk)
        except Failure:
            await self._out.cut()
        else:
            await self._out.end(self._left_over())

    async def _cut_off(self, failure: Failure, body: MessageReader, held: bytes) -> None:
        """End a partly sent body whose transfer was cut; `held` is its last piece."""
        if self._is_answered(body, cut=True):
            await self._settle(self._exchange.whole, body, self._head.media, body.size)
            await self._out.write(held)
            await self._out.cut()
        else:
            await self._broken(failure, held + self._left_over())

    def _record_left(self, body: MessageReader) -> None:
        """Record a complete response whose agent left before the end of the transfer."""
        if self._is_answered(body, cut=True):
            _, body.notes = self._clean(body.finish())
            self._observe(self._exchange.whole, body, self._head.media, body.size)

    # -- larger ones --------------------------------------------------------------------------

    async def _start(
        self, length: int | None, *, whole: bool = False, at_once: bool = True
    ) -> None:
        """Send the head of an answer; `whole` if its outcome is recorded."""
        head = self._lines + call_lines(self._exchange.attempt, whole=whole)
        status, reason = self._head.status, self._head.reason
        await self._out.start(status, reason, head, length, at_once=at_once)

    async def _flow(self) -> None:
        """Relay a body chunk by chunk."""
        # If the end must wait for the disk, one chunk of JSON is always held. Anything else may be read line
        # by line, so only its end is held.
        self._out.gate = None
        await self._start(self._length)
        await self._chunks(b"", keep_one=self._head.is_json and self._exchange.waits)

    def _restart_idle(self) -> None:
        """Restart the time limit between two events, or two pieces of a body."""
        if (limits := self._exchange.progress.patience) is not None:
            limits.on_data()

    async def _next(self, body: MessageReader) -> bytes:
        """Return the next piece of a body; `body` holds what came before it."""
        try:
            chunk = await self._answer.read()
        except asyncio.CancelledError:
            self._record_left(body)
            raise
        self._restart_idle()
        return chunk

    async def _chunks(self, chunk: bytes, *, keep_one: bool) -> None:
        body = MessageReader(self._keep)
        held, seen = b"", 0
        try:
            while chunk := chunk or await self._next(body):
                if not seen:
                    self._begin_mask()
                seen += len(chunk)
                text = self._text_of(chunk)
                if self._is_forged:
                    await self._forged()
                    return
                body.feed(text)
                await self._out.write(held)
                held, chunk = chunk if self._keeps_coded else text, b""
                if self._is_answered(body, cut=False):
                    await self._flow_on(body, held, seen)
                    return
                if not keep_one and (seen != self._length or not self._exchange.waits):
                    await self._out.write(held)
                    held = b""
        except Failure as failure:
            await self._cut_off(failure, body, held)
            return
        rest = self._left_over()
        body.feed(rest)
        held += b"" if self._keeps_coded else rest
        self._note(body)
        body.unread = self._gave_up
        await self._settle(self._exchange.whole, body, self._head.media, seen)
        if self._decodes and self._is_unread:
            await self._out.write(held)
            await self._out.cut()  # the rest cannot be read any more
        else:
            await self._out.end(self._amended(held) if seen == len(held) else held)

    async def _flow_on(self, body: MessageReader, held: bytes, seen: int) -> None:
        """Relay a complete response whose last piece is `held`, and the rest of its transfer."""
        self._note(body)
        await self._settle(self._exchange.whole, body, self._head.media, seen)
        await self._pass_on(self._amended(held) if seen == len(held) else held)

    # -- forged outcomes: `turnlog/outcome` from an untrusted server -----------------------------

    def _begin_mask(self) -> None:
        """Set up the mask of a body that is sent in pieces."""
        if not self._trusted:
            is_stream = self._head.media == _EVENTS
            self._mask = mask_for(in_events=is_stream, looks=not self._says_json)

    def _is_misread(self, raw: bytes, text: bytes) -> bool:
        """Return whether some client may decode a forged outcome from the body so far."""
        if self._readings is None:
            return False
        self._readings.feed(raw, text)
        return self._readings.found and not self._decodes

    def _text_of(self, chunk: bytes) -> bytes:
        """Return a chunk decoded and without forged outcomes; sets `_is_forged` if one cannot be removed."""
        text = self._decoded(chunk) if self._head.codings else chunk
        is_misread = self._readings is not None and self._is_misread(chunk, text)
        if self._mask is not None:
            text = self._mask.feed(text)
            # The body is sent in its coding, so the mask does not reach the agent.
            is_misread = is_misread or (self._keeps_coded and self._mask.found)
        self._is_forged = is_misread
        return text

    def _left_over(self) -> bytes:
        return self._mask.finish() if self._mask is not None else b""

    def _note(self, body: MessageReader) -> None:
        """Set the flags of a body sent in pieces: a forged outcome was found, or it could not be searched."""
        if self._mask is None or self._mask.passes:
            return
        if self._mask.found:
            body.notes = _FORGED
        elif self._is_unsearched(body.finish()):
            body.notes = _UNSEARCHED

    def _is_unsearched(self, text: bytes) -> bool:
        """Return whether a body could not be searched, because it could not be decoded."""
        return is_wide(text) or self._is_unread

    async def _forged(self) -> None:
        """End an answer with a forged outcome that cannot be removed, as malformed."""
        if self._exchange.attempt is not None:
            self._exchange.attempt.marks.add(Flag.FORGED_OUTCOME)
        await self._broken(Failure(ErrorKind.MALFORMED_RESULT, Phase.BODY, _FORGED_DETAIL), b"")

    def _amended(self, whole: bytes) -> bytes:
        """Return a whole body as it is sent after its head, amended where that is possible."""
        fixed = self._length is not None or self._decoder is not None or self._head.is_sealed
        if fixed or fields(self._head.raw, b"etag"):
            return whole
        if self._mask is not None and self._mask.found:
            whole = without_mask(whole) or whole
        return self._exchange.amended(whole) or whole

    # -- streams of events --------------------------------------------------------------------

    async def _stream(self) -> None:
        if self._exchange.attempt is not None:
            self._length = None  # the outcome may be added
        # A piece that came with the head is sent with it.
        await self._start(self._length, at_once=not self._answer.has_piece)
        events = EventReader(self._keep)
        if not self._trusted:
            self._mask = OutcomeMask(in_events=True)
        is_json: bool | None = None
        try:
            while chunk := await self._answer.read():
                if is_json is None and (is_json := holds_json(chunk)):
                    # A whole message under the wrong media type, most likely.
                    await self._chunks(chunk, keep_one=self._exchange.waits)
                    return
                if not await self._goes_on(events, chunk):
                    break
        except Failure as failure:
            await self._broken(failure, self._partial + self._left_over())
            return
        if self._is_forged:
            await self._forged()
        else:
            await self._finish_stream()

    async def _finish_stream(self) -> None:
        self._partial += b"" if self._keeps_coded else self._left_over()
        attempt = self._exchange.attempt
        if attempt is not None and not self._trusted and self._is_unread:
            attempt.marks.add(Flag.NOT_SEARCHED)
        await self._settle(self._exchange.ended)
        if self._decodes and self._is_unread:
            await self._out.write(self._partial)
            await self._out.cut()  # the rest cannot be read any more
        else:
            # If the response never came, turnlog's own answer is sent instead.
            if self._torn or not await self._is_replaced():
                await self._out.end(self._partial)

    async def _goes_on(self, events: EventReader, chunk: bytes) -> bool:
        """Relay a chunk; return whether the stream can be read further."""
        text = self._text_of(chunk)
        if self._is_forged:
            return False
        if self._keeps_coded:
            await self._encoded(events, text, chunk)
            return True
        await self._pieces(events, text)
        return not (self._decodes and self._is_unread)

    async def _pieces(self, events: EventReader, chunk: bytes) -> None:
        """Relay a chunk; hold the end of a response until its outcome is on disk."""
        ready: list[bytes] = []
        for piece in events.feed(chunk):
            raw, self._partial = self._partial + piece.raw, b""
            if piece.event is None:
                if self._keeps_partial(events, raw):
                    self._partial = raw
                    break
                self._torn = events.in_data
                ready.append(raw)
                continue
            event = piece.event
            if self._mask is not None and self._mask.found:
                event = self._unmasked(event)
            await self._add(ready, event, raw, changed=event is not piece.event)
        await self._leave(ready)

    async def _add(
        self, ready: list[bytes], event: Event, raw: bytes, *, changed: bool = False
    ) -> None:
        """Observe an event, and add it to `ready` once its outcome is on disk."""
        if tickets := self._observe(self._exchange.event, event):
            await self._out.write(b"".join(ready))
            ready.clear()
            await self._recorder.settle(tickets)
        ready.append(self._seen(event, raw, changed=changed))

    async def _leave(self, ready: list[bytes]) -> None:
        is_heard = self._is_judged and self._exchange.is_heard
        await self._out.write(b"".join(ready))
        if is_heard:
            self._exchange.handed_over()

    async def _messages(self, reply: CommandReply) -> None:
        """Relay the messages of a command, each as an event."""
        await self._start(None)
        try:
            while messages := await reply.messages():
                ready: list[bytes] = []
                for raw, content in messages:
                    clean, notes = self._clean(raw)
                    text, known = (raw, content) if clean is None else (clean, None)
                    body = MessageReader.of(text, self._keep, notes, known)
                    event = Event(type="message", id=None, body=body)
                    await self._add(ready, event, as_event(text))
                await self._leave(ready)
        except Failure as failure:
            await self._broken(failure, b"")
        else:
            await self._finish_stream()

    def _keeps_partial(self, events: EventReader, raw: bytes) -> bool:
        """Return whether the start of an event is held until its end, because it may be amended."""
        wanted = self._exchange.amends and not self._torn
        return wanted and events.in_data and len(raw) <= HOLD

    def _unmasked(self, event: Event) -> Event:
        """Return an event without the masked outcomes, if it can be changed."""
        body = event.body
        if body is None:
            return event
        if body.truncated or MASK in event.data:
            body.notes = _FORGED
        clean = without_mask(event.data) if not body.truncated else None
        if clean is None or self._torn or self._length is not None:
            return event
        return structs.replace(event, body=MessageReader.of(clean, self._keep, _FORGED))

    def _seen(self, event: Event, raw: bytes, *, changed: bool) -> bytes:
        """Return an event as it is sent, amended if needed; opens the gate."""
        self._restart_idle()
        attempt = self._exchange.attempt
        torn, self._torn = self._torn, False
        first, self._begun = not self._begun, True
        if self._out.gate is not None and self._is_judged:
            self._out.judged()
        self._out.gate = None
        if torn or event.body is None or event.body.truncated:
            return raw
        amended = None
        if attempt is None or attempt.amends:
            amended = self._exchange.amended(event.data)
        if self._head.is_sealed:
            amended = None
        if amended is None and not changed:
            return raw
        return with_data(raw, amended or event.data, first=first)

    async def _encoded(self, events: EventReader, text: bytes, chunk: bytes) -> None:
        """Relay a chunk of an encoded stream whole: encoded bytes cannot be split at events."""
        for piece in events.feed(text):
            if piece.event is not None:
                if tickets := self._observe(self._exchange.event, piece.event):
                    await self._recorder.settle(tickets)
                self._restart_idle()
                if self._is_judged:
                    self._out.judged()
        self._out.gate = None
        await self._out.write(chunk)

    # -- incomplete answers --------------------------------------------------------------------

    async def _broken(self, failure: Failure, held: bytes) -> None:
        """End an answer that was cut; `held` is the part that was not sent."""
        # If nothing was sent, or only whole events, turnlog can answer in its place.
        resumable = self._exchange.is_resumable and await self._answer.is_reachable()
        plain = not self._keeps_coded and self._length is None
        broken = BrokenAnswer(
            kind=failure.kind,
            untouched=not self._out.left,
            between_events=self._head.media == _EVENTS and plain and not self._torn,
            resumable=resumable,
        )
        await self._settle(self._exchange.broken, failure, broken)
        if await self._is_replaced():
            return
        if not self._out.left:
            await self._start(self._length)
        await self._out.write(held)
        await self._out.cut()

    async def _is_replaced(self) -> bool:
        """Send turnlog's own answer in place of a missing one; return whether there is one."""
        attempt = self._exchange.attempt
        if not self._out.left and (made := self._exchange.instead()) is not None:
            head = lines(made.headers) + call_lines(attempt, whole=True)
            if attempt is not None and attempt.yields:
                self._out.withhold()
            await self._out.answer(made.status, made.reason, head, made.body)
        elif last := self._exchange.last_events():
            await self._out.end(last)
        else:
            return False
        return True

    @property
    def _is_judged(self) -> bool:
        attempt = self._exchange.attempt
        return attempt is not None and attempt.ending is not None

    # -- observing -----------------------------------------------------------------------------

    async def _settle(self, read: Callable[[*_Said], Sequence[Ticket]], *said: *_Said) -> None:
        """Observe a piece, wait until what that recorded is on disk, then open the gate."""
        if tickets := self._observe(read, *said):
            await self._recorder.settle(tickets)
        if self._out.gate is not None:
            self._out.judged()

    def _observe(
        self, read: Callable[[*_Said], Sequence[Ticket]], *said: *_Said
    ) -> Sequence[Ticket]:
        """Pass a piece to the observer; an error there is logged and the relay goes on."""
        try:
            return read(*said)
        except Exception as error:  # noqa: BLE001 - it is logged, and the exchange is closed as unknown
            self._recorder.faulted(error)
            return ()

    def _decoded(self, chunk: bytes) -> bytes:
        return self._decoder.feed(chunk) if self._decoder is not None else b""

    @property
    def _is_unread(self) -> bool:
        """Whether part of the body could not be decoded."""
        return self._gave_up or (self._decoder is not None and self._decoder.failed)

    @property
    def _gave_up(self) -> bool:
        """Whether decoding stopped at its bound, or the coding is unknown."""
        if self._decoder is None:
            return bool(self._head.codings)
        return self._decoder.overflow


class _PeekedAnswer:
    """An answer whose first piece was read ahead."""

    def __init__(self, answer: Answer, first: bytes | Failure) -> None:
        self.head = answer.head
        self.length = answer.length
        self.close = answer.close
        self.is_reachable = answer.is_reachable
        self._answer = answer
        self._first = first

    def take_whole(self) -> None:
        """Return nothing: some of the body was read."""

    @property
    def has_piece(self) -> bool:
        """Whether a piece of the body is here that was not read."""
        return isinstance(self._first, bytes) and self._first != b""

    @property
    def at_end(self) -> bool:
        """Whether the whole answer has arrived and been read."""
        return not self._first and self._answer.at_end

    async def read(self) -> bytes:
        """Return the first piece, then the others. Raises `Failure`, also the one met when reading ahead."""
        first, self._first = self._first, b""
        if isinstance(first, Failure):
            raise first
        return first or await self._answer.read()


async def _peeked(answer: Answer, codings: str) -> tuple[_PeekedAnswer, bool]:
    """Return the answer, still readable from its start, and whether its start decodes with `codings`."""
    try:
        first = await answer.read()
    except Failure as failure:
        return _PeekedAnswer(answer, failure), True
    trial = decoder_for(codings, _DECODED)
    if trial is None:
        return _PeekedAnswer(answer, first), False
    trial.feed(first)
    return _PeekedAnswer(answer, first), not trial.failed
