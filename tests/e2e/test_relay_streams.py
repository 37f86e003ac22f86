"""Event streams are forwarded event by event; a slow or lost reader and a cut stream do no harm."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kit.beside import Rig, proxy_beside
from kit.clients import BOUND, MCP_HEADERS, Client, ClosedEarlyError, call, message, wait_until
from kit.faults import CutStream, Hangs
from kit.upstreams import (
    HungUpError,
    Peer,
    RawUpstream,
    chunked,
    event,
    text_result,
)

PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}
STATELESS = (
    *MCP_HEADERS,
    ("MCP-Protocol-Version", "2026-07-28"),
    ("Mcp-Method", "tools/call"),
    ("Mcp-Name", "add"),
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with (
        RawUpstream(send_buffer=64 << 10) as upstream,
        proxy_beside(tmp_path_factory.mktemp("proxy"), upstream.url) as proxy,
    ):
        yield Rig(upstream, proxy)


def messages(body: bytes) -> list[dict[str, Any]]:
    """Return the messages of an event stream."""
    lines = (line for line in body.split(b"\n") if line.startswith(b"data:"))
    return [json.loads(line.removeprefix(b"data:")) for line in lines]


def test_each_event_leaves_before_the_next_is_there(rig: Rig) -> None:
    go = threading.Semaphore(0)

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        for number in range(5):
            assert go.acquire(timeout=BOUND)
            peer.send_event({**PROGRESS, "params": {"progress": number}})
        peer.send_event(text_result(1, "end"))
        peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=MCP_HEADERS)
        assert client.head().one("content-type") == "text/event-stream"
        for number in range(5):
            go.release()
            assert client.chunk() == event({**PROGRESS, "params": {"progress": number}})
        assert client.chunk() == event(text_result(1, "end"))
        assert client.chunk() == b""
    assert (rig.row().status, rig.row().output_summary) == ("ok", "end")


@pytest.mark.promise("WIRE-21")
def test_the_head_leaves_before_any_event(rig: Rig) -> None:
    hangs = Hangs(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    rig.upstream.script = hangs
    with rig.client() as client:
        client.ask("GET", rig.path, headers=(("Accept", "text/event-stream"),))
        assert client.head().status == 200
    assert hangs.hung_up.wait(BOUND)


EVENTS = (
    b": comment\n\n"
    b"id: 1\ndata:\n\n"
    b"retry: 100\n\n"
    b"event: message\r\ndata: " + b'{"jsonrpc":"2.0","method":"notifications/x"}' + b"\r\n\r\n"
    b"data: one\rdata: two\r\r"
    b"unknown: field\ndata: \xff\xfe\n\n"
    b"data: "
    + b'{"jsonrpc":"2.0","id":1,\ndata: "result":{"content":[{"type":"text","text":"caf\xc3\xa9"}]}}'
    b"\n\n"
    b": the end\n\n"
    b"data: without an end"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_a_stream_arrives_byte_by_byte_whatever_its_pieces(rig: Rig, size: int) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        for place in range(0, len(EVENTS), size):
            peer.send(chunked(EVENTS[place : place + size]))
        peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == EVENTS
    assert (rig.row().status, rig.row().output_summary) == ("ok", "café")


@pytest.mark.parametrize("way", ["length", "until close"])
def test_a_stream_without_chunks_is_read_all_the_same(rig: Rig, way: str) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        size = f"Content-Length: {len(EVENTS)}\r\n" if way == "length" else ""
        peer.send(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{size}\r\n".encode())
        peer.send(EVENTS)
        if way != "length":
            peer.close()

    rig.upstream.script = script
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == EVENTS
    assert rig.row().status == "ok"


@pytest.mark.promise("WIRE-25")
def test_a_server_request_is_answered_while_the_call_is_open(rig: Rig) -> None:
    answered = threading.Event()

    def script(peer: Peer) -> None:
        said = peer.read().json()
        if "result" in said:
            answered.set()
            peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        peer.start_events()
        peer.send_event({"jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": {}})
        assert answered.wait(BOUND)
        peer.send_event(text_result(1, "thanks"))
        peer.end()

    rig.upstream.script = script
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, call("ask"), headers=rig.session_headers)
        client.head()
        assert b"elicitation/create" in client.event()
        reply = b'{"jsonrpc":"2.0","id":77,"result":{"action":"accept"}}'
        assert other.request("POST", rig.path, reply, headers=rig.session_headers).status == 202
        assert b"thanks" in client.event()
    row = rig.row()
    assert (row.status, row.output_summary) == ("ok", "thanks")


def test_an_answer_with_the_id_of_a_server_request_does_not_end_a_call(rig: Rig) -> None:
    answered = threading.Event()

    def script(peer: Peer) -> None:
        said = peer.read().json()
        if "result" in said:
            answered.set()
            peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        peer.start_events()
        peer.send_event({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage"})
        assert answered.wait(BOUND)
        peer.send_event(text_result(1, "real"))
        peer.end()

    rig.upstream.script = script
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, call("ask", request_id=1), headers=rig.session_headers)
        client.head()
        client.event()
        reply = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"fake"}]}}'
        other.request("POST", rig.path, reply, headers=rig.session_headers)
        client.event()
    assert rig.row().output_summary == "real"


@pytest.mark.promise("WIRE-24")
def test_a_slow_reader_slows_down_its_upstream_and_no_other_call(rig: Rig) -> None:
    piece = chunked(b"data: " + b"x" * 65_530 + b"\n\n")
    sent: list[int] = []
    stop = threading.Event()

    def flood(peer: Peer) -> None:
        if peer.read().json()["params"]["name"] != "flood":
            peer.send_json(text_result(1, "quick"))
            return
        peer.start_events()
        left = b""
        while not stop.is_set():
            left = left or piece
            count = peer.send_some(left)
            left = left[count:]
            sent.append(count)
        peer.close()

    rig.upstream.script = flood
    with rig.client(receive_buffer=8192) as slow, rig.client() as quick:
        slow.ask("POST", rig.path, call("flood"), headers=MCP_HEADERS)
        slow.head()
        wait_until(lambda: sent[-3:] == [0, 0, 0], "the upstream is held back")
        for _ in range(20):
            given = quick.request("POST", rig.path, call("quick"), headers=MCP_HEADERS)
            assert b"quick" in given.body
        assert sum(sent) < 16 << 20
        seen = len(sent)
        slow.exactly(8 << 20)
        wait_until(lambda: sum(sent[seen:]) > 1 << 20, "the upstream goes on")
        stop.set()


@pytest.mark.parametrize("headers", [MCP_HEADERS, STATELESS], ids=["handshake", "stateless"])
@pytest.mark.parametrize("begun", [False, True])
def test_an_agent_that_leaves_is_seen_by_the_upstream(
    rig: Rig, headers: tuple[tuple[str, str], ...], begun: bool
) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    hangs = Hangs(*((head, chunked(event(PROGRESS))) if begun else ()))
    rig.upstream.script = hangs
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=headers)
        assert hangs.asked.wait(BOUND)
        if begun:
            client.head()
            client.event()
    assert hangs.hung_up.wait(BOUND)
    row = rig.row()
    assert (row.status, row.kind, row.executed) == ("unknown", "cancelled_by_caller", "maybe")


def test_an_agent_that_resets_is_seen_by_the_upstream(rig: Rig) -> None:
    hangs = Hangs()
    rig.upstream.script = hangs
    client = rig.client()
    client.ask("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert hangs.asked.wait(BOUND)
    client.reset()
    assert hangs.hung_up.wait(BOUND)
    assert rig.row().kind == "cancelled_by_caller"


def test_an_agent_that_pipelines_and_leaves_ends_both_calls(rig: Rig) -> None:
    hangs = Hangs()
    rig.upstream.script = hangs
    with rig.client() as client:
        client.ask("POST", rig.path, call("first"), headers=MCP_HEADERS)
        client.ask("POST", rig.path, call("second"), headers=MCP_HEADERS)
        assert hangs.asked.wait(BOUND)
    assert hangs.hung_up.wait(BOUND)
    assert {row.kind for row in rig.ended_rows()} == {"cancelled_by_caller"}


@pytest.mark.promise("OUT-13")
@pytest.mark.parametrize("headers", [MCP_HEADERS, STATELESS])
def test_a_stream_that_breaks_off_ends_with_the_typed_answer(
    rig: Rig, headers: tuple[tuple[str, str], ...]
) -> None:
    rig.upstream.script = CutStream((event(PROGRESS),))
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add", request_id="x"), headers=headers)
    progress, said = messages(given.body)
    assert (progress, said["id"]) == (PROGRESS, "x")
    assert said["result"]["isError"] is True
    outcome = said["result"]["_meta"]["turnlog/outcome"]
    assert (outcome["kind"], outcome["executed"]) == ("connection_lost", "maybe")
    row = rig.row()
    assert (row.status, row.kind, row.call) == ("unknown", "connection_lost", outcome["call"])


def test_a_stream_whose_response_has_come_is_cut_where_the_server_cuts_it(rig: Rig) -> None:
    rig.upstream.script = CutStream((event(text_result(1, "done")),))
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=MCP_HEADERS)
        client.head()
        assert client.event() == event(text_result(1, "done"))
        with pytest.raises(ClosedEarlyError):
            client.chunk()
    assert rig.row().status == "ok"


def test_the_broken_stream_of_another_request_ends_with_an_error_that_mentions_no_call(
    rig: Rig,
) -> None:
    rig.upstream.script = CutStream((event(PROGRESS),))
    (_, said) = messages(rig.post(message("resources/read", {}, request_id=7)))
    assert (said["id"], said["error"]["code"]) == (7, -32603)
    assert said["error"]["data"]["turnlog/outcome"]["kind"] == "connection_lost"
    assert "call" not in said["error"]["message"]


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
def test_the_stream_of_a_handshake_is_cut_where_the_server_cuts_it(rig: Rig, method: str) -> None:
    rig.upstream.script = CutStream((event(PROGRESS),))
    with rig.client() as client:
        client.ask("POST", rig.path, message(method, {}), headers=MCP_HEADERS)
        client.head()
        client.event()
        with pytest.raises(ClosedEarlyError):
            client.chunk()


def test_a_batch_whose_stream_breaks_off_gets_answers_to_its_open_calls(rig: Rig) -> None:
    rig.upstream.script = CutStream((event(text_result(1, "done")),))
    members = (call("a", request_id=1), call("b", request_id=2), message("ping", request_id=3))
    said = messages(rig.post(b"[" + b",".join(members) + b"]"))
    assert [each["id"] for each in said] == [1, 2, 3]
    assert said[1]["result"]["isError"] is True
    assert said[2]["error"]["code"] == -32603
    assert [row.kind for row in rig.ended_rows(2)] == [None, "connection_lost"]


def test_a_call_that_was_cancelled_is_not_answered_when_its_stream_breaks_off(rig: Rig) -> None:
    cancelled = threading.Event()

    def script(peer: Peer) -> None:
        if b"cancelled" in peer.read().body:
            peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        peer.start_events()
        peer.send_event(PROGRESS)
        assert cancelled.wait(BOUND)
        peer.close()

    rig.upstream.script = script
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, call("add", request_id=4), headers=rig.session_headers)
        client.head()
        client.event()
        cancel = message("notifications/cancelled", {"requestId": 4}, request_id=None)
        other.request("POST", rig.path, cancel, headers=rig.session_headers)
        cancelled.set()
        with pytest.raises(ClosedEarlyError):
            client.chunk()
    assert rig.row().kind == "cancelled_by_caller"


def test_events_of_a_plain_tool_are_cut_where_the_server_cuts_them(rig: Rig) -> None:
    rig.upstream.script = CutStream((b"data: 1\n\n",))
    with rig.client() as client:
        client.ask("POST", f"/s/{rig.session}/orders", b"{}")
        client.head()
        assert client.event() == b"data: 1\n\n"
        with pytest.raises(ClosedEarlyError):
            client.chunk()
    assert rig.row().kind == "connection_lost"


def test_a_stream_that_ends_without_the_response_is_a_lost_call(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send_event(PROGRESS)
        peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        assert client.request("POST", rig.path, call("add"), headers=MCP_HEADERS).status == 200
    row = rig.row()
    assert (row.status, row.kind, row.executed) == ("unknown", "connection_lost", "maybe")


def test_a_delete_ends_the_session_upstream_and_is_no_call(rig: Rig) -> None:
    with rig.client() as client:
        given = client.request("DELETE", rig.path, headers=rig.session_headers)
    assert given.status == 200
    assert rig.upstream.requests[0].line == b"DELETE /mcp HTTP/1.1"
    assert rig.rows() == []


def test_many_listening_streams_stay_open_while_calls_go_on(rig: Rig) -> None:
    streams: list[Client] = []

    def script(peer: Peer) -> None:
        if peer.read().method == b"POST":
            peer.send_json(text_result(1, "x"))
            return
        peer.start_events()
        peer.send(chunked(b": open\n\n"))
        peer.wait_for_hang_up()

    rig.upstream.script = script
    try:
        for _ in range(150):
            stream = rig.client()
            streams.append(stream)
            stream.ask("GET", rig.path, headers=rig.session_headers)
            stream.head()
            assert stream.chunk() == b": open\n\n"
        with rig.client() as client:
            assert client.request("POST", rig.path, call("x"), headers=MCP_HEADERS).status == 200
    finally:
        for stream in streams:
            stream.close()


def test_a_listening_subscription_is_no_call(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send_event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"})
        peer.wait_for_hang_up()

    rig.upstream.script = script
    with rig.client() as client:
        body = message("subscriptions/listen", {})
        client.ask("POST", rig.path, body, headers=STATELESS)
        client.head()
        assert b"acknowledged" in client.event()
    assert rig.rows() == []


def test_events_go_on_after_the_response(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send_event(text_result(1, "first"))
        peer.send_event(text_result(1, "again"))
        peer.send_event(PROGRESS)
        peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    wanted = (event(text_result(1, "first")), event(text_result(1, "again")), event(PROGRESS))
    assert given.body == b"".join(wanted)
    assert rig.row().output_summary == "first"


def test_a_large_event_passes_whole(rig: Rig) -> None:
    big = text_result(1, "y" * (5 << 20))

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        whole = event(big)
        for place in range(0, len(whole), 50_000):
            peer.send(chunked(whole[place : place + 50_000]))
        peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == event(big)
    row = rig.row()
    assert (row.status, "truncated_record" in row.flags) == ("ok", True)


def test_an_upstream_that_hangs_up_on_a_listening_stream_ends_it_for_the_agent(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send(chunked(b": open\n\n"))
        peer.close()

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("GET", rig.path, headers=rig.session_headers)
        client.head()
        client.chunk()
        with pytest.raises(ClosedEarlyError):
            client.chunk()


def test_a_stream_is_closed_upstream_when_its_reader_vanishes_in_a_flood(rig: Rig) -> None:
    gone = threading.Event()

    def flood(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        try:
            while True:
                peer.send_event(PROGRESS)
        except HungUpError:
            gone.set()
            raise

    rig.upstream.script = flood
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=MCP_HEADERS)
        client.head()
        client.exactly(100_000)
    assert gone.wait(BOUND)
    assert rig.row().kind == "cancelled_by_caller"
