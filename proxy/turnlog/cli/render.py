"""Text for people: columns that fit the terminal, and nothing in them that could steer it.

Tool names and outputs come from strangers. Whatever is no plain character is written as an escape,
in tables and in JSON alike.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import islice

import msgspec

from turnlog.core.text.terminal import display_width, escape_unprintable, fit_columns

_BLOCK = 1000
"""Rows that are aligned together, so that a table of any length streams in bounded memory."""
_NARROWEST = 12
_NARROWEST_CUT = 5
"""Columns that are left of a cell that is cut, before a column to spare is left out and after."""


class Style(StrEnum):
    """ANSI styles for cells."""

    GOOD = "32"
    BAD = "31"
    OPEN = "33"
    FAINT = "2"


class Cell(msgspec.Struct, frozen=True):
    """A table's cell: text of any origin, and how it looks on a terminal."""

    text: str
    style: Style | None = None
    narrow: str = ""
    """What stands in its place where a table is too wide; empty for the same."""


class Column(msgspec.Struct, frozen=True):
    """A table's column."""

    name: str
    whole: bool = False
    """Whether half of what stands there is of no use: an id, a number, a time."""
    cut_last: bool = False
    """Whether it is cut only where all others are cut or left out already."""
    spare: int = 0
    """Where the terminal is too narrow for all, the highest is left out first; 0 stays."""
    is_time: bool = False
    """Whether the cells are times: its head names their zone on a terminal."""

    @property
    def head(self) -> str:
        """Return what stands above the cells."""
        return f"{self.name}({zone()})" if self.is_time and sys.stdout.isatty() else self.name


def clean_lines(text: str) -> str:
    """Return `text` cleaned, with its line ends and tabs as they are."""
    return "\n".join(
        "\t".join(escape_unprintable(part) for part in line.split("\t"))
        for line in text.replace("\r\n", "\n").split("\n")
    )


def counted(number: int, what: str) -> str:
    """Return how many there are of what: `1 rule`, `2 rules`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def json_line(value: object) -> str:
    """Return one line of JSON that a terminal may see: odd characters are `\\uXXXX`."""
    return escape_unprintable(msgspec.json.encode(value).decode())


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, width: int | None, empty: str = ""
) -> Iterator[str]:
    """Yield lines of aligned columns, none wider than `width`; `None` leaves them whole.

    Without rows, `empty` is all that is yielded where it says something.

    The widest column that may be cut gives way first, then cells take their narrow text, then
    columns to spare are left out, then those are cut that are cut last, and in the end what stands
    on the right is left out.
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
    """Return the columns of a terminal that a table needs when all is cut to `least` that may be."""
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
    """Return the widths of the columns that are shown, the widest cut until all fit."""
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
    """Return lines whose columns are at least so wide, so that those to come stand below them.

    No line is wider than `width`: first the last column gives room down to `_NARROWEST`, then the
    columns `elastic`, in that order, then what stands on the right is left out. `None` leaves all
    whole.
    """
    lines = _cleaned(rows)
    widths = _widest(lines, least)
    if width is not None:
        widths = _fitted(widths, elastic, width)
    return [_line(row, widths) for row in lines]


def local_time(timestamp: str, digits: int) -> tuple[str, str]:
    """Return a row's RFC 3339 time as a terminal shows it: local there, UTC elsewhere.

    The second form is for narrow tables: the time of day where it is today, else the day as well.
    """
    text = timestamp[:digits].replace("T", " ")
    if not sys.stdout.isatty():
        return text, text[5:16]
    at = datetime.fromisoformat(timestamp).astimezone()
    text = at.strftime("%Y-%m-%d %H:%M:%S.%f")[:digits]
    today = at.date() == datetime.now().astimezone().date()
    return text, text[11:19] if today else text[5:16]


def zone() -> str:
    """Return the name of the local time zone, as `CET` or `+0530`."""
    return datetime.now().astimezone().strftime("%Z")


def terminal_width() -> int | None:
    """Return the columns of the terminal on stdout, or `None` when it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def use_colour() -> bool:
    """Tell whether stdout is a terminal that wants colour (NO_COLOR, TERM=dumb)."""
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
    """Return a line in a style, where stdout wants colour."""
    return _painted(text, style) if use_colour() else text


def _painted(text: str, style: Style | None) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text
