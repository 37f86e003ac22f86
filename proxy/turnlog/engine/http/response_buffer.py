"""The buffer between one attempt's answer and the agent, which holds answers that may not be sent yet."""

from collections.abc import Callable, Coroutine
from typing import Final

from msgspec import Struct

from turnlog.wire.splice import Respelling

from .agent_side import AgentSide

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
class ResponseBuffer(Struct, eq=False):
    """The buffer between one attempt's answer and the agent. Raises `AgentGone` if the agent has left.

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

    @property
    def has_ended(self) -> bool:
        """Whether the agent has ended its side: it may be gone."""
        return self._down.has_ended

    def is_taken(self) -> Coroutine[None, None, bool]:
        """Return whether the agent did not leave before the answer, just written, reached it."""
        return self._down.is_taken()

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

    def write(self, data: bytes) -> Coroutine[None, None, None]:
        """Send a piece of the body; wait while the agent reads slowly."""
        if self._head is None and self.respelling is None:
            return self._down.write(data)
        return self._write(data)

    async def _write(self, data: bytes) -> None:
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
        """Send the last piece of the body, and what is still held."""
        self.gate = None
        if last and self.respelling is not None:
            last = self.respelling.feed(last)
        if self._head is None:
            await self._down.end(last + self._tail())
        else:
            self._held.append(last + self._tail())
            await self._flush(ends=True)

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

    async def _flush(self, *, ends: bool = False) -> None:
        if self.gate is not None or self._head is None:
            return
        head, held = self._head, b"".join(self._held)
        if self._is_withheld:
            # The response is complete here; anything the server may send behind it is not awaited.
            raise Withheld(HeldAnswer(self._down, *head[:3], held + self._tail()))
        self._head = None
        self._held.clear()
        self.left = True
        await self._down.start(*head, held, ends=ends)
