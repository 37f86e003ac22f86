"""Outcomes in turnlog's name are taken out of any JSON, however they are spelled and cut."""

import json
from typing import TypeAlias

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from turnlog.wire.outcome_key import NAME, OutcomeMask, without_mask, without_outcome
from turnlog.wire.sse import EventReader

Value: TypeAlias = "list[Value] | tuple[tuple[str, Value], ...] | str | float | None"


@st.composite
def names(draw: st.DrawFn) -> str:
    """One spelling of the name: each letter as it is, or escaped."""
    return '"' + "".join(draw(st.sampled_from(_spellings(letter))) for letter in NAME) + '"'


def _spellings(letter: str) -> list[str]:
    code = f"{ord(letter):02x}"
    escaped = [letter, f"\\u00{code}", f"\\u00{code.upper()}"]
    return [*escaped, "\\/"] if letter == "/" else escaped


blanks = st.sampled_from(["", "", " ", "\n  ", "\t", "\r\n"])
near = st.sampled_from(
    [NAME, NAME + "s", NAME[:-1], f'{{"{NAME}": 1}}', "\\", f'"{NAME}":', "é", ""]
)
leaves = st.sampled_from(["0", "null", "true", "[]", "{}"]) | near.map(json.dumps)


def _array(values: list[tuple[str, str]]) -> str:
    return "[" + ",".join(f"{blank}{value}{blank}" for blank, value in values) + "]"


def _object(members: list[tuple[str, str, str, str]]) -> str:
    return "{" + ",".join(f"{a}{name}{b}:{b}{value}{a}" for name, a, b, value in members) + "}"


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    name = names() | near.map(json.dumps)
    return st.lists(st.tuples(blanks, inner), max_size=3).map(_array) | st.lists(
        st.tuples(name, blanks, blanks, inner), max_size=4
    ).map(_object)


texts = st.recursive(leaves, _nested, max_leaves=12)
others = st.sampled_from(
    ["", "id: 7\n", ": a comment\n", "x: y\r\n", "x_1: y\n", "data : y\n", " \n", "data\n", "1\n"]
)
"""Fields of an event that say nothing of its data, or only end a line of it."""
sizes = st.lists(st.integers(1, 40), min_size=1)


def read(text: bytes) -> Value:
    """Return a text's meaning, with an object as its pairs: equal names stay apart."""
    said: Value = json.loads(text, object_pairs_hook=tuple)
    return said


def wanted(value: Value) -> Value:
    """Return a meaning without members of that name."""
    if isinstance(value, list):
        return [wanted(item) for item in value]
    if isinstance(value, tuple):
        return tuple((name, wanted(item)) for name, item in value if name != NAME)
    return value


def masked(text: bytes, sizes: list[int], *, in_events: bool) -> tuple[bytes, bool]:
    mask, out, place, turn = OutcomeMask(in_events=in_events), b"", 0, 0
    while place < len(text):
        out += mask.feed(text[place : place + sizes[turn % len(sizes)]])
        place += sizes[turn % len(sizes)]
        turn += 1
    return out + mask.finish(), mask.found


@given(texts)
def test_members_of_that_name_go_and_all_else_stays(text: str) -> None:
    clean = without_outcome(text.encode())
    meant = read(text.encode())
    assert (clean is None) is (meant == wanted(meant))
    assert clean is None or read(clean) == wanted(meant)


@given(texts, sizes)
def test_a_text_in_pieces_keeps_its_length_and_loses_the_name(text: str, sizes: list[int]) -> None:
    raw = text.encode()
    out, found = masked(raw, sizes, in_events=False)
    assert len(out) == len(raw)
    assert found is (without_outcome(raw) is not None)
    assert found or out == raw
    assert read(without_mask(out) or out) == wanted(read(raw))


@given(texts, sizes, st.lists(others))
def test_a_name_in_an_event_goes_wherever_its_lines_end(
    text: str, sizes: list[int], between: list[str]
) -> None:
    lines = text.replace("\r", "").split("\n")
    fields = [*between, *("" for _ in lines)]
    raw = "".join(f"{field}data: {line}\n" for field, line in zip(fields, lines, strict=False))
    out, found = masked(raw.encode() + b"\n", sizes, in_events=True)
    assert len(out) == len(raw) + 1
    (event,) = (piece.event for piece in EventReader().feed(out) if piece.event is not None)
    assert found is (without_outcome(text.encode()) is not None)
    assert read(without_mask(event.data) or event.data) == wanted(read(text.encode()))


@given(st.binary(), sizes)
def test_any_bytes_pass(raw: bytes, sizes: list[int]) -> None:
    for in_events in (False, True):
        out, found = masked(raw, sizes, in_events=in_events)
        assert found or out == raw
    without_outcome(raw)


def test_lines_behind_a_name_are_read_once() -> None:
    # A line of blanks could be read as blanks or as a field: two to the power of the lines.
    for lines in ("\n \t" * 2000, "\n: x" * 2000, "\nx" + " " * 8000):
        raw = f'data: "turnlog/outcome"{lines}\ndata: 1\n\n'.encode()
        assert masked(raw, [65536], in_events=True) == (raw, False)


def test_of_a_line_that_does_not_end_a_bounded_part_is_held() -> None:
    mask = OutcomeMask(in_events=True)
    passed = mask.feed(b'data: {"turnlog/outcome"\n:' + b"x" * 1000)
    assert passed == b'data: {"'
    assert mask.feed(b"x" * 8000).endswith(b"x" * 8000)


def test_a_text_with_many_of_them_takes_time_in_proportion() -> None:
    # Removing one after the other by copying the rest would be 20 GB of copies.
    many = b"{%b}" % b",".join([b'"turnlog/outcome": {"retry": "safe"}'] * 100_000)
    assert without_outcome(many) == b"{}"
    assert msgspec.json.decode(masked(many, [65536], in_events=False)[0])
