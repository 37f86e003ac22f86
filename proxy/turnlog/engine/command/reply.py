"""The response of a command to one HTTP request: messages, as JSON or as an event stream."""

import asyncio
from collections.abc import Callable
from typing import Final

from turnlog.core.kinds import ErrorKind, Phase
from turnlog.record.deadlines import Progress
from turnlog.record.errors import Failure
from turnlog.wire.http.head import Body, Headers
from turnlog.wire.http.response_head import ResponseHead, response_head
from turnlog.wire.jsonrpc import Message

_MOST: Final = 64 << 20
"""bytes: a stream with more than this unread is cut, where other clients would wait with it."""
_ROOM: Final = 16 << 20
"""bytes: with more than this unread the command's output is not read, where it has one client."""
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
    """The messages for one request, as they come; an `Answer` once `begin` has set its head."""

    head: ResponseHead
    length: int | None
    at_end = True
    """Whether all of the answer has been read: of each message it has."""
    has_piece = False
    """Whether something of a body is here: a command gives messages."""
    content: Message | None = None
    """What the body says that was read, if it was parsed already."""
    trailers: Headers = ()
    """The fields behind the body: a command has none."""

    def __init__(self, progress: Progress, *, streams: bool) -> None:
        """`streams` tells whether there may be several messages."""
        self.streams = streams
        self.awaited: set[str] = set()
        """Keys of the ids, as the command knows them, without a response."""
        self._over = False
        self.progress = progress
        self._messages: list[tuple[bytes, Message | None]] = []
        self._size = 0
        self._failure: Failure | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._taken = asyncio.Event()
        self._began = False
        self._left: Callable[[CommandReply], None] = CommandReply.end_wait

    # -- the command's side ----------------------------------------------------------------

    def add(self, raw: bytes, message: Message | None = None) -> None:
        """Add a message; `message` is what it says, if it was parsed already."""
        if self._failure is None:
            self._messages.append((raw, message))
            self._size += len(raw)
            self._wake()

    def cut_if_unread(self) -> None:
        """Fail, and drop what is kept, if the client leaves too much unread."""
        if self._size > _MOST and len(self._messages) > 1:
            self._messages.clear()
            self.fail(ErrorKind.CANCELLED_BY_CALLER, "the agent reads too slowly")

    @property
    def is_crowded(self) -> bool:
        """Whether the client leaves much unread."""
        return self._size > _ROOM and self._failure is None

    async def wait_for_room(self) -> None:
        """Wait until some of it was read, or its reader is gone."""
        self._taken.clear()
        await self._taken.wait()

    def end_wait(self) -> None:
        """End the wait for the client to read."""
        self._taken.set()

    def end(self) -> None:
        """Mark the response as complete."""
        self._over = True
        self._wake()

    def fail(self, kind: ErrorKind, detail: str, phase: Phase | None = None) -> None:
        """Fail the requests without a response; `phase` overrides how far they seem to have come."""
        if not self._over and self._failure is None:
            self._failure = Failure(kind, phase or self._phase, detail)
            self._wake()

    @property
    def _phase(self) -> Phase:
        return Phase.BODY if self._began else self.progress.phase

    def expire(self, kind: ErrorKind, detail: str) -> bool:
        """Fail with a timeout, unless the call runs on; false if no task waits."""
        if self._waiter is None or self._failure is not None:
            return False
        if not self.progress.continues(Failure(kind, self._phase, detail)):
            self.fail(kind, detail)
        return True

    # -- the client's side -----------------------------------------------------------------

    def begin(
        self, left: "Callable[[CommandReply], None]", headers: Headers = (), *, status: int = 200
    ) -> "CommandReply":
        """Choose the head by the messages so far. `left` is called when the reader is gone."""
        self._left = left
        if self.is_single:
            return self._begun(status, (*headers, _JSON), self._size)
        return self._begun(status, (*headers, *_EVENTS), None)

    def _begun(self, status: int, headers: Headers, length: int | None) -> "CommandReply":
        body = Body.CHUNKED if length is None else Body.LENGTH
        self.head = response_head(status, _REASONS.get(status, b""), headers, body)
        self.length = length
        return self

    @classmethod
    def whole(cls, status: int, body: bytes = b"", headers: Headers = ()) -> "CommandReply":
        """Return a complete answer of turnlog's own: a status, and perhaps a short JSON body."""
        reply = cls(Progress(), streams=False)
        if body:
            reply.add(body)
        reply.end()
        fields = (*headers, _JSON) if body else headers
        return reply._begun(status, fields, len(body))

    def take_whole(self) -> None:
        """Return nothing: its body is read as a message."""

    @property
    def is_single(self) -> bool:
        """Whether one message is all there is."""
        return self._over and len(self._messages) == 1

    @property
    def only(self) -> Message | None:
        """The only message there is, parsed."""
        return self._messages[0][1] if self.is_single else None

    async def first(self) -> None:
        """Wait until there is a message, or there will be none. Raises `Failure`."""
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self._over:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def messages(self) -> list[tuple[bytes, Message | None]]:
        """Wait for messages and take them; empty at the end. Raises `Failure`."""
        await self.first()
        taken, self._messages, self._size = self._messages, [], 0
        self._taken.set()
        self._began = self._began or bool(taken)
        return taken

    async def read(self) -> bytes:
        """Return the body of an answer with a length. Raises `Failure` if there is none."""
        messages = await self.messages()
        raw, self.content = messages[0] if messages else (b"", None)
        return raw

    async def is_reachable(self) -> bool:
        """Return false: its events have no ids, so no stream is resumed."""
        return False

    async def close(self) -> None:
        """Stop reading."""
        if self.progress.deadlines is not None:
            self.progress.deadlines.close()
        self._left(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
