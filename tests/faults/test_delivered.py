"""An answer counts as delivered only if its agent was still there once it was written.

Each test lets the agent go away in the instant before turnlog writes to it, and asks the same again.
"""

import json
import threading
from collections.abc import Iterator
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
BEFORE_AN_ANSWER = "turnlog.transport.http_server:Downstream.answer"


class Counting:
    """Count calls, and answer each with its number once it is let go: as JSON, or as an event."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = threading.Event()
        self.as_event = False

    def __call__(self, peer: Peer) -> None:
        said = json.loads(peer.read().body)
        if "id" not in said:
            peer.send(ok(b"", status="202 Accepted"))
            return
        self.asked += 1
        result = text_result(said["id"], f"done {self.asked}")
        self.go.wait()
        if self.as_event:
            peer.start_events()
            peer.send(chunked(event(result)) + b"0\r\n\r\n")
        else:
            peer.send_json(result)


class Scene:
    """A server, and two proxies on one store before it; one of them can be stopped before it answers."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        (folder / "rules.yaml").write_text(RULES)
        self.counting = Counting()
        stack.callback(self.counting.go.set)
        self.upstream = stack.enter_context(RawUpstream(self.counting))
        self.stop_point = StopPoint(BEFORE_AN_ANSWER, folder / "armed")
        self._stack = stack
        self._folder = folder
        self.one = self._proxy(self.stop_point.environ)
        self.other = self._proxy({})

    def _proxy(self, environ: dict[str, str]) -> Proxy:
        settings = {"rules": ["rules.yaml"]}
        started = proxy_beside(self._folder, self.upstream.url, settings=settings, environ=environ)
        return self._stack.enter_context(started)

    def ask(self, proxy: Proxy, body: bytes) -> Client:
        """Ask on a connection of its own, and do not wait for the answer."""
        client = self._stack.enter_context(Client(proxy.url))
        client.ask("POST", "/s/one/mcp", body, headers=(*MCP_HEADERS, ("Mcp-Session-Id", "m")))
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


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def text(answer: Response) -> str:
    return str(answer.json()["result"]["content"][0]["text"])


@pytest.mark.promise("TWICE-22")
@pytest.mark.parametrize("again", ["same", "other"])
def test_an_answer_given_again_to_an_agent_that_has_just_left_is_given_once_more(
    scene: Scene, again: str
) -> None:
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
def test_an_answer_that_comes_as_an_event_behind_a_cancel_is_not_delivered(scene: Scene) -> None:
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
