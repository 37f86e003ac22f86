"""What leaves to the agent, held back while another attempt may take its place."""

from collections.abc import Callable, Coroutine
from typing import Final, Protocol

from msgspec import Struct

from turnlog.wire.splice import Respelling

HOLD: Final = 1 << 20
"""bytes: more than this is not held back."""
Gate = Callable[[], bool]
"""Asked once, when it is known how an attempt ended: may its answer go to the agent?"""


class AnswerSink(Protocol):
    """Where an answer goes: to the agent, or on a shelf."""

    async def answer(self, status: int, reason: bytes, lines: bytes, body: bytes, /) -> None:
        """Send a whole answer."""
        ...

    async def bodiless(self, status: int, reason: bytes, lines: bytes, /) -> None:
        """Send an answer that never has a body."""
        ...

    async def start(self, status: int, reason: bytes, lines: bytes, length: int | None, /) -> None:
        """Send a head whose body follows."""
        ...

    async def write(self, data: bytes, /) -> None:
        """Send a piece of the body."""
        ...

    async def end(self, last: bytes = b"", /) -> None:
        """Send the end of the message."""
        ...

    def abort(self) -> None:
        """End the connection."""
        ...


class HeldAnswer(Struct, frozen=True):
    """A whole answer that was held back. `lines` are those of its head, each with CRLF before it."""

    way: AnswerSink
    status: int
    reason: bytes
    lines: bytes
    body: bytes | None
    """`None` where it never has one."""

    async def send(self) -> None:
        """Send it after all."""
        if self.body is None:
            await self.way.bodiless(self.status, self.reason, self.lines)
        else:
            await self.way.answer(self.status, self.reason, self.lines, self.body)


class Withheld(Exception):
    """The answer does not go to the agent now: another attempt is to be made, or there is a better
    one."""

    def __init__(self, held: HeldAnswer) -> None:
        super().__init__()
        self.held = held


class _Shelf:
    """Takes the agent's place for an answer that is withheld: as soon as there is all of it that
    is needed it raises `Withheld`."""

    def __init__(self, way: AnswerSink, rest: Callable[[], bytes]) -> None:
        """`rest` gives what belongs behind the last piece of a body."""
        self._way = way
        self._rest = rest
        self._head = (0, b"", b"")

    async def answer(self, status: int, reason: bytes, lines: bytes, body: bytes) -> None:
        raise Withheld(HeldAnswer(self._way, status, reason, lines, body))

    async def bodiless(self, status: int, reason: bytes, lines: bytes) -> None:
        raise Withheld(HeldAnswer(self._way, status, reason, lines, None))

    async def start(self, status: int, reason: bytes, lines: bytes, length: int | None) -> None:
        self._head = (status, reason, lines)

    async def write(self, data: bytes) -> None:
        """The response is in here: whatever the server would send behind it is not waited for."""
        await self.answer(*self._head, data + self._rest())

    async def end(self, last: bytes = b"") -> None:
        await self.write(last)

    def abort(self) -> None:
        """Nothing has left."""


# One is made for each call, and a struct takes a third of the time of another class.
class ResponseBuffer(Struct, eq=False):
    """The way to the agent of one attempt's answer. Raises `Gone` where the agent left.

    With a `gate` nothing leaves before it was asked, unless more than `HOLD` bytes lie here. With a
    `respelling` the request's id in the answer becomes the caller's.
    """

    _down: AnswerSink
    _gate: Gate | None
    _respelling: Respelling | None
    _head: tuple[int, bytes, bytes, int | None] | None = None
    _held: list[bytes] = []
    _size: int = 0
    left: bool = False
    """Whether any of the answer has left, or is bound to."""

    @property
    def respells(self) -> bool:
        """Whether the body's length changes on the way."""
        return self._respelling is not None

    @property
    def holds(self) -> bool:
        """Whether another attempt may take this one's place."""
        return self._gate is not None

    def let_go(self) -> None:
        """Hold nothing back any more."""
        self._gate = None

    def judged(self) -> None:
        """Ask whether the answer may leave, now that it is known; else sending it raises `Withheld`."""
        gate, self._gate = self._gate, None
        if gate is not None and not gate():
            self.withhold()

    def withhold(self) -> None:
        """Let nothing leave: sending the answer raises `Withheld`."""
        self._down = _Shelf(self._down, self._tail)

    def _tail(self) -> bytes:
        return self._respelling.finish() if self._respelling is not None else b""

    async def start(self, status: int, reason: bytes, lines: bytes, length: int | None) -> None:
        """Take the head of an answer whose body follows."""
        self._head = (status, reason, lines, None if self.respells else length)
        await self._flush()

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; wait while the agent reads slowly."""
        if data and self._respelling is not None:
            data = self._respelling.feed(data)
        if self._gate is None and self._head is None:
            await self._down.write(data)
            return
        if data:
            self._held.append(data)
            self._size += len(data)
        if self._size > HOLD:
            self._gate = None
        await self._flush()

    async def end(self, last: bytes = b"") -> None:
        """Take the last piece; the message is complete."""
        self._gate = None
        await self.write(last)
        await self._down.end(self._tail())

    def answer(
        self, status: int, reason: bytes, lines: bytes, body: bytes
    ) -> Coroutine[None, None, None]:
        """Send a whole answer in one piece, in place of what was held."""
        if self._respelling is not None:
            body = self._respelling.feed(body) + self._tail()
        self.left = True
        return self._down.answer(status, reason, lines, body)

    async def bodiless(self, status: int, reason: bytes, lines: bytes) -> None:
        """Send an answer that never has a body."""
        self.left = True
        await self._down.bodiless(status, reason, lines)

    async def cut(self) -> None:
        """Send what is held, then end the connection so that nobody takes the answer for whole."""
        self._gate = None
        await self._flush()
        self._down.abort()

    async def _flush(self) -> None:
        if self._gate is not None or self._head is None:
            return
        head, self._head = self._head, None
        held, self._held = self._held, []
        self.left = True
        await self._down.start(*head)
        await self._down.write(b"".join(held))
