"""`turnlog state`: what a session's commits come to, now or at any of them."""

from pathlib import Path

import click

from turnlog.cli.filters import MOST
from turnlog.cli.options import (
    FieldName,
    Number,
    TurnType,
    data_option,
    json_option,
    open_view,
    printout,
)
from turnlog.cli.render import Style, json_line, painted
from turnlog.cli.values import described
from turnlog.core.state.state_view import StateField
from turnlog.core.text.terminal import escape_unprintable
from turnlog.sessions.log import find_session
from turnlog.sessions.state.state_at import (
    SessionState,
    end_of_turn,
    head_of,
    read_state,
    saved_states,
)
from turnlog.store.base import View


@click.command("state")
@click.argument("session")
@click.option("--at", type=Number(0, MOST), metavar="SEQ", help="After this commit.")
@click.option(
    "--turn", type=TurnType(), metavar="N", help="At the end of this turn; -1 is the newest."
)
@click.option("--field", type=FieldName(), metavar="NAME", help="Only this field.")
@data_option
@json_option
def command(
    session: str,
    at: int | None,
    turn: int | None,
    field: StateField | None,
    data: str,
    as_json: bool,
) -> None:
    """Show what a session has come to: tools, files, decisions, pending calls, facts.

    SESSION is an id, the beginning of one, or a name. Without --at or --turn it is the newest
    state. `?` marks what may have happened.
    """
    if at is not None and turn is not None:
        raise click.UsageError("--at and --turn exclude each other, give one")
    saved = saved_states(Path(data).expanduser())
    with printout() as write, open_view(data) as view:
        found = find_session(view, session)
        fields = tuple(StateField) if field is None else (field,)
        state = read_state(view, saved, found, _seq(view, found, at, turn), fields)
        for line in [json_line(state)] if as_json else _text(state, alone=field is not None):
            write(line)


def _seq(view: View, session: bytes, at: int | None, turn: int | None) -> int:
    if at is not None:
        return at
    return head_of(view, session) if turn is None else end_of_turn(view, session, turn)


def _text(state: SessionState, *, alone: bool) -> list[str]:
    at = state.at
    head = f"{at.session} after commit {at.seq}, turn {at.turn} ({at.turn_source}), {at.timestamp}"
    lines = [] if alone else [head, f"state {state.state_hash}"]
    if state.bodies_gone:
        lines.append(f"without what {state.bodies_gone} commits said, whose content was dropped")
    for field, entries in state.state.items():
        if entries or alone:
            lines.append(painted(field, Style.FAINT))
            lines += [f"  {_entry(key, value)}" for key, value in entries.items()] or ["  nothing"]
    return lines


def _entry(key: str, value: object) -> str:
    return escape_unprintable(f"{key}  {described(value)}")
