"""What is known of a call after its proxy died, and of one that another proxy has under way."""

import asyncio
import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from conformance.store.kit import intent, new_id, put, session
from kit.beside import proxy_beside, session_notes, session_rows
from kit.clients import MCP_HEADERS, Client, call, wait_until
from kit.proxy import Proxy
from kit.upstreams import Peer, RawUpstream, text_result
from turnlog.store.lmdb import LmdbStore
from turnlog.store.log.tables import NAMES

RULES = """
rules:
  - match: {tool: "write*"}
    effect: write
  - match: {tool: "put*"}
    effect: idempotent_write
  - match: {tool: "pay*"}
    effect: irreversible
  - match: {tool: "*_secret"}
    redact: $.args.a
"""
SETTINGS = {"rules": ["rules.yaml"], "never_twice": {"join_after": "1h"}}
PATH = "/s/one/mcp"


OLD, NEW = "2025-11-25", "2026-07-28"


def headers_of(era: str) -> tuple[tuple[str, str], ...]:
    return (*MCP_HEADERS, ("MCP-Protocol-Version", era))


class Counting:
    """Count calls; answer each with its number once it is let go, or with its input."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = threading.Event()
        self.text = ""

    def __call__(self, peer: Peer) -> None:
        said = json.loads(peer.read().body)
        self.asked += 1
        number = self.asked
        while not self.go.wait(0.01):
            if peer.wait_for_hang_up(0.01):
                return
        peer.send_json(text_result(said["id"], self.text or f"done {number}"))


@contextmanager
def proxy(folder: Path, upstream: RawUpstream) -> Generator[Proxy]:
    (folder / "rules.yaml").write_text(RULES)
    with proxy_beside(folder, upstream.url, settings=SETTINGS) as one:
        yield one


def ask(one: Proxy, tool: str, request_id: int | str = 1, era: str = OLD) -> Any:
    with Client(one.url) as client:
        body = call(tool, {"a": 1}, request_id=request_id)
        given = client.request("POST", PATH, body, headers=headers_of(era))
    assert given.json()["id"] == request_id
    return given.json()["result"]


def flush(data: Path) -> None:
    """Let the store write down where everything is."""

    async def put_one() -> None:
        store = LmdbStore.open(data, flush_every=1)
        await put(store, intent(session("another"), new_id()))
        await store.close()

    asyncio.run(put_one())


def damage(data: Path, table: str, spoil: Callable[[bytes], bytes]) -> None:
    """Rewrite all runs of a table behind the store's back."""
    with lmdb.open(str(data / "log"), max_dbs=len(NAMES), map_size=1 << 40) as env:
        database = env.open_db(table.encode(), create=False)
        with env.begin(write=True, db=database) as txn:
            for key, value in list(txn.cursor()):
                txn.put(key, spoil(value))


def outcome(said: Any) -> tuple[str, str | None, str, str]:
    told = said["_meta"]["turnlog/outcome"]
    return told["status"], told["kind"], told["executed"], told["retry"]


def text(said: Any) -> str:
    return str(said["content"][0]["text"])


@pytest.mark.promise("TWICE-9")
@pytest.mark.parametrize("era", [OLD, NEW])
@pytest.mark.parametrize("tool", ["write", "put", "pay"])
def test_who_asks_again_after_a_crash_is_told_once_that_nobody_knows(
    tmp_path: Path, tool: str, era: str
) -> None:
    counting = Counting()
    with RawUpstream(counting) as upstream:
        with proxy(tmp_path, upstream) as one, Client(one.url) as client:
            client.ask("POST", PATH, call(tool, {"a": 1}), headers=headers_of(era))
            wait_until(lambda: counting.asked == 1, "the call is at the server")
            one.kill()
        counting.go.set()
        with proxy(tmp_path, upstream) as one:
            said = ask(one, tool, era=era)
            assert said["isError"] is True
            assert outcome(said) == (
                "error",
                "outcome_unknown",
                "maybe",
                "if_idempotent" if tool == "put" else "unsafe",
            )
            again = ask(one, tool, "again", era)
            other = ask(one, "write_other", era=era)
    assert text(other).startswith("done")
    rows = session_rows(one.data, "one")
    if tool == "pay":
        assert outcome(again) == outcome(said)
        assert counting.asked == 2
    else:
        assert (text(again), counting.asked) == ("done 2", 3)
        assert "repeat_of_unknown" in rows[2].flags
    assert [row.status for row in rows[:2]] == ["unknown", "error"]


@pytest.mark.promise("TWICE-7")
@pytest.mark.parametrize("tool", ["write", "write_secret"])
def test_an_answer_that_was_on_disk_when_the_proxy_died_is_given_to_who_asks_again(
    tmp_path: Path, tool: str
) -> None:
    counting = Counting()
    with RawUpstream(counting) as upstream:
        with proxy(tmp_path, upstream) as one:
            client = Client(one.url)
            client.ask("POST", PATH, call(tool, {"a": 1}), headers=MCP_HEADERS)
            wait_until(lambda: counting.asked == 1, "the call is at the server")
            client.close()
            wait_until(lambda: session_notes(one.data, "one") == ["abandoned"], "it is noticed")
            counting.go.set()
            wait_until(lambda: session_rows(one.data, "one")[0].status == "ok", "it has ended")
            one.kill()
        with proxy(tmp_path, upstream) as one:
            said = ask(one, tool, "again")
            assert said["_meta"]["turnlog/outcome"]["status"] == "replayed"
            assert text(said) == "done 1"
            assert counting.asked == 1
            assert text(ask(one, tool)) == "done 2"
    assert session_notes(one.data, "one") == ["abandoned", "delivered", "delivered"]


@pytest.mark.promise("TWICE-8")
def test_of_an_answer_that_is_not_kept_whole_it_is_said_that_there_was_one(tmp_path: Path) -> None:
    counting = Counting()
    counting.text = "password: hunter2hunter2, token=" + "ghp_" + "a1B2" * 9
    with RawUpstream(counting) as upstream:
        with proxy(tmp_path, upstream) as one:
            client = Client(one.url)
            client.ask("POST", PATH, call("write", {"a": 1}), headers=MCP_HEADERS)
            wait_until(lambda: counting.asked == 1, "the call is at the server")
            client.close()
            wait_until(lambda: session_notes(one.data, "one") == ["abandoned"], "it is noticed")
            counting.go.set()
            wait_until(lambda: session_rows(one.data, "one")[0].status == "ok", "it has ended")
            one.kill()
        with proxy(tmp_path, upstream) as one:
            said = ask(one, "write")
    assert (said["isError"], counting.asked) == (True, 1)
    assert "already executed" in text(said)
    assert outcome(said) == ("replayed", None, "yes", "never")


@pytest.mark.parametrize("tool", ["write", "pay"])
@pytest.mark.parametrize("how", ["unreadable", "of no text"])
def test_of_a_call_whose_record_is_damaged_it_is_said_once_that_nobody_knows(
    tmp_path: Path, tool: str, how: str
) -> None:
    counting = Counting()
    counting.go.set()
    with RawUpstream(counting) as upstream:
        with proxy(tmp_path, upstream) as one:
            ask(one, tool)
        flush(one.data)
        if how == "unreadable":
            damage(one.data, "log", lambda _: b"damaged")
        else:
            damage(one.data, "bodies", lambda value: value.replace(b'"a"', b"\xff\xff\xff"))
        with proxy(tmp_path, upstream) as one:
            said = ask(one, tool)
            again = ask(one, tool, "again")
            assert any("verify" in e["error.message"] for e in one.told("store.failed"))
    assert outcome(said) == ("error", "outcome_unknown", "maybe", "unsafe")
    if tool == "pay":
        assert (outcome(again), counting.asked) == (outcome(said), 1)
    else:
        assert (text(again), counting.asked) == ("done 2", 2)


@pytest.mark.promise("TWICE-21")
def test_a_call_that_another_proxy_has_under_way_is_joined(tmp_path: Path) -> None:
    counting = Counting()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream) as other,
    ):
        client = Client(one.url)
        client.ask("POST", PATH, call("write", {"a": 1}), headers=MCP_HEADERS)
        wait_until(lambda: counting.asked == 1, "the call is at the server")
        client.close()
        wait_until(lambda: session_notes(one.data, "one") == ["abandoned"], "it is noticed")
        with Client(other.url) as again:
            again.ask("POST", PATH, call("write", {"a": 1}, request_id=2), headers=MCP_HEADERS)
            counting.go.set()
            said = again.response("POST").json()
    assert (said["id"], text(said["result"]), counting.asked) == (2, "done 1", 1)
    joined = session_rows(one.data, "one")[1]
    assert (joined.status, "replayed" in joined.flags) == ("replayed", True)


def test_a_proxy_that_stops_says_of_a_call_that_runs_on_that_nobody_knows(tmp_path: Path) -> None:
    counting = Counting()
    with RawUpstream(counting) as upstream, proxy(tmp_path, upstream) as one:
        client = Client(one.url)
        client.ask("POST", PATH, call("write", {"a": 1}), headers=MCP_HEADERS)
        wait_until(lambda: counting.asked == 1, "the call is at the server")
        client.close()
        wait_until(lambda: session_notes(one.data, "one") == ["abandoned"], "it is noticed")
        with Client(one.url) as joiner:
            joiner.ask("POST", PATH, call("write", {"a": 1}, request_id=2), headers=MCP_HEADERS)
            with Client(one.url) as other:
                for _ in range(3):  # what came before them has been seen
                    assert other.request("GET", "/turnlog/health").status == 200
            one.process.terminate()
            assert one.process.wait(20) == 0
    row, joined = session_rows(one.data, "one")
    assert (row.status, row.kind, row.flags) == ("unknown", "outcome_unknown", ["late"])
    assert (joined.status, joined.kind, joined.flags) == ("error", "outcome_unknown", ["joined"])
