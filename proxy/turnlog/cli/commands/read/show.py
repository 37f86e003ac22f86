"""`turnlog show`: one call with all its attempts, or one commit."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from turnlog.cli.attempts import named_commit
from turnlog.cli.options import data_option, json_option, reading
from turnlog.cli.render import clean_lines, json_line, shown_time
from turnlog.core.answer_diff import Comparison
from turnlog.core.kinds import Actor, CommitKind, ValueOrigin
from turnlog.core.operation import TOOLS_USED, Operation
from turnlog.core.text.terminal import escape_unprintable
from turnlog.sessions.call_detail import (
    AttemptDetail,
    CommitEntry,
    attempts_of_call,
    commit_entry,
    find_call,
    with_pin_changes,
)
from turnlog.sessions.errors import NotFoundError
from turnlog.sessions.lineage.inputs import InputOrigin
from turnlog.sessions.overview import names_of
from turnlog.sessions.payloads import Payload, PayloadState
from turnlog.store.read.view import View

_SHOWN = 4096
"""Characters of a payload that are shown without `--full`."""


@click.command("show")
@click.argument("named", metavar="CALL | SESSION:SEQ ...", nargs=-1, required=True)
@click.option("--full", is_flag=True, help="Whole inputs and outputs.")
@data_option
@json_option
def command(named: tuple[str, ...], full: bool, data: Path, as_json: bool) -> None:
    """Show calls with all attempts, inputs and outputs, or single commits.

    A call is named by its id or the beginning of one, a commit by session and seq. Inputs and
    outputs are shown as they were recorded, after redaction.
    """
    with reading(data) as (view, write):
        for what in named:
            for found in _items(view, what):
                item = found if isinstance(found, CommitEntry) else with_pin_changes(data, found)
                write(json_line(item) if as_json else _text(item, None if full else _SHOWN))


def _items(view: View, what: str) -> list[AttemptDetail] | list[CommitEntry]:
    name, _, seq = what.rpartition(":")
    if ":" not in what:
        return attempts_of_call(view, find_call(view, what))
    session, number = named_commit(view, what)
    commit = view.get(session, number)
    if commit is None:
        row = view.session(session)
        newest = f", its newest is {row.head_seq}" if row is not None else ""
        raise NotFoundError(
            f"session {name!r} has no commit {seq}{newest}; `turnlog log {name}` lists them"
        )
    if commit.facts.kind not in (CommitKind.INTENT, CommitKind.OUTCOME):
        return [commit_entry(commit)]
    found = attempts_of_call(view, commit.facts.call)
    return [a for a in found if any(c.seq == commit.link.seq for c in a.commits)]


def _text(item: AttemptDetail | CommitEntry, shown: int | None) -> str:
    match item:
        case AttemptDetail():
            return attempt_text(item, shown)
        case CommitEntry():
            return _entry(item)


def _entry(item: CommitEntry) -> str:
    fields = {
        "session": item.session,
        "commit": _commit(item),
        "actor": item.actor,
        "note": item.note_kind or "",
        **{name: _word(value) for name, value in item.content.items()},
        # The summary of a note repeats its content.
        "summary": "" if item.note_kind else item.summary,
        "gone": item.gone or "",
        "follows": "" if item.ref is None else str(item.ref),
        **item.metadata,
        "aliases": "",
        "names": ", ".join(names_of(json.loads(item.metadata.get("aliases", "[]")))),
        "prev": item.prev,
    }
    return _fields(fields)


def _word(value: object) -> str:
    """Return a member of a note as text; lists and objects as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json_line(value)


def attempt_text(item: AttemptDetail, shown: int | None = None) -> str:
    """Return an attempt as text, with at most `shown` characters of its input and its output."""
    row = item.row
    upstream = row.upstream
    asked = {
        "call": row.call,
        "tool": f"{row.server}/{row.tool}",
        "status": row.kind or row.error or row.status,
    }
    fields = {
        "attempt": f"{row.attempt} (leg {row.leg})",
        "session": row.session,
        "turn": f"{row.turn}.{row.step} ({row.turn_source})",
        "client": row.client or "",
        "method": row.method,
        "effect": row.effect,
        "executed": f"{row.executed} (phase {row.phase})",
        "retry": row.retry or "",
        "upstream": " ".join(str(part) for part in (upstream.protocol, upstream.code) if part),
        "why": item.why,
        "took": "" if row.duration_ms is None else f"{row.duration_ms} ms",
        "flags": ", ".join(row.flags),
        "input hash": row.input_hash or "",
        "definition": row.definition or "",
        "provenance": _provenance(item),
        "trace": row.trace or "",
        "content": row.gone or "",
        "summary": row.output_summary,
        "detail": item.detail,
        "answered": f"by turnlog itself: {item.said}" if item.said else "",
    }
    commits = "\n".join(f"commit      {escape_unprintable(_commit(c))}" for c in item.commits)
    sides = (("input", item.input, item.preview), ("output", item.output, ""))
    given, returned = (_payload(*side, shown) for side in sides)
    parts = (
        _fields(asked),
        given,
        _origins(item),
        returned,
        _fields(fields),
        _changes(row.delta),
        commits,
        difference(item.difference),
    )
    return "\n".join(part for part in parts if part) + "\n"


def _origins(item: AttemptDetail) -> str:
    """Return a line for each value of the input of which it is known where it came from, or that it is new."""
    lines = [f"{'from':<12}{escape_unprintable(text)}" for text in origin_texts(item.origins)]
    if item.partial:
        lines.append(f"{'from':<12}partial: {escape_unprintable(item.partial)}")
    return "\n".join(lines)


def origin_texts(found: Sequence[InputOrigin]) -> list[str]:
    """Return a line for each origin of the values in one input."""
    known = {one.pointer for one in found if one.origin is not ValueOrigin.UNVERIFIED}
    return [_origin_text(one, "a part was not" if one.pointer in known else "not") for one in found]


def _origin_text(found: InputOrigin, is_not: str) -> str:
    """Return an origin in one line; `is_not` says how much of an unverified value was not seen."""
    pointer = found.pointer or "(all)"
    commit = "" if found.session is None else f" {found.session}:{found.seq}"
    match found.origin:
        case ValueOrigin.UNVERIFIED:
            return f"{pointer} unverified: {is_not} seen before in this session"
        case ValueOrigin.DECLARED:
            by = f" ({found.place})" if found.place else ""
            return f"{pointer} declared in{commit or ' a note that is gone'}{by}"
        case ValueOrigin.SOURCED:
            tainted = ", tainted" if found.tainted else ""
            place = f" {found.place}" if found.place else ""
            where = commit or " a commit that is not in this store"
            return f"{pointer} from{where}{place} ({found.evidence}{tainted})"


def _changes(delta: list[Operation]) -> str:
    """Return a line for each change of the call, except the use of its tool."""
    return "\n".join(
        f"{'changed':<12}{escape_unprintable(_change(change))}"
        for change in delta
        if change.field != TOOLS_USED
    )


def _change(change: Operation) -> str:
    to = f" to {change.to}" if change.to else ""
    maybe = ", maybe" if change.maybe else ""
    return f"{change.field} {change.op} {change.key}{to} ({change.evidence}{maybe})"


def difference(found: Comparison | None) -> str:
    """Return how the answer differs from that of the previous attempt."""
    if found is None:
        return ""
    lines = [f"{'difference':<12}{found.kind} since the attempt before"]
    for change in found.changes:
        place = (change.path or "/") + (f" line {change.line}" if change.line else "")
        sides = " -> ".join(text for text in (change.before, change.after) if text)
        lines.append(escape_unprintable(f"  {change.change} {place}: {sides}".removesuffix(": ")))
    lines += [f"  ... {found.more} changes more"] if found.more else []
    return "\n".join(lines)


def _provenance(item: AttemptDetail) -> str:
    reasons, shown = item.row.provenance_reasons, item.row.provenance or ""
    if item.pinned is not None:
        what = ", ".join(item.changed) or "something that is not kept"
        shown = f"{shown}: {what} differs from {item.pinned}, which was pinned"
    # Inputs have lines of their own.
    told = ("tool: unverified", "server: ", "result: ")
    beside = [each for each in reasons or () if each.startswith(told)]
    return "; ".join([shown, *beside])


def _commit(item: CommitEntry) -> str:
    by = "" if item.actor is Actor.AGENT else f" by {item.actor}"
    return f"{item.seq} {item.kind} {shown_time(item.timestamp)} {item.hash}{by}"


def _fields(fields: dict[str, str]) -> str:
    told = {name: text for name, text in fields.items() if text}
    width = max(12, *(len(name) + 1 for name in told))
    return "\n".join(f"{name:<{width}}{escape_unprintable(text)}" for name, text in told.items())


def _payload(name: str, payload: Payload, preview: str, shown: int | None) -> str:
    if payload.kept is PayloadState.NONE or payload.kept.is_gone:
        tail = f": {escape_unprintable(preview)}" if preview else ""
        return f"{name:<12}{payload.kept}{tail}"
    notes = [f"{payload.size} bytes"]
    notes += ["cut by limits.record"] if payload.kept is PayloadState.CUT else []
    notes += ["redacted"] if payload.redacted else []
    text = clean_lines(payload.text[:shown])
    rest = len(payload.text) - len(payload.text[:shown])
    more = f"\n... {rest} characters more, --full shows them" if rest else ""
    return f"{name:<12}{', '.join(notes)}\n{text}{more}"
