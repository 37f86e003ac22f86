"""Answers of a command that arrive when no caller waits: recorded with the flag `late`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.commands import META, newest_headers
from kit.proxy import Proxy

RULES = """
rules:
  - {match: {tool: "read*"}, effect: read}
  - {match: {tool: "*_timed"}, timeout: {response: 300ms}}
  - match: {tool: "*_retried"}
    effect: read
    timeout: {response: 300ms}
    retry: {on: timeout, max_attempts: 2, base_interval: 1ms}
  - match: {tool: "*_rests"}
    effect: read
    timeout: {response: 300ms}
    retry: {on: timeout, max_attempts: 2, base_interval: 60s, max_interval: 60s, budget: 300s, jitter: none}
  - match: {tool: "put_waits"}
    effect: idempotent_write
    timeout: {response: 300ms}
    retry: {on: timeout, max_attempts: 2, base_interval: 60s, max_interval: 60s, budget: 300s, jitter: none}
"""
COMMAND = """
import json, pathlib, sys, threading, time
go, together = pathlib.Path(sys.argv[1]) / "go", pathlib.Path(sys.argv[1]) / "together"
heard = pathlib.Path(sys.argv[1]) / "heard"
asked = []
def result(message, result):
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}
def text(message):
    return result(message, {"content": [{"type": "text", "text": "done"}]})
def answer():
    while not go.exists():
        time.sleep(0.01)
    said = [[text(message) for message in asked]] if together.exists() else map(text, asked)
    for each in said:
        print(json.dumps(each), flush=True)
for line in sys.stdin:
    messages = json.loads(line if line.startswith("[") else f"[{line}]")
    for message in messages:
        with heard.open("a") as stream:
            stream.write(message["method"] + "\\n")
        if message["method"] == "initialize":
            revision = message["params"]["protocolVersion"]
            said = {"protocolVersion": revision, "capabilities": {}, "serverInfo": {"name": "x"}}
            print(json.dumps(result(message, said)), flush=True)
        elif message["method"] == "tools/call":
            asked.append(message)
            if len(asked) == 1:
                threading.Thread(target=answer, daemon=True).start()
"""
"""A server that answers all calls when it is let go, in one array where it is told so."""


class Agent:
    """An agent of the handshake revisions, in one protocol session."""

    def __init__(self, proxy: Proxy, folder: Path) -> None:
        self.proxy = proxy
        self.folder = folder
        params: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}}
        with Client(proxy.url) as client:
            given = client.request(
                "POST", "/mcp", message("initialize", params), headers=MCP_HEADERS
            )
        self.session = given.head.one("mcp-session-id") or ""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (*MCP_HEADERS, ("Mcp-Session-Id", self.session))

    def begun(self, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> Client:
        """Ask on a connection of its own; return when the command has what was asked."""
        before = self.calls()
        client = Client(self.proxy.url)
        client.ask("POST", "/mcp", body, headers=headers or self.headers)
        wait_until(lambda: self.calls() > before, "the command has the call")
        return client

    def calls(self) -> int:
        heard = self.folder / "heard"
        return heard.read_text().splitlines().count("tools/call") if heard.exists() else 0

    def ended(self, *kinds: str | None) -> None:
        """Wait until the rows have ended so."""
        wait_until(
            lambda: [row.kind for row in self.proxy.rows()] == [*kinds], f"rows end with {kinds}"
        )

    def let_go(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture(params=["session", "all"])
def agent(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Agent]:
    (tmp_path / "rules.yaml").write_text(RULES)
    command = [sys.executable, "-I", "-S", "-c", COMMAND, str(tmp_path)]
    upstreams = {"cmd": {"command": command, "share": request.param}}
    with proxy_beside(
        tmp_path, settings={"upstreams": upstreams, "rules": ["rules.yaml"]}
    ) as proxy:
        yield Agent(proxy, tmp_path)


def leaves(agent: Agent) -> None:
    agent.begun(call("read", request_id=7)).close()
    agent.ended("cancelled_by_caller")


def cancels(agent: Agent) -> None:
    with agent.begun(call("unnamed", request_id=7)), Client(agent.proxy.url) as other:
        cancel = message("notifications/cancelled", {"requestId": 7}, request_id=None)
        other.request("POST", "/mcp", cancel, headers=agent.headers)
        agent.ended("cancelled_by_caller")


def runs_out_of_time(agent: Agent) -> None:
    with agent.begun(call("read_timed", request_id=7)) as client:
        client.response("POST")
    agent.ended("response_timeout")


def closes_a_stateless_stream(agent: Agent) -> None:
    asked = call("unnamed", _meta=META, request_id=7)
    agent.begun(asked, newest_headers(name="unnamed")).close()
    agent.ended("cancelled_by_caller")


@pytest.mark.promise("REC-14")
@pytest.mark.parametrize("gives_up", [leaves, cancels, runs_out_of_time, closes_a_stateless_stream])
def test_the_answer_to_a_cancelled_call_is_recorded(
    agent: Agent, gives_up: Callable[[Agent], None]
) -> None:
    gives_up(agent)
    agent.let_go()
    agent.ended(None)
    (row,) = agent.proxy.rows()
    assert (row.status, row.executed, row.output_summary) == ("ok", "yes", "done")
    assert "late" in row.flags


def test_the_answers_to_all_attempts_are_recorded(agent: Agent) -> None:
    with agent.begun(call("read_retried", request_id=7)) as client:
        client.response("POST")
    agent.ended("response_timeout", "response_timeout")
    agent.let_go()
    agent.ended(None, None)
    assert all("late" in row.flags for row in agent.proxy.rows())


def test_an_answer_that_comes_before_the_retry_is_given_and_no_retry_is_sent(agent: Agent) -> None:
    with agent.begun(call("read_rests", request_id=7)) as client:
        agent.ended("response_timeout")
        agent.let_go()
        given = client.response("POST")
    assert (given.status, given.json()["id"]) == (200, 7)
    assert given.json()["result"]["content"] == [{"type": "text", "text": "done"}]
    assert (given.head.one("turnlog-status"), given.head.one("turnlog-attempt")) == ("ok", None)
    agent.ended(None)
    (row,) = agent.proxy.rows()
    assert (row.attempt, row.status, "late" in row.flags) == (1, "ok", True)
    assert agent.calls() == 1


def test_an_answer_that_comes_before_the_retry_says_where_it_is_recorded(agent: Agent) -> None:
    with agent.begun(call("put_waits", request_id=7)) as client:
        agent.ended("response_timeout")
        agent.let_go()
        given = client.response("POST")
    session, call_id = given.head.one("turnlog-session"), given.head.one("turnlog-call")
    assert (given.head.one("turnlog-commit") or "").startswith(f"{session}:")
    (said,) = agent.proxy.told("retry.abandoned")
    names = ("turnlog.call", "turnlog.attempt", "turnlog.reason")
    assert [said[name] for name in names] == [call_id, 1, "answered"]


def test_answers_to_cancelled_calls_may_come_in_one_array(agent: Agent) -> None:
    (agent.folder / "together").touch()
    for number in (1, 2):
        agent.begun(call("unnamed", {"n": number}, request_id=number)).close()
    agent.ended("cancelled_by_caller", "cancelled_by_caller")
    agent.let_go()
    agent.ended(None, None)


def test_a_call_that_reuses_the_id_of_a_cancelled_one_gets_only_its_own_answer(
    agent: Agent,
) -> None:
    agent.begun(call("unnamed", {"n": 1}, request_id=7)).close()
    agent.ended("cancelled_by_caller")
    with agent.begun(call("unnamed", {"n": 2}, request_id=7)) as client:
        agent.let_go()
        assert client.response("POST").json()["id"] == 7
    wait_until(lambda: agent.proxy.rows()[-1].status == "ok", "the second call has ended")
