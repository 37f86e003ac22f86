"""`turnlog log`: list attempts, newest last."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from turnlog.cli.attempts import COLUMNS, cells
from turnlog.cli.failures import complain
from turnlog.cli.filters import query_of, query_options, refuse_range
from turnlog.cli.options import data_option, json_option, reading, warn_of_damage
from turnlog.cli.render import Cell, Column, json_line, table
from turnlog.core.state.state_view import StateField
from turnlog.core.text.units import counted
from turnlog.sessions import log
from turnlog.sessions.call_detail import attempt_detail
from turnlog.sessions.log import DEFAULT_LAST, Query
from turnlog.sessions.rows import Row
from turnlog.store.read.view import View

from .show import attempt_text

_NOTES = "only notes do: see `turnlog state`, and `turnlog diff` for the notes that changed it"
_SET_BY = {
    StateField.DECISIONS_MADE: _NOTES,
    StateField.EVICTED_KEYS: _NOTES,
    StateField.FACTS: _NOTES,
    StateField.METADATA: _NOTES,
    StateField.PENDING_ACTIONS: "it lists the open calls: see `turnlog state`",
    StateField.USAGE: "it counts all of them: see `turnlog state`",
}
"""What sets the fields of the state that attempts do not change."""

_LOOKED_AT = 1000
"""Number of newest attempts among which inputs that are gone are counted."""


@click.command("log")
@click.argument("session", required=False)
@query_options
@click.option("--payloads", is_flag=True, help="With whole inputs and outputs, as recorded.")
@data_option
@json_option
def command(session: str | None, payloads: bool, data: Path, as_json: bool, **wanted: Any) -> None:
    """List attempts, newest last; the last 50 unless a range is given.

    The order is that of the log. When several processes write to one store, calls that only read
    may appear slightly later than they happened; TIME is when they began.

    SESSION is an id, the beginning of one, or a name. --after, --before, --around and --turns
    need it unless the store holds only one session. --last limits the number, also with --before
    and --around. With --field or --path the last column shows what was changed, with `?` if that is
    uncertain:

      turnlog log SESSION --turns -5.. --field files_modified
    """
    asked = query_of(wanted)
    with reading(data) as (view, write):
        query = _query(view, session, wanted, asked)
        for line in _lines(view, query, session is None, payloads=payloads, as_json=as_json):
            write(line)
        hint = _missing_rules(view, query, wanted) or _unsearched(view, query)
        warn_of_damage(view.left_out)
    if other := _SET_BY.get(wanted["field"]):
        complain(f"no attempt sets {wanted['field']}, {other}")
    if hint:
        complain(hint)


def _missing_rules(view: View, query: Query, wanted: dict[str, Any]) -> str:
    """Return why no attempt shows changed files, when rules are missing for it."""
    if wanted["field"] != StateField.FILES_MODIFIED and not wanted["path"]:
        return ""
    # Loading the rules parser takes time that most calls of `log` do not need.
    from turnlog.sessions.missing_rules import why_no_changes

    sessions = () if query.session is None else (query.session,)
    return why_no_changes(view, structs.replace(query.match, sessions=sessions))


def _unsearched(view: View, query: Query) -> str:
    """Return how many inputs could not be searched because they are gone; empty for none."""
    if not query.match.input:
        return ""
    match = structs.replace(query.match, input="")
    rows = log.read_rows(view, structs.replace(query, match=match, last=query.last or _LOOKED_AT))
    gone = sum(row.gone is not None for row in rows)
    return (
        f"the inputs of {counted(gone, 'attempt')} are gone and were not searched" if gone else ""
    )


def _lines(
    view: View, query: Query, with_session: bool, *, payloads: bool, as_json: bool
) -> Iterable[str]:
    if not payloads:
        rows = log.read_rows(view, query)
        return map(json_line, rows) if as_json else _text(rows, query, with_session)
    found = log.read_attempts(view, query)
    if as_json:
        return map(json_line, map(log.row_maker(view, query, payloads=True), found))
    return (attempt_text(attempt_detail(view, attempt)) for attempt in found)


def _query(view: View, name: str | None, wanted: dict[str, Any], query: Query) -> Query:
    """Return the query of the session that is named, or of the only one where a range needs one."""
    session = log.find_session(view, name) if name is not None else None
    if session is None and any(
        wanted[n] is not None for n in ("after", "before", "around", "turns")
    ):
        session = log.only_session(view)
        if session is None:
            refuse_range(wanted)
    open_ended = any(wanted[n] is not None for n in ("after", "turns", "since", "until"))
    last = query.last or (None if open_ended else DEFAULT_LAST)
    return structs.replace(query, session=session, last=last)


def _text(rows: Iterable[Row], query: Query, with_session: bool) -> Iterator[str]:
    by_change = bool(query.match.field or query.match.path)
    columns = (*COLUMNS[:-1], Column("CHANGED")) if by_change else COLUMNS
    first = 0 if with_session else 1
    lines = (_cells(row, query)[first:] for row in rows)
    return table(columns[first:], lines, empty="no attempts")


def _cells(row: Row, query: Query) -> list[Cell]:
    found, match = cells(row), query.match
    return [*found[:-1], Cell(_changed(row, query))] if match.field or match.path else found


def _changed(row: Row, query: Query) -> str:
    return "; ".join(
        f"{one.op}{'?' if one.maybe else ''} {one.key}{f' to {one.to}' if one.to else ''}"
        for one in log.changes_of(row, query)
    )
