"""What leaves to the agent, held back while another attempt may take its place."""

from collections.abc import Callable, Coroutine
from typing import Final

from msgspec import Struct

from turnlog.transport.http_server import Downstream
from turnlog.wire.splice import Respelling

from .audience import Audience

HOLD: Final = 1 << 20
"""bytes: more than this is not held back."""
AgentSide = Downstream | Audience
"""The agent's side: its request as it came, and where the answer goes."""
Gate = Callable[[], bool]
"""Asked once, when it is known how an attempt ended: may its answer go to the agent?"""


class HeldAnswer(Struct, frozen=True):
    """A whole answer that was held back. `lines` are those of its head, each with CRLF before it."""

    way: AgentSide
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


# One is made for each call, and a struct takes a third of the time of another class.
class ResponseBuffer(Struct, eq=False):
    """The way to the agent of one attempt's answer. Raises `Gone` where the agent left.

    With a `gate` nothing leaves before it was asked, unless more than `HOLD` bytes lie here. With a
    `respelling` the request's id in the answer becomes the caller's, which changes its length.
    """

    _down: AgentSide
    gate: Gate | None
    respelling: Respelling | None
    _head: tuple[int, bytes, bytes, int | None] | None = None
    _held: list[bytes] = []
    _size: int = 0
    _is_withheld: bool = False
    left: bool = False
    """Whether any of the answer has left, or is bound to."""

    def judged(self) -> None:
        """Ask whether the answer may leave, now that it is known; else sending it raises `Withheld`."""
        gate, self.gate = self.gate, None
        if gate is not None and not gate():
            self.withhold()

    def withhold(self) -> None:
        """Let nothing leave: sending the answer raises `Withheld`."""
        self._is_withheld = True

    def _tail(self) -> bytes:
        return self.respelling.finish() if self.respelling is not None else b""

    async def start(self, status: int, reason: bytes, lines: bytes, length: int | None) -> None:
        """Take the head of an answer whose body follows."""
        self._head = (status, reason, lines, length if self.respelling is None else None)
        await self._flush()

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; wait while the agent reads slowly."""
        if data and self.respelling is not None:
            data = self.respelling.feed(data)
        if self._head is None:
            await self._down.write(data)
            return
        if data:
            self._held.append(data)
            self._size += len(data)
        if self._size > HOLD:
            self.gate = None
        await self._flush()

    async def end(self, last: bytes = b"") -> None:
        """Take the last piece; the message is complete."""
        self.gate = None
        await self.write(last)
        await self._down.end(self._tail())

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
        """Send what is held, then end the connection so that nobody takes the answer for whole."""
        self.gate = None
        await self._flush()
        self._down.abort()

    async def _flush(self) -> None:
        if self.gate is not None or self._head is None:
            return
        head, held = self._head, b"".join(self._held)
        if self._is_withheld:
            # The response is in here: whatever the server would send behind it is not waited for.
            raise Withheld(HeldAnswer(self._down, *head[:3], held + self._tail()))
        self._head = None
        self._held.clear()
        self.left = True
        await self._down.start(*head)
        await self._down.write(held)
