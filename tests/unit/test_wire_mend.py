import pytest

from turnlog.wire.mend import head_size, mended

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
    ("raw", "heads", "size"),
    [
        (b"A\r\n\r\nB", 1, 5),
        (b"A\n\nB", 1, 3),
        (b"A\r\n\r\nB\r\n\r\n", 2, 10),
        (b"A\r\n\r\nB\r\n", 2, 0),
        (b"A\r\n", 1, 0),
        (b"A\r\n\r\n", 0, 0),
    ],
)
def test_heads_are_measured(raw: bytes, heads: int, size: int) -> None:
    assert head_size(raw, heads) == size
