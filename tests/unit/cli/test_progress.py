from collections.abc import Iterator
from io import StringIO
from itertools import chain, repeat
from threading import Event

import pytest

from turnlog.cli.render import ProgressLine


class Stream(StringIO):
    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def shown(stream: Stream, times: list[float], *, is_shown: bool = True) -> str:
    """Return what is written for news at these seconds after the start."""
    clock: Iterator[float] = iter([0.0, *times])
    with ProgressLine(is_shown=is_shown, stream=stream, clock=lambda: next(clock)) as progress:
        for at in times:
            progress.show(f"at {at}")
    return stream.getvalue()


def test_a_short_command_shows_nothing() -> None:
    assert shown(Stream(), [0.5, 1.9]) == ""


def test_a_long_command_replaces_its_line_now_and_then_and_removes_it() -> None:
    assert shown(Stream(), [1.0, 2.0, 2.1, 2.3]) == "\r\x1b[2Kat 2.0\r\x1b[2Kat 2.3\r\x1b[2K"


def test_nothing_is_shown_where_stderr_is_no_terminal() -> None:
    assert shown(Stream(is_terminal=False), [3.0, 9.0]) == ""


def test_nothing_is_shown_between_lines_of_the_output_itself() -> None:
    assert shown(Stream(), [3.0, 9.0], is_shown=False) == ""


def test_work_that_takes_long_has_its_line_until_it_is_done() -> None:
    stream = Stream()
    begun = Event()
    times = chain([0.0], repeat(9.0))

    def clock() -> float:
        begun.set()
        return next(times)

    def work() -> str:
        begun.clear()
        assert begun.wait(30)  # until it was looked at
        return "done"

    with ProgressLine(stream=stream, clock=clock) as progress:
        assert progress.during("looking", work) == "done"

    assert stream.getvalue() == "\r\x1b[2Klooking\r\x1b[2K"


def test_what_fails_fails_as_without_a_line() -> None:
    with ProgressLine(stream=Stream()) as progress, pytest.raises(ZeroDivisionError):
        progress.during("dividing", lambda: 1 // 0)
