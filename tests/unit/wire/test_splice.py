"""Changes to messages: exactly what is meant, and nothing where it is not safe."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.wire.json_text import scan_items
from turnlog.wire.jsonrpc import Message
from turnlog.wire.splice import (
    Respelling,
    as_event,
    with_cancelled_ids,
    with_data,
    with_id,
    with_member,
    with_messages,
    with_meta,
    with_result_type,
)

OLD = b'"turnlog-019ac0de"'
SPELLINGS = {OLD: b"7"}
WORD = b'{"kind":"null_result"}'

CANCEL = rb'"method":"notifications\/cancelled"'


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"x"}', b'{"jsonrpc":"2.0","id":"n","method":"x"}'),
        (b' { "id" : "a\\"b" , "x":{"id":1}} ', b' { "id" : "n" , "x":{"id":1}} '),
        (b'\xef\xbb\xbf{"id":7}', b'\xef\xbb\xbf{"id":"n"}'),
        (b'{"x":{"id":1}}', None),
        (b'{"id":1,"id":2}', None),
        (b"[1]", None),
        (b'{"id":', None),
    ],
)
def test_a_message_gets_another_id_and_keeps_every_other_byte(
    message: bytes, changed: bytes | None
) -> None:
    assert with_id(message, b'"n"') == changed


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        (
            b'{%b,"params":{"requestId":3,"reason":"r"}}' % CANCEL,
            b'{%b,"params":{"requestId":"n","reason":"r"}}' % CANCEL,
        ),
        (
            b'[ {"id":3}, {"params":{"requestId":3},%b} ,{%b,"params":{"requestId":"3"}}]'
            % (CANCEL, CANCEL),
            b'[ {"id":3}, {"params":{"requestId":"n"},%b} ,{%b,"params":{"requestId":"m"}}]'
            % (CANCEL, CANCEL),
        ),
        (
            b'\xef\xbb\xbf{%b,"params":{"requestId":3}}' % CANCEL,
            b'\xef\xbb\xbf{%b,"params":{"requestId":"n"}}' % CANCEL,
        ),
        (
            b'\xef\xbb\xbf[{%b,"params":{"requestId":3}}]' % CANCEL,
            b'\xef\xbb\xbf[{%b,"params":{"requestId":"n"}}]' % CANCEL,
        ),
        (b'{%b,"params":{"requestId":4}}' % CANCEL, None),
        (b'{"method":"x","params":{"requestId":3}}', None),
        (b'{%b,"params":{}}' % CANCEL, None),
        (b'{%b,"params":{"requestId":3,"requestId":3}}' % CANCEL, None),
        (b"{%b}" % CANCEL, None),
        (b'{%b,"params":[3]}' % CANCEL, None),
        (b"[]", None),
        (b"[{", None),
    ],
)
def test_cancels_name_other_requests(message: bytes, changed: bytes | None) -> None:
    assert with_cancelled_ids(message, {"3": b'"n"', '"3': b'"m"'}) == changed


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        (b'{"result":{}}', b'{"result":{"_meta":{"k":%b}}}'),
        (b'{"result": { } ,"id":1}', b'{"result": {"_meta":{"k":%b} } ,"id":1}'),
        (b'{"result":{"content":[]}}', b'{"result":{"_meta":{"k":%b},"content":[]}}'),
        (b'{"result":{"_meta":{}}}', b'{"result":{"_meta":{"k":%b}}}'),
        (
            b'{"result":{"a":1,"_meta":{"b":2}}}',
            b'{"result":{"a":1,"_meta":{"k":%b,"b":2}}}',
        ),
        (b'{"result":{"_meta":null}}', b'{"result":{"_meta":{"k":%b}}}'),
        (b'{"result":{"_meta": null , "a":1}}', b'{"result":{"_meta": {"k":%b} , "a":1}}'),
        (b'\xef\xbb\xbf{"result":{}}', b'\xef\xbb\xbf{"result":{"_meta":{"k":%b}}}'),
        (b'[{"method":"x"}, {"result":{}}]', b'[{"method":"x"}, {"result":{"_meta":{"k":%b}}}]'),
        (b'[{"result":{}},{"result":{}}]', None),
        (b'{"result":{"_meta":"text"}}', None),
        (b'{"result":{"_meta":[]}}', None),
        (b'{"result":{"_meta":{"k":1}}}', None),
        (b'{"result":{"_meta":{},"_meta":{}}}', None),
        (b'{"result":null}', None),
        (b'{"result":{},"result":{}}', None),
        (b'{"error":{}}', None),
    ],
)
def test_a_result_gets_one_more_word_in_its_meta(message: bytes, changed: bytes | None) -> None:
    expected = changed.replace(b"%b", WORD) if changed is not None else None
    assert with_meta(message, "k", WORD) == expected
    if expected is not None:
        text = expected.removeprefix(b"\xef\xbb\xbf")
        answer = scan_items(text)[-1] if text.startswith(b"[") else text
        assert msgspec.json.decode(answer)["result"]["_meta"]["k"] == {"kind": "null_result"}


@pytest.mark.parametrize(
    ("event", "changed"),
    [
        (b"data: {}\n\n", b"data: new\n\n"),
        (b": ping\r\nid: 4\r\ndata:{}\r\n\r\n", b": ping\r\nid: 4\r\ndata: new\r\n\r\n"),
        (b"data: a\ndata: b\nevent: message\n\n", b"data: new\nevent: message\n\n"),
        (b"id: 4\n\n", b"id: 4\n\n"),
    ],
)
def test_an_event_gets_other_data_and_keeps_its_other_lines(event: bytes, changed: bytes) -> None:
    assert with_data(event, b"new") == changed


def test_a_byte_order_mark_stands_before_the_first_event_alone() -> None:
    event = b"\xef\xbb\xbfdata: a\ndata: b\n\n"
    assert with_data(event, b"new", first=True) == b"\xef\xbb\xbfdata: new\n\n"
    assert with_data(event, b"new") == b"\xef\xbb\xbfdata: a\ndata: new\n\n"


def respelled(text: bytes, sizes: list[int]) -> bytes:
    """Send a text through in pieces of these sizes, over and over."""
    respelling, out, place, turn = Respelling(SPELLINGS), b"", 0, 0
    while place < len(text):
        size = sizes[turn % len(sizes)]
        out += respelling.feed(text[place : place + size])
        place, turn = place + size, turn + 1
    return out + respelling.finish()


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (b'{"jsonrpc":"2.0","id":%b,"result":{}}', b'{"jsonrpc":"2.0","id":7,"result":{}}'),
        (
            b'\xef\xbb\xbf {"result":{"id":%b}, "id" : %b }',
            b'\xef\xbb\xbf {"result":{"id":%b}, "id" : 7 }',
        ),
        (b'{"result":{%b:%b,"text":"%b"},"ID":%b}', None),
        (
            b'{"a":[{"id":%b}],"b":"{\\"id\\":","c":{"]":"}"},"id":%b}',
            b'{"a":[{"id":%b}],"b":"{\\"id\\":","c":{"]":"}"},"id":7}',
        ),
        (b'{"id":"other","n":-1.5e3,"id":%b}', b'{"id":"other","n":-1.5e3,"id":7}'),
        (b'{"\\u0069d":%b}', b'{"\\u0069d":7}'),
        (b'{"id":"turnlog\\u002d019ac0de"}', b'{"id":7}'),
        (
            b'[{"id":%b,"result":{}},{"id":"x"},{"id":%b}]',
            b'[{"id":7,"result":{}},{"id":"x"},{"id":7}]',
        ),
        (b'[[{"id":%b}]]', None),
        (b'{"id":%b', b'{"id":7'),
        (b'{"id":"turnlog-019ac0', None),
        (b'{"id" %b}{"id":%b}', None),
        (b'{"x":1}{"id":%b}', None),
        (b'<p>"id":%b', None),
        (b'data: {"id":%b}\n\n', b'data: {"id":7}\n\n'),
        (
            b'\xef\xbb\xbfdata:{"id":%b}\r\rdata: {"x":1}\r\n\r\n',
            b'\xef\xbb\xbfdata:{"id":7}\r\rdata: {"x":1}\r\n\r\n',
        ),
        (
            b'id: 4\n: {"id":%b}\ndata: {"a":{\ndata: "id":%b},\ndata:  "id":\nid: 5\ndata: %b}\n\ndata: {"id":"y"}\n\n',
            b'id: 4\n: {"id":%b}\ndata: {"a":{\ndata: "id":%b},\ndata:  "id":\nid: 5\ndata: 7}\n\ndata: {"id":"y"}\n\n',
        ),
        (b'data: {"id":"turnlog-\ndata: 019ac0de"}\n\n', None),
        (b'datax: {"id":%b}\nxdata: {"id":%b}\n\n', None),
    ],
)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_the_id_of_a_message_and_nothing_else_is_put_back_however_the_text_is_cut(
    text: bytes, changed: bytes | None, sizes: list[int]
) -> None:
    expected = changed if changed is not None else text
    assert respelled(text.replace(b"%b", OLD), sizes) == expected.replace(b"%b", OLD)


values = st.recursive(
    st.sampled_from(["turnlog-019ac0de", "id", 'a"b\\', "{", 1, -0.5, None, True]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "turnlog-019ac0de", '"']), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["result", "x", 'i"d']), values),
    st.integers(0, 3),
    st.sampled_from([None, 1]),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_any_message_gets_its_own_id_back_and_keeps_its_content(
    content: dict[str, object], place: int, indent: int | None, sizes: list[int]
) -> None:
    members = list(content.items())
    members.insert(place, ("id", "turnlog-019ac0de"))
    text = json.dumps(dict(members), indent=indent).encode()
    expected = json.dumps({**dict(members), "id": 7}, indent=indent).encode()
    assert respelled(text, sizes) == expected
    stream = b"".join(b"data: %b\n" % line for line in text.splitlines()) + b"\n"
    data = b"\n".join(line[6:] for line in respelled(stream, sizes).splitlines()).strip()
    assert data == expected


def test_many_lines_of_data_are_one_message_as_well() -> None:
    rows = [{"id": "turnlog-019ac0de", "n": n} for n in range(3000)]
    texts = [json.dumps({"rows": rows, "id": name}, indent=1) for name in ("turnlog-019ac0de", "x")]
    stream = b"".join(b"data: %b\n" % line for line in texts[0].encode().splitlines()) + b"\n"
    other = b"".join(b"data: %b\n" % line for line in texts[1].encode().splitlines()) + b"\n"
    changed = stream.replace(b'data:  "id": %b\n' % OLD, b'data:  "id": 7\n')
    assert changed != stream
    assert respelled(stream + other + stream, [65536]) == changed + other + changed


def test_several_attempts_on_one_stream_get_their_callers_ids_back() -> None:
    respelling = Respelling({OLD: b"7", b'"turnlog-2"': b'"a"'})
    stream = b'data: {"id":"turnlog-2","result":%b}\n\ndata: {"id":%b}\n\n'
    assert respelling.feed(stream % (OLD, OLD)) == stream.replace(
        b'"turnlog-2"', b'"a"', 1
    ).replace(b'"id":%b', b'"id":7') % (OLD)


def test_nothing_is_held_back_but_the_start_of_an_id() -> None:
    respelling = Respelling(SPELLINGS)
    assert respelling.feed(b'data: {"a":"turnlog-') == b'data: {"a":"turnlog-'
    assert respelling.feed(b'","id":"turnlog-019') == b'","id":'
    assert respelling.feed(b'acuity"}') == b'"turnlog-019acuity"}'
    assert respelling.feed(b'\n\ndata: {"id":"' + 600 * b"x") == (b'\n\ndata: {"id":"' + 600 * b"x")


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        (b'{"params":{"_meta":{"t":1}}}', b'{"params":{"_meta":{"t":"n"}}}'),
        (b'{"params":{"_meta":{"t":1,"t":2}}}', None),
        (b'{"params":{"_meta":{}}}', None),
        (b'{"params":{"_meta":[]}}', None),
        (b'{"params":{"_meta":{"t":1}},"params":{}}', None),
        (b"{}", None),
    ],
)
def test_a_member_deep_in_a_message_gets_another_value(
    message: bytes, changed: bytes | None
) -> None:
    assert with_member(message, ("params", "_meta", "t"), b'"n"') == changed


def test_a_message_becomes_an_event_without_an_id() -> None:
    assert as_event(b"{}") == b"event: message\ndata: {}\n\n"


def test_each_message_of_a_text_is_changed_or_dropped() -> None:
    def change(message: Message, text: bytes) -> bytes | None:
        return with_id(text, b'"n"') if message.id == b"1" else None

    one, two = b'{"id":1,"method":"a"}', b'{"id":2,"method":"b"}'
    new = b'{"id":"n","method":"a"}'
    assert with_messages(one, change) == new
    assert with_messages(b"[%b, %b,5]" % (one, two), change) == b"[%b]" % new
    assert with_messages(b"[%b]" % two, change) == b""
    assert with_messages(b"nothing", change) == b""
    spaced = b"[ %b , 5 ]" % one
    assert with_messages(spaced, lambda _, text: text) == spaced


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        (b'{"id":1,"result":{"a":1}}', b'{"id":1,"result":{"resultType":"complete","a":1}}'),
        (b'{"result": {} }', b'{"result": {"resultType":"complete"} }'),
        (b'{"result":{"resultType":"task"}}', None),
        (b'{"result":[1]}', None),
        (b'{"error":{"code":1}}', None),
        (b'{"result":{},"result":{}}', None),
    ],
)
def test_a_result_without_a_type_gets_one(message: bytes, typed: bytes | None) -> None:
    assert with_result_type(message) == (message if typed is None else typed)
