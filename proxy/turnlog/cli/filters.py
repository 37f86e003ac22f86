"""Options that say which attempts are wanted, by tool and by outcome."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import click

from turnlog.core.kinds import ErrorFamily, ErrorKind, Flag
from turnlog.store.base import Filter

from .failures import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

_NAMES = ("tool", "server", "error", "kind", "flag", "input", "trace")
_OPTIONS = (
    click.option(
        "--tool",
        metavar="GLOB",
        help="Tools whose name matches, or SERVER/TOOL, or SERVER.TOOL.",
    ),
    click.option("--server", metavar="GLOB", help="Upstreams whose name matches."),
    click.option(
        "--error",
        metavar="FAMILY",
        help=f"Attempts that failed like this: {', '.join(ErrorFamily)}.",
    ),
    click.option(
        "--kind", metavar="KIND", help=f"Attempts of this error kind: {', '.join(ErrorKind)}."
    ),
    click.option(
        "--flag", metavar="FLAG", help=f"Attempts that carry the flag: {', '.join(Flag)}."
    ),
    click.option(
        "--input", metavar="TEXT", help="Attempts whose recorded input holds TEXT, in any case."
    ),
    click.option("--trace", metavar="ID", help="Attempts of this trace."),
)

MOST = 10**12
"""No store holds more commits."""


def filter_options(command: F) -> F:
    """Add the options whose values `filter_of` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def filter_of(given: dict[str, Any]) -> Filter:
    """Return the filter that options name. Raises `click.UsageError`."""
    for name in _NAMES:
        refuse_empty(name, given[name])
    _check_word("flag", given["flag"], Flag)
    _check_word("error family", given["error"], ErrorFamily)
    _check_word("error kind", given["kind"], ErrorKind)
    found: dict[str, Any] = {name: given[name] or "" for name in _NAMES}
    return Filter(**found)


def refuse_empty(name: str, value: str | None) -> None:
    """Refuse a filter that is given and says nothing, as a variable without a value does."""
    if value == "":
        raise click.UsageError(f"--{name} is empty, name something or leave it out")


def _check_word(what: str, word: str | None, words: type[StrEnum]) -> None:
    """Refuse a word that stands in no record: its filter would find nothing for ever."""
    if word and word not in set(words):
        hint = did_you_mean(word, words) or f"they are {', '.join(words)}"
        raise click.UsageError(f"no {what} is called {word!r}, {hint}")
