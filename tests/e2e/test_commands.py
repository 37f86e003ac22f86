"""Tool servers that turnlog starts itself, behind Streamable HTTP."""

import json
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.commands import (
    COMMAND,
    META,
    REVISION,
    Agent,
    children,
    events_of,
    is_gone,
    newest,
    newest_headers,
    settings,
    text_of,
)
from kit.proxy import Proxy


@pytest.fixture
def proxy(tmp_path: Path) -> Generator[Proxy]:
    with proxy_beside(tmp_path, settings=settings()) as one:
        yield one


@pytest.fixture(autouse=True)
def leaving() -> Generator[None]:
    yield
    while Agent.opened:
        Agent.opened.pop().client.close()


def test_a_call_goes_to_the_command_and_is_recorded(proxy: Proxy) -> None:
    agent = Agent(proxy)
    answer = agent.post(call("say", {"text": "hello"}))
    assert (answer.status, text_of(answer.json())) == (200, "hello")
    assert answer.head.one("content-type") == "application/json"
    assert answer.head.one("turnlog-status") == "ok"
    (row,) = proxy.rows()
    assert (row.server, row.tool, row.status, row.output_summary) == ("cmd", "say", "ok", "hello")
    assert agent.post(message("nothing")).json()["error"]["code"] == -32601


@pytest.mark.promise("CMD-5")
def test_each_session_has_a_process_of_its_own_that_ends_with_it(proxy: Proxy) -> None:
    one, two = Agent(proxy), Agent(proxy)
    pids = {one.text("pid"), two.text("pid")}
    assert len(pids) == 2
    assert one.text("pid") in pids
    pid = one.text("pid")
    assert one.client.request("DELETE", "/mcp", headers=one.headers).status == 200
    assert is_gone(pid)
    assert one.post(call("pid")).status == 404
    assert two.text("pid") in pids


def test_a_request_without_a_session_is_refused(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        given = client.request("POST", "/mcp", call("pid", request_id=7), headers=MCP_HEADERS)
        assert (given.status, given.json()["id"]) == (400, 7)
        assert client.request("POST", "/mcp", b"no JSON", headers=MCP_HEADERS).status == 400
        assert client.request("GET", "/mcp", headers=MCP_HEADERS).status == 400
        assert client.request("PUT", "/mcp", b"{}", headers=MCP_HEADERS).status == 405


def test_agents_of_the_stateless_revisions_share_no_session(proxy: Proxy) -> None:
    headers = newest_headers(name="progress")
    for name in ("one", "two"):
        meta = {**META, "progressToken": "t"}
        body = call("progress", {"for": name}, request_id="same", _meta=meta)
        with Client(proxy.url) as client:
            said = events_of(client.request("POST", "/mcp", body, headers=headers).body)
        assert [m["params"]["progressToken"] for m in said[:-1]] == ["t", "t"]
        assert said[-1]["id"] == "same"
        assert text_of(said[-1]) == f"progress for {name}"
    # What a tool says of the id that it got is the tool's own affair.
    with Client(proxy.url) as client:
        body = newest("id", request_id=7)
        answer = client.request("POST", "/mcp", body, headers=newest_headers(name="id")).json()
    assert answer["id"] == 7
    assert text_of(answer).startswith("turnlog-")


def test_calls_with_one_id_that_overlap_get_their_own_answers(proxy: Proxy) -> None:
    headers = newest_headers(name="say")
    with Client(proxy.url) as hanging, Client(proxy.url) as client:
        hanging.ask(
            "POST", "/mcp", newest("hang", request_id=1), headers=newest_headers(name="hang")
        )
        wait_until(lambda: any(r.status == "pending" for r in proxy.rows()), "the call")
        body = newest("say", {"text": "mine"}, request_id=1)
        assert text_of(client.request("POST", "/mcp", body, headers=headers).json()) == "mine"


def test_a_session_that_uses_an_open_id_again_keeps_no_request_waiting(proxy: Proxy) -> None:
    agent = Agent(proxy)
    with Client(proxy.url) as client:
        client.ask("POST", "/mcp", call("hang", request_id=9), headers=agent.headers)
        wait_until(lambda: any(r.status == "pending" for r in proxy.rows()), "the call")
        assert agent.text("say", {"text": "mine"}, request_id=9) == "mine"
        answer = client.response("POST").json()
    assert answer["id"] == 9
    assert answer["result"]["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"


def test_a_body_of_several_lines_is_one_message(proxy: Proxy) -> None:
    agent = Agent(proxy)
    inner = call("say", {"text": "smuggled"}, request_id=99)
    body = b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":\n%b\n}}' % inner
    agent.tell(body)
    assert json.loads(agent.text("told"))[-1] == "notifications/x"
    spread = json.dumps(json.loads(call("say", {"text": "a\nb"})), indent=1).encode()
    assert text_of(agent.post(spread).json()) == "a\nb"
    raw = call("say", {"text": "x"}).replace(b'"x"', b'"x\ny"')
    assert agent.post(raw).status == 400
    assert [row.tool for row in proxy.rows()] == ["told", "say", "?"]


def test_an_agent_that_leaves_while_a_command_starts_leaves_no_process(tmp_path: Path) -> None:
    mute = [sys.executable, "-c", "import time; time.sleep(300)"]
    with proxy_beside(tmp_path, settings=settings(mute)) as proxy:
        params: dict[str, Any] = {"protocolVersion": REVISION, "capabilities": {}}
        with Client(proxy.url) as client:
            client.ask("POST", "/mcp", message("initialize", params), headers=MCP_HEADERS)
            wait_until(lambda: children(proxy), "the command")
            pids = children(proxy)
        assert all(map(is_gone, pids))


def test_a_leftover_process_of_a_command_delays_no_call(tmp_path: Path) -> None:
    leaves = ["sh", "-c", f"sleep 300 & exec {sys.executable} {COMMAND[1]}"]
    with proxy_beside(tmp_path, settings=settings(leaves)) as proxy:
        agent = Agent(proxy)
        died = agent.post(call("die", {"code": 3})).json()["result"]
        assert died["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"
        assert agent.text("say", {"text": "again"}) == "again"


def test_a_session_that_has_ended_leaves_no_descriptor(proxy: Proxy) -> None:
    def held() -> int:
        return len(list(Path(f"/proc/{proxy.process.pid}/fd").iterdir()))

    first: int | None = None
    for _ in range(4):
        agent = Agent(proxy)
        pid = agent.text("pid")
        agent.client.request("DELETE", "/mcp", headers=agent.headers)
        assert is_gone(pid)
        agent.client.close()
        most = (first := held() if first is None else first) + 1
        wait_until(lambda most=most: held() <= most, "what the session had open is closed")


def test_an_error_that_names_no_request_answers_the_only_one(proxy: Proxy) -> None:
    assert Agent(proxy).post(call("nameless")).json()["error"]["message"] == "broken"


def test_a_last_answer_without_its_newline_is_an_answer(proxy: Proxy) -> None:
    assert Agent(proxy).text("last") == "last"


def test_the_stateless_revisions_have_no_listening_stream(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        for method in ("GET", "DELETE"):
            given = client.request(method, "/mcp", headers=newest_headers())
            assert (given.status, given.head.one("allow")) == (405, "POST")


def test_progress_and_a_question_make_a_stream_of_the_answer(proxy: Proxy) -> None:
    agent = Agent(proxy)
    agent.client.ask("POST", "/mcp", call("asks", request_id=5), headers=agent.headers)
    head = agent.client.head()
    assert head.one("content-type") == "text/event-stream"
    (question,) = events_of(agent.client.event())
    assert question["method"] == "elicitation/create"
    content = {"action": "accept", "content": {"answer": "yes"}}
    reply = {"jsonrpc": "2.0", "id": question["id"], "result": content}
    agent.tell(json.dumps(reply).encode())
    (answer,) = events_of(agent.client.body(head))
    assert (answer["id"], text_of(answer)) == (5, "yes")
    (row,) = proxy.rows()
    assert "server_request" in row.flags


def test_listeners_get_messages_that_belong_to_no_request(proxy: Proxy) -> None:
    agent = Agent(proxy)
    with Client(proxy.url) as listener, Client(proxy.url) as late:
        listener.ask("GET", "/mcp", headers=agent.headers)
        assert listener.head().one("content-type") == "text/event-stream"
        assert late.request("GET", "/mcp", headers=agent.headers).status == 409
        agent.client.request("DELETE", "/mcp", headers=agent.headers)
        assert listener.chunk() == b""


@pytest.mark.promise("CMD-6")
def test_a_command_that_dies_fails_its_calls_at_once_and_the_session_goes_on(proxy: Proxy) -> None:
    agent = Agent(proxy)
    pid = agent.text("pid")
    died = agent.post(call("die", {"code": 3})).json()["result"]
    assert died["isError"] is True
    assert died["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"
    assert agent.text("pid") != pid
    assert json.loads(agent.text("told")) == ["initialize", "notifications/initialized"]
    assert proxy.told("process.ended")[0]["process.exit.code"] == 3


def test_a_command_that_cannot_be_run_is_a_failure_to_connect(tmp_path: Path) -> None:
    with (
        proxy_beside(tmp_path, settings=settings(["/no/such/program"])) as proxy,
        Client(proxy.url) as client,
    ):
        body = newest("say", {"text": "x"})
        given = client.request("POST", "/mcp", body, headers=newest_headers(name="say"))
        outcome = given.json()["result"]["_meta"]["turnlog/outcome"]
        assert (outcome["kind"], outcome["executed"]) == ("connect_failed", "no")
        assert proxy.told("process.failed")[0]["turnlog.server"] == "cmd"


def test_requests_of_the_stateless_revisions_need_no_session(proxy: Proxy) -> None:
    with Client(proxy.url) as client:
        body = newest("say", {"text": "hello"}, request_id=0)
        given = client.request("POST", "/mcp", body, headers=newest_headers(name="say"))
        assert (given.json()["id"], text_of(given.json())) == (0, "hello")
        body = message("nothing", {"_meta": META})
        given = client.request("POST", "/mcp", body, headers=newest_headers("nothing"))
        assert (given.status, given.json()["error"]["code"]) == (404, -32601)
        for headers, code in (
            (newest_headers(name="other"), -32020),
            (newest_headers("tools/list", name="say"), -32020),
        ):
            given = client.request("POST", "/mcp", newest("say"), headers=headers)
            assert (given.status, given.json()["error"]["code"]) == (400, code)
        given = client.request("POST", "/mcp", call("say"), headers=newest_headers(name="say"))
        assert (given.status, given.json()["error"]["code"]) == (400, -32602)


def test_closing_its_stream_cancels_a_stateless_request_and_no_other(proxy: Proxy) -> None:
    agent = Agent(proxy)
    headers = newest_headers(name="hang")
    for body, fields in ((newest("hang"), headers), (call("hang", request_id=9), agent.headers)):
        with Client(proxy.url) as client:
            client.ask("POST", "/mcp", body, headers=fields)
            wait_until(lambda: any(r.status == "pending" for r in proxy.rows()), "the call")
        wait_until(lambda: all(r.status != "pending" for r in proxy.rows()), "its end")
    with Client(proxy.url) as client:
        given = client.request("POST", "/mcp", newest("told"), headers=newest_headers(name="told"))
    (cancel,) = json.loads(text_of(given.json()))
    assert cancel.startswith("notifications/cancelled turnlog-")
    assert "notifications/cancelled" not in agent.text("told")
    assert {row.kind for row in proxy.rows() if row.tool == "hang"} == {"cancelled_by_caller"}


def test_a_cancelled_request_of_a_session_ends_without_an_answer(proxy: Proxy) -> None:
    agent = Agent(proxy)
    with Client(proxy.url) as client:
        client.ask("POST", "/mcp", call("hang", request_id=9), headers=agent.headers)
        wait_until(lambda: any(r.status == "pending" for r in proxy.rows()), "the call")
        agent.tell(message("notifications/cancelled", {"requestId": 9}, request_id=None))
        assert client.response("POST").body == b""
    assert json.loads(agent.text("told"))[-1] == "notifications/cancelled 9"
    (row,) = [row for row in proxy.rows() if row.tool == "hang"]
    assert row.kind == "cancelled_by_caller"


def test_a_time_limit_takes_the_request_back(tmp_path: Path) -> None:
    rule = "rules: [{name: soon, match: {tool: hang}, timeout: {response: 100ms}}]"
    (tmp_path / "rules.yaml").write_text(rule)
    with proxy_beside(tmp_path, settings=settings(rules=["rules.yaml"])) as proxy:
        agent = Agent(proxy)
        outcome = agent.post(call("hang", request_id=9)).json()["result"]["_meta"][
            "turnlog/outcome"
        ]
        assert outcome["kind"] == "response_timeout"
        assert json.loads(agent.text("told"))[-1] == "notifications/cancelled 9"


def test_a_line_that_is_no_message_is_logged_and_dropped(proxy: Proxy) -> None:
    agent = Agent(proxy)
    assert agent.text("stray") == "said"
    (event,) = proxy.told("output.stray")
    assert event["turnlog.bytes"] == len("no message")


@pytest.mark.promise("CMD-7")
def test_all_processes_end_with_turnlog(tmp_path: Path) -> None:
    with proxy_beside(tmp_path, settings=settings()) as proxy:
        pids = [Agent(proxy).text("pid") for _ in range(3)]
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(20) == 0
        assert all(map(is_gone, pids))


@pytest.mark.promise("CMD-7")
def test_processes_die_with_turnlog_when_it_is_killed(tmp_path: Path) -> None:
    with proxy_beside(tmp_path, settings=settings()) as proxy:
        pid = Agent(proxy).text("pid")
        proxy.kill()
        assert is_gone(pid)
