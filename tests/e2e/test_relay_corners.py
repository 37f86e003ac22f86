"""Corners of the relay in which a call was once lost, sent astray, or left unrecorded."""

import json
from collections.abc import Iterator

import pytest

from kit.beside import Rig, proxy_beside
from kit.clients import MCP_HEADERS, Client, call, wait_until
from kit.upstreams import Peer, RawUpstream, answer, chunked, ok, text_result


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path_factory.mktemp("proxy"), upstream.url) as proxy,
    ):
        yield Rig(upstream, proxy)


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.fresh()
    return shared


def test_an_agent_that_leaves_a_large_answer_unread_harms_no_later_call(rig: Rig) -> None:
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


def test_a_coding_that_cannot_be_undone_is_refused_and_not_dropped(rig: Rig) -> None:
    with rig.client() as client:
        client.send(
            b"POST /tool HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\n\r\n"
        )
        assert client.head().status == 501
    assert rig.upstream.requests == []


def test_what_came_of_a_json_answer_that_is_cut_is_handed_on(rig: Rig) -> None:
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


def test_a_call_that_wants_no_answer_is_recorded_as_well(rig: Rig) -> None:
    rig.upstream.script = answer(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
    body = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "fire", "arguments": {}}}
    with rig.client() as client:
        given = client.request("POST", rig.path, json.dumps(body).encode(), headers=MCP_HEADERS)
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


def test_an_idle_connection_is_closed_when_nobody_comes_back(rig: Rig) -> None:
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
