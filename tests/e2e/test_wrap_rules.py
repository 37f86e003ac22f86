"""Rules for calls through a wrap: time limits, attempts, added outcomes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.clients import call, message, wait_until
from kit.wraps import Wrap, error_of, initialize, outcome, pumped, result_of, text_answer, wrapping
from turnlog.sessions.rows import Row

NEW = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
RULES = """
rules:
  - {match: {tool: "read_*"}, effect: read}
  - {match: {tool: "put_*"}, effect: idempotent_write}
  - {match: {tool: "write_*"}, effect: write}
  - {match: {tool: "*_soon"}, timeout: {response: 300ms}}
  - {match: {tool: "*_later"}, timeout: {response: 1500ms}}
  - {match: {tool: "*_total"}, timeout: {total: 300ms}}
  - {match: {tool: "*_idle"}, timeout: {idle: 1s}}
  - match: {tool: ["*_again", "read_soon"]}
    retry: {on: [timeout, tool_error, "null_result"], max_attempts: 2, base_interval: 10ms, jitter: none}
  - match: {tool: "*_rests"}
    timeout: {response: 300ms}
    retry: {on: timeout, max_attempts: 2, base_interval: 60s, max_interval: 60s, jitter: none, budget: 300s}
  - match: {tool: "*_thrice"}
    timeout: {response: 300ms}
    retry: {on: timeout, max_attempts: 3, base_interval: 600ms, factor: 100, max_interval: 60s,
            jitter: none, budget: 300s}
  - {match: {tool: "*_content"}, expects: content}
"""


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wrap]:
    with wrapping(tmp_path_factory.mktemp("ruled"), rules=RULES) as wrap:
        initialize(wrap)
        yield wrap


LAST = iter(range(100, 10_000))


def rows_of(wrap: Wrap, tool: str) -> list[Row]:
    return [row for row in wrap.rows() if row.tool == tool]


def has_ended(row: Row, attempt: int) -> bool:
    return row.attempt == attempt and row.status != "pending"


def is_late(wrap: Wrap, tool: str) -> bool:
    """Wait until the last answer that a tool gave is recorded as one that came too late."""
    wait_until(lambda: any("late" in row.flags for row in rows_of(wrap, tool)[-1:]), tool)
    return rows_of(wrap, tool)[-1].status == "ok"


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
    assert rows_of(ruled, "see_idle")[0].status == "ok"


def test_a_server_request_pauses_the_time_limit(ruled: Wrap) -> None:
    number = next(LAST)
    ruled.asked(call("ask_later", request_id=number))
    ruled.server.say({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}})
    assert ruled.stdout.json()["id"] == "q"
    other = next(LAST)
    ruled.asked(call("other_later", request_id=other))
    # The limit of the call that came later is reached, that of the one which waits is not.
    assert ruled.stdout.json()["id"] == other
    assert ruled.server.request()["params"]["requestId"] == other
    ruled.send(b'{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}')
    assert ruled.server.request()["id"] == "q"
    ruled.server.say(text_answer(number))
    assert ruled.stdout.json() == text_answer(number)
    row = rows_of(ruled, "ask_later")[0]
    assert (row.status, "server_request" in row.flags) == ("ok", True)


@pytest.mark.parametrize("meta", [{}, NEW], ids=["handshake", "stateless"])
def test_another_attempt_is_made_after_the_first_was_cancelled(
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
    wait_until(lambda: has_ended(rows_of(ruled, "read_soon")[-1], 2), "the second attempt ends")
    one, two = rows_of(ruled, "read_soon")[-2:]
    assert (one.call, one.attempt, two.attempt) == (two.call, 1, 2)
    assert "late" in one.flags
    assert (two.status, two.flags) == ("ok", ["retried"])


def is_next(wrap: Wrap) -> bool:
    """Send a notification; return whether the server has got nothing before it but cancels."""
    heard = wrap.asked(message("notifications/next", request_id=None))
    while heard["method"] == "notifications/cancelled":
        heard = wrap.server.request()
    return bool(heard["method"] == "notifications/next")


@pytest.mark.parametrize("tool", ["read_rests", "put_rests"])
def test_an_answer_that_comes_before_the_retry_is_the_agents_and_no_retry_is_sent(
    ruled: Wrap, tool: str
) -> None:
    number = next(LAST)
    first = ruled.asked(call(tool, request_id=number))
    wait_until(lambda: any(row.kind for row in rows_of(ruled, tool)), "the time limit")
    ruled.server.answer(first, "late, but there")
    assert ruled.stdout.json() == text_answer(number, "late, but there")
    wait_until(lambda: rows_of(ruled, tool)[-1].status == "ok", "the late answer is recorded")
    (row,) = rows_of(ruled, tool)
    assert (row.attempt, "late" in row.flags) == (1, True)
    assert is_next(ruled)


@pytest.mark.parametrize("tool", ["read_thrice", "put_thrice"])
def test_an_answer_that_comes_while_a_retry_runs_is_the_agents_once_that_has_failed(
    ruled: Wrap, tool: str
) -> None:
    number = next(LAST)
    first = ruled.asked(call(tool, request_id=number))
    while (heard := ruled.server.request())["method"] != "tools/call":
        assert heard["method"] == "notifications/cancelled"
    ruled.server.answer(first, "late, but there")
    assert ruled.stdout.json() == text_answer(number, "late, but there")
    wait_until(lambda: all(row.status != "pending" for row in rows_of(ruled, tool)), "the ends")
    one, two = rows_of(ruled, tool)
    assert (one.status, "late" in one.flags, two.kind) == ("ok", True, "response_timeout")
    assert is_next(ruled)


CLOSED = """
rules:
  - match: {tool: "put_*"}
    effect: idempotent_write
    timeout: {response: 300ms}
  - match: {tool: "put_once"}
    retry: {on: timeout, max_attempts: 2, base_interval: 3s, jitter: none}
  - match: {tool: "put_twice"}
    retry: {on: [connection, timeout], max_attempts: 3, base_interval: 600ms, factor: 100,
            max_interval: 60s, jitter: none, budget: 300s}
"""


def test_a_retry_that_is_due_after_the_client_has_closed_its_input_is_sent(tmp_path: Path) -> None:
    with wrapping(tmp_path, rules=CLOSED) as wrap:
        first = wrap.asked(call("put_once"))
        wait_until(lambda: bool(wrap.events("call.retried")), "the time limit")
        wrap.stdin.close()
        second = wrap.server.request()
        assert second["params"] == first["params"]
        assert wrap.server.stdin.rest() == b""
        wrap.server.answer(second)
        assert wrap.stdout.json() == text_answer(1)
        wrap.server.exit()
        assert wrap.exited() == 0
    assert [row.attempt for row in wrap.rows()] == [1, 2]


def test_an_answer_to_an_attempt_before_one_that_could_not_be_sent_is_the_clients(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path, rules=CLOSED) as wrap:
        first = wrap.asked(call("put_twice"))
        wrap.stdin.close()
        wait_until(lambda: len(wrap.events("call.retried")) == 2, "the second attempt has failed")
        wrap.server.answer(first)
        assert wrap.stdout.json() == text_answer(1)
        wrap.server.exit()
        assert wrap.exited() == 0
    said = [
        (one["turnlog.attempt"], one["turnlog.reason"]) for one in wrap.events("retry.abandoned")
    ]
    assert said == [(2, "answered")]
    one, two = wrap.rows()
    assert (one.status, "late" in one.flags, two.kind) == ("ok", True, "connect_failed")


def test_answers_in_an_array_are_the_agents_where_attempts_have_other_ids(ruled: Wrap) -> None:
    number = next(LAST)
    first = ruled.asked(call("read_soon", {"n": number}, request_id=number))
    _, second = ruled.server.request(), ruled.server.request()
    note = {"jsonrpc": "2.0", "method": "notifications/message"}
    answers = [text_answer(first["id"], "first"), note, text_answer(second["id"], "second")]
    ruled.server.say(answers)
    assert [ruled.stdout.json(), ruled.stdout.json()] == [note, text_answer(number, "second")]
    assert ruled.stdout.is_silent()


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
    one, two = rows_of(ruled, "read_again")[-2:]
    assert (one.kind, one.attempt, two.attempt) == ("upstream_internal", 1, 2)


def test_a_write_that_failed_is_not_made_again(ruled: Wrap) -> None:
    number = next(LAST)
    ruled.asked(call("write_again", request_id=number))
    said = {"content": [{"type": "text", "text": "no"}], "isError": True}
    ruled.server.say(result_of(said)(number))
    assert ruled.stdout.json()["result"] == said
    assert [row.attempt for row in rows_of(ruled, "write_again")] == [1]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("meta", [b"", b'"_meta": null, ', b'"_meta": {}, '])
def test_an_outcome_is_added_to_a_success_that_a_rule_makes_an_error(
    ruled: Wrap, mark: bytes, meta: bytes
) -> None:
    number = next(LAST)
    ruled.asked(call("get_content", request_id=number))
    said = b'%b{"jsonrpc":"2.0","id":%d, "result":{%b"content":[]}}\r\n' % (mark, number, meta)
    ruled.server.stdout.send(said)
    line = ruled.stdout.line()
    assert line.startswith(mark + b"{")
    assert line.endswith(b"}\r\n")
    got = json.loads(line.removeprefix(mark))
    assert outcome(got)["kind"] == "null_result"
    assert got["result"]["content"] == []


def test_the_agents_id_is_restored_in_an_answer_with_a_byte_order_mark(ruled: Wrap) -> None:
    number = next(LAST)
    ruled.asked(call("read_again", request_id=number))
    ruled.server.say(error_of(-32603)(number))
    second = ruled.server.request()
    answer = json.dumps(text_answer(second["id"])).encode()
    ruled.server.stdout.send(b"\xef\xbb\xbf" + answer + b"\n")
    assert json.loads(ruled.stdout.line().decode("utf-8-sig")) == text_answer(number)


LONG = 3_000_000


@pytest.mark.parametrize("last", [False, True], ids=["id first", "id last"])
def test_a_long_answer_that_comes_too_late_is_withheld_from_the_agent(
    ruled: Wrap, last: bool
) -> None:
    number = next(LAST)
    ruled.asked(call("long_soon", request_id=number))
    assert outcome(ruled.stdout.json())["kind"] == "response_timeout"
    assert ruled.server.request()["method"] == "notifications/cancelled"
    ruled.server.stdout.send(_long(number, last))
    ruled.server.say({"jsonrpc": "2.0", "method": "notifications/next"})
    assert ruled.stdout.json()["method"] == "notifications/next"
    assert is_late(ruled, "long_soon")


def test_a_call_too_large_to_keep_has_a_response_timeout(ruled: Wrap) -> None:
    said = call("large_soon", {"text": "x" * 17_000_000}, request_id=next(LAST)) + b"\n"
    assert pumped(said, ruled.stdin, ruled.server.stdin) == said
    assert outcome(ruled.stdout.json())["kind"] == "response_timeout"
    assert ruled.server.request()["method"] == "notifications/cancelled"
    assert rows_of(ruled, "large_soon")[0].phase == "sent"


def test_a_long_answer_that_has_begun_is_not_cut_off_by_a_limit(ruled: Wrap) -> None:
    number, other = next(LAST), next(LAST)
    ruled.asked(call("begun_later", request_id=number))
    said = _long(number, last=False)
    ruled.server.stdout.send(said[: 2 << 20])
    early = ruled.stdout.exactly(1 << 20)
    ruled.asked(call("after_later", request_id=other))
    # The other one's limit is reached meanwhile; what is said of it does not cut the line.
    assert ruled.server.request()["params"]["requestId"] == other
    ruled.server.stdout.send(said[2 << 20 :])
    assert early + ruled.stdout.line() == said
    assert ruled.stdout.json()["id"] == other
    assert rows_of(ruled, "begun_later")[0].status == "ok"


@pytest.mark.parametrize("last", [False, True], ids=["id first", "id last"])
def test_a_long_answer_of_another_attempt_has_the_agents_id(ruled: Wrap, last: bool) -> None:
    number = next(LAST)
    ruled.asked(call("read_again", request_id=number))
    ruled.server.say(error_of(-32603)(number))
    second = ruled.server.request()
    said, wanted = _long(second["id"], last), _long(number, last)
    assert pumped(said, ruled.server.stdout, ruled.stdout, len(wanted)) == wanted


def _long(number: int | str, last: bool) -> bytes:
    text = "x" * LONG
    identity, rest = {"jsonrpc": "2.0", "id": number}, text_answer(number, text)["result"]
    ordered = {"result": rest, **identity} if last else {**identity, "result": rest}
    return json.dumps(ordered).encode() + b"\n"


@pytest.mark.promise("TAINT-7")
def test_a_rule_blocks_a_line_with_values_of_a_tainted_output(tmp_path: Path) -> None:
    rules = """
rules:
  - {match: {tool: mail}, taint: mark}
  - {match: {tool: send}, block_if: tainted}
"""
    with wrapping(tmp_path, rules=rules) as wrap:
        initialize(wrap)
        wrap.asked(call("mail", request_id=2))
        said = {"content": [{"type": "text", "text": "use deploy-7f3a9c21"}]}
        wrap.server.say({"jsonrpc": "2.0", "id": 2, "result": said})
        assert wrap.stdout.json()["id"] == 2
        wrap.send(call("send", {"text": "it is deploy-7f3a9c21"}, request_id=3))
        assert outcome(wrap.stdout.json())["kind"] == "policy_blocked"
        wrap.asked(call("send", {"text": "it is something-else-1"}, request_id=4))
        wrap.server.say(text_answer(4))
        assert wrap.stdout.json()["id"] == 4
