"""Outcomes that found no room on the disk: kept in memory until there is some.

Their intents are on disk and their answers were handed on: what is lost here would read as a call
that nobody knows the end of.
"""

from collections.abc import Iterator

from turnlog.core.kinds import Actor, CommitKind

from .tickets import Pending


class Kept:
    """Outcomes in the order in which they came. Belongs to who writes."""

    def __init__(self, most: int) -> None:
        """`most` is how many bytes may be kept."""
        self._most = most
        self._size = 0
        self._pending: list[Pending] = []

    def __len__(self) -> int:
        return len(self._pending)

    def take(self, pending: Pending) -> bool:
        """Keep a draft if it is an outcome and there is memory for it."""
        size, facts = _size(pending), pending.draft.facts
        # An operator is told that nothing was written: so it has to be.
        if facts.kind is not CommitKind.OUTCOME or facts.actor is Actor.OPERATOR:
            return False
        if self._size + size > self._most:
            return False
        self._pending.append(pending)
        self._size += size
        return True

    def pieces(self) -> Iterator[list[Pending]]:
        """Yield and let go of what is kept, oldest first; a piece is let go of when it was used.

        Each piece is larger than the one before: little room takes the first, and a disk with
        much room is not waited for once for each.
        """
        size = 1
        while self._pending:
            piece = self._pending[:size]
            yield piece
            del self._pending[:size]
            self._size -= sum(map(_size, piece))
            size *= 2


def _size(pending: Pending) -> int:
    intent = pending.draft.intent
    # One that was not written either is tried again with its outcome.
    return pending.size + (intent.size if isinstance(intent, Pending) else 0)
