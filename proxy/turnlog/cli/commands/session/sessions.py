"""`turnlog sessions`: list sessions, the most recently active first, or change one."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from turnlog.cli.attempts import session_id_cell, time_cell
from turnlog.cli.failures import SuggestingGroup
from turnlog.cli.options import (
    WrittenStore,
    data_option,
    fence_option,
    json_option,
    open_view,
    printout,
    reading,
    why_option,
    writing_options,
)
from turnlog.cli.render import Cell, Column, Style, json_line, local_time, table
from turnlog.core import ids
from turnlog.core.kinds import NoteKind
from turnlog.core.lifecycle import SessionStage
from turnlog.core.text.units import timestamp
from turnlog.observe.clock import Clock
from turnlog.packs.errors import did_you_mean
from turnlog.sessions.control.writer import Lease
from turnlog.sessions.log import find_session
from turnlog.sessions.notes import NoteWriter, written_note
from turnlog.sessions.overview import SessionLine, list_sessions
from turnlog.store.read.view import View

from .change import COMMANDS

_COLUMNS = (
    Column("SESSION", whole=True),
    Column("STAGE", whole=True, spare=1),
    Column("NAMED BY", spare=2),
    Column("OPENED", whole=True, is_time=True, spare=4),
    Column("ACTIVE", whole=True, is_time=True),
    Column("TURNS", whole=True),
    Column("COMMITS", whole=True, spare=1),
    Column("OPEN", whole=True),
    Column("HELD", spare=6),
    Column("LEASE", spare=5),
    Column("NAMES"),
    Column("CLIENT", spare=3),
)


_PUT_AWAY: Final = frozenset({SessionStage.ARCHIVED, SessionStage.PURGED})


class _Sessions(SuggestingGroup):
    """A group that explains what to write when a session is given instead of a command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not did_you_mean(args[0], self.commands):
            session = next((arg for arg in args[1:] if not arg.startswith("-")), args[0])
            raise click.UsageError(
                f"no such command {args[0]!r}, `turnlog sessions` lists all; of one session write "
                f"`turnlog log {session}` or `turnlog state {session}`",
                ctx,
            )
        return super().resolve_command(ctx, args)


_all_option = click.option(
    "--all", "with_archived", is_flag=True, help="Also archived ones; --json always lists them."
)


@click.group("sessions", cls=_Sessions, invoke_without_command=True)
@_all_option
@data_option
@json_option
@click.pass_context
def command(ctx: click.Context, data: Path, as_json: bool, with_archived: bool) -> None:
    """List sessions, the most recently active first, or change one.

    The lines of --json contain each session's newest seq and hash; kept elsewhere, they are anchors
    for `turnlog verify --anchor`.
    """
    if ctx.invoked_subcommand is None:
        _list(data, as_json, with_archived)


@command.command("list")
@_all_option
@data_option
@json_option
@click.pass_context
def list_(ctx: click.Context, data: Path, as_json: bool, with_archived: bool) -> None:
    """List sessions, the most recently active first."""
    before = ctx.parent.params if ctx.parent else {}
    # `turnlog sessions --data DIR list` means the same as `turnlog sessions list --data DIR`.
    given_here = ctx.get_parameter_source("data") is ParameterSource.COMMANDLINE
    _list(
        data if given_here else before["data"],
        as_json or before["as_json"],
        with_archived or before["with_archived"],
    )


@command.command("hold")
@click.argument("session")
@why_option
@fence_option
@writing_options
@json_option
def hold(**given: Any) -> None:
    """Keep the content of SESSION, whatever its age, until it is released.

    Neither retention nor a lack of room deletes it, and `turnlog purge` refuses it.
    """
    _change_hold(NoteKind.HOLD, **given)


@command.command("release")
@click.argument("session")
@why_option
@fence_option
@writing_options
@json_option
def release(**given: Any) -> None:
    """End the hold of SESSION: its content can be deleted again."""
    _change_hold(NoteKind.RELEASE, **given)


def _change_hold(
    kind: NoteKind, session: str, why: str, fence: int | None, target: WrittenStore, as_json: bool
) -> None:
    with open_view(target.folder) as view:
        find_session(view, session)
    commit = target.write(
        lambda store: NoteWriter(store, target.redactor, Clock()).change_hold(
            session, kind, why, fence
        )
    )
    said = commit.body.summary if commit.body else ""
    with printout() as write:
        text = f"session {ids.to_text(commit.link.session)}: {said}"
        write(json_line(written_note(commit)) if as_json else text)


for _change in COMMANDS:
    command.add_command(_change)


def _list(data: Path, as_json: bool, with_archived: bool) -> None:
    with reading(data) as (view, write):
        found = list_sessions(view)
        lines = (line for line in found if with_archived or as_json or line.stage not in _PUT_AWAY)
        for line in map(json_line, lines) if as_json else _text(view, lines):
            write(line)


def _text(view: View, lines: Iterable[SessionLine]) -> Iterator[str]:
    return table(_COLUMNS, (_cells(view, line) for line in lines))


def _cells(view: View, line: SessionLine) -> list[Cell]:
    return [
        session_id_cell(view, line.session),
        Cell(line.stage),
        Cell(_named_by(line)),
        time_cell(line.opened_at),
        time_cell(line.active_at),
        Cell(str(line.turn)),
        Cell(str(line.seq + 1)),
        Cell(str(line.in_flight or ""), Style.OPEN),
        Cell("held" if line.held else ""),
        _lease_cell(line.lease),
        Cell(", ".join(line.names)),
        Cell(line.metadata.get("client", "")),
    ]


def _lease_cell(lease: Lease | None) -> Cell:
    """Return who holds a session and until when; empty when its lease has ended."""
    if lease is None or lease.until <= timestamp(time.time_ns()):
        return Cell("")
    whole, short = local_time(lease.until, 19)
    holder = lease.holder or f"lease {lease.fence}"
    return Cell(f"{holder} until {whole}", narrow=f"{holder} until {short}")


def _named_by(line: SessionLine) -> str:
    """Return what named a session, and the confidence that it is one conversation."""
    confidence = line.metadata.get("confidence", "")
    return f"{line.named_by} ({confidence})" if confidence else line.named_by
