"""What one attempt looks like to people: the cells that `log` and `tail` share."""

from turnlog.core.kinds import Executed, Status
from turnlog.core.provenance import Provenance
from turnlog.sessions.rows import Row

from .render import Cell, Style

OUTCOME = ("STATUS", "RAN", "MS", "SUMMARY")
"""Heads of the columns that `outcome_cells` fills."""
_STYLES = {
    Status.OK: Style.GOOD,
    Status.REPLAYED: Style.GOOD,
    Status.ERROR: Style.BAD,
    Status.UNKNOWN: Style.BAD,
}


def session_cell(row: Row) -> Cell:
    """Return the beginning of the session's id, by which commands find it."""
    return Cell(row.session[:13])


def tool_cell(row: Row) -> Cell:
    """Return which tool of which server was called."""
    return Cell(f"{row.server}/{row.tool}")


def outcome_cells(row: Row) -> list[Cell]:
    """Return what came of the attempt."""
    return [
        Cell(row.kind or row.error or row.status, _STYLES.get(row.status, Style.OPEN)),
        Cell(row.executed, Style.OPEN if row.executed is Executed.MAYBE else None),
        Cell("" if row.duration_ms is None else f"{row.duration_ms:.0f}"),
        Cell(_summary(row)),
    ]


def _summary(row: Row) -> str:
    """Return what is marked first: the end of the line is cut where the terminal is too narrow."""
    pinned = [row.provenance] if row.provenance == Provenance.PINNED else []
    marks = "".join(f"[{mark}] " for mark in (*row.flags, *pinned))
    again = f"(attempt {row.attempt}) " if row.attempt > 1 else ""
    return f"{marks}{again}{row.output_summary}".strip()
