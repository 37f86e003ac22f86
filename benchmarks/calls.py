"""Closed loops of calls over kept-alive connections: one thread, raw epoll.

Every answer is checked: status, length, and the name that its request asked for. Nothing is
pipelined, so an answer ends where the data does, which makes framing cheap enough to outrun the
proxies.
"""

import re
import select
from itertools import count
from time import perf_counter_ns, process_time
from urllib.parse import SplitResult, urlsplit

from .client import connect, handshake, read, request, tool_call
from .jobs import Calls, Report, Request

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_GRACE_NS = 5_000_000_000
_KEPT = 4096
_MOST_FAILURES = 1000
# Ten digits each, so that all requests of a run have one length, and never the same twice.
_NUMBERS = count(1_000_000_000)
_SAMPLE = 9_999_999_999
_TOOLS = {
    Request.READ: "read_item",
    Request.WRITE: "write_item",
    Request.GUARDED: "append_item",
    Request.BIG: "read_big",
}


def script(url: SplitResult, job: Calls, session: str) -> list[bytes]:
    """Return the parts of a request; joined by its number they are the request."""
    if job.request is Request.GET:
        base = url.path.removesuffix("/mcp")
        head = f"GET {base}/items/{_SAMPLE} HTTP/1.1\r\nHost: {url.netloc}\r\n"
        return f"{head}User-Agent: bench\r\nAccept: */*\r\n\r\n".encode().split(b"%d" % _SAMPLE)
    arguments = (
        f'{{"item":"{_SAMPLE}","bytes":{job.bytes},"path":"/srv/project/notes/2026/november.md",'
        '"mode":"append","content":"What was found this morning is kept here for later turns",'
        '"why":"the user asked for a summary of every file that speaks of the harbour"}'
    )
    body = tool_call(_TOOLS[job.request], arguments, _SAMPLE)
    return request(url, session, body).split(b"%d" % _SAMPLE)


class Lane:
    """One connection and the call that is under way on it."""

    __slots__ = ("expected", "got", "head", "marker", "sock", "started")

    def __init__(self, url: SplitResult) -> None:
        self.sock = connect(url)
        self.begin(b"")

    def begin(self, marker: bytes) -> None:
        """Wait for a new answer, one that holds `marker`."""
        self.marker = marker
        self.got = 0
        self.expected = 0
        self.head = b""
        self.started = perf_counter_ns()

    def feed(self, data: bytes) -> bool:
        """Take what arrived; tell whether the answer is complete. `expected` < 0 is chunked."""
        self.got += len(data)
        if len(self.head) < _KEPT:
            self.head += data
        if not self.expected:
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return False
            length = _LENGTH.search(self.head, 0, end + 2)
            self.expected = end + 4 + int(length[1]) if length else -1
        if self.expected < 0:
            return data.endswith(b"0\r\n\r\n")
        return self.got >= self.expected

    def right(self, size: int) -> bool:
        """Tell whether the complete answer is the one asked for, of at least `size` bytes."""
        return (
            self.head.startswith(b"HTTP/1.1 200")
            and self.got > size
            and (self.expected < 0 or self.got == self.expected)
            and self.marker in self.head
        )


class Run:
    """One job of calls from first to last."""

    def __init__(self, job: Calls) -> None:
        self.job = job
        self.url = urlsplit(job.url)
        session = "" if job.request is Request.GET else handshake(self.url)
        self.parts = script(self.url, job, session)
        self.poll = select.epoll()
        self.lanes: dict[int, Lane] = {}
        self.sent = 0
        self.times: list[int] = []
        self.failures = 0
        self.trouble = ""

    def run(self) -> Report:
        """Call until time or limit is reached, then wait for what is under way."""
        cpu = process_time()
        began = perf_counter_ns()
        until = began + int(self.job.seconds * 1e9)
        for _ in range(self.job.connections):
            self.open()
        while self.lanes and perf_counter_ns() < until + _GRACE_NS:
            for fd, _ in self.poll.poll(1.0):
                self.receive(fd, until)
        seconds = (perf_counter_ns() - began) / 1e9
        for fd in tuple(self.lanes):
            self.wrong(b"no answer within the grace time")
            self.close(fd)
        self.poll.close()
        return self.report(seconds, process_time() - cpu)

    def open(self) -> None:
        """Connect a lane and send its first request."""
        lane = Lane(self.url)
        self.lanes[lane.sock.fileno()] = lane
        self.poll.register(lane.sock, select.EPOLLIN)
        self.send(lane)

    def send(self, lane: Lane) -> None:
        """Send the next request on `lane`."""
        number = b"%d" % next(_NUMBERS)
        self.sent += 1
        lane.begin(b"item " + number)
        lane.sock.send(number.join(self.parts))

    def receive(self, fd: int, until: int) -> None:
        """Read from a lane; when its answer is complete, check it and go on or stop."""
        lane = self.lanes[fd]
        data = read(lane.sock)
        if not data:
            self.wrong(b"connection closed")
            self.close(fd)
            if perf_counter_ns() < until and self.failures < _MOST_FAILURES:
                self.open()
            return
        if not lane.feed(data):
            return
        now = perf_counter_ns()
        if lane.right(self.job.bytes):
            self.times.append(now - lane.started)
        else:
            self.wrong(lane.head)
        if now < until and not 0 < self.job.limit <= self.sent:
            self.send(lane)
        else:
            self.close(fd)

    def close(self, fd: int) -> None:
        """End a lane."""
        self.lanes.pop(fd).sock.close()

    def wrong(self, what: bytes) -> None:
        """Count a failure and keep the first one's text."""
        self.failures += 1
        self.trouble = self.trouble or what[:300].decode("utf-8", "replace")

    def report(self, seconds: float, cpu: float) -> Report:
        """Sum up."""
        return Report(
            calls=len(self.times),
            failures=self.failures,
            seconds=seconds,
            p50=quantile(self.times, 50),
            p99=quantile(self.times, 99),
            cpu_seconds=cpu,
            trouble=self.trouble,
        )


def quantile(times: list[int], percent: int) -> float:
    """Return a percentile of `times` (ns) in microseconds, 0 if there are none."""
    if not times:
        return 0.0
    return sorted(times)[len(times) * percent // 100] / 1e3
