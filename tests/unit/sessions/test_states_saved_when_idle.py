"""`sessions.state.backlog`: states are saved while little else is written."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.stores import START, session_id
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import CommitKind, NoteKind, Rung
from turnlog.core.note import Decision, encode_note
from turnlog.observe.clock import Clock
from turnlog.sessions.state.backlog import BUSY, StateBacklog, StateSaver
from turnlog.sessions.state.state_at import EVERY, saved_states
from turnlog.store.base import Draft, SessionRef
from turnlog.store.lmdb import LmdbStore

SECOND = 1_000_000_000
REF = SessionRef(candidate=session_id("long"), rung=Rung.EXPLICIT)


class Script:
    """A proxy's store, and a clock that tests set."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.now = 0
        self.store = LmdbStore.open(data)
        self.thread = ThreadPoolExecutor(1)
        self.rounds = StateSaver(
            self.store,
            StateBacklog(saved_states(data)),
            Clock(monotonic=lambda: self.now),
            self.thread,
        )

    async def write(self, notes: int) -> None:
        """Append notes to the session."""
        draft = Draft(
            session=REF,
            facts=Facts(kind=CommitKind.NOTE, at=START, clock=0, note=NoteKind.DECISION),
            body=CommitBody(note=encode_note(Decision(text="again"))),
        )
        tickets = [self.store.submit(draft, wait=False) for _ in range(notes)]
        await tickets[-1].done()

    async def round(self, seconds: int) -> list[int]:
        """Make a round so much later; return of which commits there are states then."""
        self.now += seconds * SECOND
        await self.rounds.make()
        return [found.seq for found in saved_states(self.data).newest(REF.candidate, 10**6)]


@pytest.fixture
async def script(tmp_path: Path) -> AsyncIterator[Script]:
    made = Script(tmp_path / "data")
    yield made
    made.thread.shutdown()
    await made.store.close()


async def test_nothing_is_folded_while_much_is_written(script: Script) -> None:
    await script.write(2 * EVERY)
    assert await script.round(1) == []
    await script.write(BUSY + 1)
    assert await script.round(1) == []
    await script.write(BUSY)
    assert await script.round(1) == [2 * EVERY - 1, EVERY - 1]
