"""The recorded origins of the values in a call's input, with the commits that they came from."""

from collections.abc import Sequence

from msgspec import Struct

from turnlog.core import ids
from turnlog.core.commit import Commit, Lineage
from turnlog.core.kinds import CommitKind, MatchEvidence, ValueOrigin
from turnlog.core.note import Fact, UserInput, decode_note
from turnlog.sessions.rows import outcome_of
from turnlog.sessions.state.family import ancestry
from turnlog.store.read.view import View


class InputOrigin(Struct, frozen=True, kw_only=True):
    """The origin of a value in an input."""

    pointer: str
    """JSON Pointer in the input."""
    origin: ValueOrigin
    session: str | None = None
    """Session and seq of the commit that the value came from: an outcome, or the note that declared it.
    `None` for an unverified value, and if that commit is not in this store."""
    seq: int | None = None
    place: str | None = None
    """JSON Pointer in that outcome's output; of a declared value who declared it."""
    evidence: MatchEvidence | None = None
    """How the value and the one in the output are alike."""
    tainted: bool = False


class InputOrigins(Struct, frozen=True):
    """The origins of all values of an input; `partial` is why there may be more, empty if there are none."""

    origins: tuple[InputOrigin, ...] = ()
    partial: str = ""


def recorded(attempt: Sequence[Commit]) -> tuple[tuple[Lineage, ...], str]:
    """Return the lineage of an attempt's input from its last outcome that has one, and why it is partial."""
    for commit in reversed(attempt):
        body = commit.body
        if commit.facts.kind is CommitKind.OUTCOME and body and (body.lineage or body.partial):
            return body.lineage, body.partial
    return (), ""


def input_origins(view: View, attempt: Sequence[Commit]) -> InputOrigins:
    """Return the origins of the values in an attempt's input."""
    lineage, partial = recorded(attempt)
    session = attempt[0].link.session
    origins = tuple(dict.fromkeys(origin_of(view, session, entry) for entry in lineage))
    return InputOrigins(origins, partial)


def origin_of(view: View, session: bytes, entry: Lineage) -> InputOrigin:
    """Return a recorded origin with the commit that it names."""
    if entry.origin is ValueOrigin.UNVERIFIED:
        return InputOrigin(pointer=entry.pointer, origin=entry.origin)
    if entry.origin is ValueOrigin.DECLARED:
        found, place = note_of(view, session, entry.place)
    else:
        found, place = outcome_of(view, entry.call, entry.attempt), entry.place
    return InputOrigin(
        pointer=entry.pointer,
        origin=entry.origin,
        session=ids.to_text(found.link.session) if found is not None else None,
        seq=found.link.seq if found is not None else None,
        place=place,
        evidence=entry.evidence,
        tainted=entry.tainted,
    )


def note_of(view: View, session: bytes, seq: str) -> tuple[Commit | None, str]:
    """Return the note by which a value was declared to a session, and who declared it."""
    number = int(seq) if seq.isdigit() else -1
    # A fork shares the notes of its parent up to where they part.
    of = [session, *(p.session for p in ancestry(view, session) if number <= p.seq)]
    commit = next(filter(None, (view.get(each, number) for each in of)), None)
    note = decode_note(commit.body.note) if commit is not None and commit.body else None
    match note:
        case UserInput():
            return commit, note.source
        case Fact():
            return commit, f"fact {note.id}"
        case _:
            return commit, ""
