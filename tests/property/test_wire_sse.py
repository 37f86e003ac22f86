"""Laws of watching event streams: no byte is lost, chunks are invisible, WHATWG's rules hold."""

import itertools
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from turnlog.wire.sse import EventReader, SseEvent

ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
lines = st.one_of(
    st.sampled_from(
        [
            b"",
            b"",
            b"",
            b"data",
            b"data:",
            b"data: {}",
            b"data:  x",
            b"data:y: z",
            b": comment",
            b":",
            b"id: 7",
            b"id",
            b"id: a\0b",
            b"retry: 3000",
            b"retry: -1",
            b"event: ping",
            b"event:",
            b"dataset: no",
            b"unknown",
            b"\xef\xbb\xbfdata: late mark",
        ]
    ),
    st.binary(max_size=8).filter(lambda line: b"\n" not in line and b"\r" not in line),
)
streams = st.tuples(
    st.sampled_from([b"", b"", b"\xef\xbb\xbf"]), st.lists(st.tuples(lines, ends)), lines
).map(lambda s: s[0] + b"".join(line + end for line, end in s[1]) + s[2])


def reference(stream: bytes) -> list[tuple[Any, ...]]:
    """Read a whole stream the way the specification tells it: by lines."""
    events: list[tuple[Any, ...]] = []
    kind = b"message"
    identifier: str | None = None
    data: list[bytes] | None = None
    seen = False
    *whole, _ = re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf"))
    for line in whole:
        if not line:
            if seen:
                joined = None if data is None else b"\n".join(data)
                events.append((kind.decode("utf-8", "replace"), identifier, joined))
            kind, identifier, data, seen = b"message", None, None, False
            continue
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data":
            data, seen = [*(data or []), value], True
        elif name == b"event":
            kind, seen = value or b"message", True
        elif name == b"id" and b"\0" not in value:
            identifier, seen = value.decode("utf-8", "replace"), True
        elif name == b"retry" and value.isdigit():
            seen = True
    return events


def described(event: SseEvent) -> tuple[Any, ...]:
    return event.type, event.id, None if event.body is None else event.data


def read(stream: bytes, cuts: list[int]) -> tuple[list[tuple[Any, ...]], bytes]:
    reader = EventReader()
    events: list[tuple[Any, ...]] = []
    raw = b""
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        pieces = reader.feed(stream[start:end])
        assert b"".join(piece.raw for piece in pieces) == stream[start:end]
        assert all(piece.event is not None for piece in pieces[:-1])
        for piece in pieces:
            raw += piece.raw
            if piece.event is not None:
                assert piece.raw.endswith((b"\n", b"\r"))
                events.append(described(piece.event))
    return events, raw


@given(streams, st.lists(st.integers(0, 200)))
@example(b"data: a\r\n\r\ndata: b\r\r", list(range(30)))
@example(b"\xef\xbb\xbfdata: a\n\n", [1, 2, 5])
@example(b"data:\n\nid: 1\ndata:\n\n", [])
def test_events_are_those_of_the_specification_whatever_the_chunks(
    stream: bytes, cuts: list[int]
) -> None:
    events, raw = read(stream, cuts)
    assert raw == stream
    assert events == reference(stream)


many = st.lists(st.tuples(lines, ends), min_size=1, max_size=12).map(
    lambda some: b"".join(line + end for line, end in some)
)
data = st.tuples(
    st.sampled_from([b"data:", b"data: ", b"data: data:"]), st.sampled_from([b"", b"x"])
)
runs = st.tuples(data, st.sampled_from([b"\n", b"\r\n"])).map(lambda run: b"".join(run[0]) + run[1])


@given(
    st.lists(st.tuples(many, runs, st.integers(0, 40)), min_size=1, max_size=4),
    st.lists(st.integers(0, 20_000), max_size=3),
)
@example([(b"\n", b"data: a\n", 600)], [4100])
def test_long_runs_of_data_lines_are_read_as_lines_are(
    parts: list[tuple[bytes, bytes, int]], cuts: list[int]
) -> None:
    once = b"".join(other + run * count for other, run, count in parts)
    stream = once * (1 + 9000 // len(once))
    events, raw = read(stream, cuts)
    assert raw == stream
    assert events == reference(stream)


@given(streams)
def test_reading_byte_by_byte_gives_the_same_events(stream: bytes) -> None:
    assert read(stream, list(range(len(stream)))) == read(stream, [])


@given(streams)
def test_an_event_is_complete_at_the_byte_that_ends_its_blank_line(stream: bytes) -> None:
    reader = EventReader()
    for at in range(len(stream)):
        if any(piece.event for piece in reader.feed(stream[at : at + 1])):
            assert len(reference(stream[: at + 1])) == len(reference(stream[:at])) + 1
