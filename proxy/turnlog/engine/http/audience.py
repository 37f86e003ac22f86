"""The agent's place at a call that may outlive it: what is said when it is gone goes nowhere."""

from collections.abc import Coroutine

from turnlog.record.own_answers import OwnAnswer
from turnlog.transport.http_server import Downstream, Gone
from turnlog.transport.message_heads import lines
from turnlog.wire.http.head import Headers
from turnlog.wire.splice import as_event

_MOST = 16 << 20
"""bytes of a body that are kept."""
_OWN = b"turnlog-"
_EVENTS = b"text/event-stream"
_ENDS = (b"\n\n", b"\r\r", b"\n\r\n")
"""What an event ends with."""
_END_BYTES = 3


class Audience:
    """The agent's side of an answer that may outlive it: never raises `Gone`; keeps a copy if asked to."""

    def __init__(self, down: Downstream, *, keeps: bool) -> None:
        self._down = down
        self._keeps = keeps
        self._head: tuple[int, bytes, bytes] | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._whole = False
        self._end = b"\n\n"
        """The last bytes of the body that has left."""
        self._has_length = False
        self._gone = False
        self.method = down.method
        self.raw = down.raw
        self.length = down.length

    @property
    def can_hush(self) -> bool:
        """Whether something else could be said to the agent in the answer's place."""
        return not self._gone and (not self._down.begun or self._between_events)

    def hush(self) -> None:
        """Drop the rest of the answer."""
        self._gone = True

    async def say(self, made: OwnAnswer, told: bytes) -> None:
        """Send turnlog's own answer in place of the one that was dropped."""
        if self._down.begun:
            await self._down.end(as_event(made.body))
        else:
            head = lines(made.headers) + told
            await self._down.answer(made.status, made.reason, head, made.body)

    @property
    def _between_events(self) -> bool:
        """Whether an event stream has left, up to the end of an event."""
        _, _, fields = self._head or (0, b"", b"")
        named = {name.lower(): value for name, value in _headers(fields)}
        media = named.get(b"content-type", b"").partition(b";")[0].strip().lower()
        plain = b"content-encoding" not in named and not self._has_length
        return media == _EVENTS and plain and self._end.endswith(_ENDS)

    @property
    def has_ended(self) -> bool:
        """Whether the agent has ended its side: it may be gone."""
        return self._down.has_ended

    def is_there(self) -> bool:
        """Return whether what is said goes to the agent."""
        return not self._gone

    @property
    def has_heard(self) -> bool:
        """Whether the agent was there until the answer had been handed to it whole."""
        return not self._gone and self._down.finished

    @property
    def kept(self) -> OwnAnswer | None:
        """The answer as it went; `None` where it is not whole, or was too large."""
        if self._head is None or not self._whole or self._size > _MOST:
            return None
        status, reason, lines = self._head
        return OwnAnswer(status, reason, _headers(lines), b"".join(self._body))

    def interim(self, status: int, reason: bytes, lines: bytes) -> None:
        """Forward an interim answer."""
        self._down.interim(status, reason, lines)

    async def answer(self, status: int, reason: bytes, lines: bytes, body: bytes) -> None:
        """Send a whole answer."""
        self._begins(status, reason, lines)
        self._keep(body)
        self._whole = True
        await self._told(self._down.answer(status, reason, lines, body))

    async def bodiless(self, status: int, reason: bytes, lines: bytes) -> None:
        """Send an answer that never has a body."""
        self._begins(status, reason, lines)
        self._whole = True
        await self._told(self._down.bodiless(status, reason, lines))

    async def start(self, status: int, reason: bytes, lines: bytes, length: int | None) -> None:
        """Send a head whose body follows."""
        self._begins(status, reason, lines)
        self._has_length = length is not None
        await self._told(self._down.start(status, reason, lines, length))

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; wait while the agent reads slowly."""
        self._keep(data)
        if self._gone:
            return
        try:
            await self._down.write(data)
        except Gone:
            self._gone = True

    async def end(self, last: bytes = b"") -> None:
        """Send the end of the message."""
        self._keep(last)
        self._whole = True
        await self._told(self._down.end(last))

    def abort(self) -> None:
        """End the connection, of an answer that is not whole; it is another one's by now where the
        agent has had something else."""
        if not self._gone:
            self._down.abort()

    def fail(self, data: bytes) -> None:
        """Write a whole answer in place of one that turnlog failed to make, if the agent hears it."""
        if not self._gone:
            self._down.fail(data)

    def _begins(self, status: int, reason: bytes, lines: bytes) -> None:
        self._head = (status, reason, lines)

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        self._end = (self._end + data[-_END_BYTES:])[-_END_BYTES:]
        if self._keeps and self._size <= _MOST:
            self._body.append(data)
        else:
            self._body.clear()

    async def _told(self, said: Coroutine[None, None, None]) -> None:
        if self._gone:
            said.close()
            return
        try:
            await said
        except Gone:
            self._gone = True


def _headers(lines: bytes) -> Headers:
    """Return the fields of a head, each with CRLF before it, without those that turnlog added."""
    fields = [line.partition(b": ") for line in lines.split(b"\r\n")[1:]]
    return tuple((name, value) for name, _, value in fields if not name.lower().startswith(_OWN))
