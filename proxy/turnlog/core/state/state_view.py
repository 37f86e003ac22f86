"""The state as shown to people, scripts and agents: fields with entries by key, and their changes."""

from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import UNSET, Struct

from turnlog.core.kinds import Executed
from turnlog.core.text.units import timestamp

from .files import FileChange, FileTouch, with_uncertain
from .session_state import (
    DecisionMade,
    Evicted,
    FactHeld,
    SessionTaint,
    State,
    ToolUse,
    UnsettledAttempt,
)

_NS: Final = 1_000_000_000


class StateField(StrEnum):
    """The fields of a session's state."""

    TOOLS_USED = "tools_used"
    FILES_MODIFIED = "files_modified"
    DECISIONS_MADE = "decisions_made"
    PENDING_ACTIONS = "pending_actions"
    EVICTED_KEYS = "evicted_keys"
    FACTS = "facts"
    USAGE = "usage"
    METADATA = "metadata"
    LABELS = "labels"


class PendingAction(Struct, frozen=True, kw_only=True):
    """A call whose outcome is open."""

    tool: str
    status: str
    seq: int
    """seq of the intent of its newest attempt."""
    turn: int
    leg: int
    attempt: int
    executed: Executed
    since: str
    """RFC 3339, UTC."""
    expires: str | None = None
    """When its outcome becomes unknown; `None` for never."""


class Table(Struct, frozen=True, kw_only=True):
    """The entries of each field of a session's state."""

    tools_used: dict[str, ToolUse] = {}
    files_modified: dict[str, FileChange] = {}
    decisions_made: dict[str, DecisionMade] = {}
    pending_actions: dict[str, PendingAction] = {}
    evicted_keys: dict[str, Evicted] = {}
    facts: dict[str, FactHeld] = {}
    usage: dict[str, float] = {}
    metadata: dict[str, str] = {}
    labels: dict[str, SessionTaint | None] = {}
    """`tainted`: since when; `None` as long as no contamination was found."""


Value: TypeAlias = (
    ToolUse
    | FileChange
    | DecisionMade
    | PendingAction
    | Evicted
    | FactHeld
    | SessionTaint
    | float
    | str
    | None
)


class FieldChange(Struct, frozen=True, kw_only=True):
    """A changed entry of a field; `None` if there was, or is, no entry."""

    field: StateField
    key: str
    before: Value
    after: Value


def state_table(state: State) -> Table:
    """Return the fields of a state."""
    return Table(
        tools_used=state.tools,
        files_modified=with_uncertain(state.files, _uncertain(state)),
        decisions_made=state.decisions,
        pending_actions=_pending(state),
        evicted_keys=state.evicted,
        facts=state.facts,
        usage=_usage(state),
        metadata=state.metadata,
        labels={"tainted": None if state.taint is UNSET else state.taint},
    )


def diff(before: Table, after: Table) -> list[FieldChange]:
    """Return the changes that turn one table into the other."""
    found: list[FieldChange] = []
    for field in StateField:
        old, new = _entries(before, field), _entries(after, field)
        found += [
            FieldChange(field=field, key=key, before=old.get(key), after=new.get(key))
            for key in {**old, **new}
            if old.get(key) != new.get(key)
        ]
    return found


def _entries(of: Table, field: StateField) -> dict[str, Value]:
    entries: dict[str, Value] = getattr(of, field)
    return entries


def _uncertain(state: State) -> list[FileTouch]:
    """Return the uncertain file operations in the order of their commits."""
    found = (touch for attempt in state.attempts.values() for touch in attempt.touches)
    return sorted(found, key=lambda touch: touch.seq)


def _pending(state: State) -> dict[str, PendingAction]:
    found: dict[str, PendingAction] = {}
    for call, standing in sorted(state.calls.items(), key=lambda item: item[1].seq):
        if not standing.status.unsettled:
            continue
        attempt = state.attempts.get(str(standing.seq)) or _UNSEEN
        found[call] = PendingAction(
            tool=attempt.tool,
            status=standing.status,
            seq=standing.seq,
            turn=attempt.turn,
            leg=standing.leg,
            attempt=standing.attempt,
            executed=Executed.MAYBE,
            since=timestamp(attempt.at),
            expires=timestamp(standing.expires) if standing.expires else None,
        )
    return found


_UNSEEN: Final = UnsettledAttempt(call="", tool="", turn=0, at=0)


def _usage(state: State) -> dict[str, float]:
    used, budget = state.usage, state.budget
    found: dict[str, float] = {
        "calls": used.calls,
        "attempts": used.attempts,
        "bytes_in": used.bytes_in,
        "bytes_out": used.bytes_out,
        "duration_ms": round(used.duration / 1e6, 3),
    }
    if budget is None:
        return found
    if budget.calls is not None:
        found |= _bounded("calls", budget.calls - used.calls)
    if budget.bytes is not None:
        found |= _bounded("bytes", budget.bytes - used.bytes_in - used.bytes_out)
    if budget.seconds is not None:
        left = round(budget.seconds - (state.at - state.opened_at) / _NS, 3)
        found |= _bounded("seconds", left)
    return found


def _bounded(what: str, left: float) -> dict[str, float]:
    """Return the rest of a budget, and by how much it is exceeded."""
    over = {f"{what}_over": -left} if left < 0 else {}
    return {f"{what}_left": max(left, 0), **over}
