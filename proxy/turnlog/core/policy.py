"""What rules come to for one call.

The first rule that matches a call and speaks of an aspect decides that aspect (semantics, section
4). What no rule speaks of stays as it is without turnlog.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Final

from msgspec import Struct, field, structs

from .expression import Seen, select
from .kinds import Effect
from .rules import (
    ASPECTS,
    Demand,
    ErrorMap,
    Expects,
    Extractor,
    Keep,
    Match,
    Retry,
    Rule,
    Surface,
    Timeouts,
)

_POLICIES: Final = 10_000
"""Most policies that are remembered."""
_GLOBS: Final = 4096


class Policy(Struct, frozen=True, kw_only=True):
    """What the rules come to for one call."""

    effect: Effect | None = None
    """As a rule names it; `None` where none does."""
    timeout: Timeouts = Timeouts()
    retry: Retry | None = None
    expects: Expects | None = None
    null_when: tuple[str, ...] = ()
    map_error: tuple[ErrorMap, ...] = ()
    surface: Surface = Surface.RESULT
    delta: tuple[Extractor, ...] = ()
    redact: tuple[str, ...] = ()
    store: Keep = Keep.FULL
    provenance: Demand = Demand.ANY
    decided_by: dict[str, str] = field(default_factory=dict[str, str])
    """Name of the rule behind each aspect that one decided."""

    @property
    def looks(self) -> bool:
        """Whether something of this looks at the call's arguments when it has ended."""
        mapped = any(rule.when for rule in self.map_error)
        return bool(self.delta or self.redact or self.null_when or mapped)


class Subject(Struct, frozen=True, kw_only=True):
    """A call as far as rules look at it before its arguments."""

    server: str
    tool: str
    method: str
    path: str = ""
    """Of a plain HTTP tool."""
    hint: Effect = Effect.UNKNOWN
    """Effect by a trusted server's annotations."""


def decide(rules: Sequence[Rule], subject: Subject, arguments: Callable[[], object]) -> Policy:
    """Return what the rules come to. `arguments` is called where a rule looks at them."""
    decided: dict[str, object] = {}
    names: dict[str, str] = {}
    for rule in rules:
        effect = decided.get("effect", subject.hint)
        if not _covers(rule.match, subject, effect) or not _holds(rule.match.when, arguments):
            continue
        for aspect in ASPECTS:
            said = getattr(rule, aspect)
            if said is not None and aspect not in decided:
                decided[aspect] = said
                names[aspect] = rule.name
    return structs.replace(Policy(), **decided, decided_by=names)


def tool_of_path(rules: Sequence[Rule], server: str, method: str, path: str) -> str | None:
    """Return the tool's name by the first rule that has a pattern for this path."""
    for rule in rules:
        match = rule.match
        if fits(match.server, server) and fits(match.method, method):
            for wanted in match.path:
                if _path_pattern(wanted).fullmatch(path):
                    return f"{method} {wanted}"
    return None


def fits(globs: Sequence[str], text: str) -> bool:
    """Tell whether one of the globs covers a text, in the same case."""
    return any(wanted == "*" or _glob(wanted).match(text) for wanted in globs)


class Rulebook:
    """The rules of one proxy, in order for each server, and what they came to so far."""

    def __init__(
        self, own: Sequence[Rule], packs: Mapping[str, Sequence[Rule]], last: Sequence[Rule]
    ) -> None:
        self._own = tuple(own)
        self._packs = packs
        self._last = tuple(last)
        self._ordered: dict[str, tuple[Rule, ...]] = {}
        self._known: dict[Subject, Policy] = {}

    def rules(self, server: str) -> tuple[Rule, ...]:
        """Return the rules for a server's calls: the user's, its packs', the default ones."""
        found = self._ordered.get(server)
        if found is None:
            found = (*self._own, *self._packs.get(server, ()), *self._last)
            found = tuple(rule for rule in found if fits(rule.match.server, server))
            self._ordered[server] = found
        return found

    def policy(self, subject: Subject, arguments: Callable[[], object]) -> Policy:
        """Return what the rules come to for a call; remembered where arguments do not matter."""
        known = self._known.get(subject)
        if known is not None:
            return known
        looked = False

        def look() -> object:
            nonlocal looked
            looked = True
            return arguments()

        found = decide(self.rules(subject.server), subject, look)
        if not looked:
            if len(self._known) >= _POLICIES:
                self._known.clear()
            self._known[subject] = found
        return found


def _covers(match: Match, subject: Subject, effect: object) -> bool:
    return (
        fits(match.server, subject.server)
        and fits(match.tool, subject.tool)
        and fits(match.method, subject.method)
        and (not match.effect or effect in match.effect)
        and (not match.path or any(_path_pattern(p).fullmatch(subject.path) for p in match.path))
    )


def _holds(when: Sequence[str], arguments: Callable[[], object]) -> bool:
    if not when:
        return True
    seen = Seen(args=arguments())
    return all(select(wanted, seen) for wanted in when)


@lru_cache(maxsize=_GLOBS)
def _glob(text: str) -> re.Pattern[str]:
    return re.compile(translate(text))


@lru_cache(maxsize=_GLOBS)
def _path_pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*)", text)
    return re.compile("".join({"**": ".*", "*": "[^/]*"}.get(p, re.escape(p)) for p in parts))
