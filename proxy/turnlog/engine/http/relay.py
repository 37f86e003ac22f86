"""An answer on its way from the upstream to the agent, of which the exchange reads a copy.

Of an answer to a recorded call the last piece is held back until its outcome is on disk: of an event
stream the event that holds the response, of JSON the last chunk, of an answer without body the head.
JSON of known and moderate length goes out in one piece, and so does an event of up to `HOLD` bytes, to
which its outcome may be added. While a rule may want another attempt, so does everything.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, TypeVarTuple

from msgspec import Struct

from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.engine.command.reply import CommandReply
from turnlog.engine.mcp.mcp_exchange import McpExchange
from turnlog.engine.plain_call import PlainCall
from turnlog.exchange.delivery import BrokenAnswer
from turnlog.record.own_answers import call_lines
from turnlog.record.recorder import Recorder
from turnlog.store.base import Ticket
from turnlog.transport.http_client import Answer, Failure
from turnlog.transport.http_server import AgentGone
from turnlog.transport.message_heads import Raw
from turnlog.wire.answer_body import AnswerBody
from turnlog.wire.http.content_digest import ContentDigests
from turnlog.wire.http.head import Body, changed_body, fields, lines
from turnlog.wire.http.response_head import ResponseHead
from turnlog.wire.message import NO_CHECKS, MessageReader, ResultChecks
from turnlog.wire.outcome_key import holds_json
from turnlog.wire.splice import Respelling, as_event, with_data
from turnlog.wire.sse import EventReader, SseEvent

from .agent_side import AgentSide

Exchange = McpExchange | PlainCall
"""One request of an agent, and what reads its answers: MCP messages, or a plain HTTP call."""
_Said = TypeVarTuple("_Said")
_EVENTS: Final = "text/event-stream"
_FORGED_DETAIL: Final = (
    "it speaks in turnlog's name, and its coding keeps that from being taken out"
)


HOLD: Final = 1 << 20
"""bytes: more than this is not held back."""
Gate = Callable[[], bool]
"""Asked once, when it is known how an attempt ended: may its answer go to the agent?"""


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
class Relay(Struct, eq=False):
    """The relay of one attempt's answer to the agent. Raises `AgentGone` if the agent has left."""

    _down: AgentSide
    gate: Gate | None
    """While it is set, nothing is sent, unless more than `HOLD` bytes are held."""
    _respelling: Respelling | None
    """Replaces the attempt's id in the answer by the agent's, which changes the length."""
    _answer: Answer
    _head: ResponseHead
    _body: AnswerBody
    _exchange: Exchange
    _recorder: Recorder
    _keep: int
    """How much of one message is kept for the observer, in bytes."""
    _lines: bytes
    """The lines of the head for the agent, unless the body is changed."""
    _lines_of: Callable[[Raw], bytes]
    """Returns the lines for the agent of other fields of an answer."""
    _length: int | None
    """Length of the body, if known."""
    _digests: ContentDigests | None = None
    """Checks the content as it is read, where its head names digests or has signatures."""
    _first: bytes | Failure | None = None
    """The first piece of the body, or the failure in its place, if it was read ahead."""
    _ready: bytes = b""
    """Events that leave together with the end of their stream."""
    _partial: bytes = b""
    """The start of an event, held until it is complete."""
    _torn: bool = False
    """Whether the start of an event was sent without its end."""
    _is_between: bool = False
    """Whether an event of turnlog's may be sent: nothing of the server's next one was."""
    _begun: bool = False
    """Whether an event has come: only the first may follow a byte order mark."""
    _held_head: tuple[int, bytes, bytes, int | None] | None = None
    """The head that is not sent yet."""
    _held_body: list[bytes] = []
    _held_size: int = 0
    _is_withheld: bool = False
    has_left: bool = False
    """Whether part of the answer was sent, or can no longer be withheld."""

    async def run(self) -> None:
        """Relay head and body; some bodies of moderate size are sent only once they are whole.

        Raises `AgentGone` when the agent leaves, `Withheld` when another attempt is to be made.
        """
        head = self._head
        if head.codings or head.charsets or self._respelling is not None:
            await self._prepare()
        if head.body is Body.NONE:
            await self._head_alone()
        elif head.is_json and self._length is not None and self._length <= HOLD:
            # Most come whole with their heads.
            is_plain = self._first is None and self._digests is None
            raw = self._answer.take_whole() if is_plain else None
            await (self._gather() if raw is None else self._whole(raw, goes_on=False))
        elif self._length is None and isinstance(self._answer, CommandReply):
            await self._messages(self._answer)
        elif head.media == _EVENTS and not (head.codings and not self._body.is_known):
            await self._stream()
        elif (self._length is None or self._length <= HOLD) and self._is_awaited_whole:
            await self._gather()
        else:
            await self._flow()
        if self._exchange.others:
            with self._exchange.giving_others():
                await self._mark_delivered()

    async def _prepare(self) -> None:
        """Set up how a body with a coding or charset is decoded for reading, and whether it is sent decoded."""
        head, body, respells = self._head, self._body, self._respelling is not None
        body.prepare(may_change=respells or (head.media == _EVENTS and self._may_amend))
        if respells or body.is_sent_decoded:
            self._lines = self._changed_lines()
        if not body.is_sent_decoded or head.body is Body.NONE:
            return
        try:
            self._first = await self._read()
        except Failure as failure:
            self._first = failure
        else:
            if not body.begins_soundly(self._first):
                self._keep_coding()

    def _keep_coding(self) -> None:
        """Relay the body unchanged: its coding is not the one in its head."""
        self._body.is_sent_decoded = False
        respells = self._respelling is not None
        self._lines = self._changed_lines() if respells else self._lines_of(self._head.raw)

    @property
    def _is_awaited_whole(self) -> bool:
        """Whether a body of moderate size is sent only once it is whole."""
        # A change that would break a digest in the head must be known before the head is sent.
        seals = self._head.is_sealed and not self._body.is_trusted
        is_whole = self._head.is_json and (self._exchange.judges or seals)
        return is_whole or self.gate is not None or self._may_amend

    @property
    def _may_amend(self) -> bool:
        """Whether a rule may make the answer an error, so that it would have to be amended."""
        exchange = self._exchange
        return exchange.judges and exchange.amends and not self._head.is_sealed

    def _changed_lines(self, *, decoded: bool = False) -> bytes:
        kept = changed_body(self._head.raw, decoded=decoded or self._body.is_sent_decoded)
        return self._lines_of(tuple(kept))

    # -- pieces of the body ------------------------------------------------------------------

    def _read(self) -> Coroutine[None, None, bytes]:
        """Return the next piece of the body; nothing at its end. Raises `Failure`."""
        is_plain = self._first is None and self._digests is None
        return self._answer.read() if is_plain else self._read_and_check()

    async def _read_and_check(self) -> bytes:
        first, self._first = self._first, None
        if isinstance(first, Failure):
            raise first
        if first:
            return first  # it was checked when it was read ahead
        piece = await self._answer.read()
        if self._digests is not None:
            self._digests.feed(piece)
        return piece

    @property
    def _checks(self) -> ResultChecks:
        """The result of the checks; `NO_CHECKS` while it is not known whether the digests hold."""
        digests, answer = self._digests, self._answer
        if digests is None:
            return NO_CHECKS
        if answer.at_end:
            digests.take_trailers(answer.trailers)
            return digests.checks
        return digests.checks if digests.may_hold else NO_CHECKS

    @property
    def _at_end(self) -> bool:
        """Whether the whole answer has come and been read."""
        return not self._first and self._answer.at_end

    def _restart_idle(self) -> None:
        """Restart the time limit between two events, or two pieces of a body."""
        if (limits := self._exchange.progress.deadlines) is not None:
            limits.on_data()

    async def _start(
        self, length: int | None, *, whole: bool = False, at_once: bool = True
    ) -> None:
        """Send the head of an answer; `whole` if its outcome is recorded."""
        lines, head = self._lines + call_lines(self._exchange.attempt, whole=whole), self._head
        length = length if self._respelling is None else None
        self._held_head = (head.status, head.reason, lines, length)
        if at_once:
            await self._flush()
        else:
            self.has_left = self.gate is None

    # -- answers without a body, or with a small one ------------------------------------------

    async def _head_alone(self) -> None:
        body = MessageReader(0, checks=self._checks)
        await self._settle(self._exchange.whole, body, self._head.media, 0)
        # In answers to HEAD and in a 304, Content-Length is that of the body not sent (RFC 9110, 8.6).
        given = lines([(b"Content-Length", each) for each in self._head.lengths])
        said = self._lines + given + call_lines(self._exchange.attempt, whole=True)
        head = self._head
        if self._is_withheld:
            raise Withheld(HeldAnswer(self._down, head.status, head.reason, said, None))
        self.has_left = True
        await self._down.bodiless(head.status, head.reason, said)

    async def _gather(self) -> None:
        """Relay a body of moderate size once all of it has come."""
        size, goes_on = 0, False
        pieces: list[bytes] = []
        so_far = MessageReader(self._keep)
        try:
            while size <= HOLD and size != self._length and not goes_on:
                if not (chunk := await self._read()):
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
        raw = b"".join(pieces)
        if goes_on or size <= HOLD:
            await self._whole(raw, goes_on=goes_on)
        else:
            await self._flow(raw)

    async def _whole(self, raw: bytes, *, goes_on: bool) -> None:
        """Relay a body that is complete, and the rest of its transfer if that `goes_on`."""
        read, head = self._body, self._head
        clean = read.whole(raw)
        if read.is_forged:
            await self._forged()
            return
        content = None if clean.is_changed else self._answer.content
        body = MessageReader.of(clean.text, self._keep, clean.notes, content)
        if head.codings:
            body.unread = read.gave_up
        if self._digests is not None:
            body.checks = self._checks
        await self._settle(self._exchange.whole, body, head.media, len(raw))
        if read.is_sent_decoded and read.has_failed:
            self._keep_coding()
        attempt = self._exchange.attempt
        amends = attempt is None or attempt.amends
        if goes_on and not clean.is_changed and not (attempt is not None and amends):
            await self._start(self._length, whole=True)
            await self._pass_on(raw)
            return
        amended = self._exchange.amended(clean.text) if amends else None
        said = call_lines(attempt, whole=True)
        if clean.is_changed or (amended is not None and not head.is_sealed):
            said += self._changed_lines(decoded=read.is_known)
            await self._send_whole(head.status, head.reason, said, amended or clean.text)
        else:
            sent = clean.text if read.is_sent_decoded else raw
            await self._send_whole(head.status, head.reason, self._lines + said, sent)

    # -- answers whose transfer does not end where they do --------------------------------------

    def _is_answered(self, body: MessageReader, *, cut: bool) -> bool:
        """Return whether the response is complete although its transfer was cut or goes on."""
        if self.gate is not None:
            return False  # it is held for a retry: nothing was sent, so a cut counts as a failure
        goes_on = cut or not self._at_end
        if not cut and self._digests is not None and not self._digests.may_hold:
            return False  # more may come that its digests cover, or that names them
        return not self._head.codings and goes_on and self._exchange.is_answered_by(body, cut=cut)

    async def _pass_on(self, held: bytes) -> None:
        """Send what is held of a recorded answer, then the rest of its transfer as it comes."""
        try:
            await self._hand_over(held)
            while chunk := await self._read():
                self._restart_idle()
                await self._send(self._body.pass_on(chunk))
        except Failure:
            await self._cut()
        else:
            await self._finish(self._body.finish())

    async def _cut_off(self, failure: Failure, body: MessageReader, held: bytes) -> None:
        """End a partly sent body whose transfer was cut; `held` is its last piece."""
        if self._is_answered(body, cut=True):
            await self._settle(self._exchange.whole, body, self._head.media, body.size)
            await self._send(held)
            await self._cut()
        else:
            await self._broken(failure, held + self._body.finish())

    def _record_left(self, body: MessageReader) -> None:
        """Record a complete response whose agent left before the end of the transfer."""
        if self._is_answered(body, cut=True):
            body.notes = self._body.clean(body.finish()).notes
            self._observe(self._exchange.whole, body, self._head.media, body.size)

    # -- larger ones --------------------------------------------------------------------------

    async def _flow(self, start: bytes = b"") -> None:
        """Relay a body chunk by chunk; `start` is what was read of it."""
        # If the end must wait for the disk, one chunk of JSON is always held. Anything else may be read line
        # by line, so only its end is held.
        self.gate = None
        await self._start(self._length)
        await self._chunks(start, keep_one=self._head.is_json and self._exchange.waits)

    async def _next(self, body: MessageReader) -> bytes:
        """Return the next piece of a body; `body` holds what came before it."""
        try:
            chunk = await self._read()
        except asyncio.CancelledError:
            self._record_left(body)
            raise
        self._restart_idle()
        return chunk

    async def _chunks(self, chunk: bytes, *, keep_one: bool) -> None:
        read, body = self._body, MessageReader(self._keep)
        held, seen = b"", 0
        try:
            while chunk := chunk or await self._next(body):
                if not seen:
                    read.begin()
                seen += len(chunk)
                text = read.feed(chunk)
                if read.is_forged:
                    await self._forged()
                    return
                body.feed(text)
                await self._send(held)
                held, chunk = chunk if read.is_sent_coded else text, b""
                if self._is_answered(body, cut=False):
                    await self._flow_on(body, held, seen)
                    return
                if not keep_one and (seen != self._length or not self._exchange.waits):
                    await self._send(held)
                    held = b""
        except Failure as failure:
            await self._cut_off(failure, body, held)
            return
        rest = read.finish()
        body.feed(rest)
        held += b"" if read.is_sent_coded else rest
        body.notes = read.notes(body.finish())
        body.unread, body.checks = read.gave_up, self._checks
        await self._settle(self._exchange.whole, body, self._head.media, seen)
        if read.is_sent_decoded and read.is_unread:
            await self._send(held)
            await self._cut()  # the rest cannot be read any more
        else:
            await self._finish(self._amended(held) if seen == len(held) else held)

    async def _flow_on(self, body: MessageReader, held: bytes, seen: int) -> None:
        """Relay a complete response whose last piece is `held`, and the rest of its transfer."""
        body.notes, body.checks = self._body.notes(body.finish()), self._checks
        await self._settle(self._exchange.whole, body, self._head.media, seen)
        await self._pass_on(self._amended(held) if seen == len(held) else held)

    async def _forged(self) -> None:
        """End an answer with a forged outcome that cannot be removed, as malformed."""
        if self._exchange.attempt is not None:
            self._exchange.attempt.marks.add(Flag.FORGED_OUTCOME)
        await self._broken(Failure(ErrorKind.MALFORMED_RESULT, Phase.BODY, _FORGED_DETAIL), b"")

    def _amended(self, whole: bytes) -> bytes:
        """Return a whole body as it is sent after its head, amended where that is possible."""
        fixed = self._length is not None or self._body.is_known or self._head.is_sealed
        if fixed or fields(self._head.raw, b"etag"):
            return whole
        whole = self._body.unmasked(whole)
        return self._exchange.amended(whole) or whole

    # -- streams of events --------------------------------------------------------------------

    async def _stream(self) -> None:
        if self._exchange.attempt is not None:
            self._length = None  # the outcome may be added
        # A piece that came with the head is sent with it.
        await self._start(self._length, at_once=not (self._first or self._answer.has_piece))
        self._body.begin_events()
        events, is_json = EventReader(self._keep), None
        try:
            while chunk := await self._read():
                if is_json is None and (is_json := holds_json(chunk)):
                    # A whole message under the wrong media type, most likely.
                    await self._chunks(chunk, keep_one=self._exchange.waits)
                    return
                if not await self._goes_on(events, chunk):
                    break
        except Failure as failure:
            await self._broken(failure, self._partial + self._body.finish())
            return
        if self._body.is_forged:
            await self._forged()
        else:
            await self._finish_stream()

    async def _finish_stream(self) -> None:
        read, attempt = self._body, self._exchange.attempt
        self._partial += b"" if read.is_sent_coded else read.finish()
        if attempt is not None and read.is_unread and not read.is_trusted:
            attempt.marks.add(Flag.NOT_SEARCHED)
        await self._settle(self._exchange.ended)
        if read.is_sent_decoded and read.is_unread:
            await self._send(self._ready + self._partial)
            await self._cut()  # the rest cannot be read any more
        else:
            # If the response never came, turnlog's own answer is sent instead.
            if self._torn or not await self._is_replaced():
                await self._finish(self._ready + self._partial)

    async def _goes_on(self, events: EventReader, chunk: bytes) -> bool:
        """Relay a chunk; return whether the stream can be read further."""
        read, self._is_between = self._body, False
        text = read.feed(chunk)
        if read.is_forged:
            return False
        if read.is_sent_coded:
            await self._encoded(events, text, chunk)
            return True
        ready: list[bytes] = []
        for piece in events.feed(text):
            raw, self._partial = self._partial + piece.raw, b""
            if (event := piece.event) is not None:
                clean = read.unmasked_event(
                    event, self._keep, may_change=not self._torn and self._length is None
                )
                if tickets := self._observe(self._exchange.event, clean):
                    await self._written(ready, tickets)
                ready.append(self._seen(clean, raw, changed=clean is not event))
            elif self._keeps_partial(events, raw):
                self._partial = raw
            else:
                self._torn = events.in_data
                ready.append(raw)
        await self._leave(ready, is_last=self._at_end)
        self._is_between = events.is_between
        return not (read.is_sent_decoded and read.is_unread)

    async def say(self, message: bytes) -> bool:
        """Send the agent a message of turnlog's between two events; return whether the agent got it."""
        is_plain = self._length is None and self._respelling is None
        if not (self._is_between and is_plain and self._held_head is None):
            return False
        # Between the tokens of JSON a line end is a blank.
        event = as_event(message.replace(b"\n", b" ").replace(b"\r", b" "))
        try:
            await self._down.write(event)
        except AgentGone:
            return False
        return await self._down.is_taken()

    async def _written(self, ready: list[bytes], tickets: Sequence[Ticket]) -> None:
        """Send the events before one, and wait until what that one recorded is on disk."""
        await self._send(b"".join(ready))
        ready.clear()
        await self._recorder.settle(tickets)

    async def _leave(self, ready: list[bytes], *, is_last: bool = False) -> None:
        """Send events that may leave; those before the end of their stream leave together with it."""
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        if is_last and self.has_left:
            self._ready = data
        else:
            await self._hand_over(data)

    async def _hand_over(self, data: bytes) -> None:
        """Send what may hold a response, and mark that as delivered if its agent takes it."""
        if not self._exchange.hands_over or self._down.has_ended:
            await self._send(data)
            return
        with self._exchange.giving_others():
            await self._send(data)
            await self._mark_delivered()

    async def _mark_delivered(self) -> None:
        """Mark the response that was sent as delivered, if its agent takes it."""
        # Not asked before the write: until then the agent may leave (decision 79).
        if await self._down.is_taken() and self._exchange.hands_over:
            self._exchange.handed_over()

    async def _messages(self, reply: CommandReply) -> None:
        """Relay the messages of a command, each as an event."""
        await self._start(None)
        try:
            while messages := await reply.messages():
                ready: list[bytes] = []
                for raw, content in messages:
                    clean = self._body.clean(raw)
                    known = None if clean.is_changed else content
                    body = MessageReader.of(clean.text, self._keep, clean.notes, known)
                    event = SseEvent(type="message", id=None, body=body)
                    if tickets := self._observe(self._exchange.event, event):
                        await self._written(ready, tickets)
                    ready.append(self._seen(event, as_event(clean.text), changed=False))
                await self._leave(ready)
        except Failure as failure:
            await self._broken(failure, b"")
        else:
            await self._finish_stream()

    def _keeps_partial(self, events: EventReader, raw: bytes) -> bool:
        """Return whether the start of an event is held until its end, because it may be amended."""
        wanted = self._exchange.amends and not self._torn
        return wanted and events.in_data and len(raw) <= HOLD

    def _seen(self, event: SseEvent, raw: bytes, *, changed: bool) -> bytes:
        """Return an event as it is sent, amended if needed; opens the gate."""
        self._restart_idle()
        attempt = self._exchange.attempt
        torn, self._torn = self._torn, False
        first, self._begun = not self._begun, True
        if self.gate is not None:
            if self._is_judged:
                self._on_judged()
            self.gate = None
        amends = attempt is None or attempt.amends
        if not (amends or changed) or torn or event.body is None or event.body.truncated:
            return raw
        amended = self._exchange.amended(event.data) if amends else None
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
                    self._on_judged()
        self.gate = None
        await self._hand_over(chunk)

    # -- incomplete answers --------------------------------------------------------------------

    async def _broken(self, failure: Failure, held: bytes) -> None:
        """End an answer that was cut; `held` is the part that was not sent."""
        # If nothing was sent, or only whole events, turnlog can answer in its place.
        resumable = self._exchange.is_resumable and await self._answer.is_reachable()
        plain = not self._body.is_sent_coded and self._length is None
        broken = BrokenAnswer(
            kind=failure.kind,
            untouched=not self.has_left,
            between_events=self._head.media == _EVENTS and plain and not self._torn,
            resumable=resumable,
        )
        await self._settle(self._exchange.broken, failure, broken)
        if await self._is_replaced():
            return
        if not self.has_left:
            await self._start(self._length)
        await self._send(self._ready + held)
        await self._cut()

    async def _is_replaced(self) -> bool:
        """Send turnlog's own answer in place of a missing one; return whether there is one."""
        attempt = self._exchange.attempt
        if not self.has_left and (made := self._exchange.instead()) is not None:
            head = lines(made.headers) + call_lines(attempt, whole=True)
            if attempt is not None and attempt.yields:
                self._is_withheld = True
            await self._send_whole(made.status, made.reason, head, made.body)
        elif last := self._exchange.last_events():
            with self._exchange.giving_others():
                await self._finish(self._ready + last)
                # Of a call answered on its own stream, its task marks that at its end.
                if self._exchange.listens:
                    await self._mark_delivered()
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
        try:
            tickets = read(*said)
        except Exception as error:  # noqa: BLE001 - as in `_observe`
            self._recorder.faulted(error)
        else:
            if tickets:
                await self._recorder.settle(tickets)
        if self.gate is not None:
            self._on_judged()

    def _observe(
        self, read: Callable[[*_Said], Sequence[Ticket]], *said: *_Said
    ) -> Sequence[Ticket]:
        """Pass a piece to the observer; an error there is logged and the relay goes on."""
        try:
            return read(*said)
        except Exception as error:  # noqa: BLE001 - it is logged, and the exchange is closed as unknown
            self._recorder.faulted(error)
            return ()

    # -- what is sent, or held ------------------------------------------------------------------

    def _on_judged(self) -> None:
        """Open the gate once the answer is judged; if it stays shut, sending raises `Withheld`."""
        gate, self.gate = self.gate, None
        if gate is not None and not gate():
            self._is_withheld = True

    def _tail(self) -> bytes:
        return self._respelling.finish() if self._respelling is not None else b""

    def _send(self, data: bytes) -> Coroutine[None, None, None]:
        """Send a piece of the body; wait while the agent reads slowly."""
        if self._held_head is None and self._respelling is None:
            return self._down.write(data)
        return self._hold_or_send(data)

    async def _hold_or_send(self, data: bytes) -> None:
        if data and self._respelling is not None:
            data = self._respelling.feed(data)
        if self._held_head is None:
            await self._down.write(data)
            return
        if data:
            self._held_body.append(data)
            self._held_size += len(data)
        if self._held_size > HOLD:
            self.gate = None
        await self._flush()

    async def _finish(self, last: bytes = b"") -> None:
        """Send the last piece of the body, and what is still held."""
        self.gate = None
        if last and self._respelling is not None:
            last = self._respelling.feed(last)
        if self._held_head is None:
            await self._down.end(last + self._tail())
        else:
            self._held_body.append(last + self._tail())
            await self._flush(ends=True)

    def _send_whole(
        self, status: int, reason: bytes, lines: bytes, body: bytes
    ) -> Coroutine[None, None, None]:
        """Send a whole answer in one piece, in place of what was held."""
        if self._respelling is not None:
            body = self._respelling.feed(body) + self._tail()
        if self._is_withheld:
            raise Withheld(HeldAnswer(self._down, status, reason, lines, body))
        self.has_left = True
        return self._down.answer(status, reason, lines, body)

    async def _cut(self) -> None:
        """Send what is held, then abort the connection, so that the answer counts as truncated."""
        self.gate = None
        await self._flush()
        self._down.abort()

    async def _flush(self, *, ends: bool = False) -> None:
        if self.gate is not None or self._held_head is None:
            return
        head, held = self._held_head, b"".join(self._held_body)
        if self._is_withheld:
            # The response is complete here; anything the server may send behind it is not awaited.
            raise Withheld(HeldAnswer(self._down, *head[:3], held + self._tail()))
        self._held_head = None
        self._held_body.clear()
        self.has_left = True
        await self._down.start(*head, held, ends=ends)
