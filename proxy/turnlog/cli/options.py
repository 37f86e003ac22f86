"""Options that several commands share, and the types of their values."""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, partial, reduce, wraps
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from turnlog.core.note import LONGEST_WHY
from turnlog.core.state.state_view import StateField
from turnlog.core.text.units import as_utc, parse_moment
from turnlog.packs.errors import did_you_mean
from turnlog.sessions.log import parse_turns
from turnlog.store.read.view import View

from .failures import complain

if TYPE_CHECKING:
    from turnlog.redaction.redact import Redactor
    from turnlog.settings.model import Settings
    from turnlog.store.lmdb import LmdbStore

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_MOST: Final = 10**12
"""Upper limit of seqs and counts; no store holds more commits."""
_IN_MEMORY = 8 << 20
"""Bytes of output that wait in memory; more goes to a temporary file."""
_DATA_HELP: Final = "The store's folder.  [env: TURNLOG_DATA; default: the user's state folder]"


def _default_data() -> str:
    from turnlog.store.default_folder import default_place

    place = default_place(os.environ, Path.cwd())
    if place.hint:
        complain(place.hint)
    return str(place.path)


def data_option(command: F) -> F:
    """Add `--data`."""
    return click.option(
        "--data",
        metavar="DIR",
        type=FOLDER,
        envvar="TURNLOG_DATA",
        default=_default_data,
        help=_DATA_HELP,
    )(command)


def config_option(help_text: str = "A YAML file of settings.") -> Callable[[F], F]:
    """Return an option `--config`."""
    return click.option("--config", metavar="FILE", help=f"{help_text}  [env: TURNLOG_CONFIG]")


settings_data_option = click.option("--data", metavar="DIR", help=_DATA_HELP)
"""Adds `--data` for a command that reads settings, which may name the folder as well."""


class WrittenStore:
    """The store that a command writes to, and its settings, which are read when they are first needed.

    Raises `ConfigError`, `SettingError`, `StoreError`.
    """

    def __init__(self, config: str | None, data: str | None, rules: tuple[str, ...] = ()) -> None:
        self.config = config
        self.data = data
        self._rules = rules

    @cached_property
    def settings(self) -> "Settings":
        """The settings of the proxy."""
        # Not above: what writes needs the settings, which reading commands do not load.
        from turnlog.settings.layers import Flags, read_store_settings

        return read_store_settings(Flags(config=self.config, data=self.data, rules=self._rules))

    @property
    def folder(self) -> Path:
        """The store's folder."""
        return self.settings.data

    @cached_property
    def redactor(self) -> "Redactor":
        """Removes secrets from what is written."""
        from turnlog.redaction.redact import Redactor

        redact = self.settings.redact
        return Redactor(redact.headers, redact.keys, redact.patterns)

    def clean(self, text: str) -> str:
        """Return a text without secrets."""
        return self.redactor.text(text)[0]

    def write(self, work: Callable[["LmdbStore"], Coroutine[Any, Any, T]]) -> T:
        """Return what `work` returns, which gets the store, opened for writing."""
        return write_store(self.folder, work)


def writing_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add `--config` and `--data`; the command gets them as a `WrittenStore` called `target`."""

    @wraps(command)
    def with_target(*args: Any, config: str | None, data: str | None, **given: Any) -> T:
        data = data or _data_of_group(click.get_current_context())
        target = WrittenStore(config, data, given.get("rules", ()))
        return command(*args, target=target, **given)

    return config_option("The proxy's YAML file of settings.")(settings_data_option(with_target))


def _data_of_group(ctx: click.Context) -> str | None:
    """Return the `--data` that was given to the group: `turnlog sessions --data DIR pause ...`."""
    parent = ctx.parent
    if parent is None or parent.get_parameter_source("data") is not ParameterSource.COMMANDLINE:
        return None
    return str(parent.params["data"])


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options, in this order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def all_option(command: F) -> F:
    """Add `--all`."""
    return click.option(
        "--all", "with_discarded", is_flag=True, help="Also what rewinds have discarded."
    )(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")(
        command
    )


@contextmanager
def printout() -> Generator[Callable[[str], None]]:
    """Return a function that collects lines, which are printed when the block ends."""
    # A slow reader (`| less`) must not keep a snapshot of the store open: LMDB cannot reuse what
    # writers free meanwhile.
    with SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", newline="") as kept:
        try:
            yield lambda line: print(line, file=kept)
        finally:
            kept.seek(0)
            shutil.copyfileobj(kept, sys.stdout)
            sys.stdout.flush()


@contextmanager
def open_view(data: Path) -> Generator[View]:
    """Open a snapshot of the store in a folder; proxies may be running. Raises `StoreError`."""
    from turnlog.store.lmdb import LmdbReader

    with LmdbReader.open(data) as reader, reader.view() as view:
        yield view


def write_store(data: Path, work: Callable[["LmdbStore"], Coroutine[Any, Any, T]]) -> T:
    """Return what `work` returns, which gets the store in a folder; proxies may be running. Raises `StoreError`."""
    from turnlog.store.lmdb import LmdbStore

    async def opened() -> T:
        async with LmdbStore.open(data, report=complain) as store:
            if store.rekeyed:
                complain(store.rekeyed)
            return await work(store)

    return asyncio.run(opened())


@contextmanager
def reading(data: Path) -> Generator[tuple[View, Callable[[str], None]]]:
    """Open a snapshot, and return it with a function that collects lines as that of `printout`."""
    with printout() as write, open_view(data) as view:
        yield view, write


def warn_of_damage(left_out: int) -> None:
    """Warn on stderr that damaged records were left out of a listing, if any were."""
    if left_out:
        records = "1 record is" if left_out == 1 else f"{left_out} records are"
        complain(f"{records} damaged and left out, run `turnlog verify`")


class Parsed(click.ParamType[T]):
    """An option type that reads its text by a function; a `ValueError` is the usage error."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Return the value of the option."""
        try:
            return self._read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def number(least: int) -> Parsed[int]:
    """Return the type of an option that takes a whole number, such as a seq or a count."""

    def read(text: str) -> int:
        value = _read_number(text)
        if not least <= value <= _MOST:
            bound = (
                f"{least} is the least" if value < least else f"no store holds more than {_MOST}"
            )
            raise ValueError(f"{text!r} is out of range, {bound}")
        return value

    # Not click's `IntRange`, which writes the bounds into `--help`.
    return Parsed("whole number", read)


def _read_time(text: str, *, end: bool = False) -> int:
    """Return ns UTC; a time without a zone is local on a terminal, as tables show it, else UTC."""
    assume = datetime.astimezone if sys.stdout.isatty() else as_utc
    try:
        return parse_moment(text, datetime.now(UTC), end=end, assume=assume)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time, write 10m, 2026-11-27 or 2026-11-27T12:00:00Z"
        ) from None


def _read_folder(text: str) -> Path:
    # An empty one is a slip, such as an unset variable, and not the working directory.
    if not text:
        raise ValueError("'' is not a folder, write a path like /srv/turnlog")
    return Path(text).expanduser()


def _read_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number, write one like 20") from None


def word_of(what: str, words: type[E]) -> Parsed[E]:
    """Return the type of an option that takes one of the words of a closed set."""

    def read(text: str) -> E:
        if text not in set(words):
            hint = did_you_mean(text, words) or f"they are {', '.join(words)}"
            raise ValueError(f"no {what} is called {text!r}, {hint}")
        return words(text)

    return Parsed(what, read)


TIME: Final = Parsed("time", _read_time)
"""A time in ns UTC: RFC 3339, a date, or a duration for that long ago."""
END_TIME: Final = Parsed("time", partial(_read_time, end=True))
"""The same, where a date means the end of that day."""
TIME_HELP: Final = "10m ago, a date, or RFC 3339; without a zone local on a terminal, else UTC."
FOLDER: Final = Parsed("folder", _read_folder)
SEQ: Final = number(0)
"""The seq of a commit, or another number that may be 0."""
TURN: Final = Parsed("turn", _read_number)
"""A turn; negative numbers count from the newest."""
FIELD: Final = word_of("field", StateField)
"""A field of the state."""
TURN_RANGE: Final = Parsed("range", parse_turns)
"""`A..B`, either end open, or a single turn; negative numbers count from the newest."""


def _read_why(text: str) -> str:
    if len(text) > LONGEST_WHY:
        raise ValueError(f"it has {len(text)} characters, {LONGEST_WHY} are kept: cut it")
    return text


why_option: Final = click.option(
    "--why",
    metavar="TEXT",
    type=Parsed("text", _read_why),
    default="",
    help="The reason; kept in the log.",
)
"""Adds `--why` to a command that changes a session."""
fence_option: Final = click.option(
    "--fence",
    metavar="N",
    type=SEQ,
    help="The number of your lease: refused if another is newer, or yours has ended.",
)
"""Adds `--fence` to a command that changes a session."""
