"""`turnlog log`: list attempts, newest last."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from enum import StrEnum
from itertools import islice
from typing import Any

import click

from turnlog.core.kinds import ErrorFamily, ErrorKind, Executed, Flag, Status
from turnlog.sessions import log
from turnlog.sessions.log import DEFAULT_LAST, Query, Turns
from turnlog.sessions.rows import Row
from turnlog.store.base import Filter, View

from .options import (
    Moment,
    TurnRange,
    data_option,
    json_option,
    open_view,
    printout,
    warn_of_damage,
)
from .render import Cell, Style, json_line, table, terminal_width

_HEADER = ("TIME", "SEQ", "TURN", "TOOL", "STATUS", "RAN", "MS", "SUMMARY")
_STYLES = {
    Status.OK: Style.GOOD,
    Status.REPLAYED: Style.GOOD,
    Status.ERROR: Style.BAD,
    Status.UNKNOWN: Style.BAD,
}
_BATCH = 1000
"""Rows whose columns are aligned together."""


_MOST = 10**12
"""No store holds more commits."""


@click.command("log")
@click.argument("session", required=False)
@click.option("--last", type=click.IntRange(1, _MOST), metavar="N", help="The newest N attempts.")
@click.option(
    "--after", type=click.IntRange(0, _MOST), metavar="SEQ", help="All after this commit."
)
@click.option("--before", type=click.IntRange(0, _MOST), metavar="SEQ", help="The last before it.")
@click.option("--around", type=click.IntRange(0, _MOST), metavar="SEQ", help="What surrounds it.")
@click.option("--turns", type=TurnRange(), metavar="A..B", help="Turns; -5.. is the last five.")
@click.option(
    "--tool",
    default="",
    metavar="GLOB",
    help="Tools whose name matches; with a / also SERVER/TOOL.",
)
@click.option("--server", default="", metavar="NAME", help="One upstream.")
@click.option("--error", default="", metavar="FAMILY", help="Attempts that failed like this.")
@click.option("--kind", default="", metavar="KIND", help="Attempts of this error kind.")
@click.option("--flag", default="", metavar="FLAG", help="Attempts that carry the flag.")
@click.option("--since", type=Moment(), metavar="TIME", help="From: 10m, a date, RFC 3339.")
@click.option("--until", type=Moment(end=True), metavar="TIME", help="Up to and including.")
@data_option
@json_option
def command(session: str | None, data: str, as_json: bool, **wanted: Any) -> None:
    """List attempts, the newest last; the last 50 unless a range is named.

    SESSION is an id, the beginning of one, or a name. --after, --before, --around and --turns
    need one, unless the store holds only one session. --last says how many, also with --before
    and --around.
    """
    _check(wanted)
    with printout() as write, open_view(data) as view:
        rows = log.read(view, _query(view, session, wanted))
        lines = map(json_line, rows) if as_json else _text(rows, with_session=session is None)
        for line in lines:
            write(line)
        warn_of_damage(view)


def _check(wanted: dict[str, Any]) -> None:
    ranges = [name for name in ("after", "before", "around") if wanted[name] is not None]
    if len(ranges) > 1:
        raise click.UsageError(f"--{ranges[0]} and --{ranges[1]} exclude each other, give one")
    if wanted["after"] is not None and wanted["last"] is not None:
        raise click.UsageError("--after gives all that follows, leave out --last")
    _check_word("flag", wanted["flag"], Flag)
    _check_word("error family", wanted["error"], ErrorFamily)
    _check_word("error kind", wanted["kind"], ErrorKind)


def _check_word(what: str, word: str, words: type[StrEnum]) -> None:
    """Refuse a word that stands in no record: its filter would find nothing for ever."""
    if word and word not in set(words):
        close = get_close_matches(word, list(words), n=1)
        hint = f"did you mean {str(close[0])!r}?" if close else "the reference lists them"
        raise click.UsageError(f"no {what} is called {word!r}, {hint}")


def _query(view: View, name: str | None, wanted: dict[str, Any]) -> Query:
    session = log.find_session(view, name) if name is not None else None
    turns: Turns = wanted["turns"] or Turns()
    ranged = [n for n in ("after", "before", "around", "turns") if wanted[n] is not None]
    if ranged and session is None:
        session = log.only_session(view)
        if session is None:
            raise click.UsageError(f"--{ranged[0]} needs a SESSION, `turnlog sessions` lists them")
    open_ended = any(wanted[n] is not None for n in ("after", "turns", "since", "until"))
    names = ("after", "before", "tool", "server", "error", "kind", "flag", "since", "until")
    return Query(
        session=session,
        last=wanted["last"] or (None if open_ended else DEFAULT_LAST),
        around=wanted["around"],
        turns=turns,
        match=Filter(**{name: wanted[name] for name in names}),
    )


def _text(rows: Iterable[Row], *, with_session: bool) -> Iterator[str]:
    """Yield lines; columns are aligned batch by batch, so that any number of rows fits in memory."""
    names = ("SESSION", *_HEADER) if with_session else _HEADER
    rows = iter(rows)
    skip = 0
    while batch := list(islice(rows, _BATCH)):
        cells = [_cells(row, with_session) for row in batch]
        yield from table(names, cells, width=terminal_width())[skip:]
        skip = 1
    if not skip:
        yield "no attempts"


def _cells(row: Row, with_session: bool) -> list[Cell]:
    cells = [
        Cell(row.timestamp[:23].replace("T", " "), Style.FAINT),
        Cell(str(row.seq)),
        Cell(f"{row.turn}.{row.step}"),
        Cell(f"{row.server}/{row.tool}"),
        Cell(_status(row), _STYLES.get(row.status, Style.OPEN)),
        Cell(row.executed, Style.OPEN if row.executed is Executed.MAYBE else None),
        Cell("" if row.duration_ms is None else f"{row.duration_ms:.0f}"),
        Cell(_summary(row)),
    ]
    return [Cell(row.session[:13]), *cells] if with_session else cells


def _status(row: Row) -> str:
    return row.kind or row.error or row.status


def _summary(row: Row) -> str:
    flags = " ".join(f"[{flag}]" for flag in row.flags)
    again = f"(attempt {row.attempt}) " if row.attempt > 1 else ""
    return f"{again}{row.output_summary} {flags}".strip()
