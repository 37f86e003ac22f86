"""What a proxy does to HTTP heads."""

import pytest

from turnlog.wire.http.head import (
    BadFraming,
    Body,
    Framing,
    Headers,
    can_dechunk,
    changed_body,
    fields,
    framing,
    is_sealed,
    media_of,
    notice_headers,
    request_headers,
    response_headers,
    retry_after,
    trace_id,
)


def to_upstream(*raw: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return what goes on of a request, without what is always added."""
    sent = request_headers(raw, authority=b"up:9000", forwarded_host=b"127.0.0.1:7411")
    assert sent[0] == (b"Host", b"up:9000")
    assert sent[-2:] == [(b"Via", b"1.1 turnlog"), (b"X-Forwarded-Host", b"127.0.0.1:7411")]
    return sent[1:-2]


def test_a_request_goes_on_in_order_with_duplicates_and_spelling() -> None:
    raw = [
        (b"accept", b"application/json"),
        (b"Mcp-Session-Id", b"a"),
        (b"MCP-SESSION-ID", b"a"),
        (b"X-Empty", b""),
        (b"X-Bytes", b"\xff\xfe"),
        (b"Via", b"1.0 other"),
        (b"X-Forwarded-Host", b"outer"),
        (b"Mcp-Param-Path", b"=?base64?YQ==?="),
        (b"Last-Event-ID", b"7"),
        (b"Content-Encoding", b"gzip"),
    ]
    assert to_upstream(*raw) == raw


@pytest.mark.parametrize(
    "name",
    [
        b"Connection",
        b"Keep-Alive",
        b"Proxy-Connection",
        b"Proxy-Authenticate",
        b"Proxy-Authorization",
        b"TE",
        b"Trailer",
        b"Transfer-Encoding",
        b"Upgrade",
        b"HTTP2-Settings",
        b"Host",
        b"Content-Length",
        b"Expect",
        b"Turnlog-Session",
        b"turnlog-why",
    ],
)
def test_fields_of_this_hop_or_of_turnlog_are_not_forwarded(name: bytes) -> None:
    assert to_upstream((name, b"x"), (b"Accept", b"y")) == [(b"Accept", b"y")]


@pytest.mark.promise("WIRE-8")
def test_connection_takes_away_what_it_names() -> None:
    raw = ((b"X-Hop", b"1"), (b"connection", b"close, x-hop"), (b"Connection", b"X-Two"))
    assert to_upstream(*raw, (b"x-two", b"2"), (b"X-Three", b"3")) == [(b"X-Three", b"3")]


@pytest.mark.parametrize(
    "name",
    [
        b"Authorization",
        b"Content-Type",
        b"Cookie",
        b"Mcp-Session-Id",
        b"MCP-Protocol-Version",
        b"Idempotency-Key",
        b"Last-Event-ID",
        b"X-Forwarded-For",
        b"Accept",
    ],
)
def test_connection_cannot_take_away_what_is_meant_for_the_server(name: bytes) -> None:
    assert to_upstream((b"Connection", name.lower()), (name, b"x")) == [(name, b"x")]


def test_a_request_without_host_adds_no_forwarded_host() -> None:
    sent = request_headers([], authority=b"up", forwarded_host=b"")
    assert sent == [(b"Host", b"up"), (b"Via", b"1.1 turnlog")]


def test_an_answer_goes_on_but_for_this_hop() -> None:
    raw = [
        (b"Content-Type", b"application/json"),
        (b"WWW-Authenticate", b"Bearer a"),
        (b"Connection", b"keep-alive, X-Hop, mcp-session-id"),
        (b"X-Hop", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"WWW-Authenticate", b"Basic b"),
        (b"Mcp-Session-Id", b"s"),
        (b"Content-Length", b"3"),
        (b"Set-Cookie", b"a=b; Domain=up; Path=/"),
        (b"Trailer", b"Digest"),
    ]
    hop = {b"Connection", b"X-Hop", b"Transfer-Encoding", b"Trailer"}
    assert response_headers(raw, cookie_path=None) == [pair for pair in raw if pair[0] not in hop]


@pytest.mark.parametrize(
    ("cookie", "expected"),
    [
        (b"a=b", b"a=b; Path=/files"),
        (b"a=b; Path=/", b"a=b; Path=/files"),
        (b"a=b; Path=/mcp; HttpOnly", b"a=b; HttpOnly; Path=/files"),
        (b"a=b; path = /api/ ;Secure", b"a=b;Secure; Path=/files"),
        (b"a=b; Path=/api/mc", b"a=b; Path=/files/api/mc"),
        (b"a=b; Path=/other; Domain=.up.example", b"a=b; Path=/files/other"),
        (b"a=b; Path=/other; Path=/", b"a=b; Path=/files"),
        (b"a=b; Path=relative; SameSite=Lax", b"a=b; SameSite=Lax; Path=/files"),
        (b"a=b; Path", b"a=b; Path=/files"),
        (b"Path=/x; domain=up", b"Path=/x; Path=/files"),
    ],
)
def test_with_several_upstreams_a_cookie_stays_on_its_path(cookie: bytes, expected: bytes) -> None:
    raw = [(b"set-cookie", cookie), (b"Set-Cookie2", cookie)]
    upstream = b"/mcp" if b"/mcp" in cookie else b"/api/mcp"
    assert response_headers(raw, cookie_path=b"/files", upstream_path=upstream) == [
        (b"set-cookie", expected),
        (b"Set-Cookie2", cookie),
    ]


@pytest.mark.parametrize(
    ("status", "method", "raw", "expected"),
    [
        (200, "HEAD", [(b"Content-Length", b"9")], Framing(Body.NONE)),
        (103, "GET", [], Framing(Body.NONE)),
        (204, "GET", [(b"Content-Length", b"9")], Framing(Body.NONE)),
        (304, "GET", [(b"Content-Length", b"9")], Framing(Body.NONE)),
        (200, "POST", [(b"content-length", b"9")], Framing(Body.LENGTH, 9)),
        (202, "POST", [(b"Content-Length", b"0")], Framing(Body.LENGTH, 0)),
        (200, "POST", [(b"Content-Length", b"5, 5")], Framing(Body.LENGTH, 5)),
        (200, "POST", [(b"Content-Length", b"5")] * 2, Framing(Body.LENGTH, 5)),
        (200, "POST", [(b"Content-Length", b"5"), (b"Content-Length", b"6")], "contradicting"),
        (200, "POST", [(b"Content-Length", b"-5")], "bad length"),
        (200, "POST", [(b"Content-Length", b"0x5")], "bad length"),
        (200, "POST", [(b"Content-Length", b"+5")], "bad length"),
        (200, "POST", [(b"Content-Length", b"")], "bad length"),
        (200, "POST", [(b"Content-Length", b"1" * 30)], "bad length"),
        (200, "POST", [(b"Transfer-Encoding", b"Chunked")], Framing(Body.CHUNKED)),
        (
            200,
            "POST",
            [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")],
            Framing(Body.CHUNKED),
        ),
        (200, "POST", [(b"Transfer-Encoding", b"gzip, chunked")], "bad coding"),
        (200, "POST", [(b"Transfer-Encoding", b"chunked")] * 2, "bad coding"),
        (200, "POST", [(b"Transfer-Encoding", b"identity")], "bad coding"),
        (200, "POST", [], Framing(Body.UNTIL_CLOSE)),
    ],
)
def test_the_head_tells_how_long_a_body_is(
    status: int, method: str, raw: Headers, expected: Framing | str
) -> None:
    errors = {
        "contradicting": BadFraming.CONTRADICTING_LENGTHS,
        "bad length": BadFraming.BAD_LENGTH,
        "bad coding": BadFraming.BAD_TRANSFER_CODING,
    }
    wanted = errors[expected] if isinstance(expected, str) else expected
    lengths, codings = fields(raw, b"content-length"), fields(raw, b"transfer-encoding")
    assert framing(status, method, lengths, codings) == wanted


def test_all_values_of_a_field_are_found() -> None:
    raw = [(b"Host", b"a"), (b"X", b"1"), (b"HOST", b"b")]
    assert fields(raw, b"host") == [b"a", b"b"]


@pytest.mark.parametrize(
    ("codings", "can"),
    [
        ([], True),
        ([b"chunked"], True),
        ([b" Chunked ,"], True),
        ([b"gzip, chunked"], False),
        ([b"gzip", b"chunked"], False),
        ([b"chunked, chunked"], False),
        ([b"identity"], False),
        ([b"xchunked"], False),
    ],
)
def test_chunked_is_the_only_transfer_coding_that_is_removed(
    codings: list[bytes], can: bool
) -> None:
    raw = [(b"Host", b"h"), *((b"Transfer-ENCODING", coding) for coding in codings)]
    assert can_dechunk(raw) is can


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"application/json"], "application/json"),
        ([b" Text/Event-Stream ; charset=utf-8"], "text/event-stream"),
        ([], ""),
        ([b""], ""),
        ([b";"], ""),
        ([b"\xff/x"], "\xff/x"),
        ([b"application/json, text/plain"], "application/json"),
        ([b"text/plain", b"application/json"], "text/plain"),
        # Clients take each of these for an event stream.
        ([b"text/event-streams"], "text/event-stream"),
        ([b"text/plain", b"text/event-stream"], "text/event-stream"),
        ([b"application/json, TEXT/event-stream"], "text/event-stream"),
    ],
)
def test_a_media_type_is_read_as_clients_read_it(values: list[bytes], expected: str) -> None:
    assert media_of(values)[0] == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/json", ()),
        (b'application/json; Charset="UTF-7"', ("utf-7",)),
        (b"text/event-stream;charset='utf-16' ;x=y", ("'utf-16'", "utf-16")),
        (b"text/event-stream; charset*=''utf-7", ("utf-7",)),
        (b"a/b; charset=utf-8; charset=utf-7", ("utf-8", "utf-7")),
    ],
)
def test_each_charset_is_found_that_a_client_may_heed(
    value: bytes, expected: tuple[str, ...]
) -> None:
    assert media_of([value])[1] == expected


AT = 1_795_737_600 * 10**9
"""Fri, 27 Nov 2026 00:00:00 GMT, in ns."""


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", 0.0),
        (b" 120\t", 120.0),
        (b"9" * 40, 1e9),
        (b"Fri, 27 Nov 2026 00:01:30 GMT", 90.0),
        (b"Friday, 27-Nov-26 00:01:30 GMT", 90.0),
        (b"Fri Nov 27 00:01:30 2026", 90.0),
        (b"Fri, 27 Nov 2026 01:01:30 +0100", 90.0),
        (b"Thu, 26 Nov 2026 00:00:00 GMT", 0.0),
        (b"Fri, 27 Nov 9026 00:01:30 GMT", 1e9),
        (b"Fri, 32 Nov 2026 00:00:00 GMT", None),
        (b"Fri, 27 Nov 2026 25:00:00 GMT", None),
        (b"Fri, 27 Nov 99999999999999999999999 00:00:00 GMT", None),
        (b"-1", None),
        (b"1.5", None),
        (b"soon", None),
        (b"\xff\x00", None),
        (b"", None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(value: bytes, seconds: float | None) -> None:
    assert retry_after(value, AT) == seconds


_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
_PARENT = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "value",
    [
        f"00-{_TRACE}-{_PARENT}-01",
        f"01-{_TRACE}-{_PARENT}-01",
        f"fe-{_TRACE}-{_PARENT}-01-",
        f"01-{_TRACE}-{_PARENT}-01-what the future\nbrings",
    ],
)
def test_a_valid_traceparent_has_a_trace_id(value: str) -> None:
    assert trace_id(value) == _TRACE


@pytest.mark.parametrize(
    "value",
    [
        "",
        "garbage",
        _TRACE,
        f"ff-{_TRACE}-{_PARENT}-01",
        f"00-{'0' * 32}-{_PARENT}-01",
        f"00-{_TRACE}-{'0' * 16}-01",
        f"00-{_TRACE.upper()}-{_PARENT}-01",
        f"00-{_TRACE}-{_PARENT}-0g",
        f"00-{_TRACE}-{_PARENT}-01-more",
        f"00-{_TRACE}-{_PARENT}-01-",
        f"01-{_TRACE}-{_PARENT}-01more",
        f"00-{_TRACE}-{_PARENT}",
        f"00-{_TRACE}-{_PARENT}-01\n",
        f"00-{_TRACE[:-1]}-{_PARENT}-01",
        f"00_{_TRACE}_{_PARENT}_01",
    ],
)
def test_an_invalid_w3c_trace_has_no_id(value: str) -> None:
    assert trace_id(value) == ""


def test_a_changed_body_has_no_seals_and_a_weak_etag() -> None:
    raw = [(b"ETag", b'"a"'), (b"etag", b'W/"b"'), (b"Content-Encoding", b"br"), (b"X", b"y")]
    weak = [(b"ETag", b'W/"a"'), (b"etag", b'W/"b"'), (b"Content-Encoding", b"br"), (b"X", b"y")]
    sealed = [*raw, (b"Content-Digest", b"sha-256=:YQ==:")]
    assert is_sealed(sealed)
    assert not is_sealed(raw)
    assert changed_body(sealed, decoded=False) == weak
    assert changed_body(sealed, decoded=True) == [pair for pair in weak if pair[1] != b"br"]


def test_a_message_beside_a_request_goes_without_what_is_about_its_body() -> None:
    kept = [(b"Authorization", b"Bearer a"), (b"Mcp-Session-Id", b"s")]
    own = [(b"Content-Encoding", b"gzip"), (b"Idempotency-Key", b"k"), (b"Digest", b"x")]
    assert notice_headers([*kept, *own]) == kept
