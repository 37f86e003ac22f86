"""Laws of reading JSON-RPC: chunking is invisible, skimming agrees with parsing, nothing raises."""

import itertools
import json
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from turnlog.core.kinds import Flag
from turnlog.wire.json_stream import MESSAGE, JsonPlace, Outline, OutlineReader, outline_of
from turnlog.wire.json_text import Skipper, integer_of, members, shape, text_of
from turnlog.wire.jsonrpc import (
    Batch,
    Malformed,
    Message,
    outline_kind,
    parse,
    parse_answer,
    read_whole,
)
from turnlog.wire.mcp import cancelled_id, is_request, read_call, requested_revision
from turnlog.wire.message import MessageReader
from turnlog.wire.tool_result import read_answer, read_task_poll
from turnlog.wire.tools_list import read_tools_list


def paths_within(place: JsonPlace) -> list[str]:
    return [place.path, *(path for inner in place.members.values() for path in paths_within(inner))]


PATHS = paths_within(MESSAGE)[1:]
NAMES = sorted({name for path in PATHS for name in path.split(".")})
spaces = st.sampled_from([b"", b"", b"", b" ", b"\r\n\t "])


def escaped(text: str) -> bytes:
    """Return a JSON string in which every character is escaped."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [units[at : at + 2].hex() for at in range(0, len(units), 2)]
    return b'"' + "".join(f"\\u{code}" for code in codes).encode() + b'"'


def plain(text: str) -> bytes:
    """Return a JSON string as most encoders write it."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")


texts = st.one_of(
    st.sampled_from([*NAMES, "task", "input_required", "-32042", 'q"', "\\", "x]}", "tools/call"]),
    st.text(max_size=6),
    st.text(st.sampled_from('\\"[]{}\ud800é𝄞'), max_size=6),
)
strings = st.one_of(texts.map(plain), texts.map(escaped), texts.map(json.dumps).map(str.encode))
names = st.one_of(st.sampled_from(NAMES).map(plain), st.sampled_from(NAMES).map(escaped), strings)
scalars = st.one_of(
    st.sampled_from(
        [b"null", b"true", b"false", b"0", b"-1.5e3", b"NaN", b"-Infinity", b"1" * 40, b"-32042"]
    ),
    strings,
)


def joined(parts: list[bytes], space: bytes, opening: bytes, closing: bytes) -> bytes:
    return opening + space + (space + b"," + space).join(parts) + space + closing


def containers(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    member = st.tuples(names, spaces, inner).map(lambda m: m[0] + m[1] + b":" + m[1] + m[2])
    return st.one_of(
        st.tuples(st.lists(inner, max_size=4), spaces).map(
            lambda p: joined(p[0], p[1], b"[", b"]")
        ),
        st.tuples(st.lists(member, max_size=5), spaces).map(
            lambda p: joined(p[0], p[1], b"{", b"}")
        ),
    )


values = st.recursive(scalars, containers, max_leaves=12)


def messages() -> st.SearchStrategy[bytes]:
    """JSON texts, most of them shaped like messages."""
    top = st.sampled_from(["id", "method", "params", "result", "error", "jsonrpc"]).map(plain)
    second = st.lists(st.tuples(names, values).map(lambda m: m[0] + b":" + m[1]), max_size=6).map(
        lambda parts: joined(parts, b"", b"{", b"}")
    )
    member = st.tuples(top, spaces, st.one_of(scalars, second, values)).map(
        lambda m: m[0] + b":" + m[1] + m[2]
    )
    whole = st.lists(member, max_size=5).map(lambda parts: joined(parts, b" ", b"{", b"}"))
    return st.one_of(whole, whole, values)


def skim(data: bytes, cuts: list[int]) -> Outline:
    skimmer = OutlineReader()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        skimmer.feed(data[start:end])
    return skimmer.finish()


def bytewise(data: bytes) -> Outline:
    return skim(data, list(range(len(data))))


def expected(data: bytes) -> dict[str, Any]:
    """Return what the standard library finds at the paths, containers as their token."""
    found: dict[str, Any] = {}

    def put(path: str, value: Any) -> None:
        if not isinstance(value, dict | list):
            found[path] = json.dumps(value)
            return
        opening, whole = ("{", "{}") if isinstance(value, dict) else ("[", "[]")
        found[path] = opening if value else whole
        known: dict[str, Any] = cast("dict[str, Any]", value) if opening == "{" else {}
        for name, inner in known.items():
            below = f"{path}.{name}".removeprefix(".")
            if below in PATHS and "." not in name:
                put(below, inner)

    put("", loads(data))
    return found


def loads(data: bytes) -> Any:
    text = data.decode("utf-8", "replace")
    return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)


def token_value(token: bytes) -> str:
    text = token.decode("utf-8", "replace")
    return text if text in ("{", "[", "{}", "[]") else json.dumps(loads(token))


cuts = st.lists(st.integers(0, 400), max_size=8)


@given(messages(), cuts)
@example(b'{"result":{"isError":true},"result":{}}', [])
@example(b'{"result":{"task":{"taskId":"a"},"task":5}}', [])
@example(b'{"error":{"message":"\\ud83d\\ude00"}}', [24])
def test_skimming_finds_what_a_json_parser_finds_whatever_the_chunks(
    data: bytes, where: list[int]
) -> None:
    outline = skim(data, where)
    assert outline.complete
    assert {path: token_value(token) for path, token in outline.tokens.items()} == expected(data)


@given(messages(), cuts)
def test_skimming_agrees_with_parsing(data: bytes, where: list[int]) -> None:
    outline, message = skim(data, where), parse(data)
    if not isinstance(message, Message):
        assert outline_kind(outline) is None or shape(outline.raw("")) != "full"
        return
    assert outline.complete
    assert outline_kind(outline) is message.kind
    assert is_request(outline) == is_request(message)
    assert text_of(outline.raw("method")) == message.method
    if not message.id.startswith((b"{", b"[")):
        assert outline.raw("id") == message.id
        assert cancelled_id(outline) == cancelled_id(message)
    if message.kind in ("response", "error"):
        skimmed = read_answer(outline, revision="")
        parsed = read_answer(message, revision="")
        assert skimmed.status is parsed.status
        assert (skimmed.code, skimmed.message) == (parsed.code, parsed.message)
        assert (skimmed.task_id, skimmed.task_ttl_ms) == (parsed.task_id, parsed.task_ttl_ms)
        assert skimmed.request_state == parsed.request_state
        assert parsed.null_shape or not skimmed.null_shape
        poll = Raw(b'{"taskId":"t"}')
        one = read_task_poll("tasks/get", poll, outline, revision="")
        two = read_task_poll("tasks/get", poll, message, revision="")
        assert one is not None
        assert two is not None
        assert (one.terminal, one.answer.status) == (two.terminal, two.answer.status)


mutations = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.integers(0, 4),
        st.one_of(
            st.binary(max_size=3), st.sampled_from([b'"', b"\\", b"{", b"]", b"\xef\xbb\xbf"])
        ),
    ),
    min_size=1,
    max_size=4,
)


def mutated(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for place, removed, added in changes:
        at = place % (len(data) + 1)
        data = data[:at] + added + data[at + removed :]
    return data


@given(messages(), mutations, cuts)
def test_no_bytes_make_any_reader_raise_and_chunks_stay_invisible(
    data: bytes, changes: list[tuple[int, int, bytes]], where: list[int]
) -> None:
    broken = mutated(data, changes)
    message = parse(broken)
    outline = skim(broken, where)
    assert outline == bytewise(broken)
    if not isinstance(message, Malformed):
        assert outline.complete
    read_everything(message)
    read_everything(outline)


def read_everything(message: Message | Batch | Malformed | Outline) -> None:
    """Call each reader on a message, as the relay may."""
    match message:
        case Batch():
            for item in message.items:
                read_everything(item)
        case Message() | Outline():
            cancelled_id(message)
            read_answer(message, revision="2026-07-28")
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                read_task_poll(method, Raw(b""), message, revision="")
        case Malformed():
            pass
    if isinstance(message, Message):
        read_call(message.params)
        read_tools_list(message.result)
        assert requested_revision(message, "x") is not None
        message.method.encode()
        message.error_message.encode()


@pytest.mark.promise("SEC-12")
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_without_raising(data: bytes) -> None:
    read_everything(parse(data))
    assert bytewise(data) == skim(data, [])
    assert integer_of(data) is None or data
    members(data)
    text_of(data, 5).encode()


@pytest.mark.promise("SEC-12")
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (b"", b""),
        (b'{"jsonrpc":"2.0","id":1,"result":', b"}"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":', b"}}"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","data":', b"}}"),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":', b"}}"),
    ],
)
@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":[', b"]}")])
def test_nesting_of_any_depth_is_read_without_raising(
    start: bytes, end: bytes, pair: tuple[bytes, bytes]
) -> None:
    opening, closing = pair
    text = start + opening * 30_000 + closing * 30_000 + end
    read_everything(parse(text))
    skim(text, [])
    members(text)
    assert integer_of(text) is None
    text_of(text, 5).encode()
    reader = MessageReader(len(text))
    reader.feed(text)
    assert reader.finish() == text


@given(messages(), st.integers(0, 64), cuts)
def test_a_message_reader_says_the_same_whatever_its_limit_and_the_chunks(
    data: bytes, limit: int, where: list[int]
) -> None:
    reader = MessageReader(limit)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in where)})
    for start, end in itertools.pairwise(edges):
        reader.feed(data[start:end])
    assert reader.finish() == data[:limit]
    assert reader.size == len(data)
    assert reader.truncated == (len(data) > limit)
    whole = parse_answer(data)
    if not reader.truncated:
        assert reader.content == whole
    elif isinstance(reader.content, Malformed):
        assert not isinstance(whole, Message | Batch)
    else:
        # The skimmer is the laxer reader: it may take for a message what the parser does not.
        outline = skim(data, [])
        assert outline.complete
        assert reader.content == outline


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise KeyError("twice")
    return dict(pairs)


@given(messages())
def test_duplicate_keys_are_found_exactly_where_there_are_some(data: bytes) -> None:
    try:
        json.loads(data.decode("utf-8", "surrogateescape"), object_pairs_hook=unique)
        repeated = False
    except KeyError:
        repeated = True
    found = parse(data)
    flags = read_whole(found)[1] if isinstance(found, Message) else found.flags
    assert (Flag.DUPLICATE_KEYS in flags) == repeated


@given(messages(), mutations, st.booleans(), cuts)
def test_a_whole_text_has_the_same_outline_as_its_pieces(
    data: bytes, changes: list[tuple[int, int, bytes]], broken: bool, where: list[int]
) -> None:
    text = mutated(data, changes) if broken else data
    assert outline_of(text) == skim(text, where)


LONG_PIECES = st.sampled_from(
    [
        b"x" * 300,
        b"y" * 20_000,
        b"]",
        b"}",
        b"{",
        b'\\"',
        b"\\\\",
        b"\\\\" * 200,
        b"\\n",
        b"\\" * 3 + b'"',
    ]
)


@given(
    st.lists(st.lists(LONG_PIECES, max_size=6).map(b"".join), min_size=1, max_size=4),
    st.lists(st.integers(0, 60_000), max_size=6),
)
def test_a_container_of_long_strings_ends_where_it_ends_wherever_it_is_cut(
    strings: list[bytes], cuts: list[int]
) -> None:
    inside = b",".join(b'"%b"' % each for each in strings)
    text = inside + b',{"]":[]}]' + b' , "] rest'
    skipper, done = Skipper(), 0
    for start, end in itertools.pairwise(
        [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    ):
        found = skipper.feed(text[:end], start)
        if found >= 0:
            done = found
            break
    assert done == len(inside) + len(b',{"]":[]}]')
