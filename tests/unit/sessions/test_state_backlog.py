"""`sessions.state.backlog`: states of long sessions are saved in the background, step by step."""

import asyncio
from pathlib import Path

import lmdb
import pytest

from e2e.stores import START, session_id
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import CommitKind, NoteKind, Rung
from turnlog.core.note import Decision, encode_note
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State
from turnlog.sessions.state.backlog import AT_ONCE, StateBacklog
from turnlog.sessions.state.state_at import EVERY, saved_states, state_at
from turnlog.store.base import Corrupt, Draft, SessionRef, Ticket
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.log.tables import NAMES

LONG, SHORT = session_id("long"), session_id("short")


async def _grown(data: Path, session: bytes, notes: int) -> None:
    store = LmdbStore.open(data)
    draft = Draft(
        session=SessionRef(candidate=session, rung=Rung.EXPLICIT),
        facts=Facts(kind=CommitKind.NOTE, at=START, clock=0, note=NoteKind.DECISION),
        body=CommitBody(note=encode_note(Decision(text="again"))),
    )
    tickets: list[Ticket] = [store.submit(draft, wait=False) for _ in range(notes)]
    await tickets[-1].done()
    await store.close()


def grow(data: Path, session: bytes, notes: int) -> None:
    asyncio.run(_grown(data, session, notes))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A long session of 2,500 commits, and a short one."""
    data = tmp_path / "data"
    grow(data, LONG, 2499)
    grow(data, SHORT, 100)
    return data


def look(data: Path, saving: StateBacklog) -> None:
    with LmdbReader.open(data) as reader, reader.view() as view:
        saving.look(view)


def rest(data: Path, saving: StateBacklog) -> int:
    """Take the steps that are due, each on a snapshot of its own; return how many they were."""
    steps = 0
    with LmdbReader.open(data) as reader:
        while saving.is_due:
            with reader.view() as view:
                saving.step(view)
            steps += 1
    return steps


def saved(data: Path, session: bytes) -> list[int]:
    return [found.seq for found in saved_states(data).newest(session, 10**6)]


def spoil(data: Path, until: int) -> None:
    """Make the first commits unreadable."""
    with lmdb.open(str(data / "log"), max_dbs=len(NAMES), map_size=1 << 40) as env:
        table = env.open_db(b"log", create=False)
        with env.begin(write=True, db=table) as txn:
            keys = [key for key, _ in txn.cursor() if int.from_bytes(key, "big") < until]
            for key in keys:
                txn.put(key, b"damaged")
    assert keys


def test_after_saving_a_read_folds_only_the_newest_commits(data: Path) -> None:
    with LmdbReader.open(data) as reader, reader.view() as view:
        whole = fold(State(), view.commits(LONG))
    saving = StateBacklog(saved_states(data))
    look(data, saving)
    # A step of a hundred commits takes no time from calls.
    assert rest(data, saving) == 2 * EVERY // AT_ONCE
    assert saved(data, LONG) == [2 * EVERY - 1, EVERY - 1]
    assert saved(data, SHORT) == []
    spoil(data, EVERY)
    with LmdbReader.open(data) as reader, reader.view() as view:
        assert state_at(view, saved_states(data), LONG, 2499) == whole


def test_any_process_folds_a_growing_session(data: Path) -> None:
    saving = StateBacklog(saved_states(data))
    look(data, saving)
    rest(data, saving)
    look(data, saving)
    assert not saving.is_due
    grow(data, LONG, EVERY)
    look(data, saving)
    assert rest(data, saving) == EVERY // AT_ONCE
    assert saved(data, LONG) == [3 * EVERY - 1, 2 * EVERY - 1, EVERY - 1]
    other = StateBacklog(saved_states(data))
    look(data, other)
    assert not other.is_due


def test_an_unreadable_session_does_not_block_others(data: Path) -> None:
    grow(data, SHORT, EVERY)
    spoil(data, 1000)
    saving = StateBacklog(saved_states(data))
    look(data, saving)
    with pytest.raises(Corrupt):
        rest(data, saving)
    rest(data, saving)
    assert (saved(data, LONG), saved(data, SHORT)) == ([], [EVERY - 1])


def test_a_session_whose_state_cannot_be_saved_is_not_folded_again(data: Path) -> None:
    (data / "states").write_text("in the way")
    saving = StateBacklog(saved_states(data))
    look(data, saving)
    assert rest(data, saving) == EVERY // AT_ONCE
    grow(data, LONG, EVERY)
    look(data, saving)
    assert not saving.is_due
