"""What it means to write a control commit: stage, head and lease are checked where it is written."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import lmdb
import msgspec
import pytest

from conformance.store.kit import (
    START,
    Engine,
    control,
    known,
    put,
    session,
    whole_call,
)
from turnlog.core.kinds import Actor, CommitKind, Rung
from turnlog.core.lifecycle import Action, SessionStage
from turnlog.store.base import (
    Conflict,
    Draft,
    LeaseRefused,
    SessionRef,
    SessionRow,
    TransitionRefused,
    alias,
)
from turnlog.store.lmdb import LmdbStore
from turnlog.store.log.tables import NAMES


@pytest.fixture
async def other(engine: Engine, tmp_path: Path, store: LmdbStore) -> AsyncGenerator[LmdbStore]:
    """Another writer of the same store."""
    opened = engine.open(tmp_path / "data")
    yield opened
    await opened.close()


@pytest.fixture
async def ref(store: LmdbStore) -> SessionRef:
    """A session with one call."""
    found = session("work")
    await whole_call(store, found)
    return found


def row(store: LmdbStore, ref: SessionRef) -> SessionRow:
    with store.view() as view:
        found = view.session(known(ref))
    assert found is not None
    return found


def meta(data: Path) -> dict[bytes, bytes]:
    """Return the rows of the table `meta`."""
    with (
        lmdb.open(str(data / "log"), max_dbs=len(NAMES), readonly=True) as env,
        env.begin() as txn,
        txn.cursor(env.open_db(b"meta", txn=txn, create=False)) as cursor,
    ):
        return dict(cursor)


async def does(
    store: LmdbStore,
    ref: SessionRef,
    action: Action,
    *,
    at: int = START,
    expires: int = 0,
    fence: int | None = None,
    target: int | None = None,
) -> int:
    """Write a control commit at the session's head; return its seq."""
    head = row(store, ref).head_seq
    draft = control(ref, action, head, at=at, expires=expires, fence=fence, target=target)
    return (await put(store, draft)).link.seq


async def test_a_session_is_at_the_stage_that_its_control_commits_lead_to(
    store: LmdbStore, other: LmdbStore, ref: SessionRef
) -> None:
    assert (row(store, ref).stage, row(store, ref).control) == (SessionStage.ACTIVE, None)
    for action, stage in (
        (Action.PAUSE, SessionStage.PAUSED),
        (Action.RESUME, SessionStage.ACTIVE),
        (Action.CLOSE, SessionStage.CLOSED),
    ):
        seq = await does(store, ref, action)
        for writer in (store, other):
            found = row(writer, ref)
            assert (found.stage, found.head_seq) == (stage, seq)
            assert found.control is not None
            assert found.control.newest == seq


async def test_controls_are_a_sessions_control_commits_in_order(
    store: LmdbStore, ref: SessionRef
) -> None:
    beside = session("beside")
    for one in (ref, beside):
        await whole_call(store, one)
        await does(store, one, Action.PAUSE)
    await does(store, ref, Action.REWIND, target=2)
    with store.view() as view:
        found = [(c.facts.kind.value, c.facts.note, c.link.ref) for c in view.controls(known(ref))]
        assert found == [("lifecycle", "pause", None), ("rewind", "", 2)]
        assert [c.facts.note for c in view.controls(known(beside))] == ["pause"]
        assert list(view.index_flaws()) == []


async def test_a_control_commit_is_refused_where_its_writer_has_not_seen_the_head(
    store: LmdbStore, other: LmdbStore, ref: SessionRef
) -> None:
    head = row(store, ref).head_seq
    await whole_call(other, ref)
    with pytest.raises(Conflict) as refused:
        await put(store, control(ref, Action.PAUSE, head))
    assert refused.value.seq == head + 2
    assert row(store, ref).stage is SessionStage.ACTIVE


@pytest.mark.promise("SESS-13")
async def test_of_two_writers_that_saw_the_same_head_one_is_written(
    store: LmdbStore, other: LmdbStore, ref: SessionRef
) -> None:
    head = row(store, ref).head_seq
    drafts = [control(ref, action, head) for action in (Action.PAUSE, Action.CLOSE)]
    ended = await asyncio.gather(
        put(store, drafts[0]), put(other, drafts[1]), return_exceptions=True
    )
    failed = [one for one in ended if isinstance(one, BaseException)]
    assert len(failed) == 1
    assert isinstance(failed[0], Conflict)
    assert failed[0].seq == head + 1


@pytest.mark.promise("SESS-12")
async def test_an_action_that_the_table_lacks_is_refused_with_stage_action_and_head(
    store: LmdbStore, ref: SessionRef
) -> None:
    seq = await does(store, ref, Action.CLOSE)
    with pytest.raises(
        TransitionRefused, match=r"'resume' is not possible while.*closed"
    ) as refused:
        await does(store, ref, Action.RESUME)
    error = refused.value
    assert (error.stage, error.action, error.seq) == (SessionStage.CLOSED, Action.RESUME, seq)


@pytest.mark.promise("SESS-14")
async def test_a_stale_lease_is_refused_and_a_new_one_has_a_higher_number(
    store: LmdbStore, ref: SessionRef
) -> None:
    first = await does(store, ref, Action.CLAIM, at=START, expires=START + 10)
    with pytest.raises(LeaseRefused) as held:
        await does(store, ref, Action.CLAIM, at=START + 9, expires=START + 90)
    assert held.value.fence == first
    second = await does(store, ref, Action.CLAIM, at=START + 10, expires=START + 90)
    assert second > first
    with pytest.raises(LeaseRefused):
        await does(store, ref, Action.CLOSE, at=START + 20, fence=first)
    await does(store, ref, Action.CLOSE, at=START + 20, fence=second)


async def test_names_lead_to_the_session_of_the_control_commit_that_carries_them(
    store: LmdbStore, ref: SessionRef
) -> None:
    taken = alias(Rung.EXPLICIT, "work", "me")
    beside = session("beside")
    await whole_call(store, beside)
    head = row(store, beside).head_seq
    await put(store, control(beside, Action.ALIAS, head, names={taken: known(beside)}))
    again = session("work")
    await whole_call(store, again)
    assert known(again) == known(beside)
    with store.view() as view:
        assert view.find_sessions("work") == [known(beside)]
        assert list(view.index_flaws()) == []
    assert row(store, ref).aliases == ()


async def test_a_refused_alias_changes_no_name(store: LmdbStore, ref: SessionRef) -> None:
    beside = session("beside")
    await whole_call(store, beside)
    draft = control(
        beside, Action.ALIAS, 0, names={alias(Rung.EXPLICIT, "work", "me"): known(beside)}
    )
    with pytest.raises(Conflict):
        await put(store, draft)
    with store.view() as view:
        assert view.find_sessions("work") == [known(ref)]


async def test_each_control_commit_raises_the_stores_number_and_nothing_else_does(
    store: LmdbStore, ref: SessionRef, tmp_path: Path
) -> None:
    await store.close()
    assert b"controls" not in meta(tmp_path / "data")
    again = LmdbStore.open(tmp_path / "data")
    await does(again, ref, Action.PAUSE)
    await does(again, ref, Action.RESUME)
    await whole_call(again, ref)
    await again.close()
    assert int.from_bytes(meta(tmp_path / "data")[b"controls"]) == 2


async def test_a_session_without_control_commits_has_the_row_of_an_earlier_release(
    store: LmdbStore, ref: SessionRef, tmp_path: Path
) -> None:
    await does(store, ref, Action.PAUSE)
    plain = session("plain")
    await whole_call(store, plain)
    await store.close()
    with (
        lmdb.open(str(tmp_path / "data" / "log"), max_dbs=len(NAMES), readonly=True) as env,
        env.begin() as txn,
    ):
        heads = env.open_db(b"heads", txn=txn, create=False)
        fields = {key: len(msgspec.msgpack.decode(value)) for key, value in txn.cursor(heads)}
    assert fields == {known(ref): 6, known(plain): 5}


@pytest.mark.parametrize("control_kind", [True, False])
async def test_a_control_commit_without_a_head_is_no_draft_and_neither_is_another_with_one(
    store: LmdbStore, ref: SessionRef, control_kind: bool
) -> None:
    draft = control(ref, Action.PAUSE, 0)
    if control_kind:
        draft.expected_head = None
    else:
        facts = msgspec.structs.replace(draft.facts, kind=CommitKind.NOTE)
        draft = Draft(session=ref, facts=facts, expected_head=0)
    with pytest.raises(ValueError, match="expected head"):
        store.submit(draft, wait=True)


async def test_an_agent_does_not_lift_an_operators_pause(store: LmdbStore, ref: SessionRef) -> None:
    await does(store, ref, Action.PAUSE)
    head = row(store, ref).head_seq
    with pytest.raises(TransitionRefused, match="an operator paused"):
        await put(store, control(ref, Action.RESUME, head, actor=Actor.AGENT))


async def test_the_place_of_a_session_is_the_same_after_a_control_commit(
    store: LmdbStore, ref: SessionRef
) -> None:
    before = row(store, ref).place
    await does(store, ref, Action.PAUSE)
    assert row(store, ref).place == before


async def test_a_writer_may_allow_calls_behind_the_head_but_no_other_control_commit(
    store: LmdbStore, ref: SessionRef
) -> None:
    seen = row(store, ref).head_seq
    await whole_call(store, ref)

    def draft(action: Action, head: int) -> Draft:
        made = control(ref, action, head)
        made.allows_calls = True
        return made

    for impossible in (seen + 3, 10**6):
        with pytest.raises(Conflict):
            await put(store, draft(Action.PAUSE, impossible))
    await put(store, draft(Action.PAUSE, seen))
    with pytest.raises(Conflict) as refused:
        await put(store, draft(Action.RESUME, seen))
    assert refused.value.seq == seen + 3
    await put(store, draft(Action.RESUME, seen + 3))
