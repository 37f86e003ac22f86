from typing import Any

import pytest

from turnlog.rules.compensation import UnfilledError, expected_text, expressions_of, filled
from turnlog.rules.expression import ExpressionInput
from turnlog.rules.model import Compensation, read_template

SEEN = ExpressionInput(args={"path": "/a", "tags": ["x", "y"]}, result={"id": 7})


def test_expressions_are_replaced_by_what_they_select_at_any_depth() -> None:
    args: dict[str, Any] = {
        "path": "$.args.path",
        "made": {"by": ["$.result.id", "turnlog"]},
        "tags": "$.args.tags",
        "force": True,
        "price": "5 $",
    }
    assert filled(Compensation(tool="undo", args=args), SEEN) == {
        "path": "/a",
        "made": {"by": [7, "turnlog"]},
        "tags": ["x", "y"],
        "force": True,
        "price": "5 $",
    }
    assert list(expressions_of(Compensation(tool="undo", args=args))) == [
        "$.args.path",
        "$.result.id",
        "$.args.tags",
    ]


def test_an_expression_that_selects_nothing_is_named() -> None:
    with pytest.raises(UnfilledError, match=r"\$\.args\.other selects nothing"):
        filled(Compensation(tool="undo", args={"a": ["$.args.other"]}), SEEN)


def test_an_expected_value_that_is_no_text_is_compared_as_one() -> None:
    assert expected_text("$.args.path", SEEN) == "/a"
    assert expected_text("$.result.id", SEEN) == "7"


@pytest.mark.parametrize("value", [[], "x", {"a": "$.args["}, {"a": [{"b": "$x"}]}])
def test_arguments_must_be_a_mapping_with_readable_expressions(value: object) -> None:
    with pytest.raises(ValueError, match="write one like"):
        read_template(value)


def test_arguments_are_kept_as_they_are_written() -> None:
    assert read_template({"a": [{"b": "$.args.c"}, 1], 2: None}) == {
        "a": [{"b": "$.args.c"}, 1],
        "2": None,
    }
