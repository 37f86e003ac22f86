"""A limit on concurrent calls: the others wait in order, and nothing else waits."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kit.beside import Rig, ruled
from kit.clients import MCP_HEADERS, Client, call, message, wait_until
from kit.upstreams import Peer, text_result
from kit.wraps import Wrap, initialize, outcome, wrapping

RULES = """
rules:
  - {name: one, match: {tool: ["one*", "POST /one*"], method: [tools/call, POST]}, concurrency: 1}
  - {name: two, match: {tool: "two*"}, concurrency: 2}
  - {match: {tool: "*_soon"}, timeout: {queue: 300ms}}
  - {match: {tool: "*_total"}, timeout: {total: 300ms}}
  - {match: {tool: "*_write"}, effect: write}
  - {match: {tool: "*_again"}, effect: read, retry: {on: tool_error, base_interval: 10ms}}
"""


class Doors:
    """Note what is asked, in order; answer it once it is let go."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.under_way = 0
        self.most = 0
        self.fails = 0
        self._go = threading.Semaphore(0)
        self._lock = threading.Lock()

    def let_go(self, count: int = 1) -> None:
        """Let so many answers go."""
        self._go.release(count)

    def __call__(self, peer: Peer) -> None:
        """Answer a request, or take a notification."""
        said = json.loads(peer.read().body)
        if "id" not in said:
            peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        with self._lock:
            self.asked.append(said["id"])
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        self._go.acquire()
        with self._lock:
            self.under_way -= 1
            failed, self.fails = self.fails > 0, self.fails - 1
        if failed:
            error = {"code": -32603, "message": "no"}
            peer.send_json({"jsonrpc": "2.0", "id": said["id"], "error": error})
        else:
            peer.send_json(text_result(said["id"], "done"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


@pytest.fixture
def doors(rig: Rig) -> Iterator[Doors]:
    rig.upstream.script = made = Doors()
    yield made
    made.let_go(100)
    rig.rest()
    wait_until(lambda: made.under_way == 0, "nothing is under way")


class Crowd:
    """Callers whose calls are recorded one after the other, so that their order is known."""

    def __init__(self, rig: Rig, stack: ExitStack) -> None:
        self._rig = rig
        self._stack = stack
        self._begun = 0

    def ask(self, tool: str, request_id: int, *headers: tuple[str, str]) -> Client:
        """Begin a call; return once it is recorded."""
        client = self._stack.enter_context(self._rig.client())
        body = call(tool, {"n": request_id}, request_id=request_id)
        client.ask("POST", self._rig.path, body, headers=headers or MCP_HEADERS)
        self._begun += 1
        wait_until(lambda: len(self._rig.rows()) == self._begun, "the call is recorded")
        return client


@pytest.fixture
def crowd(rig: Rig, doors: Doors) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(rig, stack)


@pytest.mark.promise("WAIT-6")
def test_the_others_wait_in_the_order_in_which_they_came(
    rig: Rig, doors: Doors, crowd: Crowd
) -> None:
    clients = [crowd.ask("two", number) for number in range(1, 6)]
    for number in range(2, 6):
        wait_until(lambda n=number: len(doors.asked) == n, f"{number} are at the server")
        doors.let_go()
    doors.let_go()
    assert [client.response("POST").status for client in clients] == [200] * 5
    assert sorted(doors.asked[:2]) == [1, 2]
    assert (doors.asked[2:], doors.most) == ([3, 4, 5], 2)
    assert {row.status for row in rig.ended_rows(5)} == {"ok"}


@pytest.mark.promise("WAIT-7")
def test_a_queued_call_delays_no_other_tool_and_no_other_message(
    rig: Rig, doors: Doors, crowd: Crowd
) -> None:
    crowd.ask("one", 1)
    crowd.ask("one", 2)
    crowd.ask("else", 3)
    wait_until(lambda: sorted(doors.asked) == [1, 3], "the other tool is at the server")
    ping = json.loads(message("ping", {}, request_id=4))
    with rig.client() as client:
        client.ask("POST", rig.path, json.dumps(ping).encode(), headers=MCP_HEADERS)
        wait_until(lambda: 4 in doors.asked, "the other message is at the server")
    notification = message("tools/call", {"name": "one", "arguments": {}}, request_id=None)
    with rig.client() as client:
        given = client.request("POST", rig.path, notification, headers=MCP_HEADERS)
    assert given.status == 202
    assert 2 not in doors.asked


@pytest.mark.promise("WAIT-8")
@pytest.mark.parametrize(
    ("tool", "kind"), [("one_soon", "queue_timeout"), ("one_total", "deadline_exhausted")]
)
def test_a_call_queued_too_long_gets_an_error_and_is_never_sent(
    rig: Rig, doors: Doors, crowd: Crowd, tool: str, kind: str
) -> None:
    first = crowd.ask("one", 1)
    given = crowd.ask(tool, 2).response("POST").json()
    said = outcome(given)
    assert (said["kind"], said["executed"], said["retry"]) == (kind, "no", "safe")
    doors.let_go()
    first.response("POST")
    assert doors.asked == [1]
    row = rig.ended_rows(2)[1]
    assert (row.kind, row.phase, row.executed) == (kind, "queued", "no")


@pytest.mark.promise("WAIT-8")
@pytest.mark.parametrize("tool", ["one", "one_write"])
def test_a_queued_call_whose_caller_leaves_is_never_sent(
    rig: Rig, doors: Doors, crowd: Crowd, tool: str
) -> None:
    first = crowd.ask("one", 1)
    crowd.ask(tool, 2).close()
    wait_until(lambda: rig.rows()[1].status != "pending", "the proxy has noticed")
    third = crowd.ask("one", 3)
    doors.let_go(2)
    assert [client.response("POST").status for client in (first, third)] == [200, 200]
    assert doors.asked == [1, 3]
    row = rig.ended_rows(3)[1]
    assert (row.kind, row.status, row.phase) == ("cancelled_by_caller", "error", "queued")
    assert (row.executed, row.flags) == ("no", [])


@pytest.mark.promise("WAIT-8")
def test_a_queued_call_that_is_cancelled_is_never_sent(
    rig: Rig, doors: Doors, crowd: Crowd
) -> None:
    crowd.ask("one", 1)
    wait_until(lambda: doors.asked == [1], "the server has it")
    second = crowd.ask("one_write", 2, *rig.session_headers)
    cancel = message("notifications/cancelled", {"requestId": 2}, request_id=None)
    with rig.client() as other:
        other.request("POST", rig.path, cancel, headers=rig.session_headers)
    said = outcome(second.response("POST").json())
    assert (said["kind"], said["executed"]) == ("cancelled_by_caller", "no")
    assert doors.asked == [1]
    assert "cancel_forwarded" not in rig.notes()


def test_a_call_that_runs_on_without_its_caller_keeps_its_slot(
    rig: Rig, doors: Doors, crowd: Crowd
) -> None:
    first = crowd.ask("one_write", 1)
    wait_until(lambda: doors.asked == [1], "the server has it")
    first.close()
    wait_until(lambda: "abandoned" in rig.notes(), "the proxy has noticed")
    second = crowd.ask("one", 2)
    with rig.client() as other:
        other.ask("POST", rig.path, call("else", {}, request_id=3), headers=MCP_HEADERS)
        wait_until(lambda: doors.asked == [1, 3], "another tool is at the server")
        doors.let_go(3)
        assert second.response("POST").status == 200
    assert doors.asked == [1, 3, 2]


def test_another_attempt_keeps_the_slot(rig: Rig, doors: Doors, crowd: Crowd) -> None:
    doors.fails = 1
    first, second = crowd.ask("one_again", 1), crowd.ask("one", 2)
    doors.let_go(3)
    assert [client.response("POST").status for client in (first, second)] == [200, 200]
    assert (doors.asked[0], doors.asked[2], len(doors.asked)) == (1, 2, 3)


def test_plain_calls_wait_as_well(rig: Rig, doors: Doors, crowd: Crowd) -> None:
    path = f"/s/{rig.session}/one-tool"
    crowd.ask("one", 1)
    wait_until(lambda: doors.asked == [1], "the server has it")
    with rig.client() as client:
        client.ask("POST", path, b'{"id": 2}')
        wait_until(lambda: len(rig.rows()) == 2, "the call is recorded")
        assert doors.asked == [1]
        doors.let_go(2)
        assert client.response("POST").status == 200
    assert doors.asked == [1, 2]


# -- through a pipe ------------------------------------------------------------------------


@pytest.fixture
def wrap(tmp_path: Path) -> Iterator[Wrap]:
    with wrapping(tmp_path, rules=RULES) as made:
        initialize(made)
        yield made


@pytest.mark.promise("WAIT-7")
def test_in_a_pipe_later_messages_do_not_wait(wrap: Wrap) -> None:
    wrap.send(*(call("one", request_id=n) for n in (1, 2, 3)), call("else", request_id=4))
    first, other = wrap.server.request(), wrap.server.request()
    assert (first["id"], other["id"]) == (1, 4)
    wrap.server.answer(first)
    for number in (2, 3):
        asked = wrap.server.request()
        wrap.server.answer(asked)
        assert asked["id"] == number
    wrap.server.answer(other)
    assert [wrap.stdout.json()["id"] for _ in range(4)] == [1, 2, 3, 4]
    assert [row.status for row in wrap.rows()] == ["ok"] * 4


def test_in_a_pipe_a_queued_call_that_is_cancelled_was_never_sent(wrap: Wrap) -> None:
    first = wrap.asked(call("one", request_id=1))
    cancel = message("notifications/cancelled", {"requestId": 2}, request_id=None)
    wrap.send(call("one", request_id=2), cancel, call("else", request_id=4))
    other = wrap.server.request()
    assert other["id"] == 4  # the cancel before it was read, and not passed on
    wrap.send(call("one", request_id=3))
    wrap.server.answer(first)
    assert wrap.stdout.json()["id"] == 1
    wrap.server.answer(wrap.server.request())
    assert wrap.stdout.json()["id"] == 3
    wrap.server.answer(other)
    assert wrap.stdout.json()["id"] == 4
    row = wrap.rows()[1]
    assert (row.kind, row.executed, row.phase) == ("cancelled_by_caller", "no", "queued")


def test_in_a_pipe_a_call_that_timed_out_frees_its_slot(wrap: Wrap) -> None:
    first = wrap.asked(call("one_total", request_id=1))
    wrap.send(call("one", request_id=2))
    assert outcome(wrap.stdout.json())["kind"] == "deadline_exhausted"
    assert wrap.server.request()["method"] == "notifications/cancelled"
    wrap.server.answer(wrap.server.request())
    assert (first["id"], wrap.stdout.json()["id"]) == (1, 2)


def test_in_a_pipe_a_call_queued_too_long_gets_an_error(wrap: Wrap) -> None:
    first = wrap.asked(call("one", request_id=1))
    wrap.send(call("one_soon", request_id=2))
    assert outcome(wrap.stdout.json())["kind"] == "queue_timeout"
    wrap.server.answer(first)
    assert wrap.stdout.json()["id"] == 1


def test_in_a_pipe_queued_calls_are_sent_before_the_client_counts_as_gone(wrap: Wrap) -> None:
    wrap.send(call("one", request_id=1), call("one", request_id=2))
    first = wrap.server.request()
    wrap.stdin.close()
    wrap.server.answer(first)
    wrap.server.answer(wrap.server.request())
    assert [wrap.stdout.json()["id"] for _ in range(2)] == [1, 2]
    assert wrap.server.stdin.rest() == b""
    wrap.server.exit()


def test_in_a_pipe_a_queued_call_gets_an_error_when_the_server_ends(wrap: Wrap) -> None:
    wrap.asked(call("one", request_id=1))
    wrap.send(call("one", request_id=2), call("one", request_id=3), call("else", request_id=4))
    wrap.server.request()
    wrap.server.exit(3)
    said = {made["id"]: outcome(made) for made in (wrap.stdout.json() for _ in range(4))}
    assert {number: one["executed"] for number, one in said.items()} == {
        1: "maybe",
        2: "no",
        3: "no",
        4: "maybe",
    }
