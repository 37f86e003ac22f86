"""Calls through a wrap whose effect is named: one that is asked again while it runs, or whose answer
was lost, runs once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.beside import session_notes, session_rows
from kit.clients import call, message, wait_until
from kit.proxy import data_of
from kit.wraps import Wrap, error_of, initialize, outcome, text_answer, wrapping
from turnlog.sessions.rows import Row
from turnlog.store.lmdb import LmdbReader

RULES = """
rules:
  - {match: {tool: "write*"}, effect: write}
  - {match: {tool: "put*"}, effect: idempotent_write}
  - {match: {tool: "pay*"}, effect: irreversible}
  - {match: {tool: "*_timed"}, timeout: {response: 200ms}}
  - {match: {tool: "*_patiently"}, timeout: {response: 2s}}
"""
NEW = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
ERAS = pytest.mark.parametrize("meta", [{}, NEW], ids=["handshake", "stateless"])


class Talk:
    """One session of a wrap that several tests share, and what is done in it."""

    def __init__(self, wrap: Wrap, session: str) -> None:
        self.wrap = wrap
        self.session = session
        self.meta: dict[str, Any] = {}
        self.ids = 0

    def line(self, tool: str, **more: Any) -> tuple[str, bytes]:
        """Return a call of this session, and its id."""
        self.ids += 1
        request_id = f"{self.session}-{self.ids}"
        meta = {"turnlog/session": self.session, **self.meta, **more}
        return request_id, call(tool, {"a": 1}, request_id=request_id, _meta=meta)

    def asked(self, tool: str, **more: Any) -> str:
        """Call; the server gets it. Return its id."""
        request_id, line = self.line(tool, **more)
        assert self.wrap.asked(line)["id"] == request_id
        return request_id

    def held(self, tool: str, **more: Any) -> str:
        """Call; the server does not get it, but what is asked behind it. Return its id."""
        request_id, line = self.line(tool, **more)
        self.wrap.send(line)
        self.passes_by()
        return request_id

    def passes_by(self) -> None:
        """Exchange something else: whatever was sent before it has been seen."""
        asked = self.wrap.asked(message("ping", request_id="p"))
        self.wrap.server.say({"jsonrpc": "2.0", "id": asked["id"], "result": {}})
        assert self.wrap.stdout.json()["id"] == "p"

    def cancelled(self, request_id: str) -> None:
        """Take a call back; the server learns that."""
        cancel = message("notifications/cancelled", {"requestId": request_id}, request_id=None)
        assert self.wrap.asked(cancel)["params"]["requestId"] == request_id

    def answered(self, request_id: str, text: str = "done") -> None:
        """Let the server answer, and the agent read that."""
        self.wrap.server.say(text_answer(request_id, text))
        assert self.wrap.stdout.json() == text_answer(request_id, text)

    def got(self, request_id: str) -> Any:
        """Return the result that the agent gets for a call."""
        said = self.wrap.stdout.json()
        assert said["id"] == request_id
        return said["result"]

    def replayed(self, request_id: str, text: str = "done") -> None:
        """Expect an earlier answer for a call."""
        said = self.got(request_id)
        assert said["content"][0]["text"] == text
        assert said["_meta"]["turnlog/outcome"]["status"] == "replayed"

    def rows(self) -> list[Row]:
        return session_rows(self.wrap.data, self.session)

    def notes(self) -> list[str]:
        return session_notes(self.wrap.data, self.session)

    def noted(self, *kinds: str) -> None:
        """Wait until that is noted, in this order."""
        wait_until(lambda: self.notes() == list(kinds), f"{kinds} are noted")

    def ended(self, number: int, kind: str | None) -> Row:
        """Wait until a row has ended so."""

        def is_so() -> bool:
            row = dict(enumerate(self.rows())).get(number)
            return row is not None and row.status != "pending" and row.kind == kind

        wait_until(is_so, f"row {number} ends with {kind}")
        return self.rows()[number]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wrap]:
    folder = tmp_path_factory.mktemp("wrap")
    # JSON is YAML.
    (folder / "turnlog.yaml").write_text('{"never_twice": {"join_after": "1h", "drain": "1h"}}')
    with wrapping(folder, "--config", str(folder / "turnlog.yaml"), rules=RULES) as wrap:
        initialize(wrap)
        yield wrap


SESSIONS = iter(range(10_000))


@pytest.fixture
def talk(shared: Wrap) -> Talk:
    return Talk(shared, f"test-{next(SESSIONS)}")


@ERAS
def test_a_duplicate_joins_a_cancelled_call(talk: Talk, meta: dict[str, str]) -> None:
    talk.meta = meta
    first = talk.asked("write")
    talk.cancelled(first)
    second = talk.held("write")
    assert talk.rows()[0].status == "pending"
    talk.answered(first)
    talk.replayed(second)
    talk.noted("cancel_forwarded", "abandoned", "delivered")
    one, two = talk.rows()
    assert (one.status, one.flags, one.executed) == ("ok", ["late"], "yes")
    assert (two.status, set(two.flags)) == ("replayed", {"replayed", "joined"})
    assert (two.phase, two.executed) == ("queued", "yes")
    talk.answered(talk.asked("write"), "again")


@pytest.mark.promise("TWICE-4")
def test_calls_that_begin_together_are_as_many_as_there_are(talk: Talk) -> None:
    calls = [talk.asked("write") for _ in range(3)]
    for one in calls:
        talk.answered(one)
    talk.noted(*["delivered"] * 3)
    assert [row.status for row in talk.rows()] == ["ok"] * 3


@pytest.mark.promise("TWICE-1")
def test_a_call_of_an_unknown_effect_is_made_each_time(talk: Talk) -> None:
    first = talk.asked("something")
    talk.cancelled(first)
    talk.ended(0, "cancelled_by_caller")
    second = talk.asked("something")
    talk.answered(first)
    talk.answered(second)
    assert talk.notes() == []


def test_calls_of_different_sessions_are_never_joined(talk: Talk) -> None:
    first = talk.asked("write")
    talk.cancelled(first)
    other = Talk(talk.wrap, f"{talk.session}-other")
    other.answered(other.asked("write"))
    talk.answered(first)


@ERAS
def test_a_call_runs_on_after_its_timeout_and_a_duplicate_gets_its_answer(
    talk: Talk, meta: dict[str, str]
) -> None:
    talk.meta = meta
    first = talk.asked("write_timed")
    assert outcome({"result": talk.got(first)})["kind"] == "response_timeout"
    talk.passes_by()  # and no cancel
    assert talk.ended(0, "response_timeout").status == "unknown"
    talk.wrap.server.answer({"id": first}, "late")
    assert talk.ended(0, None).flags == ["late"]
    request_id, line = talk.line("write_timed")
    talk.wrap.send(line)
    talk.replayed(request_id, "late")
    talk.noted("abandoned", "delivered")
    talk.answered(talk.asked("write_timed"))


def test_a_cancel_for_a_call_that_was_answered_does_not_end_the_one_that_runs_on(
    talk: Talk,
) -> None:
    first = talk.asked("write_timed")
    talk.got(first)
    talk.wrap.send(message("notifications/cancelled", {"requestId": first}, request_id=None))
    talk.passes_by()
    talk.wrap.server.answer({"id": first}, "late")
    assert talk.ended(0, None).flags == ["late"]
    request_id, line = talk.line("write_timed")
    talk.wrap.send(line)
    talk.replayed(request_id, "late")
    assert "cancel_forwarded" not in talk.notes()


def test_a_call_whose_timeout_has_passed_is_joined(talk: Talk) -> None:
    first = talk.asked("pay_patiently")
    talk.got(first)
    second = talk.held("pay_patiently")
    talk.wrap.server.answer({"id": first}, "late")
    talk.replayed(second, "late")
    assert [row.status for row in talk.rows()] == ["ok", "replayed"]


@pytest.mark.promise("TWICE-17")
def test_a_joined_call_waits_no_longer_than_its_own_time_limit(talk: Talk) -> None:
    first = talk.asked("write_timed")
    talk.got(first)
    second = talk.held("write_timed")
    told = talk.got(second)["_meta"]["turnlog/outcome"]
    assert (told["kind"], told["executed"], told["phase"]) == (
        "response_timeout",
        "maybe",
        "sent",
    )
    talk.wrap.server.answer({"id": first}, "late")
    talk.ended(0, None)
    request_id, line = talk.line("write_timed")
    talk.wrap.send(line)
    talk.replayed(request_id, "late")
    joined = talk.rows()[1]
    assert joined.flags == ["joined"]
    # It began when it was asked, and lasted as long as its caller waited.
    assert joined.duration_ms is not None
    assert joined.duration_ms >= 200


def test_cancelling_a_joined_call_sends_nothing_to_the_server(talk: Talk) -> None:
    first = talk.asked("write_patiently")
    talk.got(first)
    second = talk.held("write_patiently")
    talk.wrap.send(message("notifications/cancelled", {"requestId": second}, request_id=None))
    talk.passes_by()
    left = talk.ended(1, "cancelled_by_caller")
    assert (left.executed, left.flags, left.phase) == ("maybe", ["joined"], "sent")
    talk.wrap.server.answer({"id": first}, "late")
    talk.ended(0, None)
    request_id, line = talk.line("write_patiently")
    talk.wrap.send(line)
    talk.replayed(request_id, "late")


def test_an_error_after_a_cancel_is_not_replayed_to_a_duplicate(talk: Talk) -> None:
    first = talk.asked("write")
    talk.cancelled(first)
    second = talk.held("write")
    talk.wrap.server.say(error_of(0, "Request cancelled")(first))
    assert talk.wrap.stdout.json()["error"]["code"] == 0
    assert talk.wrap.server.request()["id"] == second
    talk.answered(second)
    assert talk.ended(0, "cancelled_by_caller").executed == "maybe"
    assert talk.rows()[1].flags == ["repeat_of_unknown"]


def test_when_a_joined_call_fails_one_of_the_waiting_calls_is_sent(talk: Talk) -> None:
    first = talk.asked("write")
    talk.cancelled(first)
    waiting = [talk.held("write") for _ in range(3)]
    talk.wrap.server.say(error_of(0, "Request cancelled")(first))
    assert talk.wrap.stdout.json()["error"]["code"] == 0
    again = talk.wrap.server.request()["id"]
    assert again in waiting
    talk.passes_by()
    talk.answered(again)
    said = [talk.wrap.stdout.json() for _ in range(2)]
    assert {one["id"] for one in said} == {*waiting} - {again}
    assert {outcome(one)["status"] for one in said} == {"replayed"}
    flagged = [row for row in talk.rows() if "repeat_of_unknown" in row.flags]
    assert [row.status for row in flagged] == ["ok"]


def test_a_server_that_never_answers_a_cancelled_call_causes_only_a_short_delay(
    talk: Talk,
) -> None:
    first, payment = talk.asked("write"), talk.asked("pay")
    talk.cancelled(first)
    talk.cancelled(payment)
    second, third = talk.held("write"), talk.held("pay")
    assert talk.wrap.server.request()["id"] == second
    told = talk.got(third)["_meta"]["turnlog/outcome"]
    assert (told["kind"], told["executed"], told["retry"]) == ("outcome_unknown", "maybe", "unsafe")
    talk.ended(0, "cancelled_by_caller")
    talk.ended(1, "cancelled_by_caller")
    talk.answered(second)
    # What comes after all is an answer to who asks again.
    talk.answered(payment, "paid")
    wait_until(lambda: talk.rows()[1].status == "ok", "the late answer is recorded")
    request_id, line = talk.line("pay")
    talk.wrap.send(line)
    talk.replayed(request_id, "paid")
    again = [row for row in talk.rows() if "repeat_of_unknown" in row.flags]
    assert [row.tool for row in again] == ["write"]


def test_a_key_identifies_one_call_even_after_its_answer(talk: Talk) -> None:
    key = {"turnlog/key": talk.session}
    talk.answered(talk.asked("anything", **key))
    request_id, line = talk.line("anything", **key)
    talk.wrap.send(line)
    talk.replayed(request_id)
    talk.wrap.send(call("anything", {"a": 2}, request_id="c", _meta=key))
    assert talk.got("c")["_meta"]["turnlog/outcome"]["kind"] == "conflict"
    talk.passes_by()


LONG = "x" * 3_000_000


def test_a_long_answer_is_given_again_whole(talk: Talk) -> None:
    first = talk.asked("write_patiently")
    talk.got(first)
    second = talk.held("write_patiently")
    talk.wrap.server.say(text_answer(first, LONG))
    talk.replayed(second, LONG)


def test_a_long_answer_that_arrived_is_noted(talk: Talk) -> None:
    first = talk.asked("write")
    talk.answered(first, LONG)
    talk.noted("delivered")
    talk.answered(talk.asked("write"))


def wrap_of(folder: Path, name: str = "puppet", settings: str = "{}") -> Any:
    (folder / "turnlog.yaml").write_text(settings)
    flags = ("--session", "one", "--config", str(folder / "turnlog.yaml"))
    return wrapping(folder, *flags, rules=RULES, name=name)


@pytest.mark.promise("TWICE-2")
def test_a_call_runs_on_no_longer_than_the_drain(tmp_path: Path) -> None:
    with wrap_of(tmp_path, settings='{"never_twice": {"drain": "300ms"}}') as wrap:
        asked = wrap.asked(call("pay_timed"))
        assert outcome(wrap.stdout.json())["kind"] == "response_timeout"
        cancel = wrap.server.request()
        assert cancel["params"]["requestId"] == asked["id"]
        (row,) = session_rows(wrap.data, "one")
        assert (row.status, row.kind) == ("unknown", "response_timeout")
    assert session_notes(wrap.data, "one") == ["abandoned", "cancel_forwarded"]


def test_a_client_that_closes_its_input_gets_the_answer_to_a_call_that_joined(
    tmp_path: Path,
) -> None:
    with wrap_of(tmp_path) as wrap:
        wrap.asked(call("write_patiently", request_id=1))
        wrap.stdout.line()
        wrap.send(call("write_patiently", request_id=2))
        wait_until(lambda: session_notes(wrap.data, "one") == ["abandoned"], "it runs on")
        wrap.stdin.close()
        wrap.server.answer({"id": 1}, "late")
        assert wrap.stdout.json()["id"] == 2
        assert wrap.server.stdin.rest() == b""
        wrap.server.exit()
        assert wrap.stdout.rest() == b""
    assert [row.status for row in session_rows(wrap.data, "one")] == ["ok", "replayed"]


def test_a_joined_call_is_still_sent_if_needed_after_its_client_closes_its_input(
    tmp_path: Path,
) -> None:
    with wrap_of(tmp_path) as wrap:
        wrap.asked(call("write", request_id=1))
        cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
        assert wrap.asked(cancel)["params"] == {"requestId": 1}
        wrap.send(call("write", request_id=2), message("ping", request_id="p"))
        assert wrap.server.request()["id"] == "p"
        wrap.stdin.close()
        wrap.server.say(error_of(0, "Request cancelled")(1))
        assert wrap.stdout.json()["error"]["code"] == 0
        wrap.server.answer(wrap.server.request(), "done anew")
        said = wrap.stdout.json()
        assert (said["id"], said["result"]["content"][0]["text"]) == (2, "done anew")
        assert wrap.server.stdin.rest() == b""
        wrap.server.exit()
    assert session_rows(wrap.data, "one")[1].flags == ["repeat_of_unknown"]


def test_a_server_that_ends_is_the_answer_to_a_call_that_joined(tmp_path: Path) -> None:
    with wrap_of(tmp_path) as wrap:
        wrap.asked(call("write_patiently", request_id=1))
        wrap.stdout.line()
        wrap.send(call("write_patiently", request_id=2), message("ping", request_id="p"))
        assert wrap.server.request()["id"] == "p"
        wrap.server.exit(3)
        said = wrap.stdout.json()
        assert (said["id"], outcome(said)["kind"]) == (2, "outcome_unknown")
        assert wrap.stdout.rest() == b""
        assert wrap.exited() == 3
    first, second = session_rows(wrap.data, "one")
    assert (first.kind, second.kind) == ("response_timeout", "outcome_unknown")


RESTING = """
rules:
  - match: {tool: "put"}
    effect: idempotent_write
    timeout: {response: 300ms}
    retry: {on: timeout, max_attempts: 2, base_interval: 60s, max_interval: 60s, jitter: none, budget: 300s}
"""


def test_a_call_whose_client_leaves_between_two_attempts_is_not_made_again(tmp_path: Path) -> None:
    with wrapping(tmp_path, "--session", "one", rules=RESTING) as wrap:
        wrap.asked(call("put"))
        wait_until(lambda: bool(wrap.events("call.retried")), "the time limit")
        wrap.stdin.close()
        wrap.stdout.close()
        wait_until(lambda: session_notes(wrap.data, "one") == ["abandoned"], "it is noticed")
        wrap.exited()
    (row,) = session_rows(wrap.data, "one")
    assert (row.status, row.kind, row.attempt) == ("unknown", "response_timeout", 1)
    reader = LmdbReader.open(wrap.data)
    with reader, reader.view() as view:
        commits = [commit for one in view.sessions() for commit in view.commits(one.session)]
    # Not of an answer that came to nobody as the wrap ended.
    assert [c.link.ref for c in commits if c.facts.note == "abandoned"] == [row.intent_seq]


def test_an_answer_that_came_after_the_client_left_is_replayed_by_the_next_wrap(
    tmp_path: Path,
) -> None:
    with wrap_of(tmp_path) as wrap:
        wrap.asked(call("write", request_id=1))
        wrap.stdin.close()
        wrap.stdout.close()
        assert wrap.server.stdin.rest() == b""
        wait_until(lambda: session_notes(wrap.data, "one") == ["abandoned"], "it is noticed")
        wrap.server.answer({"id": 1})
        wait_until(lambda: session_rows(wrap.data, "one")[0].status == "ok", "it is recorded")
        wrap.server.exit()
        wrap.exited()
    assert session_notes(wrap.data, "one") == ["abandoned"]
    assert session_rows(wrap.data, "one")[0].flags == ["late"]
    with wrap_of(tmp_path) as wrap:
        wrap.send(call("write", request_id="again"))
        said = wrap.stdout.json()
        assert (said["id"], said["result"]["content"][0]["text"]) == ("again", "done")
        assert outcome(said)["status"] == "replayed"
        assert outcome(said)["session"] is not None
        wrap.server.answer(wrap.asked(call("write", request_id="new")))
        assert wrap.stdout.json() == text_answer("new")


@pytest.mark.promise("TWICE-6")
@pytest.mark.parametrize("closes", ["both", "output", "output before the command ends"])
def test_an_answer_that_the_client_left_unread_is_replayed_by_the_next_wrap(
    tmp_path: Path, closes: str
) -> None:
    with wrap_of(tmp_path) as wrap:
        read = wrap.asked(call("write", {"a": 1}, request_id=1))
        unread = wrap.asked(call("write", {"a": 2}, request_id=2))
        wrap.server.answer(read)
        assert wrap.stdout.line()
        wrap.server.answer(unread, "unread")
        wait_until(lambda: session_notes(wrap.data, "one") == ["delivered"] * 2, "both have left")
        wrap.stdout.close()
        if closes == "both":
            wrap.stdin.close()
        elif closes == "output":
            wrap.server.say({"jsonrpc": "2.0", "method": "notifications/message"})
        if closes != "output before the command ends":
            assert wrap.server.stdin.rest() == b""
            notes = ["delivered", "delivered", "abandoned"]
            wait_until(lambda: session_notes(wrap.data, "one") == notes, "it is noticed")
        wrap.server.exit()
        wrap.exited()
    with wrap_of(tmp_path) as wrap:
        wrap.send(call("write", {"a": 2}, request_id="again"))
        said = wrap.stdout.json()
        assert (said["id"], said["result"]["content"][0]["text"]) == ("again", "unread")
        assert outcome(said)["status"] == "replayed"
        wrap.server.answer(wrap.asked(call("write", {"a": 1}, request_id="new")))
        assert wrap.stdout.json() == text_answer("new")


def test_an_answer_given_again_that_the_client_left_unread_is_given_once_more(
    tmp_path: Path,
) -> None:
    for text in ("first", "again", "once more"):
        with wrap_of(tmp_path) as wrap:
            wrap.send(call("write", request_id=text))
            if text == "first":
                wrap.server.answer(wrap.server.request())
            if text == "once more":
                assert outcome(wrap.stdout.json())["status"] == "replayed"
                break
            wait_until(lambda: session_notes(wrap.data, "one")[-1:] == ["delivered"], "it left")
            wrap.stdin.close()
            wrap.stdout.close()
            wait_until(lambda: session_notes(wrap.data, "one")[-1:] == ["abandoned"], "noticed")
            wrap.server.exit()
            wrap.exited()


def test_a_call_in_flight_at_another_wrap_is_joined(tmp_path: Path) -> None:
    with wrap_of(tmp_path) as one, wrap_of(tmp_path) as other:
        asked = one.asked(call("write_patiently", request_id=1))
        one.stdout.line()
        wait_until(lambda: session_notes(one.data, "one") == ["abandoned"], "it is noticed")
        other.send(call("write_patiently", request_id=2), message("ping", request_id="p"))
        assert other.server.request()["id"] == "p"
        one.server.answer(asked)
        said = other.stdout.json()
        assert (said["id"], outcome(said)["status"]) == (2, "replayed")
        assert said["result"]["content"][0]["text"] == "done"
    assert [row.status for row in session_rows(data_of(tmp_path), "one")] == ["ok", "replayed"]
