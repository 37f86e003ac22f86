"""What happens around an attempt, while none is with the server: the proxy stops, the store is full,
the disk keeps nobody's time."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside, ruled
from kit.clients import BOUND, MCP_HEADERS, Client, call, message, wait_until
from kit.faults import Hangs, ResetAfterRequest, SlowHead
from kit.holding import nobody_writes
from kit.proxy import Proxy, rows
from kit.upstreams import Peer, RawUpstream, Script, answer, echo, ok, result, text_result

RULES = """
rules:
  - match: {tool: [read_*, "GET *"]}
    effect: read
  - match: {tool: "*_hurried"}
    timeout: {queue: 300ms}
  - match: {tool: "*_total"}
    timeout: {total: 2s}
  - match: {tool: "*_late"}
    timeout: {total: 8s}
  - match: {tool: ["*_hurried", "*_total", "*_late", "*_patient"]}
    retry: {on: [rate_limited, connection], base_interval: 10ms, jitter: none}
  - match: {tool: "*_budget"}
    retry: {on: connection, base_interval: 10ms, jitter: none, budget: 1s}
  - match: {tool: "*_bounded"}
    retry: {on: rate_limited, base_interval: 10ms, jitter: none, budget: 8s}
  - retry: {on: [connection, rate_limited, null_result], base_interval: 25s, max_interval: 25s, jitter: none, budget: 1m}
"""
LIMITED = ok(b"slow down", headers="Retry-After: 1\r\n", status="429 Too Many Requests")
LATER = LIMITED.replace(b"After: 1", b"After: 5")
AT_ONCE = LIMITED.replace(b"After: 1", b"After: 0")
LIMIT = 3 << 20
VERBOSE = ("--log-level", "debug")


def null_event(peer: Peer) -> None:
    """Answer with an event that says nothing; more would follow."""
    peer.read()
    peer.start_events()
    peer.send_event(result("mine", {}))
    peer.wait_for_hang_up()


HELD: dict[str, tuple[Script, int, bytes]] = {
    "json": (answer(ok(b'{"jsonrpc":"2.0","id":"mine","result":null}')), 200, b'"result":null'),
    "refusal": (answer(LIMITED.replace(b"After: 1\r", b"After: 25\r")), 429, b"slow down"),
    "event": (null_event, 200, b'"turnlog/outcome":{'),
    "nothing": (ResetAfterRequest(), 200, b'"kind":"connection_lost"'),
    "no body": (answer(ok(b"", status="503 Later")), 503, b""),
}


@pytest.mark.promise("RULE-31")
@pytest.mark.parametrize("name", HELD)
def test_sigterm_between_two_attempts_hands_on_what_is_held(tmp_path: Path, name: str) -> None:
    script, status, part = HELD[name]
    with ruled(tmp_path, RULES) as rig, rig.client() as client:
        rig.fresh()
        rig.upstream.script = script
        client.ask("POST", rig.path, call("read_file", request_id="mine"), headers=MCP_HEADERS)
        given = stopped_meanwhile(rig, client)
        assert (given.status, part in given.body) == (status, True)
        assert given.head.one("turnlog-attempts") is None
        made = [one for one in rig.upstream.requests if b"tools/call" in one.body]
        assert len(made) == 1
    (row,) = rows(rig.proxy.data)
    assert (row.status, row.attempt, row.call) == ("error", 1, given.head.one("turnlog-call"))
    assert abandoned(rig.proxy) == [(row.call, 1, "stopping")]


def abandoned(proxy: Proxy) -> list[tuple[Any, ...]]:
    """Return what the log says of attempts that were announced and not made."""
    names = ("turnlog.call", "turnlog.attempt", "turnlog.reason")
    return [tuple(map(one.get, names)) for one in proxy.told("retry.abandoned")]


def test_sigterm_between_two_attempts_of_a_plain_call(tmp_path: Path) -> None:
    with ruled(tmp_path, RULES) as rig, rig.client() as client:
        rig.upstream.script = answer(ok(b"later", status="503 Later"))
        client.ask("GET", "/items")
        given = stopped_meanwhile(rig, client)
        assert (given.status, given.body, len(rig.upstream.requests)) == (503, b"later", 1)


def stopped_meanwhile(rig: Rig, client: Client) -> Any:
    """Stop the proxy while a call waits for its next attempt; return the answer."""
    rig.proxy.told("call.retried")
    rig.proxy.process.send_signal(signal.SIGTERM)
    given = client.response()
    assert rig.proxy.process.wait(BOUND) == 0
    (stopping,) = rig.proxy.events("proxy.stopping")
    (stopped,) = rig.proxy.events("proxy.stopped")
    assert (stopping["turnlog.in_flight"], stopped["turnlog.unfinished"]) == (1, 0)
    return given


def fill(proxy: Proxy) -> None:
    """Call a tool, many times in one batch, until that is refused."""
    batch = b"[" + b",".join(call("write", {"n": n}, request_id=n) for n in range(200)) + b"]"
    with Client(proxy.url) as client:
        for _ in range(100):
            given = client.request("POST", "/mcp", batch, headers=MCP_HEADERS)
            if b"session_unavailable" in given.body:
                return
    raise AssertionError(f"many calls did not fill a store of {LIMIT} bytes")


@pytest.mark.promise("RULE-31")
@pytest.mark.parametrize("tool", ["read_patient", "write_patient"])
def test_another_attempt_that_cannot_be_recorded_is_not_made(tmp_path: Path, tool: str) -> None:
    slow = SlowHead(AT_ONCE)

    def server(peer: Peer) -> None:
        body = peer.read().body
        if body.startswith(b"["):
            peer.send(
                ok(json.dumps([text_result(each["id"], "x") for each in json.loads(body)]).encode())
            )
        else:
            slow(peer)

    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"], "limits": {"store": LIMIT}}
    with (
        RawUpstream(server) as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
        Client(proxy.url) as client,
    ):
        client.ask("POST", "/mcp", call(tool), headers=MCP_HEADERS)
        assert slow.asked.wait(BOUND)
        fill(proxy)
        slow.go.set()
        given = client.response()
        assert (given.status, given.body) == (429, b"slow down")
        assert given.head.one("turnlog-kind") == "rate_limited"
        assert given.head.one("turnlog-attempts") is None
        made = [one for one in upstream.requests if not one.body.startswith(b"[")]
        assert len(made) == 1
        (told,) = abandoned(proxy)
    (row,) = [row for row in rows(proxy.data) if row.tool == tool]
    assert told == (row.call, 1, "unrecorded")
    assert (row.kind, row.attempt) == ("rate_limited", 1)


@pytest.mark.promise("WAIT-9")
@pytest.mark.parametrize(
    ("tool", "kind"),
    [("write_hurried", "queue_timeout"), ("write_total", "deadline_exhausted")],
)
def test_a_call_whose_intent_takes_too_long_is_not_sent(
    tmp_path: Path, tool: str, kind: str
) -> None:
    with ruled(tmp_path, RULES) as rig:
        rig.fresh()
        with nobody_writes(rig.proxy.data):
            said = json.loads(rig.post(call(tool, request_id=4)))
            assert rig.upstream.requests == []
        outcome = said["result"]["_meta"]["turnlog/outcome"]
        assert (said["id"], said["result"]["isError"]) == (4, True)
        assert outcome == outcome | {
            "error": "timeout",
            "kind": kind,
            "executed": "no",
            "retry": "safe",
            "phase": "queued",
        }
        row = rig.row()
    assert (row.kind, row.executed, row.phase) == (kind, "no", "queued")
    (shown,) = shown_attempts(rig.proxy, row.call)
    assert shown["said"] == said["result"]["content"][0]["text"]
    assert "; the call was not sent. " in shown["said"]
    lines = turnlog("show", row.call, data=rig.proxy.data).stdout.splitlines()
    assert f"answered    by turnlog itself: {shown['said']}" in lines


def shown_attempts(proxy: Proxy, call: str) -> list[Any]:
    done = turnlog("show", call, "--json", data=proxy.data)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("tool", "kind", "reason"),
    [
        ("write_hurried", "queue_timeout", "queue"),
        ("write_late", "deadline_exhausted", "total"),
        ("write_bounded", "queue_timeout", "budget"),
    ],
)
def test_another_attempt_whose_intent_takes_too_long_is_not_made(
    tmp_path: Path, tool: str, kind: str, reason: str
) -> None:
    with ruled(tmp_path, RULES) as rig, rig.client() as client:
        rig.fresh()
        rig.upstream.script = answer(LATER)
        client.ask("POST", rig.path, call(tool), headers=MCP_HEADERS)
        rig.ended_rows()
        with nobody_writes(rig.proxy.data):
            given = client.response()
        assert (given.status, given.body) == (429, b"slow down")
        assert given.head.one("turnlog-kind") == "rate_limited"
        assert len(rig.upstream.requests) == 1
        made, not_made = rig.ended_rows(2)
        assert abandoned(rig.proxy) == [(made.call, 1, reason)]
    assert (made.kind, not_made.kind) == ("rate_limited", kind)
    assert (not_made.attempt, not_made.executed, not_made.phase) == (2, "no", "queued")
    assert [one["said"] for one in shown_attempts(rig.proxy, made.call)] == ["", ""]


def wait_for_intent(rig: Rig) -> None:
    """Wait until the intent of a second attempt is on its way to the disk."""

    def begun() -> bool:
        return any(one.get("turnlog.attempt") == 2 for one in rig.proxy.events("call.started"))

    wait_until(begun, "another attempt waits for the disk")


def test_sigterm_while_another_attempt_waits_for_the_disk_hands_on_what_is_held(
    tmp_path: Path,
) -> None:
    with ruled(tmp_path, RULES, flags=VERBOSE) as rig, rig.client() as client:
        rig.fresh()
        rig.upstream.script = answer(LIMITED)
        client.ask("POST", rig.path, call("write_patient"), headers=MCP_HEADERS)
        rig.ended_rows()
        with nobody_writes(rig.proxy.data):
            wait_for_intent(rig)
            rig.proxy.process.send_signal(signal.SIGTERM)
            given = client.response()
        assert (given.status, given.body) == (429, b"slow down")
        assert given.head.one("turnlog-attempts") is None
        assert rig.proxy.process.wait(BOUND) == 0
        assert len(rig.upstream.requests) == 1
        made, not_made = rig.rows()
        assert abandoned(rig.proxy) == [(made.call, 1, "stopping")]
    assert (not_made.kind, not_made.executed, not_made.phase) == ("outcome_unknown", "no", "queued")


def test_a_call_that_is_cancelled_while_another_attempt_waits_for_the_disk_is_not_made_again(
    tmp_path: Path,
) -> None:
    with (
        ruled(tmp_path, RULES, flags=VERBOSE) as rig,
        rig.client() as client,
        rig.client() as other,
    ):
        rig.fresh()
        rig.upstream.script = answer(LIMITED)
        body = call("write_patient", request_id=5)
        client.ask("POST", rig.path, body, headers=rig.session_headers)
        rig.ended_rows()
        rig.upstream.script = echo
        cancel = message("notifications/cancelled", {"requestId": 5}, request_id=None)
        with nobody_writes(rig.proxy.data):
            wait_for_intent(rig)
            other.request("POST", rig.path, cancel, headers=rig.session_headers)
        said = client.response().json()
        assert said["result"]["isError"] is True
        methods = [one.json()["method"] for one in rig.upstream.requests]
        assert methods == ["tools/call", "notifications/cancelled"]
        assert rig.upstream.requests[1].body == cancel
        made, not_made = rig.ended_rows(2)
        assert abandoned(rig.proxy) == [(made.call, 1, "cancelled")]
    assert (not_made.kind, not_made.executed) == ("cancelled_by_caller", "no")
    assert not_made.phase == "queued"
    shown = shown_attempts(rig.proxy, made.call)
    assert [one["said"] for one in shown] == ["", said["result"]["content"][0]["text"]]


@pytest.mark.promise("RULE-18")
def test_the_next_attempt_waits_until_the_one_before_is_taken_back(tmp_path: Path) -> None:
    order: list[str] = []
    beside = [answer(AT_ONCE), echo]

    def server(peer: Peer) -> None:
        asked = peer.read().json()
        if asked["params"].get("name") == "write_patient":
            beside.pop(0)(peer)
            return
        order.append(asked["method"])
        if asked["method"] == "notifications/cancelled":
            rig.proxy.told("call.retried")
            # Another call waits as long as this one, from now on: this one's wait is over then.
            assert b"done" in rig.post(call("write_patient"))
            assert order == ["tools/call", "notifications/cancelled"]
            order.append("taken back")
            echo(peer)
        elif len(order) == 1:
            peer.reset()
        else:
            echo(peer)

    with ruled(tmp_path, RULES) as rig:
        rig.fresh()
        rig.upstream.script = server
        assert b"done" in rig.post(call("read_patient"))
    assert order == ["tools/call", "notifications/cancelled", "taken back", "tools/call"]


@pytest.mark.parametrize("limit", ["total", "budget"])
def test_a_server_that_does_not_take_the_cancel_costs_no_more_than_the_limit(
    tmp_path: Path, limit: str
) -> None:
    hangs = Hangs()

    def server(peer: Peer) -> None:
        if b"cancelled" in peer.read().body:
            hangs(peer)
        else:
            peer.reset()

    with ruled(tmp_path, RULES) as rig:
        rig.fresh()
        rig.upstream.script = server
        said = json.loads(rig.post(call(f"read_{limit}")))
        assert said["result"]["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"
        (row,) = rig.ended_rows()
        assert abandoned(rig.proxy) == [(row.call, 1, limit)]
    assert hangs.asked.is_set()
