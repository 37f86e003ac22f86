"""The agent's side of an answer, which may be gone while its call runs on."""

from collections.abc import Coroutine
from typing import Final

from turnlog.record.own_answers import OwnAnswer
from turnlog.transport.http_server import AgentGone, Downstream
from turnlog.wire.http.head import Headers, lines
from turnlog.wire.splice import as_event

_MOST: Final = 16 << 20
"""bytes of a body that are kept."""
_OWN: Final = b"turnlog-"
_EVENTS: Final = b"text/event-stream"
_ENDS: Final = (b"\n\n", b"\r\r", b"\n\r\n")
"""What an event ends with."""
_END_BYTES: Final = 3


class GuardedAgent:
    """The agent's side of a call that may outlive it: never raises `AgentGone`; `keeps` a copy if asked to."""

    def __init__(self, down: Downstream, *, keeps: bool) -> None:
        self._down = down
        self._keeps = keeps
        self._head: tuple[int, bytes, bytes] | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._is_whole = False
        self._is_stream = False
        """Whether an event stream has begun to leave that may be ended by an event of turnlog's."""
        self._end = b"\n\n"
        """The last bytes of the body that has left."""
        self.is_there = True
        """Whether what is written goes to the agent."""
        self.asked = down.asked
        self.length = down.length

    @property
    def can_be_replaced(self) -> bool:
        """Whether something else can be sent to the agent in the answer's place."""
        between_events = self._is_stream and self._end.endswith(_ENDS)
        return self.is_there and (not self._down.begun or between_events)

    def drop(self) -> None:
        """Drop the rest of the answer."""
        self.is_there = False

    async def replace(self, made: OwnAnswer, told: bytes) -> None:
        """Send turnlog's own answer in place of the one that was dropped."""
        if self._down.begun:
            await self._down.end(as_event(made.body))
        else:
            head = lines(made.headers) + told
            await self._down.answer(made.status, made.reason, head, made.body)

    @property
    def has_ended(self) -> bool:
        """Whether the agent has ended its side: it may be gone."""
        return self._down.has_ended

    async def is_taken(self) -> bool:
        """Return whether the agent did not leave before the answer, just written, reached it."""
        return self.is_there and await self._down.is_taken() and self.is_there

    @property
    def has_answer(self) -> bool:
        """Whether the agent was there until the answer had been handed to it whole."""
        return self.is_there and self._down.finished

    @property
    def kept(self) -> OwnAnswer | None:
        """The copy of the answer; `None` where it is not whole, or was too large."""
        if not self._keeps or self._head is None or not self._is_whole or self._size > _MOST:
            return None
        status, reason, lines = self._head
        return OwnAnswer(status, reason, _headers(lines), b"".join(self._body))

    def interim(self, status: int, reason: bytes, lines: bytes) -> None:
        """Forward an interim answer."""
        self._down.interim(status, reason, lines)

    async def answer(self, status: int, reason: bytes, lines: bytes, body: bytes) -> None:
        """Send a whole answer."""
        self._head, self._is_whole = (status, reason, lines), True
        if self._keeps:
            self._copy(body)
        await self._sent(self._down.answer(status, reason, lines, body))

    async def bodiless(self, status: int, reason: bytes, lines: bytes) -> None:
        """Send an answer that never has a body."""
        self._head, self._is_whole = (status, reason, lines), True
        await self._sent(self._down.bodiless(status, reason, lines))

    async def start(
        self,
        status: int,
        reason: bytes,
        lines: bytes,
        length: int | None,
        first: bytes,
        *,
        ends: bool,
    ) -> None:
        """Send a head whose body follows, and the `first` piece of that, all of it where it `ends` so."""
        self._head = (status, reason, lines)
        named = {name.lower(): value for name, value in _headers(lines)}
        media = named.get(b"content-type", b"").partition(b";")[0].strip().lower()
        is_plain = b"content-encoding" not in named and length is None
        self._is_whole, self._is_stream = ends, is_plain and media == _EVENTS and not ends
        self._note(first)
        await self._sent(self._down.start(status, reason, lines, length, first, ends=ends))

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; wait while the agent reads slowly."""
        self._note(data)
        if not self.is_there:
            return
        try:
            await self._down.write(data)
        except AgentGone:
            self.is_there = False

    async def end(self, last: bytes = b"") -> None:
        """Send the end of the message."""
        self._is_whole, self._is_stream = True, False
        if self._keeps:
            self._copy(last)
        await self._sent(self._down.end(last))

    def abort(self) -> None:
        """End the connection, of an answer that is not whole; it is another one's by now where the
        agent has had something else."""
        if self.is_there:
            self._down.abort()

    def fail(self, data: bytes) -> None:
        """Write a whole answer in place of one that turnlog failed to make, if the agent hears it."""
        if self.is_there:
            self._down.fail(data)

    def _note(self, data: bytes) -> None:
        self._end = (self._end + data[-_END_BYTES:])[-_END_BYTES:]
        if self._keeps:
            self._copy(data)

    def _copy(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= _MOST:
            self._body.append(data)
        else:
            self._body.clear()

    async def _sent(self, step: Coroutine[None, None, None]) -> None:
        if not self.is_there:
            step.close()
            return
        try:
            await step
        except AgentGone:
            self.is_there = False


AgentSide = Downstream | GuardedAgent
"""The agent's side: its request as it came, and where the answer goes."""


def _headers(lines: bytes) -> Headers:
    """Return the fields of a head, each with CRLF before it, without those that turnlog added."""
    fields = [line.partition(b": ") for line in lines.split(b"\r\n")[1:]]
    return tuple((name, value) for name, _, value in fields if not name.lower().startswith(_OWN))
