"""Reads from the store what a session's memory lacks: its past, what other processes recorded, and marks."""

import asyncio
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import Final

from turnlog.core.kinds import CommitKind
from turnlog.observe.clock import Clock
from turnlog.provenance.outputs import RecordedOutput, indexing
from turnlog.provenance.values import LOOKED_AT, OLDER, UNREAD, SessionValues, ValueSource
from turnlog.sessions.lineage.history import (
    EMPTY,
    Declaration,
    History,
    PastItem,
    Wanted,
    read_history,
)
from turnlog.sessions.lineage.taint import notes_about, tainted_by_marks
from turnlog.sessions.state.family import commits_of_line
from turnlog.store.base import SessionRow, StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

from .session_memory import SLICE, SessionMemories, SessionMemory

_UNREADABLE: Final = "it could not be read"
_FEW: Final = 64
"""Commits that are read in the loop, in less time than a switch to a thread takes; more are read in a thread."""


class PastReader:
    """Reads the pasts of sessions. While one is read in a thread, what waits in its session waits."""

    def __init__(
        self,
        store: LmdbStore,
        clock: Clock,
        work: asyncio.TaskGroup,
        report: Callable[[Exception], None],
        memories: SessionMemories,
        on_read: Callable[[SessionMemory, Set[ValueSource]], None],
    ) -> None:
        """`report` is called with an error of what reads content, `on_read` with each session that was read in a
        thread, and the outputs that were in its past."""
        self._store = store
        self._now = clock.monotonic
        self._work = work
        self._report = report
        self._memories = memories
        self._on_read = on_read
        self._controls = store.control_counter()

    def meet(self, memory: SessionMemory) -> None:
        """Read the past of a session that this process has not met, if it has any."""
        try:
            with self._store.view() as view:
                if view.session_of(memory.ref) is not None:
                    self._read(memory)
        except StoreError:
            memory.partial = memory.unread = UNREAD

    def look_at_marks(self, memory: SessionMemory) -> None:
        """Read a session anew if an operator has marked or endorsed one of its outputs since."""
        if memory.is_reading:
            return
        try:
            with self._store.view() as view:
                session = view.session_of(memory.ref)
                notes = [] if session is None else notes_about(view, session)
        except StoreError:
            memory.unread = UNREAD  # the next call looks again, a rule does not wait for that
            return
        memory.controls = self._controls.count
        if (notes[-1].position if notes else -1) != memory.marked:
            self.read_anew(memory)

    def read_anew(self, memory: SessionMemory) -> None:
        """Forget a session's values and read them from the store."""
        memory.values, memory.read_until, memory.left_out = SessionValues(), -1, -1
        memory.partial = memory.unread = ""
        self._read(memory)

    def read_news(self, memory: SessionMemory) -> None:
        """Index what other processes have recorded of a session since it was last read."""
        try:
            with self._store.view() as view:
                session = view.session_of(memory.ref)
                row = view.session(session) if session is not None else None
                if row is None or not self._is_short(view, row, memory.read_until):
                    self._read(memory)
                    return
                # A mark that is among them is looked at by the next call.
                past, _ = self._past(view, row.session, memory)
        except StoreError:
            memory.partial = memory.unread = UNREAD
            return
        memory.read_at = self._now()
        for item in past.items:
            self.learn(memory, item)
        _set_read(memory, past)

    def learn(self, memory: SessionMemory, item: PastItem) -> None:
        """Index an output or a declaration at once."""
        for _ in self._learning(memory, item):
            pass

    def _learning(self, memory: SessionMemory, item: PastItem) -> Iterator[None]:
        """Do what `learn` does in steps, as the iterator is read."""
        try:
            if isinstance(item, Declaration):
                memory.values.declare(item.text, str(item.seq))
            else:
                yield from indexing(memory.values, item)
        except Exception as error:  # noqa: BLE001 - the call goes on, the record says less
            self._report(error)
            memory.partial = UNREAD
            if isinstance(item, RecordedOutput) and item.is_tainted is not False:
                memory.values.miss(item.source, _UNREADABLE)
        self._memories.count(memory)
        yield

    def _read(self, memory: SessionMemory) -> None:
        memory.is_reading, memory.read_at = True, self._now()
        memory.controls = self._controls.count
        self._work.create_task(self._read_past(memory))

    async def _read_past(self, memory: SessionMemory) -> None:
        """Index what the store has of a session that this process has not indexed."""
        read = frozenset[ValueSource]()
        try:
            if memory.read_until < 0:
                # What this process has recorded of it before may still be on its way.
                await self._store.flush()
            past, memory.marked = await self._store.read(partial(self._whole_past, memory))
            await self._learn_all(memory, past.items)
            _set_read(memory, past)
            read = frozenset(i.source for i in past.items if isinstance(i, RecordedOutput))
        except Exception as error:  # noqa: BLE001 - the calls go on, the record says less
            if not isinstance(error, StoreError):
                self._report(error)
            memory.partial = memory.unread = UNREAD
        finally:
            memory.is_reading = False
            # What waits and was read counts as it was read, with the marks.
            self._on_read(memory, read)

    async def _learn_all(self, memory: SessionMemory, items: Sequence[PastItem]) -> None:
        until = self._now() + SLICE
        for item in items:
            for _ in self._learning(memory, item):
                if self._now() > until:
                    await asyncio.sleep(0)
                    until = self._now() + SLICE

    def _whole_past(self, memory: SessionMemory, view: View) -> tuple[History, int]:
        session = view.session_of(memory.ref)
        return (EMPTY, -1) if session is None else self._past(view, session, memory)

    def _is_short(self, view: View, row: SessionRow, after: int) -> bool:
        """Return whether what others have recorded of a session behind a commit is read without a thread."""
        # Where an operator has marked something, the whole session is folded (decision 94).
        if row.head_seq - after > _FEW or notes_about(view, row.session):
            return False
        own = self._store.epoch if after >= 0 else None
        commits = commits_of_line(view, row.session, after=after)
        ended = (c for c in commits if c.facts.kind is CommitKind.OUTCOME and c.link.epoch != own)
        return sum(c.facts.bytes_in + c.facts.bytes_out for c in ended) <= LOOKED_AT

    def _past(self, view: View, session: bytes, memory: SessionMemory) -> tuple[History, int]:
        """Return the past of a session that was not read before, and the position of the newest note by which an
        operator marked an output, -1 for none."""
        notes, after = notes_about(view, session), memory.read_until
        want = Wanted(
            after=after,
            without=self._store.epoch if after >= 0 else None,
            tainted=tainted_by_marks(view, session) if notes else None,
            for_rule=memory.is_gated,
            has_tainted=memory.values.has_tainted,
        )
        return read_history(view, session, want), notes[-1].position if notes else -1


def _set_read(memory: SessionMemory, past: History) -> None:
    memory.read_until = max(memory.read_until, past.until)
    memory.left_out = max(memory.left_out, past.left_out)
    if not past.is_whole:
        memory.partial = OLDER
