import pytest

from turnlog.wire.mend import head_end, head_start, mended

START = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (b"A: 1\r\n 2\r\n\r\n", b"A: 1 2\r\n\r\n"),
        (b"A: 1\r\n\t \t2\r\n  3\r\nB: 4\r\n\r\n", b"A: 1 2 3\r\nB: 4\r\n\r\n"),
        (b"A:\n 2\n\n", b"A: 2\r\n\r\n"),
        (b"A: 1\r\n \r\n\r\n", b"A: 1 \r\n\r\n"),
        (
            b"content-length: 5\r\nA: 1\r\nContent-Length: 5\r\n\r\n",
            b"Content-Length: 5\r\nA: 1\r\n\r\n",
        ),
        (b"Content-Length: 5, 5\r\n\r\n", b"Content-Length: 5\r\n\r\n"),
        (b"Content-Length: 5,\r\n 5\r\n\r\n", b"Content-Length: 5\r\n\r\n"),
    ],
)
def test_what_can_be_mended_is(given: bytes, wanted: bytes) -> None:
    assert mended(START + given) == START + wanted
    assert mended(START + wanted) is None


@pytest.mark.parametrize(
    "fields",
    [
        b"\r\n",
        b"A: 1\r\n\r\n",
        b" A: 1\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"Content-Length: 5, 05\r\n\r\n",
        b"A b: 1\r\n\r\n",
    ],
)
def test_what_cannot_stays_as_it_is(fields: bytes) -> None:
    assert mended(START + fields) is None


@pytest.mark.parametrize(
    ("raw", "start", "end"),
    [
        (b"A\r\n\r\nB", 0, 5),
        (b"A\n\nB", 0, 3),
        (b"A\r\n\r\nB\r\n\r\n", 0, 5),
        (b"A\r\n\r\nB\r\n\r\n", 3, 10),
        (b"A\r\n\r\nB\r\n", 3, 0),
        (b"A\r\n", 0, 0),
    ],
)
def test_a_head_ends_at_a_blank_line(raw: bytes, start: int, end: int) -> None:
    assert head_end(raw, start) == end


@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 OK", b"HTTP/1.1 200 OK\r\n", START + b"A: 1\r\n"])
def test_there_is_nothing_to_mend_in_a_start_that_is_sound(cut: bytes) -> None:
    assert mended(cut) is None


def test_what_has_come_of_a_head_can_be_mended() -> None:
    assert mended(START + b"A: 1\r\n 2") == START + b"A: 1 2"


def test_a_head_begins_behind_line_ends() -> None:
    assert head_start(b"\r\n\nHTTP") == 3
    assert head_start(b"HTTP\r\n", 4) == 6
    assert head_start(b"", 0) == 0
