"""Say what rules come to for one call, which of them decided it, and what would be retried."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from turnlog.core.classify import MEANINGS, refused
from turnlog.core.kinds import Effect, ErrorKind
from turnlog.rules.model import ASPECTS
from turnlog.rules.policy import Policy, Subject, decide_policy
from turnlog.rules.retry import is_repeatable

from .rulebook import PlacedRule
from .shape import is_list, is_mapping
from .subject import call_subject, effect_in_force

_FINAL_KINDS: Final = frozenset(
    {ErrorKind.DEADLINE_EXHAUSTED, ErrorKind.CANCELLED_BY_CALLER, ErrorKind.OUTCOME_UNKNOWN}
)
"""What turnlog says of a call that is over: nothing follows, unless it is what an answer means."""


class Aspect(Struct, frozen=True, kw_only=True):
    """What is in force for one aspect. Without a rule it is as if there were no turnlog."""

    value: Any
    """As a file of rules would say it; durations in seconds."""
    rule: str | None
    file: str | None
    line: int | None


class RetryForecast(Struct, frozen=True, kw_only=True):
    """What would become of a call that failed in one of the ways that `retry.on` names."""

    error: str
    kind: str
    retry: str
    """The class in force, once the call's first byte was sent."""
    retried: bool


class Explanation(Struct, frozen=True, kw_only=True):
    """What the rules come to for a call."""

    server: str
    tool: str
    method: str
    path: str
    effect: Effect
    aspects: dict[str, Aspect]
    retries: list[RetryForecast]
    why: str
    """What the caller of a denied call is told; empty for a call that is not, and where no rule says it."""


class ExplainedCall(Struct, frozen=True, kw_only=True):
    """The call in question."""

    server: str
    tool: str
    method: str
    path: str
    arguments: dict[str, Any]


def explain_call(rules: Sequence[PlacedRule], asked: ExplainedCall) -> Explanation:
    """Explain a call by the rules for its server, in order."""
    # Names need not be unique beyond one file; numbers are.
    numbered = [structs.replace(one.rule, name=str(number)) for number, one in enumerate(rules)]
    call = call_subject(numbered, asked.server, asked.tool, asked.method, asked.path)
    policy = decide_policy(numbered, call, lambda: asked.arguments)
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
    value = _as_written(msgspec.json.decode(msgspec.json.encode(getattr(policy, name))))
    number = policy.decided_by.get(name)
    if number is None:
        return Aspect(value=value, rule=None, file=None, line=None)
    decided = rules[int(number)]
    return Aspect(value=value, rule=decided.rule.name, file=decided.source.shown, line=decided.line)


def _as_written(value: Any) -> Any:
    """Leave out of mappings what says nothing: no text, an empty list, a limit that is none."""
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
