"""Waits until all input that was unread in this process's sockets has been read."""

import asyncio
from collections.abc import Callable
from typing import Final

MOMENT: Final = 0.02
"""s in which what clients send one after another on several connections has been read."""
_PASSES: Final = 10
"""Turns of the loop. A connection that waits to be accepted, and what was sent on it, takes about six."""


async def all_read(moment: float = MOMENT) -> None:
    """Wait until all input that is unread now has been read."""
    await asyncio.sleep(moment)
    for _ in range(_PASSES):
        await asyncio.sleep(0)


class Unread:
    """Callbacks, by call, that are called once the input that was unread when they came has been read."""

    # A timer alone is not enough: in a process that was stopped it fires before anything has been
    # read. So the loop runs several more times after it.

    def __init__(self, moment: float = MOMENT) -> None:
        self._moment = moment
        self._waiting: dict[bytes, Callable[[], object]] = {}
        self._reading: dict[bytes, Callable[[], object]] = {}
        """Callbacks whose wait has begun."""
        self._is_timed = False

    def after(self, call: bytes, then: Callable[[], object]) -> None:
        """Call `then` when all that is unread now has been read; it replaces the callback of the same call."""
        self.discard(call)
        self._waiting[call] = then
        if not self._is_timed:
            self._begin()

    def discard(self, call: bytes) -> None:
        """Remove the callback of a call, if there is one."""
        self._waiting.pop(call, None)
        self._reading.pop(call, None)

    def flush(self) -> None:
        """Call all callbacks now: nothing more is read."""
        for waiting in (self._reading, self._waiting):
            while waiting:
                waiting.pop(next(iter(waiting)))()

    def _begin(self) -> None:
        self._reading, self._waiting = self._waiting, {}
        self._is_timed = bool(self._reading)
        if self._is_timed:
            asyncio.get_running_loop().call_later(self._moment, self._pass, _PASSES)

    def _pass(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._pass, left - 1)
            return
        for then in list(self._reading.values()):
            then()
        self._begin()
