"""Checks of whether a draft can be stored as it is. Pure.

An outcome comes late when its attempt was closed before the answer came: its number is taken. A
note or a claim is refused when its writer has not seen the newest commit that it speaks of.
"""

from collections.abc import Iterable, Sequence

from msgspec import structs

from turnlog.core.commit import Facts
from turnlog.core.kinds import Actor, CommitKind, Flag
from turnlog.store.base import Conflict
from turnlog.store.log.index import Entry


def is_displaced(draft: Facts, stored: Facts) -> bool:
    """Return whether `stored`, of the same attempt and number as `draft`, is not the same outcome.

    It is not when turnlog closed the attempt (recovery, expiry) or an operator settled it, or when
    it is an answer that had to move behind that.
    """
    return (
        draft.kind is CommitKind.OUTCOME
        and draft.actor is Actor.AGENT
        and (stored.actor is not Actor.AGENT or _has_moved(draft, stored))
    )


def late_outcome(draft: Facts, outcomes: Sequence[Facts]) -> Facts:
    """Return the facts to store for an outcome that `is_displaced`: the next number, flag `late`.

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


def version_conflict(newest: Entry | None, seen: int | None, head: int) -> Conflict | None:
    """Return why a note is refused, whose writer has seen the session up to `seen`.

    `newest` is the newest note about the same fact, `head` the seq of the session's newest commit.
    """
    if seen is not None and seen > head:
        return Conflict(f"commit {seen} is to come, the session's newest is {head}", head)
    if newest is None or (seen is not None and newest.link.seq <= seen):
        return None
    seq = newest.link.seq
    return Conflict(
        f"commit {seq} says something of the same fact; read it, and give {seq} or a later commit "
        "as the head that you have seen",
        seq,
    )


def claim_conflict(carrying: Iterable[Entry], seen: int | None, epoch: int) -> Conflict | None:
    """Return why an intent is refused, whose writer has seen the log up to position `seen`.

    `carrying` are commits with links that it claims. Those of its own writer (`epoch`) do not count:
    that process knows its own calls before they are written.
    """
    for entry in carrying:
        if entry.position > (seen or 0) and entry.link.epoch != epoch:
            seq = entry.link.seq
            return Conflict(f"commit {seq} claims the same; read it before you claim it again", seq)
    return None
