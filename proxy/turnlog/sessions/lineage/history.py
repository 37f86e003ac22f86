"""The past of a session: its recorded outputs and the texts declared to it, in order."""

from collections import deque
from typing import Final

from msgspec import Struct

from turnlog.core.commit import ANSWERED_BY, Commit
from turnlog.core.kinds import MCP_METHODS, CommitKind, Flag, NoteKind, Status
from turnlog.core.note import Fact, Note, UserInput, decode_note
from turnlog.provenance.taint import OutputKey, has_tainted_output
from turnlog.provenance.values import LOOKED_AT
from turnlog.redaction.values import PLACEHOLDER
from turnlog.rules.http_tools import values_in
from turnlog.sessions.state.family import commits_of_line
from turnlog.store.base import Blob
from turnlog.store.read.view import View

MOST_COMMITS: Final = 2048
MOST_BYTES: Final = 4 << 20
"""Of the outputs that are read, the newest first."""
_DECLARING: Final = frozenset({NoteKind.USER_INPUT, NoteKind.FACT})
NOT_YET: Final = "the call ended before its input was looked up"
TOO_MUCH: Final = "too much waited to be looked at"
_LATE: Final = frozenset({NOT_YET, TOO_MUCH})
_REDACTED: Final = PLACEHOLDER.encode()


class PastOutput(Struct, frozen=True):
    """The recorded output of an attempt."""

    call: bytes
    attempt: int
    content: bytes
    is_tainted: bool | None = False
    """`None` if it is where the input carries tainted values, which was not looked up while the call ran."""
    own_input: bytes = b""
    """The input of the same call, if its output is tainted or may be."""


class GivenAnswer(Struct, frozen=True):
    """The recorded answer of a call of another session that a call was answered with."""

    content: bytes
    """Empty if it is gone."""
    is_tainted: bool | None
    """`False` if it is endorsed; `None` if nothing is said of it, so that the input decides."""


class Declaration(Struct, frozen=True, kw_only=True):
    """A text that the runtime declared by a note, which has this seq."""

    seq: int
    text: str


class History(Struct, frozen=True, kw_only=True):
    """The past of a session, oldest first."""

    items: list[PastOutput | Declaration]
    until: int
    """The seq of the newest commit that was read; -1 for none."""
    is_whole: bool
    """Whether nothing was left out for its age or size, nor by the record."""


EMPTY: Final = History(items=[], until=-1, is_whole=True)


def declaration(seq: int, note: Note | None) -> Declaration | None:
    """Return what a note declares; `None` if it declares nothing."""
    match note:
        case UserInput():
            return Declaration(seq=seq, text=note.text)
        case Fact() if note.value or note.subject:
            return Declaration(seq=seq, text=f"{note.subject}\n{note.value}".strip())
        case _:
            return None


def declared_in(commit: Commit) -> Declaration | None:
    """Return what a commit declares; `None` if it declares nothing, or its content is gone."""
    if commit.facts.note not in _DECLARING or commit.body is None or not commit.body.note:
        return None
    return declaration(commit.link.seq, decode_note(commit.body.note))


def read_history(
    view: View,
    session: bytes,
    *,
    after: int = -1,
    without: int | None = None,
    tainted: frozenset[OutputKey] | None = None,
) -> History:
    """Return what a session, and those that it was forked from, has seen after the commit `after`.

    Commits of the epoch `without` are left out. Bounded: the newest commits are read first. `tainted` names the
    tainted outputs where an operator has marked some; else they are those that were recorded as tainted.
    """
    row = view.session(session)
    if row is None or row.head_seq <= after:
        return EMPTY if row is None else History(items=[], until=after, is_whole=True)
    first = max(after, row.head_seq - MOST_COMMITS)
    line = commits_of_line(view, session, after=first)
    commits = [c for c in line if _may_tell(c) and c.link.epoch != without]
    found, room, is_kept = deque[PastOutput | Declaration](), MOST_BYTES, True
    for commit in reversed(commits):
        item = _item(view, commit, tainted)
        if isinstance(item, PastOutput):
            room -= len(item.content)
        if room < 0:
            break
        if item is not None:
            found.appendleft(item)
        is_kept = is_kept and not _is_gone(commit, item)
    is_whole = room >= 0 and first == after and is_kept
    return History(items=list(found), until=row.head_seq, is_whole=is_whole)


def _is_gone(commit: Commit, item: PastOutput | Declaration | None) -> bool:
    """Return whether the content of a commit, or of the answer that it was given, cannot be read any more."""
    if isinstance(item, PastOutput):
        return commit.facts.status is Status.REPLAYED and not item.content
    had_content = commit.gone is not None or bool(commit.body and commit.body.output_blob)
    return item is None and had_content


def _may_tell(commit: Commit) -> bool:
    """Return whether a commit may hold values."""
    return commit.facts.kind is CommitKind.OUTCOME or commit.facts.note in _DECLARING


def _item(
    view: View, commit: Commit, tainted: frozenset[OutputKey] | None
) -> PastOutput | Declaration | None:
    body = commit.body
    if body is None:
        return None
    if commit.facts.kind is not CommitKind.OUTCOME:
        return declared_in(commit)
    facts, key = commit.facts, (commit.facts.call, commit.facts.attempt)
    if facts.status is Status.REPLAYED:
        return _given_output(view, commit, tainted)
    blob = view.blob(body.output_blob) if body.output_blob else None
    if not isinstance(blob, Blob):
        return None
    is_tainted: bool | None = has_tainted_output(facts) if tainted is None else key in tainted
    if tainted is None and body.partial in _LATE and not is_tainted:
        is_tainted = None if Flag.TAINT_ENDORSED not in facts.flags else False
    own_input = b"" if is_tainted is False else input_of(view, key)
    if is_tainted is None and facts.method not in MCP_METHODS:
        own_input = values_in(own_input)
    return PastOutput(*key, start_of(blob), is_tainted, own_input)


def _given_output(
    view: View, commit: Commit, tainted: frozenset[OutputKey] | None
) -> PastOutput | None:
    facts, key = commit.facts, (commit.facts.call, commit.facts.attempt)
    given = given_answer(view, facts.call, commit.link.session)
    if given is None:
        return None
    is_tainted = given.is_tainted if tainted is None else key in tainted
    own_input = b"" if is_tainted is False else input_of(view, key)
    if is_tainted is None and facts.method not in MCP_METHODS:
        own_input = values_in(own_input)
    return PastOutput(*key, given.content, is_tainted, own_input)


def given_answer(view: View, call: bytes, session: bytes) -> GivenAnswer | None:
    """Return the answer of another session that a call of `session` was given; `None` if it was given none."""
    begun = (c for c in view.readable(call) if c.facts.kind is CommitKind.INTENT and c.body)
    links = (link for commit in begun if commit.body for link in commit.body.links)
    source = next((x.removeprefix(ANSWERED_BY) for x in links if x.startswith(ANSWERED_BY)), b"")
    ended = [c for c in view.readable(source) if c.facts.kind is CommitKind.OUTCOME]
    if not ended or ended[-1].link.session == session:
        return None
    outcome = next((c for c in reversed(ended) if c.body and c.body.output_blob), ended[-1])
    handle = outcome.body.output_blob if outcome.body else b""
    blob = view.blob(handle) if handle else None
    content = start_of(blob) if isinstance(blob, Blob) else b""
    return GivenAnswer(content, _said_of(view, outcome))


def _said_of(view: View, outcome: Commit) -> bool | None:
    """Return whether an output is recorded as tainted, `False` if as endorsed; a note counts more than a rule."""
    facts = outcome.facts
    notes = [
        note.facts.note
        for note in view.taint_notes(frozenset({outcome.link.session}))
        if (note.facts.call, note.facts.attempt) == (facts.call, facts.attempt)
    ]
    if notes:
        return notes[-1] == NoteKind.TAINT
    if Flag.TAINT_ENDORSED in facts.flags:
        return False
    return has_tainted_output(facts) or None


def input_of(view: View, key: OutputKey) -> bytes:
    """Return the recorded input of an attempt; empty if there is none any more."""
    for commit in view.readable(key[0]):
        is_it = commit.facts.kind is CommitKind.INTENT and commit.facts.attempt == key[1]
        if is_it and commit.body is not None and commit.body.input_blob:
            blob = view.blob(commit.body.input_blob)
            return blob.data if isinstance(blob, Blob) else b""
    return b""


def start_of(blob: Blob) -> bytes:
    """Return what is looked at of a recorded content: the start, without the marks of what was redacted."""
    # One byte more than is looked at, so that it shows that there is more.
    start = blob.data[: LOOKED_AT + 1]
    return start.replace(_REDACTED, b"") if blob.redacted else start
