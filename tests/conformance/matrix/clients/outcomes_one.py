"""Call every tool that the server lists with the last 1.x Python SDK; print what an application sees.

Argument: the URL of turnlog. One JSON object is printed: what was called -> what came back, with the
outcome as `turnlog.client` reads it off what the SDK gives. The type checkers see the 2.x SDK, so
this file, which runs in an environment of its own, is checked without the SDK's types:
"""
# mypy: disable-error-code="attr-defined, call-arg, no-any-return, arg-type, misc, operator"
# pyright: reportAttributeAccessIssue=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportUnknownParameterType=false, reportArgumentType=false

import asyncio
import json
import sys
from typing import Any

import msgspec
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client

from turnlog.client import outcome_of


async def seen(call: Any) -> dict[str, Any]:
    """Return what came of a call."""
    try:
        result = await call
    except McpError as error:
        told = msgspec.to_builtins(outcome_of(error))
        return {"raised": error.error.code, "text": error.error.message, "outcome": told}
    text = "".join(block.text for block in result.content)
    told = msgspec.to_builtins(outcome_of(result))
    value = result.structuredContent
    return {"error": result.isError, "text": text, "structured": value, "outcome": told}


async def main(url: str, revision: str) -> None:
    """Call everything within one session and print what was seen."""
    found: dict[str, Any] = {}
    async with (
        streamable_http_client(url) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = (await session.list_tools()).tools
        found["resource"] = await seen(session.read_resource("file:///x"))
        for tool in tools:
            found[tool.name] = await seen(session.call_tool(tool.name, {}))
        found["at last"] = await seen(session.call_tool("well", {}))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
