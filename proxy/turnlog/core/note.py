"""The content of notes: what an agent, its runtime or an operator adds to the log.

A note is a commit of kind `note`. Its header has the `NoteKind`, its body one of the structs below.
Notes that the proxy writes about a call (abandoned, delivered, ...) have no content.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from .kinds import NoteKind

TEXT_CHARS: Final = 4096
NAME_CHARS: Final = 512
MAX_KEYS: Final = 256
LONGEST_WHY: Final = 2000
"""Most characters of an operator's reason."""

Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS)]
Words: TypeAlias = Annotated[str, Meta(max_length=TEXT_CHARS)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS)]
Label: TypeAlias = Annotated[str, Meta(max_length=NAME_CHARS)]
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_KEYS)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=10**9)]
Entries: TypeAlias = Annotated[dict[Name, Words], Meta(min_length=1, max_length=MAX_KEYS)]


class FactAction(StrEnum):
    """The action of a note on a fact."""

    ASSERT = "assert"
    VERIFY = "verify"
    DISPUTE = "dispute"
    RETRACT = "retract"


class EvictReason(StrEnum):
    """Why something left the model's context."""

    TTL = "ttl"
    BUDGET = "budget"
    CLIENT_EDIT = "client_edit"
    COMPACTION = "compaction"


class Decision(Struct, frozen=True, kw_only=True, tag=NoteKind.DECISION.value, tag_field="kind"):
    """A decision. Without an `id` it is known by the seq of its commit."""

    text: Text
    why: Words = ""
    id: Label = ""
    supersedes: Label = ""
    """Id of the decision that it replaces."""


class Fact(Struct, frozen=True, kw_only=True, tag=NoteKind.FACT.value, tag_field="kind"):
    """A fact. `subject`, `value` and `validity` are for the action `assert`."""

    id: Name
    action: FactAction
    subject: Words = ""
    value: Words = ""
    why: Words = ""
    validity: Label = ""
    """How long it holds, in the words of its author; empty for always."""


class Evict(Struct, frozen=True, kw_only=True, tag=NoteKind.EVICT.value, tag_field="kind"):
    """Keys that left the model's context. A key is a call's id, or a name of the runtime's."""

    keys: Names
    reason: EvictReason


class Recall(Struct, frozen=True, kw_only=True, tag=NoteKind.RECALL.value, tag_field="kind"):
    """A key that is in the model's context again."""

    key: Name


class TurnStart(Struct, frozen=True, kw_only=True, tag=NoteKind.TURN.value, tag_field="kind"):
    """A new turn; `name` is what its caller calls it."""

    name: Label = ""


class UserInput(Struct, frozen=True, kw_only=True, tag=NoteKind.USER_INPUT.value, tag_field="kind"):
    """Text of the user, or of another declared source of values."""

    text: Text
    source: Label = "user"


class Metadata(Struct, frozen=True, kw_only=True, tag=NoteKind.METADATA.value, tag_field="kind"):
    """Descriptions of the session; an empty entry removes an earlier one."""

    entries: Entries


class Budget(Struct, frozen=True, kw_only=True, tag=NoteKind.BUDGET.value, tag_field="kind"):
    """Limits of the session from its start; `None` for no limit."""

    calls: Amount | None = None
    bytes: Amount | None = None
    seconds: Seconds | None = None


class EffectChoice(StrEnum):
    """The treatment of calls that would have the effect of a discarded call again."""

    REPLAY = "replay"
    """Answer from the record, also if the input is another one."""
    REDO = "redo"
    """Make the same call again."""
    OVERRIDE = "override"
    """Make the call with another input."""


class EffectNote(Struct, frozen=True, kw_only=True, tag=NoteKind.EFFECT.value, tag_field="kind"):
    """A choice about the effect of a discarded call, which `call` names by its id."""

    call: Name
    choice: EffectChoice
    why: Words = ""


Note: TypeAlias = (
    Decision | Fact | Evict | Recall | TurnStart | UserInput | Metadata | Budget | EffectNote
)

_decoder: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)


def note_kind(note: Note) -> NoteKind:
    """Return the kind of a note."""
    return NoteKind(str(note.__struct_config__.tag))


encode_note: Final[Callable[[Note], bytes]] = msgspec.msgpack.Encoder().encode
"""Return a note's bytes."""


def decode_note(data: bytes) -> Note | None:
    """Return a note; `None` for bytes that this version cannot read."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
