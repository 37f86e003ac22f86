"""Deletes what has outlived its retention while the proxy has little else to do."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from turnlog.core.text.units import timestamp
from turnlog.observe.clock import Clock
from turnlog.observe.events import Log, RetentionAnnounced, RetentionEnforced
from turnlog.sessions.state.backlog import SHARE, Pace, repeat
from turnlog.store.blobs import RewriteBusy
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.held_content import HeldContent
from turnlog.store.saved_states import SavedStates

from .ages import Retention
from .collect import Collector
from .gc import Expired, GcFate, GcItem, GcLine, due_lines, expired
from .purge import Purger

LOOK: Final = 60.0
"""s between two looks whether something is due."""
EVERY: Final = 3600 * 10**9
"""ns between two plans: nothing falls due faster than by the day."""
EVERY_BY_RULES: Final = 86_400 * 10**9
"""The same where rules give ages: then a plan reads headers and bodies."""
NOTICE: Final = 7 * 86_400 * 10**9
"""ns between the announcement in a store of an earlier version and the first deletion."""


class Housekeeper:
    """Deletes what is due, once an hour at most."""

    def __init__(
        self,
        store: LmdbStore,
        saved: SavedStates,
        retention: Retention,
        clock: Clock,
        log: Log,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._store = store
        self._collector = Collector(store, saved, clock, thread, SHARE)
        self._retention = retention
        self._clock = clock
        self._log = log
        self._thread = thread
        self._holds = HeldContent()
        self._pace = Pace(clock)
        self._next = 0
        self._announced = False

    async def look(self) -> None:
        """Delete what is due, unless many commits are being written. Raises `StoreError`."""
        now = self._clock.monotonic()
        if self._pace.is_busy(await self._last()) or now < self._next:
            return
        self._next = now + (EVERY_BY_RULES if self._retention.rules else EVERY)
        await self._finish_purges()
        wall = self._clock.wall()
        begins = await self._begins(wall)
        if wall >= begins:
            await self._collect(wall)
        elif not self._announced:
            self._announced = True
            self._announce(await self._due(begins), begins)

    async def _finish_purges(self) -> None:
        """Finish the purges that another process has begun and not ended."""
        with self._store.view() as view:
            begun = [session for session, is_erased in view.purges().items() if not is_erased]
        for session in begun:
            with suppress(RewriteBusy):  # another process still works on it
                await Purger(self._collector).go_on(session)

    async def _last(self) -> int:
        with self._store.view() as view:
            return view.last

    async def _begins(self, wall: int) -> int:
        """Return when this store's content may be deleted for the first time."""
        with self._store.view() as view:
            announced_at = view.retention_told
        if not announced_at:
            announced_at = await self._store.tell_retention(wall)
        return announced_at + NOTICE

    async def _due(self, at: int) -> list[Expired]:
        return await self._store.read(
            lambda view: expired(view, self._retention, at, self._holds), self._thread
        )

    def _announce(self, due: list[Expired], begins: int) -> None:
        buckets, size, commits = _sums(due_lines(due, ()), GcFate.DUE)
        told = RetentionAnnounced(
            begins=timestamp(begins), buckets=buckets, size=size, commits=commits
        )
        self._log.emit(told)

    async def _collect(self, wall: int) -> None:
        gone = [line async for line in self._collector.collect(await self._due(wall))]
        if gone:
            self._log.emit(enforced(gone))


def enforced(gone: Iterable[GcLine]) -> RetentionEnforced:
    """Return the event about what a collection has deleted."""
    buckets, size, commits = _sums(gone, GcFate.DELETED)
    return RetentionEnforced(buckets=buckets, size=size, commits=commits)


def _sums(lines: Iterable[GcLine], fate: GcFate) -> tuple[int, int, int]:
    """Return how much content has a fate: days of payloads, their bytes, and commits."""
    found = [line for line in lines if line.fate is fate]
    buckets = [line.bytes for line in found if line.what is GcItem.PAYLOADS]
    commits = sum(line.commits for line in found)
    return len(buckets), sum(buckets), commits


async def keep_house(
    store: LmdbStore, saved: SavedStates, retention: Retention, clock: Clock, log: Log
) -> None:
    """Delete what is due until cancelled."""
    # The thread must have ended before the store is closed.
    with ThreadPoolExecutor(1, "turnlog-retention") as thread:
        await repeat(Housekeeper(store, saved, retention, clock, log, thread).look, LOOK, log)
