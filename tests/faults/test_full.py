"""A store without room: new writes are refused or pass unrecorded, running calls are recorded."""

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.stores import turnlog
from kit.beside import proxy_beside
from kit.clients import BOUND, MCP_HEADERS, Client, Response, call, message, wait_until
from kit.proxy import Proxy, rows
from kit.upstreams import Peer, RawUpstream, ok, result, text_result
from turnlog.core.kinds import Status

LIMIT = 5 << 20
"""bytes: small enough to be filled in a moment."""
AT_ONCE = 100
"""Calls of a batch: of this limit 256 KiB are kept for outcomes, and a call takes about 1 KiB, with indexes 2."""
TOOLS: list[dict[str, object]] = [
    {"name": "read", "inputSchema": {}, "annotations": {"readOnlyHint": True}}
]


def server(peer: Peer) -> None:
    request = peer.read()
    if request.body.startswith(b"["):
        peer.send_json([text_result(each["id"], "done") for each in request.json()])
        return
    tools = b'"tools/list"' in request.body
    peer.send_json(result(1, {"tools": TOOLS}) if tools else text_result(1, "done"))


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(server) as running:
        yield running


def settings(upstream: RawUpstream, when_full: str, limit: int = LIMIT) -> dict[str, object]:
    return {
        "upstreams": {"default": {"url": upstream.url, "trust_annotations": True}},
        "limits": {"store": limit, "when_full": when_full},
    }


def post(proxy: Proxy, body: bytes, *headers: tuple[str, str]) -> Response:
    with Client(proxy.url) as client:
        return client.request("POST", "/mcp", body, headers=(*MCP_HEADERS, *headers))


def fill(proxy: Proxy, upstream: RawUpstream) -> None:
    """Call a tool, many times in one batch, until that is refused or not recorded any more."""
    batch = b"[" + b",".join(call("write", {"n": n}, request_id=n) for n in range(AT_ONCE)) + b"]"
    with Client(proxy.url) as client:
        for _ in range(100):
            before = len(upstream.requests)
            given = client.request("POST", "/mcp", batch, headers=MCP_HEADERS)
            refused = b"isError" in given.body
            assert refused == (len(upstream.requests) == before)
            if refused or proxy.events("recorder.failed"):
                return
    raise AssertionError(f"many calls did not fill a store of {LIMIT} bytes")


@pytest.mark.promise("STORE-5")
def test_a_full_store_refuses_writes_before_they_are_sent(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    with proxy_beside(tmp_path, settings=settings(upstream, "refuse_writes")) as proxy:
        fill(proxy, upstream)
        sent = len(upstream.requests)
        said = post(proxy, call("write", request_id="next")).json()
        assert said["result"]["isError"] is True
        outcome = said["result"]["_meta"]["turnlog/outcome"]
        assert outcome == outcome | {
            "status": "error",
            "error": "session",
            "kind": "session_unavailable",
            "retry": "safe",
            "executed": "no",
            "phase": "queued",
        }
        for n in range(2):
            said = post(proxy, call("write", request_id=n), ("Idempotency-Key", "one")).json()
            assert said["result"]["_meta"]["turnlog/outcome"]["kind"] == "session_unavailable"
        with Client(proxy.url) as client:
            given = client.request("PUT", "/files/1", b"x")
        assert (given.status, given.head.one("content-type")) == (503, "application/problem+json")
        assert given.json()["turnlog/outcome"]["kind"] == "session_unavailable"
        assert len(upstream.requests) == sent
        assert proxy.told("request.refused")
        assert post(proxy, message("ping")).status == 200
        read = message("resources/read", {"uri": "file:///a"}, request_id=1)
        assert post(proxy, read).status == 200, "what is no call passes unrecorded"
        assert upstream.requests[-1].body == read
    log = rows(proxy.data)
    assert len([row for row in log if row.status == "ok"]) >= 1000
    assert {(row.kind, row.executed) for row in log if row.status != "ok"} <= {
        ("session_unavailable", "no")
    }
    assert turnlog("verify", data=proxy.data).returncode == 0
    grown = (proxy.data / "log" / "data.mdb").stat().st_blocks * 512
    assert grown < LIMIT


@pytest.mark.promise("STORE-6")
def test_a_full_store_forwards_unrecorded_where_it_is_told_to(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    with proxy_beside(tmp_path, settings=settings(upstream, "forward_unrecorded")) as proxy:
        fill(proxy, upstream)
        sent = len(upstream.requests)
        assert b"done" in post(proxy, call("write")).body
        assert len(upstream.requests) == sent + 1
        wait_until(lambda: unrecorded(proxy), "the log says so")
        assert proxy.told("recorder.failed")
        # The store does not have the first answer; the second call is answered from memory. On another
        # connection it may come before that holds it.
        keyed = (*MCP_HEADERS, ("Idempotency-Key", "one"))
        with Client(proxy.url) as client:
            for _ in range(2):
                given = client.request("POST", "/mcp", call("write", {"n": 1}), headers=keyed)
                assert b"done" in given.body
        assert len(upstream.requests) == sent + 2


def unrecorded(proxy: Proxy) -> bool:
    ended = proxy.events("call.ended")
    return any("unrecorded" in event.get("turnlog.flags", ()) for event in ended)


def test_a_call_that_runs_when_the_store_fills_up_is_recorded(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    go, asked = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        if b'"slow"' in peer.read().body:
            asked.set()
            assert go.wait(BOUND)
        server(peer)

    upstream.script = script
    with (
        proxy_beside(tmp_path, settings=settings(upstream, "refuse_writes")) as proxy,
        Client(proxy.url) as client,
    ):
        client.ask("POST", "/mcp", call("slow"), headers=MCP_HEADERS)
        assert asked.wait(BOUND)
        fill(proxy, upstream)
        go.set()
        assert b"done" in client.response().body
    (slow,) = [row for row in rows(proxy.data) if row.tool == "slow"]
    assert (slow.status, slow.executed) == ("ok", "yes")


def test_more_room_lets_writes_through_again(tmp_path: Path, upstream: RawUpstream) -> None:
    with proxy_beside(tmp_path, settings=settings(upstream, "refuse_writes")) as proxy:
        fill(proxy, upstream)
    larger = settings(upstream, "refuse_writes", 10 * LIMIT)
    with proxy_beside(tmp_path, settings=larger) as proxy:
        assert b"done" in post(proxy, call("write")).body


def size(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_really_full_refuses_writes_and_goes_on(
    tmp_path: Path, upstream: RawUpstream, small_disk: Path
) -> None:
    flags = ("--data", str(small_disk / "data"))
    with proxy_beside(
        tmp_path, settings=settings(upstream, "refuse_writes", 8 << 20), flags=flags
    ) as proxy:
        assert b"done" in post(proxy, call("write")).body
        ballast = small_disk / "ballast"
        free = shutil.disk_usage(small_disk).free
        ballast.write_bytes(bytes(free - 65_536))
        wait_until(lambda: b"isError" in post(proxy, call("write")).body, "a write is refused")
        assert post(proxy, message("ping")).status == 200
        ballast.unlink()
        wait_until(lambda: b"isError" not in post(proxy, call("write")).body, "writes go on")
    assert turnlog("verify", data=small_disk / "data").returncode == 0
    assert "pending" not in {row.status for row in rows(small_disk / "data")}


@pytest.mark.promise("WAIT-10")
@pytest.mark.parametrize("running", [True, False])
def test_outcomes_that_find_no_disk_are_written_later_and_hold_back_no_answer(
    tmp_path: Path, upstream: RawUpstream, small_disk: Path, running: bool
) -> None:
    """Later: as soon as there is room, at the latest when the proxy stops."""
    calls = 20
    go, asked = threading.Event(), threading.Semaphore(0)

    def script(peer: Peer) -> None:
        peer.read()
        asked.release()
        assert go.wait(BOUND)
        peer.send(ok(json.dumps(text_result(1, "z" * 300_000)).encode()))

    upstream.script = script
    data = small_disk / "data"
    with proxy_beside(
        tmp_path,
        settings=settings(upstream, "refuse_writes", 8 << 20),
        flags=("--data", str(data)),
    ) as proxy:
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(proxy.url)) for _ in range(calls)]
            for client in clients:
                client.ask("POST", "/mcp", call("write"), headers=MCP_HEADERS)
                assert asked.acquire(timeout=BOUND)
            with (small_disk / "ballast").open("wb", buffering=0) as ballast:
                _fill_up(ballast.write)
            go.set()
            assert all(b"zzz" in client.response().body for client in clients)
        ended = proxy.told("call.ended", calls)
        missed = [event for event in ended if event.get("turnlog.flags") == ["unrecorded"]]
        said = {event["error.message"] for event in proxy.told("recorder.failed")}
        assert all("free space on the disk" in text for text in said), said
        pending = [row for row in rows(data) if row.status is Status.PENDING]
        assert 0 < len(pending) <= len(missed)
        assert b"isError" in post(proxy, call("write")).body
        (small_disk / "ballast").unlink()
        if running:
            wait_until(lambda: settled(data), "the outcomes are written")
            assert b"isError" not in post(proxy, call("write")).body
    assert turnlog("verify", data=data).returncode == 0
    assert {(row.status, row.executed) for row in rows(data)} == {("ok", "yes")}
    assert not any("unrecorded" in row.flags for row in rows(data))


def settled(data: Path) -> bool:
    return Status.PENDING not in {row.status for row in rows(data)}


def _fill_up(write: Callable[[bytes], int | None]) -> None:
    for count in (1 << 20, 4096, 1):
        try:
            while True:
                write(bytes(count))
        except OSError:
            continue
