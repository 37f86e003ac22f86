"""`sessions.state.state_at`: the state of a session at any of its commits, from a real store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.stores import START, Call, call_id, fill, session_id
from kit.commits import changed
from turnlog.core import ids
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import CommitKind, NoteKind, Rung, Status
from turnlog.core.note import Decision, Evict, EvictReason, TurnStart, encode_note
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State
from turnlog.core.state.state_view import StateField
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.state.state_at import (
    EVERY,
    EvictedKey,
    end_of_turn,
    is_recallable,
    read_state,
    saved_states,
    state_at,
)
from turnlog.store.base import Draft, SessionRef, Ticket
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

WORK = session_id("work")
CALLS = [
    Call(tool="write", minute=0, delta=(changed("created", "/a"),)),
    Call(
        tool="write",
        minute=10,
        delta=(changed("modified", "/b"),),
        notes=(TurnStart(name="three"),),
    ),
    Call(tool="write", minute=11, status=None, notes=(Decision(text="wait"),)),
]
"""Commits: it opens 0, a call 1 2, a call 3 4, a turn 5, an intent 6, a decision 7."""


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    fill(tmp_path, CALLS)
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        yield view


@pytest.mark.promise("STATE-8")
@pytest.mark.parametrize("at", range(8))
def test_the_state_at_a_commit_is_the_fold_up_to_it(view: View, tmp_path: Path, at: int) -> None:
    commits = [commit for commit in view.commits(WORK) if commit.link.seq <= at]
    assert state_at(view, saved_states(tmp_path), WORK, at) == fold(State(), commits)
    assert len(commits) == at + 1


@pytest.mark.parametrize(("turn", "seq"), [(1, 2), (2, 4), (3, 7), (-1, 7), (-2, 4), (-3, 2)])
def test_a_turn_ends_before_the_next_one_begins(view: View, turn: int, seq: int) -> None:
    assert end_of_turn(view, WORK, turn) == seq


def test_a_later_commit_has_no_state(view: View, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has no turn 4, its newest is 3"):
        end_of_turn(view, WORK, 4)
    with pytest.raises(NotFoundError, match="has no turn -4, its newest is 3"):
        end_of_turn(view, WORK, -4)
    with pytest.raises(NotFoundError, match="has no turn 0, turns are counted from 1"):
        end_of_turn(view, WORK, 0)
    with pytest.raises(NotFoundError, match="has no commit 99, its newest is 7"):
        read_state(view, saved_states(tmp_path), WORK, 99)
    with pytest.raises(NotFoundError, match="there is no session"):
        end_of_turn(view, bytes(16), 1)


def test_a_line_names_its_commit_and_the_hash_of_the_state(view: View, tmp_path: Path) -> None:
    found = read_state(view, saved_states(tmp_path), WORK, 4, (StateField.FILES_MODIFIED,))
    assert (found.at.session, found.at.seq, found.at.turn) == (ids.to_text(WORK), 4, 2)
    assert found.at.turn_source == "gap"
    assert list(found.state) == ["files_modified"]
    assert sorted(found.state["files_modified"]) == ["/a", "/b"]
    whole = read_state(view, saved_states(tmp_path), WORK, 4)
    assert whole.state_hash == found.state_hash
    assert list(whole.state) == [field.value for field in StateField]
    assert read_state(view, saved_states(tmp_path), WORK, 3).state_hash != found.state_hash


def test_evicted_keys_can_be_recalled(tmp_path: Path) -> None:
    first, second = (ids.to_text(call_id(number)) for number in range(2))
    keys = (first, "2", second, "a.txt", "9" * 18, "77", "0", first[:8])
    fill(
        tmp_path,
        [
            Call(tool="read", minute=0),
            Call(tool="read", minute=0, output=b"", status=Status.ERROR),
            Call(tool="read", minute=1, notes=(Evict(keys=keys, reason=EvictReason.BUDGET),)),
            Call(tool="read", minute=1, session="other"),
        ],
    )
    with LmdbReader.open(tmp_path) as reader, reader.view() as view:
        found = read_state(view, saved_states(tmp_path), WORK, 7, (StateField.EVICTED_KEYS,))
        entries = found.state["evicted_keys"]
        assert entries[first] == EvictedKey(seq=7, reason="budget", retrievable=True)
        given = [key for key, e in entries.items() if isinstance(e, EvictedKey) and e.retrievable]
        assert given == [first, "2"]
        assert is_recallable(view, WORK, "1")
        assert not is_recallable(view, WORK, ids.to_text(call_id(3)))


async def _many(data: Path, notes: int) -> None:
    store = LmdbStore.open(data)
    ref = SessionRef(candidate=WORK, rung=Rung.EXPLICIT)
    draft = Draft(
        session=ref,
        facts=Facts(kind=CommitKind.NOTE, at=START, clock=0, note=NoteKind.DECISION),
        body=CommitBody(note=encode_note(Decision(text="again", id="d"))),
    )
    tickets: list[Ticket] = [store.submit(draft, wait=False) for _ in range(notes)]
    await tickets[-1].done()
    await store.close()


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("long")
    asyncio.run(_many(data, 2 * EVERY + 10))
    return data


def saved_seqs(saved: SavedStates) -> list[int]:
    return [found.seq for found in saved.newest(WORK, 10**6)]


def test_saved_states_are_reused(long: Path, tmp_path: Path) -> None:
    saved = saved_states(tmp_path)
    head = 2 * EVERY + 10
    with LmdbReader.open(long) as reader, reader.view() as view:
        whole = fold(State(), view.commits(WORK))
        assert state_at(view, saved, WORK, head) == whole
        assert saved_seqs(saved) == [2 * EVERY - 1, EVERY - 1]
        for found in saved.newest(WORK, head):
            assert state_at(view, saved, WORK, found.seq).seq == found.seq
        assert state_at(view, saved, WORK, head) == whole
        assert state_at(view, saved, WORK, EVERY + 1).decisions["d"].seq == EVERY + 1


@pytest.mark.promise("STATE-7")
def test_a_saved_state_that_does_not_fit_the_log_is_ignored(long: Path, tmp_path: Path) -> None:
    saved = saved_states(tmp_path)
    with LmdbReader.open(long) as reader, reader.view() as view:
        right = state_at(view, saved, WORK, EVERY + 5)
        (kept,) = saved.newest(WORK, EVERY + 5)
        wrong = kept.path.with_name(f"{kept.path.name[:-16]}{'0' * 16}")
        kept.path.rename(wrong)
        assert state_at(view, saved, WORK, EVERY + 5) == right
        for path in kept.path.parent.iterdir():
            path.write_bytes(b"damaged")
        assert state_at(view, saved, WORK, EVERY + 5) == right
