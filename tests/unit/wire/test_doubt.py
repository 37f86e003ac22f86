"""What may be a call of a tool to some server, though turnlog reads it as something else."""

import pytest

from turnlog.wire.doubt import has_twins, hides_call, is_doubtful, is_unreadable, may_hold_call
from turnlog.wire.jsonrpc import parse

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"drop"}}'


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        CALL.replace(b'"jsonrpc":"2.0",', b""),
        CALL.replace(b"method", b"METHOD"),
        CALL.replace(b"tools/call", b"tools\\/c\\u0061ll"),
        b"\xef\xbb\xbf \r\n" + CALL,
        b"[[" + CALL + b"]]",
        CALL[:-1],
        CALL[:-1] + b",}",
        CALL + CALL,
        b"{'method':'tools/call'}",
        *(
            CALL.decode().encode(coding)
            for coding in ("utf-16", "utf-16-be", "utf-32", "utf-32-le")
        ),
    ],
)
def test_a_text_that_some_server_reads_as_a_call_may_hold_one(text: bytes) -> None:
    assert may_hold_call(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" \r\n",
        b"a=1&method=tools/call",
        b"\0\0\0\x18ftypmp42",
        b'"tools/call"',
        b'{"method":"card"}',
        b'{"a":{"method":"tools/call"}}',
        b'[{"a":1},' + b"2," * 300 + b"3]",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
    ],
)
def test_other_texts_hold_none(text: bytes) -> None:
    assert not may_hold_call(text)


def test_what_was_read_as_what_it_is_leaves_no_doubt() -> None:
    for text in (CALL, b"[" + CALL + b"]", b'{"method":"card"}'):
        assert not is_doubtful(parse(text), text)


def test_keys_that_differ_in_case_alone_leave_doubt() -> None:
    for twin in (b'"Method":"ping"', b'"param\xc5\xbf":{}', b'"PARAMS":{}'):
        text = CALL[:-1] + b"," + twin + b"}"
        assert has_twins(text)
        assert is_doubtful(parse(text), text)
    assert not has_twins(CALL.replace(b'"drop"', b'"drop","arguments":{"Name":1,"name":2}'))


def test_a_call_between_two_carriage_returns_is_hidden() -> None:
    assert hides_call(b'{"a":\r' + CALL + b"\r}\n")
    assert not hides_call(CALL + b"\r\n")
    assert not hides_call(b'{"a":\r1}\n')


def test_blank_lines_and_json_are_readable() -> None:
    for text in (b"\n", b" ", b"1", CALL, b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"):
        assert not is_unreadable(text)
    assert is_unreadable(b"Content-Length: 3\r\n")
