"""A proxy that is stopped for longer than its agent waits: the effect happens once, whoever is asked again.

The agent gives up, closes its connection, and asks again through the same proxy or another one on the
store. The server counts what it is really asked.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kit.beside import proxy_beside, session_notes, session_rows
from kit.clients import MCP_HEADERS, Client, Response, call, message, wait_until
from kit.holding import nobody_writes
from kit.proxy import Proxy, data_of
from kit.stalls import stopped
from kit.upstreams import Peer, RawUpstream, ok, text_result
from kit.wraps import initialize, wrapping
from turnlog.core.kinds import Status
from turnlog.sessions.rows import Row

RULES = """
rules:
  - {match: {tool: "write*"}, effect: write}
  - {match: {tool: "pay*"}, effect: irreversible}
  - {match: {tool: "POST /pay*", method: POST}, effect: irreversible}
  - match: {tool: "write_again"}
    retry: {on: [rate_limited], max_attempts: 3}
  - {match: {tool: "*_timed"}, timeout: {queue: 200ms, response: 300ms}}
"""
ERAS = ("2025-11-25", "2026-07-28")


class Counting:
    """Count calls, and answer each with its number once it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.refuses = 0
        """How many of the first calls are refused."""
        self.go = threading.Event()

    def __call__(self, peer: Peer) -> None:
        said: Any = json.loads(peer.read().body)
        if "method" in said and "id" not in said:
            peer.send(ok(b"", status="202 Accepted"))
            return
        self.asked += 1
        number = self.asked
        while not self.go.wait(0.01):
            if peer.wait_for_hang_up(0.01):
                return
        if number <= self.refuses:
            refused = "429 Too Many Requests\r\nRetry-After: 3"
            peer.send(ok(b"later", media="text/plain", status=refused))
        elif "id" in said:
            peer.send_json(text_result(said["id"], f"done {number}"))
        else:
            peer.send(ok(json.dumps({"done": number}).encode()))


class Scene:
    """A server, and two proxies on one store before it: shared by all tests, each in its own session."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        (folder / "rules.yaml").write_text(RULES)
        self.upstream = stack.enter_context(RawUpstream())
        settings = {"rules": ["rules.yaml"], "log_level": "debug"}
        self.one, self.other = (
            stack.enter_context(proxy_beside(folder, self.upstream.url, settings=settings))
            for _ in range(2)
        )
        self._sessions = 0

    def fresh(self, stack: ExitStack) -> None:
        """Begin a test, whose connections `stack` closes."""
        self._stack = stack
        self._sessions += 1
        self.session = f"session-{self._sessions}"
        self.counting = self.upstream.script = Counting()
        stack.callback(self.counting.go.set)
        self._begun = {proxy: len(proxy.events("call.started")) for proxy in (self.one, self.other)}

    def ask(
        self, proxy: Proxy, body: bytes, *headers: tuple[str, str], path: str = "mcp"
    ) -> Client:
        """Ask on a connection of its own, and do not wait for the answer."""
        client = self._stack.enter_context(Client(proxy.url))
        path = f"/s/{self.session}/{path}"
        client.ask("POST", path, body, headers=(*MCP_HEADERS, *headers))
        return client

    def has_begun(self, proxy: Proxy) -> bool:
        """Tell whether a proxy has begun a call of this test."""
        return len(proxy.events("call.started")) > self._begun[proxy]

    def rows(self) -> list[Row]:
        """Return the rows of this test, oldest first."""
        return session_rows(self.one.data, self.session)

    def ended(self, count: int) -> list[Row]:
        """Wait until there are `count` rows and none is pending; return them."""

        def over() -> bool:
            rows = self.rows()
            return len(rows) >= count and all(row.status is not Status.PENDING for row in rows)

        wait_until(over, f"{count} rows end")
        return self.rows()


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path_factory.mktemp("proxies"), stack)


@pytest.fixture
def scene(proxies: Scene) -> Iterator[Scene]:
    with ExitStack() as stack:
        proxies.fresh(stack)
        yield proxies


def revision(era: str) -> tuple[str, str]:
    return ("MCP-Protocol-Version", era)


def text(answer: Response) -> str:
    return str(answer.json()["result"]["content"][0]["text"])


def never_sent(row: Row) -> bool:
    return (row.kind, row.executed, row.phase) == ("cancelled_by_caller", "no", "queued")


@pytest.mark.promise("TWICE-22")
@pytest.mark.parametrize("again", ["same", "other"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool", ["write", "pay"])
def test_a_proxy_that_was_stopped_does_not_send_calls_that_its_agent_gave_up_meanwhile(
    scene: Scene, tool: str, era: str, again: str
) -> None:
    scene.counting.go.set()
    second = scene.one if again == "same" else scene.other
    with stopped(scene.one.process.pid):
        scene.ask(scene.one, call(tool, {"a": 1}, request_id=1), revision(era)).close()
        asked = scene.ask(second, call(tool, {"a": 1}, request_id=2), revision(era))
        if again == "other":
            assert text(asked.response("POST")) == "done 1"
    if again == "same":
        assert text(asked.response("POST")) == "done 1"
    rows = scene.ended(2)
    assert scene.counting.asked == 1
    # Where the other call has just ended, the first one waits to learn whether it was delivered.
    assert sorted(row.kind or "" for row in rows) == ["", "cancelled_by_caller"]


@pytest.mark.parametrize(
    ("body", "path", "headers"),
    [
        (b"{}", "pay", ()),
        (b"{}", "tool", (("Idempotency-Key", '"plain"'),)),
        (b"[%b]" % call("pay", request_id=1), "mcp", ()),
        (call("some", request_id=1), "mcp", (("Idempotency-Key", '"k"'),)),
    ],
    ids=["plain tool", "plain tool with a key", "batch", "call with a key"],
)
def test_nothing_of_the_kind_is_sent_for_an_agent_that_is_gone(
    scene: Scene, body: bytes, path: str, headers: tuple[tuple[str, str], ...]
) -> None:
    with stopped(scene.one.process.pid):
        scene.ask(scene.one, body, *headers, path=path).close()
    (row,) = scene.ended(1)
    assert never_sent(row)
    assert scene.counting.asked == 0


def test_an_agent_that_only_has_no_more_to_say_gets_its_answer(scene: Scene) -> None:
    scene.counting.go.set()
    with stopped(scene.one.process.pid):
        client = scene.ask(scene.one, call("pay", request_id=1))
        client.end()
    assert text(client.response("POST")) == "done 1"
    (row,) = scene.ended(1)
    assert row.status == "ok"


def test_a_call_that_was_cancelled_before_it_could_be_sent_is_never_sent(scene: Scene) -> None:
    session = ("Mcp-Session-Id", "m")
    cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
    with nobody_writes(scene.one.data):
        waits = scene.ask(scene.one, call("pay", request_id=1), session)
        wait_until(lambda: scene.has_begun(scene.one), "the call has begun")
        assert scene.ask(scene.one, cancel, session).response("POST").status == 202
    assert "cancelled" in text(waits.response("POST"))
    (row,) = scene.ended(1)
    assert never_sent(row)
    assert scene.counting.asked == 0


def test_a_call_of_a_proxy_that_is_stopped_is_waited_for(scene: Scene) -> None:
    first = scene.ask(scene.one, call("pay", {"a": 1}, request_id=1))
    wait_until(lambda: scene.counting.asked == 1, "the server has the call")
    with stopped(scene.one.process.pid):
        first.close()
        second = scene.ask(scene.other, call("pay", {"a": 1}, request_id=2))
        # Whoever is answered here came after it.
        with Client(scene.other.url) as next_one:
            assert next_one.request("GET", "/turnlog/nothing").status == 404
        scene.counting.go.set()
    assert text(second.response("POST")) == "done 1"
    made, again = scene.ended(2)
    assert (made.status, again.status, again.flags) == ("ok", "replayed", ["replayed", "joined"])
    assert scene.counting.asked == 1


@pytest.mark.parametrize("era", ERAS)
def test_a_call_that_another_proxy_has_just_begun_is_not_made_beside_it(
    scene: Scene, era: str
) -> None:
    first = scene.ask(scene.one, call("write", {"a": 1}, request_id=1), revision(era))
    wait_until(lambda: scene.counting.asked == 1, "the server has the call")
    first.close()
    second = scene.ask(scene.other, call("write", {"a": 1}, request_id=2), revision(era))
    wait_until(lambda: "abandoned" in session_notes(scene.one.data, scene.session), "it is noted")
    scene.counting.go.set()
    assert text(second.response("POST")) == "done 1"
    assert scene.counting.asked == 1


@pytest.mark.promise("TWICE-21")
def test_of_two_processes_that_begin_the_same_call_at_once_one_waits_for_the_other(
    scene: Scene,
) -> None:
    with nobody_writes(scene.one.data):
        asked = [
            scene.ask(proxy, call("write", {"a": 1}, request_id=1))
            for proxy in (scene.one, scene.other)
        ]
        for proxy in (scene.one, scene.other):
            wait_until(lambda p=proxy: scene.has_begun(p), "the call has begun")
    wait_until(lambda: scene.counting.asked == 1, "one is made")
    scene.counting.go.set()
    # Each caller is there and gets an answer of its own: they are two calls, one after the other.
    assert sorted(text(client.response("POST")) for client in asked) == ["done 1", "done 2"]
    assert [row.flags for row in scene.ended(2)] == [[], []]


def test_a_call_that_waits_for_another_process_ends_in_its_own_time_and_may_have_run(
    scene: Scene,
) -> None:
    scene.ask(scene.one, call("write_timed", request_id=1))
    wait_until(lambda: scene.counting.asked == 1, "the server has the call")
    said = scene.ask(scene.other, call("write_timed", request_id=2)).response("POST").json()
    told = said["result"]["_meta"]["turnlog/outcome"]
    assert (told["kind"], told["executed"], told["retry"], told["phase"]) == (
        "response_timeout",
        "maybe",
        "unsafe",
        "sent",
    )
    assert scene.counting.asked == 1


def test_another_attempt_is_not_made_once_another_process_has_made_the_call(scene: Scene) -> None:
    scene.counting.refuses = 1
    scene.counting.go.set()
    body = call("write_again", request_id=1)
    first = scene.ask(scene.one, body)
    scene.ended(1)
    with stopped(scene.one.process.pid):
        assert text(scene.ask(scene.other, body).response("POST")) == "done 2"
    assert first.response("POST").status == 429
    assert scene.counting.asked == 2


@pytest.mark.promise("TWICE-22")
@pytest.mark.parametrize("how", ["closes", "cancels"])
def test_a_wrap_that_is_stopped_does_not_send_what_its_client_has_given_up(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "turnlog.yaml").write_text("{}")
    flags = ("--session", "one", "--config", str(tmp_path / "turnlog.yaml"))
    with wrapping(tmp_path, *flags, rules=RULES) as wrap:
        initialize(wrap)
        with stopped(wrap.process.pid):
            wrap.send(call("pay", {"a": 1}, request_id=1))
            if how == "cancels":
                cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
                wrap.send(cancel, message("ping", request_id="p"))
            else:
                wrap.stdin.close()
                wrap.stdout.close()
        if how == "cancels":
            assert wrap.server.request()["method"] == "ping"
        else:
            assert wrap.server.stdin.rest() == b""
            wrap.server.exit()
            wrap.exited()
        wait_until(lambda: _is_over(tmp_path), "the call is recorded")
    (row,) = session_rows(data_of(tmp_path), "one")
    assert never_sent(row)


def _is_over(folder: Path) -> bool:
    rows = session_rows(data_of(folder), "one")
    return bool(rows) and all(row.status is not Status.PENDING for row in rows)
