"""Corner cases of the relay in which a call was once lost, misrouted, or left unrecorded."""

import gzip
import json
import threading
from pathlib import Path

from kit.beside import Rig, proxy_beside
from kit.clients import BOUND, MCP_HEADERS, Client, call, message, wait_until
from kit.proxy import rows as turnlog_rows
from kit.upstreams import Peer, RawUpstream, answer, chunked, ok, text_result


def test_an_agent_that_leaves_a_large_answer_unread_affects_no_later_call(rig: Rig) -> None:
    rig.upstream.script = answer(ok(b"x" * 3_000_000, media="text/plain"))
    for _ in range(3):
        with rig.client(receive_buffer=4096) as client:
            client.ask("GET", f"/s/{rig.session}/large")
            assert client.head().status == 200
    rig.ended_rows(3)
    rig.upstream.script = answer(ok(b"small", media="text/plain"))
    for _ in range(3):
        with rig.client() as client:
            assert client.request("GET", "/small").body == b"small"


def test_turnlogs_own_paths_are_its_own_in_every_form(rig: Rig) -> None:
    with rig.client() as client:
        for target in ("/turnlog/health", "http://127.0.0.1/turnlog/health"):
            assert client.request("GET", target).json() == {"status": "ok"}
        assert client.request("GET", "/s/mine/turnlog/health").status == 404
    assert rig.upstream.requests == []


def test_a_coding_that_cannot_be_decoded_is_refused_and_not_dropped(rig: Rig) -> None:
    with rig.client() as client:
        client.send(
            b"POST /tool HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\n\r\n"
        )
        assert client.head().status == 501
    assert rig.upstream.requests == []


def test_the_received_part_of_a_cut_json_answer_is_forwarded(rig: Rig) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(head + chunked(b'{"cut":'))
        peer.close()

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("POST", f"/s/{rig.session}/tool", b"{}")
        assert client.head().status == 200
        assert client.rest() == chunked(b'{"cut":')
    assert rig.row().kind == "connection_lost"


def test_a_call_sent_as_a_notification_is_recorded(rig: Rig) -> None:
    rig.upstream.script = answer(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
    body = message("tools/call", {"name": "fire", "arguments": {}}, request_id=None)
    with rig.client() as client:
        given = client.request("POST", rig.path, body, headers=MCP_HEADERS)
    assert (given.status, given.body) == (202, b"")
    row = rig.row()
    assert (row.tool, row.status, row.upstream.http_status) == ("fire", "ok", 202)


def test_two_calls_with_one_id_in_a_batch_are_two_calls_that_both_end(rig: Rig) -> None:
    calls = [json.loads(call(tool, request_id=7)) for tool in ("one", "two")]
    body = json.dumps([text_result(7, "first"), text_result(7, "second")]).encode()
    rig.upstream.script = answer(ok(body))
    with rig.client() as client:
        client.request("POST", rig.path, json.dumps(calls).encode(), headers=MCP_HEADERS)
    assert {row.tool: row.output_summary for row in rig.ended_rows(2)} == {
        "one": "first",
        "two": "second",
    }


def test_an_idle_connection_is_closed_after_a_while(rig: Rig) -> None:
    hung_up: list[bool] = []

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(ok(b"{}"))
        hung_up.append(peer.wait_for_hang_up())

    rig.upstream.script = script
    with Client(rig.proxy.url) as client:
        client.request("GET", "/tool")
        wait_until(lambda: hung_up, "the idle connection is closed")
    assert hung_up == [True]


def test_a_json_stream_that_is_only_read_comes_as_it_is_sent(rig: Rig) -> None:
    go_on = threading.Event()
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(head + chunked(b'{"n":1}'))
        go_on.wait(BOUND)
        peer.send(chunked(b'{"n":2}') + b"0\r\n\r\n")

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("GET", f"/s/{rig.session}/watch")
        assert client.head().status == 200
        assert client.chunk() == b'{"n":1}'
        go_on.set()
        assert client.chunk() == b'{"n":2}'


def test_an_answer_that_inflates_without_end_is_relayed_and_read_in_part(rig: Rig) -> None:
    bomb = gzip.compress(bytes(200_000_000))
    rig.upstream.script = answer(ok(bomb, headers="Content-Encoding: gzip\r\n"))
    before = memory(rig)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("bomb"), headers=MCP_HEADERS)
    assert given.body == bomb
    assert rig.row().status == "error"
    assert memory(rig) - before < 100_000_000


def memory(rig: Rig) -> int:
    """Return the most memory that the proxy has held, in bytes."""
    status = Path(f"/proc/{rig.proxy.process.pid}/status").read_text("ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_the_stateless_revisions_have_no_transport_sessions(rig: Rig) -> None:
    stateless = (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28"))
    client_info = {"io.modelcontextprotocol/clientInfo": {"name": rig.session, "version": "1"}}
    body = call("add", _meta=client_info)
    with rig.client() as client:
        for number in ("1", "2"):
            headers = (*stateless, ("Mcp-Session-Id", number))
            client.request("POST", "/mcp", body, headers=headers)
    rows = [row for row in turnlog_rows(rig.proxy.data) if row.tool == "add"]
    assert len(rows) == 2
    assert len({row.session for row in rows}) == 1


def test_an_early_refusal_reaches_an_agent_that_is_still_sending(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read_some()
        peer.send(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig")
        peer.close()

    rig.upstream.script = script
    for _ in range(8):
        with rig.client() as client:
            client.send(b"POST /tool HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900000\r\n\r\n")
            client.send(b"x" * 900_000)
            assert client.head().status == 413


def test_cookies_come_back_whatever_path_the_agent_knows_the_server_by(tmp_path: Path) -> None:
    cookie = answer(ok(b"{}", headers="Set-Cookie: a=1; Path=/\r\n"))
    with RawUpstream(cookie) as one, RawUpstream(cookie) as two:
        settings = {"upstreams": {"one": {"url": one.url}, "two": {"url": two.url}}}
        with proxy_beside(tmp_path, settings=settings) as proxy, Client(proxy.urls[0]) as client:
            for path in ("/one", "/s/mine/one"):
                given = client.request("GET", path).head.one("set-cookie")
                assert given is not None
                assert given.endswith(f"Path={path}")
