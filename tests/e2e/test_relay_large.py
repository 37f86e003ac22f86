"""Bodies of 100 MB pass in both directions, and the proxy's memory does not grow."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.beside import Rig, proxy_beside
from kit.clients import BOUND, MCP_HEADERS, wait_until
from kit.upstreams import Peer, RawUpstream, chunked

SIZE = 100 << 20
PIECE = 1 << 20
ROOM = 48 << 20
"""bytes that memory may grow by: less than half of a body."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path_factory.mktemp("proxy"), upstream.url) as proxy,
    ):
        rig = Rig(upstream, proxy)
        with rig.client() as client:
            client.request("GET", "/warm")
        yield rig


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.fresh()
    _reset_peak(shared)
    return shared


def _reset_peak(rig: Rig) -> None:
    # Linux: 5 sets VmHWM back to what is resident now (proc(5), clear_refs).
    Path(f"/proc/{rig.proxy.process.pid}/clear_refs").write_text("5")


def grown(rig: Rig, before: int) -> int:
    return memory(rig, "VmHWM") - before


def memory(rig: Rig, name: str) -> int:
    lines = Path(f"/proc/{rig.proxy.process.pid}/status").read_text().splitlines()
    (line,) = [each for each in lines if each.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


class Sink:
    """Reads a body piece by piece and keeps its digest alone."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.size = 0

    def __call__(self, peer: Peer) -> None:
        """Read as much as was announced; refuse what is not."""
        if peer.request.method != b"PUT" and peer.request.method != b"POST":
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            return
        while self.size < SIZE:
            data = peer.read_some()
            self.digest.update(data)
            self.size += len(data)
        peer.request.raw_body = b"read"
        peer.send(b"HTTP/1.1 201 Stored\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.promise("WIRE-23")
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_request_of_100_mb_streams_through(rig: Rig, method: str) -> None:
    sink = Sink()
    rig.upstream.script = sink
    piece = bytes(range(256)) * (PIECE // 256)
    before = memory(rig, "VmRSS")
    sent = hashlib.sha256()
    with rig.client() as client:
        client.ask(method, f"/s/{rig.session}/files", headers=(("Content-Length", str(SIZE)),))
        for _ in range(SIZE // PIECE):
            client.send(piece)
            sent.update(piece)
        assert client.response().status == 201
    assert sink.digest.digest() == sent.digest()
    assert grown(rig, before) < ROOM
    row = rig.row()
    assert (row.status, row.bytes_in, row.input_hash) == ("ok", SIZE, None)


@pytest.mark.promise("WIRE-23")
@pytest.mark.parametrize("media", ["application/octet-stream", "application/json"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_answer_of_100_mb_streams_through(rig: Rig, media: str, framing: str) -> None:
    piece = b'"' + b"z" * (PIECE - 2) + b'"'

    def script(peer: Peer) -> None:
        peer.read()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {media}\r\n"
        length = framing == "length"
        more = f"Content-Length: {SIZE}" if length else "Transfer-Encoding: chunked"
        peer.send(f"{head}{more}\r\n\r\n".encode())
        for _ in range(SIZE // PIECE):
            peer.send(piece if length else chunked(piece))
        if not length:
            peer.end()

    rig.upstream.script = script
    before = memory(rig, "VmRSS")
    left = SIZE
    with rig.client() as client:
        client.ask("GET", f"/s/{rig.session}/files")
        client.head()
        if framing == "length":
            for _ in range(SIZE // PIECE):
                assert client.exactly(PIECE) == piece
        else:
            while data := client.chunk():
                left -= len(data)
            assert left == 0
    assert grown(rig, before) < ROOM
    assert (rig.row().status, rig.row().bytes_out) == ("ok", SIZE)


def test_an_mcp_result_of_10_mb_arrives_whole(rig: Rig) -> None:
    start = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"'
    body = start + b"x" * (10 << 20) + b'"}],"isError":false}}'

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        peer.send(body)

    rig.upstream.script = script
    asked = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"big"}}'
    with rig.client() as client:
        assert client.request("POST", rig.path, asked, headers=MCP_HEADERS).body == body
    row = rig.row()
    assert (row.status, row.executed, row.bytes_out) == ("ok", "yes", len(body))
    assert row.flags == ["truncated_record"]


@pytest.mark.promise("WIRE-24")
def test_an_upstream_that_does_not_read_holds_back_the_agent(rig: Rig) -> None:
    go, stalled = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        stalled.set()
        assert go.wait(BOUND)
        Sink()(peer)

    rig.upstream.script = script
    before = memory(rig, "VmRSS")
    sent: list[int] = []

    def push() -> None:
        with rig.client() as client:
            client.ask("PUT", f"/s/{rig.session}/files", headers=(("Content-Length", str(SIZE)),))
            for _ in range(SIZE // PIECE):
                client.send(bytes(PIECE))
                sent.append(PIECE)
            client.response()

    pushing = threading.Thread(target=push, daemon=True)
    pushing.start()
    assert stalled.wait(BOUND)
    settled = [-1]

    def quiet() -> bool:
        settled.append(len(sent))
        return len(settled) > 100 and settled[-100] == settled[-1]

    wait_until(quiet, "the agent is held back")
    assert sum(sent) < 48 << 20
    assert grown(rig, before) < ROOM
    go.set()
    pushing.join(BOUND)
    assert rig.row().status == "ok"
