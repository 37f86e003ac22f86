"""A wrapped server that keeps failing: its circuit breaker and retry quota."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.stores import turnlog
from kit.beside import session_rows
from kit.clients import call, wait_until
from kit.wraps import Wrap, outcome, text_answer, wrapping

RULES = """
rules:
  - {match: {tool: "*_timed"}, timeout: {response: 100ms}}
  - {match: {tool: "*_later"}, retry: {on: circuit_open, base_interval: 1ms}}
  - {match: {tool: "read*"}, effect: read, retry: {on: tool_error, max_attempts: 9, base_interval: 1ms}}
"""


@contextmanager
def wrap_of(folder: Path, **more: Any) -> Generator[Wrap]:
    """Wrap a puppet of which the configuration says more."""
    config = folder / "turnlog.yaml"
    config.write_text(json.dumps({"upstreams": {"puppet": {"url": "http://h/", **more}}}))
    flags = ("--session", "one", "--config", str(config))
    with wrapping(folder, *flags, rules=RULES) as wrap:
        yield wrap


def timed_out(wrap: Wrap, number: int) -> None:
    """Make a call that the server answers too late."""
    wrap.asked(call("pay_timed", {"n": number}, request_id=number))
    assert outcome(wrap.stdout.json())["kind"] == "response_timeout"
    assert wrap.server.request()["method"] == "notifications/cancelled"


def servers(wrap: Wrap) -> Any:
    return json.loads(turnlog("status", "--json", data=wrap.data).stdout)["servers"]


def test_a_server_that_fails_in_a_row_is_left_alone_and_then_asked_once(tmp_path: Path) -> None:
    with wrap_of(tmp_path, breaker={"failures": 2, "cool_down": "1h"}) as wrap:
        timed_out(wrap, 1)
        timed_out(wrap, 2)
        wrap.send(call("pay", {"n": 3}, request_id=3))
        told = outcome(wrap.stdout.json())
        assert (told["kind"], told["executed"], told["retry"]) == ("circuit_open", "no", "safe")
        assert 3_500_000 < told["retry_after_ms"] <= 3_600_000
        long = call("pay", {"n": 4, "text": "x" * (17 << 20)}, request_id=4)
        wrap.send(long)
        assert outcome(wrap.stdout.json())["kind"] == "circuit_open"
        wrap.send(call("anything", request_id="list").replace(b"tools/call", b"tools/list"))
        assert wrap.server.request()["method"] == "tools/list"
        (shop,) = servers(wrap)
        assert (shop["server"], shop["state"]) == ("puppet", "open")
    kinds = [(row.kind, row.phase) for row in session_rows(wrap.data, "one")]
    assert kinds[2:] == [("circuit_open", "queued")] * 2


def test_a_rule_may_wait_for_it_and_a_probe_decides(tmp_path: Path) -> None:
    with wrap_of(tmp_path, breaker={"failures": 1, "cool_down": "2s"}) as wrap:
        timed_out(wrap, 1)
        asked = wrap.asked(call("pay_later", {"n": 2}, request_id=2))
        wrap.send(call("pay", {"n": 3}, request_id=3))
        assert outcome(wrap.stdout.json())["kind"] == "circuit_open"
        wrap.server.say(text_answer(asked["id"], "done"))
        assert wrap.stdout.json() == text_answer(2, "done")
        wrap.server.answer(wrap.asked(call("pay", {"n": 4}, request_id=4)))
        assert wrap.stdout.json() == text_answer(4)
    rows = session_rows(wrap.data, "one")
    assert [row.kind for row in rows if row.tool == "pay_later"] == ["circuit_open", None]


def test_retries_take_no_more_than_their_quota(tmp_path: Path) -> None:
    quota = {"ratio": 0, "min_per_second": 0, "burst": 2}
    with wrap_of(tmp_path, retry_quota=quota) as wrap:
        asked = wrap.asked(call("read", request_id=1))
        for _ in range(2):
            wrap.server.say(failing(asked["id"]))
            asked = wrap.server.request()
        wrap.server.say(failing(asked["id"]))
        assert wrap.stdout.json()["error"]["code"] == -32603
        wait_until(lambda: servers(wrap), "it is told")
        assert servers(wrap)[0]["retries_refused"] == 1
    assert len(session_rows(wrap.data, "one")) == 3


def failing(request_id: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32603, "message": "no"}}
