"""Options and arguments that several commands share, and how people write times and ranges."""

import re
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, Protocol, TypeVar

import click

from turnlog.core.table import Field
from turnlog.core.values import duration
from turnlog.sessions.log import Turns
from turnlog.store.base import View

from .failures import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATA = "./turnlog-data"
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_AGO = re.compile(r"\d+(\.\d+)?\s*[a-z]+", re.ASCII)
_TURNS = re.compile(r"(-?\d{1,9})?(\.\.)?(-?\d{1,9})?", re.ASCII)
_IN_MEMORY = 8 << 20
"""Bytes of output that wait in memory; more goes to a temporary file."""
_NS = 1_000_000_000


def data_option(command: F) -> F:
    """Add `--data`."""
    return click.option(
        "--data",
        metavar="DIR",
        envvar="TURNLOG_DATA",
        default=DEFAULT_DATA,
        show_default=True,
        show_envvar=True,
        help="The folder that holds the store.",
    )(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")(
        command
    )


@contextmanager
def printout() -> Generator[Callable[[str], None]]:
    """Collect lines, and print them when the block has ended, however it ended.

    A reader that takes its time (`| less`) must not hold a snapshot of the store open: what the
    writers free meanwhile could not be used again.
    """
    with SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", newline="") as kept:
        try:
            yield lambda line: print(line, file=kept)
        finally:
            kept.seek(0)
            shutil.copyfileobj(kept, sys.stdout)
            sys.stdout.flush()


@contextmanager
def open_view(data: str) -> Generator[View]:
    """Open a snapshot of the store in a folder, beside any running proxy. Raises `StoreError`."""
    from turnlog.store.lmdb import LmdbReader

    reader = LmdbReader.open(Path(data).expanduser())
    try:
        with reader.view() as view:
            yield view
    finally:
        reader.close()


class _Listing(Protocol):
    @property
    def left_out(self) -> int: ...


def warn_of_damage(listing: _Listing) -> None:
    """Say on stderr that a listing is not all there was."""
    if count := listing.left_out:
        records = "1 record is" if count == 1 else f"{count} records are"
        click.echo(f"turnlog: {records} damaged and left out, run `turnlog verify`", err=True)


class Moment(click.ParamType[int]):
    """A point in time, ns UTC: RFC 3339, a date, or a duration for that long ago."""

    name = "time"

    def __init__(self, *, end: bool = False) -> None:
        """With `end` a date means the end of that day."""
        self.end = end

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read `value`; a duration counts back from now."""
        try:
            return parse_moment(str(value), datetime.now(UTC), end=self.end)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time, write 10m, 2026-11-27 or 2026-11-27T12:00:00Z", param, ctx
            )


def parse_moment(text: str, now: datetime, *, end: bool = False) -> int:
    """Return ns UTC. Raises `ValueError` and `OverflowError`. A time without a zone is UTC."""
    if _AGO.fullmatch(text):
        return _nanoseconds(now - timedelta(seconds=duration(text)))
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if end and _DATE.fullmatch(text):
        return _nanoseconds(moment) + 86_400 * _NS - 1
    return _nanoseconds(moment)


def _nanoseconds(moment: datetime) -> int:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _NS + since.microseconds * 1000


def _ends_before(first: int | None, last: int | None) -> bool:
    """Tell whether a range is empty, whatever there is; of -1..3 only a session knows."""
    if first is None or last is None:
        return False
    return (first < 0) == (last < 0) and last < first


class Number(click.IntRange):
    """A whole number in a range, and an error that says so."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read `value`."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is no whole number, write one like 20", param, ctx)
        return super().convert(value, param, ctx)


class FieldName(click.ParamType[Field]):
    """A field of the state."""

    name = "field"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Field:
        """Read `value`."""
        word = str(value)
        if word not in set(Field):
            hint = did_you_mean(word, Field) or f"they are {', '.join(Field)}"
            self.fail(f"no field is called {word!r}, {hint}", param, ctx)
        return Field(word)


class TurnRange(click.ParamType[Turns]):
    """`A..B`, either end open; negative numbers count from the newest turn."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Turns:
        """Read `value`; a single number is that turn alone."""
        match = _TURNS.fullmatch(str(value))
        if match is None or not (match[1] or match[3]):
            self.fail(f"{value!r} is no range of turns, write 3..7, -5.. or 4", param, ctx)
        first = int(match[1]) if match[1] else None
        last = int(match[3]) if match[3] else None
        if _ends_before(first, last):
            self.fail(f"{value!r} ends before it begins, write the older turn first", param, ctx)
        return Turns(first, last) if match[2] else Turns(first, first)
