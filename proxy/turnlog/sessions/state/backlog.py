"""Saves states of growing sessions while the proxy has little else to do, a few commits at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from typing import Final

from turnlog.core.lifecycle import SessionStage
from turnlog.core.live_view import LiveView
from turnlog.core.state.session_state import State, encode_state
from turnlog.observe.clock import Clock
from turnlog.observe.events import Log, StoreFailed
from turnlog.sessions.errors import CompactedError
from turnlog.sessions.live import SessionBranches
from turnlog.store.base import StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

from .compacted import compacted_until
from .state_at import EVERY, fold_live, nearest

AT_ONCE: Final = 128
"""Commits that one step folds, about 2 ms."""
_LOOKED_AT: Final = 256
"""Sessions checked in one look, the most recently active first."""
LOOK: Final = 1.0
"""s between two looks at which sessions have grown."""
BUSY: Final = 200
"""Commits per second above which calls need the processor more."""
SHARE: Final = 20
"""It works for one part of the time in so many: a twentieth of a processor at most."""


class StateBacklog:
    """Sessions with `EVERY` or more commits after their last saved state. Not thread-safe."""

    def __init__(self, saved: SavedStates) -> None:
        self._saved = saved
        self._seen = 0
        self._due: dict[bytes, int] = {}
        """The seq up to which each session must be folded."""
        self._state: tuple[bytes, LiveView, State] | None = None
        """The session folded last, by which view of it, and its state so far."""
        self._unsaved: set[bytes] = set()
        """Sessions whose states cannot be saved: too large, or no space."""

    @property
    def is_due(self) -> bool:
        """Whether there are commits to fold."""
        return bool(self._due)

    def look(self, view: View) -> None:
        """Add the sessions that have grown since the last look."""
        rows = takewhile(lambda row: row.position > self._seen, view.sessions())
        for row in islice(rows, _LOOKED_AT):
            last = (row.head_seq + 1) // EVERY * EVERY - 1
            if (
                row.stage is SessionStage.PURGED
                or row.session in self._unsaved
                or last <= self._kept(row.session, last)
            ):
                continue
            if last > compacted_until(view, row.session):
                self._due[row.session] = last
        self._seen = view.last

    def step(self, view: View) -> None:
        """Fold a few commits of one session, and save the state when it is due.

        Raises `StoreError`; that session is tried again when it has grown.
        """
        session, last = next(iter(self._due.items()))
        try:
            over = self._fold(view, session, last)
        except CompactedError:
            # A rewind leads back behind the compaction: there is no state to save.
            self._unsaved.add(session)
            over = True
        except StoreError:
            del self._due[session]
            raise
        if over:
            del self._due[session]

    def _fold(self, view: View, session: bytes, last: int) -> bool:
        """Fold a few commits of a session; return whether it is done."""
        branches = SessionBranches(view, session)
        live = branches.live(last)
        state = self._taken_up(branches, live)
        most = min(AT_ONCE, EVERY - (state.seq + 1) % EVERY, last - state.seq)
        commits = list(islice(view.commits(session, after=state.seq), most))
        if not commits:
            return True
        state = fold_live(state, commits, branches, live)
        self._state = (session, live, state)
        if (state.seq + 1) % EVERY == 0 and live.continues(state.seq):
            saved = self._saved.save(session, state.seq, commits[-1].hash, encode_state(state))
            if not saved:
                self._unsaved.add(session)
                return True
        return state.seq >= last

    def _taken_up(self, branches: SessionBranches, live: LiveView) -> State:
        if self._state is not None:
            of, by, state = self._state
            if of == branches.session and state.seq < live.newest and live.extends(by):
                return state
        return nearest(self._saved, branches, live, live.newest)

    def _kept(self, session: bytes, last: int) -> int:
        """Return the seq of the newest saved state, without reading it."""
        if last <= 0:
            return last
        return next((found.seq for found in self._saved.newest(session, last)), -1)


class Pace:
    """Measures how fast commits are written, between two questions."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self._at = clock.monotonic()

    @property
    def seconds(self) -> float:
        """Time since the last question."""
        return (self._clock.monotonic() - self._at) / 1e9

    def is_busy(self, last: int) -> bool:
        """Return whether many commits were written since the last question; `last` is the newest."""
        made, time = last - self._last, self.seconds
        self._last, self._at = last, self._clock.monotonic()
        return made > BUSY * time


class StateSaver:
    """Folds the states of sessions that have grown, as long as there is little else to do."""

    def __init__(
        self, store: LmdbStore, saving: StateBacklog, clock: Clock, thread: ThreadPoolExecutor
    ) -> None:
        self._store = store
        self._saving = saving
        self._clock = clock
        self._thread = thread
        self._pace = Pace(clock)

    async def make(self) -> None:
        """Fold what has grown, unless there is much to do. Raises `StoreError`."""
        if await self._is_busy():
            return
        await self._store.read(self._saving.look, self._thread)
        while self._saving.is_due:
            before = self._clock.monotonic()
            await self._store.read(self._saving.step, self._thread)
            took = (self._clock.monotonic() - before) / 1e9
            await asyncio.sleep((SHARE - 1) * took)
            if self._pace.seconds > LOOK and await self._is_busy():
                return

    async def _is_busy(self) -> bool:
        return self._pace.is_busy(await self._store.read(lambda view: view.last, self._thread))


async def save_states(store: LmdbStore, saved: SavedStates, clock: Clock, log: Log) -> None:
    """Save states until cancelled."""
    # The thread must have ended before the store is closed.
    with ThreadPoolExecutor(1, "turnlog-states") as thread:
        await repeat(StateSaver(store, StateBacklog(saved), clock, thread).make, LOOK, log)


async def repeat(work: Callable[[], Awaitable[None]], every: float, log: Log) -> None:
    """Do work again and again until cancelled, `every` s apart. What fails is logged once, and tried again."""
    logged = ""
    while True:
        await asyncio.sleep(every)
        try:
            await work()
        except StoreError as error:
            if (reason := str(error)) != logged:
                log.emit(StoreFailed(reason=reason))
            logged = reason
