"""Place calls in turns and steps, from what a session's head remembers."""

from typing import Final

from msgspec import Struct

from .kinds import TurnSource

# A member of an enum takes Python 3.11 a slow look-up, and this runs for each commit.
_GAP: Final = TurnSource.GAP

STEP_GAP = 250_000_000
"""ns: calls that start closer together than this belong to one step."""
TURN_GAP = 120_000_000_000
"""ns: a session that was quiet this long, with nothing in flight, begins a new turn."""


class TurnPosition(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The turn and step at which a session stands. Times are ns UTC."""

    turn: int = 1
    step: int = 0
    label: str = ""
    source: TurnSource = TurnSource.GAP
    started_at: int = 0
    """When the newest intent was made."""
    active_at: int = 0
    """When the newest commit was made."""
    in_flight: int = 0
    """Attempts without outcome."""


def next_call(place: TurnPosition, at: int, label: str, source: TurnSource) -> TurnPosition:
    """Return the place of a call that starts at `at`.

    `label` is the turn as `source` names it; empty leaves it to the gaps.
    """
    turn, step, named, given = place.turn, place.step, place.label, place.source
    is_quiet = place.in_flight == 0
    if step == 0:
        step = 1
    elif label != named if label else is_quiet and at - place.active_at >= TURN_GAP:
        turn, step, named, given = turn + 1, 1, "", _GAP
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
    """Return the place where somebody says that another turn begins; `label` may name it.

    A turn without a call that is not named otherwise is that turn.
    """
    is_new = place.step > 0 or place.label != ""
    if label and label == place.label:
        is_new = False
    return TurnPosition(
        turn=place.turn + 1 if is_new else place.turn,
        step=0 if is_new else place.step,
        label=label,
        source=TurnSource.EXPLICIT,
        started_at=place.started_at,
        active_at=max(place.active_at, at),
        in_flight=place.in_flight,
    )


def after_commit(place: TurnPosition, at: int, *, ended: int) -> TurnPosition:
    """Return the place after a commit that starts no call; `ended` attempts got their outcome, or
    as many began again where it is negative."""
    active_at, in_flight = place.active_at, place.in_flight - ended
    if at > active_at:
        active_at = at
    if in_flight < 0:
        in_flight = 0
    return TurnPosition(
        turn=place.turn,
        step=place.step,
        label=place.label,
        source=place.source,
        started_at=place.started_at,
        active_at=active_at,
        in_flight=in_flight,
    )
