"""Save states of sessions as they grow, while the proxy has little else to do."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from turnlog.observe.clock import Clock
from turnlog.observe.events import Log, StoreFailed
from turnlog.sessions.state.backlog import StateBacklog
from turnlog.store.base import StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

LOOK: Final = 1.0
"""s between two looks at which sessions have grown."""
BUSY: Final = 200
"""Commits per second above which calls need the processor more."""
SHARE: Final = 20
"""For so many times as long as it works, it rests: it takes a twentieth of a processor at most."""


async def save_states(store: LmdbStore, saved: SavedStates, clock: Clock, log: Log) -> None:
    """Save states for ever. What cannot be read is told once, and tried again when that has changed."""
    saving = StateBacklog(saved)
    told = ""
    # The thread must have ended before the store is closed.
    with ThreadPoolExecutor(1, "turnlog-states") as thread:
        rounds = StateSaver(store, saving, clock, thread)
        while True:
            await asyncio.sleep(LOOK)
            try:
                await rounds.make()
            except StoreError as error:
                if (reason := str(error)) != told:
                    log.emit(StoreFailed(reason=reason))
                told = reason


class StateSaver:
    """Folds the states of sessions that have grown, as long as there is little else to do."""

    def __init__(
        self, store: LmdbStore, saving: StateBacklog, clock: Clock, thread: ThreadPoolExecutor
    ) -> None:
        self._store = store
        self._saving = saving
        self._clock = clock
        self._thread = thread
        self._last = 0
        self._at = clock.monotonic()

    async def make(self) -> None:
        """Fold what has grown, unless there is much to do. Raises `StoreError`."""
        if await self._is_busy():
            return
        await self._do(self._saving.look)
        while self._saving.is_due:
            before = self._clock.monotonic()
            await self._do(self._saving.step)
            took = (self._clock.monotonic() - before) / 1e9
            await asyncio.sleep((SHARE - 1) * took)
            if self._clock.monotonic() - self._at > LOOK * 1e9 and await self._is_busy():
                return

    async def _is_busy(self) -> bool:
        """Return whether many commits were written since the last call."""
        now, last = self._clock.monotonic(), await self._do(_last)
        made, time = last - self._last, (now - self._at) / 1e9
        self._last, self._at = last, now
        return made > BUSY * time

    async def _do(self, work: Callable[[View], int | None]) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._looked, work)

    def _looked(self, work: Callable[[View], int | None]) -> int:
        with self._store.view() as view:
            return work(view) or 0


def _last(view: View) -> int:
    return view.last
