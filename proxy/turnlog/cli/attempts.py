"""How attempts are shown in tables, and commits named on the command line."""

from collections.abc import Callable

import click

from turnlog.core.kinds import Executed, Status
from turnlog.sessions.log import find_session
from turnlog.sessions.rows import Row
from turnlog.store.read.view import View

from .render import Cell, Column, Style, local_time

COLUMNS = (
    Column("SESSION", whole=True),
    Column("TIME", whole=True, is_time=True),
    Column("SEQ", whole=True),
    Column("TURN", whole=True, spare=3),
    Column("TOOL", cut_last=True),
    Column("STATUS", whole=True),
    Column("RAN", whole=True, spare=2),
    Column("MS", whole=True, spare=4),
    Column("INPUT", spare=1),
    Column("SUMMARY"),
)
"""The columns of `cells`."""
_IDENTIFYING = (13, 18, 23)
"""Lengths to which an id may be shortened: its time, then some of its random part."""
_STYLES = {
    Status.OK: Style.GOOD,
    Status.REPLAYED: Style.GOOD,
    Status.ERROR: Style.BAD,
    Status.UNKNOWN: Style.BAD,
}


_SEQ_DIGITS = 18
"""A seq has 64 bits, so a longer number is not one."""


def named_commit(view: View, text: str) -> tuple[bytes, int]:
    """Return the session and the seq of `SESSION:SEQ`. Raises `NotFoundError` for an unknown session."""
    name, _, seq = text.rpartition(":")
    if not (name and seq.isascii() and seq.isdigit() and len(seq) <= _SEQ_DIGITS):
        raise click.UsageError(f"{text!r} is not a commit, write SESSION:SEQ like 0193a1b2:17")
    return find_session(view, name), int(seq)


def cells(row: Row) -> list[Cell]:
    """Return the cells of an attempt in `log` and `tail`."""
    *outcome, summary = outcome_cells(row)
    return [
        session_cell(row),
        time_cell(row.timestamp, digits=23),
        Cell(str(row.seq)),
        Cell(f"{row.turn}.{row.step}"),
        tool_cell(row),
        *outcome,
        Cell(row.input_summary),
        summary,
    ]


def time_cell(timestamp: str, *, digits: int = 19) -> Cell:
    """Return a time to the second, or cut to `digits`; when narrow, only its short form."""
    text, narrow = local_time(timestamp, digits)
    return Cell(text, Style.FAINT, narrow)


def call_cell(view: View, row: Row) -> Cell:
    """Return the id of a call; when narrow, only the beginning that is unique."""
    return Cell(row.call, narrow=_identifying(row.call, view.find_calls))


def session_id_cell(view: View, session: str) -> Cell:
    """Return the id of a session; when narrow, only the beginning that is unique."""
    return Cell(session, narrow=_identifying(session, view.find_sessions))


def _identifying(text: str, find: Callable[[str], list[bytes]]) -> str:
    beginnings = (text[:count] for count in _IDENTIFYING)
    return next((beginning for beginning in beginnings if len(find(beginning)) == 1), text)


def naming_cells(view: View, row: Row) -> list[Cell]:
    """Return the cells for the time, session, call and tool of an attempt."""
    return [time_cell(row.timestamp), session_cell(row), call_cell(view, row), tool_cell(row)]


def session_cell(row: Row) -> Cell:
    """Return the beginning of the session's id, which commands accept."""
    return Cell(row.session[:13])


def tool_cell(row: Row) -> Cell:
    """Return the called tool as SERVER/TOOL."""
    return Cell(f"{row.server}/{row.tool}")


def outcome_cells(row: Row) -> list[Cell]:
    """Return the cells of an attempt from `STATUS` on, without its input."""
    return [
        Cell(row.kind or row.error or row.status, _STYLES.get(row.status, Style.OPEN)),
        Cell(row.executed, Style.OPEN if row.executed is Executed.MAYBE else None),
        Cell("" if row.duration_ms is None else f"{row.duration_ms:.0f}"),
        Cell(_summary(row)),
    ]


def _summary(row: Row) -> str:
    """Return flags, attempt number and summary."""
    # Flags come first, because a narrow terminal cuts the end.
    discarded = ["discarded"] if row.discarded is True else []
    marks = "".join(f"[{mark}] " for mark in (*discarded, *row.flags))
    again = f"(attempt {row.attempt}) " if row.attempt > 1 else ""
    gone = f"({row.gone}) " if row.gone else ""
    return f"{marks}{again}{gone}{row.output_summary}".strip()
