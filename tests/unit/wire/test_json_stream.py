"""A few values read out of a message of any size."""

import pytest

from turnlog.wire.json_stream import (
    STATE_LIMIT,
    TOKEN_LIMIT,
    IdReplacer,
    Outline,
    OutlineReader,
    outline_of,
)
from turnlog.wire.json_text import ValueShape, shape

BIG = b"x" * 300_000


def skim(data: bytes, size: int = 65536) -> Outline:
    skimmer = OutlineReader()
    for start in range(0, len(data), size):
        skimmer.feed(data[start : start + size])
    return skimmer.finish()


@pytest.mark.parametrize("size", [1, 5, 65536])
def test_an_answer_too_large_to_hold_still_tells_how_it_ended(size: int) -> None:
    data = (
        b'\xef\xbb\xbf {"jsonrpc":"2.0","result":{"_meta":{"content":{"isError":false}},'
        b'"content":[{"type":"text","text":"' + BIG[: 400 * size] + b'"}],"structuredContent": { },'
        b'"isError" : true ,"other":"\\"}"} , "id" : "a\\u0062" }\n'
    )
    outline = skim(data, size)
    assert outline.complete
    assert outline.raw("id") == b'"a\\u0062"'
    assert outline.raw("result.isError") == b"true"
    assert shape(outline.raw("result")) is ValueShape.FULL
    assert shape(outline.raw("result.content")) is ValueShape.FULL
    assert shape(outline.raw("result.structuredContent")) is ValueShape.EMPTY
    assert shape(outline.raw("result.task")) is ValueShape.ABSENT
    assert outline.raw("result.resultType") == b""


def test_the_last_of_equal_keys_counts_with_all_that_was_in_it() -> None:
    outline = skim(
        b'{"result":{"isError":true,"content":[]},"id":1,"result":{"content":null},"id":2}'
    )
    assert outline.tokens == {
        "": b"{",
        "id": b"2",
        "result": b"{",
        "result.content": b"null",
    }


def test_a_long_string_is_cut_and_counts_no_further() -> None:
    outline = skim(b'{"error":{"code":-5,"message":"' + BIG + b'"},"id":3}')
    assert outline.raw("error.message") == b'"' + BIG[: TOKEN_LIMIT - 1]
    assert outline.raw("error.code") == b"-5"
    assert outline.id == outline.raw("id") == b"3"


def test_a_request_state_is_kept_longer_than_other_values() -> None:
    state = b'"' + b"s" * 5000 + b'"'
    assert skim(b'{"result":{"requestState":%b}}' % state).raw("result.requestState") == state
    long = skim(b'{"result":{"requestState":"%b"}}' % BIG).raw("result.requestState")
    assert len(long) == STATE_LIMIT


def test_a_number_without_end_is_cut_and_not_judged() -> None:
    outline = skim(b'{"id":' + b"9" * 10_000 + b"}")
    assert outline.complete
    assert outline.raw("id") == b"9" * TOKEN_LIMIT


def test_a_key_without_end_names_nothing() -> None:
    assert skim(b'{"' + BIG + b'":1,"id":2}').tokens == {"": b"{", "id": b"2"}


def test_members_with_unknown_names_are_skipped() -> None:
    outline = skim(b'{"x":{"id":1,"result":{}},"y":[],"z":[[{"method":2}]],"params":{"name":"n"}}')
    assert outline.tokens == {"": b"{", "params": b"{", "params.name": b'"n"'}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (b"null", {"": b"null"}),
        (b" 12 ", {"": b"12"}),
        (b"12", {"": b"12"}),
        (b'"a"', {"": b'"a"'}),
        (b"[]", {"": b"[]"}),
        (b"[ 1 ] ", {"": b"["}),
        (b"{ }", {"": b"{}"}),
    ],
)
def test_any_json_value_is_a_whole_text(text: bytes, tokens: dict[str, bytes]) -> None:
    for size in (1, 100):
        outline = skim(text, size)
        assert outline.complete
        assert outline.tokens == tokens


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"  ",
        b"{",
        b'{"id',
        b'{"id"',
        b'{"id":',
        b'{"id":1',
        b'{"id":1,',
        b"[",
        b"[1",
        b'"a',
        b"\xef",
    ],
)
def test_a_text_that_stops_is_not_complete_and_has_not_failed(text: bytes) -> None:
    skimmer = OutlineReader()
    skimmer.feed(text)
    outline = skimmer.finish()
    assert not outline.failed
    assert not outline.complete


@pytest.mark.parametrize(
    "text",
    [
        b"<html>",
        b"\xef\xbbx{}",
        b"{1:2}",
        b'{"id" 1}',
        b'{"id":01}',
        b'{"id":1 2}',
        b'{"id":1]',
        b'{"id":1,}',
        b'{"id":}',
        b"{} {}",
        b"1,2",
        b"tru ",
    ],
)
def test_a_text_that_is_no_json_fails_and_stays_failed(text: bytes) -> None:
    for size in (1, 100):
        skimmer = OutlineReader()
        for start in range(0, len(text), size):
            skimmer.feed(text[start : start + size])
        skimmer.feed(b'{"id":1}')
        outline = skimmer.finish()
        assert outline.failed
        assert not outline.complete


def test_a_cut_word_at_the_end_of_a_text_is_no_value() -> None:
    skimmer = OutlineReader()
    skimmer.feed(b"tru")
    assert not skimmer.finish().complete


def test_nesting_of_any_depth_is_passed_over() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    outline = skim(b'{"result":{"content":' + deep + b'},"id":1}')
    assert outline.complete
    assert outline.raw("id") == b"1"


DULL = b",".join(
    b'"k%d":%b' % (n, v) for n in range(60) for v in (b"-1.5", b'"\\"]"', b"[1]", b"{}")
)


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_a_member_is_found_among_many_others(size: int) -> None:
    data = b'{%b,"id":1,%b,"result":{%b,"isError":true,%b},"r\\u0065sult":{%b,"status":"s"},%b}'
    outline = skim(data % ((DULL,) * 6), size)
    assert outline.complete
    assert outline.tokens == {"": b"{", "id": b"1", "result": b"{", "result.status": b'"s"'}
    assert outline_of(data % ((DULL,) * 6)) == outline


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_ids_are_found_among_many_items_of_an_array(size: int) -> None:
    old, new = b'"turnlog-1"', b"7"
    items = b'[ %b,{"a":1},{"id":5},{%b},{"id":%b,%b},[{"id":%b}],5,{"b":{"id":%b}},{"id":%b}]'
    data = items % (b",".join([b"{ }", b'{"x":1,"y":"z"}'] * 50), DULL, old, DULL, *(old,) * 3)
    own = IdReplacer({"turnlog-1": new})
    changed = b"".join(own.feed(data[at : at + size]) for at in range(0, len(data), size))
    first, last = b'{"id":%b,"k0"', b'{"id":%b}]'
    expected = data.replace(first % old, first % new)
    assert changed + own.finish() == expected[: -len(last % old)] + last % new


@pytest.mark.parametrize("data", [b"[]", b"[ ]", b"[{}]", b'[{"id":"turnlog-', b'"turnlog-1"'])
def test_a_text_without_an_own_id_passes_as_it_is(data: bytes) -> None:
    own = IdReplacer({"turnlog-1": b"7"})
    assert own.feed(data[:3]) + own.feed(data[3:]) + own.finish() == data


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (b"null", {"": b"null"}),
        (b'{"result":null,"id":1}', {"": b"{", "id": b"1", "result": b"null"}),
        (b'{"error":null}', {"": b"{", "error": b"null"}),
    ],
)
def test_where_an_object_is_awaited_there_may_be_null(
    data: bytes, tokens: dict[str, bytes]
) -> None:
    assert outline_of(data).tokens == tokens
    assert skim(data).tokens == tokens
