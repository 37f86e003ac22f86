"""Every official client gives calls up, loses its connection or dies, as it really does, and asks again:
how often the tool runs is counted on the disk of the server (docs/reference/rules.md, never twice)."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest
from msgspec import Struct

from conformance.matrix.repeating import Agent, Down, Told, agent
from kit.beside import session_notes
from kit.proxy import Proxy, running, until
from kit.relay import Relay, relay
from kit.slow_server import SlowServer, slow_server
from turnlog.sessions.rows import Row

pytestmark = pytest.mark.matrix

RULES: Final = """
rules:
  - {match: {tool: "order*"}, effect: write}
  - {match: {tool: order_slowly}, replay_if_slower_than: 1ms}
  - {match: {tool: pay}, effect: irreversible}
  - {match: {tool: append}, effect: write, on_duplicate: pass}
  - {match: {tool: poll}, effect: read}
"""
PATIENCE: Final = 1.0
"""s: the clients' own, shorter than the tools take."""
JOINED_AFTER: Final = "300ms"


class GivesUp(StrEnum):
    """What a client does whose own time limit is over."""

    SILENTLY = "silently"
    BY_CLOSING = "by closing"
    BY_A_CANCEL = "by a cancel"


class Client(Struct, frozen=True):
    """A client's script, the revision that it speaks, and how it gives up."""

    script: str
    revision: str
    gives_up: GivesUp


CLIENTS: Final = {
    "python-1": Client("repeats_one.py", "2025-11-25", GivesUp.SILENTLY),
    "python-2-legacy": Client("repeats_two.py", "2025-11-25", GivesUp.BY_A_CANCEL),
    "python-2-modern": Client("repeats_two.py", "2026-07-28", GivesUp.BY_CLOSING),
    "typescript-1": Client("typescript_one.mjs", "2025-11-25", GivesUp.BY_A_CANCEL),
    "typescript-2-legacy": Client("typescript_two.mjs", "2025-11-25", GivesUp.BY_A_CANCEL),
    "typescript-2-modern": Client("typescript_two.mjs", "2026-07-28", GivesUp.BY_CLOSING),
}
each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


def those(*ways: GivesUp) -> pytest.MarkDecorator:
    """Select the clients that give up in one of these ways."""
    found = {name: client for name, client in CLIENTS.items() if client.gives_up in ways}
    return pytest.mark.parametrize("client", found.values(), ids=found)


class Scene(Struct, frozen=True):
    """A server, turnlog in front of it, and the network before that."""

    server: SlowServer
    proxy: Proxy
    net: Relay

    @asynccontextmanager
    async def agent(self, client: Client, session: str = "one") -> AsyncGenerator[Agent]:
        """Connect an agent, whose session has a name."""
        url = self.net.url.replace("/mcp", f"/s/{session}/mcp")
        async with agent(client.script, client.revision, url) as one:
            yield one

    async def begun(self, count: int) -> None:
        """Wait until tools began so many times to run."""
        await until(lambda: len(self.server.runs) >= count or None, f"{count} runs")

    async def ended(self, count: int) -> list[Row]:
        """Wait until there are so many rows, and all have ended."""

        def look() -> list[Row] | None:
            rows = self.proxy.rows()
            over = len(rows) >= count and all(row.status != "pending" for row in rows)
            return rows if over else None

        rows = await until(look, f"{count} rows")
        assert len(rows) == count
        return rows

    async def joined(self, one: Agent) -> None:
        """Ask again what runs, and check that it did not run a second time."""
        before = self.net.calls
        number = one.ask("order")
        await until(lambda: self.net.calls > before or None, "it is asked again")
        self.server.let_go()
        assert await one.told(number) == done(number)
        assert self.server.runs == ["tea"]
        first, second = await self.ended(2)
        assert (first.status, second.status, second.executed) == ("ok", "replayed", "yes")
        assert set(second.flags) == {"replayed", "joined"}

    async def answered_late(self, one: Agent, tool: str, gives_up: GivesUp) -> None:
        """Have a call given up, and its tool end after that."""
        self.server.hold()
        assert (await one.call(tool, patience=PATIENCE)).what == "raised"
        match gives_up:
            case GivesUp.SILENTLY:
                self.server.let_go()
                await self.noted("delivered")
            case GivesUp.BY_CLOSING:
                await self.noted("abandoned")
                self.server.let_go()
            case GivesUp.BY_A_CANCEL:
                await self.noted("cancel_forwarded")
                self.server.let_go()
        await self.ended(1)

    async def noted(self, note: str, count: int = 1) -> None:
        """Wait until there are so many of a kind of note in the session."""

        def look() -> bool | None:
            return session_notes(self.proxy.data, "one").count(note) >= count or None

        await until(look, f"{count} notes {note!r}")

    async def runs_again(self, one: Agent) -> None:
        """Ask again what was taken back, and check that it runs a second time, which is said."""
        number = one.ask("order")
        await self.begun(2)
        self.server.let_go()
        assert await one.told(number) == done(number)
        assert self.server.runs == ["tea", "tea"]
        first, second = await self.ended(2)
        assert (first.kind, second.status) == ("cancelled_by_caller", "ok")
        assert second.flags == ["repeat_of_unknown"]


@asynccontextmanager
async def scene(folder: Path, *words: str, join_after: str = JOINED_AFTER) -> AsyncGenerator[Scene]:
    """Run all of it until the block ends; a cancel by closing would go on after a minute."""
    (folder / "rules.yaml").write_text(RULES)
    limits = {"join_after": join_after, "cancel_grace": "1m"}
    settings = {"rules": ["rules.yaml"], "never_twice": limits}
    with slow_server(folder, *words) as server:
        async with running(folder, server.url, settings=settings) as proxy, relay(proxy.url) as net:
            yield Scene(server, proxy, net)


def done(number: int) -> Told:
    """Return what is told of a call that succeeded."""
    return Told(number, "result", "done tea")


@pytest.mark.promise("TWICE-32")
@each_client
async def test_a_call_that_is_given_up_and_asked_again_at_once_runs_once_unless_it_was_taken_back(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path) as now, now.agent(client) as one:
        now.server.hold()
        assert (await one.call("order", patience=PATIENCE)).what == "raised"
        if client.gives_up is GivesUp.BY_A_CANCEL:
            await now.runs_again(one)
        else:
            await now.joined(one)


@pytest.mark.promise("TWICE-32")
@those(GivesUp.BY_A_CANCEL)
async def test_what_is_irreversible_does_not_run_again_even_if_it_was_taken_back(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path) as now, now.agent(client) as one:
        now.server.hold()
        assert (await one.call("pay", patience=PATIENCE)).what == "raised"
        told = await one.call("pay")
        assert (told.what, "nobody knows" in told.text) == ("result", True)
        assert now.server.runs == ["tea"]
        assert (await now.ended(2))[1].kind == "outcome_unknown"


@each_client
async def test_an_answer_that_comes_after_the_client_gave_up_is_given_to_who_asks_again_if_it_was_lost(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path) as now, now.agent(client) as one:
        await now.answered_late(one, "order", client.gives_up)
        assert (await one.call("order")).text == "done tea"
        runs, (_, second) = now.server.runs, await now.ended(2)
    expected: tuple[int, str, list[str]]
    match client.gives_up:
        case GivesUp.BY_CLOSING:
            expected = (1, "replayed", ["replayed"])
        case GivesUp.SILENTLY:
            # Its socket took the whole answer: nothing says that nobody saw it.
            expected = (2, "ok", [])
        case GivesUp.BY_A_CANCEL:
            expected = (2, "ok", ["repeat_of_unknown"])
    assert (len(runs), second.status, second.flags) == expected


@those(GivesUp.SILENTLY)
async def test_a_rule_may_have_a_slow_answer_given_again_that_nobody_may_have_seen(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path) as now, now.agent(client) as one:
        await now.answered_late(one, "order_slowly", client.gives_up)
        assert (await one.call("order_slowly")).text == "done tea"
        assert now.server.runs == ["tea"]
        assert [row.status for row in await now.ended(2)] == ["ok", "replayed"]


@those(GivesUp.SILENTLY)
async def test_who_gives_up_silently_before_a_call_is_joined_has_asked_for_two(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path, join_after="1h") as now, now.agent(client) as one:
        now.server.hold()
        assert (await one.call("order", patience=PATIENCE)).what == "raised"
        again = one.ask("order")
        await now.begun(2)
        now.server.let_go()
        assert await one.told(again) == done(again)
        assert [row.flags for row in await now.ended(2)] == [[], []]


@each_client
async def test_an_answer_that_arrived_is_given_again_for_a_key_or_where_a_rule_says_so(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path) as now, now.agent(client) as one:
        for tool, key, first, second in [
            ("order", "", 1, 2),
            ("order", "17", 3, 3),
            ("order_slowly", "", 4, 4),
        ]:
            assert (await one.call(tool, key=key)).text == "done tea"
            # A client may ask again on the answer, before its stream has ended.
            await now.noted("delivered", first)
            assert (await one.call(tool, key=key)).text == "done tea"
            assert len(now.server.runs) == second
        statuses = [row.status for row in await now.ended(6)]
    assert statuses == ["ok", "ok", "ok", "replayed", "ok", "replayed"]


@each_client
async def test_calls_made_together_and_those_of_others_all_run(
    client: Client, tmp_path: Path
) -> None:
    async with (
        scene(tmp_path, join_after="1h") as now,
        now.agent(client) as one,
        now.agent(client, "two") as other,
    ):
        now.server.hold()
        asked = [(each, each.ask("order")) for each in (one, one, one, other)]
        await now.begun(4)
        now.server.let_go()
        for each, number in asked:
            assert await each.told(number) == done(number)
        assert {row.status for row in await now.ended(4)} == {"ok"}
        assert len(now.server.runs) == 4


@each_client
async def test_what_is_repeated_on_purpose_runs_each_time(client: Client, tmp_path: Path) -> None:
    async with scene(tmp_path) as now, now.agent(client) as one:
        for _ in range(3):
            assert (await one.call("poll")).text == "done tea"
            assert (await one.call("append")).text == "done tea"
        assert len(now.server.runs) == 6
        now.server.hold()
        for before, tool in [(6, "poll"), (8, "append")]:
            assert (await one.call(tool, patience=PATIENCE)).what == "raised"
            await now.begun(before + 1)
            one.ask(tool)
            await now.begun(before + 2)
        now.server.let_go()
        assert not {row.status for row in await now.ended(10)} & {"replayed"}


@each_client
async def test_a_call_whose_stream_is_cut_in_the_middle_runs_once_unless_it_is_taken_back_then(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path) as now, now.agent(client) as one:
        now.server.hold()
        number = one.ask("order", patience=3 * PATIENCE, watched=True)
        assert (await one.told(number)).what == "progress"
        now.net.cut()
        told = await one.told(number)
        assert told.what == "raised"
        # But for the 2.x Python SDK, clients wait for the rest until their time is over.
        waits = client.script != "repeats_two.py"
        assert ("timed out" in told.text.lower()) is waits
        if waits and client.gives_up is GivesUp.BY_A_CANCEL:
            await now.runs_again(one)
        else:
            await now.joined(one)


@pytest.mark.promise("TWICE-32")
@those(GivesUp.SILENTLY, GivesUp.BY_A_CANCEL)
async def test_a_stream_that_is_cut_and_resumed_brings_the_answer_of_the_only_run(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path, "resumable") as now, now.agent(client) as one:
        now.server.hold()
        number = one.ask("order", watched=True)
        assert (await one.told(number)).what == "progress"
        now.net.cut()
        await until(lambda: now.server.is_resumed or None, "the client asks for the rest")
        now.server.let_go()
        assert await one.told(number) == done(number)
        assert now.server.runs == ["tea"]
        (row,) = await now.ended(1)
    assert (row.status, set(row.flags)) == ("ok", {"late", "resumed"})


@each_client
async def test_a_call_that_is_cut_before_its_answer_began_runs_once(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path, "whole") as now, AsyncExitStack() as stack:
        one = await stack.enter_async_context(now.agent(client))
        now.server.hold()
        number = one.ask("order", patience=3 * PATIENCE)
        await now.begun(1)
        now.net.cut()
        try:
            assert (await one.told(number)).what == "raised"
        except Down:
            one = await stack.enter_async_context(now.agent(client))
        await now.joined(one)


@each_client
async def test_an_agent_that_died_and_comes_back_gets_the_answer_of_the_only_run(
    client: Client, tmp_path: Path
) -> None:
    async with scene(tmp_path) as now:
        now.server.hold()
        async with now.agent(client) as one:
            one.ask("order")
            await now.begun(1)
            await one.die()
        async with now.agent(client) as one:
            await now.joined(one)
