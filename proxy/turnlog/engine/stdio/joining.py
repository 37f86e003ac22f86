"""The calls of a pipe that wait for an earlier one: beside it, so that the lines behind them go on."""

import asyncio
from collections.abc import Callable, Coroutine


class WaitingCalls:
    """Tasks that wait, by the keys of their callers' ids. `changed` is told of each that is over."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._tasks: dict[asyncio.Task[None], str] = {}

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def add(self, work: asyncio.TaskGroup, key: str, waiting: Coroutine[None, None, None]) -> None:
        """Wait among `work`."""
        task = work.create_task(waiting)
        self._tasks[task] = key
        task.add_done_callback(self._over)
        self._changed()

    def leave(self, key: str | None) -> bool:
        """Let the newest call with this id wait no more; false where none does."""
        for task, its in reversed(self._tasks.items()):
            if its == key:
                return task.cancel()
        return False

    def leave_all(self) -> None:
        """Let none wait any more."""
        for task in self._tasks:
            task.cancel()

    async def over(self) -> None:
        """Wait until none waits."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _over(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._changed()
