"""Options and arguments that several commands share, and how people write times and ranges."""

import os
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from turnlog.core.state.state_view import StateField
from turnlog.core.text.units import parse_moment
from turnlog.sessions.log import TurnRange, parse_turns
from turnlog.store.base import View

from .failures import complain, did_you_mean

if TYPE_CHECKING:
    from turnlog.redaction.redact import Redactor

F = TypeVar("F", bound=Callable[..., Any])

_IN_MEMORY = 8 << 20
"""Bytes of output that wait in memory; more goes to a temporary file."""


def _default_data() -> str:
    from turnlog.store.place import default_place

    place = default_place(os.environ, Path.cwd())
    if place.hint:
        complain(place.hint)
    return str(place.path)


def data_option(command: F) -> F:
    """Add `--data`."""
    return click.option(
        "--data",
        metavar="DIR",
        type=FolderName(),
        envvar="TURNLOG_DATA",
        default=_default_data,
        show_default="the user's state folder",
        show_envvar=True,
        help="The folder that holds the store.",
    )(command)


def writing_options(command: F) -> F:
    """Add `--config` and `--data`, for a command that writes texts to the store: see `writing`."""
    config = click.option(
        "--config",
        metavar="FILE",
        help="The proxy's YAML file of settings, for `redact` and `data`.  [env: TURNLOG_CONFIG]",
    )
    data = click.option(
        "--data", metavar="DIR", help="The store's folder.  [default: the user's state folder]"
    )
    return config(data(command))


def writing(config: str | None, data: str | None) -> "tuple[Path, Redactor]":
    """Return the store's folder, and what cuts secrets out of texts as the settings say.

    Raises `ConfigError`, `SettingError`.
    """
    from turnlog.redaction.redact import Redactor
    from turnlog.settings.layers import Flags, read_store_settings

    flags = Flags(config=config, data=data)
    settings = read_store_settings(flags)
    redact = settings.redact
    return settings.data, Redactor(redact.headers, redact.keys, redact.patterns)


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
        complain(f"{records} damaged and left out, run `turnlog verify`")


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


class FolderName(click.ParamType[str]):
    """A folder's path; an empty one is a slip, not the working directory."""

    name = "folder"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Read `value`."""
        if not value:
            self.fail("'' is no folder, write a path like /srv/turnlog", param, ctx)
        return str(value)


class TurnType(click.ParamType[int]):
    """A turn: a whole number, where a negative one counts from the newest turn."""

    name = "turn"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read `value`."""
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is no whole number, write one like 20", param, ctx)


class FieldName(click.ParamType[StateField]):
    """A field of the state."""

    name = "field"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> StateField:
        """Read `value`."""
        word = str(value)
        if word not in set(StateField):
            hint = did_you_mean(word, StateField) or f"they are {', '.join(StateField)}"
            self.fail(f"no field is called {word!r}, {hint}", param, ctx)
        return StateField(word)


class TurnRangeType(click.ParamType[TurnRange]):
    """`A..B`, either end open; negative numbers count from the newest turn."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> TurnRange:
        """Read `value`; a single number is that turn alone."""
        try:
            return parse_turns(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
