"""`/turnlog/mcp` as the application answers it: all revisions of MCP, and invalid requests."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.clients import call, message
from kit.pages import Answered, Connect, Pages, own_pages
from turnlog.core.identity import CallerEvidence

META = "io.modelcontextprotocol/"
STATELESS = (("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"))
CALLER = CallerEvidence(path_session="trip", connection=1)


@pytest.fixture
async def pages(tmp_path: Path, aiohttp_client: Connect) -> AsyncGenerator[Pages]:
    async with own_pages(tmp_path, aiohttp_client) as found:
        yield found


async def post(pages: Pages, body: bytes, *headers: tuple[str, str]) -> Answered:
    """Post a message in the session `trip`."""
    return await pages.ask("/s/trip/turnlog/mcp", "POST", body, headers=headers, caller=CALLER)


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("log", {"nope": 1}, "invalid arguments: unknown key 'nope', use one of: after, all, around, before, cursor, error, field, flag, input, kind, limit, order, path, server, since, tool, trace, turns, until"),
        ("log", {"turns": "x"}, "turns: 'x' is not a range of turns, write 3..7, -5.. or 4"),
        ("state", {"at": 99}, "the session has no commit 99, its newest is 2"),
        ("diff", {"other": "trip"}, "invalid arguments: unknown key 'other', use one of: all, seq, turns"),
        ("note", {"note": {"kind": "turn", "nam": "x"}}, "invalid arguments: a note of kind 'turn' has no 'nam'"),
        ("note", {"note": {"kind": "budget", "calls": 9}}, "invalid arguments: 'note.kind' cannot be 'budget', use one of: decision, evict, fact, turn, user_input"),
        ("note", {"note": {"kind": "evict", "keys": ["1"], "reason": "full"}}, "invalid arguments: 'note.reason' cannot be 'full', use one of: budget, client_edit, compaction, ttl"),
        ("note", {"kind": "decision", "text": "x"}, "invalid arguments: unknown key 'kind', it belongs under 'note'"),
        ("note", {"note": "x"}, "invalid arguments: 'note' must be a mapping, not text; write a mapping with the key 'kind', one of: decision, evict, fact, turn, user_input"),
        ("note", {"note": {"kind": "effect"}}, "invalid arguments: 'note.kind' cannot be 'effect', use one of: decision, evict, fact, turn, user_input"),
        ("log", {"limit": 0}, "invalid arguments: 'limit' must be at least 1"),
        ("log", {"error": "bla"}, "invalid arguments: 'error' cannot be 'bla', use one of: auth, blocked, cancelled, connection, invalid, malformed_result, null_result, rate_limited, session, timeout, tool_error, unknown, unverified"),
        ("log", {"flag": "emtpy"}, "invalid arguments: 'flag' cannot be 'emtpy', did you mean 'empty'?"),
        ("recall", {"key": "read_file"}, "'read_file' is not an ended call of this session: give its id or the seq of its row"),
        ("effect", {"call": "abcdef12", "choice": "redo"}, "no call begins with 'abcdef12', and no rewind or fork here has left one behind; the tool 'log' names them"),
    ],
)  # fmt: skip
async def test_wrong_use_is_reported_in_a_sentence(
    pages: Pages, tool: str, arguments: dict[str, Any], told: str
) -> None:
    await pages.call("read_file")
    result = (await post(pages, call(tool, arguments))).json()["result"]
    assert (result["isError"], result["content"][0]["text"]) == (True, told)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{", (), 400, -32700),
        (b"\xff\xfe", (), 400, -32700),
        (b"7", (), 400, -32600),
        (b'{"jsonrpc":"2.0","id":1}', (), 400, -32600),
        (b'{"id":1,"method":"ping"}', (), 200, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', (), 200, -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', (), 200, -32600),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', (), 200, -32600),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', (("MCP-Protocol-Version", "2026-07-28"),), 400, -32602),
        (b"[]", (), 400, -32600),
        (message("resources/list"), (), 200, -32601),
        (message("server/discover"), (), 200, -32601),
        (call("nothing"), (), 200, -32602),
        (message("tools/call", {}), (), 200, -32602),
        (message("tools/call", {"name": "log", "arguments": [1]}), (), 200, -32602),
        (message("tools/list", {"cursor": "x"}), (), 200, -32602),
        (message("ping"), (("MCP-Protocol-Version", "2025-13-01"),), 400, -32600),
        (message("ping"), (("Mcp-Session-Id", "of another server"),), 404, -32001),
        (b"[" + message("ping") + b"]", (("MCP-Protocol-Version", "2025-06-18"),), 400, -32600),
        (message("ping"), (("MCP-Protocol-Version", "2026-07-28"),), 400, -32602),
        (call("nothing", _meta={f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}),
         (*STATELESS, ("Mcp-Name", "nothing")), 400, -32602),
        (call("log", _meta={f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}),
         (*STATELESS, ("Mcp-Name", "state")), 400, -32020),
        (message("ping", {"_meta": {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}}),
         (("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "ping")), 404, -32601),
    ],
)  # fmt: skip
async def test_a_message_that_is_not_a_request_gets_the_protocols_error(
    pages: Pages, body: bytes, headers: tuple[tuple[str, str], ...], status: int, code: int
) -> None:
    answer = await post(pages, body, *headers)
    said = msgspec.json.decode(answer.body)
    assert (answer.status, said["error"]["code"]) == (status, code), answer.body
    assert answer.headers["Cache-Control"] == "no-store"


async def test_a_message_that_is_not_a_request_gets_no_answer(pages: Pages) -> None:
    notice = message("notifications/initialized", request_id=None)
    reply = b'{"jsonrpc":"2.0","id":1,"result":{}}'
    stateless = ("MCP-Protocol-Version", "2026-07-28")
    for body, headers in ((notice, ()), (reply, ()), (reply, (stateless,))):
        given = await post(pages, body, *headers)
        assert (given.status, given.body) == (202, b"")
        assert "Content-Type" not in given.headers


async def test_a_batch_of_the_revision_that_has_them_is_answered_in_order(pages: Pages) -> None:
    items = [message("ping", request_id="a"), b"1", message("x", request_id=None), call("log")]
    said = (await post(pages, b"[" + b",".join(items) + b"]")).json()
    assert [item.get("id") for item in said] == ["a", None, 1]
    assert said[0]["result"] == {}
    assert said[1]["error"]["code"] == -32600
    assert said[2]["result"]["isError"]
    assert (await post(pages, b"[" + items[2] + b"]")).status == 202


async def test_the_oldest_revision_gets_nothing_that_it_does_not_know(pages: Pages) -> None:
    await pages.call("read_file")
    tools = (await post(pages, message("tools/list"))).json()["result"]["tools"]
    assert not any("outputSchema" in tool for tool in tools)
    result = (await post(pages, call("log"))).json()["result"]
    assert result.keys() == {"content", "isError"}
    assert json.loads(result["content"][0]["text"])["items"][0]["tool"] == "read_file"


@pytest.mark.parametrize(
    ("asked", "agreed"), [("2025-06-18", "2025-06-18"), ("2024-11-05", "2025-11-25")]
)
async def test_a_handshake_yields_a_revision_and_a_session(
    pages: Pages, asked: str, agreed: str
) -> None:
    info = {"name": "händler", "version": "1"}
    said = {"protocolVersion": asked, "capabilities": {}, "clientInfo": info}
    answer = await post(pages, message("initialize", said), ("MCP-Protocol-Version", asked))
    assert answer.json()["result"]["protocolVersion"] == agreed
    later = (("MCP-Protocol-Version", agreed), ("Mcp-Session-Id", answer.headers["Mcp-Session-Id"]))
    assert (await post(pages, message("ping"), *later)).json()["result"] == {}


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_messages_are_posted(pages: Pages, method: str) -> None:
    for path in ("/turnlog/mcp", "/s/trip/turnlog/mcp"):
        given = await pages.ask(path, method)
        assert given.problem(405)["detail"] == "/turnlog/mcp takes POST"
        assert given.headers["Allow"] == "POST"


async def test_a_session_has_no_other_page_of_turnlogs(pages: Pages) -> None:
    for path in ("/s/x/turnlog/health", "/s/x/turnlog", "/s/x/turnlog/mcp/x"):
        (await pages.ask(path)).problem(404)


async def test_a_message_beyond_the_limit_is_refused(pages: Pages) -> None:
    (await post(pages, call("note", {"x": "y" * (256 << 10)}))).problem(413)
