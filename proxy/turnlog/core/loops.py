"""Notice that the same call fails the same way again and again within a turn. Only failures count."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from msgspec import Struct

LOOP_CALLS: Final = 3
"""So many calls that fail alike are a loop."""
_MAX_REMEMBERED: Final = 4096
"""Failures remembered; those that were not seen for longest are forgotten first."""


class _Seen(Struct):
    """How often a call failed in one way. `turn` is 0 while it is not known."""

    calls: int
    last: bytes
    turn: int


class LoopDetector:
    """The failures of one proxy."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()

    def add_failure(self, what: Hashable, call: bytes, *, turn: int) -> bool:
        """Note that a call failed; `what` says which, where and how. Tell whether that is a loop.

        Further attempts of the same call are none of their own. `turn` is its number, 0 where the
        store has not said it yet: then it counts for the turn before.
        """
        seen = self._seen.get(what)
        if seen is None or (turn and seen.turn and turn != seen.turn):
            seen = self._seen[what] = _Seen(0, b"", turn)
            if len(self._seen) > _MAX_REMEMBERED:
                self._seen.popitem(last=False)
        self._seen.move_to_end(what)
        seen.turn = turn or seen.turn
        if seen.last != call:
            seen.calls, seen.last = seen.calls + 1, call
        return seen.calls >= LOOP_CALLS
