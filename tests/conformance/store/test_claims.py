"""What it means that an intent claims links: of several writers that claim one, the first is written."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec import structs

from conformance.store.kit import Engine, begin, intent, new_id, note, outcome, put, session
from turnlog.core.commit import CommitBody
from turnlog.core.kinds import NoteKind
from turnlog.store.base import Conflict, Draft, SessionRef
from turnlog.store.lmdb import LmdbStore

LINK = b"k" * 32
OTHER = b"o" * 32


@pytest.fixture
async def other(engine: Engine, tmp_path: Path, store: LmdbStore) -> AsyncGenerator[LmdbStore]:
    """Another writer of the same store."""
    opened = engine.open(tmp_path / "data")
    yield opened
    await opened.close()


def claiming(ref: SessionRef, call: bytes, seen: int, *links: bytes) -> Draft:
    """Return an intent whose writer has found no other with its links up to position `seen`."""
    claims = links or (LINK,)
    draft = intent(ref, call, body=CommitBody(links=claims))
    return structs.replace(draft, claims=claims, seen=seen)


def last(store: LmdbStore) -> int:
    with store.view() as view:
        return view.last


async def test_of_two_writers_that_saw_nothing_of_each_other_one_is_written(
    store: LmdbStore, other: LmdbStore
) -> None:
    seen = last(store)
    first = await put(store, claiming(session(), new_id(), seen))
    late = new_id()
    ticket = other.submit(claiming(session(), late, seen), wait=True)
    with pytest.raises(Conflict, match=f"commit {first.link.seq} claims the same") as refused:
        await ticket.done()
    assert refused.value.seq == first.link.seq
    assert ticket.placed is None
    with store.view() as view:
        assert view.linked(LINK) == first
        assert view.call(late) == []


@pytest.mark.parametrize("link", [LINK, OTHER])
async def test_each_of_its_claims_counts(store: LmdbStore, other: LmdbStore, link: bytes) -> None:
    await put(store, claiming(session(), new_id(), 0, link))
    with pytest.raises(Conflict):
        await put(other, claiming(session(), new_id(), 0, LINK, OTHER))


async def test_a_writer_does_not_compete_with_itself(store: LmdbStore, other: LmdbStore) -> None:
    await put(store, claiming(session(), new_id(), 0))
    second = await put(store, claiming(session(), new_id(), 0))
    with pytest.raises(Conflict):
        await put(other, claiming(session(), new_id(), second.position - 1))


async def test_behind_a_commit_of_its_own_that_of_another_writer_counts(
    store: LmdbStore, other: LmdbStore
) -> None:
    await put(store, claiming(session(), new_id(), 0))
    await put(other, claiming(session(), new_id(), last(store)))
    with pytest.raises(Conflict):
        await put(store, claiming(session(), new_id(), 0))


@pytest.mark.parametrize("flush_every", [1, 2000])
async def test_an_intent_whose_writer_has_seen_the_one_before_is_written(
    engine: Engine, tmp_path: Path, flush_every: int
) -> None:
    store = engine.open(tmp_path / "data", flush_every=flush_every)
    other = engine.open(tmp_path / "data", flush_every=flush_every)
    ref = session()
    await put(store, claiming(ref, new_id(), 0))
    seen = last(other)
    await put(store, intent(ref, new_id()))
    second = await put(other, claiming(ref, new_id(), seen))
    with pytest.raises(Conflict):
        await put(store, claiming(ref, new_id(), seen))
    with store.view() as view:
        assert view.linked(LINK) == second
    await store.close()
    await other.close()


async def test_an_intent_that_was_written_before_is_written_once(store: LmdbStore) -> None:
    ref, call = session(), new_id()
    first = await put(store, claiming(ref, call, 0))
    assert await put(store, claiming(ref, call, 0)) == first


async def test_nothing_follows_an_intent_that_was_refused(
    store: LmdbStore, other: LmdbStore
) -> None:
    ref, call = session(), new_id()
    await put(other, claiming(session(), new_id(), 0))
    refused = store.submit(claiming(ref, call, 0), wait=False)
    with pytest.raises(Conflict):
        await put(store, outcome(ref, call, refused))
    with pytest.raises(Conflict):
        await put(store, note(ref, call, NoteKind.ABANDONED, refused))
    with store.view() as view:
        assert view.call(call) == []


async def test_other_links_are_left_alone(store: LmdbStore, other: LmdbStore) -> None:
    ref, call = session(), new_id()
    ticket = await begin(other, intent(ref, new_id(), body=CommitBody(links=(OTHER,))))
    assert ticket.placed is not None
    placed = await put(store, claiming(ref, call, 0))
    end = await put(store, outcome(ref, call))
    assert end.link.ref == placed.link.seq


async def test_a_session_whose_first_draft_is_refused_has_its_id(
    store: LmdbStore, other: LmdbStore
) -> None:
    await put(store, claiming(session(), new_id(), 0))
    ref = session("one")
    with pytest.raises(Conflict):
        await put(other, claiming(ref, new_id(), 0))
    assert ref.id == ref.candidate
