"""Cancels of an agent on a pipe, at each stage of a call that no rule guards: one call, or one of a batch."""

from pathlib import Path

import pytest

from kit.clients import call, message, wait_until
from kit.holding import nobody_writes
from kit.wraps import Wrap, error_of, text_answer, wrapping
from turnlog.sessions.rows import Row

RETRY = "{on: [tool_error], max_attempts: 3, base_interval: 60s, jitter: none, budget: 300s}"
RETRIED = f"rules: [{{match: {{tool: look}}, effect: read, retry: {RETRY}}}]"
CANCEL = message("notifications/cancelled", {"requestId": 1}, request_id=None)
ONE = call("look", request_id=1)
BATCH = b"[%b,%b]" % (ONE, call("other", request_id=2))

lines = pytest.mark.parametrize("line", [ONE, BATCH], ids=["one call", "batch"])


def of(wrap: Wrap, tool: str) -> list[Row]:
    return [row for row in wrap.rows() if row.tool == tool]


def has_ended(wrap: Wrap, kind: str | None) -> None:
    """Wait until the latest call of `look` has a row that says so."""
    wait_until(lambda: any(row.kind == kind for row in of(wrap, "look")[-1:]), "the end's row")


def runs_on(wrap: Wrap, line: bytes) -> None:
    """Check that the other call of a batch is still open, and that its answer reaches the agent."""
    if line is BATCH:
        (other,) = of(wrap, "other")
        assert other.status == "pending"
        wrap.server.say(text_answer(2))
        assert wrap.stdout.json() == text_answer(2)
        wait_until(lambda: of(wrap, "other")[0].status == "ok", "the other call ends")


@lines
def test_a_call_that_is_cancelled_while_it_is_recorded_is_sent_and_then_cancelled(
    tmp_path: Path, line: bytes
) -> None:
    with wrapping(tmp_path, environ={"TURNLOG_LOG_LEVEL": "debug"}) as wrap:
        wrap.server.answer(wrap.asked(call("first", request_id=0)))
        wrap.stdout.line()
        with nobody_writes(wrap.data):
            wrap.send(line, CANCEL)
            wait_until(lambda: len(wrap.events("call.started")) > 1, "it waits for the disk")
        assert wrap.server.stdin.line() == line + b"\n"
        assert wrap.server.stdin.line() == CANCEL + b"\n"
        has_ended(wrap, "cancelled_by_caller")
        runs_on(wrap, line)
    (row,) = of(wrap, "look")
    assert (row.kind, row.executed, row.flags) == ("cancelled_by_caller", "maybe", [])


@lines
@pytest.mark.parametrize("rules", ["", RETRIED], ids=["no rule", "a retry rule"])
def test_a_call_that_is_cancelled_after_it_was_sent_ends_alone_and_its_answer_is_late(
    tmp_path: Path, line: bytes, rules: str
) -> None:
    with wrapping(tmp_path, rules=rules) as wrap:
        wrap.asked(line)
        wrap.send(CANCEL, CANCEL)
        assert [wrap.server.stdin.line() for _ in range(2)] == [CANCEL + b"\n"] * 2
        has_ended(wrap, "cancelled_by_caller")
        (row,) = of(wrap, "look")
        assert (row.kind, row.attempt, row.flags) == ("cancelled_by_caller", 1, [])
        runs_on(wrap, line)
        wrap.server.say(text_answer(1))
        assert wrap.stdout.json() == text_answer(1)
        wait_until(lambda: of(wrap, "look")[0].status == "ok", "the late answer's row")
    (row,) = of(wrap, "look")
    assert row.flags == ["late"]


def test_a_batch_waits_for_no_slot_and_a_cancel_ends_only_its_call(tmp_path: Path) -> None:
    with wrapping(tmp_path, rules="rules: [{match: {tool: look}, concurrency: 1}]") as wrap:
        wrap.asked(call("look", request_id=0))
        wrap.asked(BATCH)
        assert wrap.asked(CANCEL)["params"] == {"requestId": 1}
        has_ended(wrap, "cancelled_by_caller")
        runs_on(wrap, BATCH)
        assert of(wrap, "look")[0].status == "pending"
        wrap.server.say(text_answer(0))
        assert wrap.stdout.json() == text_answer(0)
    assert of(wrap, "look")[1].kind == "cancelled_by_caller"


def test_a_call_that_is_cancelled_before_a_retry_gets_no_answer(tmp_path: Path) -> None:
    with wrapping(tmp_path, rules=RETRIED) as wrap:
        wrap.asked(ONE)
        wrap.server.say(error_of(-32603)(1))
        wait_until(lambda: bool(wrap.events("call.retried")), "the attempt's end")
        assert wrap.asked(CANCEL)["params"] == {"requestId": 1}
        wait_until(lambda: bool(wrap.events("retry.abandoned")), "no retry follows")
        assert wrap.asked(message("ping", request_id=1))["method"] == "ping"
        assert wrap.stdout.is_silent()
    (row,) = wrap.rows()
    assert (row.attempt, row.kind) == (1, "upstream_internal")
    assert wrap.events("retry.abandoned")[0]["turnlog.reason"] == "cancelled"


def test_a_call_of_a_batch_is_not_retried_and_a_cancel_after_its_answer_ends_nothing(
    tmp_path: Path,
) -> None:
    with wrapping(tmp_path, rules=RETRIED) as wrap:
        wrap.asked(BATCH)
        wrap.server.say(error_of(-32603)(1))
        assert wrap.stdout.json() == error_of(-32603)(1)
        assert wrap.asked(CANCEL)["params"] == {"requestId": 1}
        runs_on(wrap, BATCH)
    (row,) = of(wrap, "look")
    assert row.kind == "upstream_internal"


def test_a_retry_that_is_cancelled_while_it_is_recorded_is_not_sent_and_blocks_no_repeat(
    tmp_path: Path,
) -> None:
    rules = RETRIED.replace("read", "idempotent_write, on_duplicate: block").replace("60s", "1s")
    debug = {"TURNLOG_LOG_LEVEL": "debug"}
    with wrapping(tmp_path, "--session", "one", environ=debug, rules=rules) as wrap:
        wrap.asked(ONE)
        wrap.server.say(error_of(-32603)(1))
        wait_until(lambda: bool(wrap.events("call.retried")), "the attempt's end")
        with nobody_writes(wrap.data):
            wait_until(lambda: len(wrap.events("call.started")) > 1, "it waits for the disk")
            assert wrap.asked(CANCEL)["method"] == "notifications/cancelled"
        has_ended(wrap, "cancelled_by_caller")
        assert wrap.asked(message("ping", request_id=3))["method"] == "ping"
        assert wrap.stdout.is_silent()
        wrap.server.answer(wrap.asked(call("look", request_id=4)))
        assert wrap.stdout.json()["id"] == 4
    one, two, three = wrap.rows()
    assert (one.kind, two.executed, two.phase) == ("upstream_internal", "no", "queued")
    assert (three.status, three.flags) == ("ok", ["repeat_of_unknown"])


@lines
def test_a_call_may_still_be_answered_after_its_agent_has_closed_the_pipe(
    tmp_path: Path, line: bytes
) -> None:
    with wrapping(tmp_path) as wrap:
        wrap.asked(line)
        wrap.server.do("signal.signal(15, signal.SIG_IGN) and None")
        wrap.stdin.close()
        wrap.stdout.close()
        assert wrap.server.stdin.rest() == b""  # and no cancel
        wrap.server.say(text_answer(1))
        wait_until(lambda: of(wrap, "look")[0].status != "pending", "the answer is recorded")
        wrap.exited()
    (row,) = of(wrap, "look")
    assert (row.status, row.flags) == ("ok", [])
    for row in of(wrap, "other"):
        assert (row.status, row.kind) == ("unknown", "connection_lost")
        assert row.flags == ["process_exit"]
