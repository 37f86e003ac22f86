"""Rewinds in a real store: which calls the state, the log and other listings count."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conformance.store.kit import START
from kit.branches import Work
from turnlog.core import ids
from turnlog.core.kinds import Effect
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State
from turnlog.core.state.state_view import state_table
from turnlog.sessions.dangling import DanglingFilter, find_dangling
from turnlog.sessions.errors import NotRecallableError
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.log import Query, read_rows
from turnlog.sessions.pages import Order, log_page
from turnlog.sessions.recall import recall
from turnlog.sessions.state.backlog import StateBacklog
from turnlog.sessions.state.changes import changes_between
from turnlog.sessions.state.state_at import EVERY, end_of_turn, read_state, saved_states, state_at
from turnlog.store.lmdb import LmdbStore


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[Work]:
    store = LmdbStore.open(tmp_path / "data", flush_every=5, now=lambda: START)
    yield Work(store, tmp_path / "data")
    await store.close()


@pytest.mark.promise("REWIND-5")
async def test_the_state_and_the_log_leave_out_what_was_discarded(work: Work) -> None:
    cut = await work.call("/a")
    await work.call("/b")
    await work.rewind(cut)
    await work.call("/c")
    assert work.files() == {"/a", "/c"}
    assert work.files(with_discarded=True) == {"/a", "/b", "/c"}
    with work.store.view() as view:
        names = [row.input_summary for row in read_rows(view, Query())]
        every = list(read_rows(view, Query(session=work.id, with_discarded=True)))
        last = list(read_rows(view, Query(session=work.id, last=2)))
        page = log_page(view, Query(session=work.id), Order.NEWEST, None, 1)
    assert names == [row.input_summary for row in last] == ["/a", "/c"]
    marked = {row.input_summary: row.discarded is True for row in every}
    assert marked == {"/a": False, "/b": True, "/c": False}
    assert ([row.input_summary for row in page.items], page.more) == (["/c"], True)


@pytest.mark.promise("REWIND-5")
async def test_an_earlier_state_is_that_of_its_own_branch(work: Work) -> None:
    cut = await work.call("/a")
    old = await work.call("/b")
    await work.rewind(cut)
    assert work.files(old) == {"/a", "/b"}
    await work.rewind(old)
    assert work.files() == {"/a", "/b"}


@pytest.mark.promise("REWIND-6")
async def test_a_late_outcome_goes_to_its_call_or_is_listed_as_detached(work: Work) -> None:
    before = await work.begin("/before")
    cut = await work.call("/a")
    behind = await work.begin("/behind")
    await work.rewind(cut, why="wrong")
    assert work.files() == {"/before", "/a"}
    await work.end(before)
    detached = await work.end(behind)
    with work.store.view() as view:
        found = read_state(view, saved_states(work.data), work.id, detached)
        listed = find_dangling(view, DanglingFilter(session=work.id))
        anywhere = find_dangling(view, DanglingFilter())
    assert work.files() == {"/before", "/a"}
    (late,) = found.detached
    assert (late.seq, late.call, late.status) == (detached, ids.to_text(behind[0]), "ok")
    (one,) = [one for one in listed if one.standing == "detached"]
    assert one.attempt[0].facts.call == behind[0]
    assert [one.standing for one in anywhere] == [one.standing for one in listed]
    await work.rewind(late.began)
    with work.store.view() as view:
        row = view.session(work.id)
        assert row is not None
        assert read_state(view, saved_states(work.data), work.id, row.head_seq).detached == []
        assert not [o for o in find_dangling(view, DanglingFilter()) if o.standing == "detached"]


@pytest.mark.promise("REWIND-6")
async def test_the_state_says_what_a_rewind_did_not_undo(work: Work) -> None:
    cut = await work.call("/a", Effect.READ)
    await work.call("/mail", Effect.IRREVERSIBLE)
    await work.call("/b", Effect.READ)
    await work.call("/shell", Effect.UNKNOWN)
    await work.begin("/slow")
    at = await work.rewind(cut, why="the wrong customer")
    with work.store.view() as view:
        (made,) = read_state(view, saved_states(work.data), work.id, at).rewinds
        before = read_state(view, saved_states(work.data), work.id, at - 1)
    assert (made.seq, made.target, made.why) == (at, cut, "the wrong customer")
    assert made.groups == {"irreversible": 1, "stands": 2, "idempotent": 0, "no_effect": 1}
    assert (made.untracked, made.in_flight) == (1, 1)
    assert [one.preview for one in made.standing] == ["/slow", "/shell", "/mail"]
    assert (before.rewinds, before.detached) == ([], [])


@pytest.mark.promise("REWIND-5")
async def test_a_call_that_was_discarded_is_neither_dangling_nor_recalled(work: Work) -> None:
    cut = await work.call("/a")
    await work.begin("/open")
    seq = await work.call("/b")
    await work.rewind(cut)
    with work.store.view() as view:
        assert find_dangling(view, DanglingFilter()) == []
        (one,) = find_dangling(view, DanglingFilter(with_discarded=True))
        with pytest.raises(NotRecallableError, match="discarded by a rewind"):
            recall(view, work.id, str(seq))
        assert recall(view, work.id, str(seq), with_discarded=True).recalled.text == "hello"
        assert recall(view, work.id, str(cut)).recalled.text == "hello"
    assert one.attempt[0].body is not None
    assert one.attempt[0].body.preview == "/open"


@pytest.mark.promise("REWIND-5")
async def test_a_difference_across_a_rewind_names_it(work: Work) -> None:
    cut = await work.call("/a")
    old = await work.call("/b")
    back = await work.rewind(cut, why="wrong file")
    new = await work.call("/c")
    with work.store.view() as view:
        saved = saved_states(work.data)
        across = changes_between(view, saved, work.id, old, new)
        after = changes_between(view, saved, work.id, back, new)
        every = changes_between(view, saved, work.id, cut, new, with_discarded=True)
    files = {one.key: one for one in across if one.field == "files_modified"}
    assert {name: one.after is None for name, one in files.items()} == {"/b": True, "/c": False}
    (undoing,) = files["/b"].commits
    assert (undoing.seq, undoing.what, undoing.why) == (back, "rewind", "wrong file")
    assert [by.what for by in files["/c"].commits] == ["files.write", "files.write"]
    assert {one.key for one in after if one.field == "files_modified"} == {"/c"}
    assert {one.key for one in every if one.field == "files_modified"} == {"/b", "/c"}


async def test_a_turn_ends_on_the_live_branch(work: Work) -> None:
    cut = await work.call("/a")
    await work.call("/b")
    back = await work.rewind(cut)
    with work.store.view() as view:
        assert end_of_turn(view, work.id, -1) == back


@pytest.mark.promise("REWIND-5")
async def test_saved_states_fit_the_branch_that_they_are_used_for(work: Work) -> None:
    cut = await work.decide("first")
    await asyncio.gather(*(work.decide(f"old {n}") for n in range(EVERY)))
    with work.store.view() as view:
        head = EVERY + cut
        assert len(state_at(view, saved_states(work.data), work.id, head).decisions) == EVERY + 1
    await work.rewind(cut)
    await asyncio.gather(*(work.decide(f"new {n}") for n in range(EVERY)))
    backlog = StateBacklog(saved_states(work.data))
    with work.store.view() as view:
        row = view.session(work.id)
        assert row is not None
        backlog.look(view)
        while backlog.is_due:
            backlog.step(view)
        branches = SessionBranches(view, work.id)
        live = branches.live(row.head_seq)
        whole = fold(State(), branches.between(live, -1, row.head_seq))
        found = state_at(view, saved_states(work.data), work.id, row.head_seq)
        newest = next(saved_states(work.data).newest(work.id, row.head_seq))
    assert state_table(found) == state_table(whole)
    assert set(found.decisions) == {"first", *(f"new {n}" for n in range(EVERY))}
    assert newest.seq == 2 * EVERY - 1
