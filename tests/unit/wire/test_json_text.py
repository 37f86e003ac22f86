"""JSON text read without building what it holds."""

from math import inf, isnan

import pytest
from msgspec import Raw, Struct

from turnlog.wire.json_text import (
    Skipper,
    ValueShape,
    decode_string,
    has_lone_surrogate,
    integer_of,
    items,
    load,
    members,
    named_spans,
    read_value,
    scan_items,
    scan_members,
    shape,
    string_end,
    text_of,
    value_end,
    value_of,
    without_surrogates,
)


class Pair(Struct, rename="camel"):
    first_one: Raw = Raw()
    second: Raw = Raw()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", ValueShape.ABSENT),
        (b"null", ValueShape.NULL),
        (b"[]", ValueShape.EMPTY),
        (b"{ \r\n\t}", ValueShape.EMPTY),
        (b"[0]", ValueShape.FULL),
        (b"{", ValueShape.FULL),
        (b"[", ValueShape.FULL),
        (b"0", ValueShape.SCALAR),
        (b'""', ValueShape.SCALAR),
        (b"NaN", ValueShape.SCALAR),
    ],
)
def test_a_value_has_a_shape(text: bytes, expected: ValueShape) -> None:
    assert shape(text) is expected
    assert shape(Raw(text)) is expected


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (b"] rest", 1),
        (b'"]", [ {}, "\\"]" ] ], 2', 20),
        (b'"\\\\" ]', 6),
        (b"[[[", -1),
        (b'"open ]', -1),
    ],
)
def test_the_end_of_a_container_is_found_behind_strings_and_brackets(text: bytes, end: int) -> None:
    assert Skipper().feed(text, 0) == end


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_container_may_come_in_pieces(size: int) -> None:
    text = b'"a\\\\\\"]", ["\\u005d"], "\\\\"] tail'
    skipper = Skipper()
    ends = [
        start + end
        for start in range(0, len(text), size)
        if (end := skipper.feed(text[start : start + size], 0)) >= 0
    ]
    assert ends[0] == text.index(b"] tail") + 1


def test_a_container_larger_than_the_window_ends_where_it_ends() -> None:
    text = b'"x",[1],' * 30_000 + b"0] , 5"
    assert Skipper().feed(text, 0) == len(text) - 4


@pytest.mark.promise("SEC-12")
def test_nesting_of_any_depth_is_skipped() -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    assert value_end(deep, 0) == len(deep)


@pytest.mark.parametrize(
    ("text", "escaped", "expected"),
    [
        (b'a"b', False, (2, False)),
        (b'"', True, (-1, False)),
        (b'a\\"b"c', False, (5, False)),
        (b'a\\\\"', False, (4, False)),
        (b"a\\", False, (-1, True)),
        (b"a\\\\", False, (-1, False)),
        (b"", False, (-1, False)),
    ],
)
def test_the_end_of_a_string_is_its_first_unescaped_quote(
    text: bytes, escaped: bool, expected: tuple[int, bool]
) -> None:
    assert string_end(text, 0, escaped=escaped) == expected


@pytest.mark.parametrize("size", [0, 1, 253, 254, 255, 256, 257, 600, 20_000])
@pytest.mark.parametrize("filler", [b"a", b"\\\\", b'\\"', b"\\n"])
def test_the_end_of_a_string_is_found_behind_any_number_of_escapes(
    size: int, filler: bytes
) -> None:
    text = b'\\"' + filler * size + b'\\"'
    assert string_end(text, 0) == (-1, False)
    assert string_end(text + b'" tail"', 0) == (len(text) + 1, False)


@pytest.mark.parametrize("count", [3, 20_000])
def test_many_members_are_read_in_time_that_grows_with_the_text(count: int) -> None:
    text = b"{" + b",".join(b'"k%d":{"a":[NaN]}' % n for n in range(count)) + b"}"
    assert len(members(text)) == count


@pytest.mark.parametrize(
    ("text", "end"),
    [(b'"a" ', 3), (b"[1] ", 3), (b"{} ", 2), (b"-1.5e3,", 6), (b":", -1), (b"", -1)],
)
def test_the_end_of_any_value_is_found(text: bytes, end: int) -> None:
    assert value_end(text, 0) == end


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"a":1,"b":[2]}', {"a": b"1", "b": b"[2]"}),
        (b'{"a":1,"a":2}', {"a": b"2"}),
        (b'{ "a" : NaN , "\\u0062" : "\\ud800" }', {"a": b"NaN", "b": b'"\\ud800"'}),
        (b'{"\xff":1}', {"\ufffd": b"1"}),
        (b"{}", {}),
        (b"[1]", {}),
        (b"", {}),
        (b'{"a"', {}),
        (b'{"a":', {}),
        (b'{"a', {}),
        (b'{"a":1,"b":NaN', {"a": b"1", "b": b"NaN"}),
        (b'{"a":1,b', {"a": b"1"}),
    ],
)
def test_members_are_read_as_far_as_the_text_goes(text: bytes, expected: dict[str, bytes]) -> None:
    assert {name: bytes(raw) for name, raw in members(Raw(text)).items()} == expected


def test_scanned_members_keep_equal_keys() -> None:
    assert [name for name, _ in scan_members(b'{"a":1,"a":2}')] == ["a", "a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'[1, {"a":2} ,"x"]', [b"1", b'{"a":2}', b'"x"']),
        (b"[NaN, [ 2 ]]", [b"NaN", b"[ 2 ]"]),
        (b"[NaN", [b"NaN"]),
        (b"[", []),
        (b"{}", []),
        (b"", []),
    ],
)
def test_items_are_read_as_far_as_the_text_goes(text: bytes, expected: list[bytes]) -> None:
    assert [bytes(raw) for raw in items(Raw(text))] == expected


def test_scanned_items_end_at_the_first_that_is_none() -> None:
    assert [bytes(raw) for raw in scan_items(b"[1,:,2]")] == [b"1"]


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        (b'{"firstOne":1}', b"1", b""),
        (b'{"firstOne":NaN,"second":"\\udfff","other":1}', b"NaN", b'"\\udfff"'),
        (b"[]", b"", b""),
        (b"", b"", b""),
    ],
)
def test_an_object_is_loaded_into_fields_of_text(text: bytes, first: bytes, second: bytes) -> None:
    pair = load(Pair, Raw(text))
    assert (bytes(pair.first_one), bytes(pair.second)) == (first, second)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (b'"plain \xc3\xa9"', "plain é"),
        (b'"\xff"', "\ufffd"),
        (b'"\\u0041\\n"', "A\n"),
        (b'"\\ud834\\udd1e"', "𝄞"),
        (b'"\\ud834!"', "\ufffd!"),
        (b'"\\udd1e\\ud834"', "\ufffd\ufffd"),
        (b'"\\t\xff"', "\t\ufffd"),
        (b'"\\x"', "\\x"),
    ],
)
def test_a_string_becomes_text_that_utf8_can_carry(token: bytes, expected: str) -> None:
    assert decode_string(token) == expected


def test_half_a_pair_is_replaced_and_a_pair_stays() -> None:
    assert without_surrogates("a\ud800b\ud834\udd1e") == "a\ufffdb𝄞"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"\\ud834\\udd1e"', False),
        (b'"\\uD834x"', True),
        (b'"\\udd1e"', True),
        (b'"\\\\ud834"', False),
        (b'"\\ud834\\\\\\udd1e"', True),
        (b'"\\u0041"', False),
    ],
)
def test_half_of_a_surrogate_pair_is_seen(text: bytes, expected: bool) -> None:
    assert has_lone_surrogate(text) is expected


@pytest.mark.parametrize(
    ("token", "limit", "expected"),
    [
        (b'"abc"', 9, "abc"),
        (b'"abc"', 2, "ab"),
        (b'"a\\"b"', 9, 'a"b'),
        (b'"cut', 9, "cut"),
        (b'"cut\\u00', 9, "cut"),
        (b'"cut\\\\', 9, "cut\\"),
        (b'"cut\\', 9, "cut"),
        (b'"\\ud834\\udd1e\\ud834\\udd1e"', 1, "𝄞"),
        (b'"', 9, ""),
        (b"5", 9, ""),
        (b"", 9, ""),
    ],
)
def test_a_string_is_read_up_to_a_limit_even_if_it_was_cut(
    token: bytes, limit: int, expected: str
) -> None:
    assert text_of(token, limit) == expected


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (b"0", 0),
        (b"-32042", -32042),
        (b"5.0", 5),
        (b"5e0", 5),
        (b"1e3", 1000),
        (b"5.5", None),
        (b"1e400", None),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", None),
        (b"1" * 40, None),
        (b"01", None),
        (b"true", None),
        (b'"5"', None),
        (b"NaN", None),
        (b"", None),
    ],
)
def test_only_whole_numbers_of_64_bits_are_integers(token: bytes, expected: int | None) -> None:
    assert integer_of(token) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":[1,2.5,"x",null,true]}', {"a": [1, 2.5, "x", None, True]}),
        (b'"a\\ud83db\\ud83d\\ude00\\\\ud83d\\n"', "a\ufffdb\U0001f600\\ud83d\n"),
        (b'\xef\xbb\xbf "\xff"', "\ufffd"),
        (b"[1e400,-1e400,Infinity]", [inf, -inf, inf]),
        (b"9" * 5000, inf),
        (b"-" + b"9" * 4300 + b"9", -inf),
        (b"9" * 300, int("9" * 300)),
        (b'{"a":1,"a":2,"b":"\x01"}', {"a": 2, "b": "\x01"}),
        (b"[" * 100_000 + b"]" * 100_000, "otherwise"),
        (b"{", "otherwise"),
        (b"<p>", "otherwise"),
        (b"", "otherwise"),
    ],
)
def test_a_value_is_read_as_the_laxest_server_may(text: bytes, value: object) -> None:
    assert read_value(text, "otherwise") == value


def test_a_literal_that_is_not_a_number_is_read_as_such() -> None:
    found = read_value(b"NaN")
    assert isinstance(found, float)
    assert isnan(found)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a":[1,"b"]}', {"a": [1, "b"]}),
        (b'\xef\xbb\xbf"\\ud800 \xff"', "\ufffd \ufffd"),
        (b'"\\ud83d\\ude00 \\\\ud800"', "\U0001f600 \\ud800"),
        (b"9" * 5000, float("inf")),
        (b"nothing", "no JSON"),
        (b"[" * 1000 + b"]" * 1000, "no JSON"),
    ],
)
def test_a_value_is_read_as_far_as_anybody_can(raw: bytes, value: object) -> None:
    assert read_value(raw, "no JSON") == value


def test_a_value_is_none_where_no_decoder_takes_it() -> None:
    assert value_of(b"[1]") == [1]
    assert value_of(b"NaN") is None


def test_members_of_one_name_are_found_among_many_others() -> None:
    others = b",".join(
        b'"k%d":%b' % (n, value)
        for n in range(300)
        for value in (b"1", b'"\\"id\\":1"', b'{"id":[1]}', b"[]", b'{"a":{"id":2}}', b"null")
    )
    text = b'{%b,"id":3 , %b,"i\\u0064":4,"x":5}' % (others, others)
    assert [text[begin:end] for begin, end in named_spans(text, "id")] == [b"3", b"4"]
    assert named_spans(text, "nothing") == []
    inner = text.index(b'{"id":[1]}')
    assert [text[begin:end] for begin, end in named_spans(text, "id", inner)] == [b"[1]"]
