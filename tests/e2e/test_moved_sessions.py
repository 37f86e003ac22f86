"""A session is packed into a bundle, and its agent goes on through another proxy on another store."""

import asyncio
import json
import re
import shutil
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from conformance.store.kit import begin, intent, new_id, note, outcome, put
from conformance.store.kit import session as named
from e2e.stores import START, Call, fill, process, session_id, turnlog
from kit.beside import proxy_beside, session_notes, session_rows
from kit.clients import BOUND, MCP_HEADERS, Client, ClosedEarlyError, call, message, wait_until
from kit.proxy import Proxy
from kit.ten_steps import finished, serving, started
from kit.upstreams import Peer, RawUpstream, result, text_result
from turnlog.core import ids
from turnlog.core.commit import CommitBody
from turnlog.core.kinds import NoteKind, Status
from turnlog.store.base import Conflict
from turnlog.store.blobs import DIGEST
from turnlog.store.lmdb import DAY, LmdbStore

RULES = """
rules:
  - {match: {tool: "write*"}, effect: write}
  - {match: {tool: "pay*"}, effect: irreversible}
"""
FILES = Path(__file__).parents[1] / "kit" / "files_server.py"
NAME = "work"
AGENT = ("Authorization", "Bearer the agent's own")
KEY = ("Idempotency-Key", "key-1")
SETTINGS: dict[str, Any] = {
    "rules": ["rules.yaml"],
    "never_twice": {"join_after": "1h", "cancel_grace": "1h"},
}


class Legs:
    """Answers the first request with one result, and all others with another one."""

    def __init__(self, first: dict[str, Any], then: dict[str, Any]) -> None:
        self._results = [first, then]

    def __call__(self, peer: Peer) -> None:
        asked = peer.read().json()
        peer.send_json(result(asked["id"], self._results[0]))
        del self._results[:-1]


class Tool:
    """Counts the calls that reach it, and answers each with its number once it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, peer: Peer) -> None:
        request = json.loads(peer.read().body)
        with self._lock:
            self.asked += 1
            number = self.asked
        while not self.go.wait(0.01):
            if peer.wait_for_hang_up(0.01):
                return
        peer.send_json(text_result(request.get("id"), f"done {number}"))


class Stores:
    """Two folders with a proxy's store each, before the same server."""

    def __init__(self, folder: Path, upstream: RawUpstream, tool: Tool) -> None:
        self.tool = tool
        self.upstream = upstream
        self._folders = {name: folder / name for name in ("here", "there")}
        self.bundle = folder / "work.bundle"
        for one in self._folders.values():
            one.mkdir()
            (one / "rules.yaml").write_text(RULES)

    def proxy(self, name: str) -> Any:
        return proxy_beside(self._folders[name], self.upstream.url, settings=SETTINGS)

    def data(self, name: str) -> Path:
        return self._folders[name] / "data"

    def move(self, *options: str) -> dict[str, Any]:
        """Pack the session, and import it into the other store; return what the import says."""
        packed = turnlog(
            "resume", "work", "--bundle", str(self.bundle), *options, data=self.data("here")
        )
        assert packed.returncode == 0, packed.stderr
        return imported(self.data("there"), self.bundle)


def imported(data: Path, bundle: Path, *options: str) -> dict[str, Any]:
    done = turnlog("import", str(bundle), "--json", *options, data=data)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    tool = Tool()
    with RawUpstream(tool) as upstream:
        yield Stores(tmp_path, upstream, tool)
        tool.go.set()


def ask(
    proxy: Proxy, body: bytes, *headers: tuple[str, str], agent: tuple[str, str] = AGENT
) -> Any:
    """Make a call in the session `work`; return its result."""
    with Client(proxy.url) as client:
        given = client.request(
            "POST", f"/s/{NAME}/mcp", body, headers=(*MCP_HEADERS, agent, *headers)
        )
        return given.json()["result"]


def leave(proxy: Proxy, tool: Tool, body: bytes, *headers: tuple[str, str]) -> None:
    """Make a call, and leave once the server has it."""
    before = tool.asked
    with Client(proxy.url) as client:
        client.ask("POST", f"/s/{NAME}/mcp", body, headers=(*MCP_HEADERS, AGENT, *headers))
        wait_until(lambda: tool.asked > before, "the server has the call")
    wait_until(lambda: "abandoned" in session_notes(proxy.data, "work"), "the proxy has noticed")


def text(result: Any) -> str:
    return str(result["content"][0]["text"])


def status(result: Any) -> Any:
    return result.get("_meta", {}).get("turnlog/outcome", {}).get("status", "ok")


@pytest.mark.promise("STORE-20")
def test_an_answer_that_was_lost_here_is_replayed_there(stores: Stores) -> None:
    with stores.proxy("here") as proxy:
        leave(proxy, stores.tool, call("write", {"a": 1}))
        stores.tool.go.set()
        wait_until(lambda: session_rows(proxy.data, "work")[0].status == "ok", "the call has ended")
    assert stores.move()["relation"] == "new"
    with stores.proxy("there") as proxy:
        again = ask(proxy, call("write", {"a": 1}, request_id=7))
        assert (text(again), status(again)) == ("done 1", "replayed")
        other = ask(proxy, call("write", {"a": 2}))
        assert (text(other), status(other)) == ("done 2", "ok")
    assert stores.tool.asked == 2
    rows = session_rows(stores.data("there"), "work")
    assert [row.status for row in rows] == ["ok", "replayed", "ok"]
    assert len({row.session for row in rows}) == 1
    assert turnlog("verify", data=stores.data("there")).returncode == 0


@pytest.mark.parametrize("tool", ["write", "pay"])
def test_a_call_that_was_running_as_its_proxy_died_is_unknown_there_and_not_sent(
    stores: Stores, tool: str
) -> None:
    with stores.proxy("here") as proxy, Client(proxy.url) as client:
        client.ask("POST", f"/s/{NAME}/mcp", call(tool, {"a": 1}), headers=(*MCP_HEADERS, AGENT))
        wait_until(lambda: stores.tool.asked == 1, "the server has the call")
        proxy.kill()
    stores.tool.go.set()
    shown = turnlog("resume", "work", "--json", data=stores.data("here"))
    assert [row["tool"] for row in json.loads(shown.stdout)["unknown"]] == [tool]
    stores.move()
    with stores.proxy("there") as proxy:
        again = ask(proxy, call(tool, {"a": 1}))
    assert stores.tool.asked == 1
    assert again["isError"] is True
    assert again["_meta"]["turnlog/outcome"]["kind"] == "outcome_unknown"


def test_an_idempotency_key_holds_there(stores: Stores) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        assert text(ask(proxy, call("other", {"a": 1}), KEY)) == "done 1"
    stores.move()
    with stores.proxy("there") as proxy:
        assert text(ask(proxy, call("other", {"a": 1}), KEY)) == "done 1"
        conflict = ask(proxy, call("other", {"a": 2}), KEY)
        assert conflict["_meta"]["turnlog/outcome"]["kind"] == "conflict"
    assert stores.tool.asked == 1


DONE: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}
TASK: dict[str, Any] = {"resultType": "task", "taskId": "task-1", "ttlMs": 60_000}
ASKS: dict[str, Any] = {"resultType": "input_required", "inputRequests": {"x": {}}}
STATE: dict[str, Any] = {"inputResponses": {"x": {}}, "requestState": "sealed"}


@pytest.mark.parametrize(
    ("first", "then", "body"),
    [
        (
            {**TASK, "status": "working"},
            {**TASK, "status": "completed", "result": DONE},
            message("tasks/get", {"taskId": "task-1"}),
        ),
        ({**ASKS, "requestState": "sealed"}, DONE, call("write", {"a": 1}, **STATE)),
        (ASKS, DONE, call("write", {"a": 1}, inputResponses={"x": {}})),
    ],
    ids=["task", "state", "input"],
)
def test_a_call_that_waits_for_its_task_or_for_input_goes_on_there_and_back_here(
    stores: Stores, first: dict[str, Any], then: dict[str, Any], body: bytes
) -> None:
    headers = (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28"), AGENT)

    def post(proxy: Proxy, body: bytes) -> None:
        with Client(proxy.url) as client:
            assert client.request("POST", f"/s/{NAME}/mcp", body, headers=headers).status == 200

    stores.upstream.script = Legs(first, first)
    with stores.proxy("here") as proxy:
        post(proxy, call("write", {"a": 1}))
    stores.move()
    stores.upstream.script = Legs(then, first)
    with stores.proxy("there") as proxy:
        post(proxy, body)
        post(proxy, call("write", {"a": 1}))
    rows = [row for row in session_rows(stores.data("there"), "work") if row.tool == "write"]
    ended, waits = rows[-2:]
    assert (ended.call, ended.status) == (rows[0].call, "ok")
    assert waits.call != ended.call
    back(stores)
    stores.upstream.script = Legs(then, then)
    with stores.proxy("here") as proxy:
        post(proxy, body)
    last = [row for row in session_rows(stores.data("here"), "work") if row.tool == "write"][-1]
    assert (last.call, last.status) == (waits.call, "ok")


def test_a_repeat_with_a_body_that_is_not_json_is_known_there(stores: Stores) -> None:
    body, path = bytes(range(256)), f"/s/{NAME}/write_file"
    kind = ("Content-Type", "application/octet-stream")

    def answer(peer: Peer) -> None:
        peer.read()
        stores.tool.asked += 1
        peer.send_json({"done": stores.tool.asked})

    stores.upstream.script = answer
    with stores.proxy("here") as proxy, Client(proxy.url) as client:
        client.request("POST", path, body, headers=(kind, AGENT, KEY))
    stores.move()
    with stores.proxy("there") as proxy, Client(proxy.url) as client:
        again = client.request("POST", path, body, headers=(kind, AGENT, KEY))
        assert (again.json(), again.head.one("turnlog-status")) == ({"done": 1}, "replayed")
        other = client.request("POST", path, body[:-1], headers=(kind, AGENT, KEY))
        assert other.head.one("turnlog-kind") == "conflict"
    assert stores.tool.asked == 1


def test_an_idempotency_key_holds_there_for_other_sessions_and_theirs_for_it(
    stores: Stores,
) -> None:
    def ask_in(proxy: Proxy, session: str, body: bytes, key: str) -> Any:
        fields = (*MCP_HEADERS, AGENT, ("Idempotency-Key", key))
        with Client(proxy.url) as client:
            given = client.request("POST", f"/s/{session}/mcp", body, headers=fields)
            return given.json()["result"]

    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        assert text(ask_in(proxy, "work", call("other", {"a": 1}), "key-1")) == "done 1"
    with stores.proxy("there") as proxy:
        assert text(ask_in(proxy, "own", call("other", {"a": 2}), "key-2")) == "done 2"
        stores.move()
        again = ask_in(proxy, "own", call("other", {"a": 1}), "key-1")
        assert (text(again), status(again)) == ("done 1", "replayed")
        again = ask_in(proxy, "work", call("other", {"a": 2}), "key-2")
        assert (text(again), status(again)) == ("done 2", "replayed")
        for session, key in (("own", "key-1"), ("work", "key-2")):
            refused = ask_in(proxy, session, call("other", {"a": 3}), key)
            assert refused["_meta"]["turnlog/outcome"]["kind"] == "conflict"
    assert stores.tool.asked == 2


def test_another_credential_is_another_session_there_as_it_was_here(stores: Stores) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        ask(proxy, call("write", {"a": 1}))
    stores.move()
    with stores.proxy("there") as proxy:
        ask(proxy, call("write", {"a": 1}), agent=("Authorization", "Bearer of somebody else"))
        ask(proxy, call("write", {"a": 2}))
    rows = session_rows(stores.data("there"), "work")
    sessions = [row.session for row in sorted(rows, key=lambda row: row.timestamp)]
    assert sessions[0] == sessions[2] != sessions[1]


def test_a_session_goes_there_and_comes_back(stores: Stores, tmp_path: Path) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        ask(proxy, call("write", {"a": 1}))
    stores.move()
    with stores.proxy("there") as proxy:
        ask(proxy, call("write", {"a": 2}))
    back = tmp_path / "back.bundle"
    assert (
        turnlog("resume", "work", "--bundle", str(back), data=stores.data("there")).returncode == 0
    )
    assert imported(stores.data("here"), back)["relation"] == "longer"
    with stores.proxy("here") as proxy:
        assert text(ask(proxy, call("write", {"a": 3}))) == "done 3"
    rows = session_rows(stores.data("here"), "work")
    assert [row.status for row in rows] == ["ok"] * 3
    assert len({row.session for row in rows}) == 1
    assert not (stores.data("here") / "keys").exists()
    for name in ("here", "there"):
        assert turnlog("verify", data=stores.data(name)).returncode == 0


def test_a_session_that_is_packed_is_paused_here_and_goes_on_there(stores: Stores) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        ask(proxy, call("write", {"a": 1}))
        stores.move("--why", "to the other host")
        shown = json.loads(turnlog("resume", "work", "--json", data=proxy.data).stdout)
        assert shown["stage"] == "paused"
        refused = ask(proxy, call("write", {"a": 2}))
        assert refused["_meta"]["turnlog/outcome"]["kind"] == "session_unavailable"
    there = json.loads(turnlog("resume", "work", "--json", data=stores.data("there")).stdout)
    assert (there["stage"], there["state"]["at"]["seq"]) == (
        "active",
        shown["state"]["at"]["seq"] + 1,
    )
    assert stores.tool.asked == 1


@pytest.mark.promise("STORE-21")
def test_a_session_comes_back_to_a_proxy_that_ran_on_and_refused_its_calls(
    stores: Stores, tmp_path: Path
) -> None:
    stores.tool.go.set()
    back = tmp_path / "back.bundle"
    with stores.proxy("here") as proxy:
        ask(proxy, call("write", {"a": 1}))
        stores.move("--why", "moving house")
        for number in range(2):
            refused = ask(proxy, call("write", {"stray": number}))
            said = refused["_meta"]["turnlog/outcome"]
            assert (said["kind"], said["retry"]) == ("session_unavailable", "never")
            assert "the session was moved to another store" in text(refused)
        with stores.proxy("there") as other:
            assert text(ask(other, call("write", {"a": 2}))) == "done 2"
        packed = turnlog("resume", "work", "--bundle", str(back), data=stores.data("there"))
        assert packed.returncode == 0
        assert imported(proxy.data, back)["relation"] == "longer"
        assert text(ask(proxy, call("write", {"a": 3}))) == "done 3"
    data = stores.data("here")
    assert [row.status for row in session_rows(data, "work")] == ["ok"] * 3
    listed = [
        json.loads(line)
        for line in turnlog("sessions", "--json", data=data).stdout.split("\n")
        if line
    ]
    (strays,) = (one for one in listed if "work" not in one["names"])
    rows = [
        json.loads(line)
        for line in turnlog("log", strays["session"], "--json", data=data).stdout.splitlines()
    ]
    assert [row["kind"] for row in rows] == ["session_unavailable"] * 2
    moved = session_rows(data, "work")[0].session
    opened = turnlog("show", f"{strays['session']}:0", "--json", data=data).stdout
    assert json.loads(opened)["metadata"]["follows"] == moved
    assert turnlog("verify", data=data).returncode == 0


def test_a_session_that_was_moved_goes_on_here_only_with_a_word(stores: Stores) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        ask(proxy, call("write", {"a": 1}))
    stores.move()
    data = stores.data("here")
    refused = turnlog("sessions", "resume", "work", data=data)
    assert refused.returncode == 2
    assert "has packed the session for another store" in refused.stderr
    assert "--anyway" in refused.stderr
    assert turnlog("sessions", "resume", "work", "--anyway", data=data).returncode == 0
    # There it is an ordinary session.
    there = stores.data("there")
    for action in ("pause", "resume"):
        assert turnlog("sessions", action, "work", data=there).returncode == 0


def test_a_session_that_was_paused_before_is_paused_there_as_well(stores: Stores) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        ask(proxy, call("write", {"a": 1}))
    assert turnlog("sessions", "pause", "work", data=stores.data("here")).returncode == 0
    stores.move()
    with stores.proxy("there") as proxy:
        refused = ask(proxy, call("write", {"a": 2}))["_meta"]["turnlog/outcome"]
        assert (refused["kind"], refused["retry"]) == ("session_unavailable", "safe")
    assert turnlog("sessions", "resume", "work", data=stores.data("there")).returncode == 0


def test_a_copy_leaves_the_session_as_it_is(stores: Stores) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        ask(proxy, call("write", {"a": 1}))
    stores.move("--copy")
    for name in ("here", "there"):
        shown = json.loads(turnlog("resume", "work", "--json", data=stores.data(name)).stdout)
        assert shown["stage"] == "active"


def back(stores: Stores) -> dict[str, Any]:
    """Pack the session in the other store, and import it here; return what the import says."""
    file = stores.bundle.with_name("back.bundle")
    packed = turnlog("resume", "work", "--bundle", str(file), data=stores.data("there"))
    assert packed.returncode == 0, packed.stderr
    return imported(stores.data("here"), file)


@pytest.mark.promise("STORE-21")
@pytest.mark.parametrize("killed", [False, True])
def test_a_session_comes_back_though_a_call_ended_behind_its_bundle(
    stores: Stores, *, killed: bool
) -> None:
    here = stores.data("here")
    with stores.proxy("here") as proxy, Client(proxy.url) as client:
        client.ask("POST", f"/s/{NAME}/mcp", call("write", {"a": 1}), headers=(*MCP_HEADERS, AGENT))
        wait_until(lambda: stores.tool.asked == 1, "the server has the call")
        stores.move()
        if killed:
            proxy.kill()
        stores.tool.go.set()
        if not killed:
            answer = client.response("POST").json()["result"]
            assert (text(answer), "_meta" in answer) == ("done 1", False)
    with stores.proxy("here") as proxy:  # recovery leaves the session alone
        with stores.proxy("there") as other:
            told = ask(other, call("write", {"a": 1}))["_meta"]["turnlog/outcome"]
            assert told["kind"] == "outcome_unknown"
            ask(other, call("write", {"a": 2}))
        assert back(stores)["relation"] == "longer"
        assert text(ask(proxy, call("write", {"a": 3}))) == "done 3"
    rows = session_rows(here, "work")
    assert [(row.tool, row.status, row.flags) for row in rows] == [
        ("write", "unknown" if killed else "ok", [] if killed else ["late"]),
        ("write", "error", []),
        ("write", "ok", []),
        ("write", "ok", []),
    ]
    assert turnlog("verify", data=here).returncode == 0


@pytest.mark.promise("STORE-21")
def test_what_would_keep_a_session_from_coming_back_is_refused_or_recorded_elsewhere(
    stores: Stores,
) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy, Client(proxy.url) as client:
        ask(proxy, call("write", {"a": 1}))
        stores.move()
        path, headers = f"/s/{NAME}/mcp", (*MCP_HEADERS, AGENT)
        client.request("POST", path, message("tools/list"), headers=headers)
        shown = json.loads(turnlog("resume", "work", "--json", data=proxy.data).stdout)
        head = str(shown["state"]["at"]["seq"])
        for change in (
            ("sessions", "pause", "work"),
            ("sessions", "alias", "work", "other"),
            ("sessions", "claim", "work"),
            ("rewind", "work", "0", "--yes", "--expect", head),
        ):
            refused = turnlog(*change, data=proxy.data)
            assert refused.returncode == 2, (change, refused.stdout)
            assert "has packed the session for another store" in refused.stderr, change
        with stores.proxy("there") as other:
            ask(other, call("write", {"a": 2}))
        assert back(stores)["relation"] == "longer"
    assert turnlog("sessions", "alias", "work", "other", data=stores.data("here")).returncode == 0
    assert turnlog("verify", data=stores.data("here")).returncode == 0


def test_a_session_that_went_on_in_both_stores_does_not_come_back(stores: Stores) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        ask(proxy, call("write", {"a": 1}))
        stores.move()
        assert turnlog("sessions", "resume", "work", "--anyway", data=proxy.data).returncode == 0
        ask(proxy, call("write", {"a": 2}))
        with stores.proxy("there") as other:
            ask(other, call("write", {"a": 3}))
        file = stores.bundle.with_name("back.bundle")
        assert (
            turnlog("resume", "work", "--bundle", str(file), data=stores.data("there")).returncode
            == 0
        )
        refused = turnlog("import", str(file), data=proxy.data)
    assert refused.returncode == 2
    assert re.search(
        r"after commit \d+: here it has commits \d+ to \d+, the bundle commits \d+ to \d+",
        refused.stderr,
    )


def test_a_bundle_is_imported_as_a_fork_beside_the_proxy_that_wrote_it(stores: Stores) -> None:
    here = stores.data("here")
    with stores.proxy("here") as proxy, Client(proxy.url) as client:
        stores.tool.go.set()
        ask(proxy, call("write", {"a": 1}))
        wait_until(lambda: "delivered" in session_notes(here, "work"), "it is delivered")
        shown = json.loads(turnlog("resume", "work", "--json", data=here).stdout)
        head = str(shown["state"]["at"]["seq"])
        rewound = turnlog("rewind", "work", "0", "--yes", "--expect", head, data=here)
        assert rewound.returncode == 0, rewound.stderr
        stores.tool.go.clear()
        client.ask("POST", f"/s/{NAME}/mcp", call("write", {"a": 2}), headers=(*MCP_HEADERS, AGENT))
        wait_until(lambda: stores.tool.asked == 2, "the server has the call")
        packed = turnlog("resume", "work", "--copy", "--bundle", str(stores.bundle), data=here)
        assert packed.returncode == 0, packed.stderr
        made = imported(here, stores.bundle, "--as-fork")
        assert (made["relation"], made["closed"]) == ("new", 1)
        fork = made["session"]
        stores.tool.go.set()
        assert text(client.response("POST").json()["result"]) == "done 2"
    logged = turnlog("log", fork, "--json", "--all", data=here).stdout.splitlines()
    calls = [json.loads(line)["call"] for line in logged]
    assert [one["status"] for one in map(json.loads, logged)] == ["ok", "unknown"]
    own = {row.call for row in session_rows(here, "work")}
    assert own.isdisjoint(calls)
    assert turnlog("verify", data=here).returncode == 0
    # An effect that a rewind has discarded is found by the id that its call has in the fork.
    there = stores.data("there")
    fork = imported(there, stores.bundle, "--as-fork")["session"]
    assert turnlog("sessions", "alias", fork, "side", data=there).returncode == 0
    with stores.proxy("there") as proxy, Client(proxy.url) as client:
        answer = client.request("POST", "/s/side/mcp", call("write", {"a": 1}), headers=MCP_HEADERS)
        assert (text(answer.json()["result"]), status(answer.json()["result"])) == (
            "done 1",
            "replayed",
        )
    assert stores.tool.asked == 2


async def unsettled_long_ago(data: Path) -> None:
    """Make a store with a call of unknown outcome, of more than a year ago."""
    at = START - 400 * DAY
    store = LmdbStore.open(data, now=lambda: at)
    ref, made = named("work"), new_id(at)
    begun = await begin(store, intent(ref, made, at=at, body=CommitBody(why="asked to")))
    await put(store, outcome(ref, made, begun, at=at, status=Status.UNKNOWN))
    await store.close()


def test_a_compacted_state_that_is_imported_as_a_fork_has_the_ids_of_its_calls(
    tmp_path: Path,
) -> None:
    here, there, bundle = tmp_path / "here", tmp_path / "there", tmp_path / "work.bundle"
    asyncio.run(unsettled_long_ago(here))
    collected = turnlog("gc", "--yes", data=here)
    assert "bodies" in collected.stdout, collected
    packed = turnlog("resume", "work", "--copy", "--bundle", str(bundle), data=here)
    assert packed.returncode == 0, packed.stderr
    fork = imported(there, bundle, "--as-fork")["session"]
    (line,) = turnlog("log", fork, "--json", data=there).stdout.splitlines()
    state = json.loads(turnlog("state", fork, "--json", data=there).stdout)["state"]
    assert [*state["pending_actions"]] == [json.loads(line)["call"]]
    assert turnlog("verify", data=there).returncode == 0


def test_a_second_bundle_has_the_outcome_that_came_behind_the_first(stores: Stores) -> None:
    with stores.proxy("here") as proxy, Client(proxy.url) as client:
        client.ask("POST", f"/s/{NAME}/mcp", call("write", {"a": 1}), headers=(*MCP_HEADERS, AGENT))
        wait_until(lambda: stores.tool.asked == 1, "the server has the call")
        lost = str(stores.bundle.with_name("lost.bundle"))
        packed = turnlog("resume", "work", "--bundle", lost, data=proxy.data)
        assert packed.returncode == 0, packed.stderr
        stores.tool.go.set()
        assert text(client.response("POST").json()["result"]) == "done 1"
    assert stores.move()["closed"] == 0
    (row,) = session_rows(stores.data("there"), "work")
    assert (row.status, row.flags) == ("ok", [])


@pytest.mark.parametrize("end", [("purge", "--yes"), ("sessions", "resume", "--anyway")])
def test_an_outcome_that_came_behind_the_bundle_is_recorded_or_purged_if_its_session_stays(
    stores: Stores, end: tuple[str, ...]
) -> None:
    with stores.proxy("here") as proxy, Client(proxy.url) as client:
        client.ask("POST", f"/s/{NAME}/mcp", call("write", {"a": 1}), headers=(*MCP_HEADERS, AGENT))
        wait_until(lambda: stores.tool.asked == 1, "the server has the call")
        stores.move()
        stores.tool.go.set()
        assert text(client.response("POST").json()["result"]) == "done 1"
    here = stores.data("here")
    (row,) = session_rows(here, "work")
    assert row.status == "pending"
    assert turnlog("verify", data=here).returncode == 0
    done = turnlog(*end[:-1], row.session, end[-1], data=here)
    assert done.returncode == 0, done.stderr
    if end[0] == "purge":
        files = [one for one in here.rglob("*") if one.is_file() and b"done 1" in one.read_bytes()]
        assert files == []
    else:
        assert session_rows(here, "work")[0].status == "ok"
    assert turnlog("verify", data=here).returncode == 0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "data"
    calls = [Call(tool="write_file", minute=n, output=bytes([n]) * 2000) for n in range(20)]
    fill(folder, [*calls, Call(tool="slow", minute=30, status=None)])
    return folder


@pytest.fixture
def bundle(data: Path, tmp_path: Path) -> Path:
    file = tmp_path / "work.bundle"
    assert turnlog("resume", "work", "--copy", "--bundle", str(file), data=data).returncode == 0
    return file


def lines_of(bundle: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in zstd.decompress(bundle.read_bytes()).splitlines()]


def test_a_bundle_is_private_and_can_be_read_without_turnlog(bundle: Path) -> None:
    assert bundle.stat().st_mode & 0o777 == 0o600
    lines = lines_of(bundle)
    kinds = [line["type"] for line in lines]
    assert kinds[0] == "bundle"
    assert kinds[1:-1] == ["payload"] * 21 + ["commit"] * 43
    assert lines[-1]["lines"] == len(lines) - 1
    assert lines[0]["session"] == ids.to_text(session_id("work"))
    assert lines[0]["resume"]["state"]["state"]["usage"]["calls"] == 21


def test_an_export_can_be_a_bundle(bundle: Path, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "exported.bundle"
    done = turnlog("export", "work", "--format", "bundle", "-o", str(file), data=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert lines_of(file)[1:-1] == lines_of(bundle)[1:-1]
    for wrong in (("work", "--tool", "x", "-o", str(tmp_path / "other")), ("work",), ()):
        done = turnlog("export", *wrong, "--format", "bundle", data=data)
        assert (done.returncode, "give one SESSION and --output" in done.stderr) == (2, True)


def test_what_is_imported_is_what_was_packed(bundle: Path, data: Path, tmp_path: Path) -> None:
    found = imported(tmp_path / "there", bundle)
    assert (found["commits"], found["payloads"], found["closed"]) == (43, 21, 0)
    wanted = ("export", "work", "--payloads")
    assert turnlog(*wanted, data=tmp_path / "there").stdout == turnlog(*wanted, data=data).stdout
    assert turnlog("verify", data=tmp_path / "there").returncode == 0


def test_the_same_bundle_changes_nothing(bundle: Path, tmp_path: Path) -> None:
    first = imported(tmp_path / "there", bundle)
    again = imported(tmp_path / "there", bundle)
    assert (again["relation"], again["commits"], again["seq"]) == ("same", 0, first["seq"])
    assert turnlog("verify", data=tmp_path / "there").returncode == 0


def noted(data: Path, *calls: Call) -> None:
    """Go on with the session `work` in a store."""
    fill(data, [Call(tool=f"t{n}", minute=n + 40, of=90 + n) for n in range(2)] + list(calls))


def test_a_longer_bundle_is_appended(bundle: Path, data: Path, tmp_path: Path) -> None:
    there, longer, store = tmp_path / "there", tmp_path / "longer.bundle", tmp_path / "store"
    imported(store, bundle)
    noted(store)
    assert turnlog("resume", "work", "--copy", "--bundle", str(longer), data=store).returncode == 0
    imported(there, bundle)
    found = imported(there, longer)
    assert (found["relation"], found["commits"]) == ("longer", 4)
    assert turnlog("verify", data=there).returncode == 0


def test_a_session_that_went_another_way_is_a_conflict_and_can_be_imported_as_a_fork(
    bundle: Path, tmp_path: Path
) -> None:
    there, other, store = tmp_path / "there", tmp_path / "other.bundle", tmp_path / "store"
    imported(store, bundle)
    noted(store, Call(tool="only_here", minute=50, of=99))
    assert turnlog("resume", "work", "--copy", "--bundle", str(other), data=store).returncode == 0
    imported(there, bundle)
    noted(there, Call(tool="only_there", minute=50, of=98))
    before = turnlog("export", data=there).stdout
    refused = turnlog("import", str(other), data=there)
    assert refused.returncode == 2
    assert re.search(
        r"went another way here after commit 42: here it has commits 43 to 48, the bundle commits "
        "43 to 48; nothing was imported",
        refused.stderr,
    )
    assert turnlog("export", data=there).stdout == before
    fork = imported(there, other, "--as-fork")
    assert fork["session"] != fork["origin"] == ids.to_text(session_id("work"))
    assert turnlog("verify", data=there).returncode == 0
    tools = [
        json.loads(line)["tool"]
        for line in turnlog("export", fork["session"], data=there).stdout.splitlines()
    ]
    assert tools[-1] == "only_here"
    (opened,) = (
        json.loads(line)
        for line in turnlog(
            "show", f"{fork['session']}:0", "--json", data=there
        ).stdout.splitlines()
    )
    assert fork["origin"] in json.dumps(opened)


def test_open_attempts_are_closed_and_names_that_are_taken_are_said(
    stores: Stores, tmp_path: Path
) -> None:
    with stores.proxy("here") as proxy, Client(proxy.url) as client:
        client.ask("POST", f"/s/{NAME}/mcp", call("write"), headers=MCP_HEADERS)
        wait_until(lambda: stores.tool.asked == 1, "the server has the call")
        packed = turnlog("resume", "work", "--bundle", str(stores.bundle), data=proxy.data)
        assert (packed.returncode, "1 call in flight" in packed.stderr) == (0, True)
        stores.tool.go.set()
        with suppress(ClosedEarlyError):
            client.response("POST")
    with stores.proxy("there") as proxy, Client(proxy.url) as client:
        client.request("POST", f"/s/{NAME}/mcp", call("read"), headers=MCP_HEADERS)
    done = turnlog("import", str(stores.bundle), "--json", data=stores.data("there"))
    found = json.loads(done.stdout)
    assert (found["closed"], found["names_taken"]) == (1, ["work"])
    assert "another session of this store keeps the name: work" in done.stderr


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "cut off"),
    "foreign": (lambda _: b"hello\n" * 100, "is not a bundle"),
    "nested head": (
        lambda _: zstd.compress(b'{"type":"bundle","resume":' + b"[" * 100_000 + b"\n"),
        "damaged",
    ),
    "other zstd": (lambda _: zstd.compress(b"{}\n"), "is not a bundle"),
    "truncated": (lambda whole: whole[: len(whole) // 2], "cut off"),
    "cut at the end": (lambda whole: whole[:-3], "cut off"),
    "altered": (lambda whole: whole[:900] + bytes([whole[900] ^ 255]) + whole[901:], "damaged"),
    "newer": (lambda w: repacked(w, ('"format":1', '"format":9')), "install a newer turnlog"),
    "a line less": (
        lambda w: zstd.compress(b"\n".join(zstd.decompress(w).split(b"\n")[:-2])),
        "cut off",
    ),
    "another payload": (lambda w: repacked(w, ("eyJwYXRo", "eyJwYXRp")), "damaged"),
    "more lines": (lambda w: zstd.compress(zstd.decompress(w) + b"{}\n"), "damaged"),
    "no session": (lambda w: repacked(w, (ids.to_text(session_id("work")), "x")), "damaged"),
    "seq too low": (lambda w: crafted(w, seq=3), "damaged"),
    "seq below 0": (lambda w: crafted(w, seq=-5), "damaged"),
    "fence below 0": (lambda w: crafted(w, fence=-1), "damaged"),
    "fence too high": (lambda w: crafted(w, fence=10**20), "damaged"),
    "no secret": (lambda w: crafted(w, secret=""), "damaged"),
    "short secret": (lambda w: crafted(w, secret="AAAA"), "damaged"),
    "no such format": (lambda w: crafted(w, format=-1), "damaged"),
    "another head": (lambda w: repacked(w, ('"hash":"sha256:', '"hash":"sha256:00')), "damaged"),
}


def repacked(whole: bytes, change: tuple[str, str]) -> bytes:
    """Return a bundle with another content under its own checksum of lines."""
    before, after = change
    return zstd.compress(zstd.decompress(whole).replace(before.encode(), after.encode(), 1))


def crafted(whole: bytes, **fields: Any) -> bytes:
    """Return a bundle with other fields in its head, and the checksum of its lines."""
    lines = zstd.decompress(whole).splitlines(keepends=True)
    lines[0] = json.dumps({**json.loads(lines[0]), **fields}).encode() + b"\n"
    end = json.loads(lines[-1])
    end["digest"] = b64encode(sha256(b"".join(lines[:-1])).digest()).decode()
    return zstd.compress(b"".join(lines[:-1]) + json.dumps(end).encode() + b"\n")


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_is_no_whole_bundle_is_refused_and_nothing_is_written(
    bundle: Path, tmp_path: Path, name: str
) -> None:
    damage, said = DAMAGES[name]
    bundle.write_bytes(damage(bundle.read_bytes()))
    done = turnlog("import", str(bundle), data=tmp_path / "there")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (tmp_path / "there").exists()


def test_a_bundle_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    done = turnlog("import", str(tmp_path / "absent"), data=tmp_path / "there")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such file or directory; name a file that" in done.stderr


def test_a_bundle_is_not_written_over_a_file(bundle: Path, data: Path) -> None:
    before = bundle.read_bytes()
    done = turnlog("resume", "work", "--bundle", str(bundle), data=data)
    assert (done.returncode, "is there already, name a new file" in done.stderr) == (2, True)
    assert bundle.read_bytes() == before
    done = turnlog("resume", "work", "--bundle", str(bundle / "more" / "x"), data=data)
    assert (done.returncode, "is not there, make it or name another" in done.stderr) == (2, True)


@pytest.mark.parametrize("option", [("--copy",), ("--why", "x")])
def test_options_of_a_bundle_need_one(data: Path, option: tuple[str, ...]) -> None:
    done = turnlog("resume", "work", *option, data=data)
    assert (done.returncode, "--bundle" in done.stderr) == (2, True)


def test_a_resumption_as_text_lists_state_and_calls(data: Path) -> None:
    done = turnlog("resume", "work", "--last", "2", data=data)
    assert done.returncode == 0
    for said in ("newest commit", "tools_used", "last attempts", "slow", "outcome is unknown"):
        assert said in done.stdout


@pytest.mark.promise("STORE-20")
@pytest.mark.parametrize("seed", range(4))
def test_a_task_that_is_killed_with_its_proxy_finishes_elsewhere_and_does_nothing_twice(
    tmp_path: Path, seed: int
) -> None:
    printed = finished(tmp_path, [sys.executable, FILES], seed)
    assert [line.partition(":")[0] for line in printed] == [f"step {n}" for n in range(1, 11)]
    assert not [line for line in printed if "failed" in line]


def test_steps_that_the_server_refuses_have_failed(tmp_path: Path) -> None:
    journal = tmp_path / "journal.md"
    journal.touch()
    with (
        proxy_beside(tmp_path, settings=serving([sys.executable, FILES])) as proxy,
        started(proxy, journal) as program,
    ):
        printed, _ = program.communicate(timeout=BOUND)
    assert printed.splitlines() == [f"step {n}: failed" for n in range(1, 11)]


def test_a_proxy_that_runs_already_knows_a_session_as_soon_as_it_is_imported(
    stores: Stores,
) -> None:
    with stores.proxy("here") as proxy:
        leave(proxy, stores.tool, call("write", {"a": 1}))
        stores.tool.go.set()
        wait_until(lambda: session_rows(proxy.data, "work")[0].status == "ok", "the call has ended")
    with stores.proxy("there") as proxy:
        with Client(proxy.url) as client:
            client.request("POST", "/s/own/mcp", call("read"), headers=(*MCP_HEADERS, AGENT))
        stores.move()
        assert status(ask(proxy, call("write", {"a": 1}))) == "replayed"
    assert stores.tool.asked == 2


def test_a_session_that_the_protocol_names_goes_on_there_under_the_same_id(
    stores: Stores,
) -> None:
    protocol_session = ("Mcp-Session-Id", "the server's own")
    headers = (*MCP_HEADERS, AGENT, protocol_session)

    def post(proxy: Proxy, body: bytes) -> Any:
        with Client(proxy.url) as client:
            return client.request("POST", "/mcp", body, headers=headers).json()["result"]

    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        post(proxy, call("write", {"a": 1}))
        (row,) = proxy.rows()
        packed = turnlog("resume", row.session, "--bundle", str(stores.bundle), data=proxy.data)
        assert packed.returncode == 0
    imported(stores.data("there"), stores.bundle)
    with stores.proxy("there") as proxy:
        post(proxy, call("write", {"a": 2}))
        assert {one.session for one in proxy.rows()} == {row.session}


def test_a_fork_is_moved_without_its_parent(data: Path, tmp_path: Path) -> None:
    store, there = tmp_path / "store", tmp_path / "there"
    shutil.copytree(data, store)
    assert turnlog("fork", "work:10", "--name", "side", data=store).returncode == 0
    bundle = tmp_path / "side.bundle"
    packed = turnlog("resume", "side", "--copy", "--bundle", str(bundle), data=store)
    assert packed.returncode == 0, packed.stderr
    found = imported(there, bundle)
    assert found["commits"] > 0
    assert turnlog("verify", data=there).returncode == 0
    states = [
        json.loads(turnlog("state", "side", "--json", data=each).stdout) for each in (store, there)
    ]
    assert states[0]["state_hash"] == states[1]["state_hash"]


@pytest.mark.parametrize("shares", [False, True])
def test_what_was_imported_can_be_purged(data: Path, tmp_path: Path, *, shares: bool) -> None:
    store, there, bundle = tmp_path / "store", tmp_path / "there", tmp_path / "work.bundle"
    planted = b"planted-in-the-payload-of-a-moved-session"
    fill(store, [Call(tool="read", minute=1, input=b"{}", output=planted)])
    assert turnlog("resume", "work", "--bundle", str(bundle), data=store).returncode == 0
    if shares:
        fill(there, [Call(tool="read", minute=1, session="own", input=b"{}", output=planted)])
    imported(there, bundle)
    session = ids.to_text(session_id("work"))
    done = turnlog("purge", session, "--yes", "--json", data=there)
    assert done.returncode == 0, done.stderr
    kept = [file for file in there.rglob("*") if file.is_file() and planted in file.read_bytes()]
    assert [file.parent.parent.name for file in kept] == (["blobs"] if shares else [])
    assert turnlog("verify", data=there).returncode == 0
    assert list((there / "keys").iterdir()) == []
    in_log = sha256(planted).digest()[:DIGEST] in (there / "log" / "data.mdb").read_bytes()
    assert in_log is shares
    if shares:
        assert planted.decode() in turnlog("export", "own", "--payloads", data=there).stdout


def test_an_outcome_behind_a_bundle_keeps_its_payload_though_another_session_is_purged(
    stores: Stores,
) -> None:
    with stores.proxy("here") as proxy, Client(proxy.url) as client:
        client.ask("POST", f"/s/{NAME}/mcp", call("write", {"a": 1}), headers=(*MCP_HEADERS, AGENT))
        wait_until(lambda: stores.tool.asked == 1, "the server has the call")
        (begun,) = session_rows(proxy.data, "work")
        packed = turnlog("resume", "work", "--bundle", str(stores.bundle), data=proxy.data)
        assert packed.returncode == 0, packed.stderr
        stores.tool.go.set()
        answer = client.response("POST")
        assert answer.head.one("turnlog-commit") == f"{begun.session}:{begun.intent_seq}"
        stores.tool.asked = 0
        own = client.request("POST", "/s/own/mcp", call("write", {"a": 1}), headers=MCP_HEADERS)
        assert own.json()["result"] == answer.json()["result"]
    here = stores.data("here")
    done = turnlog("purge", "own", "--yes", data=here)
    assert done.returncode == 0, done.stderr
    assert turnlog("sessions", "resume", "work", "--anyway", data=here).returncode == 0
    (line,) = turnlog("export", "work", "--payloads", data=here).stdout.splitlines()
    assert "done 1" in json.loads(line)["output"]["text"]
    assert turnlog("verify", data=here).returncode == 0


def test_an_effect_that_a_rewind_has_discarded_is_not_had_again_there(stores: Stores) -> None:
    stores.tool.go.set()
    with stores.proxy("here") as proxy:
        ask(proxy, call("write", {"a": 1}))
        wait_until(lambda: "delivered" in session_notes(proxy.data, "work"), "it is delivered")
        head = json.loads(turnlog("resume", "work", "--json", data=proxy.data).stdout)["state"][
            "at"
        ]["seq"]
        rewound = turnlog("rewind", "work", "0", "--yes", "--expect", str(head), data=proxy.data)
        assert rewound.returncode == 0, rewound.stderr
    stores.move()
    with stores.proxy("there") as proxy:
        again = ask(proxy, call("write", {"a": 1}))
    assert (text(again), status(again)) == ("done 1", "replayed")
    assert stores.tool.asked == 1


async def noted_late(data: Path, bundle: Path) -> None:
    """Make a call, pack its session, and note that the answer was delivered after that."""
    store = LmdbStore.open(data)
    ref, made = named("work"), new_id()
    ended = outcome(ref, made, await begin(store, intent(ref, made)))
    await put(store, ended)
    packed = process("resume", "work", "--bundle", str(bundle), "--data", str(data))
    assert packed.returncode == 0, packed.stderr
    with pytest.raises(Conflict, match="has packed the session for another store"):
        await put(store, note(ref, made, NoteKind.DELIVERED, ended))
    await store.close()


def test_a_note_that_comes_after_the_bundle_does_not_keep_the_session_from_coming_back(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    away, back = tmp_path / "away.bundle", tmp_path / "back.bundle"
    asyncio.run(noted_late(here, away))
    imported(there, away)
    assert turnlog("resume", "work", "--bundle", str(back), data=there).returncode == 0
    assert imported(here, back)["relation"] == "longer"
    assert turnlog("verify", data=here).returncode == 0


@pytest.mark.parametrize("was_paused", [False, True])
def test_a_second_bundle_goes_on_as_the_first_would(
    bundle: Path, tmp_path: Path, *, was_paused: bool
) -> None:
    store, there, second = tmp_path / "store", tmp_path / "there", tmp_path / "second.bundle"
    imported(store, bundle)
    if was_paused:
        assert turnlog("sessions", "pause", "work", data=store).returncode == 0
    for file in (tmp_path / "lost.bundle", second):
        assert turnlog("resume", "work", "--bundle", str(file), data=store).returncode == 0
    imported(there, second)
    shown = json.loads(turnlog("resume", "work", "--json", data=there).stdout)
    assert shown["stage"] == ("paused" if was_paused else "active")


async def opened(data: Path, limit: int) -> None:
    """Make a store with a limit."""
    await LmdbStore.open(data, limit=limit).close()


def test_a_session_that_has_no_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    here, there, bundle = tmp_path / "here", tmp_path / "there", tmp_path / "work.bundle"
    fill(here, [Call(tool="read", minute=1, output=bytes(range(256)) * 20_000)])
    assert turnlog("resume", "work", "--bundle", str(bundle), data=here).returncode == 0
    asyncio.run(opened(there, 4 << 20))
    before = {file.name for file in (there / "blobs").rglob("*")}
    refused = turnlog("import", str(bundle), data=there)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "no room for the session" in refused.stderr
    assert {file.name for file in (there / "blobs").rglob("*")} == before
    asyncio.run(opened(there, 40 << 20))
    assert imported(there, bundle)["relation"] == "new"
