"""Text for people: tables that fit the terminal, local times, colours, a line of progress.

Tool names and outputs are untrusted: control characters are escaped, in tables and in JSON.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Final, Self, TextIO, TypeVar

import msgspec

from turnlog.core.text.terminal import display_width, escape_unprintable, fit_columns

T = TypeVar("T")
_BLOCK = 1000
"""Rows that are aligned together: a table of any length needs bounded memory."""
_NARROWEST = 12
"""Least width of a cut cell while there are columns that can be left out."""
_NARROWEST_CUT = 5
"""Least width of a cut cell after that."""


PROGRESS_AFTER: Final = 2.0
"""s: a command that takes less shows no line of progress."""
_PROGRESS_EVERY: Final = 0.2
"""s between two changes of the line."""
_CLEAR_LINE: Final = "\r\x1b[2K"


class Style(StrEnum):
    """ANSI styles of cells."""

    GOOD = "32"
    BAD = "31"
    OPEN = "33"
    FAINT = "2"


class Cell(msgspec.Struct, frozen=True):
    """A cell of a table: untrusted text and its style."""

    text: str
    style: Style | None = None
    narrow: str = ""
    """The text to show when the table is too wide; empty for the same."""


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    whole: bool = False
    """Whether its cells must not be cut: ids, numbers, times."""
    cut_last: bool = False
    """Whether it is cut only after all others were cut or left out."""
    spare: int = 0
    """On a narrow terminal the column with the highest number is left out first; 0 stays."""
    is_time: bool = False
    """Whether the cells are times; on a terminal the head names their zone."""

    @property
    def head(self) -> str:
        """The text above the cells."""
        return f"{self.name}({zone()})" if self.is_time and sys.stdout.isatty() else self.name


def clean_lines(text: str) -> str:
    """Return `text` with control characters escaped, except line ends and tabs."""
    return "\n".join(
        "\t".join(escape_unprintable(part) for part in line.split("\t"))
        for line in text.replace("\r\n", "\n").split("\n")
    )


def json_line(value: object) -> str:
    """Return a line of JSON that is safe on a terminal: odd characters are `\\uXXXX`."""
    return escape_unprintable(msgspec.json.encode(value).decode())


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, empty: str = ""
) -> Iterator[str]:
    """Yield lines of aligned columns, as wide as the terminal at most; `empty` without rows."""
    return fitted_table(columns, rows, width=terminal_width(), empty=empty)


def fitted_table(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, width: int | None, empty: str = ""
) -> Iterator[str]:
    """Yield lines of aligned columns, at most `width` wide (`None`: any); `empty` without rows.

    To fit, the widest columns are cut first, then cells use their narrow text, then columns with
    `spare` are left out, then `cut_last` columns are cut, and finally columns on the right are left
    out.
    """
    head = [Cell(column.head, Style.FAINT) for column in columns]
    rows = iter(rows)
    first = _cleaned(islice(rows, _BLOCK))
    yield from [empty] if empty and not first else _block(columns, [head, *first], width)
    while more := _cleaned(islice(rows, _BLOCK)):
        yield from _block(columns, [head, *more], width)[1:]


def _block(columns: Sequence[Column], lines: list[list[Cell]], width: int | None) -> list[str]:
    if width is None:
        widths = _widest(lines, [0] * len(columns))
        return [_line(row, widths) for row in lines]
    shown = list(range(len(columns)))
    if _least(columns, lines, shown, least=_NARROWEST) > width:
        lines = [[Cell(cell.narrow or cell.text, cell.style) for cell in row] for row in lines]
    while any(columns[at].spare for at in shown):
        if _least(columns, lines, shown, least=_NARROWEST) <= width:
            break
        shown.remove(max(shown, key=lambda at: columns[at].spare))
    while len(shown) > 1 and _least(columns, lines, shown, cut_last=True) > width:
        shown.pop()
    kept = [[row[at] for at in shown] for row in lines]
    widths = _given(columns, kept, shown, width)
    return [_line(row, widths) for row in kept]


def _least(
    columns: Sequence[Column],
    lines: Sequence[Sequence[Cell]],
    shown: list[int],
    *,
    cut_last: bool = False,
    least: int = _NARROWEST_CUT,
) -> int:
    """Return the width of a table whose cuttable cells are cut to `least`."""
    widths = _widest(lines, [0] * len(columns))
    floors = (_floor(columns[at], widths[at], cut_last=cut_last, least=least) for at in shown)
    return sum(floors) + 2 * (len(shown) - 1)


def _floor(column: Column, width: int, *, cut_last: bool, least: int = _NARROWEST_CUT) -> int:
    if column.whole or (column.cut_last and not cut_last):
        return width
    return min(width, least)


def _given(
    columns: Sequence[Column], lines: Sequence[Sequence[Cell]], shown: list[int], width: int
) -> list[int]:
    """Return the widths of the shown columns, the widest reduced until all fit."""
    widths = _widest(lines, [0] * len(shown))
    over = sum(widths) + 2 * (len(widths) - 1) - width
    for cut_last in (False, True):
        floors = [
            _floor(columns[at], wide, cut_last=cut_last)
            for at, wide in zip(shown, widths, strict=True)
        ]
        while over > 0 and (spare := [at for at, n in enumerate(widths) if n > floors[at]]):
            widest = max(spare, key=widths.__getitem__)
            widths[widest] -= 1
            over -= 1
    return [min(wide, width) for wide in widths]


def aligned(
    rows: Iterable[Sequence[Cell]],
    least: Sequence[int],
    *,
    elastic: Sequence[int],
    width: int | None,
) -> list[str]:
    """Return lines with columns of least widths, so that later lines are aligned with them.

    To fit `width` (`None`: any) the last column is cut first, down to `_NARROWEST`, then the columns
    `elastic` in that order; then columns on the right are left out.
    """
    lines = _cleaned(rows)
    widths = _widest(lines, least)
    if width is not None:
        widths = _fitted(widths, elastic, width)
    return [_line(row, widths) for row in lines]


def local_time(timestamp: str, digits: int) -> tuple[str, str]:
    """Return an RFC 3339 time for a table, local on a terminal and UTC elsewhere; and a short form.

    The short form is the time of day for today, else day and minute.
    """
    text = timestamp[:digits].replace("T", " ")
    if not sys.stdout.isatty():
        return text, text[5:16]
    at = datetime.fromisoformat(timestamp).astimezone()
    text = at.strftime("%Y-%m-%d %H:%M:%S.%f")[:digits]
    today = at.date() == datetime.now().astimezone().date()
    return text, text[11:19] if today else text[5:16]


def shown_time(timestamp: str, digits: int = 26) -> str:
    """Return an RFC 3339 time in UTC; on a terminal in local time with the zone's name."""
    if not sys.stdout.isatty():
        return f"{timestamp[:digits]}Z"
    at = datetime.fromisoformat(timestamp).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S.%f}"[:digits] + f" {at:%Z}"


def zone() -> str:
    """Return the name of the local time zone, as `CET` or `+0530`."""
    return datetime.now().astimezone().strftime("%Z")


def terminal_width() -> int | None:
    """Return the width of the terminal on stdout; `None` when stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def use_colour() -> bool:
    """Return whether stdout is a terminal with colours (not with NO_COLOR or TERM=dumb)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def _cleaned(rows: Iterable[Sequence[Cell]]) -> list[list[Cell]]:
    return [
        [
            Cell(escape_unprintable(cell.text), cell.style, escape_unprintable(cell.narrow))
            for cell in row
        ]
        for row in rows
    ]


def _widest(lines: Sequence[Sequence[Cell]], least: Sequence[int]) -> list[int]:
    return [
        max(n, *(display_width(row[at].text) for row in lines), 0) for at, n in enumerate(least)
    ]


def _fitted(widths: Sequence[int], elastic: Sequence[int], width: int) -> list[int]:
    wanted = [*widths[:-1], min(widths[-1], _NARROWEST)]
    for at in elastic:
        over = sum(wanted) + 2 * (len(wanted) - 1) - width
        least = _NARROWEST_CUT if at == len(wanted) - 1 else _NARROWEST
        wanted[at] = max(wanted[at] - max(over, 0), min(wanted[at], least))
    wanted[-1] = widths[-1]
    fitted: list[int] = []
    left = width
    for want in wanted:
        fitted.append(min(want, max(left, 0)))
        left -= want + 2
    return fitted


def _line(row: Sequence[Cell], widths: Sequence[int]) -> str:
    coloured = use_colour()
    cells: list[str] = []
    for cell, width in zip(row, widths, strict=True):
        text = fit_columns(cell.text, width)
        padding = " " * (width - display_width(text))
        cells.append((_painted(text, cell.style) if coloured else text) + padding)
    return "  ".join(cells).rstrip()


def painted(text: str, style: Style | None) -> str:
    """Return a line in a style, when stdout has colours."""
    return _painted(text, style) if use_colour() else text


def _painted(text: str, style: Style | None) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


class ProgressLine:
    """One line on stderr, replaced as the work goes on and removed at its end.

    Nothing is written where stderr is no terminal, and nothing before `PROGRESS_AFTER`.
    """

    def __init__(
        self,
        *,
        is_shown: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_shown` is false where the output itself goes to the terminal as the work goes on."""
        self._stream = stream or sys.stderr
        self._clock = clock
        self._next = clock() + PROGRESS_AFTER
        self._is_shown = is_shown and self._stream.isatty()
        self._has_line = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replace the line, if that is due: call it as often as there is news."""
        if self._is_shown and (now := self._clock()) >= self._next:
            self._next, self._has_line = now + _PROGRESS_EVERY, True
            self._write(f"{_CLEAR_LINE}{text}")

    def showing(self, doing: str) -> Callable[[str], None]:
        """Return a function that shows a text behind `doing`."""
        return lambda text: self.show(f"{doing} {text}")

    def during(self, text: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, and show a text until then."""
        # Not above: it takes 5 ms of each command's start.
        from concurrent.futures import ThreadPoolExecutor, wait

        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(work)
            while not wait([running], _PROGRESS_EVERY).done:
                self.show(text)
            return running.result()

    def clear(self) -> None:
        """Remove the line."""
        if self._has_line:
            self._has_line = False
            self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
