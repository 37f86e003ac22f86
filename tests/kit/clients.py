"""A raw HTTP/1.1 client on one socket: it sends bytes as given and shows bytes as they came."""

import json
import re
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

T = TypeVar("T")
BOUND = 60.0
"""s: no wait of a test is longer; what a machine needs that is busy with other work, many times over."""

_OUTCOME = re.compile(rb'"_meta":\{"turnlog/outcome":\{[^{}]*\}\},?|"turnlog/outcome":\{[^{}]*\},?')


class Head(Struct, frozen=True):
    """The head of an answer, as it came."""

    version: str
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]

    @property
    def relayed(self) -> tuple[tuple[str, str], ...]:
        """The fields that are not turnlog's own, in order."""
        return tuple(pair for pair in self.headers if not pair[0].startswith("Turnlog-"))

    def all(self, name: str) -> list[str]:
        """Return all values of a field; `name` in lower case."""
        return [value for key, value in self.headers if key.lower() == name]

    def one(self, name: str) -> str | None:
        """Return a field's value where it stands exactly once."""
        found = self.all(name)
        return found[0] if len(found) == 1 else None


class Response(Struct, frozen=True):
    """A whole answer, its framing taken off."""

    head: Head
    body: bytes

    @property
    def status(self) -> int:
        """The status code."""
        return self.head.status

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


def untold(body: bytes) -> bytes:
    """Return an answer without what turnlog says of its call in it."""
    return _OUTCOME.sub(b"", body)


class ClosedEarlyError(Exception):
    """The peer closed before the answer was whole. `received` is what came since the last read."""

    def __init__(self, received: bytes) -> None:
        super().__init__(f"closed after {received[-200:]!r}")
        self.received = received


class Client:
    """One connection to a proxy (or straight to an upstream)."""

    def __init__(self, url: str, *, receive_buffer: int = 0, bound: float = BOUND) -> None:
        """`bound` is how many seconds are waited for more (`TimeoutError`)."""
        parts = urlsplit(url)
        self.authority = parts.netloc
        self.path = parts.path or "/"
        self._socket = socket.socket()
        self._socket.settimeout(bound)
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self._socket.connect((parts.hostname, parts.port))
        except OSError:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection in the orderly way."""
        self._socket.close()

    def find(self, look: Callable[[bytes], T | None]) -> T:
        """Read until `look` finds something in all that came; return that."""
        while (found := look(bytes(self._buffer))) is None:
            self._more()
        return found

    def find_now(self, look: Callable[[bytes], T | None]) -> T | None:
        """Return what `look` finds in all that is here already."""
        self._socket.settimeout(0)
        try:
            return self.find(look)
        except (BlockingIOError, ClosedEarlyError):
            return None

    def end(self) -> None:
        """Say that nothing more will be sent; answers can still be read."""
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close the connection with a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Send a request; Host and Content-Length are added where they are not given."""
        lines = [f"{method} {target} HTTP/1.1"]
        names = {name.lower() for name, _ in headers}
        if "host" not in names:
            lines.append(f"Host: {self.authority}")
        lines += [f"{name}: {value}" for name, value in headers]
        if body and not names & {"content-length", "transfer-encoding"}:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    def request(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Response:
        """Send a request and return the whole answer."""
        self.ask(method, target, body, headers=headers)
        return self.response(method)

    def response(self, method: str = "GET") -> Response:
        """Read one whole answer to a request of this method; interim answers are passed over."""
        head = self.head()
        while head.status < 200:
            head = self.head()
        return Response(head, self.body(head, method))

    def head(self) -> Head:
        """Read one head."""
        raw = self.until(b"\r\n\r\n")
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status, _, reason = rest.partition(" ")
        pairs = [line.partition(":") for line in lines]
        headers = tuple((name, value.strip(" \t")) for name, _, value in pairs)
        return Head(version, int(status), reason, headers)

    def body(self, head: Head, method: str = "GET") -> bytes:
        """Read the body that `head` announces."""
        if method == "HEAD" or head.status in (204, 304):
            return b""
        if head.all("transfer-encoding"):
            return b"".join(iter(self.chunk, b""))
        if (length := head.one("content-length")) is not None:
            return self.exactly(int(length))
        return self.rest()

    def chunk(self) -> bytes:
        """Read one chunk of a chunked body; empty for the last one."""
        size = int(self.until(b"\r\n").partition(b";")[0], 16)
        data = self.exactly(size)
        self.exactly(2)
        return data

    def event(self) -> bytes:
        """Read one chunk that holds at least one whole event; return all read."""
        data = self.chunk()
        while data and not data.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
            data += self.chunk()
        return data

    def exactly(self, size: int) -> bytes:
        """Read `size` bytes."""
        while len(self._buffer) < size:
            self._more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def until(self, mark: bytes) -> bytes:
        """Read up to and with `mark`."""
        start = 0
        while (place := self._buffer.find(mark, start)) < 0:
            start = max(0, len(self._buffer) - len(mark))
            self._more()
        return self.exactly(place + len(mark))

    def rest(self) -> bytes:
        """Read until the peer closes."""
        try:
            while True:
                self._more()
        except ClosedEarlyError:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data

    def _more(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            raise ClosedEarlyError(bytes(self._buffer))
        self._buffer += data


def message(
    method: str, params: dict[str, Any] | None = None, *, request_id: int | str | None = 1
) -> bytes:
    """Return a JSON-RPC request, or with `request_id=None` a notification."""
    fields: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if request_id is not None:
        fields["id"] = request_id
    if params is not None:
        fields["params"] = params
    return json.dumps(fields).encode()


def call(
    tool: str,
    arguments: dict[str, Any] | None = None,
    *,
    request_id: int | str = 1,
    **params: Any,
) -> bytes:
    """Return a `tools/call` request."""
    return message(
        "tools/call", {"name": tool, "arguments": arguments or {}, **params}, request_id=request_id
    )


MCP_HEADERS = (
    ("Content-Type", "application/json"),
    ("Accept", "application/json, text/event-stream"),
)


def wait_until(condition: Any, what: str, bound: float = BOUND) -> None:
    """Ask `condition` again and again until it holds; fail after `bound` seconds."""
    end = time.monotonic() + bound
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"it did not happen within {bound} s: {what}")
        time.sleep(0.005)
