"""A tool server that dies while an answer streams, in sessions whose streams can be resumed."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kit.beside import Rig, proxy_beside
from kit.clients import BOUND, Client, ClosedEarlyError, call
from kit.upstreams import Peer, RawUpstream, chunked, text_result

NUMBERED = chunked(b"id: e1\ndata:\n\n")


def said(body: bytes) -> dict[str, Any]:
    """Return the only message of an event stream."""
    (line,) = (line for line in body.split(b"\n") if line.startswith(b"data: "))
    found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return found


def numbered(client: Client, rig: Rig) -> None:
    """Make a call, and read the start of its stream, an event with an id."""
    client.ask("POST", rig.path, call("add", request_id="x"), headers=rig.session_headers)
    client.head()
    assert client.event() == b"id: e1\ndata:\n\n"


def resume(client: Client, rig: Rig) -> None:
    client.ask("GET", rig.path, headers=(*rig.session_headers, ("Last-Event-ID", "e1")))


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url) as proxy,
    ):
        rig = Rig(upstream, proxy)
        rig.fresh()
        yield rig


@pytest.mark.promise("OUT-13")
def test_a_numbered_stream_of_a_server_that_is_gone_ends_with_the_typed_answer(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send(NUMBERED)
        rig.upstream.stop()

    rig.upstream.script = script
    with rig.client() as client:
        numbered(client, rig)
        answer = said(client.chunk())
        assert client.chunk() == b""
    assert (answer["id"], answer["result"]["isError"]) == ("x", True)
    assert rig.row().kind == "connection_lost"


@pytest.mark.promise("OUT-14")
def test_a_numbered_stream_of_a_server_that_listens_is_cut_and_may_be_resumed(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        if peer.read().method == b"GET":
            peer.start_events()
            peer.send_event(text_result("x", "resumed"), event_id="e2")
            peer.end()
            return
        peer.start_events()
        peer.send(NUMBERED)
        peer.close()

    rig.upstream.script = script
    with rig.client() as client:
        numbered(client, rig)
        with pytest.raises(ClosedEarlyError):
            client.chunk()
    assert [row.status for row in rig.rows()] == ["pending"]
    with rig.client() as client:
        resume(client, rig)
        client.head()
        assert b"resumed" in client.event()
    assert (rig.row().status, rig.row().output_summary) == ("ok", "resumed")


def test_a_resumed_stream_of_a_server_that_is_gone_ends_with_the_typed_answer(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        resumed = peer.read().method == b"GET"
        peer.start_events()
        peer.send(NUMBERED)
        if resumed:
            rig.upstream.stop()
        else:
            peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        numbered(client, rig)
        assert client.chunk() == b""
        resume(client, rig)
        client.head()
        client.event()
        answer = said(client.chunk())
    assert (answer["id"], answer["result"]["isError"]) == ("x", True)
    assert rig.row().kind == "connection_lost"


def test_a_stream_that_cannot_be_resumed_because_the_server_is_gone_is_the_typed_answer(
    rig: Rig,
) -> None:
    ended = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send(NUMBERED)
        peer.end()
        assert ended.wait(BOUND)
        peer.close()

    rig.upstream.script = script
    with rig.client() as client:
        numbered(client, rig)
        assert client.chunk() == b""
        rig.upstream.stop()
        ended.set()
        resume(client, rig)
        head = client.head()
        assert (head.status, head.one("content-type")) == (200, "text/event-stream")
        answer = said(client.body(head))
    assert (answer["id"], answer["result"]["isError"]) == ("x", True)
    outcome = answer["result"]["_meta"]["turnlog/outcome"]
    assert (outcome["kind"], outcome["executed"]) == ("connection_lost", "maybe")
    assert rig.row().kind == "connection_lost"


def test_a_stream_of_no_call_is_not_resumed_where_the_server_is_gone(rig: Rig) -> None:
    rig.upstream.stop()
    with rig.client() as client:
        resume(client, rig)
        assert client.head().status == 502
