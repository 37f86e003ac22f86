"""An agent's own session as tools at `/turnlog/mcp`, with the official client and without."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp
import mcp_types
import pytest
from mcp.client.streamable_http import streamable_http_client

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside, ruled, session_notes, session_rows
from kit.clients import MCP_HEADERS, Response, call, message
from kit.proxy import running
from kit.upstreams import Peer, RawUpstream, answer, ok, text_result
from turnlog.client import ErrorKind, Retry, outcome_of

Mode = str
MODES = ("2026-07-28", "legacy")
META = "io.modelcontextprotocol/"
STATELESS = (
    *MCP_HEADERS,
    ("MCP-Protocol-Version", "2026-07-28"),
    ("Mcp-Method", "tools/call"),
)
READS = """\
rules:
  - name: reads
    match: {tool: read_*}
    effect: read
"""
IMAGE = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}


def origin(rig: Rig) -> str:
    return rig.proxy.url.rpartition("/")[0]


@asynccontextmanager
async def agent(
    url: str, mode: Mode, *, name: str = "mcp", **headers: str
) -> AsyncGenerator[mcp.Client]:
    """Connect the official client, under a name and with headers."""
    info = mcp_types.Implementation(name=name, version="1")
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(url, http_client=http)
        async with mcp.Client(transport, mode=mode, client_info=info) as client:
            yield client


async def used(client: mcp.Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Use a tool; its structured content, which the client has held against the schema."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


async def failure(client: mcp.Client, tool: str, **arguments: Any) -> str:
    """Use a tool that must say in a sentence what is wrong."""
    result = await client.call_tool(tool, arguments)
    (block,) = result.content
    assert (result.is_error, result.structured_content) == (True, None)
    assert isinstance(block, mcp_types.TextContent)
    return block.text


@pytest.mark.promise("AGENT-1")
@pytest.mark.parametrize("mode", MODES)
async def test_the_tools_say_what_they_do(rig: Rig, mode: Mode) -> None:
    async with agent(f"{origin(rig)}/turnlog/mcp", mode) as client:
        tools = (await client.list_tools()).tools
    hints = {tool.name: tool.annotations and tool.annotations.read_only_hint for tool in tools}
    assert hints == {
        "state": True, "log": True, "diff": True, "dangling": True, "note": False, "recall": False,
        "effect": False,
        "pause": False, "resume": False,
    }  # fmt: skip
    assert all(tool.output_schema and tool.description and tool.title for tool in tools)


@pytest.mark.promise("AGENT-1")
@pytest.mark.parametrize("asked", ["agent", "operator"])
def test_a_read_is_seen_as_soon_as_its_answer_is_there(tmp_path: Path, asked: str) -> None:
    with ruled(tmp_path, READS) as rig:
        rig.session = "reads"
        key = (rig.proxy.data / "token").read_text().strip()
        with rig.client() as agent, rig.client() as own:
            for count in range(1, 31):
                agent.request("POST", rig.path, call(f"read_{count}"), headers=MCP_HEADERS)
                if asked == "agent":
                    wanted = call("log", {"limit": 1})
                    path = "/s/reads/turnlog/mcp"
                    said = own.request("POST", path, wanted, headers=MCP_HEADERS).json()
                    (row,) = json.loads(said["result"]["content"][0]["text"])["items"]
                else:
                    path = "/turnlog/api/v1/sessions/reads/log?limit=1"
                    headers = (("Authorization", f"Bearer {key}"),)
                    (row,) = own.request("GET", path, headers=headers).json()["items"]
                assert (row["tool"], row["status"]) == (f"read_{count}", "ok")


@pytest.mark.promise("AGENT-2")
@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_finds_and_recalls_what_it_lost(rig: Rig, mode: Mode) -> None:
    rig.post(call("read_file", {"path": "/a"}))
    (row,) = rig.rows()
    async with agent(f"{origin(rig)}/s/{rig.session}/turnlog/mcp", mode) as client:
        (seen,) = (await used(client, "log"))["items"]
        assert (seen["call"], seen["tool"], seen["status"]) == (row.call, "read_file", "ok")
        evict = {"kind": "evict", "keys": [row.call], "reason": "budget"}
        await used(client, "note", note=evict)
        lost = await used(client, "state", field="evicted_keys")
        assert lost["state"]["evicted_keys"] == {
            row.call: {"seq": 3, "reason": "budget", "retrievable": True}
        }
        back = await client.call_tool("recall", {"key": row.call})
        assert back.content == [mcp_types.TextContent(text="done")]
        assert back.structured_content["text"] == "done"
        found = await used(client, "state", field="evicted_keys")
        assert found["state"]["evicted_keys"] == {}
    assert rig.notes() == ["evict", "recall"]
    # Nothing of all this is a call.
    assert rig.rows() == [row]


@pytest.mark.promise("AGENT-1")
@pytest.mark.parametrize("mode", MODES)
async def test_two_agents_at_once_see_each_its_own(rig: Rig, mode: Mode) -> None:
    names = [f"{rig.session}-{one}" for one in ("a", "b")]
    with rig.client() as raw:
        for name in names:
            raw.request("POST", f"/s/{name}/mcp", call(f"tool-{name}"), headers=MCP_HEADERS)
    one, other = (f"{origin(rig)}/s/{name}/turnlog/mcp" for name in names)
    async with agent(one, mode) as first, agent(other, mode) as second:
        for client, name in ((first, names[0]), (second, names[1])) * 2:
            await used(client, "note", note={"kind": "decision", "text": f"of {name}"})
            seen = await used(client, "state")
            assert list(seen["state"]["tools_used"]) == [f"default.tool-{name}"]
            noted = {decided["text"] for decided in seen["state"]["decisions_made"].values()}
            assert noted == {f"of {name}"}
            (row,) = (await used(client, "log"))["items"]
            theirs = session_rows(rig.proxy.data, next(n for n in names if n != name))
            assert row["tool"] == f"tool-{name}"
            said = await failure(client, "recall", key=theirs[0].call)
            assert "is not an ended call of this session" in said
    assert [session_notes(rig.proxy.data, name) for name in names] == [["decision"] * 2] * 2


@pytest.mark.promise("AGENT-1")
@pytest.mark.parametrize("mode", MODES)
async def test_a_session_may_be_named_by_header_or_by_a_vendors_key(rig: Rig, mode: Mode) -> None:
    rig.post(call("read_file"))
    named = {"Turnlog-Session": rig.session}
    async with agent(f"{origin(rig)}/turnlog/mcp", mode, **named) as client:
        (row,) = (await used(client, "log"))["items"]
    assert row["tool"] == "read_file"
    meta: Any = {"openai/session": f"chat-{rig.session}"}
    rig.upstream.requests.clear()
    with rig.client() as raw:
        raw.request("POST", "/mcp", call("search", _meta=meta), headers=MCP_HEADERS)
    async with agent(f"{origin(rig)}/turnlog/mcp", mode) as client:
        result = await client.call_tool("log", {}, meta=meta)
    assert [item["tool"] for item in result.structured_content["items"]] == ["search"]


@pytest.mark.promise("AGENT-1")
@pytest.mark.parametrize("mode", MODES)
async def test_without_a_name_it_is_the_only_session_of_client_and_credential(
    rig: Rig, mode: Mode
) -> None:
    name, own = f"agent-{rig.session}", f"{origin(rig)}/turnlog/mcp"
    key = {"Authorization": f"Bearer of {rig.session}"}

    async def unavailable(client: mcp.Client) -> str:
        result = await client.call_tool("state", {})
        outcome = outcome_of(result)
        assert outcome is not None
        assert (result.is_error, outcome.kind) == (True, ErrorKind.SESSION_UNAVAILABLE)
        assert outcome.retry is Retry.SAFE
        assert isinstance(result.content[0], mcp_types.TextContent)
        return result.content[0].text

    def work(session: str, **more: Any) -> None:
        info = {f"{META}clientInfo": {"name": name, "version": "1"}}
        asked = call("write_file", _meta=info)
        with rig.client() as raw:
            raw.request(
                "POST", f"{session}/mcp", asked, headers=(*MCP_HEADERS, *key.items(), *more.items())
            )

    async with agent(own, mode, name=name, **key) as client:
        assert (await unavailable(client)).startswith("no session of this credential")
        work("")
        state = await used(client, "state", field="tools_used")
        assert list(state["state"]["tools_used"]) == ["default.write_file"]
        noted = await used(client, "note", note={"kind": "turn", "name": "next"})
        assert noted["session"] == state["at"]["session"]
        # Another credential, and another client, have none.
        async with agent(own, mode, name=name) as stranger:
            assert (await unavailable(stranger)).startswith("no session of this credential")
        async with agent(own, mode, name="another", **key) as stranger:
            assert (await unavailable(stranger)).startswith("no session of this credential")
        work(f"/s/second-{rig.session}")
        assert (await unavailable(client)).startswith("2 sessions of this credential")
    # A name leads to no session of another credential.
    async with agent(f"{origin(rig)}/s/second-{rig.session}/turnlog/mcp", mode) as stranger:
        told = await unavailable(stranger)
    assert told.startswith(
        "nothing is recorded yet of the session that you name; call a tool in it"
    )


@pytest.mark.parametrize("mode", MODES)
async def test_a_first_note_opens_a_named_session_that_calls_then_belong_to(
    rig: Rig, mode: Mode
) -> None:
    async with agent(f"{origin(rig)}/s/{rig.session}/turnlog/mcp", mode) as client:
        said = {"kind": "user_input", "text": "find my keys"}
        first = await used(client, "note", note=said, id="said-1")
        again = await used(client, "note", note=said, id="said-1")
        assert (first["known"], again["known"], again["seq"]) == (False, True, first["seq"])
        rig.post(call("read_file"))
        (row,) = (await used(client, "log"))["items"]
    assert row["session"] == first["session"]


@pytest.mark.promise("AGENT-2", "AGENT-4")
async def test_an_incomplete_result_is_not_recalled_and_the_answer_says_why(rig: Rig) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    texts = iter([f"the key is {secret}", "x" * (2 << 20)])

    def script(peer: Peer) -> None:
        asked = peer.read().json()
        peer.send_json(text_result(asked["id"], next(texts)))

    rig.upstream.script = script
    for tool in ("secret", "large"):
        rig.post(call(tool))
    async with agent(f"{origin(rig)}/s/{rig.session}/turnlog/mcp", MODES[0]) as client:
        told = await failure(client, "recall", key="2")
        assert (
            told == "the call '2' was answered, and its secrets were cut out: it is not given back"
        )
        told = await failure(client, "recall", key="4")
        assert told == "the call '4' was answered, and only the first 1047552 bytes were recorded"
    assert rig.notes() == []


@pytest.mark.promise("AGENT-2")
async def test_a_result_that_is_more_than_text_comes_back_as_it_was(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        asked = peer.read().json()
        peer.send_json(
            {"jsonrpc": "2.0", "id": asked["id"], "result": {"content": [IMAGE], "isError": False}}
        )

    rig.upstream.script = script
    rig.post(call("draw"))
    async with agent(f"{origin(rig)}/s/{rig.session}/turnlog/mcp", MODES[0]) as client:
        back = await client.call_tool("recall", {"key": "1"})
    assert back.content == [mcp_types.ImageContent(data="aGVsbG8=", mime_type="image/png")]
    assert json.loads(back.structured_content["text"]) == {"content": [IMAGE], "isError": False}


async def test_state_diff_and_dangling_are_those_of_the_api(rig: Rig) -> None:
    def silent(peer: Peer) -> None:
        peer.read()
        peer.reset()

    rig.post(call("read_file"))
    rig.upstream.script = silent
    rig.post(call("send"))
    token = (rig.proxy.data / "token").read_text().strip()

    def asked(path: str) -> Any:
        target = f"/turnlog/api/v1/sessions/{rig.session}/{path}"
        with rig.client() as raw:
            return raw.request(
                "GET", target, headers=(("Authorization", f"Bearer {token}"),)
            ).json()

    async with agent(f"{origin(rig)}/s/{rig.session}/turnlog/mcp", MODES[0]) as client:
        assert await used(client, "state", at=2) == asked("state?at=2")
        assert await used(client, "diff", seq="1..") == asked("diff?seq=1..")
        assert await used(client, "dangling") == asked("dangling")
        assert await used(client, "log", limit=1) == asked("log?limit=1")


@pytest.mark.promise("AGENT-2")
async def test_a_result_that_is_too_large_to_give_is_not_recalled(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.send_json(text_result(peer.read().json()["id"], "x" * (3 << 20)))

    settings = {"limits": {"record": "8MiB"}}
    with RawUpstream(script) as upstream:
        async with running(tmp_path, upstream.url, settings=settings) as proxy:
            one = Rig(upstream, proxy)
            one.session = "large"
            one.post(call("read_all"))
            async with agent(f"{origin(one)}/s/large/turnlog/mcp", MODES[0]) as client:
                told = await failure(client, "recall", key="2")
            assert one.notes() == []
    assert told.endswith("4194304 are given: ask for less")


def post(rig: Rig, body: bytes, *headers: tuple[str, str], path: str = "/turnlog/mcp") -> Response:
    with rig.client() as raw:
        return raw.request("POST", path, body, headers=(*MCP_HEADERS, *headers))


@pytest.mark.promise("API-1")
def test_a_page_of_another_origin_and_another_host_are_refused(rig: Rig) -> None:
    path = f"/s/{rig.session}/turnlog/mcp"
    assert post(rig, message("ping"), ("Origin", "http://evil.example"), path=path).status == 403
    with rig.client() as raw:
        evil = (*MCP_HEADERS, ("Host", "evil.example"))
        assert raw.request("POST", path, message("ping"), headers=evil).status == 421


def test_the_tools_work_on_after_a_restart(tmp_path: Path) -> None:
    info = {"name": "an agent", "version": "1"}
    begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    with RawUpstream() as upstream:
        with proxy_beside(tmp_path, upstream.url) as proxy:
            first = Rig(upstream, proxy)
            first.fresh()
            session = post(first, message("initialize", begin)).head.one("mcp-session-id") or ""
        with proxy_beside(tmp_path, upstream.url) as proxy:
            second = Rig(upstream, proxy)
            meta = {f"{META}clientInfo": info}
            with second.client() as raw:
                raw.request("POST", "/mcp", call("read_file", _meta=meta), headers=MCP_HEADERS)
            later = (("Mcp-Session-Id", session), ("MCP-Protocol-Version", "2025-11-25"))
            said = post(second, call("log"), *later).json()["result"]["structuredContent"]
    assert [row["tool"] for row in said["items"]] == ["read_file"]


@pytest.mark.promise("SESS-10")
@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_pauses_its_own_session_and_does_not_lift_an_operators_pause(
    rig: Rig, mode: Mode
) -> None:
    rig.upstream.script = answer(ok(json.dumps(text_result(1, "done")).encode()))
    assert b"done" in rig.post(call("read"))
    async with agent(f"{origin(rig)}/s/{rig.session}/turnlog/mcp", mode) as client:
        paused = await used(client, "pause", why="I wait for the user")
        assert (paused["stage"], paused["actor"]) == ("paused", "agent")
        refused = rig.post(call("read"))
        assert b"the session is paused by the agent itself: I wait for the user" in refused
        assert (await used(client, "resume"))["stage"] == "active"
        assert b"done" in rig.post(call("read"))

        pause = ("sessions", "pause", rig.session)
        done = await asyncio.to_thread(turnlog, *pause, data=rig.proxy.data)
        assert done.returncode == 0, done.stderr
        for tool in ("resume", "pause"):
            said = await failure(client, tool)
            assert f"an operator paused the session: the agent cannot {tool} it" in said
        assert (await used(client, "log"))["items"]
    (event, *_) = rig.proxy.told("session.changed")
    assert (event["turnlog.action"], event["turnlog.actor"]) == ("pause", "agent")
