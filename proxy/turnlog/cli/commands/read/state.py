"""`turnlog state`: the state of a session, now or at any commit."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from turnlog.cli.options import (
    FIELD,
    SEQ,
    TURN,
    all_option,
    data_option,
    json_option,
    reading,
)
from turnlog.cli.render import Style, json_line, painted, shown_time
from turnlog.core.kinds import Effect, ErrorFamily
from turnlog.core.state.files import FileChange
from turnlog.core.state.session_state import DecisionMade, Evicted, FactHeld, SessionTaint, ToolUse
from turnlog.core.state.state_view import PendingAction, StateField
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted
from turnlog.sessions.log import find_session
from turnlog.sessions.state.state_at import (
    EvictedKey,
    SessionState,
    read_state,
    saved_states,
    seq_at,
)


@click.command("state")
@click.argument("session")
@click.option("--at", type=SEQ, metavar="SEQ", help="After this commit.")
@click.option("--turn", type=TURN, metavar="N", help="At the end of this turn; -1 is the newest.")
@click.option("--field", type=FIELD, metavar="NAME", help="Only this field.")
@all_option
@data_option
@json_option
def command(
    session: str,
    at: int | None,
    turn: int | None,
    field: StateField | None,
    with_discarded: bool,
    data: Path,
    as_json: bool,
) -> None:
    """Show the state of a session: tools, files, decisions, pending calls, facts.

    SESSION is an id, the beginning of one, or a name. Without --at or --turn the newest state is
    shown. `?` marks what may have happened.
    """
    if at is not None and turn is not None:
        raise click.UsageError("--at and --turn exclude each other, give one")
    saved = saved_states(data)
    with reading(data) as (view, write):
        found = find_session(view, session)
        fields = tuple(StateField) if field is None else (field,)
        seq = seq_at(view, found, at, turn)
        state = read_state(view, saved, found, seq, fields, with_discarded=with_discarded)
        for line in [json_line(state)] if as_json else _text(state, alone=field is not None):
            write(line)


def _text(state: SessionState, *, alone: bool) -> list[str]:
    at = state.at
    head = f"{at.session} after commit {at.seq}, turn {at.turn} ({at.turn_source}), {shown_time(at.timestamp)}"
    lines = [] if alone else [head, f"state {state.state_hash}"]
    lines += [] if alone else branch_lines(state)
    if state.bodies_gone:
        lines.append(f"{counted(state.bodies_gone, 'commit')} left out: their content was deleted")
    for field, entries in state.state.items():
        if entries or alone:
            lines.append(painted(field, Style.FAINT))
            lines += [
                escape_unprintable(f"  {key}  {described(value)}") for key, value in entries.items()
            ] or ["  nothing"]
    return lines


_GROUPS = {"stands": "standing", "idempotent": "repeatable", "no_effect": "without effect"}
"""Words for groups of discarded calls that are no adjectives."""


def branch_lines(state: SessionState) -> list[str]:
    """Return what rewinds discarded and did not undo, and what other branches have changed as well."""
    return [escape_unprintable(line) for line in _branches(state)]


def _branches(state: SessionState) -> Iterator[str]:
    for made in state.rewinds:
        counts = ", ".join(
            f"{count} {_GROUPS.get(group, group)}" for group, count in made.groups.items() if count
        )
        why = f" because {made.why}" if made.why else ""
        said = f"to commit {made.target} by commit {made.seq}{why}"
        yield f"rewound {said}; discarded: {counts or 'no call'}; nothing outside was undone"
        for what, calls in (("stands", made.standing), ("kept", made.kept)):
            for one in calls:
                unknown = ", effect unknown" if one.effect is Effect.UNKNOWN else ""
                yield f"  {what}: {one.seq} {one.server}/{one.tool} {one.preview}{unknown}"
    for change in state.shared:
        there = f"at commit {change.other_seq} of {change.session}"
        yield f"changed on two branches: {change.key}, at commit {change.seq} here and {there}"
    for late in state.detached:
        said = (
            f"{late.began} {late.server}/{late.tool} ended {late.status}, executed {late.executed}"
        )
        yield f"detached: {said}, seq {late.seq}"


def described(value: object) -> str:
    """Return one line that describes an entry of the state."""
    describe = _DESCRIBED.get(type(value), str)
    return describe(value)


def _pending(call: PendingAction) -> str:
    since = shown_time(call.since)
    return f"{call.status}: {call.tool}, turn {call.turn}, seq {call.seq}, since {since}"


def _evicted(gone: Evicted) -> str:
    return f"{gone.reason}, seq {gone.seq}"


def _evicted_key(gone: EvictedKey) -> str:
    back = "can be recalled" if gone.retrievable else "not in the log"
    return f"{gone.reason}, seq {gone.seq}, {back}"


def _taint(label: SessionTaint) -> str:
    commits = "commit" if len(label.by) == 1 else "commits"
    return f"since commit {label.since}, found in {commits} {', '.join(map(str, label.by))}"


def _untainted(_: None) -> str:
    return "no contamination found so far"


def _tool(used: ToolUse) -> str:
    # The error family `unknown` is not the status `unknown`: such a call is safe to repeat.
    failed = [
        (count, "error unknown" if family == ErrorFamily.UNKNOWN else family)
        for family, count in used.errors.items()
    ]
    ended = [(used.ok, "ok"), *failed, (used.unknown, "unknown"), (used.replayed, "replayed")]
    words = [f"{count} {word}" for count, word in ended if count]
    again = used.attempts - used.calls
    words += [f"{counted(again, 'attempt')} more"] if again else []
    return ", ".join([counted(used.calls, "call"), *words, f"last seq {used.last_seq}"])


def _file(file: FileChange) -> str:
    turns = _span(file.first_turn, file.last_turn)
    seqs = _span(file.first_seq, file.last_seq)
    names = (f" from {file.origin}" if file.origin else "") + (f" to {file.to}" if file.to else "")
    mark = "?" if file.maybe else ""
    return f"{file.op}{mark}{names}, turn {turns}, seq {seqs}, {file.evidence or 'recorded'}"


def _decision(made: DecisionMade) -> str:
    why = f" because {made.why}" if made.why else ""
    gone = f", superseded by {made.superseded_by}" if made.superseded_by else ""
    return f"{made.text}{why}, seq {made.seq}{gone}"


def _fact(fact: FactHeld) -> str:
    said = f"{fact.subject} = {fact.value}" if fact.subject or fact.value else "unsaid"
    holds = f", holds {fact.validity}" if fact.validity else ""
    return f"{fact.status}: {said}{holds}, seq {', '.join(map(str, fact.sources))}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


_DESCRIBED: Final[Mapping[type, Callable[[Any], str]]] = {
    ToolUse: _tool,
    FileChange: _file,
    DecisionMade: _decision,
    PendingAction: _pending,
    Evicted: _evicted,
    EvictedKey: _evicted_key,
    FactHeld: _fact,
    SessionTaint: _taint,
    type(None): _untainted,
}
