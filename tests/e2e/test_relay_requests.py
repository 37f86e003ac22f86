"""Requests reach the upstream unchanged: line, fields and body, byte by byte."""

import pytest

from kit.beside import Rig
from kit.clients import MCP_HEADERS, ClosedEarlyError, call, message, wait_until
from kit.upstreams import Peer, answer, ok

TWO_LENGTHS = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE", "PROPFIND")


@pytest.mark.parametrize(
    "target",
    [
        "/plain",
        "/",
        "/a//b///c",
        "//double",
        "/a/../b/./c",
        "/%2e%2E/%2f%41%7e/%zz",
        "/caf%C3%A9/%ff",
        "/x?",
        "/x?a=1&a=2&&b=%20+%2B",
        "/x?q=a?b?c",
        "/semi;colon=1/comma,2/(par)/'q'/!$&*+=:@",
        "/x?json={%22a%22:[1]}",
        "/x|y^z`{}\\",
    ],
)
def test_a_request_target_goes_upstream_as_it_was_written(rig: Rig, target: str) -> None:
    with rig.client() as client:
        client.request("GET", target)
    assert rig.upstream.requests[0].target.decode() == target


def test_an_absolute_target_reaches_the_upstream_in_origin_form(rig: Rig) -> None:
    with rig.client() as client:
        client.request("GET", f"http://{client.authority}/a//b%2F?x=1")
    assert rig.upstream.requests[0].target == b"/a//b%2F?x=1"


def test_an_absolute_target_keeps_an_empty_query(rig: Rig) -> None:
    with rig.client() as client:
        client.request("GET", f"http://{client.authority}/a?")
    assert rig.upstream.requests[0].target == b"/a?"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_upstream(rig: Rig, method: str) -> None:
    with rig.client() as client:
        assert client.request(method, "/tool").status == 200
    assert rig.upstream.requests[0].line == f"{method} /tool HTTP/1.1".encode()


@pytest.mark.parametrize("pieces", [1, 3])
def test_harmless_fields_may_stand_twice(rig: Rig, pieces: int) -> None:
    fields = [
        (b"User-Agent", b"a/1"),
        (b"X-User-Agent", b"x"),
        (b"user-agent", b"b/2"),
        (b"Content-Type", b"application/json"),
        (b"Content-Type", b"text/plain"),
        (b"User-Agent", b"a/1"),
        (b"Server", b""),
        (b"Server", b"s\xe9"),
        (b"ETag", b'"1"'),
        (b"ETag", b'"2"'),
    ]
    head = b"POST /tool HTTP/1.1\r\nHost: localhost:5\r\nContent-Length: 2\r\n"
    whole = head + b"".join(b"%b: %b\r\n" % pair for pair in fields) + b"\r\n{}"
    with rig.client() as client:
        for _ in range(3):
            for start in range(0, len(whole), len(whole) // pieces + 1):
                client.send(whole[start : start + len(whole) // pieces + 1])
            assert client.response().status == 200
    for request in rig.upstream.requests:
        assert [pair for pair in request.headers if pair in fields] == fields
        assert request.body == b"{}"


@pytest.mark.parametrize(
    "twice",
    [
        b"Host: localhost:5",
        b"Content-Length: 2",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_repeated_harmless_field_hides_no_other(rig: Rig, twice: bytes) -> None:
    head = b"POST /tool HTTP/1.1\r\nHost: localhost:5\r\nContent-Length: 2\r\n"
    with rig.client() as client:
        client.send(head + b"User-Agent: a\r\nUser-Agent: b\r\n" + twice + b"\r\n\r\n{}")
        assert client.response().status == 400
    assert not rig.upstream.requests


@pytest.mark.promise("WIRE-6")
def test_fields_keep_their_order_case_duplicates_and_bytes(rig: Rig) -> None:
    fields = [
        (b"X-First", b"1"),
        (b"x-UPPER-lower", b"  inner  blanks\tand tabs"),
        (b"Mcp-Param-City", b"=?base64?QmVybGlu?="),
        (b"X-Double", b"a"),
        (b"Accept", b"*/*"),
        (b"X-Latin", b"caf\xe9 \xff"),
        (b"X-Utf8", b"caf\xc3\xa9"),
        (b"X-Double", b"b"),
        (b"Cookie", b"a=1; b=2"),
        (b"Cookie", b"c=3"),
        (b"X-Empty", b""),
        (b"User-Agent", b"t/1"),
        (b"Authorization", b"Bearer abc"),
        (b"Origin", b"http://localhost:1"),
    ]
    raw = b"".join(b"%b: %b\r\n" % pair for pair in fields)
    with rig.client() as client:
        client.send(b"GET /tool HTTP/1.1\r\nHost: localhost:5\r\n" + raw + b"\r\n")
        client.response()
    sent = rig.upstream.requests[0].headers
    wanted = [(name, value.strip(b" \t")) for name, value in fields]
    assert sent == [
        (b"Host", f"127.0.0.1:{rig.upstream.port}".encode()),
        *wanted,
        (b"Via", b"1.1 turnlog"),
        (b"X-Forwarded-Host", b"localhost:5"),
    ]


@pytest.mark.promise("WIRE-7")
def test_no_field_is_added_to_a_bare_request(rig: Rig) -> None:
    with rig.client() as client:
        client.request("GET", "/tool")
    names = [name for name, _ in rig.upstream.requests[0].headers]
    assert names == [b"Host", b"Via", b"X-Forwarded-Host"]


def test_a_via_of_the_agent_stays_before_ours(rig: Rig) -> None:
    with rig.client() as client:
        client.request("GET", "/tool", headers=(("Via", "1.0 other"),))
    assert rig.upstream.requests[0].all(b"via") == [b"1.0 other", b"1.1 turnlog"]


@pytest.mark.promise("WIRE-8")
def test_hop_by_hop_fields_and_those_that_connection_names_are_removed(rig: Rig) -> None:
    with rig.client() as client:
        client.request(
            "GET",
            "/tool",
            headers=(
                ("Connection", "keep-alive, X-Hop"),
                ("Keep-Alive", "timeout=5"),
                ("X-Hop", "1"),
                ("TE", "trailers"),
                ("Proxy-Authorization", "Basic abc"),
                ("Upgrade", "h2c"),
                ("Turnlog-Session", "x"),
                ("X-Stay", "1"),
            ),
        )
    names = [name for name, _ in rig.upstream.requests[0].headers]
    assert names == [b"Host", b"X-Stay", b"Via", b"X-Forwarded-Host"]


@pytest.mark.parametrize(
    "body",
    [
        call("add", {"a": 1}),
        b' {"jsonrpc":"2.0" ,"id":1.0,"method":"tools/call","params":{"name":"x"}}\r\n',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\\ud800"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":NaN}}}',
        b'{"a":1,"a":2}',
        b"\xff\xfe\x00",
        b"[",
        b"x",
    ],
)
def test_a_body_goes_upstream_byte_by_byte(rig: Rig, body: bytes) -> None:
    with rig.client() as client:
        client.request("POST", rig.path, body, headers=MCP_HEADERS)
    request = rig.upstream.requests[0]
    assert request.body == body
    assert request.all(b"content-length") == [str(len(body)).encode()]
    assert not request.all(b"transfer-encoding")


def test_an_empty_post_says_so(rig: Rig) -> None:
    with rig.client() as client:
        client.request("POST", "/tool", headers=(("Content-Length", "0"),))
    request = rig.upstream.requests[0]
    assert (request.body, request.all(b"content-length")) == (b"", [b"0"])


def test_a_get_without_body_has_no_content_length(rig: Rig) -> None:
    with rig.client() as client:
        client.request("GET", "/tool")
    request = rig.upstream.requests[0]
    assert not request.all(b"content-length")
    assert not request.all(b"transfer-encoding")


def test_a_get_with_a_body_keeps_it(rig: Rig) -> None:
    with rig.client() as client:
        client.request("GET", "/tool", b"query in a body")
    assert rig.upstream.requests[0].body == b"query in a body"


def test_a_chunked_request_arrives_whole_and_well_framed(rig: Rig) -> None:
    body = call("add", {"text": "x" * 1000})
    with rig.client() as client:
        client.ask("POST", rig.path, headers=(*MCP_HEADERS, ("Transfer-Encoding", "chunked")))
        for place in range(0, len(body), 100):
            piece = body[place : place + 100]
            client.send(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
        client.send(b"0\r\nX-Trailer: 1\r\n\r\n")
        assert client.response().status == 200
    assert rig.upstream.requests[0].body == body
    row = rig.row()
    assert (row.tool, row.bytes_in) == ("add", len(body))


@pytest.mark.promise("WIRE-17")
def test_a_client_that_expects_100_gets_it_before_it_sends_the_body(rig: Rig) -> None:
    body = call("add")
    with rig.client() as client:
        fields = (*MCP_HEADERS, ("Expect", "100-continue"), ("Content-Length", str(len(body))))
        client.ask("POST", rig.path, headers=fields)
        assert client.head().status == 100
        client.send(body)
        assert client.response().status == 200
    request = rig.upstream.requests[0]
    assert (request.body, request.all(b"expect")) == (body, [])


def test_a_large_body_behind_expect_100_streams_through(rig: Rig) -> None:
    body = b"x" * (3 << 20)
    with rig.client() as client:
        fields = (("Expect", "100-continue"), ("Content-Length", str(len(body))))
        client.ask("PUT", f"/s/{rig.session}/tool", headers=fields)
        assert client.head().status == 100
        client.send(body)
        assert client.response().status == 200
    assert rig.upstream.requests[0].body == body


def test_a_connection_carries_request_after_request(rig: Rig) -> None:
    with rig.client() as client:
        for number in range(20):
            answer_ = client.request(
                "POST", rig.path, call("add", request_id=number), headers=MCP_HEADERS
            )
            assert answer_.json()["id"] == number
    assert [request.json()["id"] for request in rig.upstream.requests] == list(range(20))


@pytest.mark.promise("WIRE-19")
def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    bodies = [call("add", request_id=number) for number in range(10)]
    with rig.client() as client:
        for body in bodies:
            client.ask("POST", rig.path, body, headers=MCP_HEADERS)
        answers = [client.response("POST").json()["id"] for _ in bodies]
    assert answers == list(range(10))
    assert [request.body for request in rig.upstream.requests] == bodies


def test_requests_after_one_that_offers_another_protocol_are_answered_in_order(rig: Rig) -> None:
    def path(peer: Peer) -> None:
        peer.send(ok(peer.read().target))

    rig.upstream.script = path
    host = b"Host: localhost\r\n"
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    body = b"Content-Length: 2\r\n"
    with rig.client() as client:
        client.send(
            b"GET /a HTTP/1.1\r\n%b%b\r\n" % (host, offer)
            + b"POST /b HTTP/1.1\r\n%b%b%b\r\n{}" % (host, offer, body)
            + b"GET /c HTTP/1.1\r\n%b\r\n" % host
        )
        assert [client.response().body for _ in range(3)] == [b"/a", b"/b", b"/c"]
        assert client.request("GET", "/d").body == b"/d"


def test_an_agent_of_http_1_0_gets_no_100_continue(rig: Rig) -> None:
    with rig.client() as client:
        client.send(
            b"POST /x HTTP/1.0\r\nHost: localhost\r\n"
            b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"
        )
        assert client.head().status == 200


def test_line_ends_may_stand_before_any_request(rig: Rig) -> None:
    with rig.client() as client:
        client.send(b"\r\n\r\nFOO /a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.response().status == 200
    assert rig.upstream.requests[0].line == b"FOO /a HTTP/1.1"


def test_connection_close_is_obeyed_and_not_passed_on(rig: Rig) -> None:
    with rig.client() as client:
        given = client.request("GET", "/tool", headers=(("Connection", "close"),))
        assert given.head.one("connection") == "close"
        assert client.rest() == b""
    assert not rig.upstream.requests[0].all(b"connection")


def test_an_agent_of_http_1_0_gets_an_answer_it_understands(rig: Rig) -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
    )
    rig.upstream.script = answer(chunked)
    with rig.client() as client:
        client.send(b"GET /tool HTTP/1.0\r\nHost: localhost\r\n\r\n")
        head = client.head()
        assert not head.all("transfer-encoding")
        assert client.rest() == b"abcdef"
    assert rig.upstream.requests[0].version == b"HTTP/1.1"


def test_large_fields_and_many_fields_pass(rig: Rig) -> None:
    many = tuple((f"X-Many-{number}", "v" * 100) for number in range(100))
    fields = (("X-Large", "L" * 100_000), *many)
    with rig.client() as client:
        assert client.request("GET", "/tool", headers=fields).status == 200
    sent = rig.upstream.requests[0]
    assert sent.all(b"x-large") == [b"L" * 100_000]
    assert [name for name, _ in sent.headers if name.startswith(b"X-Many")] == [
        name.encode() for name, _ in many
    ]


def test_an_early_answer_reaches_the_agent_while_it_still_sends(rig: Rig) -> None:
    def refuse(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        peer.wait_for_hang_up()

    rig.upstream.script = refuse
    with rig.client() as client:
        client.ask("PUT", f"/s/{rig.session}/tool", headers=(("Content-Length", str(64 << 20)),))
        client.send(b"x" * (2 << 20))
        given = client.response("PUT")
    assert (given.status, given.body) == (413, b"big")
    assert rig.row().upstream.http_status == 413


@pytest.mark.promise("WIRE-13")
def test_a_cut_request_is_not_passed_off_as_whole(rig: Rig) -> None:
    with rig.client() as client:
        client.ask("POST", rig.path, headers=(*MCP_HEADERS, ("Content-Length", "100")))
        client.send(b'{"jsonrpc"')
    with rig.client() as client:
        client.request("POST", rig.path, message("ping"), headers=MCP_HEADERS)
    assert [request.json()["method"] for request in rig.upstream.requests] == ["ping"]


@pytest.mark.promise("WIRE-13")
def test_a_cut_large_request_reaches_the_upstream_as_cut(rig: Rig) -> None:
    cut: list[bool] = []

    def look(peer: Peer) -> None:
        cut.append(peer.wait_for_hang_up())

    rig.upstream.script = look
    with rig.client() as client:
        client.ask("PUT", f"/s/{rig.session}/tool", headers=(("Content-Length", str(8 << 20)),))
        client.send(b"x" * (2 << 20))
        rig.upstream.wait_for_requests(1)
    row = rig.row()
    assert row.kind in {"cancelled_by_caller", "connection_lost"}
    assert row.status == "unknown"
    wait_until(lambda: cut == [True], "the upstream notices")


@pytest.mark.promise("WIRE-12")
@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        TWO_LENGTHS,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX y: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: 1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_a_smuggled_or_malformed_request_never_reaches_the_upstream(rig: Rig, raw: bytes) -> None:
    with rig.client() as client:
        client.send(raw)
        try:
            assert client.head().status >= 400
        except ClosedEarlyError as error:
            assert error.received == b""  # noqa: PT017 - closing without a word is as good
    with rig.client() as client:
        client.request("GET", "/after")
    assert [request.target for request in rig.upstream.requests] == [b"/after"]


@pytest.mark.promise("REDIR-2")
def test_redirects_are_the_agents_to_follow(rig: Rig) -> None:
    rig.upstream.script = answer(
        b"HTTP/1.1 307 Go\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    )
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert (given.status, given.head.one("location")) == (307, f"/s/{rig.session}/elsewhere")
    assert len(rig.upstream.requests) == 1


@pytest.mark.promise("SEC-10")
def test_cookies_of_an_answer_are_not_sent_with_the_next_request(rig: Rig) -> None:
    rig.upstream.script = answer(
        ok(b"{}", headers="Set-Cookie: a=1\r\nSet-Cookie: b=2; Path=/\r\n")
    )
    with rig.client() as client:
        assert client.request("GET", "/one").head.all("set-cookie") == ["a=1", "b=2; Path=/"]
        client.request("GET", "/two")
    assert not rig.upstream.requests[1].all(b"cookie")
