"""A request leaves turnlog once, whatever happens to its connection."""

import pytest

from kit.beside import Rig
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.faults import CloseAfterRequest, CloseInsteadOfReading, CutHead, ResetAfterRequest
from kit.upstreams import Peer, Script, echo

FAULTS: dict[str, Script] = {
    "reset": ResetAfterRequest(),
    "closed": CloseAfterRequest(),
    "reset at the head": CloseInsteadOfReading(),
    "cut head": CutHead(),
}
METHODS = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST", "PATCH")


def warm(rig: Rig, client: Client) -> int:
    """Make a connection that is reused next; return how many requests the upstream saw."""
    client.request("GET", "/warm")
    return len(rig.upstream.requests)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", METHODS)
def test_a_request_on_a_reused_connection_is_sent_once(rig: Rig, method: str, fault: str) -> None:
    body = b"x" if method in {"PUT", "POST", "PATCH"} else b""
    with rig.client() as client:
        before, connections = warm(rig, client), rig.upstream.connections
        rig.upstream.script = FAULTS[fault]
        assert client.request(method, f"/s/{rig.session}/tool", body).status == 502
        rig.upstream.script = echo
        assert client.request("GET", "/after").status == 200
    assert [request.target for request in rig.upstream.requests[before:]] == [b"/tool", b"/after"]
    assert rig.upstream.connections == connections + 1
    row = rig.row()
    assert (row.error, row.kind, row.executed) == ("connection", "connection_lost", "maybe")


@pytest.mark.promise("RULE-2")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_tool_call_is_sent_once_and_answered_with_what_is_known(rig: Rig, fault: str) -> None:
    with rig.client() as client:
        before = warm(rig, client)
        rig.upstream.script = FAULTS[fault]
        given = client.request("POST", rig.path, call("pay"), headers=MCP_HEADERS)
    assert len(rig.upstream.requests) == before + 1
    outcome = given.json()["result"]["_meta"]["turnlog/outcome"]
    assert (outcome["kind"], outcome["executed"], outcome["retry"]) == (
        "connection_lost",
        "maybe",
        "unsafe",
    )


def test_a_large_body_is_not_sent_again(rig: Rig) -> None:
    with rig.client() as client:
        before = warm(rig, client)
        rig.upstream.script = CloseInsteadOfReading()
        given = client.request("PUT", f"/s/{rig.session}/tool", b"x" * (900 << 10))
    assert given.status == 502
    assert len(rig.upstream.requests) == before + 1


def test_a_connection_that_the_upstream_closed_is_not_used_again(rig: Rig) -> None:
    closed: list[int] = []

    def close_later(peer: Peer) -> None:
        echo(peer)
        peer.close()
        closed.append(1)

    rig.upstream.script = close_later
    with rig.client() as client:
        for number in range(1, 6):
            body = message("ping", request_id=number)
            assert client.request("POST", rig.path, body, headers=MCP_HEADERS).status == 200
            # Only now: a request that meets the close on its way is lost, and not sent again.
            wait_until(lambda wanted=number: len(closed) == wanted, "the connection is closed")
    assert len(rig.upstream.requests) == 5


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_refusal_is_relayed_and_not_retried(rig: Rig, status: int) -> None:
    def refuse(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 %d No\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\nno" % status)

    rig.upstream.script = refuse
    with rig.client() as client:
        given = client.request("POST", rig.path, call("pay"), headers=MCP_HEADERS)
    assert (given.status, given.body, given.head.one("retry-after")) == (status, b"no", "0")
    assert len(rig.upstream.requests) == 1
    assert rig.row().upstream.http_status == status
