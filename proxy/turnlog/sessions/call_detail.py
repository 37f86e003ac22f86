"""A call in full: its attempts with their commits, inputs and outputs."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.answer_diff import ComparedAnswer, Comparison, compare
from turnlog.core.commit import Commit, CommitBody
from turnlog.core.hints import Hint
from turnlog.core.kinds import Actor, CommitKind, Flag, Gone, NoteKind, Status
from turnlog.core.lifecycle import decode_lifecycle
from turnlog.core.live_view import decode_rewind
from turnlog.core.note import decode_note
from turnlog.core.text.units import timestamp
from turnlog.store import definitions
from turnlog.store.read.view import View
from turnlog.wire.tool_definition import Part

from .errors import NotFoundError
from .lineage.inputs import InputOrigin, input_origins
from .payloads import Payload, PayloadState, bodies_of, read_input, read_output
from .rows import Row, row_in


class CommitEntry(Struct, frozen=True, kw_only=True):
    """One commit of the chain, with the content of a note."""

    session: str
    seq: int
    kind: CommitKind
    timestamp: str
    actor: Actor
    ref: int | None
    summary: str
    metadata: dict[str, str]
    note_kind: NoteKind | None
    """The kind of a note; `None` for other commits."""
    content: dict[str, object]
    """The members of a note, a lifecycle commit or a rewind, or the operator's reason (`why`) for what has none."""
    gone: Gone | None
    """Why its content can no longer be read."""
    hash: str
    prev: str


class AttemptDetail(Struct, frozen=True, kw_only=True):
    """One attempt with its input and output."""

    row: Row
    preview: str
    detail: str
    commits: list[CommitEntry]
    input: Payload
    output: Payload
    said: str = ""
    """The answer that turnlog gave itself, in place of the server's."""
    output_hash: str | None = None
    """Hash of the answer before redaction."""
    difference: Comparison | None = None
    """How the answer differs from that of the previous attempt, when both ended."""
    pinned: str | None = None
    """Hash of the tool's definition in turnlog.lock, when it was a different one."""
    why: str = ""
    """The reason that the caller gave for the call."""
    origins: tuple[InputOrigin, ...] = ()
    """Where the values in the input came from, as far as they are like identifiers, paths, URLs or numbers."""
    partial: str = ""
    """Why there may be more of them."""
    changed: list[Part] = []
    """The parts of the definition that differed from the pinned one, as far as both are kept."""


def find_call(view: View, name: str) -> bytes:
    """Return the call with this id or beginning of an id. Raises `NotFoundError`."""
    found = view.find_calls(name)
    if len(found) == 1:
        return found[0]
    if not found:
        if short := ids.too_short(name):
            raise NotFoundError(short)
        hint = Hint.CALLS_OF_SESSION if view.find_sessions(name) else Hint.CALLS
        raise NotFoundError(f"no call begins with {name!r}", hint, name)
    some = ", ".join(ids.to_text(call) for call in found[:5])
    raise NotFoundError(f"{name!r} begins {len(found)} calls or more, name one of: {some}")


def attempts_of_call(view: View, call: bytes) -> list[AttemptDetail]:
    """Return all attempts of a call, oldest first."""
    groups: dict[tuple[int, int], list[Commit]] = {}
    for commit in view.call(call):
        if commit.facts.kind not in (CommitKind.INTENT, CommitKind.OUTCOME):
            continue
        groups.setdefault((commit.facts.leg, commit.facts.attempt), []).append(commit)
    made = {key: attempt_detail(view, group) for key, group in groups.items()}
    return [_compared(made.get((leg, number - 1)), item) for (leg, number), item in made.items()]


def _compared(before: AttemptDetail | None, after: AttemptDetail) -> AttemptDetail:
    """Return an attempt with the difference of its answer from the previous one."""
    if before is None or Status.PENDING in (before.row.status, after.row.status):
        return after
    if not before.row.bytes_out and not after.row.bytes_out:
        return after  # neither got an answer
    found = compare(_answer(before), _answer(after))
    return structs.replace(after, difference=found)


def _answer(attempt: AttemptDetail) -> ComparedAnswer:
    row, kept = attempt.row, attempt.output
    nothing = kept.kept is PayloadState.NONE and not attempt.output_hash
    return ComparedAnswer(
        kind=row.kind or row.error or "",
        null=Flag.NULL_RESULT in row.flags,
        data=kept.text.encode(),
        whole=nothing or kept.kept is PayloadState.WHOLE,
        digest=attempt.output_hash or "",
    )


def attempt_detail(view: View, group: list[Commit]) -> AttemptDetail:
    """Return the attempt that consists of these commits, in log order."""
    bodies, found = bodies_of(group), input_origins(view, group)
    return AttemptDetail(
        origins=found.origins,
        partial=found.partial,
        row=row_in(view, group),
        preview=_first(body.preview for body in bodies),
        detail=_first(body.detail for body in reversed(bodies)),
        commits=[commit_entry(commit) for commit in group],
        input=read_input(view, group),
        output=read_output(view, group),
        said=_first(body.said for body in reversed(bodies)),
        why=_first(body.why for body in bodies),
        output_hash=_first(body.output_hash or "" for body in reversed(bodies)) or None,
        pinned=next((f"sha256:{body.pinned.hex()}" for body in bodies if body.pinned), None),
    )


def with_pin_changes(data: Path, attempt: AttemptDetail) -> AttemptDetail:
    """Return an attempt with the parts that differed from the pinned definition. Raises `StoreError`."""
    if attempt.pinned is None or attempt.row.definition is None:
        return attempt
    shown = attempt.pinned, attempt.row.definition
    before, now = (bytes.fromhex(text.removeprefix("sha256:")) for text in shown)
    return structs.replace(attempt, changed=definitions.changed(data, before, now))


def commit_entry(commit: Commit) -> CommitEntry:
    """Return one commit as it is shown."""
    body = commit.body or CommitBody()
    return CommitEntry(
        session=ids.to_text(commit.link.session),
        seq=commit.link.seq,
        kind=commit.facts.kind,
        timestamp=timestamp(commit.facts.at),
        actor=commit.facts.actor,
        ref=commit.link.ref,
        summary=body.summary,
        metadata=body.metadata,
        note_kind=NoteKind(commit.facts.note) if commit.facts.note in set(NoteKind) else None,
        content=_said(commit.facts.kind, body),
        gone=commit.gone,
        hash=f"sha256:{commit.hash.hex()}",
        prev=f"sha256:{commit.link.prev.hex()}",
    )


def _said(kind: CommitKind, body: CommitBody) -> dict[str, object]:
    if kind is CommitKind.LIFECYCLE:
        content = {"why": body.detail, **structs.asdict(decode_lifecycle(body.note))}
        return {name: value for name, value in content.items() if value}
    if kind is CommitKind.REWIND:
        made = {"why": body.detail, **structs.asdict(decode_rewind(body.note))}
        return {name: value for name, value in made.items() if value}
    if body.detail and kind not in (CommitKind.INTENT, CommitKind.OUTCOME):
        return {"why": body.detail}
    note = decode_note(body.note) if body.note else None
    told: dict[str, object] = msgspec.to_builtins(note)
    return {} if note is None else {name: told[name] for name in told if name != "kind"}


def _first(texts: Iterable[str]) -> str:
    return next((text for text in texts if text), "")


def without_content(attempt: AttemptDetail) -> AttemptDetail:
    """Return an attempt without the text of its payloads and what was derived from them."""
    return structs.replace(
        attempt,
        input=structs.replace(attempt.input, text=""),
        output=structs.replace(attempt.output, text=""),
        difference=None,
    )
