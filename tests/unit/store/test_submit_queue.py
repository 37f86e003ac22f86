"""`store.write.submit_queue`: one thread, batches, and nobody left waiting."""

import asyncio
import sys
import threading
from contextlib import suppress

import pytest

from conformance.store.kit import intent, new_id, outcome, session
from kit.proxy import until
from turnlog.core.commit import CommitBody
from turnlog.store.base import Blob, Draft, StoreClosed, StoreError
from turnlog.store.write.batch_writer import MOST, first_batch
from turnlog.store.write.drafts import prepare
from turnlog.store.write.submit_queue import Stall, SubmitQueue


class Recorder:
    """An engine that keeps what it is given; a batch can be held back, or fail."""

    def __init__(self) -> None:
        self.batches: list[list[Draft]] = []
        self.began = threading.Event()
        self.tended = threading.Event()
        self.probed = threading.Event()
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.tending: list[Exception] = []
        self.closing: Exception | None = None

    def write(self, batch: list[Draft]) -> list[Draft]:
        self.batches.append(batch)
        self.began.set()
        assert self.gate.wait(10)
        if self.error:
            raise self.error
        return []

    def tend(self) -> None:
        self.tended.set()
        if self.tending:
            raise self.tending.pop()

    def probe(self) -> None:
        self.probed.set()
        if self.error:
            raise self.error

    def close(self) -> None:
        self.closed = True
        if self.closing:
            raise self.closing


def draft() -> Draft:
    """Return a ticket that nobody placed."""
    return prepare(intent(session(), new_id()), bytes)


async def until_landed(pending: Draft) -> None:
    """Wait for a ticket; that its engine placed nothing does not matter here."""
    with pytest.raises(StoreError, match="not written"):
        async with asyncio.timeout(10):
            await pending.done()


@pytest.mark.promise("STORE-13")
async def test_drafts_queued_during_a_commit_form_the_next_batch() -> None:
    engine = Recorder()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
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


async def test_a_transaction_takes_no_more_than_there_is_memory_for() -> None:
    engine = Recorder()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
    engine.gate.clear()
    drafts = [draft() for _ in range(2 * MOST + 2)]
    writer.submit(drafts[0], wait=True)
    assert await asyncio.to_thread(engine.began.wait, 10)
    for one in drafts[1:]:
        writer.submit(one, wait=False)
    job = asyncio.ensure_future(writer.run(lambda: len(engine.batches)))
    await asyncio.sleep(0)
    ended = asyncio.ensure_future(writer.stop())
    engine.gate.set()
    async with asyncio.timeout(10):
        assert await job == 4
        await ended
    assert engine.batches == [
        drafts[:1],
        drafts[1 : MOST + 1],
        drafts[MOST + 1 : 2 * MOST + 1],
        drafts[2 * MOST + 1 :],
    ]


async def test_a_job_does_not_wait_for_what_comes_behind_it() -> None:
    loop, came = asyncio.get_running_loop(), threading.Event()

    def come() -> None:
        with suppress(StoreClosed):
            for _ in range(2 * MOST):
                writer.submit(draft(), wait=False)
        came.set()

    class Overrun(Recorder):
        def write(self, batch: list[Draft]) -> list[Draft]:
            if len(self.batches) < 5:
                loop.call_soon_threadsafe(come)
                assert came.wait(10)
                came.clear()
            return super().write(batch)

    engine = Overrun()
    writer = SubmitQueue(engine, loop, print)
    writer.submit(draft(), wait=True)
    async with asyncio.timeout(10):
        assert await writer.run(lambda: len(engine.batches)) <= 3
    await writer.stop()


async def test_a_draft_nobody_waits_for_goes_along_with_one_that_is_waited_for() -> None:
    engine = Recorder()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
    lazy, eager = draft(), draft()
    writer.submit(lazy, wait=False)
    assert engine.batches == []
    writer.submit(eager, wait=True)
    await until_landed(eager)
    assert engine.batches == [[lazy, eager]]
    await writer.stop()


async def test_a_draft_nobody_waits_for_is_written_soon() -> None:
    engine = Recorder()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
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
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
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
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
    writer.submit(draft(), wait=False)
    assert await writer.run(lambda: len(engine.batches)) == 1

    def fail() -> None:
        raise StoreError("no")

    with pytest.raises(StoreError, match="no"):
        await writer.run(fail)
    with pytest.raises(StoreError, match="work failed: ZeroDivisionError"):
        await writer.run(lambda: 1 // 0)
    await writer.stop()
    with pytest.raises(StoreClosed):
        await writer.run(fail)


async def test_stopping_writes_everything_first() -> None:
    engine = Recorder()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
    drafts = [draft() for _ in range(3)]
    for one in drafts:
        writer.submit(one, wait=False)
    await asyncio.gather(writer.stop(), writer.stop())
    assert [one for batch in engine.batches for one in batch] == drafts
    assert engine.closed


def test_a_loop_that_is_gone_is_no_trouble() -> None:
    engine = Recorder()

    async def leave() -> SubmitQueue:
        writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
        engine.gate.clear()
        writer.submit(draft(), wait=True)
        return writer

    asyncio.run(leave())
    engine.gate.set()
    assert engine.tended.wait(10)
    assert len(engine.batches) == 1


async def test_a_bug_in_the_housekeeping_ends_nothing() -> None:
    engine = Recorder()
    engine.tending = [KeyError("a bug")]
    reports: list[StoreError] = []
    writer = SubmitQueue(engine, asyncio.get_running_loop(), reports.append)
    for _ in range(2):
        one = draft()
        writer.submit(one, wait=True)
        await until_landed(one)
    engine.closing = KeyError("another")
    await writer.stop()
    assert ["a bug" in str(reports[0]), "another" in str(reports[1])] == [True, True]


async def test_what_is_written_is_let_go_of_before_the_housekeeping() -> None:
    class Thorough(Recorder):
        def tend(self) -> None:
            super().tend()
            assert done.wait(10)

    engine, done = Thorough(), threading.Event()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
    pending = draft()
    writer.submit(pending, wait=True)
    await until_landed(pending)
    assert await asyncio.to_thread(engine.tended.wait, 10)
    held = sys.getrefcount(engine.batches[0])
    done.set()
    await writer.stop()
    # The engine's list alone, and the argument of what counts.
    assert held == 2


async def test_a_report_that_fails_ends_nothing() -> None:
    engine = Recorder()
    engine.tending = [KeyError("a bug"), KeyError("a bug")]

    def fail(error: StoreError) -> None:
        raise RuntimeError from error

    writer = SubmitQueue(engine, asyncio.get_running_loop(), fail)
    for _ in range(2):
        one = draft()
        writer.submit(one, wait=True)
        await until_landed(one)
    await writer.stop()
    assert engine.closed


async def test_when_the_thread_ends_nobody_waits_for_ever() -> None:
    engine = Recorder()
    reports: list[StoreError] = []
    writer = SubmitQueue(engine, asyncio.get_running_loop(), reports.append)
    engine.error = SystemExit()
    engine.gate.clear()
    taken, queued = draft(), draft()
    writer.submit(taken, wait=True)
    job = asyncio.ensure_future(writer.run(lambda: 1))
    assert await asyncio.to_thread(engine.began.wait, 10)
    writer.submit(queued, wait=True)
    engine.gate.set()
    async with asyncio.timeout(10):
        for one in (taken, queued):
            with pytest.raises(StoreClosed, match="writer has ended"):
                await one.done()
        with pytest.raises(StoreClosed, match="writer has ended"):
            await job
        await writer.stop()
    with pytest.raises(StoreClosed):
        writer.submit(draft(), wait=True)
    assert engine.closed
    assert "writer has ended: SystemExit()" in str(reports[0])


async def test_drafts_still_queued_when_the_thread_ended_are_refused() -> None:
    engine = Recorder()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), lambda _: None)
    engine.error = SystemExit()
    engine.gate.clear()
    taken, gathered = draft(), draft()
    writer.submit(taken, wait=True)
    assert await asyncio.to_thread(engine.began.wait, 10)
    writer.submit(gathered, wait=False)
    engine.gate.set()
    async with asyncio.timeout(10):
        for one in (taken, gathered):
            with pytest.raises(StoreClosed, match="writer has ended"):
                await one.done()
        await writer.stop()
    assert engine.batches == [[taken]]


async def test_lost_drafts_that_nobody_waits_for_are_reported_once() -> None:
    engine = Recorder()
    reports: list[StoreError] = []
    writer = SubmitQueue(engine, asyncio.get_running_loop(), reports.append)

    async def write(count: int, *, lazy: bool = True) -> None:
        for _ in range(count):
            pending = prepare(intent(session(), new_id()), bytes, lazy=lazy)
            writer.submit(pending, wait=False)
        await writer.run(lambda: None)

    engine.error = StoreError("the disk is full")
    await write(1, lazy=False)
    assert reports == []
    for count in (2, 3, 1):
        await write(count)
    engine.error = None
    await write(1)
    engine.error = StoreError("the disk is full again")
    await write(1)
    await writer.stop()
    assert [str(report) for report in reports] == [
        "the disk is full (2 drafts were not written)",
        "4 more drafts were not written since then",
        "the disk is full again (1 drafts were not written)",
    ]


async def test_the_queue_is_weighed() -> None:
    engine = Recorder()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
    content = intent(session(), new_id(), body=CommitBody(), blob=Blob(bytes(1000)))
    pending = prepare(content, bytes)
    writer.submit(pending, wait=True)
    assert 1000 < writer.submitted - writer.finished < 2000
    assert writer.submitted - writer.finished == pending.size
    # What the engine adds to a draft does not count.
    pending.encoded_body += b"x" * 100
    await until_landed(pending)
    await writer.run(lambda: None)
    assert writer.submitted == writer.finished
    await writer.stop()


def test_a_call_that_was_never_sent_is_never_cut_between_two_transactions() -> None:
    ref, call = session(), new_id()
    begun = prepare(intent(ref, call), bytes)
    ended = prepare(outcome(ref, call, begun), bytes)
    before, after = [draft() for _ in range(MOST - 1)], [draft()]
    assert first_batch([*before, begun, ended, *after]) == [*before, begun, ended]
    alone = draft()
    assert first_batch([*before, alone, *after]) == [*before, alone]


async def test_after_a_write_that_failed_it_is_tried_again_whether_writing_works() -> None:
    engine = Recorder()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
    engine.error = StoreError("the disk fails")
    lost = draft()
    writer.submit(lost, wait=True)
    with pytest.raises(StoreError, match="the disk fails"):
        await lost.done()
    await asyncio.to_thread(engine.probed.wait, 10)
    assert str(writer.failing) == "the disk fails"
    engine.error = None
    await until(lambda: not writer.failing or None, "a write that works")
    await writer.stop()


async def test_a_batch_that_fails_for_a_bug_speaks_for_no_other() -> None:
    engine = Recorder()
    writer = SubmitQueue(engine, asyncio.get_running_loop(), print)
    engine.error = ValueError("a bug")
    lost = draft()
    writer.submit(lost, wait=True)
    with pytest.raises(StoreError, match="a bug"):
        await lost.done()
    assert writer.failing is None
    engine.error = None
    await writer.stop()
    assert not engine.probed.is_set()


async def test_a_callback_that_fails_keeps_nobody_else_from_being_told() -> None:
    def fail(_: object) -> None:
        raise RuntimeError("this callback fails")

    failures: list[BaseException | None] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context.get("exception")))
    engine = Recorder()
    writer = SubmitQueue(engine, loop, print)
    for error in (None, StoreError("the disk is full")):
        engine.error = error
        told, other = draft(), draft()
        told.on_written = fail
        writer.submit(told, wait=True)
        writer.submit(other, wait=True)
        with pytest.raises(StoreError):
            async with asyncio.timeout(10):
                await other.done()
    assert list(map(type, failures)) == [RuntimeError, RuntimeError]
    await writer.stop()


def waited(*counts: tuple[int, int], every: float = 1.0) -> float:
    """Return what the last look says, when there was one at each of these counts."""
    stall = Stall()
    told = [stall.seconds(*count, 1000.0 + every * n) for n, count in enumerate(counts)]
    return told[-1]


def test_a_stall_counts_while_something_waits_and_nothing_ends() -> None:
    assert waited((10, 5), (10, 5), (12, 5), (20, 5)) == 3.0


def test_a_write_that_ends_starts_the_count_of_a_stall_anew() -> None:
    assert waited((10, 5), (10, 5), (10, 6)) == 0.0
    assert waited((10, 5), (10, 5), (10, 6), (10, 6)) == 1.0


def test_a_stall_does_not_count_while_nothing_waits() -> None:
    assert waited((5, 5), (5, 5), (5, 5)) == 0.0


def test_time_without_a_look_hardly_counts_as_a_stall() -> None:
    assert waited((10, 5), (10, 5), every=3600.0) == 2.0
