"""Whether a commit may be placed whose writer has to know what was said before: of the fact that a note
is about, or of the links that an intent claims."""

from collections.abc import Iterable

from turnlog.store.base import Conflict
from turnlog.store.log.index import Entry


def conflict(newest: Entry | None, seen: int | None, head: int) -> Conflict | None:
    """Return why a note may not be placed, whose writer has seen the session up to `seen`.

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


def taken(carrying: Iterable[Entry], seen: int | None, epoch: int) -> Conflict | None:
    """Return why an intent may not be placed, whose writer has seen the log up to position `seen`.

    `carrying` are commits with links that it claims. Those of its own writer (`epoch`) do not count:
    that process knows its own calls before they are written.
    """
    for entry in carrying:
        if entry.position > (seen or 0) and entry.link.epoch != epoch:
            seq = entry.link.seq
            return Conflict(f"commit {seq} claims the same; read it before you claim it again", seq)
    return None
