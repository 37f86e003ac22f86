"""`record.past_reader`: what is read in the loop, what in a thread, and what errors leave behind."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from msgspec import Struct

from e2e.stores import Call, session_id, written
from turnlog.core.kinds import NoteKind, Rung
from turnlog.observe.clock import Clock
from turnlog.provenance.values import UNREAD
from turnlog.record.past_reader import PastReader
from turnlog.record.session_memory import SLICE, SessionMemories, SessionMemory
from turnlog.redaction.redact import Redactor
from turnlog.sessions.lineage.taint import find_output
from turnlog.sessions.notes import NoteWriter
from turnlog.store.base import SessionRef, alias
from turnlog.store.lmdb import LmdbStore

SMALL = [Call(tool="a", minute=minute, output=b'"job-4711-%d"' % minute) for minute in range(3)]
IDS = b" ".join(b"id-%05d" % number for number in range(6000))
LARGE = [Call(tool="a", minute=minute, output=b'"%b"' % IDS) for minute in range(2)]


class Reading(Struct, frozen=True):
    """A reader of a store, the memory of the session in it, and what was reported."""

    reader: PastReader
    memory: SessionMemory
    store: LmdbStore
    has_read: asyncio.Event
    errors: list[Exception]

    async def read(self) -> None:
        """Wait until a thread has read the session."""
        await self.has_read.wait()
        self.has_read.clear()


@asynccontextmanager
async def reading(folder: Path, calls: Sequence[Call]) -> AsyncGenerator[Reading]:
    """Meet a session that another process has written."""
    await written(folder, calls)
    has_read, errors, times = asyncio.Event(), list[Exception](), count(0, SLICE)
    async with LmdbStore.open(folder) as store, asyncio.TaskGroup() as work:
        memories = SessionMemories(1 << 20, lambda memory: reader.meet(memory))
        # Each look at this clock finds that the time for one round of the loop is up.
        clock = Clock(monotonic=times.__next__)
        reader = PastReader(
            store, clock, work, errors.append, memories, lambda memory, read: has_read.set()
        )
        name = alias(Rung.EXPLICIT, "work", "somebody")
        ref = SessionRef(candidate=session_id("work"), rung=Rung.EXPLICIT, aliases=(name,))
        yield Reading(reader, memories.used(ref), store, has_read, errors)


async def mark(one: Reading, seq: int) -> None:
    """Mark the output of a call as tainted."""
    with one.store.view() as view:
        output = find_output(view, session_id("work"), seq)
    await NoteWriter(one.store, Redactor(), Clock()).mark_output(output, NoteKind.TAINT, "test")


@pytest.mark.parametrize(
    ("calls", "is_marked", "in_thread"),
    [(SMALL, False, False), (LARGE, False, True), (SMALL, True, True)],
    ids=["small", "large", "marked"],
)
async def test_news_are_read_in_the_loop_only_if_that_is_short(
    tmp_path: Path, calls: list[Call], is_marked: bool, in_thread: bool
) -> None:
    async with reading(tmp_path, calls) as one:
        await one.read()
        if is_marked:
            await mark(one, 1)
        one.memory.read_until = 0  # as if the rest had been recorded since
        one.reader.read_news(one.memory)
        assert one.memory.is_reading is in_thread
        if in_thread:
            await one.read()
        with one.store.view() as view:
            row = view.session(session_id("work"))
        assert row is not None
        assert one.memory.read_until == row.head_seq
        assert one.memory.values.has_tainted is is_marked


async def test_the_loop_goes_on_while_a_large_output_is_indexed(tmp_path: Path) -> None:
    async with reading(tmp_path, LARGE[:1]) as one:
        sizes = set[int]()
        while not one.has_read.is_set():
            sizes.add(len(one.memory.values))
            await asyncio.sleep(0)
    assert len(sizes) > 2  # not only nothing and all of it


async def test_an_error_of_reading_is_reported_and_earlier_outputs_are_missing(
    tmp_path: Path,
) -> None:
    await written(tmp_path, SMALL)
    loop = asyncio.get_running_loop()
    await loop.shutdown_default_executor()
    async with reading(tmp_path, ()) as one:
        await one.read()
        assert (one.memory.partial, one.memory.unread) == (UNREAD, UNREAD)
        assert [type(error) for error in one.errors] == [RuntimeError]
        assert not one.memory.is_reading
