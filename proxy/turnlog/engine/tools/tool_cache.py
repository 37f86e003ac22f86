"""Tools as they were listed, and the decisions of the rules about their calls."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct, structs

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.kinds import Effect, Flag
from turnlog.core.pins import Provenance
from turnlog.engine.request_identity import Request
from turnlog.record.attempt import BLANK, TOOL_CHARS, Ask
from turnlog.rules.http_tools import http_effect, http_tool, normalized_path
from turnlog.rules.model import Access
from turnlog.rules.policy import Rulebook, Subject, tool_of_path
from turnlog.wire.tools_list import Definition, ToolPage

from .pin_set import PinSet
from .server_identities import ServerIdentities

UNKNOWN_TOOL: Final = "?"
"""Tool name of a call that does not say which."""
_REMEMBERED: Final = 4096
"""Most tools that are remembered, of MCP and of plain HTTP each."""
_UNNAMED: Final = frozenset({Effect.READ, Effect.UNKNOWN})
_NO_WRITES: Final = frozenset({None, *_UNNAMED})
"""Effects that no rule has named, or that change nothing."""
_LISTED: Final = 10_000
"""Most tools of one listing."""
_LISTINGS: Final = 4096
"""Most listings kept; the least recently used goes first."""


class Learned(Struct, frozen=True):
    """How many tools in one page of a list are new, and how many differ."""

    added: int
    changed: int
    whole: frozenset[str] | None
    """All tools of the list, if the page completes one; `None` if it does not, or its start was not
    seen."""


class ToolListing:
    """The tools listed to one credential, and its unfinished listing."""

    def __init__(self) -> None:
        self.known: dict[str, Definition] = {}
        self.complete = False
        """Whether all pages have been seen once."""
        self._new: dict[str, Definition] = {}
        self._begun = False
        """Whether the first page of the list under way was seen."""

    def take(self, page: ToolPage, *, first: bool) -> Learned:
        """Add a page; return what is new in it."""
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
            if len(definitions) < _LISTED:
                definitions.update(page.definitions)
            else:
                # The caller was shown another definition now, for which there is no room.
                for name in page.definitions:
                    definitions.pop(name, None)
        if not page.next_cursor:
            self.known = self._new
            self.complete = True
        return Learned(added, changed, None if page.next_cursor else self._end())

    def _end(self) -> frozenset[str] | None:
        begun, self._begun = self._begun, False
        return frozenset(self.known) if begun and len(self.known) < _LISTED else None


class ToolListings:
    """Lists of tools by target. A tool that was not listed is unknown."""

    def __init__(self) -> None:
        self._listings: BoundedDict[tuple[str, str], ToolListing] = BoundedDict(_LISTINGS)
        self.changes = 0
        """How often a listing has changed or was forgotten."""

    def learn(self, target: str, credential: str, page: ToolPage, *, first: bool) -> Learned:
        """Add one page of a `tools/list` answer; return what is new in it.

        Each page counts at once; tools that a complete listing lacks are removed.
        """
        self.changes += 1
        key = (target, credential)
        listing = self._listings.setdefault(key, ToolListing())
        self._listings.move_to_end(key)
        return listing.take(page, first=first)

    def forget(self, target: str, credential: str) -> bool:
        """Forget the listing of a credential that was shown another one; return whether there was one."""
        self.changes += 1
        return self._listings.pop((target, credential), None) is not None

    def find(self, target: str, credential: str, tool: str) -> Definition | None:
        """Return the definition that this credential saw last."""
        listing = self._listings.get((target, credential))
        return listing.known.get(tool) if listing is not None else None

    def lacks(self, target: str, credential: str, tool: str) -> bool:
        """Return whether a complete listing is known, and this tool is not in it."""
        listing = self._listings.get((target, credential))
        return listing is not None and listing.complete and tool not in listing.known


def effect_of(definition: Definition | None, *, trusted: bool) -> Effect:
    """Return the effect that a definition's annotations name, where the server is trusted.

    readOnlyHint means read, else idempotentHint idempotent_write, else write; destructiveHint
    changes nothing.
    """
    if definition is None or not trusted:
        return Effect.UNKNOWN
    if definition.read_only:
        return Effect.READ
    return Effect.IDEMPOTENT_WRITE if definition.idempotent else Effect.WRITE


class ActiveRules:
    """The rules in force; another book takes their place when a file has changed."""

    __slots__ = ("book",)

    def __init__(self, book: Rulebook) -> None:
        self.book = book


class ToolCache:
    """The part of an `Ask` that is the same for all calls of a tool: names, effect, policy.

    It is remembered until lists, pins or rules change, unless a rule looks at a call's arguments.
    """

    def __init__(
        self,
        listings: ToolListings,
        pins: PinSet,
        rules: ActiveRules,
        trusted: frozenset[str],
        clean: Callable[[str], str],
        identities: ServerIdentities,
    ) -> None:
        self._identities = identities
        self._listings = listings
        self._pins = pins
        self._rules = rules
        self._trusted = trusted
        self._clean = clean
        self._tools: BoundedDict[tuple[str, str, str, str], Ask] = BoundedDict(_REMEMBERED)
        self._basis: tuple[object, ...] = ()
        """The rules, pins and listings that the remembered tools are based on."""

    def find(self, request: Request, name: str, arguments: Callable[[], object]) -> Ask:
        """Return the part of a call that is the tool's; `arguments` returns the call's own for rules."""
        # Taken before anything is derived from it: the pins are read in a thread of their own.
        basis = (self._rules.book, self._pins.digests, self._listings.changes)
        if basis != self._basis:
            self._tools.clear()
        self._basis = basis  # compared by identity the next time, also where it is only equal
        key = (request.server, request.target, request.credential, name)
        return self._tools.get(key) or self._look(key, request.place, arguments)

    def _look(
        self,
        key: tuple[str, str, str, str],
        place: Sequence[str],
        arguments: Callable[[], object],
    ) -> Ask:
        server, target, credential, name = key
        definition = self._listings.find(target, credential, name)
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
            known_server=self._identities.find(server, place),
            is_named=effect not in _UNNAMED,
            principal=credential,
            target=target,
        )
        if book.is_cached(subject) and len(name) <= TOOL_CHARS:
            self._tools[key] = model
        return model


class HttpToolCache:
    """The part of an `Ask` that is the same for all calls of a plain tool: names, effect, policy.

    It is remembered until the rules change, unless a rule looks at paths or at a call's arguments.
    """

    def __init__(
        self, rules: ActiveRules, clean: Callable[[str], str], identities: ServerIdentities
    ) -> None:
        self._identities = identities
        self._rules = rules
        self._clean = clean
        self._book = rules.book
        """The rules that the remembered tools are based on."""
        self._tools: BoundedDict[tuple[str, str, str, str, tuple[int, int]], Ask] = BoundedDict(
            _REMEMBERED
        )

    def find(self, request: Request, path: str, arguments: Callable[[], object]) -> Ask:
        """Return the part of a call that is the tool's; `arguments` returns the call's own for rules."""
        book, server = self._rules.book, request.server
        # Any token is a method, and a token may be a secret in the wrong place.
        method = self._clean(request.method)[:TOOL_CHARS]
        if self._book is not book:
            self._book = book
            self._tools.clear()
        pathed = book.servers[server].path_rules
        tool = tool_of_path(pathed, server, method, path) if pathed else None
        mask = request.route.target.mask
        tool = tool or http_tool(method, path if mask is None else mask.pattern(path))
        key = (server, request.credential, method, tool, request.asked.version)
        meant = normalized_path(path)
        # `/7` and `/%62` are both called `/*`, but only the second may mean a tool that is denied.
        known = self._tools.get(key) if not pathed and meant == path else None
        if known is not None:
            return known
        # There are many paths: one that no rule looks at is no part of what is remembered.
        subject = Subject(server=server, tool=tool, method=method, path=path if pathed else "")
        model = self._look(request, subject, arguments)
        if meant != path:
            # What a server takes `/a/../b` or `/%62` for is denied where `/b` is.
            tool = tool_of_path(pathed, server, method, meant) or http_tool(method, meant)
            subject = Subject(server=server, tool=tool, method=method, path=meant)
            policy = book.policy(subject, arguments)
            return structs.replace(model, policy=policy) if policy.access is Access.DENY else model
        if not pathed and book.is_cached(subject):
            self._tools[key] = model
        return model

    def _look(self, request: Request, subject: Subject, arguments: Callable[[], object]) -> Ask:
        policy = self._book.policy(subject, arguments)
        return structs.replace(
            BLANK,
            server=subject.server,
            tool=self._clean(subject.tool),
            method=subject.method,
            effect=policy.effect or http_effect(request.method),
            policy=policy,
            protocol=f"http/{request.http_version}",
            is_named=policy.effect not in _NO_WRITES,
            principal=request.credential,
            target=request.upstream,
            # Its tools have many paths, and one identity.
            known_server=self._identities.find(subject.server, request.route.target.place),
        )
