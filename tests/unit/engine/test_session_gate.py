"""`engine.session_gate`: which session a reference means, and whether its calls may pass."""

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from conformance.store import kit
from turnlog.core import ids
from turnlog.core.commit import CommitBody
from turnlog.core.lifecycle import Action, LifecycleContent, encode_content
from turnlog.engine.session_gate import SessionGate
from turnlog.store.base import SessionRef
from turnlog.store.lmdb import LmdbStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path)
    yield opened
    await opened.close()


async def session(store: LmdbStore, name: str) -> SessionRef:
    found = kit.session(name)
    await kit.whole_call(store, found)
    return found


async def does(
    store: LmdbStore,
    ref: SessionRef,
    action: Action,
    *,
    why: str = "",
    into: SessionRef | None = None,
) -> None:
    """Change a session."""
    with store.view() as view:
        row = view.session(kit.known(ref))
    assert row is not None
    draft = kit.control(ref, action, row.head_seq)
    content = LifecycleContent(into=ids.to_text(kit.known(into)) if into is not None else "")
    draft.body = CommitBody(detail=why, note=encode_content(content))
    await kit.put(store, draft)


def looked(store: LmdbStore, ref: SessionRef) -> SessionRef:
    found = SessionGate(store).look(ref)
    assert found is not None
    return found


async def test_the_newest_pause_says_why(store: LmdbStore) -> None:
    work = await session(store, "work")
    for why in ("first", "second"):
        await does(store, work, Action.PAUSE, why=why)
    await does(store, work, Action.CLAIM)
    found = looked(store, work)
    assert found is work
    assert found.suspension is not None
    assert found.suspension.detail == "the session is paused by an operator: second"
    await does(store, work, Action.RESUME)
    assert looked(store, work).suspension is None


async def test_a_reference_that_has_not_met_its_session_finds_it_by_name(store: LmdbStore) -> None:
    work = await session(store, "work")
    await does(store, work, Action.CLOSE)
    stranger = kit.session("work")
    found = looked(store, stranger)
    assert found is stranger
    assert found.suspension is not None
    assert found.suspension.is_final


async def test_a_session_that_is_not_on_disk_is_not_suspended(store: LmdbStore) -> None:
    fresh = kit.session("fresh")
    assert looked(store, fresh) is fresh
    assert fresh.suspension is None


async def test_merges_are_followed_to_the_session_that_goes_on(store: LmdbStore) -> None:
    chain = [await session(store, f"s{n}") for n in range(4)]
    for one, other in pairwise(chain):
        await does(store, one, Action.MERGE, into=other)
    assert looked(store, chain[0]).id == kit.known(chain[3])
    assert looked(store, chain[0]).suspension is None
    await does(store, chain[3], Action.PAUSE)
    found = looked(store, chain[0])
    assert found.suspension is not None
    assert not found.suspension.is_final


async def test_sessions_that_were_merged_in_a_circle_are_closed(store: LmdbStore) -> None:
    one, other = await session(store, "one"), await session(store, "other")
    await does(store, one, Action.MERGE, into=other)
    await does(store, other, Action.MERGE, into=one)
    found = looked(store, one)
    assert found.suspension is not None
    assert found.suspension.is_final


async def test_the_number_rises_with_each_change_of_any_writer(
    store: LmdbStore, tmp_path: Path
) -> None:
    gate = SessionGate(store)
    work = await session(store, "work")
    assert gate.number() == 0
    other = LmdbStore.open(tmp_path)
    await does(other, work, Action.PAUSE)
    assert gate.number() == 1
    await other.close()


async def test_a_store_that_cannot_be_read_leaves_what_was_known(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path)
    work = await session(store, "work")
    await does(store, work, Action.PAUSE)
    gate = SessionGate(store)
    assert gate.number() == 1
    await store.close()
    assert gate.number() == 1
    assert gate.look(work) is None
