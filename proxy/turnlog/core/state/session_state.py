"""The state of a session as folded from its commits by `core.state.fold`, and its encoding.

It follows from the commits alone. It includes what is needed to fold further commits: attempts that
may get another outcome.
"""

from hashlib import sha256
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from turnlog.core.call_status import CallState
from turnlog.core.commit import decoder
from turnlog.core.note import Budget

from .files import FileChange, FileTouch

VERSION: Final = 2
"""Version of the fold and its state; a saved state of another version is folded again."""


class ToolUse(Struct, frozen=True, kw_only=True, gc=False):
    """Counts of the use of one tool; an attempt counts by its last outcome."""

    calls: int = 0
    attempts: int = 0
    ok: int = 0
    errors: dict[str, int] = {}
    """By family."""
    unknown: int = 0
    replayed: int = 0
    last_seq: int = 0


class UnsettledAttempt(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """An attempt that may get another outcome, and its last one."""

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
    """Its uncertain file operations."""


class DecisionMade(Struct, frozen=True, kw_only=True, gc=False):
    """A decision. `superseded_by` is the id of its replacement; empty for none."""

    text: str
    why: str
    seq: int
    supersedes: str = ""
    superseded_by: str = ""


class FactHeld(Struct, frozen=True, kw_only=True, gc=False):
    """A fact after the last note about it."""

    subject: str = ""
    value: str = ""
    status: str
    """`asserted`, `verified`, `disputed` or `retracted`."""
    sources: tuple[int, ...] = ()
    """seqs of its notes."""
    validity: str = ""
    """How long it holds, in the words of its author; empty for always."""


class Evicted(Struct, frozen=True, kw_only=True, gc=False):
    """A key that left the model's context: the commit and the reason."""

    seq: int
    reason: str


class SessionUsage(Struct, frozen=True, kw_only=True, gc=False):
    """Totals of the session. `duration` is the sum over attempts, in ns."""

    calls: int = 0
    attempts: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    duration: int = 0


class SessionTaint(Struct, frozen=True, kw_only=True, gc=False):
    """The label of a session in which contamination was found. It stays until a rewind behind `since`."""

    since: int
    """seq of the first commit that was found to be contaminated."""
    by: tuple[int, ...]
    """seqs of the first `MOST_LABELLED` of them."""


MOST_LABELLED: Final = 16


class State(Struct, frozen=True, kw_only=True):
    """The state of a session after commit `seq`; -1 before the first. Nothing changes its dicts."""

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
    """Certain changes; `UnsettledAttempt.touches` are uncertain."""
    attempts: dict[str, UnsettledAttempt] = {}
    """By the seq of the intent."""
    calls: dict[str, CallState] = {}
    """Calls that are unsettled (`pending_actions`) or can become so again, by id."""
    decisions: dict[str, DecisionMade] = {}
    evicted: dict[str, Evicted] = {}
    facts: dict[str, FactHeld] = {}
    usage: SessionUsage = SessionUsage()
    budget: Budget | None = None
    metadata: dict[str, str] = {}
    bodies_gone: int = 0
    """Number of commits whose content was dropped before it was folded."""
    taint: SessionTaint | UnsetType = UNSET
    """Left out of the encoding where unset: that of a session without it is as in older versions."""


_encode = msgspec.msgpack.Encoder(order="sorted").encode
_decode = decoder(State)


def encode_state(state: State) -> bytes:
    """Return the encoded state; equal states have equal bytes."""
    return _encode(state)


def decode_state(data: bytes) -> State | None:
    """Return a state; `None` for bytes that are not a state of this version."""
    try:
        state = _decode(data)
    except msgspec.DecodeError:
        return None
    return state if state.version == VERSION else None


def state_hash(state: State) -> str:
    """Return the hash of a state."""
    return "sha256:" + sha256(b"\x02" + encode_state(state)).hexdigest()
