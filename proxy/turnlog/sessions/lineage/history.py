"""The past of a session: its recorded outputs and the texts declared to it, in order."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from turnlog.core.commit import Commit, Facts
from turnlog.core.kinds import MCP_METHODS, CommitKind, Flag, Gone, NoteKind, Status
from turnlog.core.note import Fact, Note, UserInput, decode_note
from turnlog.provenance.outputs import RecordedOutput, missing_content, output_taint
from turnlog.provenance.taint import OutputKey
from turnlog.provenance.values import LOOKED_AT, LOOKED_AT_FOR_TAINT, ValueSource
from turnlog.redaction.values import PLACEHOLDER
from turnlog.rules.http_tools import values_in
from turnlog.sessions.state.family import commits_of_line
from turnlog.store.base import Blob
from turnlog.store.read.view import View

from .recorded_taint import RecordedTaint, answered_from

MOST_COMMITS: Final = 2048
MOST_BYTES: Final = 4 << 20
"""Of the outputs that are read, the newest first."""
MOST_INPUT_BYTES: Final = 16 << 20
"""Of the inputs behind a tainted output that are looked up again."""
_DECLARING: Final = frozenset({NoteKind.USER_INPUT, NoteKind.FACT})
_TOO_MANY: Final = "it is followed by more tainted outputs than are read from the store"
_START: Final = "only its first 64 KiB is looked at"
_REDACTED: Final = PLACEHOLDER.encode()


class GivenAnswer(Struct, frozen=True):
    """The recorded answer of a call of another session that a call was answered with."""

    content: bytes
    """Empty if it is gone."""
    missing: str
    """Why `content` lacks something; empty if it does not."""
    is_tainted: bool | None
    """`False` if it is endorsed; `None` if nothing is said of it, so that the input decides."""


class Declaration(Struct, frozen=True, kw_only=True):
    """A text that the runtime declared by a note, which has this seq."""

    seq: int
    text: str


PastItem: TypeAlias = RecordedOutput | Declaration


class Wanted(Struct, frozen=True, kw_only=True):
    """The part of a session's past that is to be read."""

    after: int = -1
    """The commit behind which it begins; -1 for the first."""
    without: int | None = None
    """The epoch whose commits are left out."""
    tainted: Mapping[OutputKey, bool | None] | None = None
    """The outputs that are tainted, or may be (`None`), where an operator has marked some; else they are those that
    were recorded as such."""
    for_rule: bool = False
    """Whether tainted outputs are read however old they are, because a rule depends on them."""
    has_tainted: bool = False
    """Whether something before is tainted."""


class History(Struct, frozen=True, kw_only=True):
    """The past of a session, oldest first."""

    items: list[PastItem]
    until: int
    """The seq of the newest commit that was read; -1 for none."""
    is_whole: bool
    """Whether nothing was left out for its age or size, nor by the record."""
    left_out: int = -1
    """The seq of the newest commit that was left out for its age or size; -1 for none."""


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


def read_history(view: View, session: bytes, want: Wanted) -> History:
    """Return what a session, and those that it was forked from, has seen.

    Bounded: the newest commits are read first.
    """
    row, after = view.session(session), want.after
    if row is None or row.head_seq <= after:
        return EMPTY if row is None else History(items=[], until=after, is_whole=True)
    first = max(after, row.head_seq - MOST_COMMITS)
    line = commits_of_line(view, session, after=first)
    commits = [c for c in line if _may_tell(c) and c.link.epoch != want.without]
    found, room, is_kept = deque[tuple[Commit, PastItem]](), MOST_BYTES, True
    left_out, recorded = first if first > after else -1, RecordedTaint(view)
    for commit in reversed(commits):
        item = _item(view, commit, want.tainted, recorded)
        if isinstance(item, RecordedOutput):
            room -= len(item.content) + len(item.own_input)
        if room < 0:
            left_out = commit.link.seq
            break
        if item is not None:
            found.appendleft((commit, item))
        is_kept = is_kept and not _is_gone(commit, item)
    is_whole, items = left_out < 0 and is_kept, list[PastItem]()
    if want.for_rule and left_out >= 0:
        items += _tainted_between(view, session, left_out, want)
        left_out = -1
    has_tainted = want.has_tainted or bool(items)
    items += _doubted(view, found, want.tainted, has_tainted=has_tainted)
    return History(items=items, until=row.head_seq, is_whole=is_whole, left_out=left_out)


def _tainted_between(view: View, session: bytes, until: int, want: Wanted) -> Iterator[PastItem]:
    """Yield the outputs before those that are read otherwise that are tainted or may be, oldest first."""
    room, recorded, has_tainted = MOST_BYTES, RecordedTaint(view), want.has_tainted
    for commit in commits_of_line(view, session, after=want.after):
        if commit.link.seq > until:
            break
        item = _item(view, commit, want.tainted, recorded) if _may_tell(commit) else None
        if isinstance(item, RecordedOutput) and _counts(item, has_tainted=has_tainted):
            has_tainted = True
            room -= len(item.content) + len(item.own_input)
            if room < 0:
                yield RecordedOutput(item.source, b"", is_tainted=True, missing=_TOO_MANY)
                break
            yield item


def _counts(item: RecordedOutput, *, has_tainted: bool) -> bool:
    """Return whether an output is tainted, or may be, as something before it is."""
    return has_tainted if item.is_tainted is None else item.is_tainted


def _doubted(
    view: View,
    found: Iterable[tuple[Commit, PastItem]],
    tainted: Mapping[OutputKey, bool | None] | None,
    *,
    has_tainted: bool,
) -> Iterator[PastItem]:
    """Yield items so that behind a tainted output each input is looked up again.

    When these calls were made, the tainted output may not have been known.
    """
    room = MOST_INPUT_BYTES
    for commit, item in found:
        if not isinstance(item, RecordedOutput):
            yield item
        elif has_tainted and item.is_tainted is False and _may_carry(commit.facts, tainted):
            own_input, is_cut = recorded_input(view, commit.facts) if room > 0 else (b"", True)
            room -= len(own_input)
            missing = item.missing or (_START if len(item.content) > LOOKED_AT else "")
            yield RecordedOutput(item.source, item.content, None, missing, own_input, is_cut)
        else:
            has_tainted = has_tainted or item.is_tainted is not False
            yield item


def _may_carry(facts: Facts, tainted: Mapping[OutputKey, bool | None] | None) -> bool:
    """Return whether an output may be tainted that is not recorded as such."""
    is_said = facts.status is Status.REPLAYED or Flag.TAINT_ENDORSED in facts.flags
    return tainted is None and not is_said


def _is_gone(commit: Commit, item: PastItem | None) -> bool:
    """Return whether the content of a commit, or of the answer that it was given, cannot be read any more."""
    if isinstance(item, RecordedOutput) and (
        item.content or commit.facts.status is Status.REPLAYED
    ):
        return not item.content
    had_content = commit.gone is not None or bool(commit.body and commit.body.output_blob)
    return not isinstance(item, Declaration) and had_content


def _may_tell(commit: Commit) -> bool:
    """Return whether a commit may hold values."""
    return commit.facts.kind is CommitKind.OUTCOME or commit.facts.note in _DECLARING


def _item(
    view: View,
    commit: Commit,
    tainted: Mapping[OutputKey, bool | None] | None,
    recorded: RecordedTaint,
) -> PastItem | None:
    facts, key = commit.facts, (commit.facts.call, commit.facts.attempt)
    if facts.kind is not CommitKind.OUTCOME:
        return declared_in(commit)
    if facts.status is Status.REPLAYED:
        given = given_answer(view, facts.call, commit.link.session, recorded)
        if given is None:
            return None
        is_tainted = given.is_tainted if tainted is None else tainted.get(key, False)
        return _output(view, facts, given.content, given.missing, is_tainted)
    partial = commit.body.partial if commit.body is not None else ""
    is_tainted = output_taint(facts, partial) if tainted is None else tainted.get(key, False)
    content, missing = recorded_output(view, commit)
    if not content and (is_tainted is False or not missing):
        return None
    return _output(view, facts, content, missing, is_tainted)


def _output(
    view: View, facts: Facts, content: bytes, missing: str, is_tainted: bool | None
) -> RecordedOutput:
    source = ValueSource(facts.call, facts.attempt)
    if is_tainted is False:
        return RecordedOutput(source, content[: LOOKED_AT + 1], missing=missing)
    return RecordedOutput(source, content, is_tainted, missing, *recorded_input(view, facts))


def given_answer(
    view: View, call: bytes, session: bytes, taint: RecordedTaint | None = None
) -> GivenAnswer | None:
    """Return the answer of another session that a call of `session` was given; `None` if it was given none.

    `taint` is used to answer for several calls.
    """
    outcome = answered_from(view, view.readable(call))
    if outcome is None or outcome.link.session == session:
        return None
    taint = taint or RecordedTaint(view)
    is_tainted = taint.of((outcome.facts.call, outcome.facts.attempt))
    return GivenAnswer(*recorded_output(view, outcome), is_tainted)


def recorded_output(view: View, outcome: Commit) -> tuple[bytes, str]:
    """Return what is looked at of the output of an attempt, and why it lacks something; empty for nothing."""
    blob = _stored_output(view, outcome)
    if isinstance(blob, Blob):
        missing = missing_content(outcome.facts, is_recorded=True, is_cut=blob.cut)
        return start_of(blob, LOOKED_AT_FOR_TAINT), missing
    return b"", missing_content(outcome.facts, is_recorded=False, gone=blob)


def is_purged(view: View, outcome: Commit) -> bool:
    """Return whether an operator has purged the output of an attempt."""
    return _stored_output(view, outcome) is Gone.PURGED


def _stored_output(view: View, outcome: Commit) -> Blob | Gone | None:
    body = outcome.body
    return view.blob(body.output_blob) if body and body.output_blob else outcome.gone


def recorded_input(view: View, facts: Facts) -> tuple[bytes, bool]:
    """Return what is looked at of the recorded input of an attempt, and whether it was longer; if there is none
    any more, nothing and `True`."""
    for commit in view.readable(facts.call):
        is_it = commit.facts.kind is CommitKind.INTENT and commit.facts.attempt == facts.attempt
        if is_it and (content := content_of_input(view, commit))[0]:
            return content
    return b"", True


def content_of_input(view: View, intent: Commit) -> tuple[bytes, bool]:
    """Return what is looked at of the input of an intent, and whether it was longer, or was not recorded."""
    # A content that is gone was recorded: that it is gone is said apart.
    blob = view.blob(intent.body.input_blob) if intent.body and intent.body.input_blob else None
    if not isinstance(blob, Blob):
        return b"", blob is None and intent.gone is None
    content = start_of(blob, LOOKED_AT_FOR_TAINT)
    is_cut = blob.cut or len(content) > LOOKED_AT_FOR_TAINT
    is_mcp = intent.facts.method in MCP_METHODS
    return content if is_mcp else values_in(content), is_cut


def start_of(blob: Blob, most: int = LOOKED_AT) -> bytes:
    """Return what is looked at of a recorded content: the start, without the marks of what was redacted."""
    # One byte more than is looked at, so that it shows that there is more.
    start = blob.data[: most + 1]
    return start.replace(_REDACTED, b"") if blob.redacted else start
