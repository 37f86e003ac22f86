import pytest

from turnlog.wire.http.mend import HEAD_END, LINE_ENDS, mended

START = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (b"A: 1\r\n 2\r\n\r\n", b"A: 1 2\r\n\r\n"),
        (b"A: 1\r\n\t \t2\r\n  3\r\nB: 4\r\n\r\n", b"A: 1 2 3\r\nB: 4\r\n\r\n"),
        (b"A:\n 2\n\n", b"A: 2\r\n\r\n"),
        (b" A: 1\r\n\tB: 1\r\nC: 1\r\n 2\r\n\r\n", b"C: 1 2\r\n\r\n"),
        (b" \r\n\r\n", b"\r\n"),
        (b"A: 1\r\n \r\n\r\n", b"A: 1 \r\n\r\n"),
        (
            b"content-length: 5\r\nA: 1\r\nContent-Length: 5\r\n\r\n",
            b"Content-Length: 5\r\nA: 1\r\n\r\n",
        ),
        (b"Content-Length: 5, 5\r\n\r\n", b"Content-Length: 5\r\n\r\n"),
        (b"Content-Length: 5,\r\n 5\r\n\r\n", b"Content-Length: 5\r\n\r\n"),
        (b"Content-Length: +5\r\n\r\n", b"Content-Length: 5\r\n\r\n"),
        (b"Content-Length: 5,\r\n\r\n", b"Content-Length: 5\r\n\r\n"),
        (b"A \t: 1\r\n\r\n", b"A: 1\r\n\r\n"),
        (b"A: 1\r\nA b: 1\r\nA(b): 1\r\n: 1\r\nA\r\n\r\n", b"A: 1\r\n\r\n"),
        (b"A: \0b\rc\x01\r\n\r\n", b"A:  b c\x01\r\n\r\n"),
        (b"A: 1\r\r\nB: 2\r\r\n\r\r\n", b"A: 1\r\nB: 2\r\n\r\n"),
        (b"transfer-encoding: identity\r\nA: 1\r\n\r\n", b"A: 1\r\n\r\n"),
        (b"Transfer-Encoding:\r\n\r\n", b"\r\n"),
        (
            b"Transfer-Encoding: identity\r\nA: 1\r\nTransfer-Encoding: Chunked, chunked\r\n\r\n",
            b"Transfer-Encoding: chunked\r\nA: 1\r\n\r\n",
        ),
    ],
)
def test_a_repairable_head_is_repaired(given: bytes, wanted: bytes) -> None:
    assert mended(START + given) == START + wanted
    assert mended(START + wanted) == START + wanted


@pytest.mark.parametrize("line", [b"HTTP/1.2  200 OK", b"HTTP/1.9 200\tOK", b"HTTP/1.1\t200 \tOK"])
def test_a_status_line_gets_one_blank_between_its_parts_and_a_known_version(line: bytes) -> None:
    assert mended(line + b"\r\n\r\n") == START + b"\r\n"
    assert mended(b"HTTP/1.0 404\r\n\r\n") == b"HTTP/1.0 404 \r\n\r\n"


@pytest.mark.parametrize(
    "fields",
    [
        b"\r\n",
        b"A: 1\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"Content-Length: 5, 05\r\n\r\n",
        b"Content-Length: 5x\r\n\r\n",
        b"Content-Length: -5\r\n\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    ],
)
def test_what_cannot_stays_as_it_is(fields: bytes) -> None:
    assert mended(START + fields) == START + fields


@pytest.mark.parametrize(
    ("raw", "start", "end"),
    [
        (b"A\r\n\r\nB", 0, 5),
        (b"A\n\nB", 0, 3),
        (b"A\r\n\r\nB\r\n\r\n", 0, 5),
        (b"A\r\n\r\nB\r\n\r\n", 3, 10),
        (b"A\r\n\r\nB\r\n", 3, 0),
        (b"A\r\n", 0, 0),
        (b"A\r\r\n\r\r\nB", 0, 7),
    ],
)
def test_a_head_ends_at_a_blank_line(raw: bytes, start: int, end: int) -> None:
    found = HEAD_END.search(raw, start)
    assert (found.end() if found is not None else 0) == end


@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 OK", b"HTTP/1.1 200 OK\r\n", START + b"A: 1\r\n"])
def test_there_is_nothing_to_mend_in_a_start_that_is_sound(cut: bytes) -> None:
    assert mended(cut) == cut


def test_an_incomplete_head_can_be_repaired() -> None:
    assert mended(START + b"A: 1\r\n 2") == START + b"A: 1 2"


@pytest.mark.parametrize(
    ("raw", "start", "begins"), [(b"\r\n\nHTTP", 0, 3), (b"HTTP\r\n", 4, 6), (b"", 0, 0)]
)
def test_a_head_begins_behind_line_ends(raw: bytes, start: int, begins: int) -> None:
    found = LINE_ENDS.match(raw, start)
    assert found is not None
    assert found.end() == begins


@pytest.mark.parametrize("line", [b"ICY 200 OK", b"HTTP/2 200 OK", b"HTTP/1.1 OK"])
def test_another_start_line_stays_as_it_is(line: bytes) -> None:
    assert mended(line + b"\r\n\r\n") == line + b"\r\n\r\n"
