"""Summaries: one printable line, bounded, of anything that a server may answer."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.text.terminal import (
    body_summary,
    contains_text,
    preview,
    result_summary,
    text_summary,
)
from turnlog.core.text.units import human_size


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


IMAGE = {"type": "image", "mimeType": "image/png", "data": "A" * 46_420}
LINK = {"type": "resource_link", "uri": "file:///srv/a.txt", "name": "a"}


def mcp(answer: Any, *, size: int | None = None, limit: int = 512) -> str:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    length = len(data) if size is None else size
    return result_summary(data, size=length, limit=limit)


def http(answer: bytes, media_type: str, *, size: int | None = None) -> str:
    length = len(answer) if size is None else size
    return body_summary(answer, media_type, size=length)


TOLD: list[tuple[Any, str]] = [
    ({"content": [text("done")]}, "done"),
    ({"content": [text("  a\n\n\tb  ")]}, "a b"),
    ({"content": [text("a"), text("b"), text("c")]}, "a [2 x text]"),
    ({"content": [text(""), text("b")]}, "b [text]"),
    (
        {"content": [text("a"), IMAGE, LINK]},
        "a [image/png 34 KiB, resource link file:///srv/a.txt]",
    ),
    ({"content": [IMAGE]}, "[image/png 34 KiB]"),
    ({"content": [{"type": "audio", "data": "AAAA"}]}, "[audio 3 B]"),
    (
        {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "hello"}}]},
        "hello",
    ),
    (
        {"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}]},
        "[resource 3 B]",
    ),
    ({"content": [], "structuredContent": {"a": 1}}, '{"a": 1}'),
    ({"content": [text("a")], "structuredContent": {"a": 1}}, "a"),
    ({"content": []}, "empty"),
    ({"content": [{}]}, "[block]"),
    ({"content": None}, '{"content": null}'),
    ({}, "empty"),
    ({"content": [text("no such file")], "isError": True}, "error: no such file"),
    ({"content": [], "isError": True}, "error: empty"),
    ({"resultType": "input_required", "requestState": "x"}, "input_required"),
    ({"resultType": "task", "taskId": "t"}, "task"),
    ({"resultType": "complete", "content": [text("a")]}, "a"),
    ({"code": -32602, "message": "unknown tool"}, "error -32602: unknown tool"),
    ({"jsonrpc": "2.0", "id": 1, "result": {"content": [text("in")]}}, "in"),
    (
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "a\nb"}},
        "error -32603: a b",
    ),
    (b"", "empty"),
    (b"  ", "empty"),
    (b"null", "null"),
    (b"[1, 2]", "[1, 2]"),
    (b"<html>not\n json</html>", "<html>not json</html>"),
    ({"content": "wrong"}, '{"content": "wrong"}'),
    ({"content": [{"type": "text", "text": 5}]}, '{"content": [{"type": "text", "text": 5}]}'),
    ({"data": {"rows": 3}}, '{"data": {"rows": 3}}'),
]


@pytest.mark.parametrize(("answer", "summary"), TOLD, ids=lambda value: repr(value)[:40])
def test_a_result_is_summarized_in_a_line(answer: object, summary: str) -> None:
    assert mcp(answer) == summary


def test_a_cut_result_shows_the_text_it_has() -> None:
    whole = json.dumps({"content": [text('say "hi" \\ ok\nnow \ud83d\ude00')]}).encode()
    assert mcp(whole[:-20], size=900) == 'say "hi" \\ ok'
    assert mcp(whole[:-6], size=900).startswith('say "hi" \\ ok now')


def test_a_result_with_trailing_blanks_is_read_whole() -> None:
    assert mcp(json.dumps({"content": [text("ok"), IMAGE]}).encode() + b" \r\n\t").endswith("KiB]")


def test_a_cut_image_is_summarized_by_kind_and_full_size() -> None:
    whole = json.dumps({"content": [IMAGE]}).encode()
    assert mcp(whole[:1000], size=6 << 20) == "image/png 6 MiB"


def test_a_long_text_does_not_push_out_other_blocks() -> None:
    summary = mcp({"content": [text("word " * 1000), IMAGE]})
    assert summary.endswith("… [image/png 34 KiB]")
    assert len(summary.encode()) <= 512


def test_many_kinds_of_blocks_are_summarized_by_the_commonest() -> None:
    kinds = [{"type": f"kind{n}"} for n in range(9)] + [{"type": "kind7"}]
    assert mcp({"content": kinds}) == "[2 x kind7, kind0, kind1, kind2, ...]"


@pytest.mark.parametrize(
    ("answer", "media_type", "summary"),
    [
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"<p>\n hi", "text/html; charset=utf-8", "<p> hi"),
        (b"a: 1\nb: 2", "application/yaml", "a: 1 b: 2"),
        (b"", "application/json", "empty"),
        (b"   ", "text/plain", "empty"),
        (b"plain words", "", "plain words"),
        ("é".encode() * 600, "", "é" * 254 + "…"),
        (b"x" + "é".encode() * 600, "", "x" + "é" * 254 + "…"),
        (b"x" * 1023 + b"\xff", "", "1 KiB application/octet-stream"),
        (b"\x00\x01", "", "2 B application/octet-stream"),
        (b"\xff\xfe\xfd", "", "3 B application/octet-stream"),
        (b"PK\x03\x04", "application/zip", "4 B application/zip"),
        (b"\xff ok", "text/plain", "\N{REPLACEMENT CHARACTER} ok"),
    ],
)
def test_a_plain_answer_is_summarized_in_a_line(
    answer: bytes, media_type: str, summary: str
) -> None:
    assert http(answer, media_type) == summary


def test_an_unrecorded_answer_is_summarized_by_size_and_type() -> None:
    assert http(b"%PDF", "application/pdf", size=12_900_000) == "12.3 MiB application/pdf"
    assert http(b"", "application/pdf", size=2048) == "2 KiB application/pdf"
    assert http(b"", "", size=2048) == "2 KiB"


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07red",
        "\x1b]8;;http://x\x1b\\red",
        "\x9b31mred",
        "\x1bcred",
        "red\x00\x07\x08\x7f",
        "\u202ered",
        "red\r",
        "\u200bred\u2028",
        "\x1b[" + ";" * 150 + "mred",
    ],
)
def test_terminal_escapes_are_removed(hostile: str) -> None:
    for line in (
        mcp({"content": [text(hostile)]}),
        mcp({"code": 1, "message": hostile}),
        http(hostile.encode(), "text/plain"),
        preview(json.dumps({"a": hostile}, ensure_ascii=False).encode()),
    ):
        assert line.isprintable()
        assert "red" in line
    assert mcp({"content": [{"type": hostile, "uri": hostile}]}).isprintable()
    assert http(b"\0", hostile).isprintable()


def test_a_preview_is_the_beginning_of_the_arguments() -> None:
    assert preview(b'{"path": "/a",\n  "n": 1}') == '{"path": "/a", "n": 1}'
    assert preview(b'{"a":"' + b"x" * 500) == '{"a":"' + "x" * 191 + "…"
    assert preview(b"") == ""
    assert preview(b'{"a":"\xff"}') == '{"a":"\N{REPLACEMENT CHARACTER}"}'


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (34 * 1024, "34 KiB"),
        (1536, "1.5 KiB"),
        (12_900_000, "12.3 MiB"),
        (1 << 60, "1048576 TiB"),
    ],
)
def test_sizes_are_for_people(size: int, shown: str) -> None:
    assert human_size(size) == shown


@given(st.binary(max_size=300), st.text(max_size=20), st.integers(8, 600))
def test_any_answer_has_a_bounded_printable_summary(
    answer: bytes, media_type: str, limit: int
) -> None:
    for line in (
        result_summary(answer, size=len(answer), limit=limit),
        body_summary(answer, media_type, size=len(answer), limit=limit),
    ):
        assert line.isprintable()
        assert len(line.encode()) <= limit


blocks = st.dictionaries(
    st.sampled_from(["type", "text", "uri", "data", "mimeType"]), st.text(), max_size=5
)
results = st.dictionaries(
    st.sampled_from(["content", "isError", "structuredContent"]),
    st.lists(blocks, max_size=5) | st.booleans() | st.dictionaries(st.text(), st.integers()),
)


@given(results, st.integers(0, 400), st.integers(40, 600))
def test_any_result_has_a_bounded_printable_summary(
    result: dict[str, Any], cut: int, limit: int
) -> None:
    data = json.dumps(result).encode()
    for answer in (data, data[:cut]):
        line = mcp(answer, limit=limit)
        assert line.isprintable()
        assert len(line.encode()) <= limit


@pytest.mark.parametrize(
    ("content", "wanted", "found"),
    [
        (b"The Answer", "answer", True),
        (b"nothing", "answer", False),
        (rb'{"a": "caf\u00e9"}', "CAFÉ", True),
        (rb'{"a": "x\"y"}', 'x"y', True),
        (rb'{"a": "\u00e9"}', "z", False),
        (rb"broken \u00e9", "é", False),
    ],
)
def test_a_text_is_found_in_any_case_and_behind_json_escapes(
    content: bytes, wanted: str, found: bool
) -> None:
    assert contains_text(content, wanted) is found


@pytest.mark.parametrize(
    ("text", "summary"),
    [("a\n  b", "a b"), (" \x07 ", "empty"), ("x" * 600, "x" * 508 + "…")],
)
def test_the_summary_of_one_text_is_that_of_the_result_that_holds_it(
    text: str, summary: str
) -> None:
    assert text_summary(text) == summary
    result = json.dumps({"content": [{"type": "text", "text": text}]}).encode()
    assert result_summary(result, size=len(result)) == summary
