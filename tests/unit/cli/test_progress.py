from collections.abc import Iterator
from io import StringIO

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
