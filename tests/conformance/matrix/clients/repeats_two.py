"""Make the calls that come as lines, all at once, with the newest Python SDK.

Arguments: the URL of turnlog, and the protocol revision to speak. A first line says that the client is
connected, then lines for each call what came of it.
"""

import asyncio
import json
import sys
from typing import Any

from mcp import Client, MCPError
from mcp.types import TextContent


def tell(found: Any) -> None:
    """Write one line."""
    print(json.dumps(found), flush=True)


async def make(client: Client, asked: dict[str, Any]) -> None:
    """Make a call and tell what came of it; `patience` is the client's own time limit, in seconds."""
    number = asked["number"]

    async def note(progress: float, total: float | None, message: str | None) -> None:
        tell({"number": number, "what": "progress"})

    meta: Any = {"turnlog/key": asked["key"]} if asked["key"] else None
    try:
        result = await client.call_tool(
            asked["tool"],
            {"item": asked["item"]},
            read_timeout_seconds=asked["patience"] or None,
            progress_callback=note if asked["watched"] else None,
            meta=meta,
        )
    except MCPError as error:
        tell({"number": number, "what": "raised", "text": str(error)})
    else:
        (content,) = result.content
        assert isinstance(content, TextContent)
        tell({"number": number, "what": "result", "text": content.text})


async def main(url: str, revision: str) -> None:
    """Serve the lines until there are no more."""
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async with Client(url, mode="legacy" if revision < "2026" else "auto") as client:
        tell("connected")
        async with asyncio.TaskGroup() as making:
            while line := await lines.readline():
                making.create_task(make(client, json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
