"""`store.writer`: one thread, batches, and nobody left waiting."""

import asyncio
import threading

import pytest

from conformance.store.kit import intent, new_id, session
from turnlog.store.base import StoreClosed, StoreError
from turnlog.store.tickets import Pending, pend
from turnlog.store.writer import Writer, chained


class Recorder:
    """An engine that keeps what it is given; a batch can be held back, or fail."""

    def __init__(self) -> None:
        self.batches: list[list[Pending]] = []
        self.began = threading.Event()
        self.tended = threading.Event()
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def write(self, batch: list[Pending]) -> list[Pending]:
        self.batches.append(batch)
        self.began.set()
        assert self.gate.wait(10)
        if self.error:
            raise self.error
        return []

    def tend(self) -> None:
        self.tended.set()

    def close(self) -> None:
        self.closed = True


def draft() -> Pending:
    """Return a ticket that nobody placed."""
    return pend(intent(session(), new_id()), bytes(16))


async def until_landed(pending: Pending) -> None:
    """Wait for a ticket; that its engine placed nothing does not matter here."""
    with pytest.raises(StoreError, match="not written"):
        async with asyncio.timeout(10):
            await pending.done()


async def test_what_queues_up_during_a_commit_is_the_next_batch() -> None:
    engine = Recorder()
    writer = Writer(engine, asyncio.get_running_loop())
    engine.gate.clear()
    first = draft()
    writer.submit(first, wait=True)
    assert await asyncio.to_thread(engine.began.wait, 10)
    others = [draft() for _ in range(5)]
    for one in others:
        writer.submit(one, wait=True)
    engine.gate.set()
    for one in (first, *others):
        await until_landed(one)
    assert engine.batches == [[first], others]
    await writer.stop()
    assert engine.closed


async def test_a_draft_nobody_waits_for_goes_along_with_one_that_is_waited_for() -> None:
    engine = Recorder()
    writer = Writer(engine, asyncio.get_running_loop())
    lazy, eager = draft(), draft()
    writer.submit(lazy, wait=False)
    assert engine.batches == []
    writer.submit(eager, wait=True)
    await until_landed(eager)
    assert engine.batches == [[lazy, eager]]
    await writer.stop()


async def test_a_draft_nobody_waits_for_is_written_soon() -> None:
    engine = Recorder()
    writer = Writer(engine, asyncio.get_running_loop())
    lazy = draft()
    writer.submit(lazy, wait=False)
    await until_landed(lazy)
    again = draft()
    writer.submit(again, wait=False)
    await until_landed(again)
    assert engine.batches == [[lazy], [again]]
    await writer.stop()


@pytest.mark.parametrize(
    ("error", "words"),
    [(StoreError("the disk is full"), "disk is full"), (KeyError("a bug"), "a bug")],
)
async def test_a_batch_that_fails_fails_its_tickets_alone(error: Exception, words: str) -> None:
    engine = Recorder()
    writer = Writer(engine, asyncio.get_running_loop())
    engine.error = error
    lost = draft()
    writer.submit(lost, wait=True)
    with pytest.raises(StoreError, match=words):
        await lost.done()
    engine.error = None
    fine = draft()
    writer.submit(fine, wait=True)
    await until_landed(fine)
    await writer.stop()


async def test_a_job_runs_behind_what_is_queued() -> None:
    engine = Recorder()
    writer = Writer(engine, asyncio.get_running_loop())
    writer.submit(draft(), wait=False)
    assert await writer.run(lambda: len(engine.batches)) == 1

    def fail() -> None:
        raise StoreError("no")

    with pytest.raises(StoreError, match="no"):
        await writer.run(fail)
    await writer.stop()
    with pytest.raises(StoreClosed):
        await writer.run(fail)


async def test_stopping_writes_everything_first() -> None:
    engine = Recorder()
    writer = Writer(engine, asyncio.get_running_loop())
    drafts = [draft() for _ in range(3)]
    for one in drafts:
        writer.submit(one, wait=False)
    await asyncio.gather(writer.stop(), writer.stop())
    assert [one for batch in engine.batches for one in batch] == drafts
    assert engine.closed


def test_a_loop_that_is_gone_is_no_trouble() -> None:
    engine = Recorder()

    async def leave() -> Writer:
        writer = Writer(engine, asyncio.get_running_loop())
        engine.gate.clear()
        writer.submit(draft(), wait=True)
        return writer

    asyncio.run(leave())
    engine.gate.set()
    assert engine.tended.wait(10)
    assert len(engine.batches) == 1


def test_a_chain_is_read_in_order() -> None:
    last = draft()
    middle = pend(intent(session(), new_id()), bytes(16), last)
    first = pend(intent(session(), new_id()), bytes(16), middle)
    alone = draft()
    assert list(chained([first, alone])) == [
        (first, None),
        (middle, first),
        (last, middle),
        (alone, None),
    ]
