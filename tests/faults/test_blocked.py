"""The store cannot be written while turnlog runs: what cannot be recorded is not sent, and turnlog says so."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from conformance.store.kit import intent, new_id, put, session
from e2e.stores import turnlog
from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, Response, call
from kit.disks import disk_of, fill_disk
from kit.holding import nobody_writes
from kit.proxy import Proxy, rows, running, until
from kit.upstreams import RawUpstream, echo
from kit.wraps import wrapping
from turnlog.core.commit import CommitBody
from turnlog.core.kinds import Effect
from turnlog.store.base import Blob, StoreError
from turnlog.store.lmdb import LmdbReader, LmdbStore

RULES = (
    "rules: [{match: {tool: 'read_*'}, effect: read}, {match: {tool: pay}, effect: irreversible}]\n"
)


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(echo) as running:
        yield running


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(RULES)
    return file


def post(proxy: Proxy, tool: str, number: int = 1) -> Response:
    with Client(proxy.url) as client:
        body = call(tool, {"n": number}, request_id=number)
        return client.request("POST", "/mcp", body, headers=MCP_HEADERS)


def is_refused(answer: Response) -> bool:
    """Tell whether a call was refused because it cannot be recorded, and said to be so."""
    meta = answer.json()["result"].get("_meta", {})
    said = meta.get("turnlog/outcome", {})
    return (said.get("kind"), said.get("executed")) == ("session_unavailable", "no")


def readiness(proxy: Proxy) -> int:
    with Client(proxy.url) as client:
        return client.request("GET", "/turnlog/ready").status


@pytest.mark.promise("STORE-7")
@pytest.mark.parametrize("tool", ["pay", "unnamed", "read_file"])
@pytest.mark.parametrize("moved", [True, False], ids=["moved", "removed"])
def test_no_call_is_sent_while_the_data_folder_is_gone(
    tmp_path: Path, upstream: RawUpstream, rules: Path, tool: str, moved: bool
) -> None:
    with proxy_beside(tmp_path, upstream.url, flags=["--rules", str(rules)]) as proxy:
        assert not is_refused(post(proxy, tool))
        away = tmp_path / "away"
        proxy.data.rename(away)
        if not moved:
            shutil.rmtree(away)
        # Reads wait for no write: they are refused from the next look on, every second.
        proxy.told("store.blocked")
        assert readiness(proxy) == 503
        sent = len(upstream.requests)
        assert is_refused(post(proxy, tool, 2))
        assert len(upstream.requests) == sent
        assert not proxy.data.exists()
        (blocked,) = proxy.events("store.blocked")
        assert "was removed, moved or replaced" in blocked["error.message"]
        if moved:
            away.rename(proxy.data)
            proxy.told("store.unblocked")
            assert readiness(proxy) == 200
            assert not is_refused(post(proxy, tool, 3))
    if moved:
        assert [row.status for row in rows(proxy.data)] == ["ok", "ok"]


async def test_a_store_at_the_place_of_another_is_left_alone_until_the_next_start(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data)
    await put(store, intent(session(), new_id(), blob=Blob(b"before")))
    shutil.rmtree(data)
    other = LmdbStore.open(tmp_path / "other")
    await other.close()
    (tmp_path / "other").rename(data)
    before = contents(data)
    ticket = store.submit(intent(session(), new_id(), blob=Blob(b"after")), wait=True)
    with pytest.raises(StoreError, match="another file now"):
        await ticket.done()
    assert "another file now" in store.down
    with pytest.raises(StoreError, match="another file now"):
        store.submit(intent(session(), new_id(), effect=Effect.READ), wait=False)
    await store.close()
    assert contents(data) == before
    again = LmdbStore.open(data)
    await put(again, intent(session(), new_id()))
    await again.close()


def contents(data: Path) -> dict[Path, bytes]:
    """Return what lies in a data folder, but for LMDB's locks."""
    files = (path for path in data.rglob("*") if path.is_file() and path.name != "lock.mdb")
    return {path: path.read_bytes() for path in files}


async def test_a_folder_that_is_put_back_is_written_again(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "data")
    ref = session()
    await put(store, intent(ref, new_id()))
    (tmp_path / "data").rename(tmp_path / "away")
    with pytest.raises(StoreError, match=r"is gone|no such file"):
        await put(store, intent(ref, new_id()))
    (tmp_path / "away").rename(tmp_path / "data")
    await until(lambda: not store.down or None, "the store to be written again")
    assert (await put(store, intent(ref, new_id()))).link.seq == 2
    await store.close()
    reader = LmdbReader.open(tmp_path / "data")
    with reader.view() as view:
        assert view.last == 3
    reader.close()


def test_a_wrapped_command_is_not_asked_while_the_data_folder_is_gone(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.server.answer(wrap.asked(call("pay", {"n": 1}, request_id=1)))
        assert "error" not in wrap.stdout.json()
        wrap.data.rename(tmp_path / "away")
        wrap.send(call("pay", {"n": 2}, request_id=2))
        said = wrap.stdout.json()["result"]["_meta"]["turnlog/outcome"]
        assert (said["kind"], said["executed"]) == ("session_unavailable", "no")
        assert wrap.server.stdin.is_silent()
        (tmp_path / "away").rename(wrap.data)


def on(disk: Path, folder: Path) -> Path:
    """Return `folder` with its data on a disk, and nothing else."""
    (disk / "data").mkdir()
    (folder / "data").symlink_to(disk / "data")
    return folder


@pytest.mark.promise("STORE-7")
async def test_a_proxy_is_not_ready_while_the_disk_is_full(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    with disk_of(tmp_path / "disk", 48) as disk:
        async with running(on(disk, tmp_path), upstream.url) as proxy:
            assert not is_refused(await asyncio.to_thread(post, proxy, "pay"))
            filler = fill_disk(disk)
            await until(lambda: proxy.events("store.blocked") or None, "the full disk to be told")
            assert await asyncio.to_thread(readiness, proxy) == 503
            sent = len(upstream.requests)
            assert is_refused(await asyncio.to_thread(post, proxy, "pay", 2))
            assert len(upstream.requests) == sent
            status = turnlog("status", "--data", str(proxy.data))
            assert "room        none: calls are refused" in status.stdout
            filler.unlink()
            await until(lambda: proxy.events("store.unblocked") or None, "room to be told")
            assert await asyncio.to_thread(readiness, proxy) == 200
            assert not is_refused(await asyncio.to_thread(post, proxy, "pay", 3))


async def test_a_proxy_is_not_ready_while_no_write_comes_to_an_end(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    async with running(tmp_path, upstream.url) as proxy:
        async with asyncio.TaskGroup() as tasks:
            with nobody_writes(proxy.data):
                asking = tasks.create_task(asyncio.to_thread(post, proxy, "pay"))
                await until(lambda: proxy.events("store.blocked") or None, "the stall to be told")
                assert "no write to the store has ended" in str(proxy.events("store.blocked"))
                assert await asyncio.to_thread(readiness, proxy) == 503
                assert upstream.requests == []
        assert not is_refused(asking.result())
        await until(lambda: proxy.events("store.unblocked") or None, "the end of it to be told")
        assert await asyncio.to_thread(readiness, proxy) == 200


async def test_a_disk_of_32_mib_is_used_from_the_first_call_on(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    with disk_of(tmp_path / "disk", 32) as disk:
        async with running(on(disk, tmp_path), upstream.url) as proxy:
            for number in range(20):
                assert not is_refused(await asyncio.to_thread(post, proxy, "pay", number))
            assert await asyncio.to_thread(readiness, proxy) == 200
            said = turnlog("status", "--json", "--data", str(proxy.data))
            status = msgspec.json.decode(said.stdout)
            assert status["reserve"] == (32 << 20) // 20
            assert status["room"] > 4 << 20
        assert not proxy.events("store.blocked")


async def test_a_proxy_says_at_the_start_that_there_is_no_room(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    settings = {"upstreams": {"default": {"url": upstream.url}}, "limits": {"store": 1 << 20}}
    store = LmdbStore.open(tmp_path / "data")
    for _ in range(5):
        await put(store, intent(session(), new_id(), body=CommitBody(summary="x" * 300_000)))
    await store.close()
    async with running(tmp_path, settings=settings) as proxy:
        (blocked,) = await until(lambda: proxy.events("store.blocked"), "the shortage to be told")
        assert "raise limits.store" in blocked["error.message"]
        assert await asyncio.to_thread(readiness, proxy) == 503
