"""A tool server that answers as fast as Python can: one thread, raw epoll, no framework.

It must never be what limits a run, so it parses only what it needs: requests with a
Content-Length or none. `--stdio` speaks the same tools over stdin and stdout, for peers that
front a command. The first line on stdout is `{"port": N}`; it ends when its stdin does.
"""

import select
import socket
import sys
from heapq import heappop, heappush
from itertools import count
from time import monotonic_ns

from . import answers
from .answers import Request

_CHUNK = 1 << 18
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: "
_JSON = _OK + b"application/json\r\n"
_STREAM = (
    _OK + b"text/event-stream\r\nCache-Control: no-transform\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_SESSION = b"Mcp-Session-Id: bench-session\r\n"
_ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
_NO_STREAM = b"HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\nContent-Length: 0\r\n\r\n"


def whole(body: bytes, extra: bytes = b"") -> bytes:
    """Return a JSON answer with its length."""
    return b"".join((_JSON, extra, b"Content-Length: %d\r\n\r\n" % len(body), body))


def chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection:
    """One open socket: what came in and is not a request yet, what could not be sent yet."""

    __slots__ = ("inbox", "outbox", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = b""
        self.outbox = memoryview(b"")


class Server:
    """Accept, answer, count. Timers send the events of open streams."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener, select.EPOLLIN)
        self.poll.register(sys.stdin, select.EPOLLIN)
        self.open: dict[int, Connection] = {}
        self.timers: list[tuple[int, int, int, bytes]] = []
        self.order = count()
        self.requests = 0
        self.connections = 0

    def run(self) -> None:
        """Serve until stdin ends."""
        while True:
            for fd, _ in self.poll.poll(self.wait()):
                if fd == self.listener.fileno():
                    self.accept()
                elif fd == 0:
                    return
                elif fd in self.open:
                    self.serve(fd, self.open[fd])
            self.fire()

    def wait(self) -> float:
        """Return the seconds until the next timer, -1 for none."""
        if not self.timers:
            return -1
        return max(self.timers[0][0] - monotonic_ns(), 0) / 1e9

    def fire(self) -> None:
        """Send what has become due."""
        while self.timers and self.timers[0][0] <= monotonic_ns():
            _, _, fd, data = heappop(self.timers)
            if fd in self.open:
                stamped = data or chunk(answers.progress(monotonic_ns()))
                self.send(self.open[fd], stamped)

    def accept(self) -> None:
        """Take every connection that waits."""
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            self.open[sock.fileno()] = Connection(sock)
            self.poll.register(sock, select.EPOLLIN)

    def serve(self, fd: int, connection: Connection) -> None:
        """Read what is there, flush what is owed, answer every complete request."""
        try:
            data = connection.sock.recv(_CHUNK)
        except BlockingIOError:
            self.send(connection, b"")
            return
        except ConnectionError:
            data = b""
        if not data:
            self.poll.unregister(fd)
            self.open.pop(fd).sock.close()
            return
        connection.inbox += data
        while self.take(fd, connection):
            pass

    def take(self, fd: int, connection: Connection) -> bool:
        """Answer the first complete request in the inbox; tell whether there was one."""
        inbox = connection.inbox
        end = inbox.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = inbox[:end]
        stop = end + 4 + content_length(head)
        if len(inbox) < stop:
            return False
        connection.inbox = inbox[stop:]
        self.requests += 1
        if head.startswith(b"POST"):
            self.post(fd, connection, answers.parse(inbox[end + 4 : stop]))
        else:
            self.send(connection, self.get(head))
        return True

    def get(self, head: bytes) -> bytes:
        """Answer what is no POST: a plain tool, the counters, or no GET stream."""
        if not head.startswith(b"GET"):
            return whole(b"{}")
        path = head.split(b" ", 2)[1]
        if path.startswith(b"/mcp") and b"event-stream" in head:
            return _NO_STREAM
        if path == b"/counters":
            return whole(b'{"requests":%d,"connections":%d}' % (self.requests, self.connections))
        return whole(answers.item(path))

    def post(self, fd: int, connection: Connection, request: Request) -> None:
        """Answer a JSON-RPC message: as JSON, as events over time, or in two halves."""
        body = answers.answer(request)
        wanted = request.params.arguments
        if not body:
            self.send(connection, _ACCEPTED)
        elif wanted.events:
            self.stream(fd, connection, body, wanted)
        elif wanted.pause_ms:
            data = whole(body)
            self.send(connection, data[: len(data) // 2])
            self.later(fd, wanted.pause_ms, data[len(data) // 2 :])
        else:
            extra = _SESSION if request.method == "initialize" else b""
            self.send(connection, whole(body, extra))

    def stream(
        self, fd: int, connection: Connection, body: bytes, wanted: answers.Arguments
    ) -> None:
        """Send the head and a first event, plan the others and the answer after them."""
        self.send(connection, _STREAM + chunk(answers.progress(monotonic_ns())))
        for number in range(1, wanted.events):
            self.later(fd, wanted.interval_ms * number, b"")
        last = chunk(answers.event(body)) + b"0\r\n\r\n"
        self.later(fd, wanted.interval_ms * wanted.events, last)

    def later(self, fd: int, delay_ms: float, data: bytes) -> None:
        """Send `data`, or a stamped event if it is empty, in `delay_ms`."""
        due = monotonic_ns() + int(delay_ms * 1e6)
        heappush(self.timers, (due, next(self.order), fd, data))

    def send(self, connection: Connection, data: bytes) -> None:
        """Send now what the socket takes; the rest when it is writable."""
        owed = bool(connection.outbox)
        rest = memoryview(bytes(connection.outbox) + data if data and owed else data)
        if owed and not data:
            rest = connection.outbox
        try:
            sent = connection.sock.send(rest) if rest else 0
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            sent = len(rest)
        connection.outbox = rest[sent:]
        if owed != bool(connection.outbox):
            events = select.EPOLLIN | (select.EPOLLOUT if connection.outbox else 0)
            self.poll.modify(connection.sock, events)


def content_length(head: bytes) -> int:
    """Return the length that a request's head announces, 0 if none."""
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    end = lower.find(b"\r\n", at + 2)
    return int(lower[at + 17 : end if end > 0 else None])


def stdio() -> None:
    """Answer one JSON line with another until stdin ends."""
    for line in sys.stdin.buffer:
        body = answers.answer(answers.parse(line))
        if body:
            sys.stdout.buffer.write(body + b"\n")
            sys.stdout.buffer.flush()


def main() -> None:
    """Serve HTTP on a free port, or stdin."""
    if "--stdio" in sys.argv:
        stdio()
        return
    server = Server()
    print(f'{{"port": {server.listener.getsockname()[1]}}}', flush=True)
    server.run()


if __name__ == "__main__":
    main()
