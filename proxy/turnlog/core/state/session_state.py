"""What a session's commits come to: the state that `core.state.fold` makes of them, and its bytes.

All that is in it follows from the commits alone, in their order; dicts are by name. It also holds
what the next commits need to be understood: attempts that may get another outcome.
"""

from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from turnlog.core.call_status import CallState
from turnlog.core.note import Budget

from .files import FileChange, FileTouch

VERSION: Final = 2
"""Of the fold and of its state: a state of another version is folded anew."""


class ToolUse(Struct, frozen=True, kw_only=True, gc=False):
    """How one tool was used. An attempt counts by its last outcome."""

    calls: int = 0
    attempts: int = 0
    ok: int = 0
    errors: dict[str, int] = {}
    """By family."""
    unknown: int = 0
    replayed: int = 0
    last_seq: int = 0


class UnsettledAttempt(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """An attempt that may get another outcome, and what its last one said."""

    call: str
    tool: str
    """`server.tool`."""
    turn: int
    at: int
    why: str = ""
    status: str = "pending"
    error: str = ""
    duration: int = 0
    bytes_out: int = 0
    touches: tuple[FileTouch, ...] = ()
    """What it may have done."""


class DecisionMade(Struct, frozen=True, kw_only=True, gc=False):
    """A decision. `superseded_by` is the id of the one that took its place; empty for none."""

    text: str
    why: str
    seq: int
    supersedes: str = ""
    superseded_by: str = ""


class FactHeld(Struct, frozen=True, kw_only=True, gc=False):
    """A fact, as the last note about it left it."""

    subject: str = ""
    value: str = ""
    status: str
    """`asserted`, `verified`, `disputed` or `retracted`."""
    sources: tuple[int, ...] = ()
    """seqs of the notes about it."""
    validity: str = ""
    """How long it holds, as it was asserted; empty for always."""


class Evicted(Struct, frozen=True, kw_only=True, gc=False):
    """What the model no longer sees: since which commit, and why."""

    seq: int
    reason: str


class SessionUsage(Struct, frozen=True, kw_only=True, gc=False):
    """What the session took. `duration` is the sum over attempts, in ns."""

    calls: int = 0
    attempts: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    duration: int = 0


class State(Struct, frozen=True, kw_only=True):
    """A session after its commit `seq`; -1 is before its first."""

    version: int = VERSION
    seq: int = -1
    turn: int = 0
    opened_at: int = 0
    """ns UTC, as `at`."""
    at: int = 0
    """When the newest commit was made."""
    tools: dict[str, ToolUse] = {}
    """By `server.tool`."""
    files: dict[str, FileChange] = {}
    """What surely happened; `OpenAttempt.touches` may have."""
    attempts: dict[str, UnsettledAttempt] = {}
    """By the seq of the intent."""
    calls: dict[str, CallState] = {}
    """Those that are unsettled, which are `pending_actions`, or may be again, by id."""
    decisions: dict[str, DecisionMade] = {}
    evicted: dict[str, Evicted] = {}
    facts: dict[str, FactHeld] = {}
    usage: SessionUsage = SessionUsage()
    budget: Budget | None = None
    metadata: dict[str, str] = {}
    bodies_gone: int = 0
    """Commits whose content was dropped before it could be folded in."""


_encode = msgspec.msgpack.Encoder(order="sorted").encode
_decode = msgspec.msgpack.Decoder(State).decode


def encode_state(state: State) -> bytes:
    """Return a state's bytes: the same for equal states."""
    return _encode(state)


def decode_state(data: bytes) -> State | None:
    """Return a state; `None` for bytes that are none of this version."""
    try:
        state = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return state if state.version == VERSION else None


def state_hash(state: State) -> str:
    """Return what tells states apart."""
    return "sha256:" + sha256(b"\x02" + encode_state(state)).hexdigest()
