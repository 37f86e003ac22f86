"""Make the calls that come as lines, all at once, with the last 1.x Python SDK.

Argument: the URL of turnlog. A first line says that the client is connected, then lines for
each call what came of it. The type checkers see the 2.x SDK, so this file, which runs in an environment of
its own, is checked without the SDK's types:
"""
# mypy: disable-error-code="attr-defined, call-arg, arg-type, misc, operator, union-attr"
# pyright: reportAttributeAccessIssue=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client


def tell(found: Any) -> None:
    """Write one line."""
    print(json.dumps(found), flush=True)


async def make(session: ClientSession, asked: dict[str, Any]) -> None:
    """Make a call and tell what came of it; `patience` is the client's own time limit, in seconds."""
    number = asked["number"]

    async def note(progress: float, total: float | None, message: str | None) -> None:
        tell({"number": number, "what": "progress"})

    meta = {"turnlog/key": asked["key"]} if asked["key"] else None
    try:
        result = await session.call_tool(
            asked["tool"],
            {"item": asked["item"]},
            read_timeout_seconds=timedelta(seconds=asked["patience"])
            if asked["patience"]
            else None,
            progress_callback=note if asked["watched"] else None,
            meta=meta,
        )
    except McpError as error:
        tell({"number": number, "what": "raised", "text": str(error)})
    else:
        tell({"number": number, "what": "result", "text": result.content[0].text})


async def main(url: str, revision: str) -> None:
    """Serve the lines until there are no more."""
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async with (
        streamable_http_client(url) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tell("connected")
        async with asyncio.TaskGroup() as making:
            while line := await lines.readline():
                making.create_task(make(session, json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
