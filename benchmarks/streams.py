"""Jobs about time and streams: how late an event is, idle streams, the first byte of an answer."""

import re
import select
import socket
from time import monotonic_ns, perf_counter_ns, process_time
from urllib.parse import SplitResult, urlsplit

from .calls import quantile
from .client import connect, handshake, read, request, tool_call
from .jobs import Events, FirstByte, Idle, Report

_STAMP = re.compile(rb'"progress":(\d+)\}')
_GRACE = 10.0
_IDLE_MS = 600_000


def call_events(url: SplitResult, session: str, events: int, interval_ms: float) -> socket.socket:
    """Ask for a stream of events on a connection of its own."""
    arguments = f'{{"events":{events},"interval_ms":{interval_ms}}}'
    sock = connect(url)
    sock.sendall(request(url, session, tool_call("write_events", arguments, 7)))
    return sock


def events(job: Events) -> Report:
    """Run all streams to their end; an event's time is from its sending to its arrival."""
    url = urlsplit(job.url)
    session = handshake(url)
    cpu, began = process_time(), perf_counter_ns()
    open_streams: dict[int, socket.socket] = {}
    poll = select.epoll()
    for _ in range(job.streams):
        sock = call_events(url, session, job.events, job.interval_ms)
        open_streams[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)
    times: list[int] = []
    until = began + int((job.events * job.interval_ms / 1e3 + _GRACE) * 1e9)
    while open_streams and perf_counter_ns() < until:
        for fd, _ in poll.poll(1.0):
            data = read(open_streams[fd])
            now = monotonic_ns()
            times.extend(now - int(stamp) for stamp in _STAMP.findall(data))
            if not data or data.endswith(b"0\r\n\r\n"):
                open_streams.pop(fd).close()
    poll.close()
    return Report(
        calls=len(times),
        failures=job.streams * job.events - len(times),
        seconds=(perf_counter_ns() - began) / 1e9,
        p50=quantile(times, 50),
        p99=quantile(times, 99),
        cpu_seconds=process_time() - cpu,
    )


def idle(job: Idle) -> tuple[Report, list[socket.socket]]:
    """Open streams, wait for each one's first event, return them open."""
    url = urlsplit(job.url)
    session = handshake(url)
    began = perf_counter_ns()
    opened = [call_events(url, session, 2, _IDLE_MS) for _ in range(job.streams)]
    alive = sum(b'"progress"' in read_until_event(sock) for sock in opened)
    seconds = (perf_counter_ns() - began) / 1e9
    return Report(calls=alive, failures=job.streams - alive, seconds=seconds), opened


def read_until_event(sock: socket.socket) -> bytes:
    """Read a stream's head and first event."""
    data = b""
    while b'"progress"' not in data:
        more = read(sock)
        if not more:
            break
        data += more
    return data


def first_byte(job: FirstByte) -> Report:
    """Ask once; p50 is the time to the first byte of the body, p99 the time to its last."""
    url = urlsplit(job.url)
    arguments = f'{{"bytes":{job.bytes},"pause_ms":{job.pause_ms}}}'
    session = handshake(url)
    began = perf_counter_ns()
    with connect(url) as sock:
        sock.sendall(request(url, session, tool_call("read_big", arguments, 7)))
        data = b""
        while len(data.partition(b"\r\n\r\n")[2]) == 0:
            data += read(sock)
        first, got = perf_counter_ns(), len(data)
        while got < job.bytes:
            got += len(read(sock))
    return Report(
        calls=1,
        seconds=(perf_counter_ns() - began) / 1e9,
        p50=(first - began) / 1e3,
        p99=(perf_counter_ns() - began) / 1e3,
    )
