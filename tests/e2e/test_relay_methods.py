"""Rare request lines are forwarded unchanged, and malformed ones are refused clearly."""

import pytest

from kit.beside import Rig
from kit.clients import MCP_HEADERS, Client, Response, call
from kit.upstreams import answer, ok

HOST = b"Host: localhost\r\n"


def asked(client: Client, raw: bytes) -> Response:
    client.send(raw)
    return client.response()


@pytest.mark.promise("WIRE-11")
@pytest.mark.parametrize(
    "method", [b"FOO", b"BREW", b"get", b"Post", b"DESCRIBE", b"GETX", b"M-!#$"]
)
def test_any_token_is_a_method_and_keeps_its_case(rig: Rig, method: bytes) -> None:
    with rig.client() as client:
        path = f"/s/{rig.session}/pot".encode()
        given = asked(
            client, b"%b %b HTTP/1.1\r\n%bContent-Length: 3\r\n\r\nnow" % (method, path, HOST)
        )
        assert (given.status, given.body) == (200, b"{}")
        assert asked(client, b"GET /after HTTP/1.1\r\n%b\r\n" % HOST).status == 200
    first, second = rig.upstream.requests
    assert (first.method, first.target, first.body) == (method, b"/pot", b"now")
    assert (second.method, second.target) == (b"GET", b"/after")
    row = rig.row()
    assert (row.tool, row.status) == (f"{method.decode()} /pot", "ok")


def test_a_call_by_a_method_in_lower_case_is_recorded(rig: Rig) -> None:
    with rig.client() as client:
        assert client.request("post", rig.path, call("add"), headers=MCP_HEADERS).status == 200
    assert rig.upstream.requests[0].method == b"post"
    row = rig.row()
    assert (row.tool, row.status) == ("add", "ok")


@pytest.mark.promise("WIRE-11")
@pytest.mark.parametrize(
    "target", [b"/caf\xc3\xa9?x=\xff", b"/\xff\xfe", b"/a?b=\xe2\x82\xac", b"http://localhost/\xe9"]
)
def test_a_target_goes_upstream_as_the_bytes_that_it_is(rig: Rig, target: bytes) -> None:
    with rig.client() as client:
        line = b"GET %b HTTP/1.1\r\n%bTurnlog-Session: %b\r\n\r\n"
        assert asked(client, line % (target, HOST, rig.session.encode())).status == 200
    assert rig.upstream.requests[0].target == target.removeprefix(b"http://localhost")
    assert rig.row().status == "ok"


def test_a_session_with_bytes_that_are_no_text_is_a_session(rig: Rig) -> None:
    rig.upstream.script = answer(ok(b"{}", headers="Set-Cookie: a=1\r\n"))
    with rig.client() as client:
        given = asked(
            client, b"GET /s/%b\xff/tool HTTP/1.1\r\n%b\r\n" % (rig.session.encode(), HOST)
        )
    assert given.head.one("turnlog-session")
    assert rig.upstream.requests[0].target == b"/tool"


def test_rare_methods_work_on_a_connection_that_has_carried_others(rig: Rig) -> None:
    chunks = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    sent = [
        b"GET /1 HTTP/1.1\r\n%b\r\n" % HOST,
        b"POST /2 HTTP/1.1\r\n%bContent-Length: 5\r\n\r\nhello" % HOST,
        b"POST /3 HTTP/1.1\r\n%b%b" % (HOST, chunks),
        b"BREW /4 HTTP/1.1\r\n%b%b" % (HOST, chunks),
        b"POST /5 HTTP/1.1\r\n%bContent-Length: 5\r\n\r\nhello" % HOST,
    ]
    with rig.client() as client:
        for raw in sent:
            assert asked(client, raw).status == 200
    assert [(each.method, each.body) for each in rig.upstream.requests] == [
        (b"GET", b""),
        (b"POST", b"hello"),
        (b"POST", b"abc"),
        (b"BREW", b"abc"),
        (b"POST", b"hello"),
    ]


def test_a_request_to_the_server_itself_is_forwarded(rig: Rig) -> None:
    with rig.client() as client:
        assert asked(client, b"OPTIONS * HTTP/1.1\r\n%b\r\n" % HOST).status == 200
    assert rig.upstream.requests[0].line == b"OPTIONS * HTTP/1.1"


NONE = {
    "no method": b"/ HTTP/1.1\r\n%b\r\n" % HOST,
    "a method that is no token": b"B@D / HTTP/1.1\r\n%b\r\n" % HOST,
    "a target for OPTIONS only": b"GET * HTTP/1.1\r\n%b\r\n" % HOST,
    "a target that is neither path nor URL": b"GET tool HTTP/1.1\r\n%b\r\n" % HOST,
    "a blank in the target": b"GET /a b HTTP/1.1\r\n%b\r\n" % HOST,
    "a control in the target": b"GET /\xe9\x01 HTTP/1.1\r\n%b\r\n" % HOST,
    "another protocol": b"FOO / HTTP/3.7\r\n%b\r\n" % HOST,
    "no version": b"FOO /\r\n%b\r\n" % HOST,
    "no Host": b"FOO / HTTP/1.1\r\n\r\n",
    "two Hosts": b"FOO / HTTP/1.1\r\n%b%b\r\n" % (HOST, HOST),
    "garbage": b"\x00\x01\x02\x03\x04",
    "a greeting": b"SSH-2.0-OpenSSH_9.6\r\n",
    "the start of TLS": b"\x16\x03\x01\x02\x00\x01\x00",
    "a fold": b"FOO / HTTP/1.1\r\n%b folded: 1\r\n\r\n" % HOST,
    "two lengths": b"FOO / HTTP/1.1\r\n%bContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx" % HOST,
    "a length beside chunks": (
        b"FOO / HTTP/1.1\r\n%bContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        % HOST
    ),
    "chunks of HTTP/1.0": (
        b"FOO / HTTP/1.0\r\n%bTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % HOST
    ),
    "a coding that is no chunks": b"FOO / HTTP/1.1\r\n%bTransfer-Encoding: gzip\r\n\r\n" % HOST,
    "a lone line feed": b"FOO / HTTP/1.1\n%b\r\n" % HOST,
    "a tunnel in small letters": b"connect localhost:80 HTTP/1.1\r\n%b\r\n" % HOST,
}


@pytest.mark.parametrize("name", NONE)
def test_bytes_that_are_not_a_request_get_a_clear_answer_from_turnlog(rig: Rig, name: str) -> None:
    before = len(rig.proxy.events("request.refused"))
    with rig.client() as client:
        client.send(NONE[name])
        head = client.head()
        body = client.body(head)
        assert client.rest() == b""
    assert head.status == 400
    assert head.one("content-type") == "application/problem+json"
    assert head.one("connection") == "close"
    assert head.one("server") is None
    assert b"aiohttp" not in body
    assert b'"detail":"' in body
    assert rig.upstream.requests == []
    assert rig.proxy.told("request.refused", before + 1)[-1]["turnlog.reason"] == "framing"


def test_tls_on_a_plain_port_gets_a_clear_answer(rig: Rig) -> None:
    with rig.client() as client:
        client.send(NONE["the start of TLS"])
        assert "TLS" in client.response().json()["detail"]
