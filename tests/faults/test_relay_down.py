"""A tool server that cannot be reached: each kind of request gets the answer that suits it."""

import socket
from collections.abc import Iterator

import pytest

from kit.beside import proxy_beside, session_rows
from kit.clients import MCP_HEADERS, Client, Response, call, message, wait_until
from kit.proxy import Proxy
from kit.upstreams import RawUpstream

STATELESS = (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28"))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A port where nobody listens: bound, so that no other test gets it."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("proxy")
    with proxy_beside(folder, f"http://127.0.0.1:{port}/mcp") as running:
        yield running


def post(proxy: Proxy, body: bytes, headers: tuple[tuple[str, str], ...] = MCP_HEADERS) -> Response:
    with Client(proxy.url) as client:
        return client.request("POST", "/mcp", body, headers=headers)


@pytest.mark.promise("OUT-9")
@pytest.mark.parametrize("stateless", [False, True])
def test_a_tool_call_gets_an_error_result(proxy: Proxy, stateless: bool) -> None:
    given = post(proxy, call("add", request_id="seven"), STATELESS if stateless else MCP_HEADERS)
    said = given.json()
    assert (given.status, given.head.one("content-type")) == (200, "application/json")
    assert (said["jsonrpc"], said["id"]) == ("2.0", "seven")
    assert said["result"]["isError"] is True
    assert said["result"].get("resultType") == ("complete" if stateless else None)
    (content,) = said["result"]["content"]
    assert "not sent" in content["text"]
    outcome = said["result"]["_meta"]["turnlog/outcome"]
    assert outcome == outcome | {
        "status": "error",
        "error": "connection",
        "kind": "connect_failed",
        "retry": "safe",
        "executed": "no",
        "phase": "connecting",
        "tool": "add",
    }


@pytest.mark.promise("OUT-10")
@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize(
    "method", ["initialize", "server/discover", "tools/list", "ping", "resources/read"]
)
def test_a_request_that_is_not_a_call_gets_a_status_and_no_json_rpc(
    proxy: Proxy, method: str, stateless: bool
) -> None:
    given = post(proxy, message(method, {}), STATELESS if stateless else MCP_HEADERS)
    said = given.json()
    assert (given.status, given.head.one("content-type")) == (502, "application/problem+json")
    assert "jsonrpc" not in said
    assert said["turnlog/outcome"]["kind"] == "connect_failed"
    assert "request was not sent" in said["detail"]
    assert "call" not in said["detail"]


def test_a_notification_gets_502(proxy: Proxy) -> None:
    assert post(proxy, message("notifications/initialized", request_id=None)).status == 502


def test_a_batch_without_a_call_gets_502(proxy: Proxy) -> None:
    members = (message("ping", request_id=1), message("tools/list", request_id=2))
    assert post(proxy, b"[" + b",".join(members) + b"]").status == 502


def test_a_batch_gets_an_answer_for_each_request(proxy: Proxy) -> None:
    members = (
        call("a", request_id=1),
        message("notifications/x", request_id=None),
        message("ping", request_id="two"),
    )
    said = post(proxy, b"[" + b",".join(members) + b"]").json()
    assert [each["id"] for each in said] == [1, "two"]
    assert said[0]["result"]["isError"] is True
    assert said[1]["error"]["code"] == -32603
    assert "call" not in said[1]["error"]["message"]


def test_a_batch_of_one_is_answered_with_a_batch(proxy: Proxy) -> None:
    said = post(proxy, b"[" + call("a", request_id=1) + b"]").json()
    assert [each["id"] for each in said] == [1]


@pytest.mark.promise("OUT-11")
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_plain_call_gets_a_problem(proxy: Proxy, method: str) -> None:
    with Client(proxy.url) as client:
        given = client.request(method, "/s/plain/orders/7", b"{}" if method == "POST" else b"")
    assert (given.status, given.head.one("content-type")) == (502, "application/problem+json")
    assert given.json()["status"] == 502
    assert given.json()["turnlog/outcome"]["kind"] == "connect_failed"


def test_a_listening_stream_gets_502(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        given = client.request("GET", "/mcp", headers=(("Accept", "text/event-stream"),))
    assert given.status == 502


def test_a_head_request_gets_no_body(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        assert client.request("HEAD", "/thing").status == 502
        assert client.request("HEAD", "/thing").status == 502


def test_an_id_of_any_form_comes_back_as_it_was(proxy: Proxy) -> None:
    for raw in (b"0", b"-1", b"1.50", b'"a\\u00e9\\"b"', b"12345678901234567890123", b"null"):
        body = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"x"}}' % raw
        given = post(proxy, body)
        assert b'"id":%b,' % raw in given.body.replace(b" ", b"")


def test_the_next_call_on_the_connection_works_when_the_server_is_back(
    proxy: Proxy, port: int
) -> None:
    with Client(proxy.url) as client:
        path = "/s/back/mcp"
        assert client.request("POST", path, call("a"), headers=MCP_HEADERS).json()["result"]
        with RawUpstream(port=port) as upstream:
            given = client.request("POST", path, call("b"), headers=MCP_HEADERS)
            assert b"done" in given.body
            assert len(upstream.requests) == 1
    wait_until(lambda: len(session_rows(proxy.data, "back")) == 2, "both calls are recorded")
    rows = session_rows(proxy.data, "back")
    assert [(row.status, row.executed) for row in rows] == [("error", "no"), ("ok", "yes")]
