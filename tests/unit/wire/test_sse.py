"""Event streams, watched as they go by."""

import pytest

from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Message
from turnlog.wire.sse import FIELD_LIMIT, EventPiece, EventReader, SseEvent


def events(stream: bytes, size: int = 1 << 20, limit: int = 1 << 20) -> list[SseEvent]:
    reader = EventReader(limit)
    pieces = [
        piece
        for start in range(0, len(stream), size)
        for piece in reader.feed(stream[start : start + size])
    ]
    assert b"".join(piece.raw for piece in pieces) == stream
    return [piece.event for piece in pieces if piece.event is not None]


def test_a_chunk_is_cut_where_events_end() -> None:
    reader = EventReader()
    first, second, third = reader.feed(b": hi\n\ndata: a\n\nid: 1\ndata: b\n\n: x")
    assert (first.raw, second.raw, third) == (
        b": hi\n\ndata: a\n\n",
        b"id: 1\ndata: b\n\n",
        EventPiece(b": x", None),
    )
    assert first.event is not None
    assert (first.event.data, first.event.id) == (b"a", None)
    assert second.event is not None
    assert (second.event.data, second.event.id) == (b"b", "1")


def test_an_event_that_spans_chunks_is_held_back_by_its_last_bytes_only() -> None:
    reader = EventReader()
    assert reader.feed(b"data: {") == [EventPiece(b"data: {", None)]
    assert reader.feed(b"}\n") == [EventPiece(b"}\n", None)]
    (last,) = reader.feed(b"\n")
    assert last.raw == b"\n"
    assert last.event is not None
    assert last.event.data == b"{}"


def test_an_empty_chunk_is_no_piece() -> None:
    assert EventReader().feed(b"") == []


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\rdata: b\r\r", [b"a\nb"]),
        (b"data: a\r\ndata: b\r\n\r\n", [b"a\nb"]),
        (b"data:a\n\ndata:  a\n\n", [b"a", b" a"]),
        (b"data\ndata\n\n", [b"\n"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\n\xef\xbb\xbfdata: a\n\n", []),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"dat: a\ndataset: a\n data: a\n\n", []),
        (b": data: a\n\n\n\n", []),
        (b"data: a\r\n\ndata: b\n\n", [b"a", b"b"]),
    ],
)
def test_lines_and_fields_are_those_of_the_specification(
    stream: bytes, expected: list[bytes]
) -> None:
    for size in (1, 2, 3, 4, 1000):
        assert [event.data for event in events(stream, size)] == expected


@pytest.mark.parametrize(
    ("block", "kind", "identifier", "has_data"),
    [
        (b"data: a\n\n", "message", None, True),
        (b"event: endpoint\ndata: /m\n\n", "endpoint", None, True),
        (b"event\ndata: a\n\n", "message", None, True),
        (b"id: 7\ndata:\n\n", "message", "7", False),
        (b"id\nretry: 1500\n\n", "message", "", False),
        (b"retry: 1500\n\n", "message", None, False),
        (b"id: a\0b\ndata: x\n\n", "message", None, True),
        (b"retry: -1\ndata: x\n\n", "message", None, True),
        (b"retry: 99999999999999999999\ndata: x\n\n", "message", None, True),
        (b"event: \xff\nid: \xff\n\n", "\ufffd", "\ufffd", False),
    ],
)
def test_each_block_with_a_field_is_an_event(
    block: bytes, kind: str, identifier: str | None, has_data: bool
) -> None:
    for size in (1, 1000):
        (event,) = events(block, size)
        assert (event.type, event.id) == (kind, identifier)
        assert (event.body is not None and event.body.size > 0) is has_data


def test_fields_do_not_outlive_their_event() -> None:
    _, second = events(b"event: x\nid: 1\nretry: 5\ndata: a\n\ndata: b\n\n")
    assert (second.type, second.id, second.data) == ("message", None, b"b")


def test_the_data_of_an_event_is_a_message() -> None:
    (event,) = events(b'data: {"id":1,\ndata: "result":{}}\n\n')
    assert event.body is not None
    assert isinstance(event.body.content, Message)


@pytest.mark.parametrize("size", [997, 1 << 20])
def test_data_beyond_the_limit_is_counted_and_skimmed(size: int) -> None:
    text = b'{"id":1,"result":{"content":["' + b"x" * 10_000 + b'"],"isError":true}}'
    (event,) = events(b"data: " + text + b"\n\n", size, limit=100)
    assert event.body is not None
    assert event.data == text[:100]
    assert event.body.size == len(text)
    assert isinstance(event.body.content, Outline)
    assert event.body.content.raw("result.isError") == b"true"


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_a_field_without_end_is_ignored(size: int) -> None:
    stream = (
        b"id: " + b"7" * (3 * FIELD_LIMIT) + b"\n:" + b" " * (3 * FIELD_LIMIT) + b"\ndata: a\n\n"
    )
    (event,) = events(stream, size)
    assert (event.id, event.data) == (None, b"a")


def test_an_event_without_data_has_no_body() -> None:
    (event,) = events(b"id: 1\n\n")
    assert event.body is None
    assert event.data == b""


@pytest.mark.parametrize(
    ("come", "in_data"),
    [
        (b"", False),
        (b"event: x\n", False),
        (b"event: x\nd", True),
        (b"event: x\ndata", True),
        (b"event: x\ndato", False),
        (b"data: x", True),
        (b"data: x\nid: 1\n", True),
        (b"data: x\n\n", False),
    ],
)
def test_an_event_is_in_its_data_from_the_first_letter_of_the_name(
    come: bytes, in_data: bool
) -> None:
    reader = EventReader()
    reader.feed(come)
    assert reader.in_data == in_data


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_many_short_lines_of_data_are_read_as_one_by_one(end: bytes) -> None:
    lines = [b"%d" % number for number in range(2000)]
    stream = b"".join(b"data: " + line + end for line in lines) + end
    assert [event.data for event in events(stream)] == [b"\n".join(lines)]
