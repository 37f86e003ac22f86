"""Names of plain HTTP tools: few different ones, without identifiers and tokens."""

import json
from hashlib import sha256

import pytest

from turnlog.core.kinds import Effect
from turnlog.rules.http_tools import (
    TOOL_BYTES,
    has_unread_body,
    http_effect,
    http_input,
    http_tool,
    normalized_path,
    values_in,
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/users", "GET /users"),
        ("/users/42/orders", "GET /users/*/orders"),
        ("/v1/users", "GET /*/users"),
        ("/files/abcdefghijklmnopqrstuvwx", "GET /files/abcdefghijklmnopqrstuvwx"),
        ("/files/abcdefghijklmnopqrstuvwxy", "GET /files/*"),
        ("/users?id=42&token=abc", "GET /users"),
        ("/", "GET /"),
        ("", "GET "),
        ("/a//b", "GET /a//b"),
        ("/a/\x1b[2J", "GET /a/*"),
        ("/a/\udcff", "GET /a/*"),
        ("/é", "GET /é"),
    ],
)
def test_a_tool_is_method_and_path_pattern(path: str, name: str) -> None:
    assert http_tool("GET", path) == name


def test_a_long_name_is_cut_between_characters() -> None:
    name = http_tool("GET", "/é" * 200)
    assert TOOL_BYTES - 1 <= len(name.encode()) <= TOOL_BYTES
    assert set(name.removeprefix("GET ")) == {"/", "é"}


@pytest.mark.parametrize(
    ("method", "effect"),
    [
        ("GET", Effect.READ),
        ("HEAD", Effect.READ),
        ("OPTIONS", Effect.READ),
        ("PUT", Effect.IDEMPOTENT_WRITE),
        ("DELETE", Effect.IDEMPOTENT_WRITE),
        ("POST", Effect.UNKNOWN),
        ("PATCH", Effect.UNKNOWN),
        ("get", Effect.UNKNOWN),
    ],
)
def test_the_method_suggests_an_effect(method: str, effect: Effect) -> None:
    assert http_effect(method) is effect


def test_the_input_holds_a_json_body_as_it_came() -> None:
    given = http_input("/orders", "dry=1", b'{"b": 1.0, "a": [1]}')
    assert given.text == b'{"path":"/orders","query":"dry=1","body":{"b": 1.0, "a": [1]}}'


def test_the_input_of_a_call_without_body_says_so() -> None:
    assert json.loads(http_input("/", "", b"").text) == {"path": "/", "query": "", "body": None}


@pytest.mark.promise("REC-18")
@pytest.mark.parametrize(
    "body",
    [b"a=1&b=2", b"\xff\xfe", b'{"a":', b'{"a":"\xff"}', b"[" * 100_000, b'"\\ud800"'],
    ids=lambda body: repr(body[:12]),
)
def test_a_body_that_is_not_json_is_replaced_by_its_digest(body: bytes) -> None:
    said = json.loads(http_input("/", "", body).text)["body"]
    assert said == "sha256:" + sha256(body).hexdigest()


def test_the_digest_can_be_keyed() -> None:
    said = json.loads(http_input("/", "", b"a=1", digest=lambda data: data[::-1]).text)["body"]
    assert said == "hmac-sha256:" + b"1=a".hex()


def test_a_path_that_is_not_text_is_accepted() -> None:
    assert json.loads(http_input("/\udcff", "\ud800", b"").text)["path"] == "/?"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_before_json_is_dropped(mark: bytes) -> None:
    assert http_input("/", "", mark + b"[1]").text == b'{"path":"/","query":"","body":[1]}'


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b" \r\n"])
@pytest.mark.parametrize("start", [b'{"a": "b', b"[1, 2, "])
def test_the_start_of_an_incomplete_json_body_is_at_the_end(mark: bytes, start: bytes) -> None:
    given = http_input("/x", "q=1", mark + start, whole=False)
    assert given.cut
    assert given.text == b'{"path":"/x","query":"q=1","body_start":' + start


@pytest.mark.parametrize("start", [b"a=1&b=2", b"\xff\xfe", b"plain text", b"\x1f\x8b", b""])
def test_the_start_of_any_other_incomplete_body_becomes_a_digest(start: bytes) -> None:
    given = http_input("/x", "q=1", start, whole=False, digest=lambda data: data[::-1])
    assert not given.cut
    assert json.loads(given.text) == {
        "path": "/x",
        "query": "q=1",
        "body_start": "hmac-sha256:" + start[::-1].hex(),
    }


@pytest.mark.parametrize(("depth", "kept"), [(512, True), (513, False)])
def test_a_body_that_nests_too_deeply_is_replaced_by_its_digest(depth: int, kept: bool) -> None:
    body = b"[" * depth + b"]" * depth
    assert (body in http_input("/", "", body).text) == kept


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/a/b", "/a/b"),
        ("/a/./b/../c", "/a/c"),
        ("/a//b/", "/a/b/"),
        ("/%61/%2e%2e/b", "/b"),
        ("/..", "/"),
        ("/a/b/..", "/a/"),
    ],
)
def test_a_path_is_compared_without_encoding_and_dot_segments(path: str, normal: str) -> None:
    assert normalized_path(path) == normal


@pytest.mark.parametrize(
    ("path", "query", "body", "wanted"),
    [
        ("/orders/a-17", "x=/1", b'{"p":"/a"}', {"path": " orders a-17", "query": "x=/1", "body": {"p": "/a"}}),
        ('/a"b/\\', "", b"", {"path": ' a"b \\', "query": "", "body": None}),
        ("/orders", "", b"user=jo", {"path": " orders", "query": ""}),
        ("/orders", "", b'"sha256:ab"', {"path": " orders", "query": ""}),
    ],
)  # fmt: skip
def test_of_a_plain_input_the_segments_are_values_and_a_digest_is_none(
    path: str, query: str, body: bytes, wanted: dict[str, object]
) -> None:
    assert json.loads(values_in(http_input(path, query, body).text)) == wanted


def test_an_input_that_is_not_turnlogs_own_stays_as_it_is() -> None:
    assert values_in(b'{"query":"/a"}') == b'{"query":"/a"}'


@pytest.mark.parametrize(
    ("body", "is_unread"), [(b"", False), (b'{"id": 1}', False), (b"id=1", True), (b"{} {}", True)]
)
def test_a_body_that_is_not_json_cannot_be_looked_up(body: bytes, is_unread: bool) -> None:
    assert has_unread_body(http_input("/orders", "", body).text) is is_unread
