"""`turnlog diff`: changes between two states of a session, two sessions, or the attempts of a call."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import click
from msgspec import UNSET, Struct

from turnlog.cli.options import TURN_RANGE, all_option, data_option, json_option, reading
from turnlog.cli.render import json_line, shown_time
from turnlog.core.answer_diff import Comparison
from turnlog.core.text.terminal import escape_unprintable
from turnlog.core.text.units import counted
from turnlog.sessions.call_detail import AttemptDetail, attempts_of_call, find_call
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.log import TurnRange, find_session
from turnlog.sessions.state.changes import (
    Difference,
    changes_between,
    seq_bounds,
    session_differences,
    turn_bounds,
)
from turnlog.sessions.state.state_at import head_of, saved_states
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

from .show import difference
from .state import described

_SHOWN = 8
"""Number of commits shown for a change; `--json` has all."""


class Compared(Struct, frozen=True, kw_only=True):
    """One line of `turnlog diff --call --json`: an attempt's answer compared with the previous one."""

    call: str
    leg: int
    attempt: int
    seq: int
    kind: str | None
    """The kind of the attempt's error; `null` for none."""
    difference: Comparison | None
    """`null` when one of the two has not ended, or neither got an answer."""


@click.command("diff", context_settings={"ignore_unknown_options": True})
@click.argument("what", nargs=-1, metavar="[SESSION [TURNS | SESSION]]")
@click.option("--seq", metavar="A..B", help="From the state after commit A to that after commit B.")
@click.option(
    "--call", metavar="CALL", help="Compare each attempt of a call with the previous one."
)
@all_option
@data_option
@json_option
def command(
    what: tuple[str, ...],
    seq: str | None,
    call: str | None,
    with_discarded: bool,
    data: Path,
    as_json: bool,
) -> None:
    """Show what changed, by which commits, and the recorded reasons.

    TURNS is A..B: from the state at the end of turn A to that at the end of turn B. A single number
    is that turn alone, -1 the newest. An open beginning is that of the session, an open end is the
    newest state. SESSION alone shows all changes of the session.
    """
    saved = saved_states(data)
    with reading(data) as (view, write):
        if call is not None:
            _refuse(bool(what) or seq is not None, "--call stands alone, a call has one session")
            found = [_compared(a) for a in attempts_of_call(view, find_call(view, call))]
            lines = map(json_line, found[1:]) if as_json else _attempts(found)
        else:
            changes = _changes(view, saved, what, seq, with_discarded)
            lines = map(json_line, changes) if as_json else _text(changes)
        for line in lines:
            write(line)


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise click.UsageError(message)


def _changes(
    view: View,
    saved: SavedStates,
    what: tuple[str, ...],
    seq: str | None,
    with_discarded: bool,
) -> list[Difference]:
    _refuse(not what, "name a SESSION, then turns (4..5), --seq A..B or another SESSION")
    _refuse(len(what) > 2, f"{what[-1]!r} is too much, give SESSION and at most one more argument")
    _refuse(
        len(what) == 2 and seq is not None,
        f"{what[-1]!r} and --seq exclude each other, give one",
    )
    session = find_session(view, what[0])
    if seq is not None:
        before, after = _seqs(view, session, seq)
    elif len(what) == 1:
        before, after = turn_bounds(view, session, TurnRange())
    elif not _is_range(what[1]):
        other = find_session(view, what[1])
        heads = head_of(view, session), head_of(view, other)
        return session_differences(view, saved, session, other, heads)
    else:
        turns = TURN_RANGE.convert(what[1], None, None)
        before, after = turn_bounds(view, session, turns)
    if after < before:
        raise NotFoundError(f"commit {after} comes before {before}, write the older one first")
    return changes_between(view, saved, session, before, after, with_discarded=with_discarded)


def _is_range(text: str) -> bool:
    """Return whether a text is a range of turns and not a session: an id may begin with 0 and digits."""
    return (
        ".." in text or text == "0" or (text.lstrip("-").isdecimal() and not text.startswith("0"))
    )


def _seqs(view: View, session: bytes, text: str) -> tuple[int, int]:
    try:
        return seq_bounds(view, session, text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _compared(attempt: AttemptDetail) -> Compared:
    row = attempt.row
    return Compared(
        call=row.call,
        leg=row.leg,
        attempt=row.attempt,
        seq=row.seq,
        kind=row.kind or row.error,
        difference=attempt.difference,
    )


def _attempts(found: Iterable[Compared]) -> Iterator[str]:
    for item in found:
        ended = f": {item.kind}" if item.kind else ""
        yield escape_unprintable(f"attempt {item.attempt} (leg {item.leg}), seq {item.seq}{ended}")
        if text := difference(item.difference):
            yield text


def _parting(change: Difference) -> str:
    parted = change.parted
    if parted is UNSET:
        return ""
    return f"parted at commit {parted.seq} of {parted.session}, {shown_time(parted.timestamp)}"


def _text(changes: list[Difference]) -> Iterator[str]:
    yield from filter(None, map(_parting, changes[:1]))
    for change in changes:
        named = f"{change.field} {change.key}"
        if not isinstance(change.before or change.after, Struct):
            yield escape_unprintable(f"{named}: {_word(change.before)} -> {_word(change.after)}")
            continue
        yield escape_unprintable(named)
        for sign, value in (("-", change.before), ("+", change.after)):
            if value is not None:
                yield escape_unprintable(f"  {sign} {described(value)}")
        # A call is an intent and an outcome, which say the same.
        for (what, why), commits in groupby(change.commits[-_SHOWN:], lambda by: (by.what, by.why)):
            seqs = ", ".join(str(by.seq) for by in commits)
            yield escape_unprintable(f"    by {seqs} {what}{f': {why}' if why else ''}")
        if (rest := len(change.commits) - _SHOWN) > 0:
            yield f"    and {counted(rest, 'commit')} before"
    if not changes:
        yield "nothing changed"


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return "nothing" if value is None else described(value)
