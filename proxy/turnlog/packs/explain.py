"""Explanation of the rules for one call: the policy, the deciding rules, and what is retried."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from turnlog.core.classify import MEANINGS, refused
from turnlog.core.kinds import Effect, ErrorKind
from turnlog.rules.http_tools import http_effect, http_tool
from turnlog.rules.model import ASPECTS, ProvenanceDemand, RequiredProvenance, Rule, Unmet
from turnlog.rules.policy import NO_DEMAND, Policy, Subject, decide_policy, tool_of_path
from turnlog.rules.retry import is_repeatable

from .rulebook import PlacedRule
from .shape import is_list, is_mapping

MCP: Final = "tools/call"
"""Method of an MCP tool; any other is that of a plain HTTP tool."""
_PINNED: Final = ProvenanceDemand(tool=RequiredProvenance.PINNED, then=Unmet.BLOCK)
_FINAL_KINDS: Final = frozenset(
    {ErrorKind.DEADLINE_EXHAUSTED, ErrorKind.CANCELLED_BY_CALLER, ErrorKind.OUTCOME_UNKNOWN}
)
"""Kinds that turnlog gives to a call that is over: never retried unless an error is mapped to one."""


class Aspect(Struct, frozen=True, kw_only=True):
    """The value of one aspect, and the rule that decided it; without a rule, the default."""

    value: Any
    """In the form of a file of rules; durations in seconds."""
    rule: str | None
    file: str | None
    line: int | None


class RetryForecast(Struct, frozen=True, kw_only=True):
    """Whether a failure that `retry.on` names would be retried."""

    error: str
    kind: str
    retry: str
    """Retry class after the first byte was sent."""
    retried: bool


class Explanation(Struct, frozen=True, kw_only=True):
    """The policy of a call with the rules that decided it."""

    server: str
    tool: str
    method: str
    path: str
    effect: Effect
    aspects: dict[str, Aspect]
    retries: list[RetryForecast]
    why: str
    """Reason that the caller of a denied call is told; empty for none."""


def explain_call(
    rules: Sequence[PlacedRule], call: Subject, arguments: dict[str, Any]
) -> Explanation:
    """Return the explanation of a call by the rules for its server, in order."""
    # Names are unique only within a file, so rules are renamed to their numbers.
    numbered = [structs.replace(one.rule, name=str(number)) for number, one in enumerate(rules)]
    call = with_tool_name(numbered, call)
    policy = decide_policy(numbered, call, lambda: arguments)
    return Explanation(
        server=call.server,
        tool=call.tool,
        method=call.method,
        path=call.path,
        effect=effect_in_force(policy, call),
        aspects={name: _aspect(name, policy, rules) for name in ASPECTS},
        retries=_retries(policy, call),
        why=policy.why,
    )


def _aspect(name: str, policy: Policy, rules: Sequence[PlacedRule]) -> Aspect:
    said = getattr(policy, name)
    if isinstance(said, ProvenanceDemand):
        said = _short_form(said)
    value = _as_written(msgspec.json.decode(msgspec.json.encode(said)))
    number = policy.decided_by.get(name)
    if number is None:
        return Aspect(value=value, rule=None, file=None, line=None)
    decided = rules[int(number)]
    return Aspect(value=value, rule=decided.rule.name, file=decided.source.shown, line=decided.line)


def _short_form(demand: ProvenanceDemand) -> ProvenanceDemand | RequiredProvenance:
    """Return the word that stands for a demand, if there is one."""
    if demand == NO_DEMAND:
        return RequiredProvenance.ANY
    return RequiredProvenance.PINNED if demand == _PINNED else demand


def _as_written(value: Any) -> Any:
    """Return a value without empty members of mappings: no text, an empty list, no limit."""
    if is_list(value):
        return [_as_written(item) for item in value]
    if not is_mapping(value):
        return value
    return {key: item for key, item in value.items() if item not in (None, "", [])}


def _retries(policy: Policy, call: Subject) -> list[RetryForecast]:
    named = frozenset(policy.retry.on if policy.retry is not None else ())
    kinds = [kind for kind in ErrorKind if not named.isdisjoint({kind, MEANINGS[kind].family})]
    in_force = effect_in_force(policy, call)
    over = _FINAL_KINDS - {mapped.kind for mapped in policy.map_error or ()}
    endings = [refused(kind, in_force) for kind in kinds]
    return [
        RetryForecast(
            error=ending.error,
            kind=ending.kind,
            retry=ending.retry,
            retried=is_repeatable(ending, in_force, keyed=policy.idempotency is not None)
            and ending.kind not in over,
        )
        for ending in endings
    ]


def with_tool_name(rules: Sequence[Rule], call: Subject) -> Subject:
    """Return a call with the name of its tool, which for a plain HTTP call comes from its path."""
    if not call.path:
        return call
    tool = tool_of_path(rules, call.server, call.method, call.path)
    return structs.replace(call, tool=tool or http_tool(call.method, call.path))


def call_arguments(method: str, path: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the `{args}` of expressions for a call's input."""
    return given if method == MCP else {"path": path, "query": "", "body": None, **given}


def effect_in_force(policy: Policy, call: Subject) -> Effect:
    """Return the effect of a call: as decided by a rule, else as its HTTP method suggests."""
    unnamed = Effect.UNKNOWN if call.method == MCP else http_effect(call.method)
    return policy.effect or unnamed
