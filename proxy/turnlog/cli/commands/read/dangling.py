"""`turnlog dangling`: calls of unknown outcome, open calls and undelivered answers."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from turnlog.cli.attempts import naming_cells
from turnlog.cli.failures import complain
from turnlog.cli.options import (
    TIME,
    TIME_HELP,
    all_option,
    data_option,
    json_option,
    reading,
    warn_of_damage,
)
from turnlog.cli.render import Cell, Column, Style, json_line, table
from turnlog.sessions.dangling import Dangling, DanglingFilter, DanglingReason, dangling
from turnlog.sessions.log import find_session
from turnlog.sessions.state.state_at import saved_states, shared_at_head
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

_COLUMNS = (
    Column("SINCE", whole=True, is_time=True),
    Column("SESSION", whole=True, spare=2),
    Column("CALL", whole=True),
    Column("TOOL", cut_last=True),
    Column("STANDING"),
    Column("STATUS", whole=True),
    Column("RAN", whole=True),
    Column("RETRY", whole=True, spare=1),
    Column("INPUT"),
)
_STYLES = {DanglingReason.UNKNOWN: Style.BAD, DanglingReason.UNDELIVERED: Style.BAD}


@click.command("dangling")
@click.argument("session", required=False)
@click.option("--since", type=TIME, metavar="TIME", help=f"From: {TIME_HELP}")
@all_option
@data_option
@json_option
def command(
    session: str | None, since: int | None, with_discarded: bool, data: Path, as_json: bool
) -> None:
    """List calls of unknown outcome, calls still open, and answers that the agent did not get.

    The newest is last. A call is in_flight (a running turnlog waits for it), parked (it waits for more input or for its
    task), unknown (it is not known whether it happened), undelivered (its outcome is recorded,
    but the agent did not get it), or detached (a rewind discarded it, and its outcome came
    afterwards). --json contains the recorded answer if it is whole and nothing
    was redacted. `turnlog resolve` settles an unknown call.
    """
    with reading(data) as (view, write):
        wanted = DanglingFilter(
            session=find_session(view, session) if session is not None else None,
            since=since,
            with_discarded=with_discarded,
            now=time.time_ns(),
        )
        found = dangling(view, wanted)
        for line in map(json_line, found) if as_json else _text(view, found):
            write(line)
        if wanted.session is not None:
            _warn_of_shared(view, saved_states(data), wanted.session)
        warn_of_damage(view.left_out)


def _warn_of_shared(view: View, saved: SavedStates, session: bytes) -> None:
    """Warn that files were changed on another branch as well, if any were."""
    if shared := shared_at_head(view, saved, session):
        names = ", ".join(dict.fromkeys(change.key for change in shared[:5]))
        complain(f"changed on another branch as well: {names}; `turnlog state` says where")


def _text(view: View, found: Iterable[Dangling]) -> Iterator[str]:
    rows = (_cells(view, one) for one in found)
    return table(_COLUMNS, rows, empty="no call dangles")


def _cells(view: View, one: Dangling) -> list[Cell]:
    row = one.row
    return [
        *naming_cells(view, row),
        Cell(one.standing, _STYLES.get(one.standing, Style.OPEN)),
        Cell(row.kind or row.error or row.status),
        Cell(row.executed),
        Cell(row.retry or ""),
        Cell(one.preview),
    ]
