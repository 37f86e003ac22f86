"""`core.note`: notes as bytes."""

import pytest

from turnlog.core.kinds import NoteKind
from turnlog.core.note import (
    Budget,
    Decision,
    EffectChoice,
    EffectNote,
    Evict,
    EvictReason,
    Fact,
    FactAction,
    Metadata,
    Note,
    Recall,
    TurnStart,
    UserInput,
    decode_note,
    encode_note,
    note_kind,
)

NOTES: list[tuple[Note, NoteKind]] = [
    (Decision(text="x", why="y"), NoteKind.DECISION),
    (Fact(id="p", action=FactAction.ASSERT, subject="port", value="80"), NoteKind.FACT),
    (Evict(keys=("a", "b"), reason=EvictReason.CLIENT_EDIT), NoteKind.EVICT),
    (Recall(key="a"), NoteKind.RECALL),
    (TurnStart(name="2"), NoteKind.TURN),
    (UserInput(text="do it"), NoteKind.USER_INPUT),
    (Metadata(entries={"goal": "g"}), NoteKind.METADATA),
    (Budget(calls=3, seconds=1.5), NoteKind.BUDGET),
    (EffectNote(call="a", choice=EffectChoice.REDO, why="b"), NoteKind.EFFECT),
]


@pytest.mark.parametrize(("note", "kind"), NOTES)
def test_a_note_survives_encoding_and_knows_its_kind(note: Note, kind: NoteKind) -> None:
    assert decode_note(encode_note(note)) == note
    assert note_kind(note) is kind


def test_every_kind_with_content_has_a_note() -> None:
    bare = {
        NoteKind.ABANDONED,
        NoteKind.CANCEL_FORWARDED,
        NoteKind.DELIVERED,
        NoteKind.ENDORSE,
        NoteKind.HOLD,
        NoteKind.RELEASE,
        NoteKind.RESUMABLE,
        NoteKind.TAINT,
        NoteKind.UNANSWERED,
    }
    assert {kind for _, kind in NOTES} == set(NoteKind) - bare


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x80", encode_note(Recall(key="abc")).replace(b"recall", b"recoil")]
)
def test_unknown_bytes_are_not_a_note(data: bytes) -> None:
    assert decode_note(data) is None
