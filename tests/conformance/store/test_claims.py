"""What it means that an intent claims a link: of several that do, one is written."""

from pathlib import Path

import pytest
from msgspec import structs

from conformance.store.kit import Engine, begin, intent, new_id, note, outcome, put, session
from turnlog.core.commit import Body
from turnlog.core.kinds import NoteKind
from turnlog.store.base import Conflict, Draft, SessionRef, Store

LINK = b"k" * 32


def claiming(ref: SessionRef, call: bytes, seen: int) -> Draft:
    """Return an intent whose writer has found no other with its link up to position `seen`."""
    draft = intent(ref, call, body=Body(links=(LINK,)))
    return structs.replace(draft, claim=LINK, seen=seen)


def last(store: Store) -> int:
    with store.view() as view:
        return view.last


async def test_of_those_that_saw_nothing_of_each_other_one_is_written(store: Store) -> None:
    seen = last(store)
    refs = [session(), session(), session()]
    calls = [new_id() for _ in refs]
    tickets = [
        store.submit(claiming(*which, seen), wait=True) for which in zip(refs, calls, strict=True)
    ]
    first = await tickets[0].done()
    for ticket in tickets[1:]:
        with pytest.raises(Conflict, match="commit 1 claims the same") as refused:
            await ticket.done()
        assert refused.value.seq == first.link.seq
        assert ticket.placed is None
    with store.view() as view:
        assert view.linked(LINK) == first
        assert [len(view.call(call)) for call in calls] == [1, 0, 0]


@pytest.mark.parametrize("flush_every", [1, 2000])
async def test_who_has_seen_the_one_before_is_written(
    engine: Engine, tmp_path: Path, flush_every: int
) -> None:
    store = engine.open(tmp_path / "data", flush_every=flush_every)
    ref = session()
    await put(store, claiming(ref, new_id(), 0))
    seen = last(store)
    await put(store, intent(ref, new_id()))
    second = await put(store, claiming(ref, new_id(), seen))
    with pytest.raises(Conflict):
        await put(store, claiming(ref, new_id(), seen))
    with store.view() as view:
        assert view.linked(LINK) == second
    await store.close()


async def test_an_intent_that_was_written_before_is_written_once(store: Store) -> None:
    ref, call = session(), new_id()
    first = await put(store, claiming(ref, call, 0))
    assert await put(store, claiming(ref, call, 0)) == first


async def test_nothing_follows_an_intent_that_was_refused(store: Store) -> None:
    ref, call = session(), new_id()
    await put(store, claiming(session(), new_id(), 0))
    refused = store.submit(claiming(ref, call, 0), wait=False)
    with pytest.raises(Conflict):
        await put(store, outcome(ref, call, refused))
    with pytest.raises(Conflict):
        await put(store, note(ref, call, NoteKind.ABANDONED, refused))
    with store.view() as view:
        assert view.call(call) == []


async def test_other_links_are_left_alone(store: Store) -> None:
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, new_id(), body=Body(links=(b"o" * 32,))))
    assert ticket.placed is not None
    placed = await put(store, claiming(ref, call, 0))
    end = await put(store, outcome(ref, call))
    assert end.link.ref == placed.link.seq
