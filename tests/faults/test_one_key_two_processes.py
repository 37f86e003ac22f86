"""Processes on one store that get the same idempotency key at the same moment: one call is made.

Each has looked for an earlier call before any of them has written its own: meanwhile the test holds
the lock that writers of the log take.
"""

import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.stores import turnlog
from kit.beside import proxy_beside, session_rows
from kit.clients import MCP_HEADERS, Client, Response, call, message, wait_until
from kit.holding import nobody_writes
from kit.proxy import Proxy, data_of, findings
from kit.stalls import stopped
from kit.upstreams import Peer, RawUpstream, ok, text_result
from kit.wraps import Wrap, initialize, outcome, text_answer, wrapping
from turnlog.sessions.rows import Row
from turnlog.transport.routes import HEALTH

RULES = """
rules:
  - {match: {tool: "write*"}, effect: write}
  - {match: {tool: "pay*"}, effect: irreversible}
  - {match: {tool: "*_briefly"}, timeout: {queue: 200ms}}
  - {match: {tool: "*_anyway"}, on_duplicate: pass}
"""
WAITED = 1.0
"""s that a call waits for an earlier one, by the rules of a proxy that is impatient."""
IMPATIENT = f"""
rules:
  - {{match: {{tool: pay}}, effect: irreversible, timeout: {{response: {WAITED}}}}}
"""
PATH = "/s/one/mcp"
KEY = ("Idempotency-Key", '"k"')


class Counting:
    """Count calls, and answer each with its number once it is let go; refuse the first ones."""

    def __init__(self, refuses: int = 0) -> None:
        self.asked = 0
        self._refuses = refuses
        self.go = threading.Event()

    def __call__(self, peer: Peer) -> None:
        said = json.loads(peer.read().body)
        self.asked += 1
        number = self.asked
        while not self.go.wait(0.01):
            if peer.wait_for_hang_up(0.01):
                return
        if number <= self._refuses:
            peer.send(ok(b"later", media="text/plain", status="429 Too Many Requests"))
        elif "id" in said:
            peer.send_json(text_result(said["id"], f"done {number}"))
        else:
            peer.send(ok(json.dumps({"done": number}).encode()))


@contextmanager
def proxy(folder: Path, upstream: RawUpstream, **more: object) -> Generator[Proxy]:
    (folder / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"], "log_level": "debug", **more}
    with proxy_beside(folder, upstream.url, settings=settings) as one:
        yield one


def ask(client: Client, request_id: int, tool: str = "pay", value: int = 1) -> None:
    body = call(tool, {"a": value}, request_id=request_id)
    client.ask("POST", PATH, body, headers=(*MCP_HEADERS, KEY))


def begun(count: int, *proxies: Proxy) -> None:
    """Wait until each proxy has looked for earlier calls, and begun so many."""
    for one in proxies:
        wait_until(lambda p=one: len(p.events("call.started")) == count, "calls have begun")


def has_read(one: Proxy) -> None:
    """Wait until a proxy has read what it was asked before."""
    with Client(one.url) as client:
        for _ in range(2):
            assert client.request("GET", HEALTH).status == 200


def text(answer: Response) -> str:
    return str(answer.json()["result"]["content"][0]["text"])


@pytest.mark.promise("TWICE-18")
def test_a_call_that_waited_too_long_does_not_take_the_key_from_a_later_one(
    tmp_path: Path,
) -> None:
    counting = Counting(refuses=1)
    (tmp_path / "impatient.yaml").write_text(IMPATIENT)
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream, rules=["impatient.yaml"]) as other,
        Client(one.url) as client,
        Client(other.url) as waiting,
    ):
        ask(client, 1)
        wait_until(lambda: counting.asked == 1, "the call is at the server")
        ask(waiting, 2)
        has_read(other)
        with stopped(other.process.pid):
            since = time.monotonic()
            counting.go.set()
            assert client.response("POST").status == 429
            ask(client, 3)
            assert text(client.response("POST")) == "done 2"
            wait_until(lambda: time.monotonic() - since > 2 * WAITED, "the limit has passed")
        said = outcome(waiting.response("POST").json())
        ask(client, 4)
        ask(waiting, 5)
        answers = [text(each.response("POST")) for each in (client, waiting)]
    assert said["kind"] == "response_timeout"
    assert (answers, counting.asked) == (["done 2"] * 2, 2)


@pytest.mark.promise("TWICE-18")
def test_a_call_that_is_being_recorded_is_joined_though_its_key_stood_for_one_that_failed(
    tmp_path: Path,
) -> None:
    counting = Counting(refuses=1)
    soon = {"join_after": "1ms"}
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream, never_twice=soon) as one,
        Client(one.url) as first,
        Client(one.url) as second,
    ):
        first.ask("POST", PATH, call("pay", {"a": 1}, request_id=1), headers=MCP_HEADERS)
        wait_until(lambda: counting.asked == 1, "the call is at the server")
        joins = Client(one.url)
        ask(joins, 2)
        has_read(one)
        joins.reset()
        wait_until(lambda: len(session_rows(one.data, "one")) == 2, "it has left the call")
        counting.go.set()
        assert first.response("POST").status == 429
        counting.go.clear()
        with nobody_writes(one.data):
            ask(first, 3)
            begun(2, one)
            ask(second, 4)
            has_read(one)
        counting.go.set()
        answers = [text(each.response("POST")) for each in (first, second)]
    assert (answers, counting.asked) == (["done 2"] * 2, 2)


@pytest.mark.promise("TWICE-21")
def test_one_call_is_made_of_a_key_in_sessions_of_two_stores(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    counting, bundle = Counting(), str(tmp_path / "one.bundle")
    counting.go.set()
    with RawUpstream(counting) as upstream:
        with proxy(here, upstream) as one, Client(one.url) as client:
            client.request("POST", PATH, call("read"), headers=MCP_HEADERS)
            wait_until(lambda: session_rows(one.data, "one")[0].status == "ok", "it has ended")
            data = one.data
        for command in (("resume", "one", "--bundle", bundle, "--data", str(data)),
                        ("import", bundle, "--data", str(data_of(there)))):  # fmt: skip
            done = turnlog(*command)
            assert done.returncode == 0, done.stderr
        with (
            proxy(there, upstream) as one,
            proxy(there, upstream) as other,
            Client(one.url) as first,
            Client(other.url) as second,
        ):
            with nobody_writes(one.data):
                for client, session in ((first, "one"), (second, "own")):
                    path, headers = f"/s/{session}/mcp", (*MCP_HEADERS, KEY)
                    client.ask("POST", path, call("pay", {"a": 1}), headers=headers)
                begun(1, one, other)
            answers = {text(each.response("POST")) for each in (first, second)}
    assert (answers, counting.asked) == ({"done 2"}, 2)


@pytest.mark.promise("TWICE-21")
@pytest.mark.parametrize("durability", ["balanced", "relaxed"])
@pytest.mark.parametrize("tool", ["pay", "write", "unknown"])
def test_a_call_is_made_once(tmp_path: Path, tool: str, durability: str) -> None:
    counting = Counting()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream, durability=durability) as one,
        proxy(tmp_path, upstream, durability=durability) as other,
        Client(one.url) as first,
        Client(other.url) as second,
    ):
        with nobody_writes(one.data):
            ask(first, 1, tool)
            ask(second, 2, tool)
            begun(1, one, other)
        counting.go.set()
        answers = [first.response("POST"), second.response("POST")]
    assert [answer.json()["id"] for answer in answers] == [1, 2]
    assert ([text(answer) for answer in answers], counting.asked) == (["done 1", "done 1"], 1)
    made, again = session_rows(data_of(tmp_path), "one")
    assert (made.status, again.status, again.phase) == ("ok", "replayed", "queued")
    assert all(finding.verdict.intact for finding in findings(data_of(tmp_path)))


@pytest.mark.parametrize("tool", ["write", "write_anyway"])
def test_two_calls_that_were_both_too_late_do_not_keep_each_other_from_being_made(
    tmp_path: Path, tool: str
) -> None:
    counting = Counting()
    counting.go.set()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream) as other,
        Client(other.url) as early,
        Client(one.url) as late,
        Client(one.url) as later,
    ):
        clients = (early, late, later)
        for value in range(5):  # mostly the one that came first writes first
            with nobody_writes(one.data):
                for client in clients:
                    body = call(tool, {"a": value}, request_id=value)
                    client.ask("POST", PATH, body, headers=MCP_HEADERS)
                    has_read(other if client is early else one)
            answers = [client.response("POST") for client in clients]
            assert [answer.json()["id"] for answer in answers] == [value] * 3
    assert all(finding.verdict.intact for finding in findings(data_of(tmp_path)))


@pytest.mark.promise("TWICE-18")
def test_of_two_that_waited_for_calls_that_failed_one_is_made(tmp_path: Path) -> None:
    counting = Counting(refuses=2)
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream) as other,
        Client(one.url) as first,
        Client(one.url) as second,
        Client(other.url) as refused,
    ):
        ask(refused, 1)
        wait_until(lambda: counting.asked == 1, "the call is at the server")
        ask(first, 2)
        ask(second, 3)
        has_read(one)
        with stopped(one.process.pid):
            counting.go.set()
            assert refused.response("POST").status == 429
            ask(refused, 4)
            assert refused.response("POST").status == 429
        answers = [text(each.response("POST")) for each in (first, second)]
    assert (answers, counting.asked) == (["done 3"] * 2, 3)


def test_a_plain_call_is_made_once(tmp_path: Path) -> None:
    counting = Counting()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream) as other,
        Client(one.url) as first,
        Client(other.url) as second,
    ):
        with nobody_writes(one.data):
            for client in (first, second):
                client.ask("POST", "/s/one/pay", b"{}", headers=(KEY,))
            begun(1, one, other)
        counting.go.set()
        answers = [first.response("POST"), second.response("POST")]
    assert [answer.json() for answer in answers] == [{"done": 1}] * 2
    assert counting.asked == 1


def test_those_that_had_joined_who_was_too_late_join_the_other_one(tmp_path: Path) -> None:
    counting = Counting()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream) as other,
    ):
        clients = [Client(p.url) for p in (one, other, one, other)]
        with nobody_writes(one.data):
            for number, client in enumerate(clients):
                ask(client, number)
                begun(1, *(one, other)[: number + 1])
        counting.go.set()
        said = [text(client.response("POST")) for client in clients]
        for client in clients:
            client.close()
    assert (said, counting.asked) == (["done 1"] * 4, 1)


@pytest.mark.promise("TWICE-19")
def test_a_key_that_came_with_another_input_at_once_is_a_conflict(tmp_path: Path) -> None:
    counting = Counting()
    counting.go.set()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream) as other,
        Client(one.url) as first,
        Client(other.url) as second,
    ):
        with nobody_writes(one.data):
            ask(first, 1)
            ask(second, 2, value=2)
            begun(1, one, other)
        answers = [first.response("POST").json(), second.response("POST").json()]
    kinds = sorted(outcome(a)["kind"] for a in answers if "_meta" in a["result"])
    assert (kinds, counting.asked) == (["conflict"], 1)


def test_a_cancelled_call_that_another_process_has_made_has_a_row_and_is_no_failure(
    tmp_path: Path,
) -> None:
    counting = Counting()
    counting.go.set()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream) as other,
        Client(one.url) as first,
        Client(other.url) as second,
    ):
        with nobody_writes(one.data):
            ask(first, 1)
            ask(second, 2)
            begun(1, one, other)
            for request_id, each in ((1, one), (2, other)):
                cancel = message(
                    "notifications/cancelled", {"requestId": request_id}, request_id=None
                )
                with Client(each.url) as client:
                    assert client.request("POST", PATH, cancel, headers=MCP_HEADERS).status == 200
        wait_until(lambda: len(ended_rows(tmp_path)) == 2, "both calls have ended")
        told = [each.told("call.ended") for each in (one, other)]
        assert [len(events) for events in told] == [1, 1]
        assert not [*one.events("recorder.failed"), *other.events("recorder.failed")]
    rows = ended_rows(tmp_path)
    assert {(row.kind, row.executed) for row in rows} == {("cancelled_by_caller", "no")}
    assert all(finding.verdict.intact for finding in findings(data_of(tmp_path)))


def ended_rows(folder: Path) -> list[Row]:
    return [row for row in session_rows(data_of(folder), "one") if row.status != "pending"]


def test_whose_caller_leaves_meanwhile_does_not_keep_the_other_one_from_being_made(
    tmp_path: Path,
) -> None:
    counting = Counting()
    counting.go.set()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream) as other,
        Client(one.url) as stays,
    ):
        leaves = Client(other.url)
        with nobody_writes(one.data):
            ask(stays, 1)
            ask(leaves, 2)
            begun(1, one, other)
            leaves.reset()
            # Whoever is answered here came after it had left.
            with Client(other.url) as next_one:
                assert next_one.request("GET", "/turnlog/nothing").status == 404
        assert text(stays.response("POST")) == "done 1"
        with Client(other.url) as again:
            ask(again, 3)
            assert text(again.response("POST")) == "done 1"
    assert counting.asked == 1
    assert all(finding.verdict.intact for finding in findings(data_of(tmp_path)))


@pytest.mark.parametrize("turn", range(4))
def test_who_was_too_late_makes_the_call_that_failed_and_everybody_gets_its_answer(
    tmp_path: Path, turn: int
) -> None:
    counting = Counting(refuses=1)
    counting.go.set()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        proxy(tmp_path, upstream) as other,
    ):
        proxies = (one, other) if turn % 2 else (other, one)
        clients = [Client(p.url) for p in proxies]
        with nobody_writes(one.data):
            for client in clients:
                ask(client, 1)
            begun(1, one, other)
        answers = [client.response("POST") for client in clients]
        assert sorted(answer.status for answer in answers) == [200, 429]
        for client in clients:
            ask(client, 2)
            assert text(client.response("POST")) == "done 2"
            client.close()
    assert counting.asked == 2


def test_it_waits_for_the_disk_no_longer_than_it_may(tmp_path: Path) -> None:
    counting = Counting()
    counting.go.set()
    with (
        RawUpstream(counting) as upstream,
        proxy(tmp_path, upstream) as one,
        Client(one.url) as client,
    ):
        with nobody_writes(one.data):
            ask(client, 1, "pay_briefly")
            told = outcome(client.response("POST").json())
            assert (told["kind"], told["executed"], counting.asked) == ("queue_timeout", "no", 0)
        ask(client, 2, "pay_briefly")
        assert text(client.response("POST")) == "done 1"
    assert [row.status for row in session_rows(data_of(tmp_path), "one")] == ["error", "ok"]


@contextmanager
def wrap_of(folder: Path, session: str) -> Generator[Wrap]:
    (folder / "turnlog.yaml").write_text('{"log_level": "debug"}')
    flags = ("--session", session, "--config", str(folder / "turnlog.yaml"))
    with wrapping(folder, *flags, rules=RULES) as wrap:
        initialize(wrap)
        yield wrap


def test_of_two_wraps_one_makes_the_call_and_the_other_goes_on_meanwhile(tmp_path: Path) -> None:
    with wrap_of(tmp_path, "one") as one, wrap_of(tmp_path, "other") as other:
        wraps: dict[str, Wrap] = {"one": one, "other": other}
        with nobody_writes(one.data):
            for name, wrap in wraps.items():
                keyed = {"turnlog/key": "k"}
                wrap.send(
                    call("pay", {"a": 1}, request_id=name, _meta=keyed),
                    message("ping", request_id="p"),
                )
            wait_until(lambda: len(one.events("call.started")) == 2, "both have begun")
        got = {name: wrap.server.request() for name, wrap in wraps.items()}
        (name,) = (name for name, asked in got.items() if asked["method"] == "tools/call")
        (late,) = wraps.keys() - {name}
        assert got[late]["method"] == "ping"
        wraps[late].server.say(result := {"jsonrpc": "2.0", "id": "p", "result": {}})
        assert wraps[late].stdout.json() == result
        assert wraps[name].server.request()["method"] == "ping"
        wraps[name].server.say(text_answer(name))
        assert wraps[name].stdout.json() == text_answer(name)
        said = wraps[late].stdout.json()
        assert (said["id"], said["result"]["content"][0]["text"]) == (late, "done")
        assert outcome(said)["status"] == "replayed"
        assert wraps[late].server.stdin.is_silent()
    rows = [row for name in wraps for row in session_rows(data_of(tmp_path), name)]
    assert {row.status: row.flags for row in rows} == {"ok": [], "replayed": ["replayed", "joined"]}
