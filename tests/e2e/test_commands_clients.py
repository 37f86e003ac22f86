"""Two clients of the official SDK on one command that they share."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.client.context import ClientRequestContext
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent

from kit import meeting_server
from kit.clients import BOUND
from kit.commands import settings
from kit.proxy import Proxy, running

COMMAND = [sys.executable, str(Path(meeting_server.__file__))]
LEGACY = "legacy"
NEWEST = "2026-07-28"


class Party:
    """A client with a name, and what it saw."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.progress: list[tuple[float, str | None]] = []
        self.asked: list[str] = []

    async def note(self, progress: float, total: float | None, message: str | None) -> None:
        """Take a report of progress."""
        self.progress.append((progress, message))

    async def elicit(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        """Answer a question."""
        self.asked.append(params.message)
        return ElicitResult(action="accept", content={"name": self.name})

    @asynccontextmanager
    async def connected(self, proxy: Proxy, mode: str) -> AsyncGenerator[Client]:
        """Connect until the block ends."""
        url = f"{proxy.url}/mcp"
        async with Client(url, mode=mode, elicitation_callback=self.elicit) as client:
            yield client


@asynccontextmanager
async def two(
    folder: Path, mode: str
) -> AsyncGenerator[tuple[Proxy, tuple[Party, Client], tuple[Party, Client]]]:
    """Run turnlog with two clients until the block ends."""
    ada, bob = Party("ada"), Party("bob")
    async with (
        asyncio.timeout(3 * BOUND),
        running(folder, settings=settings(COMMAND, share="all")) as proxy,
        ada.connected(proxy, mode) as first,
        bob.connected(proxy, mode) as second,
    ):
        yield proxy, (ada, first), (bob, second)


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def text(client: Client, tool: str, **arguments: Any) -> str:
    return text_of(await client.call_tool(tool, arguments))


@pytest.mark.promise("CMD-1")
@pytest.mark.parametrize("mode", [LEGACY, NEWEST])
async def test_each_gets_its_own_progress_and_answer_at_the_same_time(
    tmp_path: Path, mode: str
) -> None:
    async with two(tmp_path, mode) as (_, one, other):
        assert await text(one[1], "pid") == await text(other[1], "pid")

        async def meet(party: Party, client: Client) -> str:
            arguments = {"who": party.name, "parties": 2}
            return text_of(await client.call_tool("meet", arguments, progress_callback=party.note))

        assert list(await asyncio.gather(meet(*one), meet(*other))) == ["ada", "bob"]
        for party, _client in (one, other):
            assert party.progress == [(1, party.name), (2, party.name)]


@pytest.mark.parametrize("mode", [LEGACY, NEWEST])
async def test_a_cancelling_client_ends_only_its_own_call(tmp_path: Path, mode: str) -> None:
    async with two(tmp_path, mode) as (_, (_, ada), (_, bob)), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(client.call_tool("wait", {})) for client in (ada, bob)]
        await waits(bob, begun=2, cancelled=0)
        waiting[0].cancel()
        await waits(bob, begun=2, cancelled=1)
        assert not waiting[1].done()
        waiting[1].cancel()
        await waits(ada, begun=2, cancelled=2)


async def waits(client: Client, **counts: int) -> None:
    """Ask until so many waits have begun and were cancelled."""
    while (await client.call_tool("waits", {})).structured_content != counts:
        pass


@pytest.mark.promise("CMD-1")
async def test_a_request_of_the_server_goes_to_the_client_that_calls(tmp_path: Path) -> None:
    async with two(tmp_path, LEGACY) as (_, (first, ada), (second, bob)):
        assert await text(bob, "ask") == "bob"
        assert await text(ada, "ask") == "ada"
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(ada.call_tool("wait", {}))
            await waits(bob, begun=1, cancelled=0)
            with pytest.raises(MCPError, match="nothing tells which of them is asked"):
                await bob.call_tool("ask", {})
            waiting.cancel()
            await waits(bob, begun=1, cancelled=1)
        assert await text(bob, "ask") == "bob"
        assert (len(first.asked), len(second.asked)) == (1, 2)


@pytest.mark.parametrize("mode", [LEGACY, NEWEST])
async def test_a_kill_of_the_process_loses_the_calls_of_both_and_both_go_on(
    tmp_path: Path, mode: str
) -> None:
    async with two(tmp_path, mode) as (proxy, (_, ada), (_, bob)):
        pid = int(await text(ada, "pid"))
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(client.call_tool("wait", {})) for client in (ada, bob)]
            await waits(bob, begun=2, cancelled=0)
            os.kill(pid, signal.SIGKILL)
        for lost in [task.result() for task in waiting]:
            assert lost.is_error
            assert lost.meta is not None
            assert lost.meta["turnlog/outcome"]["kind"] == "connection_lost"
        assert await text(ada, "pid") == await text(bob, "pid") != str(pid)
    assert [row.kind for row in proxy.rows() if row.tool == "wait"] == ["connection_lost"] * 2


@pytest.mark.parametrize("mode", [LEGACY, NEWEST])
async def test_large_answers_come_whole_to_each(tmp_path: Path, mode: str) -> None:
    async with two(tmp_path, mode) as (_, (_, ada), (_, bob)):
        found = await asyncio.gather(text(ada, "large", letter="a"), text(bob, "large", letter="b"))
        assert list(found) == ["a" * (10 << 20), "b" * (10 << 20)]
