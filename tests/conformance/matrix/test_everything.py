"""Call the reference server that has every feature: direct, wrapped, and started by turnlog."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from conformance.matrix import rig
from conformance.matrix.callers import CALLERS, Asked, Caller, Target

pytestmark = pytest.mark.matrix

CALLS = [
    Asked("echo", {"message": "zürich \U0001f600"}),
    Asked("get-sum", {"a": 0.1, "b": 2}),
    Asked("get-sum", {"a": "no number"}),
    Asked("get-annotated-message", {"messageType": "error", "includeImage": True}),
    Asked("get-resource-links", {"count": 2}),
    Asked("get-structured-content", {"location": "Chicago"}),
    Asked("get-tiny-image", {}),
    Asked("trigger-long-running-operation", {"duration": 0.5, "steps": 5}),
    Asked("trigger-long-running-operation", {"duration": 2, "steps": 20}, cancel_at=2),
    Asked("trigger-sampling-request", {"prompt": "tides", "maxTokens": 50}),
    Asked("trigger-elicitation-request", {}),
    Asked("no-such-tool", {}),
]


def command() -> list[str | Path]:
    """Return the server's command."""
    package = rig.node_package("@modelcontextprotocol/server-everything")
    return [rig.node(), package / "dist" / "index.js", "stdio"]


@pytest.mark.parametrize("client", CALLERS)
def test_the_server_that_has_everything_is_the_same_wrapped(client: str, tmp_path: Path) -> None:
    whole = client == "python"
    direct = asyncio.run(seen(CALLERS[client], command(), whole=whole))
    through = asyncio.run(seen(CALLERS[client], rig.wrapped(command(), tmp_path), whole=whole))
    assert through == direct
    assert_recorded(tmp_path, through)


@pytest.mark.parametrize("client", CALLERS)
def test_the_server_that_has_everything_is_the_same_behind_http(
    client: str, tmp_path: Path
) -> None:
    direct = asyncio.run(seen(CALLERS[client], command(), whole=client == "python"))
    with rig.turnlog([command()], tmp_path) as urls:
        through = asyncio.run(seen(CALLERS[client], urls[0], whole=True))
    assert through == direct
    assert_recorded(tmp_path, through)


async def seen(caller: Caller, target: Target, *, whole: bool) -> dict[str, Any]:
    """Make every call; return all tools, and what became of each call."""
    async with caller(target, {}) as session:
        made = [(asked, await session.call(asked)) for asked in CALLS]
    for asked, each in made:
        assert_progress(asked, each.steps, whole=whole or asked.cancel_at > 0)
    return {"tools": sorted(session.tools), "ends": [(e.result, e.failed) for _, e in made]}


def assert_progress(asked: Asked, steps: list[float], *, whole: bool) -> None:
    """Check that each step was reported, up to the one at which the call was taken back."""
    wanted = [*range(1, (asked.cancel_at or asked.arguments.get("steps", 0)) + 1)]
    # From a pipe, the TypeScript clients drop reports that they read together with the answer.
    assert steps == (wanted if whole else wanted[: len(steps)]), asked


def assert_recorded(folder: Path, through: dict[str, Any]) -> None:
    """Hold the log against what the client saw: each call is there, each with its end."""
    rows = rig.recorded(folder)
    assert [row["tool"] for row in rows] == [asked.tool for asked in CALLS]
    assert len({row["session"] for row in rows}) == 1
    for asked, (result, failed), row in zip(CALLS, through["ends"], rows, strict=True):
        assert (result is None) == (asked.cancel_at > 0), asked
        taken_back = ("unknown", "cancelled_by_caller")
        end = ("error", "tool_failed") if failed else ("ok", None)
        assert (row["status"], row["kind"]) == (end if result else taken_back), row
