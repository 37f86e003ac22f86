"""Tool definitions as each target listed them, for each credential apart (they may differ)."""

from collections import OrderedDict
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import Effect
from turnlog.wire.tools_list import Definition, ToolPage

_TOOLS: Final = 10_000
"""Most tools of one listing."""
_LISTINGS: Final = 4096
"""Most listings kept; the least recently used goes first."""


class Learned(Struct, frozen=True):
    """What a page said that was not known: how many tools are new, how many differ."""

    added: int
    changed: int
    whole: frozenset[str] | None
    """All tools of the list that the page ends; `None` where it ends none that was seen from its
    beginning."""


class ToolListing:
    """What one credential was listed, and the listing under way."""

    def __init__(self) -> None:
        self.known: dict[str, Definition] = {}
        self.complete = False
        """Whether all pages have been seen once."""
        self._new: dict[str, Definition] = {}
        self._begun = False
        """Whether the first page of the list under way was seen."""

    def take(self, page: ToolPage, *, first: bool) -> Learned:
        """Take in a page; return what it said that was not known."""
        added = len(page.definitions.keys() - self.known.keys())
        changed = sum(
            self.known[name].digest != definition.digest
            for name, definition in page.definitions.items()
            if name in self.known
        )
        if first:
            self._new = {}
            self._begun = True
        for definitions in (self._new, self.known):
            if len(definitions) < _TOOLS:
                definitions.update(page.definitions)
            else:
                # What was shown before is not what the caller was shown now.
                for name in page.definitions:
                    definitions.pop(name, None)
        if not page.next_cursor:
            self.known = self._new
            self.complete = True
        return Learned(added, changed, None if page.next_cursor else self._end())

    def _end(self) -> frozenset[str] | None:
        begun, self._begun = self._begun, False
        return frozenset(self.known) if begun and len(self.known) < _TOOLS else None


class ToolListings:
    """What each target said of its tools. A tool nobody listed is simply not known."""

    def __init__(self) -> None:
        self._listings: OrderedDict[tuple[str, str], ToolListing] = OrderedDict()
        self.changes = 0
        """How often something was learnt or forgotten."""

    def learn(self, target: str, credential: str, page: ToolPage, *, first: bool) -> Learned:
        """Take in one page of a `tools/list` answer; return what it said that was not known.

        A listing counts page by page, and once it is complete what it lacks is gone.
        """
        self.changes += 1
        key = (target, credential)
        listing = self._listings.setdefault(key, ToolListing())
        self._listings.move_to_end(key)
        if len(self._listings) > _LISTINGS:
            self._listings.popitem(last=False)
        return listing.take(page, first=first)

    def forget(self, target: str, credential: str) -> bool:
        """Forget what this credential was listed, as it was shown something else; tell whether there
        was anything."""
        self.changes += 1
        return self._listings.pop((target, credential), None) is not None

    def find(self, target: str, credential: str, tool: str) -> Definition | None:
        """Return the definition that this credential saw last."""
        listing = self._listings.get((target, credential))
        return listing.known.get(tool) if listing is not None else None

    def lacks(self, target: str, credential: str, tool: str) -> bool:
        """Tell whether a complete listing is known, and this tool is not in it."""
        listing = self._listings.get((target, credential))
        return listing is not None and listing.complete and tool not in listing.known


def effect_of(definition: Definition | None, *, trusted: bool) -> Effect:
    """Return the effect that a definition's annotations name, where the server is trusted.

    readOnlyHint means read, else idempotentHint idempotent_write, else write; destructiveHint
    changes nothing (semantics, section 4).
    """
    if definition is None or not trusted:
        return Effect.UNKNOWN
    if definition.read_only:
        return Effect.READ
    return Effect.IDEMPOTENT_WRITE if definition.idempotent else Effect.WRITE
