"""Changes to messages: exactly what is meant, and nothing where it is not safe."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.wire.splice import Respelling, with_cancelled_ids, with_data, with_id, with_meta

OLD = b'"turnlog-019ac0de"'
WORD = b'{"kind":"null_result"}'

CANCEL = rb'"method":"notifications\/cancelled"'


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"x"}', b'{"jsonrpc":"2.0","id":"n","method":"x"}'),
        (b' { "id" : "a\\"b" , "x":{"id":1}} ', b' { "id" : "n" , "x":{"id":1}} '),
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
        (b'{"result":{"_meta":null}}', None),
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
        assert msgspec.json.decode(expected)["result"]["_meta"]["k"] == {"kind": "null_result"}


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


@given(
    st.lists(st.sampled_from([OLD, b'"', b"turnlog-019", b"x", b'"turnlog-', OLD[1:]]), max_size=9),
    st.lists(st.integers(1, 12), min_size=1, max_size=9),
)
def test_an_id_is_put_back_however_the_text_is_cut(parts: list[bytes], sizes: list[int]) -> None:
    text = b"".join(parts)
    respelling, out, place = Respelling({OLD: b"7"}), b"", 0
    while place < len(text):
        size = sizes[place % len(sizes)]
        piece = respelling.feed(text[place : place + size])
        out += piece
        place += size
    assert out + respelling.finish() == text.replace(OLD, b"7")


def test_nothing_is_held_back_that_cannot_be_the_start_of_the_id() -> None:
    respelling = Respelling({OLD: b"7"})
    assert respelling.feed(b'data: {"a":"b"}\n\n') == b'data: {"a":"b"}\n\n'
    assert respelling.feed(b'"turnlog-019') == b""
    assert respelling.feed(b"acuity}") == b'"turnlog-019acuity}'
