"""A call in full: its commits, and the input and output as redaction left them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.answer_diff import Answer, Comparison, compare
from turnlog.core.commit import Body, Commit
from turnlog.core.kinds import Actor, CommitKind, Flag, NoteKind, Status
from turnlog.core.note import decode_note
from turnlog.core.text.times import timestamp
from turnlog.store import definitions
from turnlog.store.base import View
from turnlog.wire.tools.differences import Part

from .contents import Kept, Payload, payload
from .log import NotFoundError
from .rows import Row, row_of


class Entry(Struct, frozen=True, kw_only=True):
    """One commit as it stands in the chain; of its content only what a note says."""

    session: str
    seq: int
    kind: CommitKind
    timestamp: str
    actor: Actor
    ref: int | None
    summary: str
    metadata: dict[str, str]
    note_kind: NoteKind | None
    """What a note is about; `None` for every other commit."""
    content: dict[str, object]
    """What it says besides. A proxy's note on a call (abandoned, delivered, ...) says no more."""
    hash: str
    prev: str


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt with what went in and came out."""

    row: Row
    preview: str
    detail: str
    commits: list[Entry]
    input: Payload
    output: Payload
    said: str = ""
    """What turnlog told the caller itself, in place of an answer of the tool server's."""
    output_hash: str | None = None
    """Of the answer as it came."""
    difference: Comparison | None = None
    """From the attempt before, where there was one and both have ended."""
    pinned: str | None = None
    """Hash of the definition that turnlog.lock had for the tool, where that was another."""
    why: str = ""
    """Why the caller made the call, as it said itself."""
    changed: list[Part] = []
    """What of the definition differed from the pinned one, as far as both are kept."""


def with_payloads(view: View, attempt: list[Commit]) -> Row:
    """Return an attempt's row with its input and its output, as redaction left them."""
    bodies = [commit.body for commit in attempt if commit.body]
    return structs.replace(
        row_of(attempt), input=_input(view, bodies), output=_output(view, bodies)
    )


def _input(view: View, bodies: Sequence[Body]) -> Payload:
    return payload(view, next((body.input_blob for body in bodies if body.input_blob), b""))


def _output(view: View, bodies: Sequence[Body]) -> Payload:
    newest_first = reversed(bodies)
    return payload(view, next((b.output_blob for b in newest_first if b.output_blob), b""))


def find_call(view: View, name: str) -> bytes:
    """Return the call that `name` (a UUID or its beginning) means. Raises `NotFoundError`."""
    found = view.find_calls(name)
    if len(found) == 1:
        return found[0]
    if not found:
        log = f"log {name} --json" if view.find_sessions(name) else "log --json"
        raise NotFoundError(f"no call begins with {name!r}, `turnlog {log}` names them")
    some = ", ".join(ids.to_text(call) for call in found[:5])
    raise NotFoundError(f"{name!r} begins {len(found)} calls or more, name one of: {some}")


def attempts(view: View, call: bytes) -> list[Attempt]:
    """Return all attempts of a call, the first first."""
    groups: dict[tuple[int, int], list[Commit]] = {}
    for commit in view.call(call):
        if commit.facts.kind not in (CommitKind.INTENT, CommitKind.OUTCOME):
            continue
        groups.setdefault((commit.facts.leg, commit.facts.attempt), []).append(commit)
    made = {key: attempt_of(view, group) for key, group in groups.items()}
    return [_compared(made.get((leg, number - 1)), item) for (leg, number), item in made.items()]


def _compared(before: Attempt | None, after: Attempt) -> Attempt:
    """Return an attempt with how its answer differs from that of the one before."""
    if before is None or Status.PENDING in (before.row.status, after.row.status):
        return after
    if not before.row.bytes_out and not after.row.bytes_out:
        return after  # neither was answered
    found = compare(_answer(before), _answer(after))
    return structs.replace(after, difference=found)


def _answer(attempt: Attempt) -> Answer:
    row, kept = attempt.row, attempt.output
    nothing = kept.kept is Kept.NONE and not attempt.output_hash
    return Answer(
        kind=row.kind or row.error or "",
        null=Flag.NULL_RESULT in row.flags,
        data=kept.text.encode(),
        whole=nothing or kept.kept is Kept.WHOLE,
        digest=attempt.output_hash or "",
    )


def attempt_of(view: View, group: list[Commit]) -> Attempt:
    """Return one attempt of its commits, in order of position."""
    bodies = [commit.body for commit in group if commit.body]
    return Attempt(
        row=row_of(group),
        preview=_first(body.preview for body in bodies),
        detail=_first(body.detail for body in reversed(bodies)),
        commits=[entry(commit) for commit in group],
        input=_input(view, bodies),
        output=_output(view, bodies),
        said=_first(body.said for body in reversed(bodies)),
        why=_first(body.why for body in bodies),
        output_hash=_first(body.output_hash or "" for body in reversed(bodies)) or None,
        pinned=next((f"sha256:{body.pinned.hex()}" for body in bodies if body.pinned), None),
    )


def with_changes(data: Path, attempt: Attempt) -> Attempt:
    """Return an attempt that says what differed from the pinned definition. Raises `StoreError`."""
    if attempt.pinned is None or attempt.row.definition is None:
        return attempt
    before, now = map(_digest, (attempt.pinned, attempt.row.definition))
    return structs.replace(attempt, changed=definitions.changed(data, before, now))


def _digest(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("sha256:"))


def entry(commit: Commit) -> Entry:
    """Return one commit's place and kind."""
    body = commit.body or Body()
    return Entry(
        session=ids.to_text(commit.link.session),
        seq=commit.link.seq,
        kind=commit.facts.kind,
        timestamp=timestamp(commit.facts.at),
        actor=commit.facts.actor,
        ref=commit.link.ref,
        summary=body.summary,
        metadata=body.metadata,
        note_kind=NoteKind(commit.facts.note) if commit.facts.note in set(NoteKind) else None,
        content=_said(body),
        hash=f"sha256:{commit.hash.hex()}",
        prev=f"sha256:{commit.link.prev.hex()}",
    )


def _said(body: Body) -> dict[str, object]:
    note = decode_note(body.note) if body.note else None
    told: dict[str, object] = msgspec.to_builtins(note)
    return {} if note is None else {name: told[name] for name in told if name != "kind"}


def _first(texts: Iterable[str]) -> str:
    return next((text for text in texts if text), "")


def without_content(attempt: Attempt) -> Attempt:
    """Return an attempt without what only its input and its output say."""
    return structs.replace(
        attempt,
        input=structs.replace(attempt.input, text=""),
        output=structs.replace(attempt.output, text=""),
        difference=None,
    )
