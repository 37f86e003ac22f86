import json

import pytest

from turnlog.provenance.leaves import PIECE, is_json, leaves


def test_leaves_are_the_texts_and_larger_numbers_of_a_result_with_their_pointers() -> None:
    content = {
        "content": [{"type": "text", "text": "some text"}],
        "a/b~c": "odd name",
        "n": 4711,
        "small": 7,
        "f": 12.5,
        "whole": 120000.0,
        "vast": 1e300,
        "none": None,
        "yes": True,
    }
    assert list(leaves(json.dumps(content).encode())) == [
        ("/content/0/text", "some text"),
        ("/a~1b~0c", "a/b~c"),
        ("/a~1b~0c", "odd name"),
        ("/n", "4711"),
        ("/f", "12.5"),
        ("/whole", "120000"),
        ("/vast", "1e+300"),
    ]


@pytest.mark.parametrize(
    "more", [{}, {"isError": False}, {"isError": "ord-12345"}, {"id": "ord-12345"}]
)
@pytest.mark.parametrize(
    "items",
    [
        [{"type": "text", "text": "some text"}],
        [{"type": "text", "text": "some text", "id": "a-1234"}],
        [{"type": "text", "text": "some text"}, {"type": "text", "text": "b-1234"}],
        [{"type": "resource", "text": "c-1234"}],
        [{"type": "text", "text": {"id": "d-1234"}}],
        [{"type": "text", "data": "e-1234"}],
        ["f-1234"],
        "g-1234",
    ],
)
def test_nothing_beside_the_text_of_a_result_is_left_out(
    items: object, more: dict[str, object]
) -> None:
    content = {"content": items, **more}
    # In a list the same is no result.
    in_a_list = list(leaves(json.dumps([content]).encode()))
    assert [("/0" + pointer, text) for pointer, text in leaves(json.dumps(content).encode())] == (
        in_a_list
    )


def test_what_is_too_short_for_a_value_is_left_out() -> None:
    assert list(leaves(b'["a-1", "running", "administrator", "a-12"]')) == [
        ("/2", "administrator"),
        ("/3", "a-12"),
    ]


def test_json_in_a_string_is_read_and_its_leaves_have_the_pointer_of_the_string() -> None:
    inner = json.dumps({"id": "a-11", "items": [{"id": "b-22", "c/d": ["c-33"]}]})
    content = json.dumps([{"text": inner}, "[not json", "{}"]).encode()
    assert list(leaves(content)) == [
        ("/0/text", "a-11"),
        ("/0/text", "b-22"),
        ("/0/text", "c-33"),
        ("/1", "[not json"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"plain\ntext", "plain\ntext"),
        (b'{"cut": "one\\ntwo \\u00e9 C:\\Users', '{"cut": "one two é C:\\Users'),
        (b'{"cut": "\\u003cord-1\\u0032345\\u003e', '{"cut": "<ord-12345>'),
        (b'{"cut": "\\u65e5\\u672c-4711 \\ud83d\\ude00', '{"cut": "日本-4711 😀'),
        (b'{"half": "\\ud800 of ord-12345"}', "\ufffd of ord-12345"),
        (b"\xff\xfe--", "\ufffd\ufffd--"),
        (b"[" * 2000, "[" * 2000),
    ],
)
def test_what_is_no_json_is_one_text(content: bytes, text: str) -> None:
    assert list(leaves(content)) == [("", text)]


def test_json_is_read_however_often_it_stands_in_json() -> None:
    content: object = "failed\nb-2222"
    for _ in range(6):
        content = json.dumps({"message": content})
    assert list(leaves(str(content).encode())) == [("/message", "failed\nb-2222")]


@pytest.mark.parametrize("content", [b"[" * 3000, json.dumps("[" * 3000).encode()])
def test_text_that_only_looks_like_json_is_text(content: bytes) -> None:
    assert "".join(text for _, text in leaves(content)) == "[" * 3000
    assert not is_json(b"[" * 3000)


def test_a_number_of_more_digits_than_a_float_is_found_by_them_and_as_a_float() -> None:
    assert [text for _, text in leaves(b'{"n": 1234567.890123456789, "m": 12.50}')] == [
        "1234567.8901234567",
        "1234567.890123456789",
        "12.5",
    ]


def test_nothing_is_found_in_nothing() -> None:
    assert not list(leaves(b""))


@pytest.mark.parametrize(
    "text", ["word-1 " * 2000, "x" * 10_000, "é" * 2060, "a" * 2048 + "\n\nb-12"]
)
def test_a_long_text_comes_in_pieces_that_make_the_whole(text: str) -> None:
    pieces = [piece for _, piece in leaves(json.dumps(text).encode())]
    assert "".join(pieces) == text
    assert all(len(piece) <= PIECE for piece in pieces)


def test_a_piece_ends_after_white_space_unless_a_word_is_longer_than_it() -> None:
    text = "\n".join(f"word-{number}" for number in range(1000)) + "\n" + "x" * 3000
    *before, begun, rest = [piece for _, piece in leaves(json.dumps(text).encode())]
    assert all(piece.endswith("\n") for piece in before)
    assert (begun, rest) == ("x" * PIECE, "x" * (3000 - PIECE))
    assert [len(piece) for piece in before[:2]] == [2041, 2043]  # as many words as fit


def test_pointers_stay_short_however_long_keys_are_and_however_deep_values_lie() -> None:
    deep: object = "ord-12345"
    for _ in range(300):
        deep = [deep]
    key = "k" * 1000
    content = {"a": {key: {"b": "ord-12346"}}, "deep": deep}
    found = {text: pointer for pointer, text in leaves(json.dumps(content).encode())}
    assert found[key] == found["ord-12346"] == "/a"
    assert found["ord-12345"].startswith("/deep/0/0/0")
    assert all(len(pointer) < 500 for pointer in found.values())
