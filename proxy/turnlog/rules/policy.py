"""What rules come to for one call.

The first rule that matches a call and speaks of an aspect decides that aspect (semantics, section
4). What no rule speaks of stays as it is without turnlog.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from math import inf
from typing import Any, Final

from msgspec import Struct, field, structs

from turnlog.core.kinds import Effect

from .expression import UNREADABLE, ExpressionInput, selects_any
from .model import (
    ASPECTS,
    Access,
    ErrorMap,
    Expects,
    Extractor,
    Idempotency,
    KeepContent,
    Match,
    OnDisconnect,
    OnDuplicate,
    RequiredProvenance,
    Retry,
    Rule,
    Surface,
    Timeouts,
)

_MAX_POLICIES: Final = 10_000
"""Most policies that are remembered."""
_GLOBS: Final = 4096
_BY_CAUTION: Final[Mapping[str, tuple[object, ...]]] = {
    "effect": (
        Effect.READ,
        Effect.IDEMPOTENT_WRITE,
        Effect.UNKNOWN,
        Effect.WRITE,
        Effect.IRREVERSIBLE,
    ),
    "store": (KeepContent.FULL, KeepContent.SUMMARY, KeepContent.NOTHING),
    "provenance": (RequiredProvenance.ANY, RequiredProvenance.PINNED),
    "access": (Access.ALLOW, Access.DENY),
}
"""The aspects that keep something from happening: what they may say, the most careful last."""

_UNREADABLE_WHY: Final = (
    "what this message asks for cannot be read for certain, and the rule denies some calls of this "
    "server"
)


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
    store: KeepContent = KeepContent.FULL
    provenance: RequiredProvenance = RequiredProvenance.ANY
    on_duplicate: OnDuplicate = OnDuplicate.JOIN
    on_disconnect: OnDisconnect | None = None
    """`None` where no rule says so: as the protocol's revision has it."""
    replay_if_slower_than: float = inf
    """s."""
    effect_key: tuple[str, ...] = ()
    """What names the effect that the call has on the world."""
    idempotency: Idempotency | None = None
    """How the server honours an idempotency key; `None` where no rule says that it does."""
    concurrency: int | None = None
    """How many calls of the rule that decides it may be under way; `None` for any number."""
    access: Access = Access.ALLOW
    why: str = ""
    """Why access is denied, as the rule says that decides it."""
    decided_by: dict[str, str] = field(default_factory=dict[str, str])
    """Name of the rule behind each aspect that one decided."""

    @property
    def uses_arguments(self) -> bool:
        """Whether something of this looks at the call's arguments when it has ended."""
        if self.delta or self.redact or self.null_when:
            return True
        return bool(self.map_error) and any(rule.when for rule in self.map_error)


class Subject(Struct, frozen=True, kw_only=True):
    """A call as far as rules look at it before its arguments."""

    server: str
    tool: str
    method: str
    path: str = ""
    """Of a plain HTTP tool."""
    hint: Effect = Effect.UNKNOWN
    """Effect by a trusted server's annotations."""


class _UncertainRules:
    """What rules say that may match or not, as nobody can tell what their `when` selects."""

    def __init__(self) -> None:
        self.rules = False
        """Whether there was any such rule."""
        self.said: dict[str, list[tuple[Any, str]]] = {aspect: [] for aspect in _BY_CAUTION}
        """For each aspect what they say before a rule that certainly matches, and their names."""
        self.redact: tuple[str, ...] = ()
        self.why: str | None = None
        """Of the first of them that denies access."""

    def add(self, rule: Rule, decided: Mapping[str, object]) -> None:
        """Take in such a rule."""
        self.rules = True
        for aspect, said in self.said.items():
            if aspect not in decided and getattr(rule, aspect) is not None:
                said.append((getattr(rule, aspect), rule.name))
        if "redact" not in decided:
            self.redact += rule.redact or ()
        if "access" not in decided and rule.access is Access.DENY and self.why is None:
            self.why = rule.why or ""

    @property
    def effects(self) -> set[object]:
        """The effects that the call may have."""
        return {effect for effect, _ in self.said["effect"]}

    def resolved(self, policy: Policy, hint: Effect) -> Policy:
        """Return a policy on the safe side: each aspect as careful as any rule may want it, and no
        retry, because the answer to another attempt may not be what the rules are about."""
        found: dict[str, Any] = {"retry": None, "redact": (*self.redact, *policy.redact)}
        names = {aspect: name for aspect, name in policy.decided_by.items() if aspect != "retry"}
        sure = {**structs.asdict(policy), "effect": policy.effect or hint}
        for aspect, order in _BY_CAUTION.items():
            for said, name in self.said[aspect]:
                if order.index(said) > order.index(found.get(aspect, sure[aspect])):
                    found[aspect], names[aspect] = said, name
        if "access" in found:
            found["why"] = self.why
        return structs.replace(policy, **found, decided_by=names)


def decide_policy(
    rules: Sequence[Rule], subject: Subject, arguments: Callable[[], object]
) -> Policy:
    """Return what the rules come to. `arguments` is called where a rule looks at them, and may give
    `UNREADABLE`: what such a rule says is then taken for the worst."""
    decided: dict[str, object] = {}
    names: dict[str, str] = {}
    doubt = _UncertainRules()
    for rule in rules:
        effects = {decided.get("effect", subject.hint), *doubt.effects}
        matches = _matches(rule.match, subject, effects, arguments)
        if matches is None:
            doubt.add(rule, decided)
        if not matches:
            continue
        for aspect in ASPECTS:
            said = getattr(rule, aspect)
            if said is not None and aspect not in decided:
                decided[aspect] = said
                names[aspect] = rule.name
                if aspect == "access":
                    decided["why"] = rule.why or ""
    policy = structs.replace(Policy(), **decided, decided_by=names)
    return doubt.resolved(policy, subject.hint) if doubt.rules else policy


def deny_unreadable(policy: Policy, rule: Rule) -> Policy:
    """Return a policy by which a rule denies a call that cannot be read surely."""
    # The rule's own reason is about the calls that it names, and this may be none of them.
    names = {**policy.decided_by, "access": rule.name}
    return structs.replace(policy, access=Access.DENY, why=_UNREADABLE_WHY, decided_by=names)


def rule_against_unreadable(rules: Sequence[Rule]) -> Rule | None:
    """Return the first rule that may deny a call that cannot be read surely, if there is one.

    What cannot be read surely is refused where such a rule exists: it may be a call that the rule
    is about (semantics, section 11).
    """
    for rule in rules:
        if rule.access is Access.DENY:
            return rule
        if rule.access is Access.ALLOW and structs.replace(rule.match, server=("*",)) == Match():
            return None
    return None


def may_deny_tool_calls(rules: Sequence[Rule]) -> bool:
    """Return whether one of the rules may deny a `tools/call`: those that name paths are of plain HTTP."""
    return any(
        rule.access is Access.DENY
        and not rule.match.path
        and matches_glob(rule.match.method, "tools/call")
        for rule in rules
    )


def tool_of_path(rules: Sequence[Rule], server: str, method: str, path: str) -> str | None:
    """Return the tool's name by the first rule that has a pattern for this path."""
    for rule in rules:
        match = rule.match
        if matches_glob(match.server, server) and matches_glob(match.method, method):
            for wanted in match.path:
                if _path_pattern(wanted).fullmatch(path):
                    return f"{method} {wanted}"
    return None


def matches_glob(globs: Sequence[str], text: str) -> bool:
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
        self._pathed: dict[str, tuple[Rule, ...]] = {}
        self._known: dict[Subject, Policy] = {}
        self._closing: dict[str, Rule | None] = {}
        self._closes_calls: dict[str, bool] = {}

    def may_deny_tool_calls(self, server: str) -> bool:
        """Return whether a rule may deny a `tools/call` of a server."""
        if server not in self._closes_calls:
            closing = self.rule_against_unreadable(server) is not None
            self._closes_calls[server] = closing and may_deny_tool_calls(self.rules(server))
        return self._closes_calls[server]

    def denies_path(self, server: str, rule: str) -> bool:
        """Return whether a rule of this name denies paths of a server."""
        return any(
            each.name == rule and each.access is Access.DENY for each in self.path_rules(server)
        )

    def rule_against_unreadable(self, server: str) -> Rule | None:
        """Return the rule by which a call of a server is denied that cannot be read surely."""
        if server not in self._closing:
            self._closing[server] = rule_against_unreadable(self.rules(server))
        return self._closing[server]

    def rules(self, server: str) -> tuple[Rule, ...]:
        """Return the rules for a server's calls: the user's, its packs', the default ones."""
        found = self._ordered.get(server)
        if found is None:
            found = (*self._own, *self._packs.get(server, ()), *self._last)
            found = tuple(rule for rule in found if matches_glob(rule.match.server, server))
            self._ordered[server] = found
        return found

    def path_rules(self, server: str) -> tuple[Rule, ...]:
        """Return those of a server's rules that look at the paths of its calls."""
        found = self._pathed.get(server)
        if found is None:
            found = tuple(rule for rule in self.rules(server) if rule.match.path)
            self._pathed[server] = found
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

        found = decide_policy(self.rules(subject.server), subject, look)
        if not looked:
            if len(self._known) >= _MAX_POLICIES:
                self._known.clear()
            self._known[subject] = found
        return found

    def is_cached(self, subject: Subject) -> bool:
        """Tell whether what the rules come to is known, whatever the arguments."""
        return subject in self._known


def _matches(
    match: Match, subject: Subject, effects: set[object], arguments: Callable[[], object]
) -> bool | None:
    """Tell whether a rule is for a call that has one of these effects; `None` for perhaps."""
    if not _covers(match, subject) or (match.effect and effects.isdisjoint(match.effect)):
        return False
    found = _holds(match.when, arguments)
    certain = not match.effect or effects.issubset(match.effect)
    return found if certain or not found else None


def _covers(match: Match, subject: Subject) -> bool:
    return (
        matches_glob(match.server, subject.server)
        and matches_glob(match.tool, subject.tool)
        and matches_glob(match.method, subject.method)
        and (not match.path or any(_path_pattern(p).fullmatch(subject.path) for p in match.path))
    )


def _holds(when: Sequence[str], arguments: Callable[[], object]) -> bool | None:
    """Tell whether each expression selects something; `None` where nobody can tell."""
    if not when:
        return True
    args = arguments()
    if args is UNREADABLE:
        return None
    seen = ExpressionInput(args=args)
    found = [selects_any(wanted, seen) for wanted in when]
    return None if None in found and False not in found else all(found)


@lru_cache(maxsize=_GLOBS)
def _glob(text: str) -> re.Pattern[str]:
    return re.compile(translate(text))


@lru_cache(maxsize=_GLOBS)
def _path_pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*)", text)
    return re.compile("".join({"**": ".*", "*": "[^/]*"}.get(p, re.escape(p)) for p in parts))
