"""One JSON text that comes in pieces."""

from hashlib import sha256

import pytest

from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Defect, Kind, Malformed, Message
from turnlog.wire.message import (
    NO_CHECKS,
    LinePiece,
    LineReader,
    MessageReader,
    ResultChecks,
    is_length_header,
)

TEXT = b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":false}}'


def fed(limit: int, *pieces: bytes) -> MessageReader:
    reader = MessageReader(limit)
    for piece in pieces:
        reader.feed(piece)
    return reader


def test_a_text_within_the_limit_is_kept_and_parsed() -> None:
    reader = fed(len(TEXT), TEXT[:20], TEXT[20:])
    assert reader.finish() == TEXT
    assert reader.finish() is reader.finish()
    assert not reader.truncated
    content = reader.content
    assert isinstance(content, Message)
    assert content.kind is Kind.RESPONSE
    assert reader.content is content


def test_a_text_beyond_the_limit_keeps_its_start_and_is_skimmed() -> None:
    for limit in (0, 1, 25, len(TEXT) - 1):
        reader = fed(limit, TEXT[:20], TEXT[20:40], TEXT[40:])
        assert reader.finish() == TEXT[:limit]
        assert reader.truncated
        content = reader.content
        assert isinstance(content, Outline)
        assert content.complete
        assert content.raw("result.isError") == b"false"


NO_ANSWERS = [
    (TEXT[:-1], Defect.CUT),
    (TEXT[:-8], Defect.CUT),
    (b'{"jsonrpc":"2.0","id":1,"result":{"content":["', Defect.CUT),
    (TEXT + b"}", Defect.NOT_JSON),
    (TEXT + TEXT, Defect.NOT_JSON),
    (TEXT.replace(b":false", b":fals"), Defect.NOT_JSON),
    (b"<html>" + TEXT, Defect.NOT_JSON),
    (b'{"id":1,"other":{"content":[]}}', Defect.NOT_JSONRPC),
    (b'"a text"', Defect.NOT_JSONRPC),
]


@pytest.mark.parametrize(("text", "reason"), NO_ANSWERS)
def test_a_text_that_is_no_message_is_none_whatever_its_length(text: bytes, reason: Defect) -> None:
    for limit in (0, 1, 10, 1000):
        for size in (1, 7, 1000):
            pieces = [text[place : place + size] for place in range(0, len(text), size)]
            reader = fed(limit, *pieces)
            reader.finish()
            content = reader.content
            assert isinstance(content, Malformed)
            assert content.reason is reason


def test_a_text_that_could_not_be_read_to_its_end_is_not_called_cut() -> None:
    reader = fed(10, TEXT[:-1])
    reader.unread = True
    reader.finish()
    content = reader.content
    assert isinstance(content, Outline)
    assert content.raw("id") == b"1"


def test_a_large_batch_is_no_message_and_no_fault() -> None:
    reader = fed(10, b"[" + TEXT + b"]")
    reader.finish()
    assert isinstance(reader.content, Outline)


def test_a_text_read_at_once_is_complete() -> None:
    for limit in (3, 1000):
        reader = fed(limit, TEXT[:20], TEXT[20:])
        assert reader.size == len(TEXT)
        assert reader.finish() + reader.rest == TEXT
        assert reader.digest == b""


def test_a_single_piece_is_kept_without_a_copy() -> None:
    assert fed(1000, TEXT).finish() is TEXT


def test_nothing_fed_is_an_empty_text() -> None:
    reader = MessageReader()
    assert reader.finish() == b""
    assert reader.content == Malformed(Defect.EMPTY)


@pytest.mark.parametrize("limit", [1000, 10])
def test_a_text_that_may_end_here_is_read_and_may_go_on(limit: int) -> None:
    reader = fed(limit, TEXT[:20])
    assert reader.so_far is None
    reader.feed(TEXT[20:])
    found = reader.so_far
    assert isinstance(found, Message | Outline)
    reader.feed(b"\n")
    assert isinstance(reader.so_far, Message | Outline)
    reader.finish()
    assert isinstance(reader.content, Message | Outline)
    assert reader.size == len(TEXT) + 1


@pytest.mark.parametrize("limit", [1000, 1])
@pytest.mark.parametrize("text", [b"", b"  ", b'{"id":1', b'{"id":{}', b"12", b'"}', b"[[]"])
def test_a_text_that_cannot_end_here_says_nothing_so_far(limit: int, text: bytes) -> None:
    found = fed(limit, text).so_far
    assert found is None or isinstance(found, Malformed)


def test_a_text_in_many_pieces_is_read_so_far_only_now_and_then() -> None:
    reader = MessageReader()
    reader.feed(b"[")
    found = 0
    for _ in range(10_000):
        reader.feed(b"{},{}")
        found += reader.so_far is not None
    assert found < 150


@pytest.mark.parametrize(
    "line", [b"Content-Length: 12\r\n", b"content-length:7\n", b"CONTENT-LENGTH:  0 \r\n"]
)
def test_the_header_of_a_message_that_is_no_line_is_recognized(line: bytes) -> None:
    assert is_length_header(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Content-Length:\r\n",
        b"the Content-Length: 12\n",
        b"Content-Length: 12 bytes\n",
        b'{"content-length": 12}\n',
    ],
)
def test_no_other_line_is_taken_for_such_a_header(line: bytes) -> None:
    assert not is_length_header(line)


LARGE = b'{"jsonrpc":"2.0","result":{"x":"%b"},"id":1}' % (b"x" * (2 << 20))


@pytest.mark.parametrize("limit", [10, 1 << 20, 5 << 20])
@pytest.mark.parametrize("size", [100_000, 5 << 20])
def test_a_text_too_long_to_be_read_at_once_is_read_in_pieces(limit: int, size: int) -> None:
    reader = MessageReader(limit)
    for place in range(0, len(LARGE), size):
        assert reader.so_far is None
        reader.feed(LARGE[place : place + size])
    found = reader.so_far
    assert isinstance(found, Message | Outline)
    assert reader.finish() == LARGE[:limit]
    if limit < len(LARGE):
        assert (reader.digest, reader.rest) == (sha256(LARGE).digest(), b"")
    content = reader.content
    assert isinstance(content, Message if limit > len(LARGE) else Outline)
    assert (content.id if isinstance(content, Message) else content.raw("id")) == b"1"


def test_lines_come_whole_and_longer_ones_in_pieces() -> None:
    reader = LineReader(8)
    assert reader.feed(b"one\ntw") == [LinePiece(b"one\n", True, True)]
    assert reader.feed(b"o\n\nlonger than") == [
        LinePiece(b"two\n", True, True),
        LinePiece(b"\n", True, True),
        LinePiece(b"longer than", True, False),
    ]
    assert reader.feed(b" eight") == [LinePiece(b" eight", False, False)]
    assert reader.feed(b"") == []
    assert reader.feed(b"\nlast") == [LinePiece(b"\n", False, True)]
    assert reader.finish() == [LinePiece(b"last", True, True)]
    assert LineReader(8).finish() == []


def test_a_long_line_may_end_with_the_stream() -> None:
    reader = LineReader(2)
    assert reader.feed(b"abc") == [LinePiece(b"abc", True, False)]
    assert reader.finish() == [LinePiece(b"", False, True)]


@pytest.mark.parametrize("limit", [8, 1 << 10])
def test_a_text_read_in_one_go_is_read_as_in_pieces(limit: int) -> None:
    text = b'{"jsonrpc":"2.0","id":1,"result":{}}'
    whole, pieces = MessageReader.of(text, limit), MessageReader(limit)
    pieces.feed(text[:5])
    pieces.feed(text[5:])
    assert whole.finish() == pieces.finish() == text[:limit]
    assert (whole.size, whole.truncated) == (pieces.size, pieces.truncated)
    assert whole.digest == pieces.digest
    assert whole.content == pieces.content


def test_the_size_on_the_wire_is_that_of_the_text_unless_it_came_in_a_coding() -> None:
    body = MessageReader.of(b"{}")
    assert body.wire_size == 2
    body.coded_size = 30
    assert (body.wire_size, body.size) == (30, 2)


def test_checks_of_one_answer_add_up() -> None:
    held = ResultChecks(is_checked=True)
    failed = ResultChecks(("content-digest mismatch",))
    signed = ResultChecks(is_checked=True, is_verified=True)
    assert held.with_others(NO_CHECKS) == held
    assert NO_CHECKS.with_others(signed) == signed
    assert failed.with_others(signed) == ResultChecks(("content-digest mismatch",), True, True)
