"""Differences between two answers: the class first, then the places."""

import json
from typing import Any

import msgspec
import pytest

from turnlog.core.answer_diff import (
    MAX_BYTES,
    MAX_CHANGES,
    SHOWN_CHARS,
    AnswerDifference,
    ComparedAnswer,
    Comparison,
    DifferenceClass,
    DifferenceKind,
    compare,
)

CHANGED, ADDED, REMOVED, MOVED = (
    DifferenceKind.CHANGED,
    DifferenceKind.ADDED,
    DifferenceKind.REMOVED,
    DifferenceKind.MOVED,
)
DEEP = 100_000


def answer(value: object, **more: Any) -> ComparedAnswer:
    return ComparedAnswer(data=json.dumps(value).encode(), **more)


def places(before: object, after: object) -> list[tuple[DifferenceKind, str]]:
    found = compare(answer(before), answer(after))
    assert found.more == 0
    return [(change.change, change.path) for change in found.changes]


FAILED = ComparedAnswer(kind="tool_failed", data=b'"x"')


@pytest.mark.promise("DIFF-4")
@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (answer(1), answer(1), DifferenceClass.SAME),
        (
            ComparedAnswer(data=b'{"a":1,"b":2}'),
            ComparedAnswer(data=b'{"b": 2, "a": 1}'),
            DifferenceClass.SAME,
        ),
        (answer(1), answer(2), DifferenceClass.VALUE_CHANGED),
        (answer(1), answer(1.5), DifferenceClass.VALUE_CHANGED),
        (answer(1), answer("1"), DifferenceClass.SHAPE_CHANGED),
        (answer(1), answer(True), DifferenceClass.SHAPE_CHANGED),
        (answer({"a": 1}), answer({"b": 1}), DifferenceClass.SHAPE_CHANGED),
        (answer([1, 2]), answer([1]), DifferenceClass.VALUE_CHANGED),
        (answer({}), answer([]), DifferenceClass.SHAPE_CHANGED),
        (FAILED, answer(1), DifferenceClass.ERROR_TO_OK),
        (answer(1), FAILED, DifferenceClass.OK_TO_ERROR),
        (FAILED, FAILED, DifferenceClass.SAME),
        (
            ComparedAnswer(kind="connect_failed"),
            ComparedAnswer(kind="connect_failed"),
            DifferenceClass.SAME,
        ),
        (answer(None, null=True), answer(1), DifferenceClass.NULL_TO_VALUE),
        (answer(1), answer(None, null=True), DifferenceClass.VALUE_TO_NULL),
        (answer(None, null=True), answer([], null=True), DifferenceClass.SHAPE_CHANGED),
        (answer(1, whole=False), answer(1), DifferenceClass.TRUNCATED),
        (answer(1), answer(1, whole=False), DifferenceClass.TRUNCATED),
        (
            answer(1, whole=False, digest="a"),
            answer(1, whole=False, digest="a"),
            DifferenceClass.SAME,
        ),
        (answer(1, digest="a"), answer(1, digest="b"), DifferenceClass.VALUE_CHANGED),
        (answer(1, digest="a"), answer(1), DifferenceClass.SAME),
        (answer("a" * MAX_BYTES), answer("b"), DifferenceClass.VALUE_CHANGED),
        (ComparedAnswer(data=b"\xff"), ComparedAnswer(data=b"\xfe"), DifferenceClass.SAME),
        (
            ComparedAnswer(data=b"a page"),
            ComparedAnswer(data=b"another"),
            DifferenceClass.VALUE_CHANGED,
        ),
    ],
)
def test_two_answers_have_the_class_of_their_difference(
    before: ComparedAnswer, after: ComparedAnswer, wanted: DifferenceClass
) -> None:
    assert compare(before, after).kind is wanted


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (answer("a" * MAX_BYTES), answer("b")),
        (ComparedAnswer(data=b"[" * DEEP + b"]" * DEEP), answer(1)),
        (answer(1), FAILED),
        (answer(1, digest="a"), answer(1, digest="b")),
    ],
)
def test_answers_that_are_cut_or_too_large_have_no_listed_changes(
    before: ComparedAnswer, after: ComparedAnswer
) -> None:
    assert compare(before, after).changes == ()


def test_another_kind_of_error_is_a_change() -> None:
    found = compare(FAILED, ComparedAnswer(kind="rate_limited"))
    change = AnswerDifference(path="", change=CHANGED, before="tool_failed", after="rate_limited")
    assert found == Comparison(kind=DifferenceClass.VALUE_CHANGED, changes=(change,))


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [(CHANGED, "/a/b")]),
        ({"a/b": 1, "m~n": 1}, {"a/b": 2}, [(CHANGED, "/a~1b"), (REMOVED, "/m~0n")]),
        ({}, {"": 1}, [(ADDED, "/")]),
        ([1, 2, 3], [1, 9, 2, 3], [(ADDED, "/1")]),
        ([1, 2, 3], [1, 3], [(REMOVED, "/1")]),
        ([1, 2, 3], [1, 8, 3], [(CHANGED, "/1")]),
        ([1, 1], [1, 1, 1], [(ADDED, "/2")]),
        ([1, 2, 3], [3, 1, 2], [(MOVED, "")]),
        (["a", "b", "c"], ["c", "x", "a"], [(CHANGED, "/1")]),
        (["a", "b", "a"], ["x", "a", "a", "y"], [(CHANGED, "/0"), (ADDED, "/3")]),
        ([{"id": 1, "v": 1}, {"id": 2}], [{"id": 2}, {"id": 1, "v": 5}], [(CHANGED, "/1/v")]),
        ([{"id": 1}, {"id": 2}], [{"id": 2}, {"id": 1}], [(MOVED, "")]),
        ([{"id": 1}, {"id": 2}], [{"id": 3}, {"id": 1}], [(REMOVED, "/1"), (ADDED, "/0")]),
        ([{"name": "a", "v": 1}, 7], [{"name": "a", "v": 2}, 7], [(CHANGED, "/0/v")]),
        ([{"id": 1, "v": 1}, {"id": 1, "v": 2}], [{"id": 1, "v": 3}, {"id": 1, "v": 2}],
         [(CHANGED, "/0/v")]),
        ([{"id": [1], "uri": "x"}, 0], [1, {"id": [2], "uri": "x"}],
         [(CHANGED, "/0"), (CHANGED, "/1")]),
    ],
)  # fmt: skip
def test_the_paths_are_json_pointers(
    before: object, after: object, wanted: list[tuple[DifferenceKind, str]]
) -> None:
    assert places(before, after) == wanted


def test_a_change_shows_the_beginning_of_both_values() -> None:
    (change,) = compare(answer({"a": "x" * 200}), answer({"a": [1]})).changes
    assert change.before == '"' + "x" * (SHOWN_CHARS - 2) + "…"
    assert (change.after, change.line) == ("[1]", None)


@pytest.mark.parametrize(
    ("before", "after", "line", "lines"),
    [
        ("a\nb\nc", "a\nB\nc", 2, ('"b"', '"B"')),
        ("a\nb", "a\nnew\nb", 2, ('""', '"new"')),
        ("a\nb\nc\nd", "a\nd", 2, ('"b\\nc"', '""')),
        ("a", "b", None, ('"a"', '"b"')),
    ],
)
def test_texts_are_compared_by_line(
    before: str, after: str, line: int | None, lines: tuple[str, str]
) -> None:
    (change,) = compare(
        ComparedAnswer(data=before.encode()), ComparedAnswer(data=after.encode())
    ).changes
    assert (change.path, change.line) == ("", line)
    assert (change.before, change.after) == lines


def test_further_changes_are_counted_but_not_listed() -> None:
    found = compare(
        answer(list(range(MAX_CHANGES + 5))), answer(list(range(1000, 1005 + MAX_CHANGES)))
    )
    assert (len(found.changes), found.more) == (MAX_CHANGES, 5)


def nested(value: int) -> object:
    found: object = value
    for _ in range(100):
        found = [found]
    return found


def test_a_difference_in_deep_nesting_is_one_change() -> None:
    (change,) = compare(answer(nested(1)), answer(nested(2))).changes
    assert change.path == "/0" * 64


def test_many_equal_items_are_matched_in_linear_time() -> None:
    before, after = [0] * 60_000 + [1], [2] + [0] * 60_001 + [3]
    assert [c.path for c in compare(answer(before), answer(after)).changes] == [
        "/0",
        "/60001",
        "/60002",
    ]


def test_in_json_the_kind_is_called_class() -> None:
    assert json.loads(msgspec.json.encode(compare(answer(1), answer(1)))) == {
        "class": "same", "changes": [], "more": 0,
    }  # fmt: skip
