"""The old HTTP+SSE transport (2024-11-05): calls are posted to an endpoint, answered on a stream."""

import json
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from msgspec import Struct

from kit.beside import Rig
from kit.clients import BOUND, MCP_HEADERS, Client, call, message, wait_until
from kit.faults import CloseAfterRequest
from kit.upstreams import Peer, chunked, result, text_result

ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 8\r\n\r\nAccepted"
Work = Callable[[Peer], object]
ANSWERED = object()
"""Returned by work that has answered the post itself."""


class Open(Struct, frozen=True):
    """A stream that is open: the server's side of it, the agent's, and where the agent posts."""

    server: Peer
    agent: Client
    endpoint: str


@contextmanager
def stream(rig: Rig, *, named: str = "", work: Work | None = None) -> Generator[Open]:
    """Open a stream whose first event names an endpoint; `work` is done before a post gets 202.

    Where it returns `ANSWERED` the post gets nothing more.
    """
    peers: queue.SimpleQueue[Peer] = queue.SimpleQueue()
    over = threading.Event()

    def script(peer: Peer) -> None:
        if peer.read().method == b"GET":
            peer.start_events()
            endpoint = named or f"/messages?id={rig.session}"
            peer.send(chunked(f"event: endpoint\ndata: {endpoint}\n\n".encode()))
            peers.put(peer)
            assert over.wait(BOUND)
            return
        if work is None or work(peer) is not ANSWERED:
            peer.send(ACCEPTED)

    rig.upstream.script = script
    try:
        with rig.client() as agent:
            agent.ask("GET", rig.path, headers=(("Accept", "text/event-stream"),))
            agent.head()
            name, _, data = agent.event().decode().partition("\ndata: ")
            assert name == "event: endpoint"
            yield Open(peers.get(timeout=BOUND), agent, data.rstrip("\n"))
    finally:
        over.set()


def post(rig: Rig, open_: Open, body: bytes) -> tuple[int, bytes]:
    """Post a message to the endpoint."""
    with rig.client() as client:
        answer = client.request("POST", open_.endpoint, body, headers=MCP_HEADERS)
        return answer.head.status, answer.body


def test_a_call_is_closed_by_its_answer_on_the_stream(rig: Rig) -> None:
    with stream(rig) as one:
        assert one.endpoint == f"/s/{rig.session}/messages?id={rig.session}"
        for number in (1, 2):
            assert post(rig, one, call("add", {"n": number}, request_id=number)) == (
                202,
                b"Accepted",
            )
        assert [row.status for row in rig.rows()] == ["pending"] * 2
        for number in (2, 1):
            one.server.send_event(text_result(number, f"answer {number}"))
            assert f"answer {number}".encode() in one.agent.event()
    rows = rig.ended_rows(2)
    assert [(row.status, row.output_summary) for row in rows] == [
        ("ok", "answer 1"),
        ("ok", "answer 2"),
    ]
    assert all(row.flags == [] for row in rows)
    targets = [request.target for request in rig.upstream.requests]
    assert targets == [b"/mcp", *2 * [f"/messages?id={rig.session}".encode()]]


def keyed(rig: Rig, client: Client, endpoint: str, number: int) -> int:
    """Post a call with a key; return the status."""
    headers = (*MCP_HEADERS, ("Idempotency-Key", rig.session))
    body = call("add", {"n": 1}, request_id=number)
    return client.request("POST", endpoint, body, headers=headers).status


def test_a_call_that_is_not_sent_again_is_answered_on_the_stream(rig: Rig) -> None:
    with stream(rig) as one, rig.client() as client:
        assert keyed(rig, client, one.endpoint, 1) == 202
        # Line ends between the tokens must not end an event.
        spread = json.dumps(text_result(1, "three"), indent=1).replace("\n", "\ndata: ")
        one.server.send(chunked(f"data: {spread}\n\n".encode()))
        assert b"three" in one.agent.event()
        for number in (2, 3):
            assert keyed(rig, client, one.endpoint, number) == 202
            event = one.agent.event()
            name, _, data = event.partition(b"\ndata: ")
            said = json.loads(data)
            assert (name, said["id"]) == (b"event: message", number)
            assert said["result"]["content"] == [{"type": "text", "text": "three"}]
            assert said["result"]["_meta"]["turnlog/outcome"]["status"] == "replayed"
        one.server.send_event(text_result(4, "more"))
        assert b"more" in one.agent.event()
    assert [row.status for row in rig.ended_rows(3)] == ["ok", "replayed", "replayed"]
    assert len(rig.upstream.requests) == 2


def test_amid_an_event_a_call_that_is_not_sent_again_has_an_error_status(rig: Rig) -> None:
    with stream(rig) as one, rig.client() as client:
        assert keyed(rig, client, one.endpoint, 1) == 202
        one.server.send_event(text_result(1, "three"))
        assert b"three" in one.agent.event()
        one.server.send(chunked(b"event: mess"))
        assert one.agent.chunk() == b"event: mess"
        assert keyed(rig, client, one.endpoint, 2) == 502
        one.server.send(chunked(b"age\ndata: {}\n\n"))
        assert one.agent.event() == b"age\ndata: {}\n\n"
    assert [row.status for row in rig.ended_rows(2)] == ["ok", "replayed"]


def test_a_caller_that_closes_an_accepted_post_still_waits_on_the_stream(rig: Rig) -> None:
    closed = threading.Event()

    def work(peer: Peer) -> object:
        peer.send(ACCEPTED[:-1])
        assert closed.wait(BOUND)
        # Read before the answer: the proxy learns of the reset no later than of this byte.
        peer.send(ACCEPTED[-1:])
        return ANSWERED

    key = ("Idempotency-Key", rig.session)
    with stream(rig, work=work) as one:
        with rig.client() as client:
            client.ask("POST", one.endpoint, call("add"), headers=(*MCP_HEADERS, key))
            assert client.head().status == 202
            client.reset()
        closed.set()
        one.server.send_event(text_result(1, "late"))
        assert b"late" in one.agent.event()
        wait_until(lambda: rig.notes() == ["delivered"], "the answer on the stream is noted")
    assert rig.row().status == "ok"


def test_a_post_after_the_end_of_the_stream_is_an_ordinary_call(rig: Rig) -> None:
    with rig.client() as client:

        def ask(endpoint: str, number: int) -> int:
            body = call("add", {"n": number}, request_id=number)
            return client.request("POST", endpoint, body, headers=MCP_HEADERS).status

        with stream(rig) as one:
            assert ask(one.endpoint, 1) == 202
        assert [row.status for row in rig.ended_rows(1)] == ["unknown"]
        rig.upstream.script = CloseAfterRequest()
        # Nobody looks for answers on a stream any more: that there is none is told here.
        assert ask(one.endpoint, 2) == 200
    assert [row.status for row in rig.ended_rows(2)] == ["unknown", "unknown"]


def test_an_answer_may_come_before_its_request_was_accepted(rig: Rig) -> None:
    told, opened = threading.Event(), list[Open]()

    def work(peer: Peer) -> None:
        if not told.is_set():
            opened[0].server.send_event(text_result(1, "early"))
            assert told.wait(BOUND)

    with stream(rig, work=work) as one:
        opened.append(one)
        with rig.client() as client:
            client.ask("POST", one.endpoint, call("add"), headers=MCP_HEADERS)
            assert b"early" in one.agent.event()
            told.set()
            assert client.response().head.status == 202
        assert rig.row().output_summary == "early"
        post(rig, one, call("add"))
        assert [row.status for row in rig.rows()] == ["ok", "pending"]
        one.server.send_event(text_result(1, "again"))
        one.agent.event()
    assert [row.output_summary for row in rig.ended_rows(2)] == ["early", "again"]


def test_an_agent_need_not_wait_for_its_request_to_be_accepted(rig: Rig) -> None:
    left = threading.Event()
    with stream(rig, work=lambda peer: left.set() if peer.wait_for_hang_up() else None) as one:
        with rig.client() as client:
            client.ask("POST", one.endpoint, call("add"), headers=MCP_HEADERS)
            wait_until(lambda: len(rig.upstream.requests) == 2, "the call has arrived")
        assert left.wait(BOUND)
        assert [row.status for row in rig.rows()] == ["pending"]
        one.server.send_event(text_result(1, "all the same"))
        one.agent.event()
    assert rig.row().output_summary == "all the same"


def test_a_call_that_cannot_be_forwarded_is_refused_by_its_status(rig: Rig) -> None:
    with stream(rig, work=lambda peer: peer.close()) as one:
        status, body = post(rig, one, call("add"))
    assert status == 502
    assert json.loads(body)["result"]["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"
    assert rig.row().kind == "connection_lost"


def test_open_calls_are_lost_with_the_stream(rig: Rig) -> None:
    with stream(rig) as one:
        post(rig, one, call("add"))
        one.server.end()
        assert one.agent.chunk() == b""
        row = rig.row()
        assert (row.status, row.kind, row.executed) == ("unknown", "connection_lost", "maybe")


def test_a_stream_that_breaks_off_ends_with_answers_to_all_open_requests(rig: Rig) -> None:
    with stream(rig) as one:
        post(rig, one, call("add", request_id=1))
        post(rig, one, call("add", {"n": 2}, request_id="two"))
        post(rig, one, message("resources/read", {}, request_id=3))
        one.server.send_event(text_result(1, "done"))
        assert b"done" in one.agent.event()
        one.server.close()
        said = one.agent.chunk() + one.agent.chunk()
    lines = [line for line in said.split(b"\n") if line.startswith(b"data:")]
    lost, unread = (json.loads(line.removeprefix(b"data:")) for line in lines)
    assert (lost["id"], lost["result"]["isError"]) == ("two", True)
    assert lost["result"]["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"
    assert (unread["id"], unread["error"]["code"]) == (3, -32603)
    assert [row.kind for row in rig.ended_rows(3)] == [None, "connection_lost", "connection_lost"]


def test_a_request_that_is_accepted_when_its_stream_has_ended_is_lost(rig: Rig) -> None:
    accept = threading.Event()
    with stream(rig, work=lambda _: accept.wait(BOUND)) as one, rig.client() as client:
        client.ask("POST", one.endpoint, call("add"), headers=MCP_HEADERS)
        wait_until(lambda: len(rig.rows()) == 1, "the call is under way")
        one.server.end()
        assert one.agent.chunk() == b""
        accept.set()
        assert client.response().head.status == 202
        assert rig.row().kind == "connection_lost"


def test_a_request_that_is_accepted_when_its_stream_has_broken_off_is_refused(rig: Rig) -> None:
    accept, key = threading.Event(), ("Idempotency-Key", rig.session)
    with stream(rig, work=lambda _: accept.wait(BOUND)) as one, rig.client() as client:
        client.ask("POST", one.endpoint, call("add"), headers=(*MCP_HEADERS, key))
        wait_until(lambda: len(rig.upstream.requests) == 2, "the call is under way")
        one.server.close()
        assert one.agent.rest() == b""
        accept.set()
        refused = client.response()
        assert refused.status == 502
        said = json.loads(refused.body)["result"]["_meta"]["turnlog/outcome"]
        assert (said["kind"], said["executed"]) == ("connection_lost", "maybe")
        wait_until(lambda: rig.notes() == ["delivered"], "the refusal is noted")
    assert rig.row().kind == "connection_lost"


def test_an_answer_in_place_of_one_that_a_broken_stream_brought_not_is_noted_as_delivered(
    rig: Rig,
) -> None:
    key = ("Idempotency-Key", rig.session)
    with stream(rig) as one:
        with rig.client() as client:
            client.request("POST", one.endpoint, call("add"), headers=(*MCP_HEADERS, key))
        one.server.close()
        assert b"connection_lost" in one.agent.chunk()
        wait_until(lambda: rig.notes() == ["delivered"], "the event is noted")
    assert rig.row().kind == "connection_lost"


@pytest.mark.parametrize("by", ["leaving", "saying so"])
def test_a_call_without_a_waiting_caller_was_cancelled(rig: Rig, by: str) -> None:
    with stream(rig) as one:
        post(rig, one, call("add", request_id=7))
        if by == "leaving":
            one.agent.close()
        else:
            post(rig, one, message("notifications/cancelled", {"requestId": 7}, request_id=None))
            one.server.end()
        assert rig.row().kind == "cancelled_by_caller"


def test_a_call_sent_as_a_notification_ends_when_it_is_accepted(rig: Rig) -> None:
    with stream(rig) as one:
        post(rig, one, message("tools/call", {"name": "add"}, request_id=None))
        assert rig.row().status == "ok"


def test_other_messages_on_the_stream_are_read(rig: Rig) -> None:
    """The handshake and the list of tools are answered there as well."""
    initialize = {"clientInfo": {"name": "old", "version": "1"}, "protocolVersion": "2024-11-05"}
    tool: dict[str, object] = {"name": "add", "inputSchema": {}}
    answers: list[tuple[str, dict[str, object]]] = [
        ("initialize", {"protocolVersion": "2024-11-05", "capabilities": {}}),
        ("tools/list", {"tools": [tool]}),
    ]
    with stream(rig) as one:
        for method, said in answers:
            post(rig, one, message(method, initialize))
            one.server.send_event(result(1, said))
            one.agent.event()
        post(rig, one, call("add"))
        one.server.send_event(text_result(1, "x"))
        one.agent.event()
        row = rig.row()
    assert (row.upstream.protocol, row.definition is not None) == ("2024-11-05", True)


@pytest.mark.promise("WIRE-30")
def test_an_endpoint_sent_in_pieces_leads_back_too(rig: Rig) -> None:
    greeted = threading.Event()

    def script(peer: Peer) -> None:
        peer.start_events()
        peer.send(chunked(b": hello\n\n"))
        assert greeted.wait(BOUND)
        for byte in b"event: endpoint\ndata: /messages\n\n":
            peer.send(chunked(bytes([byte])))
        peer.end()

    rig.upstream.script = script
    with rig.client() as agent:
        agent.ask("GET", rig.path, headers=(("Accept", "text/event-stream"),))
        head = agent.head()
        assert agent.chunk() == b": hello\n\n"
        greeted.set()
        whole = agent.body(head)
    assert whole == f"event: endpoint\ndata: /s/{rig.session}/messages\n\n".encode()


@pytest.mark.parametrize("named", ["http://elsewhere.example/messages", "http://[bad"])
def test_an_endpoint_elsewhere_is_left_as_it_is(rig: Rig, named: str) -> None:
    with stream(rig, named=named) as one:
        assert one.endpoint == named


def test_a_post_that_follows_a_redirect_of_the_endpoint_is_answered_on_the_stream(rig: Rig) -> None:
    def work(peer: Peer) -> object:
        if peer.request.target.startswith(b"/messages/"):
            return None
        location = f"Location: /messages/?id={rig.session}"
        peer.send(f"HTTP/1.1 307 X\r\n{location}\r\nContent-Length: 0\r\n\r\n".encode())
        return ANSWERED

    with stream(rig, work=work) as one:
        with rig.client() as client:
            moved = client.request("POST", one.endpoint, call("add"), headers=MCP_HEADERS)
            location = moved.head.one("location")
            assert location is not None
            assert client.request("POST", location, call("add"), headers=MCP_HEADERS).status == 202
        one.server.send_event(text_result(1, "done"))
        assert b"done" in one.agent.event()
    first, second = rig.ended_rows(2)
    assert (first.executed, second.status, second.output_summary) == ("no", "ok", "done")
    assert (first.call, second.attempt) == (second.call, 2)
