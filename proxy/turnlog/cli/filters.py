"""Options that filter attempts by tool, outcome, input and trace."""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import click

from turnlog.core.kinds import ErrorFamily, ErrorKind, Flag
from turnlog.store.base import Filter

from .options import Parsed, word_of

F = TypeVar("F", bound=Callable[..., Any])

_TRACE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def _read_trace(text: str) -> str:
    """Return a W3C trace id in lower case; an empty one is refused by `filter_of`."""
    found = text.lower()
    if found and (_TRACE_ID.fullmatch(found) is None or not found.strip("0")):
        raise ValueError(
            f"{text!r} is not a trace id, write its 32 hex digits, as in "
            "4bf92f3577b34da6a3ce929d0e0e4736"
        )
    return found


def _word_option(name: str, what: str, words: type[StrEnum], text: str) -> Callable[[F], F]:
    """Return an option that takes a word which a record can have."""
    help_text = f"{text}: {', '.join(words)}."
    metavar = what.rpartition(" ")[2].upper()
    return click.option(f"--{name}", metavar=metavar, type=word_of(what, words), help=help_text)


_TRACE = Parsed("trace id", _read_trace)
_NAMES = ("tool", "server", "error", "kind", "flag", "input", "trace")
_OPTIONS = (
    click.option(
        "--tool",
        metavar="GLOB",
        help="Tools whose name matches, or SERVER/TOOL, or SERVER.TOOL.",
    ),
    click.option("--server", metavar="GLOB", help="Upstreams whose name matches."),
    _word_option("error", "error family", ErrorFamily, "Attempts that failed like this"),
    _word_option("kind", "error kind", ErrorKind, "Attempts of this error kind"),
    _word_option("flag", "flag", Flag, "Attempts that carry the flag"),
    click.option(
        "--input", metavar="TEXT", help="Attempts whose recorded input holds TEXT, in any case."
    ),
    click.option(
        "--trace", metavar="ID", type=_TRACE, help="Attempts of this trace (W3C, 32 hex digits)."
    ),
)

MOST = 10**12
"""Upper limit of seqs and counts; no store holds more commits."""


def filter_options(command: F) -> F:
    """Add the options whose values `filter_of` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def filter_of(given: dict[str, Any]) -> Filter:
    """Return the filter for the values of these options. Raises `click.UsageError`."""
    for name in _NAMES:
        refuse_empty(name, given[name])
    found: dict[str, Any] = {name: given[name] or "" for name in _NAMES}
    return Filter(**found)


def refuse_empty(name: str, value: str | None) -> None:
    """Refuse an empty filter, which an unset shell variable gives."""
    if value == "":
        raise click.UsageError(f"--{name} is empty, name something or leave it out")
