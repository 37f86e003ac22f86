"""What may be a call of a tool to some server, though turnlog reads it as something else."""

import pytest

from turnlog.core.kinds import Flag
from turnlog.wire.doubt import (
    as_call,
    has_twins,
    hides_call,
    is_doubtful,
    is_unreadable,
    may_hold_call,
)
from turnlog.wire.jsonrpc import Kind, Malformed, parse

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


def test_text_read_in_its_own_coding_leaves_no_doubt() -> None:
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


def test_a_batch_is_doubtful_where_one_of_its_messages_is() -> None:
    other = CALL.replace(b'"jsonrpc":"2.0",', b"")
    for text, doubtful in (
        (b"[%b,%b]" % (CALL, CALL), False),
        (b"[%b,%b]" % (CALL, other), True),
        (b"[%b,1]" % CALL, True),
    ):
        assert is_doubtful(parse(text), text) is doubtful


def test_arrays_are_looked_into_to_a_depth() -> None:
    assert may_hold_call(b"[" * 4 + CALL + b"]" * 4)
    assert not may_hold_call(b"[" * 5 + CALL + b"]" * 5)


def test_undecodable_text_is_broken_only_if_no_reader_accepts_it() -> None:
    assert not is_unreadable(b'[{"a":NaN}]')
    assert is_unreadable(b"[NaN,")
    assert is_unreadable(b"[%b]" % b",".join([b'{"a":NaN}'] * 300))


def test_an_unreadable_body_is_recorded_as_a_call() -> None:
    read = as_call(parse(CALL.replace(b'"id":1', b'"id":7')))
    assert (read.kind, read.id, read.method, read.flags) == (
        Kind.REQUEST,
        b"7",
        "tools/call",
        (Flag.MALFORMED,),
    )
    unread = as_call(parse(b"{call}"), kind=Kind.NOTIFICATION)
    assert (unread.kind, unread.id, unread.flags) == (Kind.NOTIFICATION, b"", (Flag.NOT_JSON,))


def test_a_call_of_another_version_is_doubtful() -> None:
    other = CALL.replace(b'"2.0"', b'"1.0"')
    assert is_doubtful(parse(other), other)
    assert not is_doubtful(parse(CALL), CALL)
    assert not is_doubtful(parse(b"text"), b"text")


@pytest.mark.parametrize("coding", ["utf-16", "utf-32-le"])
def test_a_call_in_a_wide_encoding_is_doubtful(coding: str) -> None:
    text = CALL.decode().encode(coding)
    assert isinstance(parse(text), Malformed)
    assert is_doubtful(parse(text), text)
