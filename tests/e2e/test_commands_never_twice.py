"""Guarded calls to a command behind HTTP run once, as over HTTP and through a wrap."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.beside import proxy_beside, session_notes
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.proxy import Proxy
from kit.stalls import stopped
from turnlog.sessions.rows import Row

RULES = """
rules:
  - {match: {tool: "write*"}, effect: write}
  - {match: {tool: "*_timed"}, timeout: {response: 300ms}}
"""
COMMAND = """
import json, pathlib, sys, threading, time
folder = pathlib.Path(sys.argv[1])
def say(message, result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
def write(message):
    while not (folder / "go").exists():
        time.sleep(0.01)
    say(message, {"content": [{"type": "text", "text": "done"}]})
for line in sys.stdin:
    message = json.loads(line)
    with (folder / "heard").open("a") as heard:
        heard.write(message["method"] + "\\n")
    if message["method"] == "initialize":
        info = {"name": "busy", "version": "1"}
        revision = message["params"]["protocolVersion"]
        say(message, {"protocolVersion": revision, "capabilities": {}, "serverInfo": info})
    elif message["method"] == "tools/call":
        threading.Thread(target=write, args=(message,), daemon=True).start()
"""
"""A server that answers calls when it is let go, whatever is cancelled."""


class Agent:
    """An agent of the handshake revisions, in one protocol session."""

    def __init__(self, proxy: Proxy, folder: Path) -> None:
        self.proxy = proxy
        self.folder = folder
        self.clients: list[Client] = []
        params: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}}
        given = self.begun(message("initialize", params)).response("POST")
        self.session = given.head.one("mcp-session-id") or ""

    session = ""

    def begun(self, body: bytes) -> Client:
        """Ask on a connection of its own, and do not wait for the answer."""
        client = Client(self.proxy.url)
        self.clients.append(client)
        named = (("Mcp-Session-Id", self.session),) if self.session else ()
        client.ask("POST", "/s/one/mcp", body, headers=(*MCP_HEADERS, *named))
        return client

    def result(self, body: bytes) -> Any:
        return self.begun(body).response("POST").json()["result"]

    def heard(self, method: str = "tools/call") -> int:
        """Return how often the command was told that."""
        return (self.folder / "heard").read_text().splitlines().count(method)

    def at_work(self, tool: str) -> Client:
        """Call; return when the command has the call."""
        before = self.heard()
        client = self.begun(call(tool, {"a": 1}, request_id="first"))
        wait_until(lambda: self.heard() > before, "the command has the call")
        return client

    def abandoned(self) -> None:
        """Wait until the call runs on alone."""
        wait_until(lambda: "abandoned" in session_notes(self.proxy.data, "one"), "it runs on")

    def rows(self) -> list[Row]:
        return self.proxy.rows()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    (tmp_path / "rules.yaml").write_text(RULES)
    command = [sys.executable, "-I", "-S", "-c", COMMAND, str(tmp_path)]
    settings = {"upstreams": {"cmd": {"command": command}}, "rules": ["rules.yaml"]}
    with proxy_beside(tmp_path, settings=settings) as proxy:
        one = Agent(proxy, tmp_path)
        yield one
        for client in one.clients:
            client.close()


def leaves(agent: Agent) -> None:
    agent.at_work("write").close()
    agent.abandoned()


def cancels(agent: Agent) -> None:
    client = agent.at_work("write")
    cancel = message("notifications/cancelled", {"requestId": "first"}, request_id=None)
    assert agent.begun(cancel).response("POST").status == 202
    wait_until(lambda: agent.heard("notifications/cancelled") == 1, "the command is told")
    client.close()
    agent.abandoned()


@pytest.mark.parametrize("gives_up", [leaves, cancels])
def test_a_caller_that_gave_up_and_repeats_gets_the_answer_of_the_only_execution(
    agent: Agent, gives_up: Callable[[Agent], None]
) -> None:
    gives_up(agent)
    again = agent.begun(call("write", {"a": 1}, request_id="second"))
    (agent.folder / "go").touch()
    said = again.response("POST").json()
    assert (said["id"], said["result"]["content"][0]["text"]) == ("second", "done")
    assert said["result"]["_meta"]["turnlog/outcome"]["status"] == "replayed"
    assert agent.heard() == 1
    first, second = agent.rows()
    assert (first.status, first.flags) == ("ok", ["late"])
    assert (second.status, "replayed" in second.flags) == ("replayed", True)


@pytest.mark.promise("TWICE-14")
def test_a_call_runs_on_after_its_timeout_and_a_duplicate_gets_its_answer(
    agent: Agent,
) -> None:
    said = agent.result(call("write_timed", {"a": 1}))
    assert said["_meta"]["turnlog/outcome"]["kind"] == "response_timeout"
    # A cancel comes too late, and does not reach what runs on.
    cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
    assert agent.begun(cancel).response("POST").status == 202
    assert "cancel_forwarded" not in session_notes(agent.proxy.data, "one")
    (agent.folder / "go").touch()
    wait_until(lambda: agent.rows()[0].status == "ok", "the late answer is recorded")
    said = agent.result(call("write_timed", {"a": 1}, request_id=2))
    assert said["_meta"]["turnlog/outcome"]["status"] == "replayed"
    assert agent.heard() == 1


def test_a_proxy_that_was_stopped_does_not_send_calls_that_its_agent_gave_up_meanwhile(
    agent: Agent,
) -> None:
    with stopped(agent.proxy.process.pid):
        agent.begun(call("write", {"a": 1})).close()
    wait_until(lambda: [row.kind for row in agent.rows()] == ["cancelled_by_caller"], "it is over")
    (row,) = agent.rows()
    assert (row.executed, row.phase, agent.heard()) == ("no", "queued", 0)
