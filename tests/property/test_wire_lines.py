"""Laws of cutting lines: no byte is lost, chunks are invisible, only long lines come in pieces."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from turnlog.wire.message import LinePiece, LineReader

streams = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"", b"a", b'{"id":1}', b"\xff", b"x" * 9, b"y" * 40])
).map(b"".join)
cuts = st.lists(st.integers(0, 200), max_size=12)


def chunks(stream: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(place % (len(stream) + 1) for place in at)})
    return [stream[one:two] for one, two in itertools.pairwise(places)]


def read(stream: bytes, at: list[int], most: int) -> list[LinePiece]:
    reader = LineReader(most)
    fed = [piece for chunk in chunks(stream, at) for piece in reader.feed(chunk)]
    return fed + reader.finish()


def lines_of(pieces: list[LinePiece]) -> list[bytes]:
    """Join the pieces of each line, and check that they stand in order."""
    lines: list[bytes] = []
    inside = False
    for piece in pieces:
        assert piece.starts is not inside
        lines = [*lines, piece.raw] if piece.starts else [*lines[:-1], lines[-1] + piece.raw]
        inside = not piece.ends
    assert not inside
    return lines


@given(streams, cuts, st.integers(0, 30))
def test_pieces_joined_are_the_stream_whatever_the_chunks(
    stream: bytes, at: list[int], most: int
) -> None:
    pieces = read(stream, at, most)
    assert b"".join(piece.raw for piece in pieces) == stream
    assert lines_of(pieces) == [line for line in _split(stream) if line]


def _split(stream: bytes) -> list[bytes]:
    *whole, last = stream.split(b"\n")
    return [*(line + b"\n" for line in whole), last]


@given(streams, cuts)
def test_a_line_that_is_not_too_long_comes_whole(stream: bytes, at: list[int]) -> None:
    assert all(piece.starts and piece.ends for piece in read(stream, at, len(stream)))


@given(streams, cuts, st.integers(0, 30))
def test_no_more_is_held_than_was_asked_for(stream: bytes, at: list[int], most: int) -> None:
    reader = LineReader(most)
    fed = given_back = 0
    for chunk in chunks(stream, at):
        fed += len(chunk)
        given_back += sum(len(piece.raw) for piece in reader.feed(chunk))
        assert fed - given_back <= most
