"""Outcomes that found no room: kept, bounded, written later, and before what came after them."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from conformance.store.kit import intent, new_id, outcome, session
from turnlog.core.commit import CommitBody
from turnlog.core.kinds import Actor
from turnlog.store.base import Blob, Draft, StoreError, StoreFull
from turnlog.store.lmdb import LmdbStore
from turnlog.store.log.translate_errors import explained
from turnlog.store.write.batch_writer import OverflowBuffer
from turnlog.store.write.drafts import prepare
from turnlog.store.write.submit_queue import SubmitQueue

FULL = StoreFull("the disk is full")


class Disk:
    """An engine with room for so many drafts."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.written: list[Draft] = []
        self.damaged: list[Draft] = []

    def write(self, batch: list[Draft]) -> list[Draft]:
        if any(pending in self.damaged for pending in batch):
            raise StoreError("a page is damaged")
        if len(batch) > self.room:
            raise FULL
        self.room -= len(batch)
        self.written += batch
        return []

    def tend(self) -> None: ...

    def probe(self) -> None:
        if not self.room:
            raise FULL

    def close(self) -> None: ...


def ended(size: int = 0, begun: Draft | None = None) -> Draft:
    return prepare(outcome(session(), new_id(), begun, body=CommitBody(summary="x" * size)), bytes)


def begun(size: int = 0) -> Draft:
    return prepare(intent(session(), new_id(), body=CommitBody(summary="x" * size)), bytes)


async def refused(writer: SubmitQueue, *drafts: Draft) -> None:
    for draft in drafts:
        writer.submit(draft, wait=True)
        with pytest.raises(StoreFull):
            await draft.done()


async def test_drafts_are_written_in_their_order() -> None:
    disk = Disk(0)
    writer = SubmitQueue(disk, asyncio.get_running_loop(), print)
    first, second, after = ended(), ended(), begun()
    await refused(writer, first, begun(), second)
    disk.room = 1
    await refused(writer, after)
    assert disk.written == [first]
    disk.room = 10
    last = begun()
    writer.submit(last, wait=True)
    await writer.stop()
    assert disk.written == [first, second, last]


async def test_room_is_looked_for_again_when_nothing_else_comes() -> None:
    disk = Disk(0)
    writer = SubmitQueue(disk, asyncio.get_running_loop(), print)
    lost = ended()
    await refused(writer, lost)
    told = asyncio.Event()
    lost.on_written = lambda _: told.set()
    disk.room = 1
    async with asyncio.timeout(30):
        await told.wait()
    assert disk.written == [lost]
    await writer.stop()


async def test_outcomes_that_do_not_fit_at_the_end_are_reported() -> None:
    reports: list[StoreError] = []
    writer = SubmitQueue(Disk(0), asyncio.get_running_loop(), reports.append)
    await refused(writer, ended(), ended())
    await writer.stop()
    assert [str(report) for report in reports] == ["the disk is full (2 drafts were not written)"]


async def test_a_draft_that_can_never_be_written_delays_no_other() -> None:
    reports: list[StoreError] = []
    disk = Disk(0)
    writer = SubmitQueue(disk, asyncio.get_running_loop(), reports.append)
    bad, good = ended(), ended()
    await refused(writer, bad, good)
    disk.damaged.append(bad)
    disk.room = 10
    await writer.stop()
    assert disk.written == [good]
    assert "a page is damaged (1 drafts were not written)" in [str(report) for report in reports]


def test_the_memory_for_it_is_bounded() -> None:
    kept = OverflowBuffer(10_000)
    assert kept.take(ended(4000))
    assert not kept.take(begun())
    assert not kept.take(ended(2000, begun(4000))), "its intent stays in memory with it"
    assert kept.take(ended(5000))
    assert len(kept) == 2
    assert [len(piece) for piece in kept.pieces()] == [1, 1]
    assert kept.take(ended(9000))


@pytest.mark.parametrize("words", ["No space left on device", "Disk quota exceeded"])
def test_a_full_disk_is_named(tmp_path: Path, words: str) -> None:
    error = explained("write to", tmp_path, OSError(words))
    assert isinstance(error, StoreFull)
    assert str(error) == f"cannot write to {str(tmp_path)!r}: {words}; free space on the disk"


async def test_an_operators_word_that_was_refused_is_not_written_later() -> None:
    disk = Disk(0)
    writer = SubmitQueue(disk, asyncio.get_running_loop(), print)
    draft = outcome(session(), new_id())
    facts = structs.replace(draft.facts, actor=Actor.OPERATOR)
    word, end = prepare(structs.replace(draft, facts=facts), bytes), ended()
    await refused(writer, word, end)
    disk.room = 9
    await writer.stop()
    assert disk.written == [end]


async def test_an_intent_that_found_no_room_is_salted_with_its_outcome(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "data")
    ref, call = session(), new_id()
    draft = intent(ref, call, body=CommitBody(summary="x"), blob=Blob(b"content"))
    refused = prepare(draft, bytes)
    after = await store.submit(outcome(ref, call, refused), wait=True).done()
    assert refused.placed is not None
    assert after.link.ref == refused.placed.link.seq
    body = refused.placed.body
    assert body is not None
    assert body.summary == "x"
    assert len(body.salt) == 16
    assert body.input_blob == b""
    with store.view() as view:
        stored = view.get(refused.placed.link.session, refused.placed.link.seq)
    assert stored == refused.placed
    await store.close()
