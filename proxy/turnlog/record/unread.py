"""Waiting until everything has been read that lay unread in this process's sockets at a moment."""

import asyncio
from collections.abc import Callable
from typing import Final

MOMENT: Final = 0.02
"""s in which what clients send one after another on several connections has been read."""
_PASSES: Final = 10
"""Turns of the loop. A connection that waits to be accepted, and what was sent on it, takes about six."""


async def all_read(moment: float = MOMENT) -> None:
    """Wait until what lay unread has been read, as `Unread` does."""
    await asyncio.sleep(moment)
    for _ in range(_PASSES):
        await asyncio.sleep(0)


class Unread:
    """Callbacks that wait until what lay unread when they were added has been read.

    Time alone does not tell that: a process that was stopped finds its timers over before it has
    read anything. So the loop goes round several times behind the timer.
    """

    def __init__(self, moment: float = MOMENT) -> None:
        self._moment = moment
        self._waiting: list[Callable[[], object]] = []
        self._reading: list[Callable[[], object]] = []
        """Those whose time has begun."""

    def after(self, then: Callable[[], object]) -> None:
        """Call `then` when all that is unread now has been read."""
        self._waiting.append(then)
        if not self._reading:
            self._begin()

    def flush(self) -> None:
        """Call everything that waits, at once: nothing more is read."""
        for waiting in (self._reading, self._waiting):
            while waiting:
                waiting.pop(0)()

    def _begin(self) -> None:
        self._reading, self._waiting = self._waiting, []
        if self._reading:
            asyncio.get_running_loop().call_later(self._moment, self._pass, _PASSES)

    def _pass(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._pass, left - 1)
            return
        for then in self._reading:
            then()
        self._begin()
