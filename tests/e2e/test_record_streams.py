"""The call that an answer in a stream belongs to: resumption, ids, cancellation, batches."""

import itertools
import threading

import pytest

from kit.beside import Rig
from kit.clients import BOUND, MCP_HEADERS, call, message, wait_until
from kit.faults import Hangs
from kit.upstreams import (
    Peer,
    chunked,
    event,
    result,
    text_result,
)

PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}


@pytest.mark.promise("OUT-14")
@pytest.mark.parametrize("end", ["orderly", "cut"])
def test_a_call_whose_stream_had_ids_is_closed_by_the_resuming_get(rig: Rig, end: str) -> None:
    def script(peer: Peer) -> None:
        if peer.read().method == b"GET":
            assert peer.request.all(b"last-event-id") == [b"e1"]
            peer.start_events()
            peer.send_event(text_result(5, "resumed"), event_id="e2")
            peer.end()
            return
        peer.start_events()
        peer.send(chunked(b"id: e1\nretry: 10\ndata:\n\n"))
        if end == "orderly":
            peer.end()
        else:
            peer.close()

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("POST", rig.path, call("add", request_id=5), headers=rig.session_headers)
        head = client.head()
        assert client.event() == b"id: e1\nretry: 10\ndata:\n\n"
        if end == "orderly":
            assert client.body(head) == b""
    wait_until(lambda: [row.status for row in rig.rows()] == ["pending"], "the call stays open")
    with rig.client() as client:
        fields = (*rig.session_headers, ("Last-Event-ID", "e1"))
        assert b"resumed" in client.request("GET", rig.path, headers=fields).body
    row = rig.row()
    assert (row.status, row.output_summary) == ("ok", "resumed")


def test_a_call_whose_agent_left_is_closed_by_the_resuming_get(rig: Rig) -> None:
    posted = Hangs(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        chunked(b"id: e1\ndata:\n\n"),
    )

    def script(peer: Peer) -> None:
        if peer.request.method == b"POST":
            posted(peer)
            return
        peer.start_events()
        peer.send_event(text_result("x", "resumed"), event_id="e2")
        peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("POST", rig.path, call("add", request_id="x"), headers=rig.session_headers)
        client.head()
        client.event()
    assert posted.hung_up.wait(BOUND)
    with rig.client() as client:
        client.request("GET", rig.path, headers=(*rig.session_headers, ("Last-Event-ID", "e1")))
    assert rig.row().output_summary == "resumed"


def test_an_answer_on_the_listening_stream_closes_the_call(rig: Rig) -> None:
    listening = threading.Event()
    detached = threading.Event()

    def script(peer: Peer) -> None:
        if peer.read().method == b"GET":
            peer.start_events()
            peer.send_event(PROGRESS)
            listening.set()
            assert detached.wait(BOUND)
            peer.send_event(text_result(8, "elsewhere"))
            peer.wait_for_hang_up()
            return
        peer.start_events()
        peer.send(chunked(b"id: e1\ndata:\n\n"))
        peer.end()

    rig.upstream.script = script
    with rig.client() as listener, rig.client() as client:
        listener.ask("GET", rig.path, headers=rig.session_headers)
        listener.head()
        listener.event()
        client.request("POST", rig.path, call("add", request_id=8), headers=rig.session_headers)
        detached.set()
        assert b"elsewhere" in listener.event()
        assert rig.row().output_summary == "elsewhere"


def test_an_answer_on_the_listening_stream_closes_a_call_whose_post_is_open(rig: Rig) -> None:
    posted, told = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        if peer.read().method == b"GET":
            peer.start_events()
            peer.send_event(PROGRESS)
            assert posted.wait(BOUND)
            peer.send_event(text_result(8, "elsewhere"))
            peer.wait_for_hang_up()
            return
        peer.start_events()
        peer.send_event(PROGRESS)
        posted.set()
        assert told.wait(BOUND)
        peer.end()

    rig.upstream.script = script
    with rig.client() as listener, rig.client() as client:
        listener.ask("GET", rig.path, headers=rig.session_headers)
        listener.head()
        listener.event()
        client.ask("POST", rig.path, call("add", request_id=8), headers=rig.session_headers)
        client.head()
        client.event()
        assert b"elsewhere" in listener.event()
        told.set()
        client.chunk()
    assert (rig.row().status, rig.row().output_summary) == ("ok", "elsewhere")


def test_an_answer_to_another_session_with_the_same_id_closes_nothing(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        if peer.read().method == b"GET":
            peer.start_events()
            peer.send_event(text_result(5, "not yours"))
            peer.end()
            return
        peer.start_events()
        peer.send(chunked(b"id: e1\ndata:\n\n"))
        peer.end()

    rig.upstream.script = script
    other = (*MCP_HEADERS, ("Mcp-Session-Id", "somebody-else"))
    with rig.client() as client:
        client.request("POST", rig.path, call("add", request_id=5), headers=rig.session_headers)
        client.request("GET", rig.path, headers=other)
        client.request("POST", rig.path, message("ping"), headers=other)
    assert [row.status for row in rig.rows()] == ["pending"]


def test_two_sessions_use_the_same_ids_at_once(rig: Rig) -> None:
    release = threading.Event()

    def script(peer: Peer) -> None:
        said = peer.read().json()
        assert release.wait(BOUND)
        peer.send_json(text_result(said["id"], "for " + said["params"]["name"]))

    rig.upstream.script = script
    with rig.client() as first, rig.client() as second:
        for client, name in ((first, "one"), (second, "two")):
            headers = (*MCP_HEADERS, ("Mcp-Session-Id", f"{rig.session}-{name}"))
            client.ask("POST", rig.path, call(name, request_id=0), headers=headers)
        rig.upstream.wait_for_requests(2)
        release.set()
        assert b"for one" in first.response("POST").body
        assert b"for two" in second.response("POST").body
    rows = rig.ended_rows(2)
    assert {row.tool: row.output_summary for row in rows} == {"one": "for one", "two": "for two"}
    assert [row.flags for row in rows] == [[], []]


def test_an_id_that_is_used_again_while_its_call_runs_is_flagged(rig: Rig) -> None:
    numbers = itertools.count()
    both = threading.Barrier(2)

    def script(peer: Peer) -> None:
        number = next(numbers)
        both.wait(BOUND)
        peer.send_json(text_result(peer.read().json()["id"], f"answer {number}"))

    rig.upstream.script = script
    with rig.client() as first, rig.client() as second:
        first.ask("POST", rig.path, call("a", request_id=3), headers=rig.session_headers)
        rig.upstream.wait_for_requests(1)
        second.ask("POST", rig.path, call("b", request_id=3), headers=rig.session_headers)
        first.response()
        second.response()
    rows = rig.ended_rows(2)
    assert [(row.tool, row.output_summary, row.flags) for row in rows] == [
        ("a", "answer 0", []),
        ("b", "answer 1", ["id_reused"]),
    ]


@pytest.mark.parametrize("one", ["1", 1])
def test_ids_that_differ_in_type_are_two_calls(rig: Rig, one: str | int) -> None:
    both = threading.Barrier(2)

    def script(peer: Peer) -> None:
        said = peer.read().json()
        both.wait(BOUND)
        peer.send_json(text_result(said["id"], said["params"]["name"]))

    rig.upstream.script = script
    other = 1 if one == "1" else "1"
    with rig.client() as first, rig.client() as second:
        first.ask("POST", rig.path, call("a", request_id=one), headers=rig.session_headers)
        second.ask("POST", rig.path, call("b", request_id=other), headers=rig.session_headers)
        first.response()
        second.response()
    rows = rig.ended_rows(2)
    assert {(row.tool, row.output_summary, tuple(row.flags)) for row in rows} == {
        ("a", "a", ()),
        ("b", "b", ()),
    }


@pytest.mark.parametrize("reply", ["error", "silence"])
def test_a_cancelled_call_is_recorded_as_cancelled(rig: Rig, reply: str) -> None:
    cancelled = threading.Event()

    def script(peer: Peer) -> None:
        said = peer.read().json()
        if said["method"] == "notifications/cancelled":
            cancelled.set()
            peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        peer.start_events()
        peer.send_event(PROGRESS)
        assert cancelled.wait(BOUND)
        if reply == "error":
            error = {"code": -32800, "message": "cancelled"}
            peer.send_event({"jsonrpc": "2.0", "id": said["id"], "error": error})
        peer.end()

    rig.upstream.script = script
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, call("slow", request_id=4), headers=rig.session_headers)
        head = client.head()
        client.event()
        cancel = message("notifications/cancelled", {"requestId": 4}, request_id=None)
        assert other.request("POST", rig.path, cancel, headers=rig.session_headers).status == 202
        client.body(head)
    row = rig.row()
    if reply == "error":
        assert (row.status, row.upstream.code) == ("error", -32800)
    else:
        assert (row.status, row.kind) == ("unknown", "cancelled_by_caller")


@pytest.mark.promise("REC-23")
def test_a_batch_is_relayed_whole_and_recorded_per_member(rig: Rig) -> None:
    batch = (
        b"["
        + b", ".join(
            (call("a", request_id=1), message("ping", request_id=2), call("b", request_id=3))
        )
        + b"]"
    )

    def script(peer: Peer) -> None:
        assert peer.read().body == batch
        peer.send_json([text_result(3, "three"), result(2, {}), text_result(1, "one")])

    rig.upstream.script = script
    with rig.client() as client:
        given = client.request("POST", rig.path, batch, headers=MCP_HEADERS)
    assert [each["id"] for each in given.json()] == [3, 2, 1]
    rows = rig.ended_rows(2)
    assert {(row.tool, row.output_summary) for row in rows} == {("a", "one"), ("b", "three")}


def test_a_batch_answered_by_events_is_recorded_per_member(rig: Rig) -> None:
    batch = b"[" + b",".join((call("a", request_id=1), call("b", request_id=3))) + b"]"

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send_event([text_result(3, "three")])
        peer.send_event(text_result(1, "one"))
        peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        client.request("POST", rig.path, batch, headers=MCP_HEADERS)
    rows = rig.ended_rows(2)
    assert {(row.tool, row.output_summary) for row in rows} == {("a", "one"), ("b", "three")}


def test_a_batch_whose_answer_lacks_a_member_leaves_that_call_unanswered(rig: Rig) -> None:
    batch = b"[" + b",".join((call("a", request_id=1), call("b", request_id=3))) + b"]"

    def script(peer: Peer) -> None:
        peer.read()
        peer.send_json([text_result(1, "one")])

    rig.upstream.script = script
    with rig.client() as client:
        client.request("POST", rig.path, batch, headers=MCP_HEADERS)
    by_tool = {row.tool: row for row in rig.ended_rows(2)}
    assert by_tool["a"].status == "ok"
    assert (by_tool["b"].status, by_tool["b"].executed) == ("error", "maybe")


ALIEN = event(text_result(77, "for somebody else"))
NOTE = event(PROGRESS)
STREAMS: list[tuple[str, bytes, str, list[str]]] = [
    ("nothing", b": ping\n\n", "connection_lost", []),
    ("a notification", NOTE, "connection_lost", []),
    ("blanks", b"data:  \n\n", "connection_lost", []),
    ("an event of its own type", b"event: ping\ndata: 12:00\n\n", "connection_lost", []),
    ("another id", NOTE + ALIEN + NOTE, "malformed_result", ["id_mismatch"]),
    ("a bare error", b'data: {"error":"Session not found"}\n\n', "malformed_result", ["malformed"]),
    (
        "cut JSON",
        ALIEN + b'data: {"jsonrpc":"2.0","id":1,"res\n\n',
        "malformed_result",
        ["malformed"],
    ),
    ("no JSON", b"data: sorry, no\n\n", "malformed_result", ["not_json"]),
    (
        "a large one that is cut",
        event(text_result(1, "z" * (2 << 20)))[:-5] + b"\n\n",
        "malformed_result",
        ["malformed", "truncated_record"],
    ),
    (
        "a large one with something behind",
        event(text_result(1, "z" * (2 << 20)))[:-2] + b"}\n\n",
        "malformed_result",
        ["not_json", "truncated_record"],
    ),
]


@pytest.mark.parametrize(
    ("stream", "kind", "flags"), [row[1:] for row in STREAMS], ids=[row[0] for row in STREAMS]
)
def test_a_stream_that_ends_without_the_response_shows_what_came_instead(
    rig: Rig, stream: bytes, kind: str, flags: list[str]
) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send(chunked(stream))
        peer.end()

    rig.upstream.script = script
    assert rig.post(call("add")) == stream
    row = rig.row()
    assert (row.kind, row.executed, sorted(row.flags)) == (kind, "maybe", flags)
    assert row.status == ("unknown" if kind == "connection_lost" else "error")


def test_a_large_event_that_answers_is_ok(rig: Rig) -> None:
    stream = event(text_result(1, "z" * (2 << 20)))

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send(chunked(ALIEN + stream))
        peer.end()

    rig.upstream.script = script
    assert rig.post(call("add")) == ALIEN + stream
    row = rig.row()
    assert (row.status, row.executed, row.flags) == ("ok", "yes", ["truncated_record"])


def test_a_broken_connection_is_lost_whatever_came_before(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send(chunked(ALIEN))
        peer.close()

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=MCP_HEADERS)
        client.head()
        client.event()
    row = rig.row()
    assert (row.status, row.kind) == ("unknown", "connection_lost")


def test_a_refusal_sent_as_a_stream_is_judged_by_its_status(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(
            b"HTTP/1.1 401 Unauthorized\r\nContent-Type: text/event-stream\r\n"
            b"Content-Length: 8\r\n\r\n: sorry\n"
        )

    rig.upstream.script = script
    rig.post(call("add"))
    row = rig.row()
    assert (row.status, row.kind, row.executed) == ("error", "unauthenticated", "no")
