"""Requests of a command to its client during a call, before and after its process has died."""

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kit.beside import proxy_beside
from kit.clients import Head, call
from kit.commands import Agent, events_of, settings, text_of
from kit.proxy import Proxy


@pytest.fixture(params=["session", "all"])
def proxy(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Proxy]:
    with proxy_beside(tmp_path, settings=settings(share=request.param)) as one:
        yield one


@pytest.fixture(autouse=True)
def leaving() -> Generator[None]:
    yield
    while Agent.opened:
        Agent.opened.pop().client.close()


def asked(agent: Agent, tool: str, **more: Any) -> tuple[Head, list[Any]]:
    """Call a tool that asks something; return the answer's head and its first events."""
    agent.client.ask("POST", "/mcp", call(tool, **more), headers=agent.headers)
    return agent.client.head(), events_of(agent.client.event())


def answers(agent: Agent, question: Any, answer: str) -> None:
    result = {"action": "accept", "content": {"answer": answer}}
    agent.tell(json.dumps({"jsonrpc": "2.0", "id": question, "result": result}).encode())


def killed(agent: Agent) -> list[Any]:
    """Let an agent be asked something by a process that dies then; return the last events."""
    pid = int(agent.text("pid"))
    head, (question,) = asked(agent, "asks", request_id=5)
    assert question["id"] == "question"
    os.kill(pid, signal.SIGKILL)
    return events_of(agent.client.body(head))


@pytest.mark.promise("OUT-1")
def test_a_call_that_is_lost_after_its_stream_has_begun_says_how_it_ended(proxy: Proxy) -> None:
    (last,) = killed(Agent(proxy))
    assert last["id"] == 5
    assert last["result"]["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"


def test_answers_in_an_array_belong_to_their_requests_after_a_process_died(proxy: Proxy) -> None:
    agent = Agent(proxy, revision="2025-03-26")
    killed(agent)
    head, (question,) = asked(agent, "asks", request_id=6)
    said = [
        {"jsonrpc": "2.0", "id": each, "result": {"content": {"answer": str(number)}}}
        for number, each in enumerate(("question", question["id"]))
    ]
    agent.tell(json.dumps(said).encode())
    (last,) = events_of(agent.client.body(head))
    assert text_of(last) == "1"


def test_an_array_of_requests_and_notifications_answers_no_request(proxy: Proxy) -> None:
    agent = Agent(proxy, revision="2025-03-26")
    head, said = asked(agent, "asks_at_once", request_id=5, _meta={"progressToken": "t"})
    if len(said) == 1:
        said += events_of(agent.client.event())
    assert [each["method"] for each in said] == ["notifications/progress", "elicitation/create"]
    answers(agent, said[1]["id"], "yes")
    (last,) = events_of(agent.client.body(head))
    assert (last["id"], text_of(last)) == (5, "yes")
    (row,) = proxy.rows()
    assert (row.status, row.flags) == ("ok", ["server_request"])
