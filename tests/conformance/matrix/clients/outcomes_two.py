"""Call every tool that the server lists with the newest Python SDK; print what an application sees.

Arguments: the URL of turnlog, and the protocol revision to speak. One JSON object is printed: what
was called -> what came back, with the outcome as `turnlog.client` reads it off what the SDK gives.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import msgspec
from mcp import Client, MCPError
from mcp.types import CallToolResult, TextContent

from turnlog.client import outcome_of


async def seen(call: Awaitable[CallToolResult]) -> dict[str, Any]:
    """Return what came of a call."""
    try:
        result = await call
    except MCPError as error:
        told = msgspec.to_builtins(outcome_of(error))
        return {"raised": error.error.code, "text": error.error.message, "outcome": told}
    text = "".join(block.text for block in result.content if isinstance(block, TextContent))
    told = msgspec.to_builtins(outcome_of(result))
    value = result.structured_content
    return {"error": result.is_error, "text": text, "structured": value, "outcome": told}


async def main(url: str, revision: str) -> None:
    """Call everything within one session and print what was seen."""
    mode = "legacy" if revision < "2026" else revision
    found: dict[str, Any] = {}
    async with Client(url, mode=mode) as client:
        tools = (await client.list_tools()).tools
        found["resource"] = await seen(client.read_resource("file:///x"))  # type: ignore[arg-type]
        for tool in tools:
            found[tool.name] = await seen(client.call_tool(tool.name, {}))
        found["at last"] = await seen(client.call_tool("well", {}))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
