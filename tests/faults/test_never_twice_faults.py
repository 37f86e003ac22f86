"""Every way in which a call can fail, crossed with what it does and how it is spoken: an agent that asks
again and again has the effect once, or the log says why not."""

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.beside import Rig, proxy_beside, session_rows
from kit.clients import BOUND, MCP_HEADERS, Client, ClosedEarlyError, call, wait_until
from kit.faults import (
    CloseAfterRequest,
    CloseInsteadOfReading,
    CutBody,
    CutHead,
    CutStream,
    Garbage,
    ResetAfterRequest,
)
from kit.upstreams import Peer, RawUpstream, Script, chunked, event, ok, text_result
from turnlog.core.kinds import Flag, Status
from turnlog.sessions.rows import Row

RULES = """
rules:
  - {match: {tool: "read*"}, effect: read}
  - {match: {tool: "put*"}, effect: idempotent_write}
  - {match: {tool: "write*"}, effect: write}
  - {match: {tool: "pay*"}, effect: irreversible}
  - {match: {tool: "*_timed"}, timeout: {response: 150ms}}
"""
ERAS = {
    "2025-11-25": (*MCP_HEADERS, ("MCP-Protocol-Version", "2025-11-25")),
    "2026-07-28": (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28")),
}
EFFECTS = ("read", "put", "write", "pay", "some")
Fault = Callable[[Peer], bool]
"""Fails a call; tells whether it was read."""
ASKED = 4
"""How often the agent asks for the same."""


class Hears:
    """Let a fault have the first call; count by its id how often each one was read whole."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.read: Counter[str] = Counter()
        self.cancels = 0
        self._first = True

    def __call__(self, peer: Peer) -> None:
        """Fail, or answer."""
        if self._first:
            self._first = False
            if self.fault(peer):
                self.read["0"] += 1
            return
        asked = json.loads(peer.read().body)
        if "id" not in asked:
            self.cancels += 1
            peer.send(ok(b"", status="202 Accepted"))
            return
        self.read[str(asked["id"])] += 1
        peer.send_json(text_result(asked["id"], "done"))


def reads(script: Script) -> Fault:
    """Return a fault that comes when the request has been read, so that it may have done something."""

    def fault(peer: Peer) -> bool:
        script(peer)
        return True

    return fault


def resets(peer: Peer) -> bool:
    """Close before anything is read."""
    CloseInsteadOfReading()(peer)
    return False


def silent(peer: Peer) -> None:
    """Begin a stream, and say nothing more."""
    peer.read()
    peer.start_events()
    peer.wait_for_hang_up()


def hangs(peer: Peer) -> None:
    """Say nothing at all."""
    peer.read()
    peer.wait_for_hang_up()


def unavailable(peer: Peer) -> None:
    """Answer in the place of a server that is overloaded, or may be."""
    peer.read()
    peer.send(ok(b"try later", media="text/plain", status="503 Service Unavailable"))


def busy(peer: Peer) -> None:
    """Refuse, and say so."""
    peer.read()
    peer.send(ok(b"", status="429 Too Many Requests"))


EVENT = b"event: message\ndata: {}\n\n"
FAULTS: dict[str, Fault] = {
    "closed before it is read": resets,
    "reset": reads(ResetAfterRequest()),
    "closed": reads(CloseAfterRequest()),
    "cut head": reads(CutHead()),
    "cut body": reads(CutBody(b'{"jsonrpc":', 100)),
    "cut stream": reads(CutStream((EVENT,))),
    "garbage": reads(Garbage()),
    "503": reads(unavailable),
    "429": reads(busy),
    "slow head": reads(hangs),
    "silent stream": reads(silent),
}
LIMITED = frozenset({"slow head", "silent stream"})
"""Faults that only a time limit ends."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"]}
    with RawUpstream() as upstream, proxy_beside(folder, upstream.url, settings=settings) as proxy:
        yield Rig(upstream, proxy)


def is_sent(row: Row) -> bool:
    """Tell whether a call was sent itself: one that waits for another has got as far as that one."""
    return row.phase != "queued" and Flag.JOINED not in row.flags


def excused(effect: str, earlier: list[Row], row: Row) -> bool:
    """Tell whether the log says why a call was sent after others that asked the same: nobody names its
    effect, the last one had the server's own answer, none did anything, or the caller insisted."""
    sent = [one for one in earlier if is_sent(one)]
    if effect in {"read", "some"} or Flag.REPEAT_OF_UNKNOWN in row.flags or not sent:
        return True
    answered = sent[-1].status in {Status.OK, Status.ERROR} and sent[-1].executed != "no"
    return answered or all(one.executed == "no" for one in sent)


@pytest.mark.promise("TWICE-29")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_an_agent_that_asks_again_has_the_effect_once_or_the_log_says_why(
    rig: Rig, fault: str, effect: str, era: str
) -> None:
    hears = rig.upstream.script = Hears(FAULTS[fault])
    tool = f"{effect}_timed" if fault in LIMITED else effect
    for number in range(ASKED):
        with rig.client() as client:
            body = call(tool, {"a": 1}, request_id=number)
            try:
                client.request("POST", rig.path, body, headers=ERAS[era])
            except ClosedEarlyError:
                continue  # what the server cut is cut for the agent as well
    rows = rig.ended_rows(ASKED)
    assert len(rows) == ASKED
    assert all(row.status is not Status.PENDING for row in rows)
    assert max(hears.read.values(), default=0) <= 1
    for number, row in enumerate(rows):
        if is_sent(row):
            assert excused(effect, rows[:number], row), rows
    if effect == "pay" and rows[0].status is Status.UNKNOWN:
        assert hears.read.total() <= 1
    if fault in LIMITED and effect in {"read", "some"} and era == "2025-11-25":
        wait_until(lambda: hears.cancels, "the server is told of the time limit")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_server_that_is_not_there_did_nothing_and_is_asked_when_it_is(
    tmp_path: Path, effect: str, era: str
) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"
    with proxy_beside(tmp_path, url, settings={"rules": ["rules.yaml"]}) as proxy:

        def ask() -> bytes:
            with Client(proxy.url) as client:
                body = call(effect, {"a": 1})
                return client.request("POST", "/s/one/mcp", body, headers=ERAS[era]).body

        assert b"connect_failed" in ask()
        with RawUpstream(port=port) as upstream:
            assert b"done" in ask()
            assert len(upstream.requests) == 1
    rows = session_rows(proxy.data, "one")
    assert [(row.kind, row.executed) for row in rows] == [("connect_failed", "no"), (None, "yes")]


class Stages:
    """A server that answers in four steps: it goes on when it is told to."""

    def __init__(self, *, streams: bool) -> None:
        self.asked = 0
        self._streams = streams
        self._steps = threading.Semaphore(0)

    def step(self, times: int) -> None:
        """Let it go on by so many steps."""
        for _ in range(times):
            self._steps.release()

    def __call__(self, peer: Peer) -> None:
        """Answer a call; what is no call is only taken note of."""
        asked = json.loads(peer.read().body)
        if "id" not in asked:
            peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        self.asked += 1
        answer = text_result(asked["id"], "done")
        body = event(answer) if self._streams else json.dumps(answer).encode()
        media = "text/event-stream" if self._streams else "application/json"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nTransfer-Encoding: chunked\r\n\r\n"
        for piece in (head.encode(), chunked(body[:20]), chunked(body[20:]), b"0\r\n\r\n"):
            assert self._steps.acquire(timeout=BOUND)
            peer.send(piece)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("streams", [False, True], ids=["json", "events"])
@pytest.mark.parametrize("steps", range(4), ids=["sent", "head", "body", "response"])
def test_an_agent_that_leaves_at_any_moment_and_asks_again_has_the_effect_once(
    rig: Rig, steps: int, streams: bool, effect: str, era: str
) -> None:
    stages = rig.upstream.script = Stages(streams=streams)
    client = rig.client()
    client.ask("POST", rig.path, call(effect, {"a": 1}), headers=ERAS[era])
    wait_until(lambda: stages.asked == 1, "the server has the call")
    # A response that reaches the agent before it leaves has arrived: here the agent leaves first.
    stages.step(min(steps, 2))
    client.close()
    stages.step(steps - min(steps, 2))
    if effect in {"read", "some"}:  # nobody names it: it ends with its agent
        rig.ended_rows(1)
    else:
        wait_until(lambda: rig.notes() == ["abandoned"], "the proxy has noticed")
    stages.step(100)
    for number in (2, 3):
        with rig.client() as again:
            body = call(effect, {"a": 1}, request_id=number)
            given = again.request("POST", rig.path, body, headers=ERAS[era])
        assert b"done" in given.body
    rows = rig.ended_rows(3)
    if effect in {"read", "some"}:
        assert stages.asked == 3
    else:
        # The answer was lost once, and is given once; then it is a new call.
        assert stages.asked == 2
        assert [row.status for row in rows] == ["ok", "replayed", "ok"]
        wait_until(lambda: rig.notes() == ["abandoned", "delivered", "delivered"], "it is noted")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("effect", ["write", "pay"])
def test_a_stream_that_falls_silent_is_joined_once_its_time_is_over(
    rig: Rig, effect: str, era: str
) -> None:
    rig.upstream.script = Hears(reads(silent))
    with rig.client() as client:
        body = call(f"{effect}_timed", {"a": 1})
        given = client.request("POST", rig.path, body, headers=ERAS[era])
    assert b"response_timeout" in given.body
    with rig.client() as again:
        again.ask("POST", rig.path, call(f"{effect}_timed", {"a": 1}), headers=ERAS[era])
        wait_until(lambda: "abandoned" in rig.notes(), "it is noted")
        assert len(rig.upstream.requests) == 1
