"""A bug of turnlog in one call on a pipe: an event at a stage for which the table of calls has no step."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.clients import call, message, wait_until
from kit.wraps import Wrap, error_of, outcome, text_answer, wrapping

RETRY = "{on: [tool_error], max_attempts: 3, base_interval: 60s, jitter: none, budget: 300s}"
RETRIED = f"rules: [{{match: {{tool: look}}, effect: read, retry: {RETRY}}}]"
NAMED = "rules: [{match: {tool: look}, effect: write}]"
CANCEL = message("notifications/cancelled", {"requestId": 1}, request_id=None)
ONE = call("look", request_id=1)
OTHER = call("other", request_id=2)


@contextmanager
def lacking(
    folder: Path, stage: str, event: str, rules: str = "", times: int = 1
) -> Generator[Wrap]:
    """Wrap a puppet with a turnlog whose table lacks a step, which comes up so often."""
    (folder / "sitecustomize.py").write_text(
        "from turnlog.exchange import call, events\n"
        f"del call.TRANSITIONS[call.Stage.{stage}, events.{event}]\n"
    )
    environ = {"PYTHONPATH": str(folder)}
    with wrapping(
        folder, "--session", "one", rules=rules, environ=environ, fresh=True, bugs=[event] * times
    ) as wrap:
        yield wrap


@pytest.mark.parametrize("rules", ["", NAMED, RETRIED], ids=["no rule", "named", "retried"])
@pytest.mark.parametrize("line", [ONE, b"[%b,%b]" % (ONE, OTHER)], ids=["one call", "batch"])
def test_a_bug_in_one_call_answers_that_with_an_error_and_the_pipe_goes_on(
    tmp_path: Path, line: bytes, rules: str
) -> None:
    with lacking(tmp_path, "SENT", "Cancelled", rules) as wrap:
        wrap.asked(line)
        assert wrap.asked(CANCEL)["params"] == {"requestId": 1}
        answer = wrap.stdout.json()
        (answer,) = answer if line is not ONE else (answer,)
        assert (answer["id"], outcome(answer)["kind"]) == (1, "outcome_unknown")
        assert outcome(answer)["executed"] == "maybe"
        wrap.server.say(text_answer(1))  # late
        if line is not ONE:
            wrap.server.say(text_answer(2))
            assert wrap.stdout.json() == text_answer(2)
        wrap.server.answer(wrap.asked(call("last", request_id=3)))
        assert wrap.stdout.json()["id"] == 3
    rows = {row.tool: (row.status, row.kind, row.flags) for row in wrap.rows()}
    assert rows.pop("look") == ("ok", None, ["late"])
    assert all(row == ("ok", None, []) for row in rows.values())


def test_the_answers_to_a_batch_pass_though_there_is_a_bug_in_each_of_its_calls(
    tmp_path: Path,
) -> None:
    with lacking(tmp_path, "SENT", "Judged", times=2) as wrap:
        wrap.asked(b"[%b,%b]" % (ONE, OTHER))
        for number in (1, 2):
            wrap.server.say(text_answer(number))
            assert wrap.stdout.json() == text_answer(number)
    assert [row.status for row in wrap.rows()] == ["ok", "ok"]


def test_a_bug_between_two_attempts_gives_the_answer_that_is_held(tmp_path: Path) -> None:
    with lacking(tmp_path, "WAITING", "Cancelled", RETRIED) as wrap:
        wrap.asked(ONE)
        wrap.server.say(error_of(-32603)(1))
        wait_until(lambda: bool(wrap.events("call.retried")), "the attempt's end")
        assert wrap.asked(CANCEL)["params"] == {"requestId": 1}
        assert wrap.stdout.json() == error_of(-32603)(1)
    assert wrap.row().kind == "upstream_internal"


def test_a_bug_in_a_call_that_waits_for_an_earlier_one_answers_it_with_an_error(
    tmp_path: Path,
) -> None:
    with lacking(tmp_path, "JOINING", "EarlierEnded", NAMED) as wrap:
        wrap.asked(ONE)
        wrap.asked(CANCEL)
        wrap.send(call("look", request_id=2), message("ping", request_id=3))
        assert wrap.server.request()["method"] == "ping"
        wrap.server.say(text_answer(1))
        assert wrap.stdout.json() == text_answer(1)
        answer = wrap.stdout.json()
        said = answer["error"]["data"]["turnlog/outcome"]
        assert (answer["id"], said["kind"], said["executed"]) == (2, "outcome_unknown", "no")
