"""A reusable future: a connection's task waits on it again and again."""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context


class Wakeup:
    """Wakes the one task that waits on it."""

    # A future is made for each wait, and wakes its task in the next turn of the loop (decision 40). This one
    # is reused, and can wake at once. To a task it is a future all the same: asyncio accepts every
    # object that has `_asyncio_future_blocking`.

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_context", "_done", "_loop", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._wake: Callable[[object], object] | None = None
        """Wakes the waiting task."""
        self._context: Context
        # A task takes the result of a future of asyncio's own without entering a Python function.
        self._done: asyncio.Future[None] = loop.create_future()
        self._done.set_result(None)
        self._cancelled = False

    def __await__(self) -> Generator["Wakeup", None, None]:
        """Wait until it is rung."""
        self._asyncio_future_blocking = True
        yield self

    def done(self) -> bool:
        """Return whether no task waits, or one that does is about to be woken."""
        return self._wake is None

    def set_result(self, _: None) -> None:
        """Wake the waiting task in the loop's next turn."""
        wake, self._wake = self._wake, None
        if wake is not None:
            self._loop.call_soon(wake, self, context=self._context)

    def ring(self) -> None:
        """Wake the waiting task at once."""
        # Only from a callback of the loop: while one task runs, no other can go on.
        wake, self._wake = self._wake, None
        if wake is not None:
            self._context.run(wake, self._done)

    # -- what a task asks of a future ----------------------------------------------------------

    def add_done_callback(self, wake: Callable[[object], object], *, context: Context) -> None:
        """Wake a task by `wake`."""
        self._wake, self._context = wake, context

    def result(self) -> None:
        """Return nothing to the task that was woken. Raises `CancelledError`."""
        if self._cancelled:
            self._cancelled = False
            raise asyncio.CancelledError

    def cancel(self, msg: object = None) -> bool:
        """Cancel the waiting task; return whether there was one."""
        if self._wake is None:
            return False
        self._cancelled = True
        self.set_result(None)
        return True
