"""Options that choose attempts: by tool, outcome, input and trace, and by range, change and time."""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import click
from msgspec import structs

from turnlog.core.kinds import ErrorFamily, ErrorKind, Flag
from turnlog.core.state.state_view import StateField
from turnlog.sessions.log import Query, TurnRange
from turnlog.store.base import Filter

from .options import (
    END_TIME,
    FIELD,
    SEQ,
    TIME,
    TIME_HELP,
    TURN_RANGE,
    Parsed,
    all_option,
    number,
    with_options,
    word_of,
)

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

_RANGES = (
    click.option("--last", type=number(1), metavar="N", help="The newest N attempts."),
    click.option("--after", type=SEQ, metavar="SEQ", help="All attempts after this commit."),
    click.option(
        "--before",
        type=SEQ,
        metavar="SEQ",
        help="The last attempts before this commit.",
    ),
    click.option("--around", type=SEQ, metavar="SEQ", help="The attempts around this commit."),
    click.option("--turns", type=TURN_RANGE, metavar="A..B", help="Turns; -5.. is the last five."),
)
_CHANGES = (
    click.option(
        "--field",
        type=FIELD,
        metavar="NAME",
        help=f"Attempts that changed this field: {', '.join(StateField)}.",
    ),
    click.option("--path", metavar="GLOB", help="Attempts that changed a file whose name matches."),
    click.option("--since", type=TIME, metavar="TIME", help=f"From: {TIME_HELP}"),
    click.option("--until", type=END_TIME, metavar="TIME", help="Up to and including."),
)


filter_options = with_options(*_OPTIONS)
"""Adds the options whose values `filter_of` reads."""
query_options = with_options(*_RANGES, *_OPTIONS, *_CHANGES, all_option)
"""Adds the options whose values `query_of` reads."""


def query_of(given: dict[str, Any]) -> Query:
    """Return the query, of no session yet, for the values of these options. Raises `click.UsageError`."""
    ranges = [name for name in ("after", "before", "around") if given[name] is not None]
    if len(ranges) > 1:
        raise click.UsageError(f"--{ranges[0]} and --{ranges[1]} exclude each other, give one")
    if given["after"] is not None and given["last"] is not None:
        raise click.UsageError("--after gives all that follows, leave out --last")
    refuse_empty("path", given["path"])
    since, until = given["since"], given["until"]
    if since is not None and until is not None and since > until:
        raise click.UsageError("--since lies after --until, exchange them")
    bounds = {name: given[name] for name in ("after", "before", "since", "until")}
    changed = {name: given[name] or "" for name in ("field", "path")}
    return Query(
        last=given["last"],
        around=given["around"],
        turns=given["turns"] or TurnRange(),
        with_discarded=given["with_discarded"],
        match=structs.replace(filter_of(given), **bounds, **changed),
    )


def refuse_range(given: dict[str, Any]) -> None:
    """Refuse a range of seqs or turns where it is not said in which session. Raises `click.UsageError`."""
    for name in ("after", "before", "around", "turns"):
        if given[name] is not None:
            raise click.UsageError(f"--{name} needs a SESSION, `turnlog sessions` lists them")


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
