"""An answer counts as delivered only if its agent was still there once it was written.

Each test lets the agent go away in the instant before turnlog writes to it, and asks the same again.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.beside import proxy_beside, session_notes, session_rows
from kit.clients import BOUND, MCP_HEADERS, Client, Response, call, message, wait_until
from kit.proxy import Proxy
from kit.stalls import StopPoint
from kit.upstreams import Peer, RawUpstream, chunked, event, ok, text_result
from turnlog.core.kinds import Status

RULES = """
rules:
  - {match: {tool: "pay*"}, effect: irreversible}
"""
NOTHING: dict[str, object] = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
SIDE = "turnlog.transport.http_server:Downstream."
SESSION = ("Mcp-Session-Id", "m")


class Counting:
    """Count calls, and answer each with its number once it is let go: as JSON, or as an event."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = threading.Event()
        self.as_event = False
        self.ends = True
        """Whether the stream ends behind the answer."""

    def __call__(self, peer: Peer) -> None:
        said = json.loads(peer.read().body)
        if "id" not in said:
            peer.send(ok(b"", status="202 Accepted"))
            return
        self.asked += 1
        result = text_result(said["id"], f"done {self.asked}")
        if self.as_event:
            peer.start_events()
            peer.send_event(NOTHING)
            self.go.wait()
            peer.send(chunked(event(result)) + (b"0\r\n\r\n" if self.ends else b""))
            peer.wait_for_hang_up()
        else:
            self.go.wait()
            peer.send_json(result)


class Resumable(Counting):
    """Break each call off behind an event with an id, and send its answer on the stream that resumes it."""

    def __call__(self, peer: Peer) -> None:
        if peer.request.method == b"POST":
            said = json.loads(peer.read().body)
            self.asked += 1
            self._result = text_result(said["id"], f"done {self.asked}")
            peer.start_events()
            peer.send_event(NOTHING, event_id="1")
            peer.end()
        else:
            peer.start_events()
            peer.send_event(NOTHING, event_id="2")
            self.go.wait()
            peer.send_event(self._result, event_id="3")
            peer.wait_for_hang_up()


class Scene:
    """A server, and two proxies on one store before it; one of them can be stopped."""

    def __init__(self, folder: Path, stack: ExitStack, stops_at: str, counting: Counting) -> None:
        (folder / "rules.yaml").write_text(RULES)
        self.counting = counting
        stack.callback(self.counting.go.set)
        self.upstream = stack.enter_context(RawUpstream(self.counting))
        self.stop_point = StopPoint(
            stops_at if ":" in stops_at else SIDE + stops_at, folder / "armed"
        )
        self._stack = stack
        self._folder = folder
        self.one = self._proxy(self.stop_point.environ)
        self.other = self._proxy({})

    def _proxy(self, environ: dict[str, str]) -> Proxy:
        settings = {"rules": ["rules.yaml"]}
        started = proxy_beside(self._folder, self.upstream.url, settings=settings, environ=environ)
        return self._stack.enter_context(started)

    def ask(self, proxy: Proxy, body: bytes, *headers: tuple[str, str]) -> Client:
        """Ask on a connection of its own, and do not wait for the answer. Without a body resume a stream."""
        client = self._stack.enter_context(Client(proxy.url))
        method = "POST" if body else "GET"
        client.ask(method, "/s/one/mcp", body, headers=(*MCP_HEADERS, SESSION, *headers))
        return client

    def lose(self) -> None:
        """Make a call whose agent leaves before its answer comes."""
        first = self.ask(self.one, call("pay", request_id=1))
        wait_until(lambda: self.counting.asked == 1, "the server has the call")
        first.close()
        wait_until(lambda: "abandoned" in self.notes(), "it is noted")
        self.counting.go.set()
        self.wait_until_ended(1)

    def notes(self) -> list[str]:
        """Return the kinds of all notes, oldest first."""
        return session_notes(self.one.data, "one")

    def wait_until_ended(self, count: int) -> None:
        """Wait until there are `count` rows, and none is pending."""

        def is_over() -> bool:
            rows = session_rows(self.one.data, "one")
            return len(rows) == count and all(row.status is not Status.PENDING for row in rows)

        wait_until(is_over, f"{count} calls end")


Begin = Callable[..., Scene]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as stack:

        def scene(stops_at: str, counting: Counting | None = None) -> Scene:
            return Scene(tmp_path, stack, stops_at, counting or Counting())

        yield scene


def text(answer: Response) -> str:
    return str(answer.json()["result"]["content"][0]["text"])


@pytest.mark.promise("TWICE-22")
@pytest.mark.parametrize("again", ["same", "other"])
def test_an_answer_given_again_to_an_agent_that_has_just_left_is_given_once_more(
    begin: Begin, again: str
) -> None:
    scene = begin("answer")
    scene.lose()
    scene.stop_point.arm()
    second = scene.ask(scene.one, call("pay", request_id=2))
    with scene.stop_point.stopped(scene.one.process.pid):
        second.close()
    if again == "other":
        # At its end a proxy has noted what it knows.
        scene.one.process.terminate()
        assert scene.one.process.wait(BOUND) == 0
    proxy = scene.one if again == "same" else scene.other
    assert text(scene.ask(proxy, call("pay", request_id=3)).response("POST")) == "done 1"
    assert scene.counting.asked == 1


@pytest.mark.promise("TWICE-22")
def test_an_answer_that_comes_as_an_event_behind_a_cancel_is_not_delivered(begin: Begin) -> None:
    scene = begin("answer")
    scene.counting.as_event = True
    first = scene.ask(scene.one, call("pay", request_id=1))
    wait_until(lambda: scene.counting.asked == 1, "the server has the call")
    cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
    assert scene.ask(scene.one, cancel).response("POST").status == 202
    scene.counting.go.set()
    assert b"done 1" in first.response("POST").body
    again = scene.ask(scene.one, call("pay", request_id=2)).response("POST")
    assert b"done 1" in again.body
    assert scene.counting.asked == 1


@pytest.mark.promise("TWICE-22")
def test_an_answer_as_an_event_does_not_reach_an_agent_that_has_just_left(begin: Begin) -> None:
    scene = begin("write")
    scene.counting.as_event = True
    first = scene.ask(scene.one, call("pay", request_id=1))
    first.until(b"notifications/message")
    scene.stop_point.arm()
    scene.counting.go.set()
    with scene.stop_point.stopped(scene.one.process.pid):
        first.close()
    again = scene.ask(scene.one, call("pay", request_id=2)).response("POST")
    assert b"done 1" in again.body
    assert scene.counting.asked == 1


def test_an_agent_that_closes_once_it_has_read_the_event_has_its_answer(begin: Begin) -> None:
    scene = begin("is_taken")
    scene.counting.as_event, scene.counting.ends = True, False
    scene.counting.go.set()
    scene.stop_point.arm()
    first = scene.ask(scene.one, call("pay", request_id=1))
    first.until(b"done 1")
    with scene.stop_point.stopped(scene.one.process.pid):
        first.close()
    scene.ask(scene.one, call("pay", request_id=2)).until(b"done 2")
    assert scene.counting.asked == 2


@pytest.mark.promise("TWICE-22")
@pytest.mark.parametrize("leaves", [True, False])
def test_an_answer_on_another_stream_is_delivered_where_its_agent_is_there_for_it(
    begin: Begin, leaves: bool
) -> None:
    scene = begin("write", Resumable())
    scene.ask(scene.one, call("pay", request_id=1)).until(b"0\r\n\r\n")
    stream = scene.ask(scene.one, b"", ("Last-Event-ID", "1"))
    stream.until(b"notifications/message")
    if leaves:
        scene.stop_point.arm()
    scene.counting.go.set()
    if leaves:
        with scene.stop_point.stopped(scene.one.process.pid):
            stream.close()
    else:
        stream.until(b"done 1")
    scene.ask(scene.one, call("pay", request_id=2))
    if leaves:
        scene.wait_until_ended(2)
    else:
        wait_until(lambda: scene.counting.asked == 2, "it is another call")
    assert scene.counting.asked == (1 if leaves else 2)


def test_an_agent_that_closes_once_it_has_read_an_answer_given_again_has_it(begin: Begin) -> None:
    scene = begin("is_taken")
    scene.lose()
    scene.stop_point.arm()
    second = scene.ask(scene.one, call("pay", request_id=2))
    second.until(b"done 1")
    with scene.stop_point.stopped(scene.one.process.pid):
        second.close()
    assert text(scene.ask(scene.one, call("pay", request_id=3)).response("POST")) == "done 2"
