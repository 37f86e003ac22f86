from typing import Any

import pytest

from turnlog.rules.effects import effect_key
from turnlog.rules.expression import MAX_SEARCHED_BYTES, UNREADABLE

ORDER = ("$.args.shop", "$.args.items[*].id")
ONE: dict[str, Any] = {"shop": "a", "items": [{"id": 1, "n": 5}, {"id": 2}], "note": "x"}


def test_arguments_that_are_not_selected_do_not_change_the_effect_key() -> None:
    other = {"note": "y", "items": [{"id": 1, "n": 6}, {"id": 2}], "shop": "a"}
    assert effect_key(ORDER, ONE, size=9) == effect_key(ORDER, other, size=9) != b""


@pytest.mark.parametrize(
    "other",
    [
        {**ONE, "shop": "b"},
        {**ONE, "items": [{"id": 2}, {"id": 1}]},
        {"shop": "a"},
        {"items": ONE["items"]},
    ],
)
def test_selected_arguments_change_the_effect_key(other: dict[str, Any]) -> None:
    assert effect_key(ORDER, ONE, size=9) != effect_key(ORDER, other, size=9) != b""


def test_the_spelling_of_a_value_does_not_change_the_effect_key() -> None:
    wanted = ("$.args.to",)
    one, other = ({"to": {"a": 1.0, "b": 2}}, {"to": {"b": 2, "a": 1}})
    assert effect_key(wanted, one, size=9) == effect_key(wanted, other, size=9)


@pytest.mark.parametrize("args", [{}, {"items": []}, [], None, UNREADABLE])
def test_without_selected_values_there_is_no_effect_key(args: object) -> None:
    assert effect_key(ORDER, args, size=9) == b""


def test_large_arguments_are_not_searched() -> None:
    assert effect_key(ORDER, ONE, size=MAX_SEARCHED_BYTES + 1) == b""
    assert effect_key(ORDER[:1], ONE, size=MAX_SEARCHED_BYTES + 1) != b""


def test_nan_and_infinity_are_part_of_the_effect_key() -> None:
    assert effect_key(("$.args.n",), {"n": float("inf")}, size=9) != b""
    assert effect_key(("$.args.n",), {"n": 2**70}, size=9) != b""
