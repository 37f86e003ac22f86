"""Calls of several legs: more input, and tasks; also across restarts of the proxy."""

import json
from pathlib import Path
from typing import Any

import pytest

from kit.beside import Rig, proxy_beside
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.proxy import Proxy, rows
from kit.upstreams import Peer, RawUpstream, chunked, event, result

NEW = (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28"))
OLD = (*MCP_HEADERS, ("MCP-Protocol-Version", "2025-11-25"))
DONE = {"content": [{"type": "text", "text": "done"}]}


class Scripted:
    """Answers request after request with these results; an `Exception` is a JSON-RPC error."""

    def __init__(self, *results: object, events: bool = False) -> None:
        self.results = list(results)
        self.events = events

    def __call__(self, peer: Peer) -> None:
        """Answer the next request."""
        asked = peer.read().json()
        value = self.results.pop(0)
        if isinstance(value, int):
            said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
            said["error"] = {"code": value, "message": "no"}
        else:
            said = result(asked["id"], value)
        if not self.events:
            peer.send_json(said)
            return
        peer.start_events()
        peer.send(chunked(event(said)))
        peer.end()


def input_required(state: str | None = None) -> dict[str, object]:
    asked: dict[str, object] = {"resultType": "input_required", "inputRequests": {"x": {}}}
    return asked if state is None else {**asked, "requestState": state}


def task(status: str, **more: object) -> dict[str, object]:
    return {"resultType": "task", "taskId": "task-1", "status": status, "ttlMs": 60_000, **more}


def old_task(status: str) -> dict[str, object]:
    return {"task": {"taskId": "task-1", "status": status, "ttl": 60_000}}


def post(rig: Rig, *bodies: bytes, headers: tuple[tuple[str, str], ...] = NEW) -> None:
    with rig.client() as client:
        for body in bodies:
            assert client.request("POST", rig.path, body, headers=headers).status == 200


def legs(rig: Rig, count: int) -> list[tuple[int, str]]:
    found = rig.ended_rows(count)
    assert len({row.call for row in found}) == 1
    return [(row.leg, row.status.value) for row in found]


@pytest.mark.promise("REC-24")
@pytest.mark.parametrize("events", [False, True])
def test_more_input_is_another_leg_of_the_same_call(rig: Rig, events: bool) -> None:
    state = f"sealed-{rig.session}"
    rig.upstream.script = Scripted(
        input_required(state), input_required(state + "-2"), DONE, events=events
    )
    post(
        rig,
        call("ask", {"a": 1}, request_id=1),
        call("ask", {"a": 1}, request_id=2, inputResponses={"x": {}}, requestState=state),
        call("ask", {"a": 1}, request_id=3, inputResponses={"x": {}}, requestState=state + "-2"),
    )
    assert legs(rig, 3) == [(0, "input_required"), (1, "input_required"), (2, "ok")]


def test_without_a_state_the_same_tool_and_arguments_with_input_is_the_next_leg(rig: Rig) -> None:
    rig.upstream.script = Scripted(input_required(), DONE)
    post(rig, call("ask", {"a": 1}), call("ask", {"a": 1}, request_id=2, inputResponses={"x": {}}))
    assert legs(rig, 2) == [(0, "input_required"), (1, "ok")]


def test_a_state_only_round_is_the_next_leg(rig: Rig) -> None:
    state = f"poll-{rig.session}"
    rig.upstream.script = Scripted(input_required(state), DONE)
    post(rig, call("ask"), call("ask", request_id=2, requestState=state))
    assert legs(rig, 2) == [(0, "input_required"), (1, "ok")]


def test_the_same_call_without_input_is_another_call(rig: Rig) -> None:
    rig.upstream.script = Scripted(input_required(f"s-{rig.session}"), DONE)
    post(rig, call("ask", {"a": 1}), call("ask", {"a": 1}, request_id=2))
    first, second = rig.ended_rows(2)
    assert first.call != second.call
    assert (first.leg, second.leg) == (0, 0)


ELICITS = -32042


@pytest.mark.parametrize("events", [False, True])
def test_a_call_refused_until_a_url_is_opened_has_ended_and_its_repeat_is_the_same_call(
    rig: Rig, events: bool
) -> None:
    rig.upstream.script = Scripted(ELICITS, DONE, DONE, events=events)
    post(rig, call("ask", {"a": 1}), call("ask", {"a": 1}, request_id=2))
    first, second = rig.ended_rows(2)
    assert (first.status, first.kind, first.executed) == ("error", "invalid_request", "no")
    assert (second.status, second.flags) == ("ok", [])
    assert (second.call, first.attempt, second.attempt) == (first.call, 1, 2)
    post(rig, call("ask", {"a": 1}, request_id=3))
    assert rig.ended_rows(3)[2].call != first.call


def test_another_call_does_not_continue_one_that_was_refused_until_a_url_was_opened(
    rig: Rig,
) -> None:
    rig.upstream.script = Scripted(ELICITS, DONE)
    post(rig, call("ask", {"a": 1}), call("ask", {"a": 2}, request_id=2))
    first, second = rig.ended_rows(2)
    assert first.call != second.call


def test_the_state_of_another_server_or_call_continues_nothing(rig: Rig) -> None:
    rig.upstream.script = Scripted(input_required(f"mine-{rig.session}"), DONE)
    post(rig, call("ask"), call("ask", request_id=2, inputResponses={}, requestState="forged"))
    first, second = rig.ended_rows(2)
    assert first.call != second.call


def test_a_leg_that_fails_ends_the_call(rig: Rig) -> None:
    state = f"fails-{rig.session}"
    rig.upstream.script = Scripted(input_required(state), -32603)
    post(rig, call("ask"), call("ask", request_id=2, inputResponses={}, requestState=state))
    assert legs(rig, 2) == [(0, "input_required"), (1, "error")]


def poll(method: str = "tasks/get", request_id: int = 9) -> bytes:
    return message(method, {"taskId": "task-1"}, request_id=request_id)


TASK_ENDS: list[tuple[str, list[bytes], list[object], str]] = [
    ("completed", [poll()], [task("completed", result=DONE)], "ok"),
    (
        "completed with a tool's error",
        [poll()],
        [task("completed", result={**DONE, "isError": True})],
        "error",
    ),
    ("failed", [poll()], [task("failed", error={"code": -32603, "message": "x"})], "error"),
    ("cancelled", [poll("tasks/cancel")], [task("cancelled")], "error"),
    (
        "polled until it ends",
        [poll(request_id=2), poll(request_id=3), poll(request_id=4)],
        [task("working"), task("input_required"), task("completed", result=DONE)],
        "ok",
    ),
    (
        "asked in vain at first",
        [poll(request_id=2), poll(request_id=3)],
        [-32602, task("completed", result=DONE)],
        "ok",
    ),
]


@pytest.mark.promise("REC-24")
@pytest.mark.parametrize(
    ("polls", "answers", "status"),
    [end[1:] for end in TASK_ENDS],
    ids=[end[0] for end in TASK_ENDS],
)
def test_a_task_closes_its_call_when_a_poll_shows_its_end(
    rig: Rig, polls: list[bytes], answers: list[object], status: str
) -> None:
    rig.upstream.script = Scripted(task("working"), *answers)
    post(rig, call("slow"))
    assert rig.row().status == "accepted"
    post(rig, *polls)
    row = rig.row()
    assert (row.leg, row.status) == (0, status)


def test_a_poll_that_shows_the_end_twice_closes_the_call_once(rig: Rig) -> None:
    rig.upstream.script = Scripted(task("working"), *[task("completed", result=DONE)] * 3)
    post(rig, call("slow"), poll(request_id=2), poll(request_id=3), poll(request_id=4))
    row = rig.row()
    assert (row.status, row.seq) == ("ok", 3)


def test_a_task_of_2025_11_25_is_closed_by_its_result(rig: Rig) -> None:
    rig.upstream.script = Scripted(
        old_task("working"), {"taskId": "task-1", "status": "working"}, DONE
    )
    asked = call("slow", task={"ttl": 1000})
    post(rig, asked, poll(request_id=2), poll("tasks/result", request_id=3), headers=OLD)
    row = rig.row()
    assert (row.status, row.output_summary) == ("ok", "done")


@pytest.mark.parametrize("ttl", [2**53 - 1, 2**63 - 1, 2**64 - 1, 2**64, 10**30])
def test_a_task_may_live_for_as_long_as_its_server_says(rig: Rig, ttl: int) -> None:
    rig.upstream.script = Scripted(
        task("working", ttlMs=ttl), task("completed", ttlMs=ttl, result=DONE)
    )
    post(rig, call("slow"))
    wait_until(lambda: [row.status for row in rig.rows()] == ["accepted"], "the task is recorded")
    post(rig, poll())
    wait_until(lambda: [row.status for row in rig.rows()] == ["ok"], "its end is recorded")


def test_a_task_whose_result_is_an_error_is_closed_by_it(rig: Rig) -> None:
    rig.upstream.script = Scripted(old_task("working"), -32603)
    post(rig, call("slow", task={}), poll("tasks/result"), headers=OLD)
    assert rig.row().status == "error"


def test_a_poll_for_an_unknown_task_is_only_relayed(rig: Rig) -> None:
    rig.upstream.script = Scripted(task("completed", result=DONE) | {"taskId": "unheard-of"})
    post(rig, message("tasks/get", {"taskId": "unheard-of"}))
    assert rig.rows() == []


def test_a_task_is_closed_on_another_connection_and_in_another_protocol_session(rig: Rig) -> None:
    rig.upstream.script = Scripted(task("working"), task("completed", result=DONE))
    post(rig, call("slow"))
    with rig.client() as client:
        client.request("POST", "/mcp", poll(), headers=(*NEW, ("Mcp-Session-Id", "other")))
    assert rig.row().status == "ok"


@pytest.mark.promise("REC-24")
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_legs_and_tasks_find_their_call_after_a_restart(tmp_path: Path, end: str) -> None:
    with RawUpstream() as upstream:
        upstream.script = Scripted(input_required("state"), input_required(), task("working"))
        with proxy_beside(tmp_path, upstream.url) as proxy:
            for number, tool in enumerate(("stateful", "stateless", "task")):
                ask(proxy, call(tool, {"a": 1}, request_id=number))
            if end == "kill":
                proxy.kill()
        upstream.script = Scripted(DONE, DONE, task("completed", result=DONE))
        with proxy_beside(tmp_path, upstream.url) as proxy:
            ask(proxy, call("stateful", {"a": 1}, inputResponses={}, requestState="state"))
            ask(proxy, call("stateless", {"a": 1}, inputResponses={}))
            ask(proxy, poll())
    log = [(row.tool, row.leg, row.status.value) for row in rows(proxy.data)]
    assert log == [
        ("stateful", 0, "input_required"),
        ("stateless", 0, "input_required"),
        ("task", 0, "ok"),
        ("stateful", 1, "ok"),
        ("stateless", 1, "ok"),
    ]
    assert len({row.call for row in rows(proxy.data)}) == 3


def ask(proxy: Proxy, body: bytes) -> None:
    with Client(proxy.url) as client:
        client.request("POST", "/s/restarted/mcp", body, headers=NEW)


@pytest.mark.promise("SEC-5")
def test_a_request_state_is_not_kept(tmp_path: Path) -> None:
    state = "sealed-state-of-the-server-31415926"
    with RawUpstream(Scripted(input_required(state), DONE)) as upstream:
        with proxy_beside(tmp_path, upstream.url) as proxy:
            ask(proxy, call("ask"))
            ask(proxy, call("ask", inputResponses={}, requestState=state))
        kept = [path for path in proxy.data.rglob("*") if path.is_file()]
        assert not [path for path in kept if state.encode() in path.read_bytes()]
        assert json.dumps(state).encode() in upstream.requests[1].body
