"""Rules applied to an answer."""

from typing import Any

import pytest
from msgspec import structs

from turnlog.core.kinds import ErrorKind, Flag
from turnlog.rules.expression import UNREADABLE, ExpressionInput
from turnlog.rules.model import ErrorMap, Expects, KeepContent
from turnlog.rules.policy import Policy
from turnlog.rules.result_rules import (
    Judgement,
    ReceivedAnswer,
    judge_answer,
    without_searches,
)

NULL = (Flag.NULL_RESULT,)
NOTHING = ExpressionInput()
VOID = (Flag.NULL_RESULT, Flag.VOID)


def said(
    kind: ErrorKind | None = None,
    flags: tuple[Flag, ...] = (),
    *,
    text: str = "",
    structured: bool = False,
    seen: ExpressionInput = NOTHING,
    **more: Any,
) -> ReceivedAnswer:
    given: dict[str, Any] = {"status": 200} | more
    return ReceivedAnswer(
        kind=kind,
        flags=flags,
        text=lambda: text,
        is_structured=lambda: structured,
        values=lambda: seen,
        **given,
    )


def unasked() -> Any:
    raise AssertionError("no rule looks here")


LAZY = ReceivedAnswer(kind=None, status=200, text=unasked, is_structured=unasked, values=unasked)


def expecting(expects: Expects | None, *null_when: str) -> Policy:
    return Policy(expects=expects, null_when=null_when)


def mapping(*rules: ErrorMap) -> Policy:
    return Policy(map_error=rules)


@pytest.mark.parametrize(
    ("policy", "speaks_of_answers"),
    [
        (Policy(), False),
        (Policy(store=KeepContent.NOTHING), False),
        (expecting(Expects.NOTHING), True),
        (expecting(None, "$.result"), True),
        (mapping(ErrorMap(kind=ErrorKind.CONFLICT)), True),
    ],
)
def test_only_some_policies_judge_answers(policy: Policy, speaks_of_answers: bool) -> None:
    assert policy.judges_answers is speaks_of_answers


def test_a_policy_derived_from_another_judges_answers_by_its_own_rules() -> None:
    judging = structs.replace(Policy(), expects=Expects.NOTHING)
    assert judging.judges_answers
    assert not structs.replace(judging, expects=None).judges_answers


@pytest.mark.parametrize("kind", [None, ErrorKind.TOOL_FAILED, ErrorKind.NULL_RESULT])
@pytest.mark.parametrize("flags", [(), NULL])
def test_without_a_rule_the_judgement_of_the_protocol_stays(
    kind: ErrorKind | None, flags: tuple[Flag, ...]
) -> None:
    assert judge_answer(Policy(), said(kind, flags)) == Judgement(kind, flags)


@pytest.mark.promise("RULE-27")
@pytest.mark.parametrize(
    ("expects", "flags", "structured", "kind"),
    [
        (None, NULL, False, None),
        (Expects.CONTENT, (), False, None),
        (Expects.CONTENT, NULL, False, ErrorKind.NULL_RESULT),
        (Expects.CONTENT, (Flag.EMPTY,), True, None),
        (Expects.STRUCTURED, (), True, None),
        (Expects.STRUCTURED, (), False, ErrorKind.NULL_RESULT),
        (Expects.STRUCTURED, NULL, True, ErrorKind.NULL_RESULT),
    ],
)
def test_a_result_is_judged_by_what_is_expected(
    expects: Expects | None, flags: tuple[Flag, ...], structured: bool, kind: ErrorKind | None
) -> None:
    answer = said(flags=flags, structured=structured)
    assert judge_answer(expecting(expects), answer) == Judgement(kind, flags)


@pytest.mark.parametrize(
    ("kind", "flags", "left"),
    [
        (None, (Flag.BOM, *NULL), Judgement(None, (Flag.BOM,))),
        (ErrorKind.NULL_RESULT, VOID, Judgement(None, ())),
        (ErrorKind.TOOL_FAILED, NULL, Judgement(ErrorKind.TOOL_FAILED, ())),
    ],
)
def test_an_empty_result_is_a_success_if_nothing_is_expected(
    kind: ErrorKind | None, flags: tuple[Flag, ...], left: Judgement
) -> None:
    assert judge_answer(expecting(Expects.NOTHING), said(kind, flags)) == left


def test_a_missing_result_is_an_error_even_if_nothing_is_expected() -> None:
    answer = said(ErrorKind.NULL_RESULT, VOID, has_result=False)
    assert judge_answer(expecting(Expects.NOTHING), answer) == Judgement(
        ErrorKind.NULL_RESULT, VOID
    )


FOUND_NONE = ExpressionInput(result={"found": False})


@pytest.mark.parametrize(
    ("expects", "judgement"),
    [
        (None, Judgement(None, NULL)),
        (Expects.CONTENT, Judgement(ErrorKind.NULL_RESULT, NULL)),
        (Expects.NOTHING, Judgement(None, ())),
    ],
)
def test_null_when_can_declare_a_result_null(expects: Expects | None, judgement: Judgement) -> None:
    policy = expecting(expects, "$.result.none", "$[?@.found == false]")
    assert judge_answer(policy, said(seen=FOUND_NONE)) == judgement


def test_an_expression_that_selects_nothing_changes_nothing() -> None:
    policy = expecting(Expects.CONTENT, "$.result.none")
    assert judge_answer(policy, said(seen=FOUND_NONE)) == Judgement(None, ())
    assert judge_answer(policy, said(ErrorKind.TOOL_FAILED)) == Judgement(ErrorKind.TOOL_FAILED, ())


MAPPED = ErrorKind.RATE_LIMITED
MAPS: list[tuple[dict[str, Any], ReceivedAnswer, bool]] = [
    ({}, said(ErrorKind.TOOL_FAILED), True),
    ({}, said(None), False),
    ({}, said(ErrorKind.UPSTREAM_UNAVAILABLE, status=503), False),
    ({"text": "(?i)too many"}, said(ErrorKind.TOOL_FAILED, text="Too many requests"), True),
    ({"text": "(?i)too many"}, said(None, text="Too many requests"), True),
    ({"text": "too many"}, said(ErrorKind.TOOL_FAILED, text="no such file"), False),
    ({"text": "x"}, said(ErrorKind.UPSTREAM_UNAVAILABLE, status=503, text="x"), False),
    ({"code": -32000}, said(ErrorKind.UPSTREAM_INTERNAL, code=-32000), True),
    ({"code": -32000}, said(ErrorKind.UPSTREAM_INTERNAL, code=-32001), False),
    ({"code": -32000}, said(None), False),
    ({"status": 409}, said(ErrorKind.CONFLICT, status=409), True),
    ({"status": 409}, said(None), False),
    ({"status": 503}, said(ErrorKind.UPSTREAM_UNAVAILABLE, status=503), True),
    ({"status": 503, "text": "x"}, said(ErrorKind.UPSTREAM_UNAVAILABLE, status=503), False),
    ({"when": ("$.result.found",)}, said(None, seen=FOUND_NONE), True),
    ({"when": ("$.result.found", "$.args.x")}, said(None, seen=FOUND_NONE), False),
]


@pytest.mark.parametrize(("rule", "answer", "fits"), MAPS)
def test_an_error_is_mapped_if_every_condition_matches(
    rule: dict[str, Any], answer: ReceivedAnswer, fits: bool
) -> None:
    found = judge_answer(mapping(ErrorMap(kind=MAPPED, **rule)), answer)
    assert found == Judgement(MAPPED if fits else answer.kind, answer.flags)


def test_the_first_matching_entry_of_map_error_counts() -> None:
    rules = (
        ErrorMap(kind=ErrorKind.CONFLICT, text="y"),
        ErrorMap(kind=ErrorKind.RATE_LIMITED, text="x", retry_after=1.5),
        ErrorMap(kind=ErrorKind.NOT_FOUND, text="x"),
    )
    found = judge_answer(mapping(*rules), said(ErrorKind.TOOL_FAILED, text="x"))
    assert found == Judgement(ErrorKind.RATE_LIMITED, (), 1.5)


def test_costly_parts_of_an_answer_are_computed_only_for_a_rule() -> None:
    policy = Policy(
        expects=Expects.CONTENT, map_error=(ErrorMap(kind=MAPPED, code=5, text="x", when=("$.a",)),)
    )
    assert judge_answer(policy, LAZY) == Judgement(None, ())


def test_an_expression_that_cannot_be_applied_is_flagged() -> None:
    deep: object = {"x": 1}
    for _ in range(200):
        deep = [deep]
    mapped = mapping(ErrorMap(kind=ErrorKind.CONFLICT, when=("$..y",)))
    for policy in (expecting(None, "$..y"), mapped):
        assert judge_answer(policy, said(seen=ExpressionInput(result=deep))).flags == (
            Flag.NOT_SEARCHED,
        )
    unread = said(seen=ExpressionInput(result=UNREADABLE))
    assert judge_answer(expecting(Expects.CONTENT, "$.result.y"), unread) == Judgement(
        None, (Flag.NOT_SEARCHED,)
    )
    assert judge_answer(mapped, said(seen=ExpressionInput(result={}))).flags == ()


def test_a_policy_can_do_without_expressions_that_search() -> None:
    plain = Policy(null_when=("$.result.a",), map_error=(ErrorMap(kind=ErrorKind.CONFLICT),))
    assert without_searches(plain) is plain
    searching = ErrorMap(kind=ErrorKind.NOT_FOUND, when=("$..error",))
    both = Policy(null_when=(*plain.null_when, "$..b"), map_error=(searching, *plain.map_error))
    assert without_searches(both) == plain
