"""`turnlog tail`: print attempts as they end."""

import signal
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import click

from turnlog.cli.attempts import COLUMNS, cells
from turnlog.cli.failures import FINE, complain
from turnlog.cli.filters import MOST, filter_of, filter_options, refuse_empty
from turnlog.cli.options import Number, data_option, json_option, warn_of_damage
from turnlog.cli.render import Cell, Style, aligned, json_line, terminal_width
from turnlog.cli.stream import pause, write_now
from turnlog.sessions.follow import FollowQuery, News, follow
from turnlog.store.base import Reader

_WIDTHS = (13, 23, 4, 4, 20, 11, 5, 5, 24, 0)
"""Columns of the terminal for each: what most attempts need, as those to come are not known."""
_NARROW = 120
"""Columns of a terminal below which the date, TURN, RAN and MS make room for INPUT and SUMMARY."""
_NARROWER = 100
_CLOCK = slice(11, 19)
_CLOCK_WIDTH = 8
_TIME = 1
_TOOL = 4
_INPUT = 8
_SUMMARY = 9
_KEPT = (0, _TIME, 2, _TOOL, 5, _INPUT, _SUMMARY)
"""Columns that stay where the terminal is narrow; below `_NARROWER` without INPUT."""
_PAUSE = 0.15
"""s between two looks: soon enough for people, and an idle machine does not notice."""


@click.command("tail")
@click.option("--session", metavar="SESSION", help="An id, its beginning, or a name.")
@filter_options
@click.option("--last", type=Number(0, MOST), default=0, metavar="N", help="The newest N first.")
@data_option
@json_option
def command(session: str | None, last: int, data: str, as_json: bool, **wanted: Any) -> int:
    """Print each attempt of all running proxies when its outcome is known, until Ctrl-C.

    Nothing of the past is printed unless --last asks for it. An outcome that comes late is a line
    more. There need be no proxy, store or session yet: tail waits for them.

    \b
    turnlog tail --tool 'files/write_*'
    turnlog tail --json --error timeout | jq .call
    """
    refuse_empty("session", session)
    match = filter_of(wanted)
    follower = follow(
        lambda: _open(data), FollowQuery(session=session or "", last=last, match=match)
    )
    # A shell that starts it in the background may have had it ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with closing(follower) as looks:
            _print(looks, as_json=as_json)
    except KeyboardInterrupt:
        # That is how it is meant to end.
        return FINE
    return FINE


def _open(data: str) -> Reader:
    from turnlog.store.lmdb import LmdbReader

    return LmdbReader.open(Path(data).expanduser())


def _print(looks: Iterator[News], *, as_json: bool) -> None:
    head = [] if as_json else [[Cell(column.head, Style.FAINT) for column in COLUMNS]]
    awaited = ""
    for news in looks:
        if news.awaited and news.awaited != awaited:
            complain(f"waiting: {news.awaited}")
        awaited = news.awaited
        rows = chain(head, map(cells, news.rows))
        write_now(map(json_line, news.rows) if as_json else _text(rows))
        head = []
        warn_of_damage(news)
        if not news.behind:
            pause(_PAUSE)


def _text(rows: Iterable[list[Cell]]) -> list[str]:
    width = terminal_width()
    if width is None or width >= _NARROW:
        return aligned(rows, _WIDTHS, elastic=(_INPUT, _SUMMARY, _TOOL), width=width)
    kept = [at for at in _KEPT if at != _INPUT or width >= _NARROWER]
    least = [_CLOCK_WIDTH if at == _TIME else _WIDTHS[at] for at in kept]
    elastic = [kept.index(at) for at in (_INPUT, _SUMMARY, _TOOL) if at in kept]
    narrow = ([_narrow(line)[at] for at in kept] for line in rows)
    return aligned(narrow, least, elastic=elastic, width=width)


def _narrow(line: list[Cell]) -> list[Cell]:
    """Return a line whose time has no date."""
    time = line[_TIME]
    return [*line[:_TIME], Cell(time.text[_CLOCK] or time.text, time.style), *line[_TIME + 1 :]]
