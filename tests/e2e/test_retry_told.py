"""What the agent is told of a call of several attempts: it is about the call, not about the last one."""

from collections.abc import Iterator
from typing import Any

import pytest

from kit.beside import Rig, ruled
from kit.clients import MCP_HEADERS, Head, call
from kit.upstreams import Peer, RawUpstream, Script, answer, ok, result

RULES = """
rules:
  - match: {tool: [read_*, "GET *"]}
    effect: read
  - match: {tool: put_*}
    effect: idempotent_write
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
    peer.send_json(result(peer.request.json()["id"], {}))


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
        "; the call may have been executed by an attempt before",
    ),
    "perhaps, a read": (
        nothing_said,
        "read_file",
        {"status": "error", "executed": "maybe", "retry": "safe"},
        "; the call may have been executed by an attempt before",
    ),
    "it did": (
        says_nothing,
        "put_file",
        {"status": "error", "executed": "yes", "retry": "if_idempotent"},
        "; the call was executed by an attempt before",
    ),
}


@pytest.mark.parametrize("name", RAN)
def test_a_call_that_ran_is_not_told_as_unsent(rig: Rig, name: str) -> None:
    script, tool, expected, sentence = RAN[name]
    rig.upstream.script = then_gone(rig.upstream, script)
    with rig.client() as client:
        given = client.request("POST", rig.path, call(tool), headers=MCP_HEADERS)
    said = given.json()["result"]
    outcome = said["_meta"]["turnlog/outcome"]
    assert outcome == outcome | expected | {"attempt": 2, "kind": "connect_failed"}
    assert said["content"][0]["text"].endswith(sentence)
    assert told(given.head) == expected | {"kind": "connect_failed", "attempts": "2"}
    last = rig.ended_rows(2)[1]
    assert (last.kind, last.executed, last.retry) == ("connect_failed", "no", "safe")


def test_a_plain_call_that_ran_is_not_told_as_unsent(rig: Rig) -> None:
    rig.upstream.script = then_gone(rig.upstream, nothing_said)
    with rig.client() as client:
        given = client.request("PUT", f"/s/{rig.session}/items", b"x")
    said = given.json()
    assert given.status == 502
    assert said["turnlog/outcome"]["executed"] == told(given.head)["executed"] == "maybe"
    assert said["turnlog/outcome"]["retry"] == told(given.head)["retry"] == "if_idempotent"
    assert said["detail"].endswith("; the call may have been executed by an attempt before")


def test_a_refusal_after_an_attempt_that_may_have_run_does_not_make_the_call_safe(rig: Rig) -> None:
    def server(peer: Peer) -> None:
        rig.upstream.script = answer(LIMITED)
        answer(UNAVAILABLE)(peer)

    rig.upstream.script = server
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
