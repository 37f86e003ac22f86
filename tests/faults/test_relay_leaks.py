"""Whatever goes wrong with an exchange, nothing of it stays: no task, no connection, no open call."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.clients import BOUND, MCP_HEADERS, Client, call, message
from kit.faults import CloseAfterRequest, CutBody, CutStream, Hangs
from kit.proxy import Serving, here, rows, until
from kit.upstreams import HungUpError, Peer, RawUpstream, chunked, echo, event, ok, text_result
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.http.runner import HttpCarrier
from turnlog.transport.http_client import Connection
from turnlog.transport.http_server import AgentConnection

COUNT = 8
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
RETRIED = """
rules:
  - match: {tool: "GET *"}
    effect: read
    retry: {on: connection, max_attempts: 2, base_interval: 10ms}
"""
HUGE = (("Content-Length", str(50 << 20)),)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[tuple[RawUpstream, Serving]]:
    with RawUpstream() as upstream:
        async with here(tmp_path, upstream.url) as serving:
            yield upstream, serving


def leaves_while_it_waits(url: str, upstream: RawUpstream) -> None:
    hangs = Hangs()
    upstream.script = hangs
    with Client(url) as client:
        client.ask("POST", "/mcp", call("x"), headers=MCP_HEADERS)
        assert hangs.asked.wait(BOUND)


def leaves_in_a_stream(url: str, upstream: RawUpstream) -> None:
    upstream.script = Hangs(HEAD, chunked(event({"jsonrpc": "2.0", "method": "x"})))
    with Client(url) as client:
        client.ask("POST", "/mcp", call("x"), headers=MCP_HEADERS)
        client.head()
        client.event()


def leaves_a_flood(url: str, upstream: RawUpstream) -> None:
    def flood(peer: Peer) -> None:
        peer.read()
        peer.send(HEAD)
        while True:
            peer.send(chunked(b"data: " + bytes(60_000) + b"\n\n"))

    upstream.script = flood
    with Client(url, receive_buffer=8192) as client:
        client.ask("POST", "/mcp", call("x"), headers=MCP_HEADERS)
        client.head()


def resets(url: str, upstream: RawUpstream) -> None:
    hangs = Hangs()
    upstream.script = hangs
    client = Client(url)
    client.ask("GET", "/mcp", headers=(("Accept", "text/event-stream"),))
    assert hangs.asked.wait(BOUND)
    client.reset()


def stops_sending(url: str, upstream: RawUpstream) -> None:
    with Client(url) as client:
        client.ask("POST", "/mcp", headers=(*MCP_HEADERS, ("Content-Length", "1000")))
        client.send(b"{")


def stops_sending_a_large_body(url: str, upstream: RawUpstream) -> None:
    seen = threading.Event()

    def script(peer: Peer) -> None:
        seen.set()
        peer.wait_for_hang_up()

    upstream.script = script
    with Client(url) as client:
        client.ask("PUT", "/tool", headers=HUGE)
        client.send(bytes(2 << 20))
        assert seen.wait(BOUND)


def is_answered_early(url: str, upstream: RawUpstream) -> None:
    def refuse(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
        peer.wait_for_hang_up()

    upstream.script = refuse
    with Client(url) as client:
        client.ask("PUT", "/tool", headers=HUGE)
        client.send(bytes(2 << 20))
        assert client.response().status == 413


def waits_for_an_early_answer_and_sends_on(url: str, upstream: RawUpstream) -> None:
    def refuse(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
        peer.close()

    upstream.script = refuse
    with Client(url) as client:
        client.ask("PUT", "/tool", headers=(("Content-Length", str(3 << 20)),))
        client.send(bytes(2 << 20))
        assert client.response().status == 413
        try:
            client.send(bytes(1 << 20))
        except OSError:
            return


def meets_a_server_that_never_reads(url: str, upstream: RawUpstream) -> None:
    seen = threading.Event()

    def script(peer: Peer) -> None:
        seen.set()
        if not release.wait(BOUND):
            raise HungUpError
        peer.close()

    release = threading.Event()
    upstream.script = script
    with Client(url) as client:
        client.ask("PUT", "/tool", headers=HUGE)
        client.send(bytes(2 << 20))
        assert seen.wait(BOUND)
    release.set()


def meets_a_cut_stream(url: str, upstream: RawUpstream) -> None:
    upstream.script = CutStream((b"data: x\n\n",))
    with Client(url) as client:
        client.request("POST", "/mcp", call("x"), headers=MCP_HEADERS)


def meets_a_cut_body(url: str, upstream: RawUpstream) -> None:
    upstream.script = CutBody(b"{", 100)
    with Client(url) as client:
        client.ask("POST", "/mcp", call("x"), headers=MCP_HEADERS)
        client.rest()


def meets_a_closed_connection(url: str, upstream: RawUpstream) -> None:
    upstream.script = CloseAfterRequest()
    with Client(url) as client:
        client.request("POST", "/mcp", call("x"), headers=MCP_HEADERS)


def leaves_before_the_answer(url: str, upstream: RawUpstream) -> None:
    go = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        assert go.wait(BOUND)
        peer.send(ok(b"x" * (8 << 20)))

    upstream.script = script
    with Client(url) as client:
        client.ask("POST", "/mcp", call("x"), headers=MCP_HEADERS)
        upstream.wait_for_requests(1)
    go.set()


def sends_garbage(url: str, upstream: RawUpstream) -> None:
    with Client(url) as client:
        client.send(b"\x00\x01\x02\r\n\r\n")


def says_nothing(url: str, upstream: RawUpstream) -> None:
    Client(url).close()


MISHAPS: list[Callable[[str, RawUpstream], None]] = [
    leaves_while_it_waits,
    leaves_in_a_stream,
    leaves_a_flood,
    resets,
    stops_sending,
    stops_sending_a_large_body,
    is_answered_early,
    waits_for_an_early_answer_and_sends_on,
    meets_a_server_that_never_reads,
    meets_a_cut_stream,
    meets_a_cut_body,
    meets_a_closed_connection,
    leaves_before_the_answer,
    sends_garbage,
    says_nothing,
]


def proxy_tasks() -> int:
    """Count the tasks of this loop, this one left out."""
    return len(asyncio.all_tasks()) - 1


@pytest.mark.promise("WAIT-12")
@pytest.mark.parametrize("mishap", MISHAPS)
async def test_nothing_stays_of_an_exchange_whose_agent(
    rig: tuple[RawUpstream, Serving],
    mishap: Callable[[str, RawUpstream], None],
    tmp_path: Path,
) -> None:
    upstream, serving = rig
    before = proxy_tasks()
    open_before = len(asyncio.all_tasks())
    for _ in range(COUNT):
        await asyncio.to_thread(mishap, serving.url, upstream)
    await until(lambda: True if proxy_tasks() <= before else None, "the end of all tasks", BOUND)
    assert len(asyncio.all_tasks()) == open_before
    upstream.script = echo
    assert await asyncio.to_thread(works, serving.url)


def works(url: str) -> bool:
    with Client(url) as client:
        given = client.request("POST", "/mcp", message("ping"), headers=MCP_HEADERS)
    return given.status == 200


@pytest.mark.promise("WAIT-12")
async def test_no_call_stays_open_after_all_mishaps(tmp_path: Path) -> None:
    with RawUpstream() as upstream:
        async with here(tmp_path, upstream.url) as serving:
            before = proxy_tasks()
            for mishap in MISHAPS:
                await asyncio.to_thread(mishap, serving.url, upstream)
            await until(lambda: True if proxy_tasks() <= before else None, "the end", BOUND)
            upstream.script = lambda peer: peer.send_json(
                text_result(peer.read().json()["id"], "x")
            )
            assert await asyncio.to_thread(works, serving.url)
    gc.collect()
    assert "pending" not in {row.status for row in rows(tmp_path / "data")}
    assert {row.kind for row in rows(tmp_path / "data") if row.status == "unknown"} <= {
        "cancelled_by_caller",
        "connection_lost",
    }


@contextmanager
def no_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.promise("WAIT-12")
@pytest.mark.parametrize("request_of", [call("x"), message("ping"), b"plain"])
async def test_an_exchange_that_has_ended_is_gone_without_the_cycle_collector(
    rig: tuple[RawUpstream, Serving], request_of: bytes
) -> None:
    # With cycles in it each call's objects wait for the collector: measured, a quarter of the time.
    upstream, serving = rig
    upstream.script = lambda peer: peer.send_json(text_result(1, peer.read().body.decode()))

    def ask() -> None:
        with Client(serving.url) as client:
            for _ in range(COUNT):
                assert client.request("POST", "/mcp", request_of, headers=MCP_HEADERS).status == 200

    with no_collector():
        await asyncio.to_thread(ask)
        await until(lambda: True if not runners() else None, "the end of all exchanges", BOUND)


def is_answered(url: str, upstream: RawUpstream) -> None:
    upstream.script = echo
    assert works(url)


@pytest.mark.parametrize("course", [is_answered, leaves_in_a_stream, says_nothing])
async def test_a_connection_that_has_ended_is_gone_without_the_cycle_collector(
    rig: tuple[RawUpstream, Serving], course: Callable[[str, RawUpstream], None]
) -> None:
    # A parser refers to its connection: measured, 5 KB wait for the collector with each agent's, and
    # memory that lies among them is not given back.
    upstream, serving = rig
    with no_collector():
        for _ in range(COUNT):
            await asyncio.to_thread(course, serving.url, upstream)
        await until(lambda: True if not connections() else None, "the end of all", BOUND)


@pytest.mark.parametrize("leaves", [False, True])
async def test_of_an_exchange_whose_call_may_be_resumed_only_the_call_stays(
    tmp_path: Path, leaves: bool
) -> None:
    (tmp_path / "rules.yaml").write_text("rules: [{retry: {on: connection}}]")

    def begins(peer: Peer) -> None:
        peer.read()
        peer.send(HEAD + chunked(b"id: 1\ndata:\n\n"))
        if leaves:
            peer.wait_for_hang_up()
        else:
            peer.end()

    def ask(url: str) -> None:
        for number in range(COUNT):
            with Client(url) as client:
                body = call("x", request_id=number)
                client.ask("POST", "/mcp", body, headers=MCP_HEADERS)
                client.head()
                client.event() if leaves else client.until(b"0\r\n\r\n")

    settings = {"rules": ["rules.yaml"]}
    with RawUpstream(begins) as upstream, no_collector():
        async with here(tmp_path, upstream.url, settings=settings) as serving:
            await asyncio.to_thread(ask, serving.url)
            await until(lambda: True if not runners() else None, "the end of all exchanges", BOUND)
            assert count(CallDriver) == COUNT  # the calls: they may yet be answered or cancelled


def runners() -> int:
    return count(HttpCarrier)


def connections() -> int:
    return count(AgentConnection) + count(Connection)


def count(kind: type) -> int:
    return sum(isinstance(each, kind) for each in gc.get_objects())
