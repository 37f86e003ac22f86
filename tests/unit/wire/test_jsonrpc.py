"""What a JSON-RPC message says, from whatever bytes came."""

import json

import pytest
from msgspec import Raw

from turnlog.core.kinds import Flag
from turnlog.wire.json_stream import OutlineReader
from turnlog.wire.jsonrpc import (
    BATCH_LIMIT,
    DUPLICATES_LIMIT,
    MEMBERS_LIMIT,
    SCAN_LIMIT,
    Batch,
    Defect,
    Kind,
    Malformed,
    Message,
    id_key,
    messages_of,
    outline_kind,
    parse,
    read_large,
    read_whole,
    repeats_keys,
)


def message(data: bytes) -> Message:
    found = parse(data)
    assert isinstance(found, Message)
    return found


@pytest.mark.parametrize(
    ("text", "kind", "identifier", "method"),
    [
        (b'{"jsonrpc":"2.0","id":0,"method":"ping"}', Kind.REQUEST, b"0", "ping"),
        (b'{"id":null,"method":"ping"}', Kind.REQUEST, b"null", "ping"),
        (b'{"method":"a\\u0062","params":{}}', Kind.NOTIFICATION, b"", "ab"),
        (b'{"method":"m","id":"x","result":1}', Kind.REQUEST, b'"x"', "m"),
        (b'{"id":"1","result":null}', Kind.RESPONSE, b'"1"', ""),
        (b'{"id":1,"result":{},"error":null}', Kind.RESPONSE, b"1", ""),
        (b'{"id":1,"result":null,"error":{"code":1}}', Kind.ERROR, b"1", ""),
        (b'{"id":null,"error":{"code":-32700,"message":"no"}}', Kind.ERROR, b"null", ""),
        (b'{"id":1,"error":null}', Kind.ERROR, b"1", ""),
    ],
)
def test_a_message_is_of_one_kind(text: bytes, kind: Kind, identifier: bytes, method: str) -> None:
    found = message(text)
    assert (found.kind, found.id, found.method) == (kind, identifier, method)
    skimmer = OutlineReader()
    skimmer.feed(text)
    assert outline_kind(skimmer.finish()) is kind


def test_params_and_results_stay_the_bytes_they_were() -> None:
    number = b"1234567890123456789012345678901234567890.50"
    params = b'{ "n" : %b, "e": 1E400, "s":"\\u00e9" }' % number
    found = message(b'{"id":1,"method":"m","params":' + params + b"}")
    assert bytes(found.params) == params
    assert not found.result
    assert not found.flags


def test_null_is_not_absence() -> None:
    assert bytes(message(b'{"id":1,"result":null}').result) == b"null"
    assert bytes(message(b'{"id":1,"method":"m"}').params) == b""


def test_the_version_member_is_looked_at_and_not_demanded() -> None:
    assert message(b'{"jsonrpc":"2.0","method":"m"}').jsonrpc
    assert not message(b'{"jsonrpc":2.0,"method":"m"}').jsonrpc
    assert not message(b'{"method":"m"}').jsonrpc


@pytest.mark.parametrize(
    ("error", "code", "text", "data"),
    [
        (b'{"code":-32601,"message":"no such","data":[1]}', -32601, "no such", b"[1]"),
        (b'{"code":-32601.0,"message":5}', -32601, "", b""),
        (b'{"code":"x","data":null}', None, "", b"null"),
        (b'{"code":1e99}', None, "", b""),
        (b'{"code":NaN,"message":"n"}', None, "n", b""),
        (b'"just text"', None, "just text", b""),
        (b"[]", None, "", b""),
    ],
)
def test_an_error_is_read_however_it_is_written(
    error: bytes, code: int | None, text: str, data: bytes
) -> None:
    found = message(b'{"id":1,"error":' + error + b"}")
    assert found.kind is Kind.ERROR
    assert (found.error_code, found.error_message, bytes(found.error_data)) == (code, text, data)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (b'{"method":"m","params":{"a":"\xc3\xa9"}}', ()),
        (b'{"method":"m","params":{"a":"\xff"}}', (Flag.INVALID_UTF8,)),
        (b'{"method":"\xff"}', (Flag.INVALID_UTF8,)),
        (b'{"method":"m","params":{"a":"\xff","a":1}}', (Flag.DUPLICATE_KEYS, Flag.INVALID_UTF8)),
        (b'\xef\xbb\xbf{"method":"m"}', (Flag.BOM,)),
        (b'{"method":"m","params":"\\ud800"}', (Flag.LONE_SURROGATE,)),
        (b'{"method":"m","params":[NaN,-Infinity]}', (Flag.NONSTANDARD_JSON,)),
        (b'{"method":"m","method":"m"}', (Flag.DUPLICATE_KEYS,)),
        (b'{"method":"m","params":[{"b":{"a":1,"\\u0061":1}}]}', (Flag.DUPLICATE_KEYS,)),
        (b'{"method":"m","params":[{"a":1},{"a":1}]}', ()),
        (b'{"method":"m", "params":{"a":1.0}}', ()),
    ],
)
def test_oddities_of_a_text_are_flagged(text: bytes, flags: tuple[Flag, ...]) -> None:
    assert set(message(text).flags) == set(flags)
    assert len(message(text).flags) == len(flags)


def test_the_last_of_equal_keys_counts() -> None:
    found = message(b'{"id":1,"method":"a","id":2,"method":"b","params":1,"params":NaN}')
    assert (found.id, found.method, bytes(found.params)) == (b"2", "b", b"NaN")
    assert found.flags == (Flag.DUPLICATE_KEYS, Flag.NONSTANDARD_JSON)


def test_in_a_large_text_equal_keys_are_looked_for_where_they_mislead() -> None:
    filler = b'"f":"' + b"x" * DUPLICATES_LIMIT + b'"'
    start = b'{"method":"m","params":{' + filler
    assert message(start + b',"name":"a","name":"b"}}').flags == (Flag.DUPLICATE_KEYS,)
    assert message(start + b'},"method":"n"}').flags == (Flag.DUPLICATE_KEYS,)
    assert message(start + b',"deep":{"a":1,"a":1}}}').flags == ()


def test_in_a_text_with_many_members_only_the_first_are_compared() -> None:
    def flags(before: int, filler: int = DUPLICATES_LIMIT) -> tuple[Flag, ...]:
        start = b'{"method":"m","params":{' + b'"%s":1,' * before % tuple(map(name, range(before)))
        return message(start + b'"a":"' + b"x" * filler + b'","a":2}}').flags

    def name(number: int) -> bytes:
        return b"m%d" % number

    assert flags(MEMBERS_LIMIT - 2) == (Flag.DUPLICATE_KEYS,)
    assert flags(MEMBERS_LIMIT - 1) == ()
    assert flags(1, SCAN_LIMIT) == ()


_NO_UTF8 = (Flag.INVALID_UTF8, Flag.DUPLICATE_KEYS)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":%b}}', ()),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":%b,"b":1}}', ()),
        (b'{"jsonrpc":"2.0", "id": 1, "result": {"a": %b, "b": 1}}', ()),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":%b,"a":1}}', (Flag.DUPLICATE_KEYS,)),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":%b,"\\u0061":1}}', (Flag.DUPLICATE_KEYS,)),
        (b'{"jsonrpc":"2.0","id":1,"id":1,"result":{"a":%b}}', (Flag.DUPLICATE_KEYS,)),
        (b'{"jsonrpc":"2.0","id":1,"result":1,"result":{"a":%b}}', (Flag.DUPLICATE_KEYS,)),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":%b,"\xef\xbf\xbd":1}}', ()),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":%b,"\xff":1,"b":2,"b":3}}', _NO_UTF8),
        (b'{"jsonrpc":"2.0","id":1,"result":[%b]}', ()),
    ],
)
def test_a_large_answer_that_repeats_a_member_is_told_from_one_that_does_not(
    text: bytes, flags: tuple[Flag, ...]
) -> None:
    answer = message(text % (b'"%b"' % (b"x" * DUPLICATES_LIMIT)))
    found, odd = read_large(answer)
    assert odd == flags
    assert read_whole(answer) == (None, flags)
    assert ("a" in found) == (b"[" not in text)


def test_oddities_of_an_answer_are_found_when_it_is_recorded() -> None:
    answer = message(b'{"id":1,"result":{"a":1,"a":1}}')
    assert answer.flags == ()
    assert read_whole(answer) == (None, (Flag.DUPLICATE_KEYS,))
    plain = message(b'{"id":1,"result":{"a":1}}')
    assert read_whole(plain) == ({"id": 1, "result": {"a": 1}}, ())
    large = message(b'{"id":1,"result":{"a":"%b"}}' % (b"x" * DUPLICATES_LIMIT))
    assert read_whole(large) == (None, ())
    odd = message(b'{"id":1,"result":NaN}')
    assert read_whole(odd) == (None, (Flag.NONSTANDARD_JSON,))
    assert read_whole(message(b'{"id":1,"result":"\xff"}')) == (None, (Flag.INVALID_UTF8,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"a":1,"a":1}', True),
        (b'{"a": {"b":1}, "b": 2}', False),
        (b'{"a":"\xff","a":1}', True),
        (b'{"\xff":1,"\xfe":1}', False),
        (b'{"n":' + b"1" * 5000 + b', "n":2}', True),
        (b"not json", False),
    ],
)
def test_equal_keys_are_found_at_any_level(text: bytes, expected: bool) -> None:
    assert (Flag.DUPLICATE_KEYS in parse(text).flags) is expected


@pytest.mark.parametrize(
    ("text", "reason", "flags"),
    [
        (b"", Defect.EMPTY, ()),
        (b" \r\n", Defect.EMPTY, ()),
        (b"\xef\xbb\xbf", Defect.EMPTY, (Flag.BOM,)),
        (b'{"id":1,"resu', Defect.CUT, ()),
        (b'{"id":1,"result":{"content":[{"text":"a', Defect.CUT, ()),
        (b"<html>\xff</html>", Defect.NOT_JSON, (Flag.INVALID_UTF8,)),
        (b'{"id":1,"result":{}} x', Defect.NOT_JSON, ()),
        (b'{"id":1,"result":{"a":[1,,2]}}', Defect.NOT_JSON, ()),
        (b'{"id":1,"result":"a\nb"}', Defect.NOT_JSON, ()),
        (b"event: message", Defect.NOT_JSON, ()),
        (b"{}", Defect.NOT_JSONRPC, ()),
        (b'{"id":1}', Defect.NOT_JSONRPC, ()),
        (b'{"method":5,"id":1}', Defect.NOT_JSONRPC, ()),
        (b"null", Defect.NOT_JSONRPC, ()),
        (b'"text"', Defect.NOT_JSONRPC, ()),
        (b"NaN", Defect.NOT_JSONRPC, (Flag.NONSTANDARD_JSON,)),
    ],
)
def test_a_malformed_message_says_why(text: bytes, reason: Defect, flags: tuple[Flag, ...]) -> None:
    assert parse(text) == Malformed(reason, flags)


def test_a_batch_holds_its_messages_in_order() -> None:
    batch = parse(b' [{"id":1,"method":"a"}, 5, {"id":2}, {"id":3,"result":{}}]')
    assert isinstance(batch, Batch)
    first, second, third, fourth = batch.items
    assert isinstance(first, Message)
    assert first.method == "a"
    assert second == third == Malformed(Defect.NOT_JSONRPC)
    assert isinstance(fourth, Message)
    assert fourth.id == b"3"


def test_a_batch_with_odd_members_is_read_as_well() -> None:
    batch = parse(
        b'\xef\xbb\xbf[{"method":"a","params":NaN},{"method":"b","method":"c"},[{"id":1}]]'
    )
    assert isinstance(batch, Batch)
    assert set(batch.flags) == {Flag.BOM, Flag.NONSTANDARD_JSON, Flag.DUPLICATE_KEYS}
    first, second, third = batch.items
    assert isinstance(first, Message)
    assert first.flags == (Flag.NONSTANDARD_JSON,)
    assert isinstance(second, Message)
    assert second.method == "c"
    assert third == Malformed(Defect.NOT_JSONRPC)


def test_an_empty_array_is_an_empty_batch() -> None:
    assert parse(b"[]") == Batch(())


def test_nesting_too_deep_for_any_decoder_is_still_a_message() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    found = message(b'{"id":1,"result":' + deep + b"}")
    assert bytes(found.result) == deep
    assert parse(b"[" * 100_000) == Malformed(Defect.CUT)
    assert isinstance(parse(deep), Batch)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b"1.0"),
        (b"10", b"1e1"),
        (b"-0", b"0"),
        (b'"ab"', b'"a\\u0062"'),
        (b'"a/b"', b'"a\\/b"'),
    ],
)
def test_the_same_id_written_otherwise_has_the_same_key(one: bytes, other: bytes) -> None:
    assert id_key(one) == id_key(other)


def test_different_ids_have_different_keys() -> None:
    texts = [b"1", b'"1"', b"1.5", b"null", b'"null"', b"true", b"[]", b"9" * 40, b"1e999"]
    assert len({id_key(text) for text in texts}) == len(texts)


def test_raw_values_of_one_message_can_be_compared() -> None:
    found = message(json.dumps({"method": "m", "params": [1]}).encode())
    assert found.params == Raw(b"[1]")


@pytest.mark.parametrize(("size", "held"), [(8000, True), (8200, False)])
@pytest.mark.parametrize("what", [b'"method":"tools/call","params"', b'"result"'])
def test_values_go_along_with_short_texts_alone(what: bytes, size: int, held: bool) -> None:
    message = parse(b'{"jsonrpc":"2.0","id":1,%b:{"a":"%b"}}' % (what, b"x" * size))
    assert isinstance(message, Message)
    plain = message.plain if message.method else read_whole(message)[0]
    assert (plain is not None) == held


def test_a_large_batch_is_read_item_by_item() -> None:
    texts = [b'{"jsonrpc":"2.0","id":%d,"result":{}}' % n for n in range(BATCH_LIMIT + 1)]
    batch = parse(b"[" + b",".join(texts) + b"]")
    assert isinstance(batch, Batch)
    assert [bytes(text) for text in batch.texts] == texts
    assert [item.id for item in batch.items if isinstance(item, Message)] == [
        b"%d" % n for n in range(BATCH_LIMIT + 1)
    ]
    assert list(batch.items) == list(batch.items)


def test_a_long_batch_is_read_only_as_far_as_asked() -> None:
    text = b'[{"jsonrpc":"2.0","method":"a"}, {"jsonrpc":"2.0","method":"b"}, broken'
    batch = parse(text, most=1)
    assert isinstance(batch, Batch)
    assert batch.is_partial
    assert [message.method for message in messages_of(batch)] == ["a", "tools/call"]
    assert parse(text, most=3) == Malformed(Defect.CUT)


def test_the_messages_of_a_text_are_none_where_one_is_of_another_version() -> None:
    def methods(text: bytes) -> list[str]:
        return [message.method for message in messages_of(parse(text))]

    assert methods(b'{"jsonrpc":"2.0","method":"a"}') == ["a"]
    assert methods(b'{"method":"a"}') == []
    assert methods(b'[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"b"}]') == ["a", "b"]
    assert methods(b'[{"jsonrpc":"2.0","method":"a"},{"method":"b"}]') == []
    assert methods(b"nothing") == []


def test_a_batch_that_no_decoder_takes_is_a_batch_all_the_same() -> None:
    batch = parse(b'[{"id":1,"result":NaN},{"id":2,"result":1}]')
    assert isinstance(batch, Batch)
    assert batch.flags == (Flag.NONSTANDARD_JSON,)
    assert [item.id for item in batch.items if isinstance(item, Message)] == [b"1", b"2"]
    assert parse(b"[{]]") == Malformed(Defect.NOT_JSON)


def test_a_large_text_that_is_no_utf8_is_flagged() -> None:
    text = b'{"method":"m","params":{"a":"%b\xff"}}' % (b"x" * DUPLICATES_LIMIT)
    assert message(text).flags == (Flag.INVALID_UTF8,)


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        (b'{"method": "m", "params": {"a": "\\u00e4", "b": 1e5}}', False),
        (b'{"method": "m", "params": {"a": "\\u00e4", "b": 1e5, "\\u0061": 2}}', True),
        (b'{"method": "m", "params": {"a": "\\\\", "b": 1e5}}', False),
        (b'{"method": "m", "params": {"b": "\\"x\\\\", "c": 1.50, "b": {}}}', True),
    ],
)
def test_equal_keys_are_found_however_a_text_is_written(text: bytes, repeats: bool) -> None:
    assert message(text).flags == ((Flag.DUPLICATE_KEYS,) if repeats else ())


def test_a_text_is_searched_for_equal_keys() -> None:
    assert repeats_keys(b'{"body":{"id":1,"id":2}}')
    assert not repeats_keys(b'{"body":{"id":1},"id":2}')
