"""An answer that a resumed stream brings to another process than the one that began the call."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import proxy_beside, session_notes
from kit.clients import BOUND, MCP_HEADERS, Client, call, message, wait_until
from kit.proxy import Proxy, rows
from kit.upstreams import Peer, RawUpstream, chunked, echo, text_result
from turnlog.sessions.rows import Row

RULES = "rules: [{match: {tool: pay}, effect: write}]"
MINE = (*MCP_HEADERS, ("Mcp-Session-Id", "s1"), ("Authorization", "Bearer mine"))
PATH = "/s/one/mcp"
RESUMING = ("Last-Event-ID", "e1")


class Server:
    """Begins a numbered stream for each call, and answers on the one that resumes it."""

    def __init__(self) -> None:
        self.answers_as: object = 7
        self.calls = 0
        self.over = threading.Event()

    def __call__(self, peer: Peer) -> None:
        """Answer one request."""
        request = peer.read()
        if request.method == b"GET":
            peer.start_events()
            peer.send_event(text_result(self.answers_as, "resumed"), event_id="e2")
            peer.end()
        elif request.json()["method"] == "tools/call" and not self.calls:
            self.calls += 1
            peer.start_events()
            peer.send(chunked(b"id: e1\ndata:\n\n"))
            self.over.wait(BOUND)
            peer.close()
        else:
            self.calls += 1
            echo(peer)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.over.set()


@pytest.fixture
def upstream(server: Server) -> Iterator[RawUpstream]:
    with RawUpstream(server) as one:
        yield one


@pytest.fixture
def start(tmp_path: Path, upstream: RawUpstream) -> Callable[[], Any]:
    (tmp_path / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"]}
    return lambda: proxy_beside(tmp_path, upstream.url, settings=settings)


def begin(proxy: Proxy, tool: str) -> Client:
    """Make a call; return when the agent has the event with an id, and the log knows of it."""
    client = Client(proxy.url)
    client.ask("POST", PATH, call(tool, request_id=7), headers=MINE)
    client.head()
    assert client.event() == b"id: e1\ndata:\n\n"
    noted = partial(session_notes, proxy.data, "one")
    wait_until(lambda: noted()[-1:] == ["resumable"], "the log knows that it may be resumed")
    return client


def listen(proxy: Proxy, *headers: tuple[str, str]) -> bytes:
    with Client(proxy.url) as client:
        return client.request("GET", PATH, headers=headers).body


def row(data: Path, wanted: Callable[[Row], bool]) -> Row:
    """Wait until the first row is as wanted; return it."""
    wait_until(lambda: wanted(rows(data)[0]), "the row")
    return rows(data)[0]


@pytest.mark.parametrize("tool", ["pay", "look"])
def test_after_a_crash_the_answer_is_that_of_the_call_and_late(
    start: Callable[[], Any], server: Server, tool: str
) -> None:
    with start() as proxy, begin(proxy, tool):
        proxy.kill()
    with start() as proxy:
        assert proxy.rows()[0].kind == "outcome_unknown"
        assert b"resumed" in listen(proxy, *MINE, RESUMING)
        ended = row(proxy.data, lambda one: one.status == "ok")
        assert (ended.output_summary, sorted(ended.flags)) == ("resumed", ["late", "resumed"])
        with Client(proxy.url) as client:
            again = client.request("POST", PATH, call(tool, request_id=8), headers=MINE)
        assert b"done" in again.body
    assert server.calls == 2


@pytest.mark.parametrize("before", [0, 1])
def test_after_a_move_the_answer_is_that_of_the_call(
    upstream: RawUpstream, server: Server, tmp_path: Path, before: int
) -> None:
    """The session has come from as many stores before the call."""
    folders = [tmp_path / str(number) for number in range(before + 2)]
    for folder in folders:
        folder.mkdir()
        (folder / "rules.yaml").write_text(RULES)

    def start(folder: Path) -> Any:
        return proxy_beside(folder, upstream.url, settings={"rules": ["rules.yaml"]})

    def move(here: Path, there: Path) -> None:
        bundle = str(there / "one.bundle")
        for done in (
            turnlog("resume", "one", "--bundle", bundle, data=here / "data"),
            turnlog("import", bundle, data=there / "data"),
        ):
            assert done.returncode == 0, done.stderr

    if before:
        server.calls = 1  # it is answered at once
        with start(folders[0]) as proxy, Client(proxy.url) as client:
            client.request("POST", PATH, call("look"), headers=MINE)
        move(*folders[:2])
        server.calls = 0
    with start(folders[-2]) as proxy, begin(proxy, "pay"):
        proxy.kill()
    move(*folders[-2:])
    with start(folders[-1]) as proxy:
        assert b"resumed" in listen(proxy, *MINE, RESUMING)
        wait_until(lambda: proxy.rows()[-1].status == "ok", "the answer is recorded")
        ended = proxy.rows()[-1]
        assert (ended.output_summary, sorted(ended.flags)) == ("resumed", ["late", "resumed"])


def test_a_process_that_lives_on_leaves_the_answer_to_the_one_that_has_it(
    start: Callable[[], Any],
) -> None:
    with start() as first, start() as second:
        begin(first, "look").close()
        assert b"resumed" in listen(second, *MINE, RESUMING)
        row(first.data, lambda one: one.status == "ok" and one.flags == ["resumed"])
    ended = rows(first.data)[0]
    assert (ended.status, ended.output_summary) == ("ok", "resumed")


OTHERS: dict[str, tuple[tuple[tuple[str, str], ...], object]] = {
    "another principal": (
        (*MCP_HEADERS, ("Mcp-Session-Id", "s1"), ("Authorization", "Bearer yours"), RESUMING),
        7,
    ),
    "another session": (
        (*MCP_HEADERS, ("Mcp-Session-Id", "s2"), ("Authorization", "Bearer mine"), RESUMING),
        7,
    ),
    "an id of another type": ((*MINE, RESUMING), "7"),
    "a stream that resumes nothing": (MINE, 7),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_answer_that_may_be_another_calls_is_not_taken(
    start: Callable[[], Any], server: Server, name: str
) -> None:
    headers, server.answers_as = OTHERS[name]
    with start() as proxy, begin(proxy, "pay"):
        proxy.kill()
    with start() as proxy:
        assert b"resumed" in listen(proxy, *headers)
        with Client(proxy.url) as client:
            client.request("POST", PATH, message("ping", request_id=9), headers=MINE)
    assert [one.kind for one in rows(proxy.data)] == ["outcome_unknown"]
