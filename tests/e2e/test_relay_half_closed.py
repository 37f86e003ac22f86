"""An agent that half-closes its connection gets its answers; one that disconnects is noticed."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest

from kit.beside import Rig
from kit.clients import BOUND, MCP_HEADERS, Client, call, message, wait_until
from kit.upstreams import Peer, chunked, ok

STATELESS = (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28"))
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


class Held:
    """An upstream that answers when the test says so."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts
        self.go_on = threading.Event()
        self.hung_up: list[bool] = []

    def __call__(self, peer: Peer) -> None:
        peer.read()
        *first, last = self.parts
        for part in first:
            peer.send(part)
        assert self.go_on.wait(BOUND)
        peer.send(last)


class Silent:
    """An upstream that begins with `start`, then says nothing and notices who hangs up."""

    def __init__(self, start: bytes = b"") -> None:
        self.start = start
        self.asked = threading.Event()
        self.hung_up: list[bool] = []

    def __call__(self, peer: Peer) -> None:
        peer.read()
        peer.send(self.start)
        self.asked.set()
        self.hung_up.append(peer.wait_for_hang_up())

    def noticed(self) -> None:
        wait_until(lambda: self.hung_up == [True], "the upstream sees that the agent is gone")


@pytest.mark.promise("WIRE-20")
def test_the_answer_to_an_agent_that_has_half_closed_is_not_lost(rig: Rig) -> None:
    rig.upstream.script = script = Held(ok(b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'))
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=STATELESS)
        client.end()
        # What any answer begins with: turnlog has noticed, and asks whether the agent is there.
        assert client.exactly(1) == b"H"
        script.go_on.set()
        rest = b"H" + client.rest()
    head, _, body = rest.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close" in head
    assert body == b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
    assert rig.row().status == "ok"


def test_an_agent_of_http_1_0_may_end_its_side_as_well(rig: Rig) -> None:
    rig.upstream.script = script = Held(ok(b"good"))
    with rig.client() as client:
        client.send(b"GET /tool HTTP/1.0\r\nHost: localhost\r\n\r\n")
        client.end()
        assert client.exactly(1) == b"H"
        script.go_on.set()
        assert client.rest().endswith(b"\r\n\r\ngood")


@pytest.mark.promise("WIRE-20")
def test_a_stream_goes_on_for_an_agent_that_has_half_closed(rig: Rig) -> None:
    stream = EVENTS + b"Transfer-Encoding: chunked\r\n\r\n"
    rig.upstream.script = script = Held(
        stream + chunked(b"data: one\n\n"), chunked(b"data: two\n\n") + b"0\r\n\r\n"
    )
    with rig.client() as client:
        client.ask("GET", "/watch")
        client.head()
        assert client.chunk() == b"data: one\n\n"
        client.end()
        assert client.exactly(1) == b"0"
        script.go_on.set()
        assert client.chunk() == b"data: two\n\n"
        assert client.chunk() == b""
        assert client.rest() == b""


def test_an_agent_that_pipelines_and_then_ends_gets_every_answer(rig: Rig) -> None:
    with rig.client() as client:
        for number in range(5):
            client.ask("POST", rig.path, message("ping", request_id=number), headers=MCP_HEADERS)
        client.end()
        given = [client.response("POST") for _ in range(5)]
        assert client.rest() == b""
    assert [each.json()["id"] for each in given] == list(range(5))
    assert given[-1].head.one("connection") == "close"


def test_a_command_that_writes_only_garbage_and_ends_is_reported(rig: Rig) -> None:
    with rig.client() as client:
        client.send(b"garbage\r\n\r\n")
        client.end()
        assert client.head().status == 400


def test_an_incomplete_request_is_not_sent(rig: Rig) -> None:
    with rig.client() as client:
        client.ask("POST", rig.path, headers=(*MCP_HEADERS, ("Content-Length", "100")))
        client.send(b'{"jsonrpc"')
        client.end()
        assert client.rest() == b""
    assert rig.upstream.requests == []


def test_an_agent_that_closes_before_the_answer_cancels_the_call(rig: Rig) -> None:
    rig.upstream.script = script = Silent()
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=STATELESS)
        assert script.asked.wait(BOUND)
    script.noticed()
    assert rig.row().kind == "cancelled_by_caller"


@pytest.mark.parametrize(
    "start",
    [
        EVENTS + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b": hello\n\n"),
        EVENTS + b"\r\n: hello\n\n",
        EVENTS + b"Content-Length: 100\r\n\r\n: hello\n\n",
    ],
    ids=["in chunks", "until the end", "of known length"],
)
def test_an_agent_that_closes_amid_a_stream_cancels_the_call(rig: Rig, start: bytes) -> None:
    rig.upstream.script = script = Silent(start)
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=STATELESS)
        client.until(b": hello\n\n")
    script.noticed()
    assert rig.row().kind == "cancelled_by_caller"


def test_an_agent_that_ended_its_side_first_and_closes_later_is_noticed(rig: Rig) -> None:
    rig.upstream.script = script = Silent()
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=STATELESS)
        assert script.asked.wait(BOUND)
        client.end()
        assert client.exactly(1) == b"H"
    script.noticed()


def test_a_close_is_noticed_through_a_relay_that_passes_it_on_as_half_a_close(rig: Rig) -> None:
    rig.upstream.script = script = Silent()
    with port_forwarded(rig.proxy.url) as url, Client(url) as client:
        client.ask("POST", rig.path, call("add"), headers=STATELESS)
        assert script.asked.wait(BOUND)
        client.close()
        script.noticed()


@contextmanager
def port_forwarded(url: str) -> Generator[str]:
    """Run a relay of bytes, such as containers and tunnels have, for one connection."""
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=forward, args=(listener, (host, int(port))), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(BOUND)


def forward(listener: socket.socket, target: tuple[str, int]) -> None:
    near, _ = listener.accept()
    with near, socket.create_connection(target) as far:
        back = threading.Thread(target=copy, args=(far, near), daemon=True)
        back.start()
        copy(near, far)
        back.join(BOUND)


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
        return
    source.close()
