"""A tool server made of raw sockets: it notes requests byte by byte and answers as scripted."""

import json
import queue
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from msgspec import Struct

from .clients import BOUND, wait_until

_LINGER: Final = b"\1\0\0\0\0\0\0\0"


class HungUpError(Exception):
    """The proxy closed its connection."""


class Received:
    """A request as it arrived."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.body = b""
        """Without its chunk framing; empty until it was read."""
        self.raw_body = b""
        """With its framing."""
        line, *rest = head[:-4].split(b"\r\n")
        self.line = line
        self.method, self.target, self.version = line.split(b" ")
        pairs = [each.partition(b":") for each in rest]
        self.headers = [(name, value.strip(b" \t")) for name, _, value in pairs]

    def all(self, name: bytes) -> list[bytes]:
        """Return all values of a field; `name` in lower case."""
        return [value for key, value in self.headers if key.lower() == name]

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


class Peer:
    """The upstream's side of one connection, while it answers one request."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self.open = True
        self.request = Received(b"? ? ?\r\n\r\n")

    def next_request(self) -> Received:
        """Read the next head. Raises `HungUpError`."""
        self.request = Received(self._until(b"\r\n\r\n"))
        return self.request

    def read(self) -> Received:
        """Read the body of the request, if that was not done; return the request."""
        request = self.request
        if request.raw_body:
            return request
        if request.all(b"transfer-encoding"):
            self._read_chunks(request)
        elif lengths := request.all(b"content-length"):
            request.body = request.raw_body = self._exactly(int(lengths[0]))
        return request

    def read_some(self) -> bytes:
        """Read whatever of the body is there."""
        if not self._buffer:
            self._more()
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def _read_chunks(self, request: Received) -> None:
        while True:
            line = self._until(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            data = self._exactly(size)
            request.raw_body += line + data
            request.body += data
            if not size:
                request.raw_body += self._trailers()
                return
            request.raw_body += self._exactly(2)

    def _trailers(self) -> bytes:
        lines = b""
        while not lines.endswith(b"\r\n\r\n") and lines != b"\r\n":
            lines += self._until(b"\r\n")
        return lines

    def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises `HungUpError`."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            self.open = False
            raise HungUpError(str(error)) from error

    def send_some(self, data: bytes) -> int:
        """Send what fits now into the connection; return how much that was."""
        _, writable, _ = select.select([], [self._socket], [], 0.2)
        if not writable:
            return 0
        return self._socket.send(data, socket.MSG_DONTWAIT)

    def send_json(self, value: object, *, headers: str = "") -> None:
        """Answer with JSON of known length."""
        body = json.dumps(value).encode()
        self.send(ok(body, headers=headers))

    def start_events(self, *, headers: str = "") -> None:
        """Begin a chunked event stream."""
        self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            + headers.encode()
            + b"Transfer-Encoding: chunked\r\n\r\n"
        )

    def send_event(self, value: object, *, event_id: str | None = None) -> None:
        """Send one JSON message as one event in one chunk."""
        self.send(chunked(event(value, event_id=event_id)))

    def end(self) -> None:
        """Send the last chunk."""
        self.send(b"0\r\n\r\n")

    def close(self) -> None:
        """Close the connection in the orderly way."""
        self.open = False
        self._socket.close()

    def reset(self) -> None:
        """Close the connection with a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.close()

    def wait_for_hang_up(self, bound: float = BOUND) -> bool:
        """Wait until the proxy closes the connection; tell whether it did."""
        before = self._socket.gettimeout()
        self._socket.settimeout(bound)
        try:
            while self._socket.recv(65536):
                pass
        except TimeoutError:
            # The next request on this connection is waited for as long as any.
            self._socket.settimeout(before)
            return False
        except OSError:
            pass
        self.open = False
        return True

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _until(self, mark: bytes) -> bytes:
        while (place := self._buffer.find(mark)) < 0:
            self._more()
        return self._exactly(place + len(mark))

    def _more(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self.open = False
            raise HungUpError
        self._buffer += data


class _Asked(Struct):
    method: str = ""
    id: object = None


Script = Callable[[Peer], None]
"""What happens once a request's head is there; the body is read by `Peer.read`."""


class RawUpstream:
    """A server on a free port. `script` may be changed between requests."""

    def __init__(
        self, script: Script | None = None, *, port: int = 0, send_buffer: int = 0
    ) -> None:
        self.script: Script = script or echo
        self.requests: list[Received] = []
        self.connections = 0
        self.errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if send_buffer:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(256)
        self.port: int = self._listener.getsockname()[1]
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def origin(self) -> str:
        """`http://HOST:PORT`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the MCP endpoint."""
        return f"{self.origin}/mcp"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None and not self.errors.empty():
            raise self.errors.get()

    def stop(self) -> None:
        """Close everything."""
        # A thread in accept() does not notice close(); shutdown wakes it.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()
        self._thread.join(BOUND)

    def wait_for_requests(self, count: int) -> None:
        """Wait until so many requests arrived in all."""
        wait_until(lambda: len(self.requests) >= count, f"{count} requests reach the upstream")

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        peer = Peer(connection)
        try:
            while peer.open:
                self.requests.append(peer.next_request())
                self.script(peer)
                peer.read()
        except (HungUpError, OSError):
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised again where the test ends
            self.errors.put(error)
        finally:
            with suppress(OSError):
                connection.close()


def event(value: object, *, event_id: str | None = None) -> bytes:
    """Return a message as one event."""
    lines = [] if event_id is None else [f"id: {event_id}"]
    return "\n".join([*lines, "event: message", f"data: {json.dumps(value)}", "", ""]).encode()


def chunked(data: bytes) -> bytes:
    """Return one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def ok(
    body: bytes, *, media: str = "application/json", headers: str = "", status: str = "200 OK"
) -> bytes:
    """Return an answer of known length."""
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def result(request_id: object, value: object) -> dict[str, object]:
    """Return a JSON-RPC response."""
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def text_result(request_id: object, text: str) -> dict[str, object]:
    """Return the response to a `tools/call` with one text."""
    return result(request_id, {"content": [{"type": "text", "text": text}]})


def answer(raw: bytes) -> Script:
    """Read the request, answer with these bytes."""

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(raw)

    return script


def echo(peer: Peer) -> None:
    """Answer JSON-RPC requests with a text, notifications with 202, anything else with `{}`."""
    request = peer.read()
    try:
        asked = msgspec.json.decode(request.body, type=_Asked)
    except msgspec.DecodeError:
        asked = _Asked()
    if asked.method and asked.id is not None:
        peer.send_json(text_result(asked.id, "done"))
    elif asked.method:
        peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
    else:
        peer.send(ok(b"" if request.method == b"HEAD" else b"{}"))
