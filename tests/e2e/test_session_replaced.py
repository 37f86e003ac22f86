"""A client whose server broke off begins another protocol session and sends its call again: what is
known of the first one counts for it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from mcp import Client, MCPError

from e2e.stores import turnlog
from kit.beside import Rig, ruled
from kit.clients import MCP_HEADERS, call, message
from kit.upstreams import Peer, text_result
from turnlog.sessions.rows import Row

RULES = """
rules:
  - {match: {tool: "write*"}, effect: write}
  - {match: {tool: "pay*"}, effect: irreversible}
"""


class Flaky:
    """Give out a new protocol session at each handshake; do to each call what `faults` says next."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.ran = 0
        self._sessions = 0

    def __call__(self, peer: Peer) -> None:
        """Answer, or break."""
        request = peer.read()
        if not request.body:
            peer.send(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            return
        asked = json.loads(request.body)
        match asked["method"]:
            case "initialize":
                self._sessions += 1
                result: dict[str, Any] = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "flaky", "version": "1"},
                }
                answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
                named = f"Mcp-Session-Id: session-{id(self)}-{self._sessions}\r\n"
                peer.send_json(answer, headers=named)
            case "tools/list":
                tools: dict[str, Any] = {
                    "jsonrpc": "2.0",
                    "id": asked["id"],
                    "result": {"tools": []},
                }
                peer.send_json(tools)
            case "tools/call":
                self._run(peer, asked)
            case _:
                peer.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")

    def _run(self, peer: Peer, asked: dict[str, object]) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "404":
            peer.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        self.ran += 1
        if fault == "502":
            peer.send(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        elif fault == "reset":
            peer.reset()
        else:
            peer.send_json(text_result(asked["id"], f"done {self.ran}"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


@pytest.fixture
def flaky(rig: Rig) -> Flaky:
    script = rig.upstream.script = Flaky()
    return script


def begun(rig: Rig, *, name: str = "") -> tuple[str, str]:
    """Begin a protocol session as a client of this test's own; return its header."""
    info = {"name": name or f"agent of {rig.session}", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
    with rig.client() as client:
        hello = client.request("POST", "/mcp", message("initialize", params), headers=MCP_HEADERS)
    return "Mcp-Session-Id", hello.head.one("mcp-session-id") or ""


STAYING = ExitStack()
"""Connections that stay open for the whole test: an answer counts as taken if its agent is still there."""


@pytest.fixture(autouse=True)
def agents_stay() -> Iterator[None]:
    with STAYING:
        yield


def asked(rig: Rig, session: tuple[str, str], tool: str) -> str:
    client = STAYING.enter_context(rig.client())
    body = call(tool, {"by": rig.session})
    return client.request("POST", "/mcp", body, headers=(*MCP_HEADERS, session)).body.decode()


def rows(rig: Rig, tool: str) -> list[Row]:
    return [row for row in rig.proxy.rows() if row.tool == tool]


def test_a_repeat_in_another_session_says_that_it_may_be_one(rig: Rig, flaky: Flaky) -> None:
    flaky.faults = ["reset"]
    asked(rig, begun(rig), "write")
    assert "done 2" in asked(rig, begun(rig), "write")
    first, second = rows(rig, "write")
    assert first.session != second.session
    assert set(second.flags) == {"session_replaced", "repeat_of_unknown"}


@pytest.mark.promise("TWICE-25")
def test_a_guarded_call_is_executed_once_across_a_replaced_session(rig: Rig, flaky: Flaky) -> None:
    flaky.faults = ["reset"]
    asked(rig, begun(rig), "pay once")
    second = begun(rig)
    for _ in range(2):
        assert "nobody knows" in asked(rig, second, "pay once")
    assert flaky.ran == 1
    assert [row.kind for row in rows(rig, "pay once")][1:] == ["outcome_unknown"] * 2


def test_a_session_lost_at_a_gateway_can_be_replaced(rig: Rig, flaky: Flaky) -> None:
    flaky.faults = ["502"]
    asked(rig, begun(rig), "write behind a gateway")
    asked(rig, begun(rig), "write behind a gateway")
    assert "session_replaced" in rows(rig, "write behind a gateway")[1].flags


def test_a_session_says_which_one_it_replaces(rig: Rig, flaky: Flaky) -> None:
    flaky.faults = ["reset"]
    asked(rig, begun(rig), "write and open")
    asked(rig, begun(rig), "look and open")
    (first,), (second,) = rows(rig, "write and open"), rows(rig, "look and open")
    opened = turnlog("show", f"{second.session}:0", "--json", data=rig.proxy.data).stdout
    assert f'"replaces":"{first.session}"' in opened.replace(" ", "")


def test_a_call_refused_for_a_lost_session_did_not_run_and_is_made_again(
    rig: Rig, flaky: Flaky
) -> None:
    flaky.faults = ["404"]
    asked(rig, begun(rig), "pay after 404")
    assert "done 1" in asked(rig, begun(rig), "pay after 404")
    assert rows(rig, "pay after 404")[1].flags == ["session_replaced"]


def test_a_broken_call_is_found_even_after_its_session_was_lost(rig: Rig, flaky: Flaky) -> None:
    first = begun(rig)
    flaky.faults = ["reset", "404"]
    asked(rig, first, "write twice broken")
    asked(rig, first, "write twice broken")
    assert "done 2" in asked(rig, begun(rig), "write twice broken")
    assert set(rows(rig, "write twice broken")[2].flags) == {
        "session_replaced",
        "repeat_of_unknown",
    }


@pytest.mark.promise("TWICE-25")
@pytest.mark.parametrize("how", ["another client", "used again", "two newcomers", "no name"])
def test_a_session_is_not_taken_over_if_it_may_belong_to_another_caller(
    rig: Rig, flaky: Flaky, how: str
) -> None:
    tool, first = f"write, {how}", begun(rig)
    flaky.faults = ["reset"]
    asked(rig, first, tool)
    match how:
        case "another client":
            second = begun(rig, name="somebody else")
        case "used again":
            asked(rig, first, "look")
            second = begun(rig)
        case "two newcomers":
            second = begun(rig)
            begun(rig)
            assert rig.proxy.told("session.uncovered")[-1]["turnlog.reason"] == "ambiguous"
        case _:
            second = begun(rig, name=" ")
    assert "done" in asked(rig, second, tool)
    assert rows(rig, tool)[1].flags == []


async def test_the_official_client_that_reconnects_gets_what_is_known_of_its_call(
    rig: Rig, flaky: Flaky
) -> None:
    async def tried() -> str:
        async with Client(rig.proxy.url, mode="legacy") as agent:
            result = await agent.call_tool("pay", {"order": 7})
            return str(result.content[0])

    flaky.faults = ["reset"]
    try:
        said = await tried()
        assert "connection" in said
    except (MCPError, ExceptionGroup):
        pass  # it depends on the client what it makes of a broken connection
    assert "nobody knows" in await tried()
    assert flaky.ran == 1
    first, second = rows(rig, "pay")
    assert first.session != second.session
    assert (second.kind, second.flags) == ("outcome_unknown", ["session_replaced"])
