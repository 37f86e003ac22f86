from typing import Any

import pytest

from turnlog.rules.effects import named_effect
from turnlog.rules.expression import SEARCHED, UNREADABLE

ORDER = ("$.args.shop", "$.args.items[*].id")
ONE: dict[str, Any] = {"shop": "a", "items": [{"id": 1, "n": 5}, {"id": 2}], "note": "x"}


def test_what_is_not_selected_names_nothing() -> None:
    other = {"note": "y", "items": [{"id": 1, "n": 6}, {"id": 2}], "shop": "a"}
    assert named_effect(ORDER, ONE, size=9) == named_effect(ORDER, other, size=9) != b""


@pytest.mark.parametrize(
    "other",
    [
        {**ONE, "shop": "b"},
        {**ONE, "items": [{"id": 2}, {"id": 1}]},
        {"shop": "a"},
        {"items": ONE["items"]},
    ],
)
def test_what_is_selected_does(other: dict[str, Any]) -> None:
    assert named_effect(ORDER, ONE, size=9) != named_effect(ORDER, other, size=9) != b""


def test_the_form_of_a_value_names_nothing() -> None:
    wanted = ("$.args.to",)
    one, other = ({"to": {"a": 1.0, "b": 2}}, {"to": {"b": 2, "a": 1}})
    assert named_effect(wanted, one, size=9) == named_effect(wanted, other, size=9)


@pytest.mark.parametrize("args", [{}, {"items": []}, [], None, UNREADABLE])
def test_where_nothing_is_selected_nothing_is_named(args: object) -> None:
    assert named_effect(ORDER, args, size=9) == b""


def test_what_is_large_is_not_searched() -> None:
    assert named_effect(ORDER, ONE, size=SEARCHED + 1) == b""
    assert named_effect(ORDER[:1], ONE, size=SEARCHED + 1) != b""


def test_numbers_that_json_does_not_know_name_as_well() -> None:
    assert named_effect(("$.args.n",), {"n": float("inf")}, size=9) != b""
    assert named_effect(("$.args.n",), {"n": 2**70}, size=9) != b""
