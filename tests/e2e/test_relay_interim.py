"""Interim answers (1xx) reach the agent at once, independently of the final one."""

import threading

import pytest

from kit.beside import Rig
from kit.clients import BOUND, MCP_HEADERS, Head, call
from kit.upstreams import Peer, answer, ok, text_result

HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nlink: </b>\r\nConnection: x\r\nX: 1\r\n\r\n"
WORKING = b"HTTP/1.1 102 \r\n\r\n"


@pytest.mark.promise("WIRE-16")
def test_an_interim_answer_leaves_before_the_final_one_is_there(rig: Rig) -> None:
    go_on = threading.Event()

    def script(peer: Peer) -> None:
        request = peer.read()
        peer.send(HINTS)
        assert go_on.wait(BOUND)
        peer.send(WORKING)
        peer.send_json(text_result(request.json()["id"], "done"))

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=MCP_HEADERS)
        here = f"/s/{rig.session}"
        hints = (("Link", f"<{here}/a>"), ("link", f"<{here}/b>"))
        assert client.head() == Head("HTTP/1.1", 103, "Early Hints", hints)
        go_on.set()
        assert client.head() == Head("HTTP/1.1", 102, "", ())
        assert client.response("POST").json()["result"]["content"][0]["text"] == "done"
    assert rig.row().status == "ok"


@pytest.mark.promise("WIRE-16")
def test_an_agent_of_http_1_0_gets_the_final_answer_alone(rig: Rig) -> None:
    rig.upstream.script = answer(HINTS + ok(b"good"))
    with rig.client() as client:
        client.send(b"GET /tool HTTP/1.0\r\nHost: localhost\r\n\r\n")
        given = client.rest()
    assert given.startswith(b"HTTP/1.1 200 OK\r\n")
    assert given.endswith(b"\r\n\r\ngood")


def test_an_agent_that_half_closed_gets_interim_answers_as_well(rig: Rig) -> None:
    go_on = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        assert go_on.wait(BOUND)
        peer.send(WORKING + ok(b"good"))

    rig.upstream.script = script
    with rig.client() as client:
        client.ask("GET", "/tool")
        client.end()
        assert client.exactly(1) == b"H"
        go_on.set()
        first, _, rest = (b"H" + client.rest()).partition(b"\r\n\r\n")
    assert first == b"HTTP/1.1 102 "
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.promise("WIRE-18")
def test_trailers_end_at_turnlog(rig: Rig) -> None:
    head = b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n"
    rig.upstream.script = answer(head + b"4\r\ngood\r\n0\r\nX-Sum: 1\r\n\r\n")
    with rig.client() as client:
        given = client.request("GET", "/tool")
        assert (given.body, given.head.all("trailer")) == (b"good", [])
        assert client.request("GET", "/tool").body == b"good"
