"""What leaves to the agent, held back while another attempt may take its place."""

from collections.abc import Callable
from typing import Final

from turnlog.wire.splice import Respelling

from .downstream import Downstream

HOLD: Final = 1 << 20
"""bytes: more than this is not held back."""
Gate = Callable[[], bool]
"""Asked once, when it is known how an attempt ended: may its answer go to the agent?"""


class Withheld(Exception):
    """The answer does not go to the agent: another attempt is made."""


class Outlet:
    """The way to the agent of one attempt's answer. Raises `Gone` where the agent left.

    With a `gate` nothing leaves before it was asked, unless more than `HOLD` bytes lie here. With a
    `respelling` the request's id in the answer becomes the caller's.
    """

    def __init__(self, down: Downstream, gate: Gate | None, respelling: Respelling | None) -> None:
        self._down = down
        self._gate = gate
        self._respelling = respelling
        self._head: tuple[int, bytes, bytes, int | None] | None = None
        self._held: list[bytes] = []
        self._size = 0
        self.left = False
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
        """Ask whether the answer may leave, now that it is known. Raises `Withheld`."""
        gate, self._gate = self._gate, None
        if gate is not None and not gate():
            raise Withheld

    async def start(self, status: int, reason: bytes, lines: bytes, length: int | None) -> None:
        """Take the head of an answer whose body follows."""
        self._head = (status, reason, lines, None if self.respells else length)
        await self._flush()

    async def write(self, data: bytes) -> None:
        """Take a piece of the body; wait while the agent reads slowly."""
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
        rest = self._respelling.finish() if self._respelling is not None else b""
        await self._down.end(rest)

    async def answer(self, status: int, reason: bytes, lines: bytes, body: bytes) -> None:
        """Send a whole answer in one piece, in place of what was held."""
        if self._respelling is not None:
            body = self._respelling.feed(body) + self._respelling.finish()
        self.left = True
        await self._down.answer(status, reason, lines, body)

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
