"""`turnlog status`: contents and free space of the store, its writers, and pending calls."""

import time
from pathlib import Path

import click

from turnlog.cli.attempts import naming_cells
from turnlog.cli.options import data_option, json_option, reading
from turnlog.cli.render import Cell, Column, Style, json_line, shown_time, table
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted, human_size, timestamp
from turnlog.sessions.dangling import count_dangling
from turnlog.sessions.overview import (
    ServerHealth,
    StoreStatus,
    StoreWriter,
    pending_calls,
    read_health,
    store_writers,
)
from turnlog.sessions.rows import Row
from turnlog.store.base import Usage
from turnlog.store.log.translate_errors import translated
from turnlog.store.quota import Quota
from turnlog.store.read.view import View

_COLUMNS = (
    Column("SINCE", whole=True, is_time=True),
    Column("SESSION", whole=True, spare=1),
    Column("CALL", whole=True),
    Column("TOOL", cut_last=True),
    Column("STATUS", whole=True),
    Column("EFFECT"),
)
_NO_LIMIT = 1 << 62


@click.command("status")
@data_option
@json_option
def command(data: Path, as_json: bool) -> None:
    """Show the contents and free space of the store, who writes to it, and pending calls.

    Pending calls have the status pending, input_required, accepted or unknown. Dangling calls are
    those, and others whose agent has no answer.
    """
    with reading(data) as (view, write):
        running, usage = store_writers(view, data), view.usage()
        with translated("measure", data):
            room = Quota(data, usage.limit or _NO_LIMIT)
            left, reserve = room.look(), room.reserve
        status = StoreStatus(
            data=str(data.absolute()),
            usage=usage,
            room=left,
            reserve=reserve,
            writers=running,
            pending=list(pending_calls(view)),
            dangling=count_dangling(view, time.time_ns()),
            servers=list(read_health(data, [one.epoch for one in running])),
        )
        write(json_line(status) if as_json else _text(view, status))


def _text(view: View, status: StoreStatus) -> str:
    usage = status.usage
    lines = [
        f"store       {escape_unprintable(status.data)}",
        f"holds       {counted(usage.commits, 'commit')} in {counted(usage.sessions, 'session')}",
        f"log         {human_size(usage.log_bytes)}",
        f"payloads    {human_size(usage.blob_bytes)}",
        f"states      {human_size(usage.state_bytes)}",
        f"limit       {_limit(usage)}",
        f"disk free   {human_size(usage.disk_free)}",
        f"room        {_room(status)}",
        *([f"key         {_rekeyed(usage.rekeyed_at)}"] if usage.rekeyed_at else []),
        f"proxies     {_writers(status.writers)}",
        *(f"server      {_health(one)}" for one in status.servers),
        f"pending     {len(status.pending)}",
        f"dangling    {_dangling(status)}",
    ]
    if status.pending:
        rows = [_pending(view, row) for row in status.pending]
        lines += ["", *table(_COLUMNS, rows)]
    return "\n".join(lines)


def _pending(view: View, row: Row) -> list[Cell]:
    return [
        *naming_cells(view, row),
        Cell(row.status, Style.OPEN),
        Cell(row.effect),
    ]


def _dangling(status: StoreStatus) -> str:
    found = [f"{number} {standing}" for standing, number in status.dangling.items()]
    return f"{', '.join(found)} (`turnlog dangling` lists them)" if found else "0"


def _rekeyed(at: int) -> str:
    return f"another since {shown_time(timestamp(at), 19)}: digests from before match nothing (see `store.rekeyed`)"


def _limit(usage: Usage) -> str:
    if not usage.limit:
        return "none"
    used = usage.log_bytes + usage.blob_bytes + usage.state_bytes
    return f"{human_size(usage.limit)} ({100 * used / usage.limit:.0f} % used)"


def _room(status: StoreStatus) -> str:
    kept = f"{human_size(status.reserve)} are kept for outcomes"
    if status.room:
        return f"{human_size(status.room)} until calls are refused ({kept})"
    return f"none: calls are refused ({kept}); raise limits.store, or free space on the disk"


def _writers(running: list[StoreWriter]) -> str:
    said = (
        f"{f'pid {w.pid}' if w.pid else 'pid not known here'} (epoch {w.epoch})" for w in running
    )
    return ", ".join(said) or "none running"


def _health(one: ServerHealth) -> str:
    """Return one line about the health of a server."""
    if one.missing:
        return f"{escape_unprintable(one.server)}: there is no program {escape_unprintable(repr(one.missing))}"
    said = f"{escape_unprintable(one.server)}: circuit {one.state.value.replace('_', ' ')}"
    if one.since:
        said += f" since {shown_time(timestamp(one.since), 19)}"
    if one.until:
        said += f", until {shown_time(timestamp(one.until), 19)}"
    if one.retries_refused:
        said += f"; retries refused: {one.retries_refused}"
    if one.uncovered_callers:
        told = counted(one.uncovered_callers, "caller")
        said += f"; never-twice does not hold for {told} (see `session.uncovered`)"
    return said
