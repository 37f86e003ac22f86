"""Calls after the `redact` expressions of rules were applied."""

import json

import msgspec
import pytest

from turnlog.redaction.redact import Redacted
from turnlog.redaction.rule_redaction import (
    MAX_TEXTS,
    RuleSecrets,
    cut_json,
    cut_text,
    select_secrets,
)
from turnlog.rules.expression import ExpressionInput

CUT = "[redacted]"
ALL = Redacted(b'"[redacted]"', True)


def cut(args: object, *expressions: str, result: object = None) -> tuple[object, object, bool]:
    """Return both sides as they are kept, and whether anything was cut."""
    what = select_secrets(expressions, ExpressionInput(args=args, result=result))
    left = cut_json(msgspec.json.encode(args), "args", args, what)
    right = cut_json(msgspec.json.encode(result), "result", result, what)
    return json.loads(left.data), json.loads(right.data), left.touched or right.touched


@pytest.mark.parametrize(
    ("expressions", "kept"),
    [
        (["$.args.user"], {"user": CUT, "list": [{"pin": 1}, {"pin": 2}]}),
        (["$.args.list[1].pin"], {"user": {"name": "Ada"}, "list": [{"pin": 1}, {"pin": CUT}]}),
        (["$..pin"], {"user": {"name": "Ada"}, "list": [{"pin": CUT}, {"pin": CUT}]}),
        (["$.args.list[*].pin", "$.args.list[0]"], {"user": {"name": "Ada"}, "list": [CUT, {"pin": CUT}]}),
        (["$.args"], CUT),
        (["$"], CUT),
    ],
)  # fmt: skip
def test_selected_values_are_redacted(expressions: list[str], kept: object) -> None:
    args = {"user": {"name": "Ada"}, "list": [{"pin": 1}, {"pin": 2}]}
    assert cut(args, *expressions)[0] == kept


@pytest.mark.parametrize("expressions", [[], ["$.args.other"], ["$.result.user"]])
def test_other_values_stay_as_they_came(expressions: list[str]) -> None:
    data = b'{ "user": ["Ada", 1.50, null] }'
    value = json.loads(data)
    what = select_secrets(expressions, ExpressionInput(args=value))
    assert cut_json(data, "args", value, what) == Redacted(data, False)


def test_a_selected_text_is_redacted_everywhere() -> None:
    args = {"query": 'Ada "Love"\nlace', "code": 123456, "flag": True, "n": 7, "id": "abc"}
    mirror = json.dumps({"q": args["query"], "é": "é"})
    result = {"text": mirror, 'for Ada "Love"\nlace': "123456 abc 7", "n": 7, "none": None}
    left, right, touched = cut(args, "$.args.*", result=result)
    assert left == dict.fromkeys(args, CUT)
    assert right == {
        "text": mirror.replace(json.dumps(args["query"])[1:-1], CUT),
        f"for {CUT}": f"{CUT} abc 7",
        "n": 7,
        "none": None,
    }
    assert touched


def test_texts_below_a_selected_value_are_redacted_as_well() -> None:
    assert cut({"a": {"b": ["deep text", 1.234567]}}, "$.args.a", result="a deep text 1.234567") == (
        {"a": CUT}, f"a {CUT} {CUT}", True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "side", "kept"),
    [
        ("$.args.a", "args", ALL),
        ("$['args']['a']", "args", ALL),
        ("$..a", "args", ALL),
        ("$[?@.a]", "args", ALL),
        ("$['status','args']", "args", ALL),
        ("$.*", "result", ALL),
        ("$.result.a", "args", None),
        ("$['result']", "args", None),
        ("$[ 'result' ]", "args", None),
        ("$.args.a", "result", None),
    ],
)
def test_unreadable_content_is_redacted_if_an_expression_may_select_in_it(
    expression: str, side: str, kept: Redacted | None
) -> None:
    data = b'{"a": "cut off he'
    what = select_secrets([expression], ExpressionInput())
    found = cut_json(data, "args" if side == "args" else "result", None, what)
    assert found == (kept or Redacted(data, False))


@pytest.mark.parametrize("data", [b"", b" null "])
def test_empty_content_is_not_redacted(data: bytes) -> None:
    what = select_secrets(["$..a"], ExpressionInput(args={"a": "text"}))
    assert cut_json(data, "result", None, what) == Redacted(data, False)


def test_selected_texts_are_redacted_in_other_text() -> None:
    what = select_secrets(["$.args.name"], ExpressionInput(args={"name": "Ada Lovelace"}))
    page = b"<p>\xff Ada Lovelace</p>"
    assert cut_json(page, "result", None, what) == Redacted(b"<p>\xff [redacted]</p>", True)
    assert cut_text("hello Ada Lovelace", what) == (f"hello {CUT}", True)
    assert cut_text("hello Ada", what) == ("hello Ada", False)


def test_too_many_selected_texts_redact_everything() -> None:
    args = [f"text {n}" for n in range(MAX_TEXTS + 1)]
    assert cut(args, "$.args[*]", result={"a": 1}) == (CUT, CUT, True)
    what = select_secrets(["$.args[*]"], ExpressionInput(args=args))
    assert cut_text("some", what) == (CUT, True)
    assert cut_text("", what) == ("", False)


def test_without_expressions_nothing_is_redacted() -> None:
    assert select_secrets([], ExpressionInput(args={"a": "text"})) == RuleSecrets()


def test_an_expression_that_cannot_be_applied_redacts_everything() -> None:
    deep: object = {"pin": "1234"}
    for _ in range(200):
        deep = [deep]
    what = select_secrets(["$..pin"], ExpressionInput(args=deep))
    assert cut_json(b'{"x":1}', "args", {"x": 1}, what) == ALL
