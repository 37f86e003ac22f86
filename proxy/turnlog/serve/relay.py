"""Move an answer from the upstream to the agent as it comes, while a watcher reads a copy.

Nothing is held back but the last piece of an answer to a recorded call, until its outcome is on
disk: of an event stream the event that holds the response, of JSON the last chunk, of an answer
without body the head. JSON of known and moderate length goes out in one piece.
"""

from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, Protocol

from turnlog.store.base import Ticket
from turnlog.wire.http import Body, decoder_for, fields
from turnlog.wire.message import MessageReader
from turnlog.wire.sse import Event, EventReader

from .downstream import Downstream
from .heads import AnswerHead, lines
from .recorder import Recorder
from .upstream import Answer, Failure

P = ParamSpec("P")
HOLD: Final = 1 << 20
"""bytes: a JSON answer of at most this length is sent in one piece."""
_DECODED: Final = 16 << 20
"""bytes: an encoded answer that grows beyond this is not read any further (it is relayed)."""
_EVENTS: Final = "text/event-stream"
_JSON_STARTS: Final = (b"{", b"[")


class Watcher(Protocol):
    """What reads along. Each method returns the tickets to settle before what it read goes on."""

    @property
    def waits(self) -> bool:
        """Whether the end of the answer has to wait for the disk."""
        ...

    def event(self, event: Event) -> Sequence[Ticket]:
        """Read one event of a stream."""
        ...

    def whole(self, body: MessageReader, media: str, size: int) -> Sequence[Ticket]:
        """Read an answer that is no stream, once it is complete; `size` is that on the wire."""
        ...

    def ended(self) -> Sequence[Ticket]:
        """Learn that a stream ended as it should."""
        ...

    def broken(self, failure: Failure) -> Sequence[Ticket]:
        """Learn that the answer will never be complete."""
        ...


class Relay:
    """One answer on its way. `keep` bounds what is read along of one message, in bytes."""

    def __init__(
        self,
        down: Downstream,
        answer: Answer,
        head: AnswerHead,
        watcher: Watcher,
        recorder: Recorder,
        *,
        keep: int,
    ) -> None:
        self._down = down
        self._answer = answer
        self._watcher = watcher
        self._recorder = recorder
        self._keep = keep
        self._head = head
        self._media = head.media
        self._decoder = decoder_for(head.codings, _DECODED) if head.codings else None
        self._unreadable = bool(head.codings) and self._decoder is None
        frame = answer.framing
        self._bodiless = frame.body is Body.NONE
        self._length = frame.length if frame.body is Body.LENGTH else None

    async def run(self) -> None:
        """Relay head and body.

        Raises `Gone` when the agent leaves. A broken answer ends the agent's connection too.
        """
        try:
            if self._bodiless:
                await self._head_alone()
            elif self._media == _EVENTS and not self._unreadable:
                await self._stream()
            elif self._length is not None and self._length <= HOLD and self._is_json:
                await self._in_one_piece(self._length)
            else:
                await self._flow()
        except Failure as failure:
            await self._observed(self._watcher.broken, failure)
            self._down.abort()

    @property
    def _is_json(self) -> bool:
        return self._media == "application/json" or self._media.endswith("+json")

    async def _head_alone(self) -> None:
        body = MessageReader(0)
        await self._observed(self._watcher.whole, body, self._media, 0)
        # To HEAD, and in a 304, Content-Length tells of the body that is not there.
        given = lines(
            [(b"Content-Length", x) for x in fields(self._answer.headers, b"content-length")]
        )
        await self._down.bodiless(
            self._answer.status, self._answer.reason, self._head.lines + given
        )

    async def _in_one_piece(self, length: int) -> None:
        pieces: list[bytes] = []
        try:
            while chunk := await self._answer.read():
                pieces.append(chunk)
        except Failure:
            await self._start(length)
            await self._down.write(b"".join(pieces))
            raise
        raw = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        body = MessageReader(self._keep)
        body.feed(self._decoded(raw))
        await self._observed(self._watcher.whole, body, self._media, len(raw))
        await self._down.answer(self._answer.status, self._answer.reason, self._head.lines, raw)

    async def _start(self, length: int | None) -> None:
        await self._down.start(self._answer.status, self._answer.reason, self._head.lines, length)

    async def _flow(self) -> None:
        """Relay what is neither events nor small: chunk by chunk.

        Of JSON one chunk is always kept where the last one has to wait; of anything else only the
        end is, because it may be read line by line.
        """
        await self._start(self._length)
        await self._chunks(b"", keep_one=self._is_json and self._watcher.waits)

    async def _chunks(self, chunk: bytes, *, keep_one: bool) -> None:
        body = MessageReader(self._keep)
        held, seen = b"", 0
        while chunk := chunk or await self._next(held):
            seen += len(chunk)
            body.feed(self._decoded(chunk))
            await self._down.write(held)
            held, chunk = chunk, b""
            if not keep_one and (seen != self._length or not self._watcher.waits):
                await self._down.write(held)
                held = b""
        await self._observed(self._watcher.whole, body, self._media, seen)
        await self._down.end(held)

    async def _next(self, held: bytes) -> bytes:
        """Return the next chunk; hand on what is held before learning that there is none."""
        try:
            return await self._answer.read()
        except Failure:
            await self._down.write(held)
            raise

    async def _stream(self) -> None:
        await self._start(self._length)
        events = EventReader(self._keep)
        first = True
        while chunk := await self._answer.read():
            if first and chunk.lstrip()[:1] in _JSON_STARTS:
                # No event begins so: a whole message under the wrong media type.
                await self._chunks(chunk, keep_one=self._watcher.waits)
                return
            first = False
            if self._decoder is None:
                await self._pieces(events, chunk)
            else:
                await self._encoded(events, chunk)
        await self._observed(self._watcher.ended)
        await self._down.end()

    async def _pieces(self, events: EventReader, chunk: bytes) -> None:
        """Relay a chunk; hold what completes a response until its outcome is on disk."""
        ready: list[bytes] = []
        for piece in events.feed(chunk):
            tickets = () if piece.event is None else self._watched(self._watcher.event, piece.event)
            if tickets:
                await self._down.write(b"".join(ready))
                ready.clear()
                await self._recorder.settle(tickets)
            ready.append(piece.raw)
        await self._down.write(b"".join(ready))

    async def _encoded(self, events: EventReader, chunk: bytes) -> None:
        """Relay a chunk of an encoded stream: whole, as encoded bytes cannot be cut at events."""
        for piece in events.feed(self._decoded(chunk)):
            if piece.event is not None:
                await self._observed(self._watcher.event, piece.event)
        await self._down.write(chunk)

    async def _observed(
        self, watch: Callable[P, Sequence[Ticket]], *said: P.args, **_: P.kwargs
    ) -> None:
        """Let the watcher read, and wait until what it recorded is on disk."""
        if tickets := self._watched(watch, *said, **_):
            await self._recorder.settle(tickets)

    def _watched(
        self, watch: Callable[P, Sequence[Ticket]], *said: P.args, **_: P.kwargs
    ) -> Sequence[Ticket]:
        """Let the watcher read. Whatever goes wrong there, the answer goes on."""
        try:
            return watch(*said, **_)
        except Exception as error:  # noqa: BLE001 - it is logged, and the exchange is closed as unknown
            self._recorder.faulted(error)
            return ()

    def _decoded(self, chunk: bytes) -> bytes:
        if self._unreadable:
            return b""
        return chunk if self._decoder is None else self._decoder.feed(chunk)
