"""The response of a command to one HTTP request: messages, as JSON or as a stream."""

import asyncio
from collections.abc import Callable
from typing import Final

from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.record.deadlines import Deadlines
from turnlog.record.errors import Failure, LateReader, Progress
from turnlog.wire.http.head import Body, Framing, Headers
from turnlog.wire.jsonrpc import Kind, Message, parse
from turnlog.wire.splice import as_event

_MOST: Final = 64 << 20
"""bytes: with more than this waiting for an agent its stream is cut, where others would wait with it."""
_ROOM: Final = 16 << 20
"""bytes: with more than this waiting for an agent its command is not read, where it is its own."""
_JSON: Final = (b"Content-Type", b"application/json")
_EVENTS: Final = (
    (b"Content-Type", b"text/event-stream"),
    (b"Cache-Control", b"no-cache, no-transform"),
)
_REASONS: Final = {
    200: b"OK",
    202: b"Accepted",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    409: b"Conflict",
}


class CommandReply:
    """The messages for one request, as they come. `streams` tells whether there may be several."""

    def __init__(self, progress: Progress, *, streams: bool) -> None:
        self.streams = streams
        self.awaited: set[str] = set()
        """Keys of the ids, as the command knows them, that no response has come for."""
        self.over = False
        """Whether nothing is to come."""
        self._progress = progress
        self._messages: list[bytes] = []
        self._size = 0
        """Bytes of them."""
        self._failure: Failure | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._taken = asyncio.Event()
        self._began = False

    def add(self, message: bytes) -> None:
        """Add a message."""
        if self._failure is None:
            self._messages.append(message)
            self._size += len(message)
            self._wake()

    def cut(self) -> None:
        """Keep nothing more for an agent that leaves too much unread."""
        if self._size > _MOST and len(self._messages) > 1:
            self._messages.clear()
            self.fail(ErrorKind.CANCELLED_BY_CALLER, "the agent reads too slowly")

    @property
    def is_crowded(self) -> bool:
        """Whether its agent leaves much unread."""
        return self._size > _ROOM and self._failure is None

    async def room(self) -> None:
        """Wait until some of it is read, or nobody will."""
        self._taken.clear()
        await self._taken.wait()

    def lift(self) -> None:
        """Keep nobody waiting for its agent."""
        self._taken.set()

    def end(self) -> None:
        """Mark the response as complete."""
        self.over = True
        self._wake()

    def fail(self, kind: ErrorKind, detail: str, phase: Phase | None = None) -> None:
        """Fail what is awaited; `phase` is how far it came, if not as far as
        it seemed."""
        if not self.over and self._failure is None:
            phase = phase or (Phase.BODY if self._began else self._progress.phase)
            self._failure = Failure(kind, phase, detail)
            self._wake()

    def mark(self, flag: Flag) -> None:
        """Note what happened to its calls."""
        self._progress.mark(flag)

    def expire(self, kind: ErrorKind, detail: str) -> bool:
        """Give up because time has run out; false where nobody waits for it now."""
        if self._waiter is None or self._failure is not None:
            return False
        phase = Phase.BODY if self._began else self._progress.phase
        if not self._progress.outlives(Failure(kind, phase, detail)):
            self.fail(kind, detail)
        return True

    @property
    def late(self) -> LateReader | None:
        """Reads an answer that comes after the request was given up."""
        return self._progress.late

    @property
    def is_guarded(self) -> bool:
        """Whether somebody else may want what its agent took back."""
        return self._progress.may_outlive

    @property
    def is_single(self) -> bool:
        """Whether one message is all there is."""
        return self.over and len(self._messages) == 1

    @property
    def size(self) -> int:
        """Bytes of the messages that are there."""
        return self._size

    @property
    def only(self) -> Message | None:
        """The only message there is, read."""
        said = parse(self._messages[0]) if self.is_single else None
        return said if isinstance(said, Message) else None

    @property
    def result(self) -> bytes | None:
        """The only message there is, as it came, unless it is an error."""
        only = self.only
        return self._messages[0] if only is not None and only.kind is Kind.RESPONSE else None

    @property
    def error_code(self) -> int | None:
        """Code of the error that is the only message there is."""
        only = self.only
        return only.error_code if only is not None else None

    async def some(self) -> list[bytes]:
        """Wait for messages and take them; nothing at the end. Raises `Failure`."""
        await self.first()
        taken, self._messages, self._size = self._messages, [], 0
        self._taken.set()
        self._began = self._began or bool(taken)
        return taken

    async def first(self) -> None:
        """Wait until there is a message, or there will be none. Raises `Failure`."""
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self.over:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Replied:
    """A `CommandReply` as an HTTP answer. `left` is called when nobody reads it any more."""

    def __init__(
        self,
        reply: CommandReply,
        patience: Deadlines | None,
        headers: Headers,
        left: Callable[[CommandReply], None],
        *,
        status: int = 200,
    ) -> None:
        self._reply = reply
        self._patience = patience
        self._left = left
        self._single = reply.is_single
        self.status = status
        self.reason = _REASONS[status]
        self.raw = (*headers, *((_JSON,) if self._single else _EVENTS))
        self.headers: Headers = self.raw
        self.framing = Framing(Body.LENGTH, reply.size) if self._single else Framing(Body.CHUNKED)

    async def read(self) -> bytes:
        """Return what has come of the body; nothing at its end. Raises `Failure` if it is cut."""
        messages = await self._reply.some()
        return b"".join(messages if self._single else map(as_event, messages))

    at_end = True
    """Whether the whole answer has come: each message has."""

    def heard(self) -> None:
        """Note that a message came."""
        if self._patience is not None:
            self._patience.heard()

    async def is_reachable(self) -> bool:
        """Return false: no stream is resumed, as its events have no ids."""
        return False

    async def close(self) -> None:
        """Stop reading."""
        if self._patience is not None:
            self._patience.close()
        self._left(self._reply)


class CommandMessage:
    """An answer of a moment: a status, and perhaps a short JSON body."""

    def __init__(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        self.status = status
        self.reason = _REASONS.get(status, b"")
        self.raw = (*headers, *((_JSON,) if body else ()))
        self.headers: Headers = self.raw
        self.framing = Framing(Body.LENGTH, len(body))
        self._body = body

    async def read(self) -> bytes:
        """Return the body, once."""
        body, self._body = self._body, b""
        return body

    at_end = True
    """Whether the whole answer has come."""

    def heard(self) -> None:
        """Nothing waits."""

    async def is_reachable(self) -> bool:
        """Return false: there is nothing to resume."""
        return False

    async def close(self) -> None:
        """Nothing is open."""
