from enum import StrEnum
from typing import Annotated

import pytest
from msgspec import Struct

from turnlog.core.text.units import Size, reads
from turnlog.packs.shape import MismatchError, Plain, Step, convert, value_at


def _short(value: object) -> str:
    if not isinstance(value, str) or len(value) > 3:
        raise ValueError("too long, shorten it")
    return value


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Leaf(Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    colour: Colour = Colour.RED
    tags: tuple[str, ...] = ()


class Tree(Struct, frozen=True, forbid_unknown_fields=True):
    size: Size = 0
    leaves: dict[Annotated[str, reads(_short)], Leaf] = {}
    nested: dict[str, dict[str, int]] = {}
    maybe: Leaf | None = None


def _refused(data: Plain, later: frozenset[str] = frozenset()) -> MismatchError:
    with pytest.raises(MismatchError) as caught:
        convert(data, Tree, later=later)
    return caught.value


def test_data_that_fits_becomes_the_type() -> None:
    tree = convert({"size": "1KiB", "leaves": {"a": {"url": "x", "colour": "green"}}}, Tree)

    assert tree == Tree(size=1024, leaves={"a": Leaf("x", Colour.GREEN)})


@pytest.mark.parametrize(
    ("data", "steps", "message"),
    [
        (
            {"size": "huge"},
            ("size",),
            "'huge' is no amount, write a size like 64KiB, 10MiB or 2GiB",
        ),
        (
            {"leaves": {"a": {"url": "x"}, "b": {"url": 3}}},
            ("leaves", "b", "url"),
            "'leaves.b.url' must be text, not a whole number",
        ),
        (
            {"leaves": {"a": {"url": "x", "tags": ["t", None]}}},
            ("leaves", "a", "tags", 1),
            "'leaves.a.tags.1' must be text, not nothing",
        ),
        ({"leaves": {"a": {}}}, ("leaves", "a"), "'url' is missing, add it"),
        (
            {"nested": {"a": {"b": 1}, "c": {"d": 2, "e": "x"}}},
            ("nested", "c", "e"),
            "'nested.c.e' must be a whole number, not text",
        ),
        ([], (), "the file must be a mapping, not a list"),
        ({"maybe": 3}, ("maybe",), "'maybe' must be a mapping or nothing, not a whole number"),
        (
            {"maybe": "x"},
            ("maybe",),
            "'maybe' must be a mapping or nothing, not text; its keys are colour, tags, url",
        ),
        (
            {"leaves": {"a": {"url": "x", "tags": "one"}}},
            ("leaves", "a", "tags"),
            "'leaves.a.tags' must be a list, not text; write [one]",
        ),
        (
            {"leaves": {"a": {"url": "x", "tags": "one and two"}}},
            ("leaves", "a", "tags"),
            "'leaves.a.tags' must be a list, not text",
        ),
        ({"url": "x"}, (), "unknown key 'url', it belongs under 'maybe'"),
        (
            {"leaves": {"a": {"url": "x", "colour": "gren"}}},
            ("leaves", "a", "colour"),
            "'leaves.a.colour' cannot be 'gren', did you mean 'green'?",
        ),
        (
            {"leaves": {"a": {"url": "x", "colour": "blue"}}},
            ("leaves", "a", "colour"),
            "'leaves.a.colour' cannot be 'blue', use one of: green, red",
        ),
    ],
)
def test_a_mismatch_names_the_value_and_gives_advice(
    data: Plain, steps: tuple[Step, ...], message: str
) -> None:
    error = _refused(data)

    assert (error.steps, error.message) == (steps, message)


@pytest.mark.parametrize(
    ("data", "steps", "key", "message"),
    [
        ({"sise": 1}, (), "sise", "unknown key 'sise', did you mean 'size'?"),
        (
            {"maybe": {"url": "x", "zzz": 1}},
            ("maybe",),
            "zzz",
            "unknown key 'zzz', use one of: colour, tags, url",
        ),
        ({"leaves": {"abcd": {"url": "x"}}}, ("leaves",), "abcd", "too long, shorten it"),
    ],
)
def test_a_wrong_key_is_named(data: Plain, steps: tuple[Step, ...], key: str, message: str) -> None:
    error = _refused(data)

    assert (error.steps, error.key, error.message) == (steps, key, message)


@pytest.mark.promise("CLI-13")
def test_a_planned_key_is_reported_as_not_supported_yet() -> None:
    error = _refused({"leaves": {"a": {"url": "x", "soon": 1}}}, frozenset({"leaves.*.soon"}))

    assert (error.key, error.message) == ("soon", "'soon' is not supported yet, remove it")


def test_a_planned_value_is_reported_as_not_supported_yet() -> None:
    data = {"leaves": {"a": {"url": "x", "colour": "blue"}}}

    error = _refused(data, frozenset({"leaves.*.colour=blue"}))

    assert error.message == "'leaves.a.colour' 'blue' is not supported yet, leave it out"


def test_a_path_that_leads_nowhere_has_no_value() -> None:
    data = {"a": [1, {"b": 2}]}

    assert value_at(data, ("a", 1, "b")) == 2
    assert value_at(data, ("a", "b")) is None
    assert value_at(data, ("a", 0, "b")) is None
