"""Whether a note about a fact may be placed: its writer has to know what was said of it before."""

from .base import Conflict
from .index import Entry


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
