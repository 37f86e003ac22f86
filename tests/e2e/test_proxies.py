"""Upstreams that are called through an HTTP proxy, plain and by CONNECT."""

import queue
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kit.beside import proxy_beside, session_rows
from kit.clients import MCP_HEADERS, Client, call
from kit.proxy import Proxy, written
from kit.tls import CERTIFICATE, Secured
from kit.upstreams import Peer, RawUpstream, ok
from turnlog.sessions.rows import Row

PLAIN, SECURE = "http://tools.corp.example:9000/mcp", "https://tools.corp.example/mcp"
SECRET = "planted-proxy-password-2718281828"
TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"


def ask(proxy: Proxy) -> tuple[Any, Row]:
    """Make a call; return its answer and its row."""
    with Client(proxy.urls[0]) as client:
        given = client.request("POST", "/s/one/far", call("add"), headers=MCP_HEADERS).json()
    (row,) = session_rows(proxy.data, "one")
    return given, row


def configured(**far: object) -> dict[str, object]:
    return {"upstreams": {"far": far}}


@pytest.mark.promise("WIRE-28")
def test_a_plain_upstream_is_requested_by_its_whole_url(tmp_path: Path) -> None:
    with RawUpstream() as between:
        environ = {"HTTP_PROXY": f"http://me:{SECRET}@127.0.0.1:{between.port}"}
        with proxy_beside(tmp_path, f"far={PLAIN}", environ=environ) as proxy:
            _, row = ask(proxy)
            with Client(proxy.urls[0]) as client:
                client.request("GET", "/far/x?y=1")
            shown = proxy.events("proxy.ready")[0]["turnlog.proxies"]
        first, second = between.requests
    assert first.line == b"POST http://tools.corp.example:9000/mcp HTTP/1.1"
    assert first.all(b"host") == [b"tools.corp.example:9000"]
    assert len(first.all(b"proxy-authorization")) == 1
    assert second.target == b"http://tools.corp.example:9000/x?y=1"
    assert row.executed == "yes"
    assert shown == [f"far through http://127.0.0.1:{between.port} (HTTP_PROXY)"]
    assert not [file for file, data in written(tmp_path).items() if SECRET.encode() in data]


@pytest.mark.promise("WIRE-28")
def test_proxy_fields_of_an_agent_are_not_sent_to_the_upstream(tmp_path: Path) -> None:
    with RawUpstream() as upstream, proxy_beside(tmp_path, f"far={upstream.url}") as proxy:
        with Client(proxy.urls[0]) as client:
            client.request("GET", "/far/x", headers=(("Proxy-Authorization", "Basic x"),))
        assert proxy.events("proxy.ready")[0].get("turnlog.proxies", []) == []
    assert upstream.requests[0].target == b"/x"
    assert upstream.requests[0].all(b"proxy-authorization") == []


def secured(got: "queue.SimpleQueue[bytes]") -> Any:
    """Return a script that opens a tunnel, at whose end is the upstream itself."""

    def script(peer: Peer) -> None:
        peer.read()
        got.put(peer.request.head)
        peer.send(TUNNEL)
        with suppress(ssl.SSLError):
            end = Secured(peer)
            got.put(end.request())
            body = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"far"}]}}'
            end.send(ok(body))
            peer.wait_for_hang_up()

    return script


@pytest.mark.promise("WIRE-28")
def test_a_secure_upstream_is_reached_by_a_tunnel(tmp_path: Path) -> None:
    got: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    (tmp_path / "corp.pem").write_bytes(CERTIFICATE.read_bytes())
    with RawUpstream() as between:
        between.script = secured(got)
        far = configured(
            url=SECURE, proxy=f"http://me:{SECRET}@127.0.0.1:{between.port}", ca="corp.pem"
        )
        with proxy_beside(tmp_path, settings=far) as proxy:
            given, row = ask(proxy)
            shown = proxy.events("proxy.ready")[0]["turnlog.proxies"]
    assert given["result"]["content"][0]["text"] == "far"
    assert (row.status, row.executed) == ("ok", "yes")
    opened, sent = got.get(), got.get()
    assert opened.startswith(b"CONNECT tools.corp.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " in opened
    assert sent.startswith(b"POST /mcp HTTP/1.1\r\nHost: tools.corp.example\r\n")
    assert b"roxy-Authorization" not in sent
    assert shown == [f"far through http://127.0.0.1:{between.port} (proxy)"]
    logs = {file: data for file, data in written(tmp_path).items() if SECRET.encode() in data}
    assert not logs


def test_the_systems_certificates_can_be_named_by_the_environment(tmp_path: Path) -> None:
    got: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with RawUpstream() as between:
        between.script = secured(got)
        environ = {
            "https_proxy": f"http://127.0.0.1:{between.port}",
            "SSL_CERT_FILE": str(CERTIFICATE),
        }
        with proxy_beside(tmp_path, f"far={SECURE}", environ=environ) as proxy:
            given, _ = ask(proxy)
    assert given["result"]["content"][0]["text"] == "far"


@pytest.mark.promise("WIRE-29")
def test_an_upstream_with_an_unverified_certificate_is_not_called(tmp_path: Path) -> None:
    got: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with RawUpstream() as between:
        between.script = secured(got)
        environ = {"HTTPS_PROXY": f"http://127.0.0.1:{between.port}"}
        with proxy_beside(tmp_path, f"far={SECURE}", environ=environ) as proxy:
            _, row = ask(proxy)
    assert (row.kind, row.executed, row.retry) == ("connect_failed", "no", "safe")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            "407 Proxy Authentication Required",
        ),
        (b"HTTP/1.0 503 \r\n\r\n", "503"),
        (b"SSH-2.0-x\r\n\r\n", "nothing that is HTTP"),
        (b"", "nothing that is HTTP"),
    ],
)
def test_a_proxy_that_refuses_is_named_and_nothing_ran(
    tmp_path: Path, answer: bytes, said: str
) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(answer)
        peer.close()

    with RawUpstream() as between:
        between.script = script
        url = f"http://127.0.0.1:{between.port}"
        with proxy_beside(tmp_path, settings=configured(url=SECURE, proxy=url)) as proxy:
            given, row = ask(proxy)
    assert given["result"]["isError"] is True
    assert (row.kind, row.executed, row.retry) == ("connect_failed", "no", "safe")
    assert row.output_summary == f"the proxy {url} (proxy) answered CONNECT with {said}"


@pytest.mark.parametrize("url", [PLAIN, SECURE])
def test_a_proxy_that_is_down_is_named(tmp_path: Path, url: str) -> None:
    with RawUpstream() as gone:
        pass
    down = f"http://127.0.0.1:{gone.port}"
    with proxy_beside(tmp_path, settings=configured(url=url, proxy=down)) as proxy:
        _, row = ask(proxy)
    assert (row.kind, row.executed) == ("connect_failed", "no")
    assert row.output_summary.startswith(f"through the proxy {down} (proxy): ")


def test_a_rules_time_limit_holds_for_a_proxy_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        "rules:\n  - {name: soon, match: {tool: add}, timeout: {connect: 200ms}}\n"
    )

    def script(peer: Peer) -> None:
        peer.read()
        peer.wait_for_hang_up()

    with RawUpstream() as between:
        between.script = script
        far = configured(url=SECURE, proxy=f"http://127.0.0.1:{between.port}")
        with proxy_beside(tmp_path, settings=far | {"rules": ["rules.yaml"]}) as proxy:
            _, row = ask(proxy)
    assert (row.kind, row.executed) == ("connect_timeout", "no")
