"""What is known of a call after the wrap that carried it died, and to another wrap beside it."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from kit.beside import session_notes, session_rows
from kit.clients import call, message, wait_until
from kit.proxy import data_of, findings
from kit.wraps import Wrap, outcome, text_answer, wrapping

RULES = """
rules:
  - {match: {tool: "write*"}, effect: write}
  - {match: {tool: "pay*"}, effect: irreversible}
  - {match: {tool: "*_timed"}, timeout: {response: 200ms}}
  - {match: {tool: "*_patiently"}, timeout: {response: 5s}}
"""


def wrap_of(folder: Path) -> AbstractContextManager[Wrap]:
    return wrapping(folder, "--session", "one", rules=RULES)


def kill(wrap: Wrap) -> None:
    """Kill a wrap; its server notices."""
    wrap.process.kill()
    wrap.exited()
    wrap.server.close()


def told(said: Any) -> tuple[str, str | None, str, str | None]:
    its = outcome(said)
    return its["status"], its["kind"], its["executed"], its["retry"]


UNKNOWN = ("error", "outcome_unknown", "maybe", "unsafe")


@pytest.mark.promise("TWICE-9")
@pytest.mark.parametrize("tool", ["write", "pay", "write_timed"])
def test_who_asks_again_after_a_kill_is_told_once_that_nobody_knows(
    tmp_path: Path, tool: str
) -> None:
    with wrap_of(tmp_path) as wrap:
        wrap.asked(call(tool, request_id=1))
        if tool == "write_timed":
            wrap.stdout.line()
            wait_until(lambda: session_notes(wrap.data, "one") == ["abandoned"], "it runs on")
        kill(wrap)
    with wrap_of(tmp_path) as wrap:
        wrap.send(call(tool, request_id=2), call(tool, request_id=3))
        assert told(wrap.stdout.json()) == UNKNOWN
        if tool == "pay":
            assert told(wrap.stdout.json()) == UNKNOWN
            assert wrap.server.stdin.is_silent()
        else:
            wrap.server.answer(wrap.server.request())
            assert wrap.stdout.json() == text_answer(3)
    rows = session_rows(data_of(tmp_path), "one")
    assert [row.status for row in rows[:2]] == ["unknown", "error"]
    assert ("repeat_of_unknown" in rows[2].flags) == (tool != "pay")
    assert all(finding.verdict.intact for finding in findings(data_of(tmp_path)))


@pytest.mark.promise("TWICE-7")
def test_an_answer_that_was_on_disk_when_the_wrap_died_is_given_to_who_asks_again(
    tmp_path: Path,
) -> None:
    with wrap_of(tmp_path) as wrap:
        asked = wrap.asked(call("pay_timed", request_id=1))
        wrap.stdout.line()
        wrap.server.answer(asked, "paid")
        wait_until(lambda: session_rows(wrap.data, "one")[0].status == "ok", "it is recorded")
        kill(wrap)
    with wrap_of(tmp_path) as wrap:
        wrap.send(call("pay_timed", request_id=2))
        said = wrap.stdout.json()
        assert (said["id"], said["result"]["content"][0]["text"]) == (2, "paid")
        assert told(said) == ("replayed", None, "yes", None)
    assert session_notes(data_of(tmp_path), "one") == ["abandoned", "delivered"]


@pytest.mark.parametrize("tool", ["write", "write_patiently"])
def test_a_wrap_that_waits_for_a_call_of_another_learns_that_it_was_killed(
    tmp_path: Path, tool: str
) -> None:
    with wrap_of(tmp_path) as living:
        with wrap_of(tmp_path) as dying:
            dying.asked(call(tool, request_id=1))
            if tool == "write_patiently":
                dying.stdout.line()
            else:
                cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
                dying.asked(cancel)
            wait_until(lambda: "abandoned" in session_notes(dying.data, "one"), "it runs on")
            living.send(call(tool, request_id=2), message("ping", request_id="p"))
            assert living.server.request()["id"] == "p"
            kill(dying)
        said = living.stdout.json()
        assert (said["id"], told(said)) == (2, UNKNOWN)
        assert living.server.stdin.is_silent()


def test_a_call_of_a_wrap_that_was_just_killed_is_not_made_anew_unseen(tmp_path: Path) -> None:
    with wrap_of(tmp_path) as living:
        with wrap_of(tmp_path) as dying:
            dying.asked(call("write", request_id=1))
            kill(dying)
        living.send(call("write", request_id=2))
        assert told(living.stdout.json()) == UNKNOWN
