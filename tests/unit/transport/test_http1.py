"""`transport.http1` and `transport.message_heads`: what heads say, and where bodies end."""

import pytest

from turnlog.transport.http1 import (
    HEAD_LIMIT,
    HEADS,
    UNSOUND,
    BadChunksError,
    BodyReader,
    Chunks,
    Unreadable,
    begins_like_request,
    begins_like_response,
    is_beyond_mending,
    read_request_line,
    read_response,
)
from turnlog.transport.message_heads import RequestStart, read_request_head
from turnlog.wire.http.head import Body
from turnlog.wire.http.response_head import ResponseHead

LINE = b"POST /a HTTP/1.1\r\n"
HOST = b"Host: h\r\n"


def read(head: bytes) -> tuple[RequestStart, int]:
    found = read_request_head(head)
    assert not isinstance(found, Unreadable)
    return found


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b"GET / HTTP/1.1", ("GET", "/", (1, 1))),
        (b"get /a?b#c HTTP/1.0", ("get", "/a?b#c", (1, 0))),
        (b"M-!#$ //x HTTP/1.9", ("M-!#$", "//x", (1, 9))),
        (b"GET /\xff HTTP/1.1", ("GET", "/\udcff", (1, 1))),
        (b"OPTIONS * HTTP/1.1", ("OPTIONS", "*", (1, 1))),
        (b"GET http://h HTTP/1.1", ("GET", "http://h", (1, 1))),
        (b"GET HTTP://u@[::1]:80/a HTTP/1.1", ("GET", "HTTP://u@[::1]:80/a", (1, 1))),
        (b"GET http://h?a HTTP/1.1", ("GET", "http://h?a", (1, 1))),
        (b"CONNECT h:80 HTTP/1.1", ("CONNECT", "h:80", (1, 1))),
    ],
)
def test_a_request_line_is_read_as_it_was_written(
    line: bytes, wanted: tuple[str, str, tuple[int, int]]
) -> None:
    assert read_request_line(line) == wanted


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET",
        b"GET /",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b"GET /a b HTTP/1.1",
        b"G@T / HTTP/1.1",
        b"A" * 257 + b" / HTTP/1.1",
        b"GET / HTTP/0.9",
        b"GET / HTTP/2.0",
        b"GET / HTTP/1.10",
        b"GET / http/1.1",
        b"GET / RTSP/1.0",
        b"connect h:80 HTTP/1.1",
    ],
)
def test_an_invalid_request_line_is_refused(line: bytes) -> None:
    said = read_request_line(line)
    assert isinstance(said, Unreadable)
    assert "first line" in said.detail


@pytest.mark.parametrize(
    "target",
    [
        *(b"*", b"tool", b"h:80", b"mailto:x", b"http:/h", b"http:///a", b"http://?a"),
        *(b"http://h:b/", b"http://[::1/", b"/\x01", b"/\x7f", b"/\t"),
    ],
)
def test_a_target_that_is_neither_path_nor_url_is_refused(target: bytes) -> None:
    said = read_request_line(b"GET " + target + b" HTTP/1.1")
    assert isinstance(said, Unreadable)
    assert "target" in said.detail


def test_the_start_of_tls_is_told_apart() -> None:
    refused = begins_like_request(b"\x16\x03\x01\x02")
    assert refused is not None
    assert "TLS" in refused.detail
    assert begins_like_request(b"GE") is None
    assert begins_like_request(b"GET /a") is None
    assert begins_like_request(b"SSH-2.0\r\n") is not None


def test_fields_keep_their_order_case_duplicates_and_bytes() -> None:
    lines = b"X-a: 1\r\nx-A:\t\xe9 \t\r\nUser-Agent: a\r\nuser-agent: b\r\nX-Empty:\r\n"
    start, length = read(LINE + HOST + b"Content-Length: 1\r\n" + lines + b"\r\n")
    assert length == 1
    assert start.head.raw == (
        (b"Host", b"h"),
        (b"X-a", b"1"),
        (b"x-A", b"\xe9"),
        (b"User-Agent", b"a"),
        (b"user-agent", b"b"),
        (b"X-Empty", b""),
    )


def test_an_offer_of_another_protocol_changes_nothing() -> None:
    offer = b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n"
    assert read(LINE + HOST + offer + b"\r\n")[1] == 3


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        (b"", 0),
        (b"Content-Length: 0\r\n", 0),
        (b"Content-Length: 03\r\n", 3),
        (b"content-length:\t3 \r\n", 3),
        (b"cONTENT-lENGTH: 3\r\n", 3),
        (b"Transfer-Encoding: chunked\r\n", -1),
        (b"transfer-encoding: gzip, Chunked \r\n", -1),
    ],
)
def test_the_length_of_a_body_is_what_the_fields_say(lines: bytes, length: int) -> None:
    assert read(LINE + HOST + lines + b"\r\n")[1] == length


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        HOST + HOST,
        HOST + b"host: i\r\n",
        HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n",
        HOST + b"Content-Length: 3\r\ncONTENT-lENGTH: 3\r\n",
        HOST + b"cONTENT-LENGTH: 3\r\ncONTENT-LENGTH: 3\r\n",
        HOST + b"Content-Length: 3, 3\r\n",
        HOST + b"Content-Length: +3\r\n",
        HOST + b"Content-Length: -3\r\n",
        HOST + b"cONTENT-length: x\r\n",
        HOST + b"Content-Length: \r\n",
        HOST + b"Content-Length: " + b"9" * 19 + b"\r\n",
        HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        HOST + b"Transfer-Encoding: chunked\r\ncONTENT-length: 3\r\n",
        HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        HOST + b"Transfer-Encoding: gzip\r\n",
        HOST + b"Transfer-Encoding: chunked, gzip\r\n",
        HOST + b"Transfer-Encoding: xchunked\r\n",
        HOST + b"Transfer-Encoding:\r\n",
        HOST + b" folded: 1\r\n",
        HOST + b"X: 1\r\n folded\r\n",
        HOST + b"X : 1\r\n",
        HOST + b"X y: 1\r\n",
        HOST + b": 1\r\n",
        HOST + b"X\r\n",
        HOST + b"X: a\rb\r\n",
        HOST + b"X: a\0b\r\n",
        HOST + b"X: \x01\r\n",
        HOST + b"X: 1\n",
        HOST + b"".join(b"X-%d: 1\r\n" % number for number in range(1024)),
    ],
)
def test_a_request_that_two_readers_could_read_differently_is_refused(lines: bytes) -> None:
    for _ in range(2):  # a head that was refused is refused again
        assert read_request_head(LINE + lines + b"\r\n") == UNSOUND


def test_http_1_0_needs_no_host_and_has_no_chunks() -> None:
    old = b"POST / HTTP/1.0\r\n"
    assert read(old + b"\r\n")[1] == 0
    for lines in (HOST + HOST, b"Transfer-Encoding: chunked\r\n"):
        assert read_request_head(old + lines + b"\r\n") == UNSOUND


@pytest.mark.parametrize(
    ("version", "lines", "keeps"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: x, Close\r\n", False),
        (b"1.1", b"connection: a\r\nConnection: close\r\n", False),
        (b"1.1", b"Connection: closed\r\n", True),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: Keep-Alive\r\n", True),
        (b"1.0", b"Connection: keep-alive, close\r\n", False),
    ],
)
def test_a_connection_stays_as_its_fields_say(version: bytes, lines: bytes, keeps: bool) -> None:
    start, _ = read(b"GET / HTTP/" + version + b"\r\n" + HOST + lines + b"\r\n")
    assert start.keeps is keeps


def test_the_same_line_and_fields_are_equal_whatever_the_length() -> None:
    found = [
        read_request_head(LINE + HOST + b"Content-Length: %d\r\n\r\n" % size) for size in (1, 20)
    ]
    (first, one), (second, twenty) = (each for each in found if not isinstance(each, Unreadable))
    assert (one, twenty) == (1, 20)
    assert first == second
    assert first.head is second.head


def test_the_same_fields_behind_another_line_are_the_same_object() -> None:
    found = [
        read_request_head(b"GET /%d HTTP/1.1\r\n" % number + HOST + b"\r\n") for number in (1, 2)
    ]
    (first, _), (second, _) = (each for each in found if not isinstance(each, Unreadable))
    assert first != second
    assert first.head is second.head


def test_the_head_of_the_request_before_is_not_read_again() -> None:
    before, _ = read(LINE + HOST + b"Content-Length: 1\r\n\r\n")
    found = read_request_head(LINE + HOST + b"Content-Length: 20\r\n\r\n", before)
    assert isinstance(found, tuple)
    assert found[0] is before
    assert found[1] == 20
    for other in (LINE + HOST + b"X: 1\r\n\r\n", b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"):
        found = read_request_head(other, before)
        assert isinstance(found, tuple)
        assert found[0] != before


def test_a_length_beside_chunks_is_refused_behind_a_request_with_the_same_fields() -> None:
    chunked = LINE + HOST + b"Transfer-Encoding: chunked\r\n"
    before = read_request_head(chunked + b"\r\n")
    assert isinstance(before, tuple)
    assert before[1] < 0
    assert read_request_head(chunked + b"Content-Length: 1\r\n\r\n", before[0]) == UNSOUND
    assert read_request_head(chunked + b"\r\n", before[0]) == before


def test_only_so_many_heads_are_remembered_and_none_that_is_large() -> None:

    def head_of(fields: bytes) -> object:
        found = read_request_head(LINE + HOST + fields + b"\r\n")
        assert not isinstance(found, Unreadable)
        return found[0].head

    first = head_of(b"X: 0\r\n")
    assert head_of(b"X: 0\r\n") is first
    for number in range(1, HEADS + 1):
        head_of(b"X: %d\r\n" % number)
    assert head_of(b"X: 0\r\n") is not first
    for large in (b"X: " + b"x" * 8192 + b"\r\n", b"X:" + b" " * 8192 + b"x\r\n", b"X: 1\r\n" * 64):
        assert head_of(large) is not head_of(large)


# -- responses -----------------------------------------------------------------------------


def response(head: bytes, method: str) -> ResponseHead | str:
    found = read_response(head, method)
    return found if isinstance(found, str) else found[0]


def test_a_head_that_came_before_with_another_length_is_the_same_object() -> None:
    found = [
        read_response(b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: %d\r\n\r\n" % size, "POST")
        for size in (1, 20)
    ]
    (one, first), (twenty, second) = (each for each in found if not isinstance(each, str))
    assert one is twenty
    assert (first, second) == (1, 20)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (b"Content-Length: 5\r\nContent-Length: 5\r\n", (Body.LENGTH, 5)),
        (b"Content-Length: 5\r\nContent-Length: 0\r\n", None),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n", None),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", (Body.CHUNKED, 0)),
        (b"Content-Length: 5\nContent-Length: 5\r\n", (Body.LENGTH, 5)),
        (b"A: Content-Length\r\nContent-Length: 5\r\n", (Body.LENGTH, 5)),
    ],
)
def test_lengths_mean_the_same_whatever_came_before(
    lines: bytes, wanted: tuple[Body, int] | None
) -> None:
    for _ in range(2):
        found = read_response(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n", "POST")
        assert (None if isinstance(found, str) else (found[0].body, found[1])) == wanted


def test_an_answer_without_body_tells_the_length_of_one_that_is_not_sent() -> None:
    for status, method in ((200, "HEAD"), (304, "GET")):
        for size in (b"4", b"9"):
            found = response(
                b"HTTP/1.1 %d X\r\nContent-Length: %b\r\n\r\n" % (status, size), method
            )
            assert not isinstance(found, str)
            assert (found.body, found.lengths) == (Body.NONE, (size,))


@pytest.mark.parametrize(
    ("head", "persists"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: a, Close\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 204 No\r\n\r\n", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\n", True),
        (b"HTTP/2.0 200 OK\r\nContent-Length: 4\r\n\r\n", False),
        (b"HTTP/1.2 200 OK\r\nContent-Length: 4\r\n\r\n", True),
    ],
)
def test_a_servers_connection_persists_where_its_answer_says_so(
    head: bytes, persists: bool
) -> None:
    found = response(head, "POST")
    assert not isinstance(found, str)
    assert found.persists is persists


def test_to_head_a_connection_persists_where_the_body_would_have_an_end() -> None:
    for lines, persists in ((b"", False), (b"Content-Length: 4\r\n", True)):
        found = response(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n", "HEAD")
        assert not isinstance(found, str)
        assert found.body is Body.NONE
        assert found.persists is persists


@pytest.mark.parametrize(
    ("line", "reason"),
    [(b"HTTP/1.1 200", b""), (b"HTTP/1.1 200 ", b""), (b"HTTP/1.1 200  O  \xe9", b" O  \xe9")],
)
def test_a_reason_is_what_stands_behind_the_status(line: bytes, reason: bytes) -> None:
    found = response(line + b"\r\n\r\n", "GET")
    assert not isinstance(found, str)
    assert (found.status, found.reason) == (200, reason)


@pytest.mark.parametrize(
    "head",
    [
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/3.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
)
def test_a_head_that_cannot_be_repaired_is_refused_with_the_reason(head: bytes) -> None:
    assert isinstance(response(head, "GET"), str)


def test_a_head_that_breaks_off_may_have_become_one_or_not() -> None:
    assert begins_like_response(b"HT")
    assert not begins_like_response(b"HTP")
    assert not is_beyond_mending(b"HTTP/1.1 2")
    assert not is_beyond_mending(b"HTTP/1.1 200 OK\r\nA")
    assert is_beyond_mending(b"SSH")
    assert is_beyond_mending(b"HTTP/1.1 OK\r\n")
    assert is_beyond_mending(b"HTTP/1.1 200 OK\r\nContent-Length: 4x\r\n")


# -- bodies --------------------------------------------------------------------------------


def test_a_body_ends_where_its_length_says() -> None:
    reader = BodyReader(4)
    assert reader.feed(b"ab") == b""
    assert reader.missing
    assert not reader.end()
    assert reader.feed(b"cdxy") == b"xy"
    assert not reader.missing
    assert (reader.take(), reader.feed(b"z")) == (b"abcd", b"z")


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = BodyReader(-1)
    assert reader.feed(b"ab") == b""
    assert reader.missing
    assert reader.end()
    assert reader.take() == b"ab"


CHUNKED = b"4;a=1\r\n\r\n\r\n\r\n3\r\nabc\r\n0\r\nA: 1\r\n\r\n"


def test_chunks_end_at_the_same_byte_however_they_are_cut() -> None:
    whole = CHUNKED + b"GET / HTTP/1.1\r\n\r\n"
    for size in range(1, len(whole)):
        reader = BodyReader(-1, Chunks())
        rest = b"".join(reader.feed(whole[at : at + size]) for at in range(0, len(whole), size))
        assert (reader.take(), rest) == (b"\r\n\r\nabc", b"GET / HTTP/1.1\r\n\r\n")
        assert not reader.missing


@pytest.mark.parametrize(
    "raw",
    [
        *(b"zz\r\n", b"-1\r\na", b"0x1\r\na", b" 1\r\na", b"1 \r\na", b"1\na", b"1\r\nab\r\n"),
        *(b"1\r\na\n", b"\r\n1\r\na", b"1;a\nb\r\na", b"0\r\nA b: 1\r\n\r\n", b"0\n\n"),
        b"fffffffffffffffff\r\na",
        b"1 \r\na",
        b"1 ;b\r\na",
    ],
)
def test_chunks_of_a_request_are_read_strictly(raw: bytes) -> None:
    with pytest.raises(BadChunksError):
        BodyReader(-1, Chunks()).feed(raw)


@pytest.mark.parametrize("size", [b"4  ", b"4\t", b"4 ;a=b", b"4 \t;a", b'4;a="b ;c"'])
def test_blanks_may_stand_behind_the_sizes_of_a_servers_chunks(size: bytes) -> None:
    reader = BodyReader(-1, Chunks(is_response=True))
    assert reader.feed(size + b"\r\ngood\r\n0\t\r\n\r\n") == b""
    assert (reader.missing, reader.take()) == (0, b"good")


@pytest.mark.parametrize("is_response", [True, False])
@pytest.mark.parametrize(
    "line", [b"4; a=b", b"4;a =b", b"4;a= b", b"4;a ", b"4;", b"4 0;a", b"4 a"]
)
def test_a_chunk_whose_extension_the_parser_refuses_is_not_read(
    line: bytes, is_response: bool
) -> None:
    with pytest.raises(BadChunksError):
        BodyReader(-1, Chunks(is_response=is_response)).feed(line + b"\r\ngood\r\n0\r\n\r\n")


@pytest.mark.parametrize("line", [b"1;" + b"a" * HEAD_LIMIT, b"0\r\nA: " + b"a" * HEAD_LIMIT])
def test_lines_around_chunks_have_a_limit(line: bytes) -> None:
    with pytest.raises(BadChunksError):
        BodyReader(-1, Chunks()).feed(line)


@pytest.mark.parametrize(
    ("raw", "is_whole"),
    [
        (b"1\r\na\r\n0\r\n", True),
        (b"0\r\nA: 1\r\n", True),
        (b"0\r\nA: 1\r", True),
        (b"0\r\nA", True),
        (b"1\r\na\r\n0", False),
        (b"1\r\na\r\n", False),
        (b"1\r\n", False),
        (b"2\r\n\r\n", False),
        (b"", False),
    ],
)
def test_chunks_are_whole_once_the_last_one_has_come(raw: bytes, is_whole: bool) -> None:
    reader = BodyReader(-1, Chunks(is_response=True))
    reader.feed(raw)
    assert reader.end() is is_whole
