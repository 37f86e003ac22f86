"""Forks in a real store: a session that goes on behind a commit of another one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from conformance.store.kit import START
from kit.branches import Work
from turnlog.core import ids
from turnlog.core.kinds import Effect, Executed
from turnlog.core.live_view import decode_fork
from turnlog.core.state.session_state import State, state_hash
from turnlog.sessions.control.effects import EffectLedger, WantedEffect
from turnlog.sessions.errors import NotFoundError, OperationError
from turnlog.sessions.log import Query, TurnRange, read_rows
from turnlog.sessions.state.changes import changes_between, session_differences, turn_bounds
from turnlog.sessions.state.family import BranchPoint, ancestry, branch_point_of
from turnlog.sessions.state.state_at import end_of_turn, read_state, saved_states, state_at
from turnlog.sessions.verify import ChainVerdict, verify
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[Work]:
    store = LmdbStore.open(tmp_path / "data", flush_every=5, now=lambda: START)
    yield Work(store, tmp_path / "data")
    await store.close()


def state(work: Work, view: View, at: int | None = None) -> State:
    row = view.session(work.id)
    assert row is not None
    return state_at(view, saved_states(work.data), work.id, row.head_seq if at is None else at)


@pytest.mark.promise("FORK-1")
async def test_the_state_of_a_fork_begins_as_that_of_its_parent(work: Work) -> None:
    cut = await work.call("/a")
    await work.decide("go on")
    made, _ = await work.fork()
    early, _ = await work.fork(cut)
    with work.store.view() as view:
        begun = state(made, view)
        parent = state(work, view)
        assert state_hash(structs.replace(begun, seq=parent.seq, at=parent.at)) == state_hash(
            parent
        )
        assert set(state(early, view).files) == {"/a"}
        assert state(early, view).decisions == {}


@pytest.mark.promise("FORK-1")
async def test_both_branches_go_on_and_neither_sees_the_others_work(work: Work) -> None:
    cut = await work.call("/a")
    other, made = await work.fork(name="try")
    assert made.parent_seq == cut
    await work.call("/b")
    await other.call("/c")
    assert work.files() == {"/a", "/b"}
    assert other.files() == {"/a", "/c"}
    with work.store.view() as view:
        assert view.find_sessions("try") == [other.id]
        assert [row.input_summary for row in read_rows(view, Query(session=other.id))] == ["/c"]


@pytest.mark.promise("FORK-2")
async def test_the_first_commit_of_a_fork_is_chained_to_its_parents(work: Work) -> None:
    cut = await work.call("/a")
    await work.call("/b")
    other, _ = await work.fork(cut)
    await other.call("/c")
    with work.store.view() as view:
        opened, shared = view.opened(other.id), view.get(work.id, cut)
        assert opened is not None
        assert shared is not None
        assert (opened.link.seq, opened.link.prev) == (cut + 1, shared.hash)

        def parent(session: bytes, seq: int) -> bytes | None:
            found = view.get(session, seq)
            return found.hash if found else None

        found = verify(other.id, view.headers(other.id), parent=parent)
        assert (found.verdict, found.commits) == (ChainVerdict.OK, 4)
        assert verify(other.id, view.headers(other.id)).verdict is ChainVerdict.OK
        wrong = verify(other.id, view.headers(other.id), parent=lambda _, __: bytes(32))
        assert (wrong.verdict, wrong.seq) == (ChainVerdict.MUTATED, cut + 1)
        assert list(view.index_flaws()) == []


@pytest.mark.promise("FORK-3")
async def test_a_difference_between_branches_says_where_they_parted(work: Work) -> None:
    cut = await work.call("/a")
    other, _ = await work.fork()
    sibling, _ = await work.fork(cut - 1)
    await work.call("/b")
    end = await other.call("/c")
    with work.store.view() as view:
        saved = saved_states(work.data)
        row = view.session(work.id)
        assert row is not None
        found = session_differences(view, saved, work.id, other.id, (row.head_seq, end))
        files = {one.key: one for one in found if one.field == "files_modified"}
        assert set(files) == {"/b", "/c"}
        assert {one.parted.seq for one in found if one.parted} == {cut}
        assert branch_point_of(view, other.id, sibling.id) == BranchPoint(work.id, cut - 1)
        assert branch_point_of(view, sibling.id, sibling.id) is not None
        assert ancestry(view, other.id) == [BranchPoint(work.id, cut)]
        first, last = turn_bounds(view, other.id, TurnRange())
        own = changes_between(view, saved, other.id, first, last)
        assert {one.key for one in own if one.field == "files_modified"} == {"/c"}
        assert end_of_turn(view, other.id, -1) == end


@pytest.mark.promise("FORK-3")
async def test_a_file_that_both_branches_changed_is_named(work: Work) -> None:
    await work.call("/a")
    other, _ = await work.fork()
    await work.call("/a")
    mine = await work.call("/b")
    theirs = await other.call("/b")
    with work.store.view() as view:
        saved = saved_states(work.data)
        (change,) = read_state(view, saved, work.id, mine).shared
        (back,) = read_state(view, saved, other.id, theirs).shared
    assert (change.key, change.seq, change.other_seq) == ("/b", mine, theirs)
    assert change.session == ids.to_text(other.id)
    assert (back.key, back.session) == ("/b", ids.to_text(work.id))


@pytest.mark.promise("FORK-2")
async def test_a_fork_can_be_forked_and_rewound(work: Work) -> None:
    cut = await work.call("/a")
    other, _ = await work.fork()
    end = await other.call("/b")
    third, _ = await other.fork(end)
    await other.call("/c")
    await other.rewind(end)
    assert other.files() == third.files() == {"/a", "/b"}
    with work.store.view() as view:
        assert ancestry(view, third.id) == [BranchPoint(other.id, end), BranchPoint(work.id, cut)]


async def test_a_fork_of_nothing_or_under_a_taken_name_is_refused(work: Work) -> None:
    await work.call("/a")
    with pytest.raises(NotFoundError, match="no commit 99"):
        await work.fork(99)
    with pytest.raises(OperationError, match="'work' means session"):
        await work.fork(name="work")


@pytest.mark.promise("LEDGER-1")
async def test_an_effect_of_another_branch_is_hidden_and_one_from_before_the_parting_is_not(
    work: Work,
) -> None:
    await work.call("/before")
    cut = await work.call("/a", Effect.READ)
    await work.call("/behind")
    other, _ = await work.fork(cut)
    ledger = EffectLedger(work.store, lambda: START + 10**9, 600.0)

    def hidden(branch: Work, name: str) -> bool:
        with work.store.view() as view:
            begun = next(
                c for c in view.commits(work.id) if c.body is not None and c.body.preview == name
            )
            assert begun.body is not None
            call = wanted(branch, name)
            link = ledger.link(call)
            assert link
            found = ledger.find(view, link, call)
            return found is not None and not found.is_shown

    assert hidden(other, "/behind")
    assert not hidden(other, "/before")
    assert not hidden(work, "/behind")


def wanted(branch: Work, name: str) -> WantedEffect:
    return WantedEffect(
        session=branch.ref,
        server="files",
        tool="write",
        target="",
        canonical=("sha256", name.encode()),
        effect_link=b"",
    )


async def without_bodies(work: Work) -> None:
    """Erase the bodies of the session's calls, as their retention does."""
    with work.store.view() as view:
        gone = [commit.position for commit in view.commits(work.id) if commit.facts.call]
    await work.store.erase_bodies(gone)


@pytest.mark.promise("LEDGER-1")
async def test_an_effect_is_known_again_when_the_bodies_of_its_call_are_gone(work: Work) -> None:
    cut = await work.call("/a", Effect.READ)
    await work.call("/discarded")
    await work.begin("/running")
    await work.rewind(cut)
    await work.call("/behind")
    other, _ = await work.fork(cut)
    await without_bodies(work)
    ledger = EffectLedger(work.store, lambda: START + 10**9, 600.0)
    for branch, name in ((work, "/discarded"), (other, "/discarded"), (other, "/behind")):
        call = wanted(branch, name)
        with work.store.view() as view:
            found = ledger.find(view, ledger.link(call), call)
        assert found is not None, (branch.id, name)
        assert not found.is_shown
        assert found.earlier.same_input
        assert found.earlier.ending is not None
        assert found.earlier.ending.executed is Executed.YES
    call = wanted(other, "/running")
    with work.store.view() as view:
        found = ledger.find(view, ledger.link(call), call)
        assert found is not None
        assert ledger.find(view, ledger.link(call), wanted(other, "/never made")) is None


@pytest.mark.promise("LEDGER-1")
async def test_a_fork_knows_what_its_parent_kept_and_what_it_had_left_behind(work: Work) -> None:
    cut = await work.call("/a", Effect.READ)
    await work.call("/gone")
    kept = await work.call("/kept")
    made = await work.rewind(cut, kept)
    other, _ = await work.fork(made)
    with work.store.view() as view:
        opened = view.opened(other.id)
        assert opened is not None
        assert opened.body is not None
        carried = decode_fork(opened.body.note).effects
    assert [one.is_shown for one in carried] == [True, False]
    await without_bodies(work)
    ledger = EffectLedger(work.store, lambda: START + 10**9, 600.0)
    for name, is_hidden in (("/gone", True), ("/kept", False)):
        call = wanted(other, name)
        with work.store.view() as view:
            found = ledger.find(view, ledger.link(call), call)
        assert found is not None
        assert found.is_shown is not is_hidden
