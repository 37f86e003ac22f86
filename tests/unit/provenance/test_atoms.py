import json

import pytest

from turnlog.provenance import atoms
from turnlog.provenance.atoms import Leaf, leaves


def test_leaves_are_the_texts_and_larger_numbers_of_a_result_with_their_pointers() -> None:
    content = {
        "content": [{"text": "some text"}],
        "a/b~c": "odd name",
        "n": 4711,
        "small": 7,
        "f": 12.5,
        "whole": 120000.0,
        "none": None,
        "yes": True,
    }
    assert leaves(json.dumps(content).encode()) == [
        Leaf("/content/0/text", "some text"),
        Leaf("/a~1b~0c", "a/b~c"),
        Leaf("/a~1b~0c", "odd name"),
        Leaf("/n", "4711"),
        Leaf("/f", "12.5"),
        Leaf("/whole", "120000"),
    ]


def test_json_in_a_string_is_read_and_its_leaves_have_the_pointer_of_the_string() -> None:
    inner = json.dumps({"id": "a-1", "items": [{"id": "b-2"}]})
    content = json.dumps([{"text": inner}, "[not json", "{}"]).encode()
    assert leaves(content) == [
        Leaf("/0/text", "a-1"),
        Leaf("/0/text", "b-2"),
        Leaf("/1", "[not json"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"plain\ntext", "plain\ntext"),
        (b'{"cut": "one\\ntwo \\u00e9 C:\\Users', '{"cut": "one two   C:\\Users'),
        (b'{"half": "\\ud800"}', '{"half": " "}'),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
        (b"[" * 20000, "[" * 20000),
    ],
)
def test_what_is_no_json_is_one_text(content: bytes, text: str) -> None:
    assert leaves(content) == [Leaf("", text)]


@pytest.mark.parametrize(
    "other",
    [
        "ORDER  Ord-99812\nfor bob@example.com",
        "order 'ORD-99812' (for bob@example.com).",
        "order%20ORD%2D99812 for bob%40example.com",
        "\uff4frder ord-99812 for bob@example.com",
    ],
)
def test_a_reformatted_text_folds_to_the_same_words(other: str) -> None:
    text = "order ORD-99812 for bob@example.com"
    assert atoms.fold(other).split() == atoms.fold(text).split()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,234,567.50 EUR", "1234567.5"),
        ("1'234'567 CHF", "1234567"),
        ("9_876_543 bytes", "9876543"),
        ("12345.00", "12345"),
        ("C:\\Temp\\a1.txt", "c:/temp/a1.txt"),
        ("see src/app.py:12:", "src/app.py"),
        ("https://api.example.com/v1/items/abc-123?x=QQ88812", "abc-123"),
        ("https://api.example.com/v1/items/abc-123?x=QQ88812", "qq88812"),
        ("| 7 | Jane Elizabeth Doe | Berlin |", "jane elizabeth doe"),
        ("name          Jane Elizabeth Doe", "jane elizabeth doe"),
    ],
)
def test_a_text_has_the_atom_of_a_value_in_it(one: str, other: str) -> None:
    assert hash(other.encode()) in atoms.atoms(one)


def test_words_of_letters_alone_and_short_ones_are_no_atoms() -> None:
    assert atoms.atoms("the lazy dog 12") == {hash(b"the lazy dog 12")}
    assert atoms.atoms("Administrator") == {hash(b"administrator")}


def test_prose_has_shingles_and_a_table_of_numbers_has_none() -> None:
    prose = b"the quick brown fox jumps over".split()
    assert len(atoms.shingles(prose)) == 2
    assert not atoms.shingles(prose[:4])
    assert not atoms.shingles(b"12 13 14 15 16 17".split())


@pytest.mark.parametrize(
    "token",
    ["4711", "src/app", "a@b.example", "ord-12", "/etc/hosts", "deadbeef01", "10.2.3.4", "v1.2.3x"],
)
def test_these_words_are_entities_anywhere(token: str) -> None:
    assert atoms.is_entity(token.encode(), alone=False)


@pytest.mark.parametrize("token", ["config.yaml", "feature-branch"])
def test_these_words_are_entities_only_if_they_are_the_whole_argument(token: str) -> None:
    assert atoms.is_entity(token.encode(), alone=True)
    assert not atoms.is_entity(token.encode(), alone=False)


@pytest.mark.parametrize(
    "token", ["123", "utf-8", "in_progress", "read-only", "word", "----", "1.5"]
)
def test_small_and_enum_like_words_are_no_entities(token: str) -> None:
    assert not atoms.is_entity(token.encode(), alone=True)
