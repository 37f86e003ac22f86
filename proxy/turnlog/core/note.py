"""What a note says: what no call shows, and the agent, its runtime or an operator tells. Pure.

A note is a commit of kind `note`. Its header says which `NoteKind` it is, its body holds one of the
structs below. Those that the proxy writes about a call (abandoned, delivered, ...) have no content.
"""

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from .kinds import NoteKind

TEXT_CHARS: Final = 4096
NAME_CHARS: Final = 512
MAX_KEYS: Final = 256

Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS)]
Words: TypeAlias = Annotated[str, Meta(max_length=TEXT_CHARS)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS)]
Label: TypeAlias = Annotated[str, Meta(max_length=NAME_CHARS)]
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_KEYS)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=10**9)]
Entries: TypeAlias = Annotated[dict[Name, Words], Meta(min_length=1, max_length=MAX_KEYS)]


class FactAction(StrEnum):
    """What a note does to a fact."""

    ASSERT = "assert"
    VERIFY = "verify"
    DISPUTE = "dispute"
    RETRACT = "retract"


class EvictReason(StrEnum):
    """Why the model no longer sees something."""

    TTL = "ttl"
    BUDGET = "budget"
    CLIENT_EDIT = "client_edit"
    COMPACTION = "compaction"


class Decision(Struct, frozen=True, kw_only=True, tag=NoteKind.DECISION.value, tag_field="kind"):
    """What was decided. Without an `id` it is known by the seq of its commit."""

    text: Text
    why: Words = ""
    id: Label = ""
    supersedes: Label = ""
    """The id of the decision that it takes the place of."""


class Fact(Struct, frozen=True, kw_only=True, tag=NoteKind.FACT.value, tag_field="kind"):
    """What is held to be so. `subject` and `value` count where it is asserted."""

    id: Name
    action: FactAction
    subject: Words = ""
    value: Words = ""
    why: Words = ""
    validity: Label = ""
    """How long it holds, in the words of who says so; empty for always."""


class Evict(Struct, frozen=True, kw_only=True, tag=NoteKind.EVICT.value, tag_field="kind"):
    """What the model no longer sees. A key is a call's id, or what the runtime calls it."""

    keys: Names
    reason: EvictReason


class Recall(Struct, frozen=True, kw_only=True, tag=NoteKind.RECALL.value, tag_field="kind"):
    """What the model sees again."""

    key: Name


class TurnStart(Struct, frozen=True, kw_only=True, tag=NoteKind.TURN.value, tag_field="kind"):
    """Another turn begins; `name` is what its caller calls it."""

    name: Label = ""


class UserInput(Struct, frozen=True, kw_only=True, tag=NoteKind.USER_INPUT.value, tag_field="kind"):
    """What the user said, or another declared source of values."""

    text: Text
    source: Label = "user"


class Metadata(Struct, frozen=True, kw_only=True, tag=NoteKind.METADATA.value, tag_field="kind"):
    """What the session is about; an entry that is empty takes an earlier one away."""

    entries: Entries


class Budget(Struct, frozen=True, kw_only=True, tag=NoteKind.BUDGET.value, tag_field="kind"):
    """What the session may use from its begin on; `None` for no bound."""

    calls: Amount | None = None
    bytes: Amount | None = None
    seconds: Seconds | None = None


Note: TypeAlias = Decision | Fact | Evict | Recall | TurnStart | UserInput | Metadata | Budget

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)


def note_kind(note: Note) -> NoteKind:
    """Return what the header says of a note."""
    return NoteKind(str(note.__struct_config__.tag))


def encode_note(note: Note) -> bytes:
    """Return a note's bytes."""
    return _encode(note)


def decode_note(data: bytes) -> Note | None:
    """Return a note; `None` for bytes that are none that this version knows."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
