"""One command that all sessions share (`share: all`): no session gets a message of another."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, Response, call, message, wait_until
from kit.commands import (
    META,
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
    with proxy_beside(tmp_path, settings=settings(share="all")) as one:
        yield one


@pytest.fixture(autouse=True)
def leaving() -> Generator[None]:
    yield
    while Agent.opened:
        Agent.opened.pop().client.close()


def asked(agent: Agent, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> None:
    """Call a tool on the agent's connection, and leave the answer for later."""
    agent.client.ask("POST", "/mcp", call(tool, arguments, **more), headers=agent.headers)


def pending(proxy: Proxy, count: int) -> None:
    def all_sent() -> bool:
        return sum(row.status == "pending" for row in proxy.rows()) == count

    wait_until(all_sent, f"{count} calls under way")


def listening(agent: Agent) -> Client:
    """Open the agent's listening stream."""
    client = Client(agent.url)
    client.ask("GET", "/mcp", headers=agent.headers)
    assert client.head().status == 200
    return client


def answers(agent: Agent, question: Any, answer: str) -> None:
    result = {"action": "accept", "content": {"answer": answer}}
    agent.tell(json.dumps({"jsonrpc": "2.0", "id": question, "result": result}).encode())


def leave(*agents: Agent) -> None:
    """Hang up in the middle of calls: a proxy that stops need not wait for them."""
    for agent in agents:
        agent.client.close()


@pytest.mark.promise("CMD-5")
def test_all_sessions_share_one_process_that_is_initialized_once(proxy: Proxy) -> None:
    one, two = Agent(proxy, request_id="first"), Agent(proxy, request_id=77)
    assert one.session != two.session
    assert (one.greeting["id"], two.greeting["id"]) == ("first", 77)
    assert one.greeting["result"] == two.greeting["result"]
    assert one.text("pid") == two.text("pid")
    assert json.loads(two.text("told")) == ["initialize", "notifications/initialized"]
    assert len(children(proxy)) == 1


def test_the_process_ends_with_the_last_session_and_the_next_one_opens_anew(proxy: Proxy) -> None:
    one, two = Agent(proxy), Agent(proxy)
    pid = one.text("pid")
    assert one.client.request("DELETE", "/mcp", headers=one.headers).status == 200
    assert one.post(call("pid")).status == 404
    assert two.text("pid") == pid
    assert two.client.request("DELETE", "/mcp", headers=two.headers).status == 200
    assert is_gone(pid)
    other = Agent(proxy, revision="2025-03-26")
    assert other.greeting["result"]["protocolVersion"] == "2025-03-26"
    assert other.text("pid") != pid


@pytest.mark.promise("CMD-1")
def test_equal_ids_and_tokens_at_the_same_time_are_kept_apart(proxy: Proxy) -> None:
    one, two = Agent(proxy), Agent(proxy)
    asked(one, "hang", request_id=5)
    asked(two, "hang", request_id=5)
    pending(proxy, 2)
    for agent, name in ((Agent(proxy), "three"), (Agent(proxy), "four")):
        given = agent.post(
            call("progress", {"for": name}, request_id=5, _meta={"progressToken": 1})
        )
        said = events_of(given.body)
        assert [m["params"]["progressToken"] for m in said[:-1]] == [1, 1]
        assert (said[-1]["id"], text_of(said[-1])) == (5, f"progress for {name}")
        assert agent.text("id", request_id=5).startswith("turnlog-")
    assert Agent(proxy).text("release") == "released all"
    for agent in (one, two):
        answer = agent.client.response("POST").json()
        assert (answer["id"], text_of(answer)) == (5, "released")


def ended(proxy: Proxy, tool: str) -> list[list[str]]:
    """Return the flags of a tool's calls, as far as they were answered."""
    rows = [row for row in proxy.rows() if row.tool == tool and row.status == "ok"]
    return [sorted(row.flags) for row in rows]


@pytest.mark.promise("CMD-1")
def test_a_cancel_ends_the_call_of_its_own_session_and_no_other(proxy: Proxy) -> None:
    one, two = Agent(proxy), Agent(proxy)
    asked(one, "hang", request_id=5)
    asked(two, "hang", request_id=5)
    pending(proxy, 2)
    one.tell(message("notifications/cancelled", {"requestId": 5}, request_id=None))
    assert one.client.response("POST").body == b""
    one.tell(message("notifications/cancelled", {"requestId": 6}, request_id=None))
    cancels = [word for word in json.loads(one.text("told")) if "cancelled" in word]
    assert len(cancels) == 1
    assert cancels[0].startswith("notifications/cancelled turnlog-")
    one.text("release")
    assert text_of(two.client.response("POST").json()) == "released"
    wait_until(lambda: ended(proxy, "hang") == [["late"], []], "the cancelled one came late")


@pytest.mark.promise("CMD-1")
def test_a_server_request_goes_to_the_session_whose_call_is_open(proxy: Proxy) -> None:
    one, two = Agent(proxy), Agent(proxy)
    with listening(one) as other:
        asked(two, "asks", request_id=5)
        head = two.client.head()
        (question,) = events_of(two.client.event())
        assert question["method"] == "elicitation/create"
        # Who was not asked cannot answer.
        answers(one, question["id"], "forged")
        answers(two, question["id"], "yes")
        (answer,) = events_of(two.client.body(head))
        assert (answer["id"], text_of(answer)) == (5, "yes")
        one.client.request("DELETE", "/mcp", headers=one.headers)
        assert other.chunk() == b""


@pytest.mark.promise("CMD-1")
def test_a_server_request_that_fits_no_single_session_is_answered_by_an_error(
    proxy: Proxy,
) -> None:
    one, two = Agent(proxy), Agent(proxy)
    asked(one, "hang")
    pending(proxy, 1)
    assert (
        two.text("asks")
        == "several sessions share this command, and nothing tells which of them is asked"
    )
    assert two.text("asks", {"method": "ping"}) == "nothing"
    two.text("asks", {"method": "ask/ghp_a8Zk3Lq9Xw2Mv7Bn4Rt6Yc1Ph5Ds0Jf8Ge"})
    event, secret = proxy.told("question.refused", 2)
    assert (event["turnlog.server"], event["mcp.method.name"]) == ("cmd", "elicitation/create")
    assert secret["mcp.method.name"] == "ask/[redacted]"
    leave(one)


def test_the_end_of_a_session_cancels_its_requests_in_both_directions(proxy: Proxy) -> None:
    one, two = Agent(proxy), Agent(proxy)
    asked(one, "asks", {"as": "first"})
    one.client.head()
    one.client.event()
    with Client(proxy.url) as client:
        assert client.request("DELETE", "/mcp", headers=one.headers).status == 200
    answers(two, "first", "forged")
    *_, cancel, answer = json.loads(two.text("told"))
    assert cancel.startswith("notifications/cancelled turnlog-")
    assert answer == "first: the session has ended"
    # It answers all the same.
    wait_until(lambda: ended(proxy, "asks") == [["late", "server_request"]], "it came late")


def test_a_later_session_gets_the_negotiated_revision_or_an_error_with_the_reason(
    proxy: Proxy,
) -> None:
    Agent(proxy, revision="2025-06-18")
    later = Agent(proxy, revision="2025-11-25")
    assert later.greeting["result"]["protocolVersion"] == "2025-06-18"
    assert later.text("say", {"text": "on"}) == "on"
    params: dict[str, Any] = {"protocolVersion": "2025-03-26", "capabilities": {}}
    with Client(proxy.url) as client:
        given = client.request("POST", "/mcp", message("initialize", params), headers=MCP_HEADERS)
    assert (given.status, given.head.one("mcp-session-id")) == (200, None)
    error = given.json()["error"]
    assert error["data"] == {"supported": ["2025-06-18"], "requested": "2025-03-26"}
    assert "speaks 2025-06-18 by now, '2025-03-26' is not possible" in error["message"]


def test_a_command_that_declines_a_handshake_may_take_the_next_one(proxy: Proxy) -> None:
    body = message("initialize", {"protocolVersion": "none"}, request_id="mine")
    with Client(proxy.url) as client:
        given = client.request("POST", "/mcp", body, headers=MCP_HEADERS)
    assert (given.status, given.head.one("mcp-session-id")) == (200, None)
    assert given.json()["id"] == "mine"
    assert given.json()["error"] == {"code": -32602, "message": "unsupported"}
    assert Agent(proxy).text("say", {"text": "on"}) == "on"


def test_a_session_opens_no_second_conversation_and_sends_no_request_of_two_ids(
    proxy: Proxy,
) -> None:
    agent = Agent(proxy)
    assert agent.post(message("initialize", {"protocolVersion": "2025-06-18"})).status == 400
    twice = call("say", {"text": "x"}).replace(b'{"jsonrpc"', b'{"id":2,"jsonrpc"', 1)
    assert agent.post(twice).status == 400
    with Client(proxy.url) as client:
        params = {"protocolVersion": "2025-06-18"}
        body = message("initialize", params).replace(b'{"jsonrpc"', b'{"id":2,"jsonrpc"', 1)
        assert client.request("POST", "/mcp", body, headers=MCP_HEADERS).status == 400
    assert json.loads(agent.text("told")) == ["initialize", "notifications/initialized"]


@pytest.mark.parametrize("form", [b"%b", b"[%b]"])
def test_a_byte_order_mark_does_not_reach_the_command(proxy: Proxy, form: bytes) -> None:
    agent = Agent(proxy)
    given = agent.post(b"\xef\xbb\xbf" + form % call("say", {"text": "marked"}))
    assert (given.status, b"marked" in given.body) == (200, True)
    assert agent.text("say", {"text": "on"}) == "on"


@pytest.mark.promise("CMD-1")
def test_batches_are_kept_apart_too(proxy: Proxy) -> None:
    one, two = Agent(proxy), Agent(proxy)
    calls = [call("say", {"text": str(n)}, request_id=n) for n in (1, 2)]
    for agent in (one, two):
        said = events_of(agent.post(b"[%b, %b]" % tuple(calls)).body)
        assert sorted((m["id"], text_of(m)) for m in said) == [(1, "1"), (2, "2")]
    asked(one, "hang", request_id=5)
    pending(proxy, 1)
    for answer in (
        two.post(call("release", {"at_once": True}, request_id=5)),
        one.client.response(),
    ):
        assert answer.json()["id"] == 5
        assert text_of(answer.json()) == "released at once"


@pytest.mark.promise("CMD-6")
def test_a_crash_of_a_shared_command_fails_the_calls_of_all_sessions_and_all_go_on(
    proxy: Proxy,
) -> None:
    one, two = Agent(proxy), Agent(proxy)
    pid = one.text("pid")
    asked(one, "hang", request_id=5)
    asked(two, "hang", request_id=5)
    pending(proxy, 2)
    Agent(proxy).post(call("die", {"code": 3}))
    for agent in (one, two):
        lost = agent.client.response("POST").json()
        assert lost["id"] == 5
        assert lost["result"]["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"
    pids = {agent.text("pid") for agent in (one, two)}
    assert len(pids) == 1
    assert pid not in pids
    assert json.loads(two.text("told")) == ["initialize", "notifications/initialized"]
    assert {row.kind for row in proxy.rows() if row.tool == "hang"} == {"connection_lost"}


@pytest.mark.promise("CMD-1")
def test_requests_of_an_ended_process_are_not_mixed_with_those_of_the_next(proxy: Proxy) -> None:
    one, two = Agent(proxy), Agent(proxy)
    asked(one, "asks", {"as": "q"})
    lost = one.client.head()
    one.client.event()
    two.post(call("die", {"code": 3}))
    (last,) = events_of(one.client.body(lost))
    assert last["result"]["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"
    asked(two, "asks", {"as": "q"}, request_id=5)
    head = two.client.head()
    (question,) = events_of(two.client.event())
    answers(one, question["id"], "forged")
    answers(two, question["id"], "mine")
    assert text_of(events_of(two.client.body(head))[0]) == "mine"


def test_answers_of_ten_megabytes_come_whole_beside_others(proxy: Proxy) -> None:
    one, two = Agent(proxy), Agent(proxy)
    for agent, letter in ((one, "a"), (two, "b")):
        asked(agent, "large", {"text": letter, "times": 10 << 20}, request_id=5)
    for agent, letter in ((one, "a"), (two, "b")):
        answer = agent.client.response("POST").json()
        assert answer["id"] == 5
        assert text_of(answer) == letter * (10 << 20)


def stateless(proxy: Proxy, tool: str, credential: str, **arguments: Any) -> Response:
    headers = (*newest_headers(name=tool), ("Authorization", credential))
    meta = {**META, "progressToken": "t"}
    with Client(proxy.url) as client:
        body = call(tool, arguments, request_id=5, _meta=meta)
        return client.request("POST", "/mcp", body, headers=headers)


def test_stateless_requests_share_a_process_whoever_sends_them(proxy: Proxy) -> None:
    pids = {text_of(stateless(proxy, "pid", name).json()) for name in ("one", "two")}
    assert len(pids) == 1
    assert Agent(proxy).text("pid") not in pids
    said = events_of(stateless(proxy, "progress", "two", **{"for": "two"}).body)
    assert [m["params"]["progressToken"] for m in said[:-1]] == ["t", "t"]
    assert (said[-1]["id"], text_of(said[-1])) == (5, "progress for two")


@pytest.mark.promise("CMD-1")
def test_a_stateless_call_gets_no_message_that_may_belong_to_another(proxy: Proxy) -> None:
    log: dict[str, Any] = {"method": "notifications/message", "params": {"data": "secret"}}
    alone = events_of(stateless(proxy, "notifies", "one", **log).body)
    assert [m.get("method") for m in alone] == ["notifications/message", None]
    with Client(proxy.url) as hanging:
        headers = (*newest_headers(name="hang"), ("Authorization", "two"))
        hanging.ask("POST", "/mcp", newest("hang"), headers=headers)
        pending(proxy, 1)
        assert text_of(stateless(proxy, "notifies", "one", **log).json()) == "notified"
