"""Keep notes in a folder: an MCP server with tools that read, write, take time, fail and crash.

Run as `python -m turnlog.demo.server PORT FOLDER`. It needs the extra `turnlog[demo]`.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

_STEPS = 4
_STEP = 0.25


def main(port: int, folder: Path) -> None:
    """Serve the notes in `folder` on a port of 127.0.0.1."""
    server(folder).run("streamable-http", port=port)


def server(folder: Path) -> MCPServer:
    """Make the server and its tools."""
    made: MCPServer = MCPServer("notes", version="1", log_level="WARNING")

    def read_note(name: str) -> str:
        """Return the text of a note."""
        return _path(folder, name).read_text(encoding="utf-8")

    def write_note(name: str, text: str) -> str:
        """Write a note."""
        _path(folder, name).write_text(text, encoding="utf-8")
        return f"wrote {len(text)} characters to {name}"

    def crash_after_writing(name: str, text: str) -> str:
        """Write a note, then die before answering, as a server that runs out of memory does."""
        write_note(name, text)
        os._exit(1)

    made.add_tool(read_note, annotations=ToolAnnotations(read_only_hint=True))
    made.add_tool(write_note)
    made.add_tool(count_words)
    made.add_tool(fail)
    made.add_tool(crash_after_writing)
    return made


async def count_words(text: str, ctx: Context[Any, Any]) -> int:
    """Count words, slowly, with progress."""
    for step in range(1, _STEPS + 1):
        await asyncio.sleep(_STEP)
        await ctx.report_progress(step, _STEPS)
    return len(text.split())


def fail(reason: str) -> str:
    """Fail."""
    raise ToolError(reason)


def _path(folder: Path, name: str) -> Path:
    if not name.isidentifier():
        raise ToolError(f"{name!r} is no name of a note: use letters, digits and _")
    return folder / f"{name}.txt"


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
