"""The state of a call, folded from its commits: the newest attempt of its newest leg.

A leg is one request of a call; a call has several if it asks for input or runs as a task.
"""

from msgspec import Struct, structs

from .commit import Facts, Link
from .kinds import CommitKind, Flag, NoteKind, Status


class CallState(Struct, frozen=True, array_like=True, gc=False):
    """The newest attempt of a call, and its last outcome."""

    session: bytes
    intent: int
    """Position of the attempt's intent in the store."""
    seq: int
    leg: int
    attempt: int
    status: Status
    n: int = -1
    """Number of the last outcome; -1 for none."""
    expires: int = 0
    polled_leg: "CallState | None" = None
    """The parked leg that a `tasks/` request asks about, while that request runs."""
    delivered: bool = True
    """Whether the caller has received the last outcome; true as well if no note will say so."""


def next_call_state(
    state: CallState | None, link: Link, facts: Facts, position: int
) -> CallState | None:
    """Return the state of a call after one more of its commits, which is at `position`.

    A late outcome of an earlier attempt changes nothing.
    """
    match facts.kind:
        case CommitKind.INTENT:
            return _after_intent(state, link, facts, position)
        case CommitKind.OUTCOME if state and _same_attempt(state, facts):
            return _after_outcome(state, facts)
        case CommitKind.NOTE if state and facts.note == NoteKind.DELIVERED:
            return structs.replace(state, delivered=True) if _same_attempt(state, facts) else state
        case _:
            return state


def _same_attempt(state: CallState, facts: Facts) -> bool:
    return (facts.leg, facts.attempt) == (state.leg, state.attempt)


def _after_intent(state: CallState | None, link: Link, facts: Facts, position: int) -> CallState:
    behind = None
    if state:
        if (facts.leg, facts.attempt) < (state.leg, state.attempt):
            return state
        if facts.method.startswith("tasks/"):
            behind = state if state.status.parked else state.polled_leg
    return CallState(
        link.session,
        position,
        link.seq,
        facts.leg,
        facts.attempt,
        Status.PENDING,
        polled_leg=behind,
    )


def _after_outcome(state: CallState, facts: Facts) -> CallState:
    # A request about a task that failed without an answer: the task itself runs on.
    failed = facts.status in (Status.ERROR, Status.UNKNOWN)
    if state.polled_leg and failed and facts.code is None:
        return state.polled_leg
    return CallState(
        state.session,
        state.intent,
        state.seq,
        state.leg,
        state.attempt,
        facts.status,
        facts.n,
        facts.expires if facts.status.parked else 0,
        delivered=_is_delivered(state, facts),
    )


def _is_delivered(state: CallState, facts: Facts) -> bool:
    # A note follows the first outcome of a guarded call. An operator who resolves a call informs its
    # caller himself.
    if state.n < 0:
        return not facts.guarded
    return state.delivered or Flag.RESOLVED in facts.flags
