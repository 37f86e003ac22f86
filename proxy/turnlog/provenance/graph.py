"""The paths of tainted values as a graph: from outputs to the calls that used them, and back."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from msgspec import Struct

P = TypeVar("P", bound=Hashable)
DEEPEST: Final = 32
"""Levels of a tree below its root."""


class GraphEdge(Struct, Generic[P], frozen=True):
    """Values of the output at `source` that stand in the input at `target`."""

    source: P
    target: P


class TreeLine(Struct, Generic[P], frozen=True):
    """A place in a tree."""

    place: P
    above: P | None
    """The place that it follows; `None` for a root."""
    lasts: tuple[bool, ...]
    """For each level from below the root down to its own, whether nothing follows at that level."""
    is_repeated: bool = False
    """Whether what follows it is shown where it stands first."""
    is_cut: bool = False
    """Whether what follows it is shown in a tree of its own, because this one is too deep."""


def leading_to(edges: Iterable[GraphEdge[P]], target: P) -> set[P]:
    """Return the places from which a path leads to a target, and the target."""
    sources: dict[P, list[P]] = defaultdict(list)
    for edge in edges:
        sources[edge.target].append(edge.source)
    found, waiting = {target}, [target]
    while waiting:
        for place in sources.get(waiting.pop(), ()):
            if place not in found:
                found.add(place)
                waiting.append(place)
    return found


def tree_lines(edges: Iterable[GraphEdge[P]], roots: Iterable[P]) -> Iterator[TreeLine[P]]:
    """Yield the lines of a tree for each root, from top to bottom. What follows a place is shown once."""
    targets: dict[P, dict[P, None]] = defaultdict(dict)
    for edge in edges:
        targets[edge.source][edge.target] = None
    shown, trees = set[P](), deque(roots)
    while trees:
        cut: dict[P, None] = {}
        yield from _one_tree(targets, trees.popleft(), shown, cut)
        trees.extendleft(reversed([place for place in cut if place not in shown]))


def _one_tree(
    targets: dict[P, dict[P, None]], root: P, shown: set[P], cut: dict[P, None]
) -> Iterator[TreeLine[P]]:
    # No recursion: a chain of calls may be as long as its session. Nor lines as long as the chain.
    waiting: list[tuple[P, P | None, tuple[bool, ...]]] = [(root, None, ())]
    while waiting:
        place, above, lasts = waiting.pop()
        below = list(targets.get(place, ()))
        is_repeated = place in shown and bool(below)
        is_cut = len(lasts) == DEEPEST and bool(below) and not is_repeated
        yield TreeLine(place, above, lasts, is_repeated, is_cut)
        if is_cut:
            cut[place] = None
        elif place not in shown:
            shown.add(place)
            for number, one in enumerate(reversed(below)):
                waiting.append((one, place, (*lasts, number == 0)))
