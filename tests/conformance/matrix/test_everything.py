"""Call the reference server that has every feature: direct, wrapped, and started by turnlog."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    TextContent,
)

from conformance.matrix import rig

pytestmark = pytest.mark.matrix

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"message": "zürich \U0001f600"}),
    ("get-sum", {"a": 0.1, "b": 2}),
    ("get-sum", {"a": "no number"}),
    ("get-annotated-message", {"messageType": "error", "includeImage": True}),
    ("get-resource-links", {"count": 2}),
    ("get-structured-content", {"location": "Chicago"}),
    ("get-tiny-image", {}),
    ("trigger-long-running-operation", {"duration": 0.5, "steps": 5}),
    ("trigger-sampling-request", {"prompt": "tides", "maxTokens": 50}),
    ("trigger-elicitation-request", {}),
    ("no-such-tool", {}),
]


def command() -> list[str | Path]:
    """Return the server's command."""
    package = rig.node_package("@modelcontextprotocol/server-everything")
    return [rig.node(), package / "dist" / "index.js", "stdio"]


def test_the_server_that_has_everything_is_the_same_wrapped(tmp_path: Path) -> None:
    direct = asyncio.run(seen(started(command())))
    assert len(direct) == len(CALLS) + 1
    assert asyncio.run(seen(started(rig.wrapped(command(), tmp_path)))) == direct
    assert_recorded(tmp_path)


def test_the_server_that_has_everything_is_the_same_behind_http(tmp_path: Path) -> None:
    direct = asyncio.run(seen(started(command())))
    with rig.turnlog([command()], tmp_path) as urls:
        assert asyncio.run(seen(urls[0])) == direct
    assert_recorded(tmp_path)


def assert_recorded(folder: Path) -> None:
    """Check that each call is in the log, each with its end."""
    rows = rig.recorded(folder)
    assert [row["tool"] for row in rows] == [tool for tool, _ in CALLS]
    assert all(row["status"] in {"ok", "error"} for row in rows), rows


def started(words: list[str | Path]) -> Any:
    """Return what a client connects to."""
    program, *arguments = map(str, words)
    server = StdioServerParameters(command=program, args=arguments, env=rig.environment())
    return stdio_client(server, errlog=sys.stderr)


async def seen(server: Any) -> list[Any]:
    """Make every call; return what the client saw, and the names of all tools."""
    async with Client(
        server, mode="legacy", elicitation_callback=elicit, sampling_callback=sample
    ) as client:
        found: list[Any] = [sorted(tool.name for tool in (await client.list_tools()).tools)]
        for tool, arguments in CALLS:
            steps: list[float] = []
            result = await client.call_tool(tool, arguments, progress_callback=noting(steps))
            found.append([steps, json.loads(result.model_dump_json())])
        return found


def noting(steps: list[float]) -> ProgressFnT:
    """Return what writes down the progress that is reported."""

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    return note


async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Answer an elicitation."""
    return ElicitResult(action="accept", content={"name": "Ada"})


async def sample(
    context: ClientRequestContext, params: CreateMessageRequestParams
) -> CreateMessageResult:
    """Answer as a model would."""
    text = TextContent(type="text", text=f"a line within {params.max_tokens} tokens")
    return CreateMessageResult(role="assistant", content=text, model="scripted")
