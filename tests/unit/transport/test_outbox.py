"""What leaves through a pipe: order, whole lines, what waits for the disk, room, the end."""

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kit.attempts import Bench, ask, bench, session
from turnlog.core.classify import succeeded
from turnlog.exchange.outcome import AnswerFacts
from turnlog.transport.async_pipes import ReadEnd, WriteEnd
from turnlog.transport.outbox import ROOM, Outbox


async def turns() -> None:
    """Let everything that is ready run."""
    for _ in range(10):
        await asyncio.sleep(0)


class Way:
    """A pipe with an outbox before it."""

    def __init__(self, made: Bench) -> None:
        self.reading, writing = os.pipe()
        self.read_end = ReadEnd(self.reading)
        self.outbox = Outbox(WriteEnd(writing, own=True), made.recorder)
        self.made = made

    async def rest(self) -> bytes:
        """Close, and return all that is left to be read."""
        self.outbox.close()
        pieces: list[bytes] = []
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.outbox.run())
            while piece := await self.read_end.read():
                pieces.append(piece)
        return b"".join(pieces)


@asynccontextmanager
async def way(folder: Path) -> AsyncGenerator[Way]:
    async with bench(folder) as made:
        way = Way(made)
        try:
            yield way
        finally:
            os.close(way.reading)


async def test_lines_leave_in_order_and_a_line_in_pieces_is_not_cut(tmp_path: Path) -> None:
    async with way(tmp_path) as one:
        one.outbox.line(b"a\n")
        one.outbox.piece(b"b", ends=False)
        one.outbox.line(b"c\n")
        one.outbox.piece(b"b", ends=False)
        one.outbox.line(b"d\n")
        one.outbox.piece(b"b\n", ends=True)
        one.outbox.line(b"e\n")
        assert await one.rest() == b"a\nbbb\nc\nd\ne\n"


async def test_a_line_without_its_end_gets_one_only_before_another(tmp_path: Path) -> None:
    async with way(tmp_path) as one:
        one.outbox.line(b"a")
        one.outbox.line(b"b\n")
        one.outbox.piece(b"c", ends=False)
        one.outbox.line(b"d\n")
        one.outbox.piece(b"", ends=True)
        one.outbox.line(b"e")
        assert await one.rest() == b"a\nb\nc\nd\ne"


async def test_a_line_that_waits_for_nothing_leaves_at_once_and_in_order(tmp_path: Path) -> None:
    async with way(tmp_path) as one, asyncio.TaskGroup() as tasks:
        tasks.create_task(one.outbox.run())
        await asyncio.sleep(0)  # it waits for lines
        one.outbox.line(b"a\n")
        assert os.read(one.reading, 10) == b"a\n"
        # More than the pipe holds: what is left, and all lines behind it, wait for the reader.
        large = b"x" * 300_000 + b"\n"
        one.outbox.line(large)
        one.outbox.line(b"b\n")
        one.outbox.close()
        found = b""
        while piece := await one.read_end.read():
            found += piece
        assert found == large + b"b\n"


async def test_a_line_leaves_once_its_outcome_is_on_disk(tmp_path: Path) -> None:
    async with way(tmp_path) as one:
        recorder = one.made.recorder
        attempt = await recorder.begin(ask(session(), recorder.new_call()))
        ticket = recorder.end(attempt, succeeded(), AnswerFacts())
        assert ticket is not None
        one.outbox.line(b"a\n", [ticket])
        one.outbox.line(b"b\n")
        assert await one.rest() == b"a\nb\n"
        assert ticket.placed is not None


async def test_the_sender_is_notified_when_its_line_was_written_whole(tmp_path: Path) -> None:
    async with way(tmp_path) as one:
        told: list[bytes] = []
        one.outbox.piece(b"a", ends=False)
        one.outbox.line(b"b\n", (), lambda: told.append(b"b"))
        one.outbox.piece(b"a\n", (), lambda: told.append(b"a"), ends=True)
        assert told == []
        assert await one.rest() == b"aa\nb\n"
        assert told == [b"a", b"b"]


async def test_an_unread_line_is_not_reported_as_written(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        told: list[bytes] = []
        reading, writing = os.pipe()
        outbox = Outbox(WriteEnd(writing, own=True), made.recorder)
        outbox.line(b"a\n", (), lambda: told.append(b"a"))
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            await outbox.run()
        assert told == []


async def test_a_slow_reader_is_waited_for_until_the_limit_is_removed(tmp_path: Path) -> None:
    async with way(tmp_path) as one:
        one.outbox.line(b"x" * (ROOM + 1))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(one.outbox.wait_for_room())
            await turns()
            assert not waiting.done()
            one.outbox.remove_limit()
            await asyncio.wait_for(waiting, 5)
        assert len(await one.rest()) == ROOM + 1


async def test_a_writer_does_not_wait_for_room_after_the_reader_is_gone(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        reading, writing = os.pipe()
        outbox = Outbox(WriteEnd(writing, own=True), made.recorder)
        outbox.line(b"x" * (ROOM + 1))
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            await outbox.run()
        await asyncio.wait_for(outbox.wait_for_room(), 5)


async def test_lines_to_a_reader_that_is_gone_are_not_kept(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        reading, writing = os.pipe()
        outbox = Outbox(WriteEnd(writing, own=True), made.recorder)
        outbox.line(b"a\n")
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            await outbox.run()
        told = [lambda: None]
        kept = weakref.ref(told[0])
        outbox.line(b"b\n", (), told.pop())
        assert (outbox.is_closing, kept()) == (True, None)


async def test_an_end_that_is_abandoned_gives_what_is_there_and_no_more() -> None:
    reading, writing = os.pipe()
    end = ReadEnd(reading)
    os.write(writing, b"there")
    end.abandon()
    os.write(writing, b"later")
    assert (await end.read(), await end.read()) == (b"there", b"")
    os.close(reading)
    os.close(writing)


async def test_waiting_for_data_ends_when_the_end_is_abandoned() -> None:
    reading, writing = os.pipe()
    end = ReadEnd(reading)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(end.read())
        await turns()
        assert not waiting.done()
        end.abandon()
        assert await asyncio.wait_for(waiting, 5) == b""
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("own", [False, True])
async def test_that_nobody_reads_any_more_is_noticed_without_writing(own: bool) -> None:
    reading, writing = os.pipe()
    end = WriteEnd(writing, own=own)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(end.unread())
        await turns()
        assert not waiting.done()
        os.close(reading)
        await asyncio.wait_for(waiting, 5)
    end.close()


async def test_a_file_is_read_to_its_end_and_always_has_a_reader(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    reading = os.open(file, os.O_RDONLY)
    end = ReadEnd(reading)
    assert (await end.read(), await end.read()) == (b"content", b"")
    os.close(reading)
    writing = WriteEnd(os.open(file, os.O_WRONLY), own=False)
    await writing.write(b"x" * 10_000)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(writing.unread())
        await turns()
        assert not waiting.done()
        waiting.cancel()
    writing.close()
    assert file.read_bytes() == b"x" * 10_000
