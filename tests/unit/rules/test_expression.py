"""Expressions of rules: which are accepted, and what they select."""

import pytest

from turnlog.rules.expression import (
    ExpressionInput,
    is_search,
    locate,
    read_expression,
    root_member,
    select,
)

ARGS = {"path": "/a", "mode": "append"}
NONE: list[object] = []
SEEN = ExpressionInput(args=ARGS, result={"items": NONE}, status=503)
SELECTED: list[tuple[str, list[object]]] = [
    ("$.args.path", ["/a"]),
    ("$.args['mode']", ["append"]),
    ("$[?@.mode == 'append']", [ARGS]),
    ("$.status", [503]),
    ("$.result.items", [NONE]),
    ("$.result.items[*]", []),
    ("$.args.nothing", []),
]


@pytest.mark.parametrize(("text", "values"), SELECTED)
def test_an_expression_selects_from_arguments_result_and_status(
    text: str, values: list[object]
) -> None:
    assert select(read_expression(text), SEEN) == values


@pytest.mark.parametrize("text", ["args.path", "", "$.args[", "$.a | $.b", 5, "$[?@.x ==]"])
def test_text_that_is_not_jsonpath_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match=r"is no JSONPath.*write one like \$\.args\.path"):
        read_expression(text)


@pytest.mark.parametrize(
    "text", ["$[?@.a == 1e999999]", "$[?@ == -1e400]", "$[1e5]", "$[?@==" + 5000 * "9" + "]"]
)
def test_an_expression_that_the_library_fails_on_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be read \(.*write one like \$\.args\.path"):
        read_expression(text)


@pytest.mark.parametrize("text", [2000 * "(", 2000 * "$[?", "[" * 3000])
def test_an_expression_that_nests_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write one like"):
        read_expression(f"$[?{text}")


def test_an_expression_that_cannot_be_applied_selects_nothing() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert select("$..x", ExpressionInput(result=deep)) == []


def test_locate_returns_the_path_of_each_value() -> None:
    seen = ExpressionInput(args={"a": [{"id": "x/y"}]}, result={"id": 1})
    assert locate("$..id", seen) == [(("args", "a", 0, "id"), "x/y"), (("result", "id"), 1)]


@pytest.mark.parametrize(
    ("text", "searching"),
    [
        ("$.result.rows[0].id", False),
        ("$['args']['a b']", False),
        ("$..x", True),
        ("$.result[*]", True),
        ("$.result[1:3]", True),
        ("$.result[?@.x]", True),
        ("$.result['a','b']", True),
    ],
)
def test_an_expression_for_one_place_is_no_search(text: str, searching: bool) -> None:
    assert is_search(read_expression(text)) is searching


@pytest.mark.parametrize(
    ("expression", "member"),
    [
        ("$.args.a", "args"),
        ("$['result']", "result"),
        ("$..args", ""),
        ("$['args', 'result']", ""),
        ("$[*]", ""),
        ("$", ""),
    ],
)
def test_the_member_an_expression_begins_with_is_known(expression: str, member: str) -> None:
    assert root_member(expression) == member
