"""Two agents of the official SDK, each behind its own proxy, work in one session at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from httpx2 import ConnectError
from mcp import Client, MCPError
from mcp.types import Implementation, TextContent

from e2e.stores import turnlog
from kit.proxy import Proxy, rows, running, until
from kit.slow_server import SlowServer, slow_server
from turnlog.core.commit import Commit
from turnlog.core.kinds import Actor, CommitKind
from turnlog.sessions.rows import Row
from turnlog.store.lmdb import LmdbReader

RULES = "rules: [{match: {tool: order}, effect: write}]"
SETTINGS = {"rules": ["rules.yaml"]}
MODES = {"agent-a": "legacy", "agent-b": "auto"}
HANDS = 4
"""Calls that an agent has under way at once."""
EACH = 15
"""Calls of a hand."""
STEADY = 30
"""Looks, 10 ms apart, between which nothing happens any more."""


@asynccontextmanager
async def scene(folder: Path) -> AsyncGenerator[tuple[SlowServer, Proxy, Proxy]]:
    """Run a server, and two proxies on one store before it."""
    (folder / "rules.yaml").write_text(RULES)
    with slow_server(folder) as server:
        async with (
            running(folder, server.url, settings=SETTINGS) as one,
            running(folder, server.url, settings=SETTINGS) as other,
        ):
            yield server, one, other


class Agent:
    """An agent that works in the session `shared`, until its proxy is gone."""

    def __init__(self, name: str, proxy: Proxy) -> None:
        self.name = name
        self.answered: list[str] = []
        self.broken = 0
        """Hands whose call got no answer."""
        self._url = proxy.url.replace("/mcp", "/s/shared/mcp")

    async def work(self) -> None:
        """Make all calls with several hands at once."""
        try:
            await self._work()
        except* ConnectError:
            # The client tries again, or says good-bye, and finds nobody there.
            assert self.broken == HANDS

    async def _work(self) -> None:
        info = Implementation(name=self.name, version="1")
        async with (
            Client(self._url, mode=MODES[self.name], client_info=info) as client,
            asyncio.TaskGroup() as hands,
        ):
            for hand in range(HANDS):
                hands.create_task(self._hand(client, hand))

    async def _hand(self, client: Client, hand: int) -> None:
        try:
            for number in range(EACH):
                await self._call(client, f"{self.name}:{hand}:{number}")
        except (MCPError, asyncio.CancelledError) as error:
            self.broken += 1
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _call(self, client: Client, item: str) -> None:
        (content,) = (await client.call_tool("order", {"item": item})).content
        assert isinstance(content, TextContent)
        assert content.text == f"done {item}"
        self.answered.append(item)


def told(found: list[Row], agent: str) -> list[str]:
    """Return what the server is on record to have told an agent, in no order."""
    spoken = [row.output_summary for row in found if row.client == agent and row.status == "ok"]
    return sorted(text.removeprefix("done ") for text in spoken)


def commits(data: Path) -> list[Commit]:
    """Return the commits of the only session there is."""
    with LmdbReader.open(data) as reader, reader.view() as view:
        (session,) = view.sessions()
        return list(view.commits(session.session))


def whole(data: Path) -> list[Commit]:
    """Return the commits of the only session, which has no gap and verifies."""
    found = commits(data)
    assert [commit.link.seq for commit in found] == list(range(len(found)))
    checked = turnlog("verify", data=data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    return found


@pytest.mark.promise("SESS-2")
async def test_two_agents_behind_two_proxies_lose_nothing_and_stay_apart(tmp_path: Path) -> None:
    async with scene(tmp_path) as (server, one, other):
        agents = [Agent("agent-a", one), Agent("agent-b", other)]
        await asyncio.gather(*(agent.work() for agent in agents))
    found = rows(one.data)
    assert len(found) == 2 * HANDS * EACH
    assert [told(found, agent.name) for agent in agents] == [sorted(a.answered) for a in agents]
    assert sorted(server.runs) == sorted(item for agent in agents for item in agent.answered)
    wrote = {row.client: {r.epoch for r in found if r.client == row.client} for row in found}
    assert [len(epochs) for epochs in wrote.values()] == [1, 1]
    assert wrote["agent-a"].isdisjoint(wrote["agent-b"])
    log = whole(one.data)
    kinds = Counter(commit.facts.kind for commit in log)
    assert (kinds[CommitKind.INTENT], kinds[CommitKind.OUTCOME]) == (len(found), len(found))
    # Both wrote at once: neither waited until the other was done.
    writers = [commit.link.epoch for commit in log[1:]]
    assert writers not in (sorted(writers), sorted(writers, reverse=True))


@pytest.mark.promise("SESS-2")
async def test_a_proxy_that_is_killed_takes_nothing_from_the_other(tmp_path: Path) -> None:
    async with scene(tmp_path) as (server, one, other):
        killed, left = Agent("agent-a", one), Agent("agent-b", other)
        working = asyncio.gather(killed.work(), left.work())
        await until(lambda: len(killed.answered) >= EACH or None, "some answers")
        server.hold()
        await until_all_are_held(server, (killed, left))
        one.kill()
        server.let_go()
        await working
        assert (killed.broken, left.broken, len(left.answered)) == (HANDS, 0, HANDS * EACH)
        async with running(tmp_path, server.url, settings=SETTINGS):
            pass  # who opens the store closes what dead writers left
    found = rows(one.data)
    assert told(found, "agent-b") == sorted(left.answered)
    assert told(found, "agent-a") == sorted(killed.answered)
    unknown = [row for row in found if row.status != "ok"]
    assert {(row.client, row.actor, row.executed) for row in unknown} == {
        ("agent-a", Actor.TURNLOG, "maybe")
    }
    assert len(unknown) == HANDS
    assert len(server.runs) == len(found)
    assert len(whole(one.data)) == 1 + 2 * len(found) + len(notes(one.data))


async def until_all_are_held(server: SlowServer, agents: Sequence[Agent]) -> None:
    """Wait until no answer is on its way any more: all that agents wait for is held by the server."""
    seen: list[tuple[int, ...]] = []

    def looked() -> bool | None:
        seen.append((len(server.runs), *(len(agent.answered) for agent in agents)))
        return (len(seen) > STEADY and len(set(seen[-STEADY:])) == 1) or None

    await until(looked, "calls that are held")


def notes(data: Path) -> list[Commit]:
    """Return what the proxies noted on the calls (delivered and the like)."""
    return [commit for commit in commits(data) if commit.facts.kind is CommitKind.NOTE]
