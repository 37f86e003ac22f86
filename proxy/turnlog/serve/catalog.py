"""Tool definitions as the upstreams listed them, for each credential apart (they may differ)."""

from collections import OrderedDict
from typing import Final

from turnlog.core.kinds import Effect
from turnlog.wire.mcp import Definition, ToolPage

_LISTINGS: Final = 4096
"""Most listings kept; the least recently used goes first."""


class Catalog:
    """What each upstream said of its tools. A tool nobody listed is simply not known."""

    def __init__(self) -> None:
        self._listings: OrderedDict[tuple[str, str], dict[str, Definition]] = OrderedDict()

    def learn(self, upstream: str, credential: str, page: ToolPage) -> tuple[int, int]:
        """Take in one page of a `tools/list` answer; return how many are new, and how many
        differ from what was listed before."""
        key = (upstream, credential)
        known = self._listings.setdefault(key, {})
        self._listings.move_to_end(key)
        added = len(page.definitions.keys() - known.keys())
        changed = sum(
            known[name].digest != definition.digest
            for name, definition in page.definitions.items()
            if name in known
        )
        known.update(page.definitions)
        if len(self._listings) > _LISTINGS:
            self._listings.popitem(last=False)
        return added, changed

    def find(self, upstream: str, credential: str, tool: str) -> Definition | None:
        """Return the definition that this credential saw last."""
        return self._listings.get((upstream, credential), _NONE).get(tool)


_NONE: Final[dict[str, Definition]] = {}


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
