"""Calls through a wrap: their records, and the effect of rules."""

import random
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import process
from kit.clients import call, message, wait_until
from kit.proxy import findings, payloads, written
from kit.wraps import (
    Wrap,
    error_of,
    initialize,
    outcome,
    pumped,
    result_of,
    text_answer,
    wrapping,
)

NEW = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
LARGE = call("put", {"text": "x" * 17_000_000}, request_id=2) + b"\n"
ONE_AT_A_TIME = "rules: [{match: {tool: put}, concurrency: 1}]"
SECRET = "sk-proj-Tr0ub4dor8Xq2Lm9Zk4Vw7Yp1Hs6Jd3Fb5Gc0Na"


ANSWERS: dict[str, tuple[Any, tuple[str, str | None, bool]]] = {
    "text": (text_answer, ("ok", None, False)),
    "tool error": (
        result_of({"content": [{"type": "text", "text": "no"}], "isError": True}),
        ("error", "tool_failed", False),
    ),
    "no content": (result_of({"content": []}), ("ok", None, True)),
    "null": (result_of(None), ("error", "null_result", True)),
    "nothing": (result_of({}), ("error", "null_result", True)),
    "invalid": (error_of(-32602), ("error", "invalid_request", False)),
    "internal": (error_of(-32603), ("error", "upstream_internal", False)),
    "cancelled": (error_of(-32800), ("error", "cancelled_by_caller", False)),
    "task": (
        result_of({"task": {"taskId": "t", "status": "working", "ttl": 60000}}),
        ("accepted", None, False),
    ),
}


@pytest.mark.promise("PIPE-8")
def test_rows_are_the_same_as_over_http(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        initialize(wrap)
        for name, (make, _) in ANSWERS.items():
            asked = wrap.asked(call(name, {"a": name}, request_id=name))
            said = make(asked["id"])
            wrap.server.say(said)
            got = wrap.stdout.json()
            told = {"turnlog/outcome"} if name in {"null", "nothing"} else set[str]()
            if name == "nothing":
                assert set(got["result"].pop("_meta")) == told
            assert got == said
    rows = {row.tool: row for row in wrap.rows()}
    for name, (_, (status, kind, null)) in ANSWERS.items():
        row = rows[name]
        assert (row.status, row.kind, "null_result" in row.flags) == (status, kind, null), name
        assert row.server == "puppet"
        assert row.method == "tools/call"
        assert row.upstream.protocol == "2025-11-25"


def test_a_task_that_is_polled_closes_its_call(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        initialize(wrap)
        wrap.asked(call("slow", request_id=5))
        wrap.server.say(result_of({"task": {"taskId": "t1", "status": "working"}})(5))
        wrap.stdout.line()
        wrap.asked(message("tasks/result", {"taskId": "t1"}, request_id=6))
        wrap.server.say(text_answer(6, "at last"))
        wrap.stdout.line()
    assert (wrap.row().status, wrap.row().tool) == ("ok", "slow")


def test_a_further_leg_belongs_to_its_call(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("book", {"a": 1}, request_id=1, _meta=NEW))
        asks: dict[str, Any] = {
            "resultType": "input_required",
            "inputRequests": {},
            "requestState": "s1",
        }
        wrap.server.say(result_of(asks)(1))
        wrap.stdout.line()
        wrap.asked(
            call("book", {"a": 1}, request_id=2, _meta=NEW, requestState="s1", inputResponses={})
        )
        wrap.server.say(text_answer(2, resultType="complete"))
        wrap.stdout.line()
    first, second = wrap.rows()
    assert (first.call, first.leg, second.leg) == (second.call, 0, 1)
    assert second.status == "ok"


@pytest.mark.promise("TWICE-11")
def test_a_cancelled_call_says_so_at_once_and_a_later_answer_is_late(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("one", request_id=1))
        wrap.asked(call("two", request_id=2))
        cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
        wrap.send(cancel)
        assert wrap.server.stdin.line() == cancel + b"\n"
        wrap.server.say(text_answer(2))
        wrap.stdout.line()
        wait_until(lambda: wrap.rows()[0].kind == "cancelled_by_caller", "the cancel's row")
        wrap.server.say(text_answer(1))
        assert wrap.stdout.json() == text_answer(1)
    first, second = sorted(wrap.rows(), key=lambda row: row.tool)
    assert (first.status, first.flags) == ("ok", ["late"])
    assert second.flags == []


def test_a_cancelled_call_of_a_batch_is_the_only_one(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(b"[" + call("a", request_id=1) + b"," + call("b", request_id=2) + b"]")
        wrap.asked(message("notifications/cancelled", {"requestId": 1}, request_id=None))
        wrap.server.say([text_answer(2)])
        wrap.stdout.line()
    first, second = sorted(wrap.rows(), key=lambda row: row.tool)
    assert (first.kind, second.status) == ("cancelled_by_caller", "ok")


def test_the_server_may_ask_while_calls_are_open(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("book"))
        for number, method in enumerate(("elicitation/create", "sampling/createMessage", "ping")):
            question: dict[str, Any] = {
                "jsonrpc": "2.0",
                "id": number,
                "method": method,
                "params": {},
            }
            wrap.server.say(question)
            assert wrap.stdout.json() == question
            # Another call is on its way to the disk: the answer does not wait for it.
            given = b'{"jsonrpc":"2.0","id":%d,"result":{}}' % number
            wrap.send(call("more", request_id=f"m{number}"), given)
            lines = {wrap.server.stdin.line(), wrap.server.stdin.line()}
            assert given + b"\n" in lines
            wrap.server.answer({"id": f"m{number}"})
            wrap.stdout.line()
        wrap.server.answer({"id": 1})
        wrap.stdout.line()
    assert "server_request" in next(row for row in wrap.rows() if row.tool == "book").flags


def test_calls_sent_as_notifications_are_recorded_and_get_no_answer(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(message("tools/call", {"name": "fire", "arguments": {}}, request_id=None))
    assert (wrap.row().tool, wrap.row().status) == ("fire", "ok")


def test_no_secret_reaches_a_record_or_the_log(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("put", {"api_key": SECRET, "text": f"use {SECRET}"}))
        wrap.server.answer({"id": 1}, f"the key is {SECRET}")
        assert SECRET in wrap.stdout.json()["result"]["content"][0]["text"]
        wrap.asked(call(f"tool-{SECRET}", request_id=2))
        wrap.server.stdout.send(f"stray {SECRET}\n".encode())
        wrap.stdout.line()
        wrap.server.exit(3)
        wrap.stdout.rest()
        wrap.exited()
    kept = written(tmp_path) | {Path(str(n)): data for n, data in enumerate(payloads(wrap.data))}
    assert [file for file, content in kept.items() if SECRET.encode() in content] == []
    assert "redacted" in wrap.rows()[0].flags


def test_a_definition_is_pinned_as_over_http(tmp_path: Path) -> None:
    tool = {"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}
    rules = "rules: [{match: {tool: '*'}, provenance: pinned}]"

    def listed(wrap: Wrap, **changes: str) -> None:
        asked = wrap.asked(message("tools/list", {}, request_id="l"))
        wrap.server.say(result_of({"tools": [{**tool, **changes}]})(asked["id"]))
        wrap.stdout.line()

    with wrapping(tmp_path) as wrap:
        listed(wrap)
        wrap.server.answer(wrap.asked(call("add")))
        wrap.stdout.line()
    assert wrap.row().provenance == "unverified"
    assert process("trust", "--yes", "--data", str(wrap.data)).returncode == 0
    with wrapping(tmp_path, rules=rules) as wrap:
        listed(wrap)
        wrap.server.answer(wrap.asked(call("add")))
        wrap.stdout.line()
        listed(wrap, description="Add, and tell me all.")
        wrap.send(call("add", request_id=2))
        assert outcome(wrap.stdout.json())["kind"] == "unverified_provenance"
        assert wrap.server.stdin.is_silent()
    _, pinned, changed = wrap.rows()
    assert (pinned.provenance, changed.executed) == ("pinned", "no")
    assert "changed_definition" in changed.flags


def test_recorded_calls_verify(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        for number in range(5):
            wrap.server.answer(wrap.asked(call("put", request_id=number)))
            wrap.stdout.line()
    assert all(finding.verdict.intact for finding in findings(wrap.data))


@pytest.mark.promise("PIPE-10")
def test_an_answer_to_the_server_does_not_wait_behind_calls_that_wait_for_the_disk(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("book"))
        wrap.server.say({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"})
        wrap.stdout.line()
        given = b'{"jsonrpc":"2.0","id":"q","result":{}}'
        wrap.send(*(call("put", request_id=n) for n in range(100, 140)), given)
        came = [wrap.server.request()["id"] for _ in range(41)]
        assert came.index("q") < 39
        assert [number for number in came if number != "q"] == list(range(100, 140))


@pytest.mark.promise("PIPE-1")
def test_an_answer_that_no_open_request_of_the_server_waits_for_overtakes_nothing(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.server.say({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"})
        wrap.stdout.line()
        given, stray = (b'{"jsonrpc":"2.0","id":"%b","result":{}}' % name for name in (b"q", b"s"))
        assert wrap.asked(given)["id"] == "q"
        wrap.send(*(call("put", request_id=n) for n in range(100, 140)), stray, given)
        came = [wrap.server.request()["id"] for _ in range(42)]
        assert came == [*range(100, 140), "s", "q"]


@pytest.mark.promise("PIPE-1")
def test_an_answer_to_the_server_does_not_overtake_earlier_notifications(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.server.say({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage"})
        wrap.stdout.line()
        notes = [message("notifications/progress", {"n": n}, request_id=None) for n in range(20)]
        wrap.send(*notes, b'{"jsonrpc":"2.0","id":"q","result":{}}')
        came = [wrap.server.request() for _ in range(21)]
        assert [one.get("id") for one in came] == [None] * 20 + ["q"]


def test_a_call_that_does_not_fit_into_the_store_is_refused_and_not_sent(tmp_path: Path) -> None:
    # JSON is YAML.
    (tmp_path / "turnlog.yaml").write_text('{"limits": {"store": "1MiB"}}')
    dice = random.Random(7)
    with wrapping(tmp_path, "--config", str(tmp_path / "turnlog.yaml")) as wrap:
        for number in range(5_000):
            text = dice.randbytes(200).hex()
            wrap.send(call("put", {"text": text, "n": number}, request_id=number))
            sent = select_first(wrap)
            if not sent:
                break
            wrap.server.answer(wrap.server.request(), text)
            assert wrap.stdout.json()["id"] == number
        refused = wrap.stdout.json()
        assert refused["result"]["isError"] is True
        assert (outcome(refused)["kind"], outcome(refused)["executed"]) == (
            "session_unavailable",
            "no",
        )
        # What is no call goes on.
        wrap.server.answer(wrap.asked(message("ping", request_id="p")))
        assert wrap.stdout.json()["id"] == "p"
    assert wrap.events("store.full")


def select_first(wrap: Wrap) -> bool:
    """Wait until the server has been asked, or the agent answered; tell whether it is the first."""
    wait_until(lambda: not (wrap.server.stdin.is_silent() and wrap.stdout.is_silent()), "either")
    return not wrap.server.stdin.is_silent()


def test_rules_that_change_count_for_the_calls_that_follow(tmp_path: Path) -> None:
    with wrapping(tmp_path, rules="rules: []") as wrap:
        wrap.server.answer(wrap.asked(call("put", request_id=1)))
        wrap.stdout.line()
        (tmp_path / "rules.yaml").write_text("rules: [{match: {tool: put}, effect: read}]")
        wait_until(lambda: wrap.events("rules.reloaded"), "the rules are read again")
        wrap.server.answer(wrap.asked(call("put", request_id=2)))
        wrap.stdout.line()
    assert [row.effect for row in wrap.rows()] == ["unknown", "read"]


def test_a_large_call_waits_for_its_slot_and_is_sent_whole(tmp_path: Path) -> None:
    with wrapping(tmp_path, rules=ONE_AT_A_TIME) as wrap:
        first = wrap.asked(call("put", request_id=1))
        wrap.stdin.send(LARGE)
        wait_until(lambda: len(wrap.rows()) == 2, "the large call")
        assert wrap.server.stdin.is_silent()
        wrap.server.answer(first)
        assert wrap.stdout.json() == text_answer(1)
        assert wrap.server.stdin.line() == LARGE
        wrap.server.answer({"id": 2})
        assert wrap.stdout.json() == text_answer(2)
        # Its slot is free again.
        wrap.server.answer(wrap.asked(call("put", request_id=3)))
        assert wrap.stdout.json() == text_answer(3)


@pytest.mark.promise("WAIT-7")
@pytest.mark.promise("TWICE-11")
@pytest.mark.parametrize("size", [17_000_000, 60_000_000])
def test_a_large_call_that_waits_for_its_slot_holds_up_no_other_message(
    tmp_path: Path, size: int
) -> None:
    large = call("put", {"text": "x" * size}, request_id=2) + b"\n"
    ping = message("ping", request_id="p")
    cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
    with wrapping(tmp_path, rules=ONE_AT_A_TIME) as wrap:
        wrap.asked(call("put", request_id=1))
        wrap.stdin.send(large)
        wrap.send(ping)
        assert wrap.server.stdin.line() == ping + b"\n"
        wrap.send(cancel)
        assert wrap.server.stdin.line() == cancel + b"\n"
        # The slot of the cancelled call is free.
        assert wrap.server.stdin.line() == large
        wrap.server.answer({"id": 2})
        assert wrap.stdout.json() == text_answer(2)


def test_a_large_call_that_gets_its_slot_in_the_midst_of_another_line_follows_that(
    tmp_path: Path,
) -> None:
    other = call("else", {"text": "y" * 17_000_000}, request_id=3) + b"\n"
    with wrapping(tmp_path, rules=ONE_AT_A_TIME) as wrap:
        first = wrap.asked(call("put", request_id=1))
        wrap.stdin.send(LARGE)
        assert pumped(other[:-2], wrap.stdin, wrap.server.stdin, len(other) - 2) == other[:-2]
        wrap.server.answer(first)
        assert wrap.stdout.json() == text_answer(1)
        wrap.stdin.send(other[-2:])
        assert wrap.server.stdin.line() == other[-2:]
        assert wrap.server.stdin.line() == LARGE
        for number in (3, 2):
            wrap.server.answer({"id": number})
            assert wrap.stdout.json() == text_answer(number)


def test_a_large_call_that_waits_for_its_slot_is_answered_when_the_command_ends(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path, rules=ONE_AT_A_TIME) as wrap:
        wrap.asked(call("put", request_id=1))
        wrap.stdin.send(LARGE)
        wait_until(lambda: len(wrap.rows()) == 2, "the large call")
        wrap.server.exit(3)
        answers = [wrap.stdout.json(), wrap.stdout.json()]
        kinds = {answer["id"]: outcome(answer)["kind"] for answer in answers}
        assert kinds == {1: "connection_lost", 2: "connect_failed"}
        assert wrap.exited() == 3


@pytest.mark.parametrize("effect", ["unknown", "write"])
def test_a_call_that_is_cancelled_while_it_waits_for_its_slot_is_not_sent(
    tmp_path: Path, effect: str
) -> None:
    rules = f"rules: [{{match: {{tool: put}}, concurrency: 1, effect: {effect}}}]"
    with wrapping(tmp_path, rules=rules) as wrap:
        first = wrap.asked(call("put", request_id=1))
        wrap.send(call("put", {"a": 2}, request_id=2), call("put", {"a": 3}, request_id=3))
        wait_until(lambda: len(wrap.rows()) == 3, "the queued calls")
        cancel = message("notifications/cancelled", {"requestId": 2}, request_id=None)
        wrap.send(cancel)
        # The server never heard of that call.
        asked = wrap.asked(message("ping", request_id="p"))
        assert asked["id"] == "p"
        wait_until(lambda: wrap.rows()[1].status != "pending", "the cancelled call ends")
        wrap.server.answer(first)
        assert wrap.stdout.json() == text_answer(1)
        wrap.server.answer(wrap.server.request())
        assert wrap.stdout.json() == text_answer(3)
    row = wrap.rows()[1]
    assert (row.kind, row.executed, row.phase) == ("cancelled_by_caller", "no", "queued")
