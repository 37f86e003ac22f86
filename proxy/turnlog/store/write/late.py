"""Outcomes whose number is taken: the attempt was closed before its answer came. Pure."""

from collections.abc import Sequence

from msgspec import structs

from turnlog.core.commit import Facts
from turnlog.core.kinds import Actor, CommitKind, Flag


def displaced(draft: Facts, stored: Facts) -> bool:
    """Tell whether `stored`, of the same attempt and number as `draft`, is not the same outcome.

    It is not when turnlog closed the attempt (recovery, expiry) or an operator settled it, or when
    it is an answer that had to move behind that.
    """
    return (
        draft.kind is CommitKind.OUTCOME
        and draft.actor is Actor.AGENT
        and (stored.actor is not Actor.AGENT or _has_moved(draft, stored))
    )


def moved(draft: Facts, outcomes: Sequence[Facts]) -> Facts:
    """Return what is stored of an outcome that is `displaced`: the next number, flag `late`.

    One that was stored so before keeps its number; `outcomes` are all of its attempt.
    """
    free = max(outcome.n for outcome in outcomes) + 1
    stored = (o.n for o in outcomes if _has_moved(draft, o) and _moved_to(draft, o.n) == o)
    return _moved_to(draft, next(stored, free))


def _has_moved(draft: Facts, stored: Facts) -> bool:
    return Flag.LATE in stored.flags and Flag.LATE not in draft.flags


def _moved_to(draft: Facts, n: int) -> Facts:
    flags = tuple(dict.fromkeys((*draft.flags, Flag.LATE)))
    return structs.replace(draft, n=n, flags=flags)
