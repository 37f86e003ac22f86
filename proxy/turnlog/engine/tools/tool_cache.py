"""What is known of a tool before a call of it is looked at, worked out once and remembered."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from turnlog.core.kinds import Effect, Flag
from turnlog.core.pins import Provenance
from turnlog.record.attempt import BLANK, TOOL_CHARS, Ask
from turnlog.rules.policy import Rulebook, Subject

from .pin_set import PinSet
from .tool_listing import ToolListings, effect_of

UNKNOWN_TOOL: Final = "?"
"""Tool name of a call that does not say which."""
_TOOLS: Final = 4096
"""Most tools that are remembered."""
_UNNAMED: Final = frozenset({Effect.READ, Effect.UNKNOWN})


class ActiveRules:
    """The rules in force; another book takes their place when a file has changed."""

    __slots__ = ("book",)

    def __init__(self, book: Rulebook) -> None:
        self.book = book


class ToolCache:
    """Remembers what all calls of a tool ask alike: its names, its effect, what rules come to.

    That is a model of an `Ask`, whose other fields say nothing. It counts for as long as lists, pins
    and rules stay what they are; where a rule looks at a call's arguments none is remembered.
    """

    def __init__(
        self,
        catalog: ToolListings,
        pins: PinSet,
        rules: ActiveRules,
        trusted: frozenset[str],
        clean: Callable[[str], str],
    ) -> None:
        self._catalog = catalog
        self._pins = pins
        self._rules = rules
        self._trusted = trusted
        self._clean = clean
        self._tools: dict[tuple[str, str, str, str], Ask] = {}
        self._book = rules.book
        self._pinned: object = pins.digests
        self._listed = catalog.changes
        """What the tools remembered were worked out from."""

    def find(self, server: str, target: str, credential: str, name: str) -> Ask | None:
        """Return what is remembered of a tool."""
        if (
            self._book is self._rules.book
            and self._pinned is self._pins.digests
            and self._listed == self._catalog.changes
        ):
            return self._tools.get((server, target, credential, name))
        # Noted before anything is worked out anew: the pins are read in a thread of their own.
        self._book, self._pinned = self._rules.book, self._pins.digests
        self._listed = self._catalog.changes
        self._tools.clear()
        return None

    def look(
        self,
        server: str,
        target: str,
        credential: str,
        name: str,
        place: Sequence[str],
        arguments: Callable[[], object],
    ) -> Ask:
        """Work out what a call of a tool with these `arguments` asks, as far as others may alike; `place`
        is the target written out."""
        definition = self._catalog.find(target, credential, name)
        digest = definition.digest if definition is not None else b""
        hint = effect_of(definition, trusted=server in self._trusted)
        subject = Subject(server=server, tool=name, method="tools/call", hint=hint)
        book = self._rules.book
        policy = book.policy(subject, arguments)
        shown = self._clean(name[:TOOL_CHARS]) or UNKNOWN_TOOL
        standing = self._pins.standing(self._pins.name_of(server, place), shown, digest)
        changed = standing.provenance is Provenance.MISMATCH
        effect = policy.effect or hint
        model = structs.replace(
            BLANK,
            server=server,
            tool=shown,
            method="tools/call",
            effect=effect,
            definition=digest,
            flags=(Flag.CHANGED_DEFINITION,) if changed else (),
            policy=policy,
            standing=standing,
            is_named=effect not in _UNNAMED,
            principal=credential,
            target=target,
        )
        if book.is_cached(subject) and len(name) <= TOOL_CHARS:
            if len(self._tools) >= _TOOLS:
                self._tools.clear()
            self._tools[server, target, credential, name] = model
        return model
