"""The official Python client gives a slow call up, as it does by itself, and asks again: how often the
tool runs is counted on the disk of the server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import TextContent

from kit.proxy import Proxy, running, until
from kit.relay import Relay, relay
from kit.slow_server import SlowServer, slow_server
from turnlog.sessions.rows import Row

RULES = """
rules:
  - {name: an order is placed once, match: {tool: order}, effect: write}
"""
MODES = {"handshake": "legacy", "stateless": "auto"}
JOINED_AFTER = "300ms"
SOON = 0.5
"""s: the client's own patience, shorter than the tool takes."""


@asynccontextmanager
async def scene(
    folder: Path, join_after: str = JOINED_AFTER
) -> AsyncGenerator[tuple[SlowServer, Proxy]]:
    (folder / "rules.yaml").write_text(RULES)
    settings = {"rules": ["rules.yaml"], "never_twice": {"join_after": join_after}}
    with slow_server(folder) as server:
        async with running(folder, server.url, settings=settings) as proxy:
            yield server, proxy


def client(proxy: Proxy | Relay, mode: str, session: str = "one") -> Client:
    """Return a client whose session has a name."""
    return Client(proxy.url.replace("/mcp", f"/s/{session}/mcp"), mode=MODES[mode])


def text(result: Any) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def given_up(agent: Client, item: str) -> None:
    """Ask, and give up as soon as the client does."""
    with pytest.raises(MCPError):
        await agent.call_tool("order", {"item": item}, read_timeout_seconds=SOON)


async def ended(proxy: Proxy, count: int) -> list[Row]:
    """Wait until there are so many rows, and all have ended."""

    def look() -> list[Row] | None:
        rows = proxy.rows()
        over = len(rows) >= count and all(row.status != "pending" for row in rows)
        return rows if over else None

    return await until(look, f"{count} rows")


async def test_a_call_closed_and_repeated_at_once_runs_once(
    tmp_path: Path,
) -> None:
    async with (
        scene(tmp_path) as (server, proxy),
        relay(proxy.url) as net,
        client(net, "stateless") as agent,
    ):
        server.hold()
        await given_up(agent, "tea")
        async with asyncio.TaskGroup() as asking:
            again = asking.create_task(agent.call_tool("order", {"item": "tea"}))
            await until(lambda: net.calls > 1 or None, "it is asked again")
            server.let_go()
        assert text(again.result()) == "done tea"
        first, second = await ended(proxy, 2)
        assert server.runs == ["tea"]
    assert first.status == "ok"
    assert (second.status, second.executed) == ("replayed", "yes")


async def test_a_clients_cancel_is_forwarded_and_its_repeat_is_flagged(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as (server, proxy), client(proxy, "handshake") as agent:
        server.hold()
        await given_up(agent, "tea")
        async with asyncio.TaskGroup() as asking:
            again = asking.create_task(agent.call_tool("order", {"item": "tea"}))
            await until(lambda: len(server.runs) > 1 or None, "the tool runs again")
            server.let_go()
        assert text(again.result()) == "done tea"
        rows = await ended(proxy, 2)
        assert server.runs == ["tea", "tea"]
    assert "repeat_of_unknown" in rows[-1].flags


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_that_arrived_is_no_reason_not_to_run_again(
    tmp_path: Path, mode: str
) -> None:
    async with scene(tmp_path) as (server, proxy), client(proxy, mode) as agent:
        for _ in range(3):
            assert text(await agent.call_tool("order", {"item": "tea"})) == "done tea"
        assert server.runs == ["tea"] * 3


@pytest.mark.parametrize("mode", MODES)
async def test_a_key_makes_one_call_of_several(tmp_path: Path, mode: str) -> None:
    async with scene(tmp_path) as (server, proxy), client(proxy, mode) as agent:
        meta: Any = {"turnlog/key": "order 17"}
        for _ in range(3):
            answered = await agent.call_tool("order", {"item": "tea"}, meta=meta)
            assert text(answered) == "done tea"
        assert server.runs == ["tea"]


@pytest.mark.parametrize("mode", MODES)
async def test_calls_made_together_and_those_of_others_all_run(tmp_path: Path, mode: str) -> None:
    async with (
        # What counts as together is not what the test is about: a busy machine sends them seconds apart.
        scene(tmp_path, join_after="1h") as (server, proxy),
        client(proxy, mode) as agent,
        client(proxy, mode, "two") as other,
    ):
        calls = [one.call_tool("order", {"item": "tea"}) for one in (agent, agent, agent, other)]
        assert [text(result) for result in await asyncio.gather(*calls)] == ["done tea"] * 4
        assert server.runs == ["tea"] * 4


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_returns_under_another_name_gets_the_answer_that_it_missed(
    tmp_path: Path, mode: str
) -> None:
    async with scene(tmp_path) as (server, proxy):
        server.hold()
        async with client(proxy, mode) as agent, asyncio.TaskGroup() as asking:
            waiting = asking.create_task(agent.call_tool("order", {"item": "tea"}))
            await until(lambda: server.runs or None, "the tool runs")
            waiting.cancel()
        server.let_go()
        async with client(proxy, mode) as agent:
            assert text(await agent.call_tool("order", {"item": "tea"})) == "done tea"
        await ended(proxy, 2)
        runs, rows = server.runs, proxy.rows()
    if len(runs) > 1:
        assert "repeat_of_unknown" in rows[-1].flags
    else:
        assert rows[-1].status == "replayed"
