"""What a wrap records of calls, and what rules make of them."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import process
from kit.clients import call, message, wait_until
from kit.proxy import findings, payloads, written
from kit.wraps import Wrap, outcome, text_answer, wrapping
from turnlog.sessions.rows import Row

NEW = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
SECRET = "sk-proj-Tr0ub4dor8Xq2Lm9Zk4Vw7Yp1Hs6Jd3Fb5Gc0Na"
RULES = """
rules:
  - {match: {tool: "read_*"}, effect: read}
  - {match: {tool: "put_*"}, effect: idempotent_write}
  - {match: {tool: "write_*"}, effect: write}
  - {match: {tool: "*_soon"}, timeout: {response: 300ms}}
  - {match: {tool: "*_total"}, timeout: {total: 300ms}}
  - {match: {tool: "*_idle"}, timeout: {idle: 700ms}}
  - match: {tool: ["*_again", "read_soon"]}
    retry: {on: [timeout, tool_error, "null_result"], max_attempts: 2, base_interval: 10ms, jitter: none}
  - {match: {tool: "*_content"}, expects: content}
"""


def initialized(wrap: Wrap, revision: str = "2025-11-25") -> None:
    """Shake hands."""
    info = {"name": "tester", "version": "1"}
    asked = wrap.asked(message("initialize", {"protocolVersion": revision, "clientInfo": info}))
    result = {"protocolVersion": revision, "capabilities": {}, "serverInfo": info}
    wrap.server.say({"jsonrpc": "2.0", "id": asked["id"], "result": result})
    wrap.stdout.line()


def result_of(value: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda request_id: {"jsonrpc": "2.0", "id": request_id, "result": value}


def error_of(code: int, text: str = "no") -> Callable[[Any], dict[str, Any]]:
    error = {"code": code, "message": text}
    return lambda request_id: {"jsonrpc": "2.0", "id": request_id, "error": error}


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


def test_rows_say_what_they_say_over_http(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        initialized(wrap)
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
        initialized(wrap)
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


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wrap]:
    with wrapping(tmp_path_factory.mktemp("ruled"), rules=RULES) as wrap:
        initialized(wrap)
        yield wrap


LAST = iter(range(100, 10_000))


def ended(wrap: Wrap, tool: str) -> list[Row]:
    return [row for row in wrap.rows() if row.tool == tool]


def is_late(wrap: Wrap, tool: str) -> bool:
    """Wait until the last answer that a tool gave is recorded as one that came too late."""
    wait_until(lambda: any("late" in row.flags for row in ended(wrap, tool)[-1:]), tool)
    return ended(wrap, tool)[-1].status == "ok"


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("list_soon", "response_timeout"),
        ("list_total", "deadline_exhausted"),
        ("list_idle", "progress_timeout"),
    ],
)
@pytest.mark.parametrize("meta", [{}, NEW], ids=["handshake", "stateless"])
def test_a_limit_ends_a_call_and_takes_it_back(
    ruled: Wrap, tool: str, kind: str, meta: dict[str, str]
) -> None:
    number = next(LAST)
    ruled.asked(call(tool, request_id=number, _meta=meta))
    made = ruled.stdout.json()
    assert (made["id"], made["result"]["isError"]) == (number, True)
    assert made["result"].get("resultType") == ("complete" if meta else None)
    assert (outcome(made)["kind"], outcome(made)["executed"]) == (kind, "maybe")
    cancel = ruled.server.request()
    assert (cancel["method"], cancel["params"]["requestId"]) == ("notifications/cancelled", number)
    # Its answer comes all the same: the agent, who has one, does not get it.
    ruled.server.answer({"id": number}, "too late")
    ruled.server.say({"jsonrpc": "2.0", "method": "notifications/next"})
    assert ruled.stdout.json()["method"] == "notifications/next"
    assert is_late(ruled, tool)


def test_progress_of_its_own_token_keeps_a_call_alive(ruled: Wrap) -> None:
    own, other = next(LAST), next(LAST)
    ruled.asked(call("see_idle", request_id=own, _meta={"progressToken": "mine"}))
    ruled.asked(call("look_idle", request_id=other, _meta={"progressToken": "else"}))
    note = {"jsonrpc": "2.0", "method": "notifications/progress"}
    ends: list[int] = []
    while other not in ends:
        ruled.server.say({**note, "params": {"progressToken": "mine", "progress": 1}})
        got = ruled.stdout.json()
        if "id" in got:
            assert outcome(got)["kind"] == "progress_timeout"
            ends.append(got["id"])
    assert ends == [other]
    while (got := ruled.server.request())["params"].get("requestId") != other:
        pass
    ruled.server.say(text_answer(own))
    while "id" not in (got := ruled.stdout.json()):
        pass
    assert got == text_answer(own)
    assert ended(ruled, "see_idle")[0].status == "ok"


def test_a_question_of_the_server_stops_the_clock(ruled: Wrap) -> None:
    number = next(LAST)
    ruled.asked(call("ask_soon", request_id=number))
    ruled.server.say({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}})
    assert ruled.stdout.json()["id"] == "q"
    other = next(LAST)
    ruled.asked(call("other_soon", request_id=other))
    # The limit of the call that came later is reached, that of the one which waits is not.
    assert ruled.stdout.json()["id"] == other
    assert ruled.server.request()["params"]["requestId"] == other
    ruled.send(b'{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}')
    assert ruled.server.request()["id"] == "q"
    ruled.server.say(text_answer(number))
    assert ruled.stdout.json() == text_answer(number)
    row = ended(ruled, "ask_soon")[0]
    assert (row.status, "server_request" in row.flags) == ("ok", True)


@pytest.mark.parametrize("meta", [{}, NEW], ids=["handshake", "stateless"])
def test_another_attempt_is_made_after_the_first_was_taken_back(
    ruled: Wrap, meta: dict[str, str]
) -> None:
    number = next(LAST)
    first = ruled.asked(call("read_soon", {"n": number}, request_id=number, _meta=meta))
    cancel, second = ruled.server.request(), ruled.server.request()
    assert cancel["method"] == "notifications/cancelled"
    assert cancel["params"]["requestId"] == first["id"] == number
    assert second == {**first, "id": second["id"]}
    assert second["id"].startswith("turnlog-")
    # The first one's answer is too late, the second one's is the agent's.
    ruled.server.answer(first, "first")
    ruled.server.answer(second, "second")
    assert ruled.stdout.json() == text_answer(number, "second")
    wait_until(lambda: ended(ruled, "read_soon")[-1].attempt == 2, "the second attempt's row")
    one, two = ended(ruled, "read_soon")[-2:]
    assert (one.call, one.attempt, two.attempt) == (two.call, 1, 2)
    assert "late" in one.flags
    assert (two.status, two.flags) == ("ok", ["retried"])


def test_a_cancel_between_the_agents_id_and_the_servers(ruled: Wrap) -> None:
    number = next(LAST)
    first = ruled.asked(call("read_again", request_id=number))
    ruled.server.say(error_of(-32603)(number))
    second = ruled.server.request()
    assert first["id"] == number != second["id"]
    cancel = message("notifications/cancelled", {"requestId": number}, request_id=None)
    assert ruled.asked(cancel)["params"]["requestId"] == second["id"]
    # A server that answers all the same: the id is the one that the agent knows.
    ruled.server.answer(second, "too late")
    assert ruled.stdout.json() == text_answer(number, "too late")
    assert is_late(ruled, "read_again")
    one, two = ended(ruled, "read_again")
    assert (one.kind, one.attempt, two.attempt) == ("upstream_internal", 1, 2)


def test_a_write_that_failed_is_not_made_again(ruled: Wrap) -> None:
    number = next(LAST)
    ruled.asked(call("write_again", request_id=number))
    said = {"content": [{"type": "text", "text": "no"}], "isError": True}
    ruled.server.say(result_of(said)(number))
    assert ruled.stdout.json()["result"] == said
    assert [row.attempt for row in ended(ruled, "write_again")] == [1]


def test_a_word_is_added_to_a_success_that_a_rule_makes_an_error(ruled: Wrap) -> None:
    number = next(LAST)
    ruled.asked(call("get_content", request_id=number))
    ruled.server.stdout.send(b'{"jsonrpc":"2.0","id":%d, "result":{"content":[]}}\r\n' % number)
    line = ruled.stdout.line()
    assert line.endswith(b"}\r\n")
    got = json.loads(line)
    assert outcome(got)["kind"] == "null_result"
    assert got["result"]["content"] == []


LONG = 3_000_000


@pytest.mark.parametrize("last", [False, True], ids=["id first", "id last"])
def test_a_long_answer_that_comes_too_late_is_kept_from_the_agent(ruled: Wrap, last: bool) -> None:
    number = next(LAST)
    ruled.asked(call("long_soon", request_id=number))
    assert outcome(ruled.stdout.json())["kind"] == "response_timeout"
    assert ruled.server.request()["method"] == "notifications/cancelled"
    ruled.server.stdout.send(_long(number, last))
    ruled.server.say({"jsonrpc": "2.0", "method": "notifications/next"})
    assert ruled.stdout.json()["method"] == "notifications/next"
    assert is_late(ruled, "long_soon")


def test_a_long_answer_that_has_begun_is_not_cut_off_by_a_limit(ruled: Wrap) -> None:
    number, other = next(LAST), next(LAST)
    ruled.asked(call("begun_soon", request_id=number))
    said = _long(number, last=False)
    ruled.server.stdout.send(said[: 2 << 20])
    early = ruled.stdout.exactly(1 << 20)
    ruled.asked(call("after_soon", request_id=other))
    # The other one's limit is reached meanwhile; what is said of it does not cut the line.
    assert ruled.server.request()["params"]["requestId"] == other
    ruled.server.stdout.send(said[2 << 20 :])
    assert early + ruled.stdout.line() == said
    assert ruled.stdout.json()["id"] == other
    assert ended(ruled, "begun_soon")[0].status == "ok"


def _long(number: int, last: bool) -> bytes:
    text = "x" * LONG
    identity, rest = {"jsonrpc": "2.0", "id": number}, text_answer(number, text)["result"]
    ordered = {"result": rest, **identity} if last else {**identity, "result": rest}
    return json.dumps(ordered).encode() + b"\n"


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


def test_notified_calls_are_recorded_and_nobody_is_answered(tmp_path: Path) -> None:
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


def test_what_is_recorded_verifies(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        for number in range(5):
            wrap.server.answer(wrap.asked(call("put", request_id=number)))
            wrap.stdout.line()
    assert all(finding.verdict.intact for finding in findings(wrap.data))


def test_an_answer_to_the_server_overtakes_calls_that_wait_for_the_disk(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(call("book"))
        wrap.server.say({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"})
        wrap.stdout.line()
        given = b'{"jsonrpc":"2.0","id":"q","result":{}}'
        wrap.send(*(call("put", request_id=n) for n in range(100, 140)), given)
        came = [wrap.server.request()["id"] for _ in range(41)]
        assert came.index("q") < 39
        assert [number for number in came if number != "q"] == list(range(100, 140))


def test_a_call_that_finds_no_room_in_the_store_is_refused_and_not_sent(tmp_path: Path) -> None:
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
