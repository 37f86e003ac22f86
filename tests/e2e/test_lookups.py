"""`resources/read` and `prompts/get` have rows in the log, and nothing else about them changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import turnlog
from e2e.test_record_sse import post, stream
from kit.beside import Rig, proxy_beside, ruled
from kit.clients import MCP_HEADERS, call, message, wait_until
from kit.commands import Agent, settings
from kit.faults import CloseAfterRequest
from kit.proxy import payloads
from kit.upstreams import answer, chunked, event, ok, result
from kit.wraps import initialize, result_of, wrapping
from turnlog.sessions.rows import Row

URI = "file:///srv/notes.txt?api_key=sk-proj-Tr0ub4dor8Xq2Lm9Zk4Vw7Yp1Hs6Jd3Fb5Gc0Na"
READ = message("resources/read", {"uri": "file:///srv/notes.txt"}, request_id=7)
CONTENTS = {"contents": [{"uri": "file:///srv/notes.txt", "text": "milk"}]}
PROMPT = message("prompts/get", {"name": "review", "arguments": {"of": "main.py"}}, request_id=8)
MESSAGES = {"messages": [{"role": "user", "content": {"type": "text", "text": "look"}}]}


def rpc(request_id: object, value: object) -> bytes:
    return json.dumps(result(request_id, value)).encode()


def told(row: Row) -> tuple[Any, ...]:
    return row.operation, row.method, row.tool, row.effect, row.status, row.executed


LOOKUP = ("resources/read", "resources/read", "resources/read", "read", "ok", "yes")


@pytest.mark.promise("REC-20")
def test_a_resource_that_is_read_has_a_row_and_its_answer_is_as_it_came(rig: Rig) -> None:
    body = rpc(7, CONTENTS)
    rig.upstream.script = answer(ok(body))
    with rig.client() as client:
        given = client.request("POST", rig.path, READ, headers=MCP_HEADERS)
    assert given.body == body
    assert not [name for name, _ in given.head.headers if name.lower().startswith("turnlog-")]
    row = rig.row()
    assert told(row) == LOOKUP
    assert row.input_summary == '{"uri":"file:///srv/notes.txt"}'
    assert "milk" in row.output_summary
    assert (row.delta, row.flags, row.error) == ([], [], None)


@pytest.mark.promise("REC-20")
def test_a_prompt_has_a_row_with_its_name_and_arguments(rig: Rig) -> None:
    rig.upstream.script = answer(ok(rpc(8, MESSAGES)))
    assert json.loads(rig.post(PROMPT)) == result(8, MESSAGES)
    row = rig.row()
    assert told(row) == ("prompts/get", "prompts/get", "prompts/get", "read", "ok", "yes")
    assert row.input_summary == '{"name":"review","arguments":{"of": "main.py"}}'


def test_the_operation_of_a_call_is_its_method_or_http(rig: Rig) -> None:
    rig.upstream.script = answer(ok(rpc(1, {"content": []})))
    rig.post(call("add"))
    with rig.client() as client:
        client.request("GET", f"{rig.path}/weather")
    assert [row.operation for row in rig.ended_rows(2)] == ["tools/call", "http"]


def test_an_event_stream_answers_a_lookup(rig: Rig) -> None:
    def script(peer: Any) -> None:
        peer.read()
        peer.start_events()
        peer.send(chunked(event(result(7, CONTENTS))))
        peer.send(b"0\r\n\r\n")

    rig.upstream.script = script
    assert event(result(7, CONTENTS)) in rig.post(READ)
    assert told(rig.row()) == LOOKUP


def test_lookups_and_calls_of_a_batch_have_rows_of_their_own(rig: Rig) -> None:
    said = [result(1, {"content": [{"type": "text", "text": "3"}]}), result(7, CONTENTS)]
    rig.upstream.script = answer(ok(json.dumps(said).encode()))
    rig.post(b"[" + call("add") + b"," + READ + b"]")
    rows = rig.ended_rows(2)
    assert [(row.operation, row.status) for row in rows] == [
        ("tools/call", "ok"),
        ("resources/read", "ok"),
    ]


def test_the_old_transport_answers_a_lookup_on_its_stream(rig: Rig) -> None:
    with stream(rig) as one:
        post(rig, one, READ)
        one.server.send_event(result(7, CONTENTS))
        assert b"milk" in one.agent.event()
        assert told(rig.row()) == LOOKUP


def test_a_command_answers_a_lookup(tmp_path: Path) -> None:
    with proxy_beside(tmp_path, settings=settings()) as proxy:
        agent = Agent(proxy)
        assert agent.post(READ).json()["error"]["code"] == -32601
        wait_until(lambda: [row.error for row in proxy.rows()] == ["invalid"], "the row ends")
        (row,) = proxy.rows()
        assert (row.operation, row.status, row.upstream.code) == ("resources/read", "error", -32601)
        agent.client.close()


def test_lookups_go_through_a_wrap_and_have_rows(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        initialize(wrap)
        asked = wrap.asked(READ)
        wrap.server.say(result_of(CONTENTS)(asked["id"]))
        assert wrap.stdout.json() == result(7, CONTENTS)
    assert told(wrap.row()) == LOOKUP


def test_a_lookup_that_a_wrapped_command_never_answers_gets_no_answer(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        initialize(wrap)
        wrap.asked(READ)
        wrap.server.exit(3)
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == 3
    row = wrap.row()
    assert (row.operation, row.kind) == ("resources/read", "connection_lost")


def test_a_lookup_without_an_answer_gets_the_error_of_a_request_that_is_no_call(rig: Rig) -> None:
    rig.upstream.script = CloseAfterRequest()
    with rig.client() as client:
        given = client.request("POST", rig.path, READ, headers=MCP_HEADERS)
    assert (given.status, given.head.one("content-type")) == (502, "application/problem+json")
    said = given.json()
    assert said["turnlog/outcome"]["kind"] == "connection_lost"
    assert said["turnlog/outcome"]["call"] == ""
    assert "call" not in said["detail"]
    row = rig.row()
    assert (row.kind, row.retry, row.status) == ("connection_lost", "safe", "error")


ERRORS = {-32002: "not_found", -32602: "invalid_request", -32603: "upstream_internal"}


@pytest.mark.parametrize("code", ERRORS)
def test_the_error_of_a_server_passes_and_is_recorded_in_the_row(rig: Rig, code: int) -> None:
    said = {"jsonrpc": "2.0", "id": 7, "error": {"code": code, "message": "no"}}
    rig.upstream.script = answer(ok(json.dumps(said).encode()))
    assert json.loads(rig.post(READ)) == said
    assert (rig.row().kind, rig.row().upstream.code) == (ERRORS[code], code)


RULES = """
rules:
  - name: nothing at all
    match: {tool: "*"}
    access: deny
    effect: write
    concurrency: 1
"""


@pytest.mark.promise("REC-20")
def test_rules_for_tools_do_not_apply_to_lookups(tmp_path: Path) -> None:
    with ruled(tmp_path, RULES) as rig:
        rig.fresh()
        rig.upstream.script = answer(ok(rpc(7, CONTENTS)))
        assert json.loads(rig.post(READ)) == result(7, CONTENTS)
        wait_until(lambda: [told(row) for row in rig.proxy.rows()] == [LOOKUP], "the row ends")


def test_a_secret_in_a_uri_is_recorded_nowhere(rig: Rig) -> None:
    rig.upstream.script = answer(ok(rpc(7, {"contents": [{"uri": URI, "text": "x"}]})))
    rig.post(message("resources/read", {"uri": URI}, request_id=7))
    row = rig.row()
    assert "Tr0ub4dor8Xq2Lm9" not in f"{row}"
    assert "redacted" in row.flags
    assert not [one for one in payloads(rig.proxy.data) if b"Tr0ub4dor8Xq2Lm9" in one]


def test_a_prompt_that_asks_for_input_goes_on_in_a_further_leg(rig: Rig) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    params: dict[str, Any] = {"name": "review", "_meta": meta}
    asks: dict[str, Any] = {
        "resultType": "input_required",
        "inputRequests": {},
        "requestState": "s1",
    }
    rig.upstream.script = answer(ok(rpc(8, asks)))
    rig.post(message("prompts/get", params, request_id=8))
    rig.upstream.script = answer(ok(rpc(9, {"resultType": "complete", **MESSAGES})))
    more: dict[str, Any] = {**params, "requestState": "s1", "inputResponses": {}}
    rig.post(message("prompts/get", more, request_id=9))
    first, second = rig.ended_rows(2)
    assert (first.status, second.status, second.leg) == ("input_required", "ok", 1)
    assert first.call == second.call


def test_lookups_use_no_tool(rig: Rig) -> None:
    rig.upstream.script = answer(ok(rpc(7, CONTENTS)))
    rig.post(READ)
    rig.upstream.script = answer(ok(rpc(1, {"content": [{"type": "text", "text": "3"}]})))
    rig.post(call("add"))
    rig.ended_rows(2)
    done = turnlog("state", rig.session, "--json", data=rig.proxy.data)
    state = json.loads(done.stdout)["state"]
    assert list(state["tools_used"]) == ["default.add"]
    assert state["usage"]["calls"] == 1
