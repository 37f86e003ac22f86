"""Judgement of an answer by the rules: null results as errors, errors of another kind.

It takes the answer as judged by its protocol and applies the policy of the call.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct, structs

from turnlog.core.classify import is_transport_status
from turnlog.core.kinds import ErrorKind, Flag

from .expression import UNREADABLE, ExpressionInput, is_search, selects_any
from .model import ErrorMap, Expects
from .pattern import compile_pattern
from .policy import Policy

_NOTHING: Final = frozenset({Flag.NULL_RESULT, Flag.VOID})


class ReceivedAnswer(Struct, frozen=True, kw_only=True):
    """An answer for rules to judge. What is costly to compute is a function."""

    kind: ErrorKind | None
    """Kind of error by protocol; `None` for success."""
    flags: tuple[Flag, ...] = ()
    code: int | None = None
    """JSON-RPC error code."""
    status: int = 0
    """HTTP status."""
    has_result: bool = True
    """Whether there is a result, also an empty one."""
    is_structured: Callable[[], bool]
    unstructured: ErrorKind = ErrorKind.NULL_RESULT
    """Kind of error if structured content is expected and missing."""
    text: Callable[[], str]
    """Text of the result or error."""
    values: Callable[[], ExpressionInput]
    """Arguments and result; either may be `UNREADABLE`."""


class Judgement(Struct, frozen=True):
    """The result of judging an answer. `retry_after` is in seconds; `None` if no rule sets it."""

    kind: ErrorKind | None
    flags: tuple[Flag, ...]
    retry_after: float | None = None


def judge_answer(policy: Policy, answer: ReceivedAnswer) -> Judgement:
    """Return the judgement of an answer, by `map_error` first and then by `expects`."""
    unsure: list[str] = []
    found = _judged(policy, answer, unsure)
    if not unsure or Flag.NOT_SEARCHED in found.flags:
        return found
    return structs.replace(found, flags=(*found.flags, Flag.NOT_SEARCHED))


def _judged(policy: Policy, answer: ReceivedAnswer, unsure: list[str]) -> Judgement:
    for rule in policy.map_error:
        if _matches(rule, answer, unsure):
            return Judgement(rule.kind, answer.flags, rule.retry_after or None)
    flags = answer.flags
    if policy.expects is Expects.NOTHING and answer.has_result:
        flags = tuple(flag for flag in flags if flag not in _NOTHING)
        return Judgement(None if answer.kind is ErrorKind.NULL_RESULT else answer.kind, flags)
    if answer.kind is not None:
        return Judgement(answer.kind, flags)
    if Flag.NULL_RESULT not in flags and any(
        _holds(wanted, answer, unsure) for wanted in policy.null_when
    ):
        flags = (*flags, Flag.NULL_RESULT)
    return Judgement(_unmet_expectation(policy.expects, flags, answer), flags)


def without_searches(policy: Policy) -> Policy:
    """Return a policy without expressions that search the whole answer; itself if it has none."""
    null_when = tuple(wanted for wanted in policy.null_when if not is_search(wanted))
    map_error = tuple(rule for rule in policy.map_error if not any(map(is_search, rule.when)))
    if null_when == policy.null_when and map_error == policy.map_error:
        return policy
    return structs.replace(policy, null_when=null_when, map_error=map_error)


def _matches(rule: ErrorMap, answer: ReceivedAnswer, unsure: list[str]) -> bool:
    """Return whether an answer matches every condition of a `map_error` entry."""
    # An entry without conditions matches errors alone. A status of a gateway counts more than the
    # body: only an entry that names the status matches it.
    if not (rule.text or rule.when or rule.code is not None or rule.status is not None):
        return answer.kind is not None and not is_transport_status(answer.status)
    if rule.status is None and is_transport_status(answer.status):
        return False
    return (
        rule.status in (None, answer.status)
        and rule.code in (None, answer.code)
        and (not rule.text or compile_pattern(rule.text).is_in(answer.text()))
        and all(_holds(wanted, answer, unsure) for wanted in rule.when)
    )


def _holds(expression: str, answer: ReceivedAnswer, unsure: list[str]) -> bool:
    """Return whether an expression selects anything; if it cannot be applied, add it to `unsure`."""
    seen = answer.values()
    found = selects_any(expression, seen)
    if found is None or (not found and UNREADABLE in (seen.args, seen.result)):
        unsure.append(expression)
    return bool(found)


def _unmet_expectation(
    expects: Expects | None, flags: tuple[Flag, ...], answer: ReceivedAnswer
) -> ErrorKind | None:
    """Return the error of a result that is not as `expects` wants it."""
    if expects is None or expects is Expects.NOTHING:
        return None
    if Flag.NULL_RESULT in flags:
        return ErrorKind.NULL_RESULT
    lacks = expects is Expects.STRUCTURED and answer.has_result and not answer.is_structured()
    return answer.unstructured if lacks else None
