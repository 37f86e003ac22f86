"""Ends of pipes: what is known of the other side."""

import os

import pytest

from turnlog.transport.async_pipes import WriteEnd


def pair() -> tuple[int, WriteEnd]:
    """Return the end that is read, and the other one."""
    theirs, ours = os.pipe()
    return theirs, WriteEnd(ours, own=True)


async def test_what_nobody_has_read_when_the_reader_leaves_is_untouched() -> None:
    theirs, end = pair()
    await end.write(b"x" * 1000)
    assert (end.is_read, end.is_untouched) == (True, False)
    os.close(theirs)
    assert (end.is_read, end.is_untouched) == (False, True)
    end.close()
    assert (end.is_read, end.is_untouched) == (False, True)


async def test_who_was_there_when_it_was_closed_may_have_read_all_of_it_since() -> None:
    theirs, end = pair()
    await end.write(b"x" * 1000)
    end.close()
    os.close(theirs)
    assert (end.is_read, end.is_untouched) == (True, False)


async def test_a_single_byte_that_was_read_is_a_touch() -> None:
    theirs, end = pair()
    await end.write(b"x" * 1000)
    os.read(theirs, 1)
    os.close(theirs)
    assert not end.is_untouched
    end.close()
    assert not end.is_untouched


async def test_what_could_not_be_written_any_more_was_read_by_nobody() -> None:
    theirs, end = pair()
    os.close(theirs)
    with pytest.raises(BrokenPipeError):
        await end.write(b"x")
    assert end.is_untouched
    end.close()
