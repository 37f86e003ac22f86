"""Turns and steps of a session, and the detection of calls that keep failing within a turn.

A turn is what an agent does in answer to one message of its user; a step is a set of calls that it
makes at once. Callers and vendors may name turns; otherwise pauses separate them.
"""

from collections.abc import Hashable
from typing import Final

from msgspec import Struct, structs

from .bounded_dict import BoundedDict
from .kinds import TurnSource

STEP_GAP = 250_000_000
"""ns: calls that start closer together than this belong to one step."""
TURN_GAP = 120_000_000_000
"""ns: a session that was quiet for this long, with no call in flight, begins a new turn."""
LOOP_CALLS: Final = 3
"""Calls that fail in the same way within a turn to count as a loop."""
_MAX_REMEMBERED: Final = 4096  # failures, the most recently seen ones


class TurnPosition(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The current turn and step of a session. Times are ns UTC."""

    turn: int = 1
    step: int = 0
    label: str = ""
    source: TurnSource = TurnSource.GAP
    started_at: int = 0
    """Time of the newest intent."""
    active_at: int = 0
    """Time of the newest commit."""
    in_flight: int = 0
    """Number of attempts without an outcome."""


def next_call(place: TurnPosition, at: int, label: str, source: TurnSource) -> TurnPosition:
    """Return the position of a call that starts at `at`.

    `label` is the name of the turn as given by `source`; empty leaves the turn to pauses.
    """
    turn, step, named, given = place.turn, place.step, place.label, place.source
    is_quiet = place.in_flight == 0
    has_new_label = bool(label) and label != named
    has_turn_gap = not label and is_quiet and at - place.active_at >= TURN_GAP
    if step == 0:
        step = 1
    elif has_new_label or has_turn_gap:
        turn, step, named, given = turn + 1, 1, "", TurnSource.GAP
    elif is_quiet and at - place.started_at >= STEP_GAP:
        step += 1
    if label:
        named, given = label, source
    return TurnPosition(
        turn=turn,
        step=step,
        label=named,
        source=given,
        started_at=at,
        active_at=at,
        in_flight=place.in_flight + 1,
    )


def new_turn(place: TurnPosition, at: int, label: str) -> TurnPosition:
    """Return the position after a caller has begun a new turn, named `label` if not empty."""
    # A turn without calls and with no other name is already the new one.
    is_new = place.step > 0 or place.label != ""
    if label and label == place.label:
        is_new = False
    return structs.replace(
        place,
        turn=place.turn + is_new,
        step=0 if is_new else place.step,
        label=label,
        source=TurnSource.EXPLICIT,
        active_at=max(place.active_at, at),
    )


def after_commit(place: TurnPosition, at: int, *, ended: int) -> TurnPosition:
    """Return the position after a commit that starts no call.

    `ended` is the number of attempts that ended with it; negative if attempts are open again.
    """
    active_at, in_flight = max(place.active_at, at), max(place.in_flight - ended, 0)
    return structs.replace(place, active_at=active_at, in_flight=in_flight)


class _Failure(Struct):
    """How often calls failed in one way within a turn. `turn` is 0 while it is not known."""

    calls: int
    last_call: bytes
    turn: int


class LoopDetector:
    """Counts failures by what was called and how it failed, to find calls that keep failing."""

    def __init__(self) -> None:
        self._failures: BoundedDict[Hashable, _Failure] = BoundedDict(_MAX_REMEMBERED)

    def add_failure(self, what: Hashable, call: bytes, *, turn: int) -> bool:
        """Count a failure of a call; return whether it is now part of a loop.

        `what` identifies tool, input and error. `turn` is 0 if the store has not numbered it yet;
        the failure then counts for the same turn as the one before.
        """
        seen = self._failures.get(what)
        if seen is None or (turn and seen.turn and turn != seen.turn):
            seen = _Failure(0, b"", turn)
        self._failures[what] = seen
        seen.turn = turn or seen.turn
        # Attempts of one call count once.
        if seen.last_call != call:
            seen.calls, seen.last_call = seen.calls + 1, call
        return seen.calls >= LOOP_CALLS
