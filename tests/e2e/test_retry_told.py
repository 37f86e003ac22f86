"""The outcome that an agent gets of a retried call covers the whole call, not only the last attempt."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, ruled
from kit.clients import MCP_HEADERS, Head, call
from kit.faults import CutBody, CutStream, Hangs, ResetAfterRequest
from kit.upstreams import Peer, RawUpstream, Script, answer, echo, event, ok, result

RULES = """
rules:
  - match: {tool: [read_*, "GET *"]}
    effect: read
  - match: {tool: put_*}
    effect: idempotent_write
  - match: {tool: "*_total"}
    timeout: {total: 700ms}
  - retry: {on: [connection, timeout, rate_limited, null_result], max_attempts: 2, base_interval: 10ms, jitter: none}
"""
LIMITED = ok(b"slow down", headers="Retry-After: 0\r\n", status="429 Too Many Requests")
UNAVAILABLE = ok(b"later", media="text/plain", status="503 Service Unavailable")


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        rig.fresh()
        yield rig


def nothing_said(_peer: Peer) -> None:
    """Go away without an answer."""


def says_nothing(peer: Peer) -> None:
    """Answer with a result that says nothing."""
    peer.send_json(result(peer.read().json()["id"], {}))


class Once:
    """Play the first script once, the second one from then on."""

    def __init__(self, first: Script, then: Script) -> None:
        self._scripts = [first]
        self._then = then

    def __call__(self, peer: Peer) -> None:
        """Play one; cancels are taken in."""
        if b"notifications/cancelled" in peer.read().body:
            echo(peer)
        else:
            (self._scripts.pop() if self._scripts else self._then)(peer)


def then_gone(upstream: RawUpstream, script: Script) -> Script:
    """Take the request in and answer so; from then on nobody listens."""

    def last(peer: Peer) -> None:
        peer.read()
        script(peer)
        upstream.stop()

    return last


def told(head: Head) -> dict[str, str | None]:
    names = ("status", "kind", "retry", "executed", "attempts")
    return {name: head.one(f"turnlog-{name}") for name in names}


RAN: dict[str, tuple[Script, str, dict[str, Any], str]] = {
    "perhaps, once more": (
        nothing_said,
        "put_file",
        {"status": "unknown", "executed": "maybe", "retry": "if_idempotent"},
        "; the call may have been executed by an attempt before. ",
    ),
    "perhaps, a read": (
        nothing_said,
        "read_file",
        {"status": "error", "executed": "maybe", "retry": "safe"},
        "; the call may have been executed by an attempt before. ",
    ),
}


@pytest.mark.promise("RULE-16")
@pytest.mark.parametrize("name", RAN)
def test_a_call_that_ran_is_not_reported_as_unsent(rig: Rig, name: str) -> None:
    script, tool, expected, sentence = RAN[name]
    rig.upstream.script = then_gone(rig.upstream, script)
    with rig.client() as client:
        given = client.request("POST", rig.path, call(tool), headers=MCP_HEADERS)
    said = given.json()["result"]
    outcome = said["_meta"]["turnlog/outcome"]
    assert outcome == outcome | expected | {"attempt": 2, "kind": "connect_failed"}
    assert sentence in said["content"][0]["text"]
    assert told(given.head) == expected | {"kind": "connect_failed", "attempts": "2"}
    last = rig.ended_rows(2)[1]
    assert (last.kind, last.executed, last.retry) == ("connect_failed", "no", "safe")


def test_a_plain_call_that_ran_is_not_reported_as_unsent(rig: Rig) -> None:
    rig.upstream.script = then_gone(rig.upstream, nothing_said)
    with rig.client() as client:
        given = client.request("PUT", f"/s/{rig.session}/items", b"x")
    said = given.json()
    assert given.status == 502
    assert said["turnlog/outcome"]["executed"] == told(given.head)["executed"] == "maybe"
    assert said["turnlog/outcome"]["retry"] == told(given.head)["retry"] == "if_idempotent"
    assert "; the call may have been executed by an attempt before. " in said["detail"]


@pytest.mark.promise("RULE-16")
def test_a_refusal_after_an_attempt_that_may_have_run_does_not_make_the_call_safe(rig: Rig) -> None:
    rig.upstream.script = Once(answer(UNAVAILABLE), answer(LIMITED))
    with rig.client() as client:
        given = client.request("POST", rig.path, call("put_file"), headers=MCP_HEADERS)
    assert (given.status, given.body) == (429, b"slow down")
    assert told(given.head) == {
        "status": "error",
        "kind": "rate_limited",
        "retry": "if_idempotent",
        "executed": "maybe",
        "attempts": "2",
    }
    assert [(row.executed, row.retry) for row in rig.ended_rows(2)] == [
        ("maybe", "if_idempotent"),
        ("no", "safe"),
    ]


CUT = CutBody(b'{"jsonrpc":"2.0",', 400)
NO_ANSWER: dict[str, tuple[str, Script]] = {
    "reset": ("put_file", ResetAfterRequest()),
    "cut": ("put_file", CUT),
    "too late": ("read_total", Hangs()),
}


@pytest.mark.parametrize("name", NO_ANSWER)
def test_if_the_last_attempt_has_no_answer_the_servers_last_one_is_relayed(
    rig: Rig, name: str
) -> None:
    tool, script = NO_ANSWER[name]
    rig.upstream.script = Once(answer(UNAVAILABLE), script)
    with rig.client() as client:
        given = client.request("POST", rig.path, call(tool), headers=MCP_HEADERS)
    assert (given.status, given.body) == (503, b"later")
    assert told(given.head) == {
        "status": "error",
        "kind": "upstream_unavailable",
        "retry": "safe" if tool == "read_total" else "if_idempotent",
        "executed": "maybe",
        "attempts": "2",
    }
    first, last = rig.ended_rows(2)
    assert given.head.one("turnlog-call") == first.call == last.call
    assert given.head.all("content-type") == ["text/plain"]
    assert said_of(rig, first.call) == ["", ""]


def said_of(rig: Rig, call: str) -> list[str]:
    shown = turnlog("show", call, "--json", data=rig.proxy.data).stdout
    return [json.loads(line)["said"] for line in shown.splitlines()]


@pytest.mark.parametrize(("tool", "relayed"), [("put_file", False), ("read_file", True)])
def test_an_answer_that_hides_a_possible_execution_is_not_relayed(
    rig: Rig, tool: str, relayed: bool
) -> None:
    rig.upstream.script = Once(answer(LIMITED), CUT)
    with rig.client() as client:
        given = client.request("POST", rig.path, call(tool), headers=MCP_HEADERS)
    assert told(given.head)["executed"] == "maybe"
    if relayed:
        assert (given.status, given.body) == (429, b"slow down")
    else:
        outcome = given.json()["result"]["_meta"]["turnlog/outcome"]
        assert (outcome["kind"], outcome["executed"]) == ("connection_lost", "maybe")
        text = given.json()["result"]["content"][0]["text"]
        assert said_of(rig, rig.ended_rows(2)[0].call) == ["", text]


def test_a_refusal_is_relayed_if_the_last_attempt_was_not_sent(rig: Rig) -> None:
    rig.upstream.script = then_gone(rig.upstream, answer(LIMITED))
    with rig.client() as client:
        given = client.request("POST", rig.path, call("put_file"), headers=MCP_HEADERS)
    assert (given.status, given.body) == (429, b"slow down")
    assert told(given.head)["executed"] == "no"
    assert told(given.head)["attempts"] == "2"


def test_after_an_event_was_relayed_turnlogs_last_event_says_how_the_call_ended(
    rig: Rig,
) -> None:
    notice = event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}})
    rig.upstream.script = Once(says_nothing, CutStream((notice,)))
    lines = rig.post(call("put_file")).splitlines()
    _, said = [json.loads(line[5:]) for line in lines if line.startswith(b"data:")]
    outcome = said["result"]["_meta"]["turnlog/outcome"]
    assert (outcome["kind"], outcome["executed"]) == ("connection_lost", "yes")
    text = said["result"]["content"][0]["text"]
    assert "; the call was executed by an attempt before. " in text
    assert said_of(rig, rig.ended_rows(2)[0].call) == ["", text]
