"""`turnlog tail`: print attempts as they end."""

import os
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import click

from turnlog.cli.attempts import COLUMNS, cells
from turnlog.cli.failures import FINE, PipeClosedError, complain
from turnlog.cli.filters import filter_of, filter_options, refuse_empty
from turnlog.cli.options import SEQ, data_option, json_option, warn_of_damage
from turnlog.cli.render import Cell, Style, aligned, json_line, terminal_width
from turnlog.sessions.follow import FollowQuery, News, follow
from turnlog.store.lmdb import LmdbReader

_WIDTHS = (13, 23, 4, 4, 20, 11, 5, 5, 24, 0)
"""Least width of each column: what most attempts need, since later ones are not known yet."""
_NARROW = 120
"""Terminal width below which the date, TURN, RAN and MS are left out."""
_NARROWER = 100
"""Terminal width below which INPUT is left out as well."""
_CLOCK = slice(11, 19)
_CLOCK_WIDTH = 8
_TIME = 1
_TOOL = 4
_INPUT = 8
_SUMMARY = 9
_KEPT = (0, _TIME, 2, _TOOL, 5, _INPUT, _SUMMARY)
"""The columns that stay on a narrow terminal."""
_POLL = 0.15
"""s between two looks at the store."""


@click.command("tail")
@click.argument("named", nargs=-1, metavar="")
@click.option("--session", metavar="SESSION", help="An id, its beginning, or a name.")
@filter_options
@click.option("--last", type=SEQ, default=0, metavar="N", help="The newest N first.")
@data_option
@json_option
def command(
    named: tuple[str, ...], session: str | None, last: int, data: Path, as_json: bool, **wanted: Any
) -> int:
    """Print each attempt of all running proxies once its outcome is known, until Ctrl-C.

    Past attempts are printed only with --last. A late outcome is printed as another line. The
    proxy, the store and the session need not exist yet: tail waits for them.

    \b
    turnlog tail --tool 'files/write_*'
    turnlog tail --json --error timeout | jq .call
    """
    if named:
        raise click.UsageError(
            f"unexpected extra argument {named[0]!r}, write --session {named[0]}"
        )
    refuse_empty("session", session)
    match = filter_of(wanted)
    follower = follow(
        lambda: _open(data), FollowQuery(session=session or "", last=last, match=match)
    )
    # A shell starts background jobs with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with closing(follower) as looks:
            _print(looks, as_json=as_json)
    except KeyboardInterrupt:
        # Ctrl-C is the normal end.
        return FINE
    return FINE


def _open(data: Path) -> LmdbReader:
    from turnlog.store.lmdb import LmdbReader

    return LmdbReader.open(data)


def _print(looks: Iterator[News], *, as_json: bool) -> None:
    head = [] if as_json else [[Cell(column.head, Style.FAINT) for column in COLUMNS]]
    awaited = ""
    for news in looks:
        if news.awaited and news.awaited != awaited:
            complain(f"waiting: {news.awaited}")
        awaited = news.awaited
        rows = chain(head, map(cells, news.rows))
        _write_now(map(json_line, news.rows) if as_json else _text(rows))
        head = []
        warn_of_damage(news.left_out)
        if not news.behind:
            _pause(_POLL)


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
    """Return a row with the time of day only."""
    time = line[_TIME]
    return [*line[:_TIME], Cell(time.text[_CLOCK] or time.text, time.style), *line[_TIME + 1 :]]


def _write_now(lines: Iterable[str]) -> None:
    """Write lines to stdout without its buffer, so that a signal loses none."""
    text = "".join(f"{line}\n" for line in lines)
    rest = memoryview(text.encode(sys.stdout.encoding, "backslashreplace"))
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]


def _pause(seconds: float) -> None:
    """Wait; raises `PipeClosedError` as soon as stdout has no reader."""
    poll = select.poll()
    # Registered for no event, poll still reports errors: that the other end was closed.
    poll.register(sys.stdout.fileno(), 0)
    if poll.poll(seconds * 1000):
        raise PipeClosedError
