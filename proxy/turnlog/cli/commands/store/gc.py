"""`turnlog gc`: delete what has outlived its retention, or show what would be deleted."""

import time
from collections.abc import Iterable, Iterator
from functools import partial

import click

from turnlog.cli.attempts import time_cell
from turnlog.cli.options import WrittenStore, json_option, open_view, printout, writing_options
from turnlog.cli.render import Cell, Column, ProgressLine, Style, json_line, table
from turnlog.core.text.units import counted, human_size
from turnlog.observe.clock import Clock
from turnlog.sessions.retention.ages import Retention, noted_retention
from turnlog.sessions.retention.collect import Collector
from turnlog.sessions.retention.gc import (
    Expired,
    GcFate,
    GcItem,
    GcLine,
    due_lines,
    expired,
    purge_line,
)
from turnlog.sessions.retention.purge import Purger
from turnlog.sessions.state.state_at import saved_states
from turnlog.store import blobs
from turnlog.store.compact_copy import is_pending, replace_log
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.held_content import HeldContent

_COLUMNS = (
    Column("WHAT"),
    Column("NAME", whole=True),
    Column("SINCE", whole=True, is_time=True, spare=1),
    Column("UNTIL", whole=True, is_time=True),
    Column("SIZE", whole=True),
    Column("COMMITS", whole=True),
    Column("FATE", whole=True),
)


@click.command("gc")
@click.option("--yes", is_flag=True, help="Delete it; without this nothing is changed.")
@writing_options
@json_option
def command(yes: bool, target: WrittenStore, as_json: bool) -> None:
    """Show what has outlived its `retention`, or delete it with --yes.

    A running proxy does the same by itself while it has little to do. Without --config the ages are
    those of the proxy that opened the store last. Calls stay in the log. What a session under a hold
    (`turnlog sessions hold`) uses is kept. Works beside running proxies.
    """
    folder, (retention, origin) = target.folder, _retention(target)
    with open_view(folder) as view, ProgressLine() as progress:
        due = progress.during(
            "looking for what is due",
            lambda: expired(view, retention, time.time_ns(), HeldContent()),
        )
        purges = view.purges()
    lines = due_lines(due, purges)
    if yes and (purges or any(not one.held for one in due)):
        lines = _collect(target, due, purges)
    elif yes:
        blobs.sweep(folder / "blobs")  # what a process that was killed has left
    with printout() as write:
        for line in map(json_line, lines) if as_json else _text(lines):
            write(line)
        if not as_json:
            write(f"by retention {retention.text()} ({origin})")


def _retention(target: WrittenStore) -> tuple[Retention, str]:
    """Return the retention, and where it comes from."""
    from turnlog.settings.layers import Flags, config_file, is_set

    configured = target.settings.retention
    if config_file(Flags(config=target.config)) is not None or is_set("retention"):
        return configured, "configured"
    noted = noted_retention(target.folder)
    return noted or configured, "of the proxy" if noted else "defaults"


def _collect(target: WrittenStore, due: list[Expired], purges: dict[bytes, bool]) -> list[GcLine]:
    data = target.folder
    lines = [one.line(GcFate.HELD) for one in due if one.held and one.has_content]
    with ProgressLine() as progress:
        on_step = progress.showing("deleting")

        async def collect(store: LmdbStore) -> list[GcLine]:
            collector = Collector(store, saved_states(data), Clock(), on_step=on_step)
            for session in (session for session, is_erased in purges.items() if not is_erased):
                await Purger(collector).go_on(session)
            return [line async for line in collector.collect(due)]

        lines += target.write(collect)
        if purges:
            progress.during("rewriting the log", partial(replace_log, data))
    fate = GcFate.PENDING if is_pending(data) else GcFate.DELETED
    lines += [purge_line(session, fate) for session in purges]
    return sorted(lines, key=lambda line: (line.what, line.since, line.name))


def _text(lines: list[GcLine]) -> Iterator[str]:
    yield from table(_COLUMNS, map(_cells, lines), empty="nothing is due")
    yield from _sum(lines)


def _sum(lines: Iterable[GcLine]) -> Iterator[str]:
    for fate, text in ((GcFate.DUE, "due, --yes deletes it"), (GcFate.DELETED, "deleted")):
        found = [line for line in lines if line.fate is fate]
        if found:
            size, commits = sum(one.bytes for one in found), sum(one.commits for one in found)
            parts = [human_size(size)] if size else []
            parts += [f"content of {counted(commits, 'commit')}"] if commits else []
            purges = sum(one.what is GcItem.PURGE for one in found)
            parts += [f"the rest of {counted(purges, 'purged session')}"] if purges else []
            yield f"{', '.join(parts)} {text}"


def _cells(line: GcLine) -> list[Cell]:
    return [
        Cell(line.what),
        Cell(f"{line.name} {line.server}".rstrip()),
        time_cell(line.since) if line.since else Cell(""),
        time_cell(line.until) if line.until else Cell(""),
        Cell(human_size(line.bytes) if line.bytes else ""),
        Cell(str(line.commits or "")),
        Cell(line.fate, Style.OPEN if line.fate is GcFate.HELD else None),
    ]
