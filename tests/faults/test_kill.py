"""A proxy that is killed: what its agents were told is in the log, and the rest is `unknown`."""

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.stores import turnlog
from kit.beside import proxy_beside
from kit.clients import BOUND, MCP_HEADERS, Client, ClosedEarlyError, call, message, wait_until
from kit.faults import Hangs, SlowHead
from kit.proxy import Proxy, rows
from kit.upstreams import Peer, RawUpstream, ok, result, text_result
from turnlog.sessions.rows import Row

TOOLS: list[dict[str, object]] = [
    {"name": "read", "inputSchema": {}, "annotations": {"readOnlyHint": True}}
]
WORKERS = 8


def server(peer: Peer) -> None:
    """Answer tools by JSON or, where the name says so, by events; the text is the tool's argument."""
    said = peer.read().json()
    if said["method"] == "tools/list":
        peer.send_json(result(said["id"], {"tools": TOOLS}))
        return
    reply = text_result(said["id"], said["params"]["arguments"]["tag"])
    if said["params"]["name"] != "stream":
        peer.send_json(reply)
        return
    peer.start_events()
    peer.send_event({"jsonrpc": "2.0", "method": "notifications/progress"})
    peer.send_event(reply)
    peer.end()


class Agent(threading.Thread):
    """Calls tools one after another and notes each answer whose last byte arrived."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.number = number
        self.sent: list[str] = []
        self.answered: dict[str, str] = {}
        """Tag -> tool."""
        self.enough = False

    def run(self) -> None:
        """Go on until the connection breaks."""
        try:
            with Client(self.url) as client:
                self._work(client)
        except (ClosedEarlyError, OSError):
            pass

    def _work(self, client: Client) -> None:
        for count in range(100_000):
            if self.enough:
                return
            tool = ("write", "stream", "read")[count % 3]
            tag = f"{self.number}-{count}"
            self.sent.append(tag)
            body = call(tool, {"tag": tag}, request_id=count)
            given = client.request("POST", f"/s/agent-{self.number}/mcp", body, headers=MCP_HEADERS)
            assert tag.encode() in given.body
            self.answered[tag] = tool


def list_tools(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        client.request("POST", "/mcp", message("tools/list"), headers=MCP_HEADERS)


def by_tag(log: list[Row]) -> dict[str, Row]:
    """Return rows by the tag in their output; open ones have none."""
    return {row.output_summary: row for row in log if row.output_summary and row.status == "ok"}


def verified(data: Path) -> None:
    checked = turnlog("verify", data=data)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(server) as running:
        yield running


@pytest.mark.promise("REC-7")
@pytest.mark.parametrize("seed", range(3))
def test_every_answer_that_arrived_is_in_the_log_after_a_kill(
    tmp_path: Path, upstream: RawUpstream, seed: int
) -> None:
    settings = {"upstreams": {"default": {"url": upstream.url, "trust_annotations": True}}}
    moment = random.Random(seed).randrange(20, 400)
    with proxy_beside(tmp_path, settings=settings) as proxy:
        list_tools(proxy)
        agents = [Agent(proxy.url, number) for number in range(WORKERS)]
        for agent in agents:
            agent.start()
        wait_until(lambda: sum(len(agent.answered) for agent in agents) >= moment, "some answers")
        proxy.kill()
        for agent in agents:
            agent.join(BOUND)
    before = rows(proxy.data)
    kept = by_tag(before)
    for agent in agents:
        for tag, tool in agent.answered.items():
            assert tool == "read" or tag in kept, f"the outcome of {tool} {tag} is lost"
    assert max(Counter(row.output_summary for row in before if row.status == "ok").values()) == 1
    pending = {row.call for row in before if row.status == "pending"}
    verified(proxy.data)

    with proxy_beside(tmp_path, settings=settings) as again:
        recovered = again.events("call.recovered")
        list_tools(again)
    after = {row.call: row for row in rows(proxy.data)}
    assert {each["turnlog.call"] for each in recovered} == pending
    assert len(recovered) == len(pending)
    assert not [row for row in after.values() if row.status == "pending"]
    for one in pending:
        row = after[one]
        wanted = ("error", "safe") if row.effect == "read" else ("unknown", "unsafe")
        assert (row.status, row.retry) == wanted
        assert (row.kind, row.executed) == ("outcome_unknown", "maybe")
    verified(proxy.data)

    with proxy_beside(tmp_path, settings=settings) as third:
        assert third.events("call.recovered") == []
    assert len(rows(proxy.data)) == len(before)


@pytest.mark.promise("REC-11")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_call_that_hung_when_the_proxy_was_killed_is_unknown(
    tmp_path: Path, upstream: RawUpstream, method: str
) -> None:
    hangs = Hangs()
    upstream.script = hangs
    with proxy_beside(tmp_path, upstream.url) as proxy, Client(proxy.url) as client:
        client.ask(method, "/orders/7", b"{}" if method != "DELETE" else b"")
        assert hangs.asked.wait(BOUND)
        proxy.kill()
        assert client.rest() == b""
    with proxy_beside(tmp_path, upstream.url) as again:
        (recovered,) = again.events("call.recovered")
    (row,) = rows(proxy.data)
    assert recovered["turnlog.call"] == row.call
    assert (row.status, row.error, row.kind) == ("unknown", "unknown", "outcome_unknown")
    assert row.retry == ("unsafe" if method == "POST" else "if_idempotent")


def test_the_repeat_of_a_call_that_a_killed_proxy_left_is_told_what_the_log_says_of_it(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    hangs = Hangs()
    upstream.script = hangs
    (tmp_path / "mine.yaml").write_text("rules: [{match: {tool: put}, effect: idempotent_write}]\n")
    settings: dict[str, object] = {
        "upstreams": {"one": {"url": upstream.url}},
        "rules": ["mine.yaml"],
    }
    with proxy_beside(tmp_path, settings=settings) as proxy, Client(proxy.url) as client:
        client.ask("POST", "/s/run/one", call("put"), headers=MCP_HEADERS)
        assert hangs.asked.wait(BOUND)
        proxy.kill()
    with proxy_beside(tmp_path, settings=settings) as again, Client(again.url) as client:
        said = client.request("POST", "/s/run/one", call("put"), headers=MCP_HEADERS).json()
    told = said["result"]["_meta"]["turnlog/outcome"]
    first, repeat = rows(proxy.data)
    assert (told["kind"], told["retry"]) == ("outcome_unknown", "if_idempotent")
    assert (first.retry, repeat.retry) == ("if_idempotent", "if_idempotent")


@pytest.mark.promise("REC-13")
def test_a_parked_call_is_not_closed_by_recovery(tmp_path: Path, upstream: RawUpstream) -> None:
    def script(peer: Peer) -> None:
        said = peer.read().json()
        task: dict[str, object] = {
            "resultType": "task",
            "taskId": "t1",
            "status": "working",
            "ttlMs": None,
        }
        asking: dict[str, object] = {
            "resultType": "input_required",
            "requestState": "s1",
            "inputRequests": {},
        }
        name = said["params"]["name"]
        peer.send_json(result(said["id"], task if name == "task" else asking))

    upstream.script = script
    headers = (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28"))
    with proxy_beside(tmp_path, upstream.url) as proxy:
        with Client(proxy.url) as client:
            for name in ("task", "ask"):
                client.request("POST", "/mcp", call(name), headers=headers)
        proxy.kill()
    with proxy_beside(tmp_path, upstream.url) as again:
        assert again.events("call.recovered") == []
    assert [row.status for row in rows(proxy.data)] == ["accepted", "input_required"]


@pytest.mark.promise("REC-12")
def test_of_several_proxies_on_one_folder_only_the_killed_ones_calls_are_closed(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    hangs, reached = Hangs(), list[Peer]()

    def hang(peer: Peer) -> None:
        reached.append(peer)
        hangs(peer)

    folders = [tmp_path / name for name in ("one", "two", "three")]
    shared = ("--data", str(tmp_path / "shared"))
    with ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
        first, second = (
            stack.enter_context(proxy_beside(folder, upstream.url, flags=shared))
            for folder in folders[:2]
        )
        agents = [Agent(proxy.url, number) for number, proxy in enumerate((first, second))]
        for agent in agents:
            agent.start()
        wait_until(lambda: all(len(agent.answered) > 30 for agent in agents), "both work")
        upstream.script = hang
        wait_until(lambda: len(reached) == 2, "both wait")
        wait_until(lambda: len(waiting(tmp_path / "shared")) == 2, "nothing else does")
        first.kill()
        agents[0].join(BOUND)
        third = stack.enter_context(proxy_beside(folders[2], upstream.url, flags=shared))
        # Whichever looks first: the one that starts, or the one that looks now and then.
        wait_until(
            lambda: second.events("call.recovered") or third.events("call.recovered"), "it is told"
        )
        (recovered,) = [*second.events("call.recovered"), *third.events("call.recovered")]
        (left,) = waiting(tmp_path / "shared")
        assert left.call != recovered["turnlog.call"]
        second.kill()
        agents[1].join(BOUND)
    log = rows(tmp_path / "shared")
    kept = by_tag(log)
    for agent in agents:
        assert agent.answered.keys() <= kept.keys()
    verified(tmp_path / "shared")


def waiting(data: Path) -> list[Row]:
    return [row for row in rows(data) if row.status == "pending"]


@pytest.mark.promise("REC-15")
def test_sigterm_lets_a_running_call_finish(tmp_path: Path, upstream: RawUpstream) -> None:
    slow = SlowHead(ok(json.dumps(text_result(1, "late but whole")).encode()))
    upstream.script = slow
    with proxy_beside(tmp_path, upstream.url) as proxy, Client(proxy.url) as client:
        client.ask("POST", "/mcp", call("add"), headers=MCP_HEADERS)
        assert slow.asked.wait(BOUND)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.told("proxy.stopping")
        slow.go.set()
        given = client.response()
        assert b"late but whole" in given.body
        assert given.head.one("connection") == "close"
        assert proxy.process.wait(BOUND) == 0
    (row,) = rows(proxy.data)
    assert (row.status, row.output_summary) == ("ok", "late but whole")


def test_sigterm_ends_listening_streams_at_once_and_exits_with_0(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    hangs = Hangs(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: open\n\n")
    upstream.script = hangs
    with proxy_beside(tmp_path, upstream.url) as proxy, Client(proxy.url) as client:
        client.ask("GET", "/mcp", headers=(("Accept", "text/event-stream"),))
        client.head()
        client.chunk()
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(BOUND) == 0
        client.rest()
        (stopped,) = proxy.events("proxy.stopped")
        assert stopped["turnlog.unfinished"] == 0
    assert hangs.hung_up.wait(BOUND)


@pytest.mark.promise("REC-15")
def test_what_does_not_finish_after_sigterm_is_unknown_and_the_exit_code_is_0(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    hangs = Hangs()
    upstream.script = hangs
    with proxy_beside(tmp_path, upstream.url) as proxy, Client(proxy.url) as client:
        client.ask("POST", "/mcp", call("add"), headers=MCP_HEADERS)
        assert hangs.asked.wait(BOUND)
        (opened,) = proxy.told("session.opened")
        assert opened["turnlog.session"]
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(BOUND) == 0
        assert client.rest() == b""
    (row,) = rows(proxy.data)
    assert (row.status, row.kind, row.executed) == ("unknown", "outcome_unknown", "maybe")
    assert hangs.hung_up.is_set()
    assert proxy.stderr.read_text() == ""


def test_a_stopping_proxy_takes_no_new_connections(tmp_path: Path, upstream: RawUpstream) -> None:
    hangs = Hangs()
    upstream.script = hangs
    with proxy_beside(tmp_path, upstream.url) as proxy, Client(proxy.url) as client:
        client.ask("POST", "/mcp", call("add"), headers=MCP_HEADERS)
        assert hangs.asked.wait(BOUND)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.told("proxy.stopping")
        with pytest.raises((OSError, ClosedEarlyError)), Client(proxy.url) as late:
            late.request("POST", "/mcp", call("late"), headers=MCP_HEADERS)
        proxy.kill()
