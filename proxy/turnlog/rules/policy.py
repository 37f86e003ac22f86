"""The policy of a call: for each aspect the value of the first matching rule that decides it.

An aspect that no rule decides is as without turnlog.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from math import inf
from typing import Any, Final, TypeAlias

from msgspec import Struct, field, structs

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.kinds import Effect

from .expression import UNREADABLE, ExpressionInput, selects_any
from .model import (
    ASPECTS,
    Access,
    BlockIf,
    Compensation,
    ErrorMap,
    Expects,
    Extractor,
    Idempotency,
    KeepContent,
    Match,
    OnDisconnect,
    OnDuplicate,
    ProvenanceDemand,
    RequiredInputs,
    RequiredProvenance,
    RequiredResult,
    Retry,
    Rule,
    Surface,
    TaintAction,
    Timeouts,
    Unmet,
)

_MAX_POLICIES: Final = 10_000
_GLOBS: Final = 4096
NO_DEMAND: Final = ProvenanceDemand()
Choice: TypeAlias = Callable[[Any, Any], Any]


def _by_order(*values: object) -> Choice:
    """Return the choice of the later of two values."""
    return lambda one, other: max(one, other, key=values.index)


def _stricter(one: ProvenanceDemand, other: ProvenanceDemand) -> ProvenanceDemand:
    """Return everything that one of the two demands, with the stricter consequence."""
    return ProvenanceDemand(
        tool=max(one.tool, other.tool, key=tuple(RequiredProvenance).index),
        inputs=max(one.inputs, other.inputs, key=tuple(RequiredInputs).index),
        result=max(one.result, other.result, key=tuple(RequiredResult).index),
        then=max(one.then, other.then, key=tuple(Unmet).index),
    )


_BY_CAUTION: Final[Mapping[str, Choice]] = {
    "effect": _by_order(
        Effect.READ,
        Effect.IDEMPOTENT_WRITE,
        Effect.UNKNOWN,
        Effect.WRITE,
        Effect.IRREVERSIBLE,
    ),
    "store": _by_order(KeepContent.FULL, KeepContent.SUMMARY, KeepContent.NOTHING),
    "provenance": _stricter,
    "block_if": _by_order(BlockIf.NEVER, BlockIf.TAINTED),
    "taint": _by_order(TaintAction.ENDORSE, None, TaintAction.MARK),
    "access": _by_order(Access.ALLOW, Access.DENY),
}
"""Aspects that prevent something: the choice of the more cautious of two values."""

_UNREADABLE_WHY: Final = (
    "what this message asks for cannot be read for certain, and the rule denies some calls of this "
    "server"
)


class Policy(Struct, frozen=True, kw_only=True):
    """The decisions of the rules for one call."""

    effect: Effect | None = None
    """`None` if no rule names it."""
    timeout: Timeouts = Timeouts()
    retry: Retry | None = None
    expects: Expects | None = None
    null_when: tuple[str, ...] = ()
    map_error: tuple[ErrorMap, ...] = ()
    surface: Surface = Surface.RESULT
    delta: tuple[Extractor, ...] = ()
    redact: tuple[str, ...] = ()
    store: KeepContent = KeepContent.FULL
    provenance: ProvenanceDemand = NO_DEMAND
    block_if: BlockIf = BlockIf.NEVER
    taint: TaintAction | None = None
    on_duplicate: OnDuplicate = OnDuplicate.JOIN
    on_disconnect: OnDisconnect | None = None
    """`None` if no rule decides it: it then depends on the protocol's revision."""
    replay_if_slower_than: float = inf
    """s."""
    effect_key: tuple[str, ...] = ()
    """Expressions that identify the effect of the call."""
    idempotency: Idempotency | None = None
    """How the server accepts an idempotency key; `None` if no rule says that it does."""
    concurrency: int | None = None
    """Number of calls of the deciding rule that may be in flight; `None` for no limit."""
    access: Access = Access.ALLOW
    why: str = ""
    """Reason of the rule that denies access."""
    compensate: Compensation | None = None
    """The call that would undo the effect; `None` if no rule names one."""
    decided_by: dict[str, str] = field(default_factory=dict[str, str])
    """Name of the deciding rule of each decided aspect."""
    judges_answers: bool = False
    """Whether it can change the judgement of an answer; derived from the others."""
    looks_at_inputs: bool = False
    """Whether the sources of a call's inputs must be known before it is sent; derived from the others."""

    def __post_init__(self) -> None:
        judges = bool(self.map_error or self.null_when or self.expects)
        demand, looks = self.provenance, self.block_if is not BlockIf.NEVER
        if demand is not NO_DEMAND:
            judges = judges or _may_surface(demand)
            looks = looks or (
                demand.then is not Unmet.FLAG and demand.inputs is not RequiredInputs.ANY
            )
        structs.force_setattr(self, "judges_answers", judges)
        structs.force_setattr(self, "looks_at_inputs", looks)

    @property
    def uses_arguments(self) -> bool:
        """Whether the call's arguments are needed when it has ended."""
        if self.delta or self.redact or self.null_when:
            return True
        return bool(self.map_error) and any(rule.when for rule in self.map_error)


def _may_surface(demand: ProvenanceDemand) -> bool:
    """Return whether a demand can turn a success into an error."""
    if demand.then is Unmet.FLAG:
        return False
    if demand.result is not RequiredResult.ANY:
        return True
    # With `block`, tool and inputs refuse the call before it is sent.
    is_about_call = (
        demand.tool is not RequiredProvenance.ANY or demand.inputs is not RequiredInputs.ANY
    )
    return demand.then is Unmet.SURFACE and is_about_call


class Subject(Struct, frozen=True, kw_only=True):
    """The parts of a call that rules match, except its arguments."""

    server: str
    tool: str
    method: str
    path: str = ""
    """Path of a plain HTTP tool."""
    hint: Effect = Effect.UNKNOWN
    """Effect from the annotations of a trusted server."""


class _UncertainRules:
    """Rules that may match or not, because their `when` cannot be applied to the arguments."""

    def __init__(self) -> None:
        self.rules = False
        """Whether there is any such rule."""
        self.said: dict[str, list[tuple[Any, str]]] = {aspect: [] for aspect in _BY_CAUTION}
        """Values and rule names for each aspect, before a rule that certainly matches."""
        self.redact: tuple[str, ...] = ()
        self.why: str | None = None
        """Reason of the first rule that denies access."""

    def add(self, rule: Rule, decided: Mapping[str, object]) -> None:
        """Add a rule; `decided` has the aspects that earlier rules certainly decide."""
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
        """Return `policy` with the most cautious value of each aspect."""
        # And without retries: they might be meant for another call.
        found: dict[str, Any] = {"retry": None, "redact": (*self.redact, *policy.redact)}
        names = {aspect: name for aspect, name in policy.decided_by.items() if aspect != "retry"}
        sure = {**structs.asdict(policy), "effect": policy.effect or hint}
        for aspect, more_cautious in _BY_CAUTION.items():
            for said, name in self.said[aspect]:
                before = found.get(aspect, sure[aspect])
                after = more_cautious(before, said)
                if after != before:
                    found[aspect], names[aspect] = after, name
        if "access" in found:
            found["why"] = self.why
        return structs.replace(policy, **found, decided_by=names)


def decide_policy(
    rules: Sequence[Rule], subject: Subject, arguments: Callable[[], object]
) -> Policy:
    """Return the policy of a call.

    `arguments` is called if a rule looks at them. If it returns `UNREADABLE`, rules with conditions
    on arguments count with their most cautious values.
    """
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
    """Return a policy by which `rule` denies a call that cannot be read with certainty."""
    # The rule's own reason is about the calls that it names, and this may be another one.
    names = {**policy.decided_by, "access": rule.name}
    return structs.replace(policy, access=Access.DENY, why=_UNREADABLE_WHY, decided_by=names)


def rule_against_unreadable(rules: Sequence[Rule]) -> Rule | None:
    """Return the first rule that may deny a call that cannot be read with certainty, if any.

    Such a call is refused if there is one: the rule may be about it.
    """
    exempt: set[str] = set()
    for rule in rules:
        if not exempt.issuperset(_refusing_aspects(rule)):
            return rule
        if structs.replace(rule.match, server=("*",)) == Match():
            exempt.update(aspect for aspect in _GATES if getattr(rule, aspect) is not None)
    return None


def _refusing_aspects(rule: Rule) -> list[str]:
    """Return the aspects by which a rule may refuse a call because of what it asks for."""
    return [aspect for aspect, refuses in _GATES.items() if refuses(getattr(rule, aspect))]


def _blocks_unsourced_inputs(demand: ProvenanceDemand | None) -> bool:
    if demand is None or demand.inputs is RequiredInputs.ANY:
        return False
    return demand.then is Unmet.BLOCK


_GATES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "access": lambda said: said is Access.DENY,
    "block_if": lambda said: said is BlockIf.TAINTED,
    "provenance": _blocks_unsourced_inputs,
}
"""Aspects by which a rule may refuse a call because of what it asks for: whether a value of one does."""


def may_deny_tool_calls(rules: Sequence[Rule]) -> bool:
    """Return whether one of the rules may deny a `tools/call`."""
    # Rules that name paths are for plain HTTP.
    return any(
        _refusing_aspects(rule)
        and not rule.match.path
        and matches_glob(rule.match.method, "tools/call")
        for rule in rules
    )


def tool_of_path(rules: Sequence[Rule], server: str, method: str, path: str) -> str | None:
    """Return the name of a tool by the first rule with a pattern for this path."""
    for rule in rules:
        match = rule.match
        if matches_glob(match.server, server) and matches_glob(match.method, method):
            for wanted in match.path:
                if _path_pattern(wanted).fullmatch(path):
                    return f"{method} {wanted}"
    return None


def matches_glob(globs: Sequence[str], text: str) -> bool:
    """Return whether one of the globs matches a text; case matters."""
    return any(wanted == "*" or _glob(wanted).match(text) for wanted in globs)


class ServerRules(Struct, frozen=True):
    """The rules of one server, and facts about them that hold for all of its calls."""

    rules: tuple[Rule, ...]
    """In their order: the user's, those of its packs, the default ones."""
    path_rules: tuple[Rule, ...]
    """Those that match paths."""
    against_unreadable: Rule | None
    """The one that denies calls which cannot be read with certainty."""
    may_deny_tool_calls: bool
    """Whether one may deny a `tools/call`."""

    def denies_path(self, rule: str) -> bool:
        """Return whether a rule of this name denies paths."""
        return any(each.name == rule and each.access is Access.DENY for each in self.path_rules)

    def gates_path(self, policy: Policy) -> bool:
        """Return whether a rule that names paths lets this policy look at the inputs of a call."""
        deciding = {policy.decided_by.get(aspect) for aspect in ("block_if", "provenance")}
        return policy.looks_at_inputs and any(
            each.name in deciding and _refusing_aspects(each) for each in self.path_rules
        )


class _RulesByServer(dict[str, ServerRules]):
    """The rules of servers by name, determined when a name is first looked up."""

    def __init__(
        self, own: Sequence[Rule], packs: Mapping[str, Sequence[Rule]], last: Sequence[Rule]
    ) -> None:
        super().__init__()
        self._own, self._packs, self._last = tuple(own), packs, tuple(last)

    def __missing__(self, server: str) -> ServerRules:
        every = (*self._own, *self._packs.get(server, ()), *self._last)
        rules = tuple(rule for rule in every if matches_glob(rule.match.server, server))
        against_unreadable = rule_against_unreadable(rules)
        found = self[server] = ServerRules(
            rules=rules,
            path_rules=tuple(rule for rule in rules if rule.match.path),
            against_unreadable=against_unreadable,
            may_deny_tool_calls=against_unreadable is not None and may_deny_tool_calls(rules),
        )
        return found


class Rulebook:
    """The rules of a proxy for each server, with a cache of policies."""

    def __init__(
        self, own: Sequence[Rule], packs: Mapping[str, Sequence[Rule]], last: Sequence[Rule]
    ) -> None:
        self.servers: Mapping[str, ServerRules] = _RulesByServer(own, packs, last)
        """By the name of a server, also of one without rules of its own."""
        self._known: BoundedDict[Subject, Policy] = BoundedDict(_MAX_POLICIES)

    def policy(self, subject: Subject, arguments: Callable[[], object]) -> Policy:
        """Return the policy of a call; it is cached if it does not depend on the arguments."""
        known = self._known.get(subject)
        if known is not None:
            return known
        looked = False

        def look() -> object:
            nonlocal looked
            looked = True
            return arguments()

        found = decide_policy(self.servers[subject.server].rules, subject, look)
        if not looked:
            self._known[subject] = found
        return found

    def is_cached(self, subject: Subject) -> bool:
        """Return whether the policy is known and does not depend on the arguments."""
        return subject in self._known


def _matches(
    match: Match, subject: Subject, effects: set[object], arguments: Callable[[], object]
) -> bool | None:
    """Return whether a rule matches a call that has one of these effects; `None` for maybe."""
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
    """Return whether every expression selects something; `None` if that cannot be known."""
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
