"""The texts of answers."""

import json

import pytest

from turnlog.wire.tool_result import (
    TEXT_LIMIT,
    blocks_of_result,
    has_error_member,
    is_structured,
    only_text,
    read_texts,
    start_of_result,
    text_of_body,
    text_of_error,
    text_of_result,
)


def text(said: object) -> dict[str, object]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        ({"content": [text("a\nb"), {"type": "image", "data": "x"}, text("c")]}, "a\nb\nc"),
        ({"content": [text(7), text(None), {"type": "text"}]}, "\n\n"),
        ({"content": [text("x" * TEXT_LIMIT), text("y")]}, "x" * TEXT_LIMIT),
        ({"content": "text"}, ""),
        ({"content": ["text"]}, ""),
        ({"structuredContent": {"text": "a"}}, ""),
        ([], ""),
    ],
)
def test_the_text_of_a_result_is_that_of_its_blocks(result: object, wanted: str) -> None:
    assert text_of_result(json.dumps(result).encode()) == wanted


def test_no_more_text_is_read_than_is_asked_for() -> None:
    result = json.dumps({"content": [text("abc"), text("def"), text("ghi")]}).encode()
    assert text_of_result(result, 5) == "abc\nd"


@pytest.mark.parametrize(
    ("result", "wanted", "blocks"),
    [
        ({"content": [text("a"), text("b" * 5000)]}, "a\n" + "b" * 5000, 2),
        ({"content": [text("a"), {"type": "image", "data": "x"}]}, None, 2),
        ({"content": []}, None, 0),
        ({"structuredContent": {"text": "a"}}, None, 0),
        (7, None, 0),
    ],
)
def test_a_result_of_texts_alone_is_told_from_others(
    result: object, wanted: str | None, blocks: int
) -> None:
    data = json.dumps(result).encode()
    assert only_text(data) == wanted
    assert len(blocks_of_result(data)) == blocks


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        ({"code": 1, "message": "no", "data": "why"}, "no\nwhy"),
        ({"code": 1, "message": "no", "data": {"a": 1}}, "no"),
        ({"code": 1, "data": "why"}, "why"),
        ("no", ""),
    ],
)
def test_the_text_of_an_error_is_its_message_and_data(error: object, wanted: str) -> None:
    assert text_of_error(json.dumps(error).encode()) == wanted


def test_the_text_of_a_body_is_its_start() -> None:
    assert text_of_body(b"\xff" + b"a" * TEXT_LIMIT) == "\ufffd" + "a" * (TEXT_LIMIT - 1)


@pytest.mark.parametrize(
    ("result", "structured"),
    [
        ({"structuredContent": {"a": 1}}, True),
        ({"structuredContent": []}, True),
        ({"structuredContent": {"result": 0}}, True),
        ({"structuredContent": {"result": None}}, False),
        ({"structuredContent": None}, False),
        ({"content": [text("a")]}, False),
    ],
)
def test_structure_is_structured_content_that_is_not_null(result: object, structured: bool) -> None:
    assert is_structured(json.dumps(result).encode()) is structured


@pytest.mark.parametrize(
    ("result", "start"),
    [
        (b'{"content":[{"type":"text","text":"Error: x"}]}', "Error: x"),
        (b'{"_meta":{"text":"a"},"content" : [ {"text" : "a\\u0062\\n"} ]}', "ab\n"),
        (b'{"content":[{"type":"text","text":"%b' % (b"x" * 4000), "x" * 20),
        (b'{"content":[{"type":"image","data":""},{"type":"text","text":"a"}]}', ""),
        (b'{"content":[]}', ""),
        (b" " * 4096 + b'{"content":[{"text":"a"}]}', ""),
        (b"", ""),
    ],
)
def test_the_start_of_a_result_is_that_of_its_first_text(result: bytes, start: str) -> None:
    assert start_of_result(result, 20) == start


@pytest.mark.parametrize(
    ("body", "has_one"),
    [
        (b'{"ok": false, "error": "no_such_channel"}', True),
        (b'{"error": {"code": 7}}', True),
        (b'{"error": null}', False),
        (b'{"error": ""}', False),
        (b'{"error": false, "a": 1}', False),
        (b'{"items": [{"error": "x"}]}', False),
        (b'["error"]', False),
        (b'{"errors": ["x"]}', False),
        (b'{"error": "' + b"x" * TEXT_LIMIT + b'"}', False),
    ],
)
def test_a_member_called_error_says_something(body: bytes, has_one: bool) -> None:
    assert has_error_member(body) is has_one


def test_only_a_result_of_texts_that_say_something_is_known_to_end_well() -> None:
    for content in (
        "x",
        [1],
        [{"type": "image"}],
        [{"type": "text"}],
        [],
        [{"type": "text", "text": 1}],
    ):
        assert read_texts({"content": content}) is None
    a: dict[str, object] = {"type": "text", "text": "a"}
    others: list[object] = [
        "x",
        {"content": [a], "isError": True},
        {"content": [a], "isError": None},
        {"content": [a], "structuredContent": {}},
    ]
    for other in others:
        assert read_texts(other) is None
    for nothing in ("", " null ", "Error: no"):
        assert read_texts({"content": [{**a, "text": nothing}]}) is None


def test_the_text_of_a_result_is_kept_where_it_is_all_of_it() -> None:
    a: dict[str, object] = {"type": "text", "text": "a"}
    results: list[tuple[object, str]] = [
        ({"content": [a]}, "a"),
        ({"content": [a], "isError": False, "_meta": {}}, "a"),
        ({"content": [a, a]}, ""),
        ({"content": [{**a, "annotations": {}}]}, ""),
    ]
    for result, text in results:
        said = read_texts(result)
        assert said is not None
        assert (said.text, said.harmless, said.status) == (text, True, "ok")
