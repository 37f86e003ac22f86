"""A dict with a bound, for what is remembered of callers: they can make up any number of keys."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A dict of at most `most` items, the one set last at its end; a new one pushes out the first.

    A read does not count: where it should, set the item again. It has no copies: `copy` and `|` raise
    `TypeError`, as they do not know the bound.
    """

    # An `OrderedDict`, because a plain dict finds its first item ever more slowly as others go.

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        """Set an item as the newest."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
