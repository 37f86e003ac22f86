"""Ends of pipes: what is read and written, and what is known of the other side."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from turnlog.transport.async_pipes import ReadEnd, WriteEnd


def pair() -> tuple[int, WriteEnd]:
    """Return the end that is read, and the other one."""
    theirs, ours = os.pipe()
    return theirs, WriteEnd(ours, own=True)


async def test_unread_data_stays_in_the_pipe_when_the_reader_leaves() -> None:
    theirs, end = pair()
    await end.write(b"x" * 1000)
    assert (end.is_read, end.is_untouched) == (True, False)
    os.close(theirs)
    assert (end.is_read, end.is_untouched) == (False, True)
    end.close()
    assert (end.is_read, end.is_untouched) == (False, True)


async def test_a_reader_present_at_the_close_may_have_read_everything_since() -> None:
    theirs, end = pair()
    await end.write(b"x" * 1000)
    end.close()
    os.close(theirs)
    assert (end.is_read, end.is_untouched) == (True, False)


@pytest.mark.parametrize("own", [False, True])
async def test_a_closed_end_tells_whether_it_had_a_reader_and_is_not_waited_for(own: bool) -> None:
    theirs, ours = os.pipe()
    end = WriteEnd(ours, own=own)
    os.close(theirs)
    end.close()
    assert not end.is_read
    # Another file may have the number of its descriptor by now.
    others = os.pipe()
    await asyncio.wait_for(end.unread(), 5)
    for each in others:
        os.close(each)


async def test_what_was_taken_is_what_the_reader_has_not_left_in_the_pipe() -> None:
    theirs, end = pair()
    await end.write(b"x" * 1000)
    assert len(os.read(theirs, 400)) == 400
    assert end.taken == 400
    os.close(theirs)
    assert end.taken == 400
    end.close()
    assert end.taken == 400


async def test_all_counts_as_taken_of_what_is_no_pipe(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    with other:
        for descriptor in (one.detach(), os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)):
            end = WriteEnd(descriptor, own=True)
            await end.write(b"x" * 1000)
            assert end.taken == 1000
            end.close()


async def test_a_single_byte_that_was_read_is_a_touch() -> None:
    theirs, end = pair()
    await end.write(b"x" * 1000)
    os.read(theirs, 1)
    os.close(theirs)
    assert not end.is_untouched
    end.close()
    assert not end.is_untouched


async def test_a_line_that_could_not_be_written_counts_as_unread() -> None:
    theirs, end = pair()
    os.close(theirs)
    with pytest.raises(BrokenPipeError):
        await end.write(b"x")
    assert end.is_untouched
    end.close()


async def test_data_between_two_reads_is_returned_by_the_next_read() -> None:
    ours, theirs = os.pipe()
    end = ReadEnd(ours)
    os.write(theirs, b"one")
    assert await end.read() == b"one"
    os.write(theirs, b"two")
    for _ in range(5):
        await asyncio.sleep(0)
    # Nobody reads, so the loop is not woken for it any more.
    assert not asyncio.get_running_loop().remove_reader(ours)
    assert await end.read() == b"two"
    os.close(theirs)
    assert (await end.read(), await end.read()) == (b"", b"")
    os.close(ours)


@pytest.mark.parametrize("left", [b"", b"last words"])
async def test_an_end_that_is_abandoned_gives_what_is_there_though_the_other_stays_open(
    left: bytes,
) -> None:
    ours, theirs = os.pipe()
    end = ReadEnd(ours)
    os.write(theirs, left)
    end.abandon()
    os.write(theirs, b"too late")
    assert await end.read() == left
    assert await end.read() == b""
    os.close(theirs)
    os.close(ours)


async def test_an_end_that_is_abandoned_while_it_is_read_ends() -> None:
    ours, theirs = os.pipe()
    end = ReadEnd(ours)
    reading = asyncio.ensure_future(end.read())
    await asyncio.sleep(0)
    end.abandon()
    assert await reading == b""
    os.close(theirs)
    os.close(ours)


async def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"a line\n")
    with file.open("rb") as opened:
        end = ReadEnd(opened.fileno())
        assert (await end.read(), await end.read()) == (b"a line\n", b"")


async def test_bytes_that_do_not_fit_into_the_pipe_are_written_as_it_is_read() -> None:
    theirs, ours = os.pipe()
    data, read = os.urandom(1 << 20), ReadEnd(theirs)
    end = WriteEnd(ours, own=True)
    writing = asyncio.ensure_future(end.write(data))
    got = b""
    while len(got) < len(data):
        got += await read.read()
    await writing
    assert got == data
    end.close()
    read.close()
    os.close(theirs)
