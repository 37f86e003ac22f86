"""Call every tool of the feature server with the newest Python SDK and print what came back.

Arguments: the URL that answers with event streams, the URL that answers with JSON, and the
protocol revision to speak. In place of a URL may stand a stdio server's command, as a JSON array; a
URL that ends with `/sse` speaks the old HTTP+SSE transport. One JSON object is printed: scenario ->
what the agent saw.
"""

import asyncio
import hashlib
import json
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.types import (
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    TextContent,
)

VALUE = {"text": "zürich \U0001f600", "half": 0.5, "large": 2**53 - 1, "list": [1, None, True]}
BIG = 10_000_000
"""Less than the longest line that the TypeScript clients read from a pipe."""


def reached(target: str) -> Any:
    """Return what a client connects to."""
    if target.endswith("/sse"):
        return sse_client(target)
    if not target.startswith("["):
        return target
    command, *arguments = json.loads(target)
    return stdio_client(
        StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    )


async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Answer an elicitation."""
    return ElicitResult(action="accept", content={"name": f"Ada, asked {params.message!r}"})


async def sample(
    context: ClientRequestContext, params: CreateMessageRequestParams
) -> CreateMessageResult:
    """Answer as a model would."""
    text = TextContent(type="text", text=f"a line within {params.max_tokens} tokens")
    return CreateMessageResult(role="assistant", content=text, model="scripted")


def seen(result: CallToolResult) -> dict[str, Any]:
    """Return what is worth comparing of a result; long texts as a digest."""
    text = "".join(block.text for block in result.content if isinstance(block, TextContent))
    digest = f"{len(text)} {hashlib.sha256(text.encode()).hexdigest()}"
    return {"error": result.is_error, "text": text if len(text) < 1000 else digest}


async def count(client: Client) -> dict[str, Any]:
    """Collect the progress of one call."""
    steps: list[list[Any]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append([progress, total, message])

    result = await client.call_tool("count", {"to": 5}, progress_callback=note)
    return {"progress": steps, **seen(result)}


async def cancel(client: Client) -> dict[str, Any]:
    """Cancel a call once its tool has begun, then ask whether the tool stopped."""
    began = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        began.set()

    call = asyncio.ensure_future(
        client.call_tool("hang", {"mark": "cancel"}, progress_callback=note)
    )
    await began.wait()
    call.cancel()
    try:
        await call
        ended = "returned"
    except asyncio.CancelledError:
        ended = "cancelled"
    return {"call": ended, **seen(await client.call_tool("stopped", {"mark": "cancel"}))}


async def main(stream: str, whole: str, revision: str) -> None:
    """Run every scenario and print what was seen."""
    mode = "legacy" if revision < "2026" else revision
    found: dict[str, Any] = {}
    async with (
        Client(
            reached(stream), mode=mode, elicitation_callback=elicit, sampling_callback=sample
        ) as client,
        Client(reached(whole), mode=mode) as other,
    ):
        tools = await client.list_tools()
        found["tools"] = sorted(tool.name for tool in tools.tools)
        found["elicitation"] = seen(await client.call_tool("greet", {}))
        found["sampling"] = seen(await client.call_tool("draft", {"topic": "tides"}))
        found["progress"] = await count(client)
        found["value"] = seen(await client.call_tool("echo", {"value": VALUE}))
        found["failure"] = seen(await client.call_tool("fail", {"reason": "no luck"}))
        found["10 MB"] = seen(await other.call_tool("big", {"size": BIG}))
        found["cancel"] = await cancel(client)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
