"""What a connection's task waits for, again and again: that something has come."""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context


class Wakeup:
    """Wakes the one task that waits for it.

    A future is made for each wait, and wakes in the next turn of the loop; this one stays, and may wake
    at once. To a task it is a future all the same: asyncio takes whatever has `_asyncio_future_blocking`.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_context", "_loop", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._wake: Callable[[Wakeup], object] | None = None
        """Of the task that waits."""
        self._context: Context
        self._cancelled = False

    def __await__(self) -> Generator["Wakeup", None, None]:
        """Wait until it rings."""
        self._asyncio_future_blocking = True
        yield self

    def done(self) -> bool:
        """Tell whether nobody waits who is not about to be woken."""
        return self._wake is None

    def set_result(self, _: None) -> None:
        """Wake who waits in the loop's next turn."""
        wake, self._wake = self._wake, None
        if wake is not None:
            self._loop.call_soon(wake, self, context=self._context)

    def ring(self) -> None:
        """Wake who waits at once. Only for a callback of the loop, as the last thing that it does of its
        own: while a task runs, no other can go on. (TLS goes on after it, with what it has read.)"""
        wake, self._wake = self._wake, None
        if wake is not None:
            self._context.run(wake, self)

    # -- what a task asks of a future ----------------------------------------------------------

    def add_done_callback(self, wake: Callable[["Wakeup"], object], *, context: Context) -> None:
        """Wake a task by `wake`."""
        self._wake, self._context = wake, context

    def result(self) -> None:
        """Let who waited go on. Raises `CancelledError`."""
        if self._cancelled:
            self._cancelled = False
            raise asyncio.CancelledError

    def cancel(self, msg: object = None) -> bool:
        """Cancel who waits; tell whether somebody did."""
        if self._wake is None:
            return False
        self._cancelled = True
        self.set_result(None)
        return True
