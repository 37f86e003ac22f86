from typing import Any

import pytest

from turnlog.wire.tool_definition import Part, diff, parts_changed

OLD: dict[str, Any] = {
    "name": "add",
    "description": "Add.\nTwo numbers.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


@pytest.mark.parametrize(
    ("new", "parts"),
    [
        ({**OLD, "description": "Other."}, ["description"]),
        ({**OLD, "annotations": {"readOnlyHint": True}}, ["annotations"]),
        ({**OLD, "outputSchema": {}, "title": "A", "_meta": 1, "z": 2}, ["title", "outputSchema", "other"]),
        ({**OLD, "inputSchema": {"type": "object"}, "name": "x"}, ["name", "inputSchema"]),
        ({"name": "add"}, ["description", "inputSchema"]),
        (dict(OLD), ["hidden"]),
        ("text", ["other"]),
    ],
)  # fmt: skip
def test_the_parts_that_changed_are_named(new: object, parts: list[str]) -> None:
    assert parts_changed(OLD, new) == parts


def test_true_is_not_one() -> None:
    assert parts_changed({"description": True}, {"description": 1}) == [Part.DESCRIPTION]
    assert parts_changed("same", "same") == [Part.HIDDEN]


def test_a_diff_shows_lines_of_text_as_lines() -> None:
    assert diff(OLD, {**OLD, "description": "Add.\nThree numbers."}) == [
        "@@ -1,7 +1,7 @@",
        " name: add",
        " description:",
        "   Add.",
        "-  Two numbers.",
        "+  Three numbers.",
        " inputSchema:",
        "   {",
        '     "properties": {',
    ]


def test_new_and_removed_tools_are_shown_whole() -> None:
    assert diff(None, {"name": "a", "x": 1, "description": "d"}) == [
        "@@ -0,0 +1,4 @@",
        "+name: a",
        "+description: d",
        "+x:",
        "+  1",
    ]
    assert diff("one\ntwo", None) == ["@@ -1,2 +0,0 @@", "-one", "-two"]
    assert diff(None, [1]) == ["@@ -0,0 +1,3 @@", "+[", "+  1", "+]"]


def test_no_line_of_a_definition_can_pass_for_a_head_of_the_diff() -> None:
    lines = diff(None, {"name": "a", "description": "\n@@ -1 +1 @@\n-gone\rx\u2028y"})
    assert [line[:1] for line in lines] == ["@", *"+" * (len(lines) - 1)]
    assert "+  -gone\rx\u2028y" in lines


def test_definitions_of_very_many_lines_are_not_compared_line_by_line() -> None:
    one = {"name": "a", "description": "\n".join(map(str, range(3000)))}
    other = {"name": "a", "description": "\n".join(map(str, range(1, 3001)))}
    lines = diff(one, other)
    assert len(lines) == 2 * 3002
    assert lines[0] == "-name: a"
