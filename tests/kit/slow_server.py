"""An MCP server of the official SDK with a slow tool, which notes each time that it begins to run.

`python -m kit.slow_server FOLDER` prints its URL. A line in FOLDER/begun is one run; while FOLDER/held
exists the tool does not end.
"""

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer


class SlowServer:
    """The server, and what its tool did."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._begun = folder / "begun"
        self._held = folder / "held"

    @property
    def runs(self) -> list[str]:
        """What each run of the tool was called with, in order."""
        return self._begun.read_text("utf-8").split() if self._begun.exists() else []

    def hold(self) -> None:
        """Let runs of the tool not end."""
        self._held.touch()

    def let_go(self) -> None:
        """Let them end."""
        self._held.unlink()


@contextmanager
def slow_server(folder: Path) -> Generator[SlowServer]:
    """Run the server until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "kit.slow_server", str(folder)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield SlowServer(folder, process.stdout.readline().strip())
        finally:
            process.kill()


def _made(folder: Path) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("slow", version="1", log_level="ERROR")

    @server.tool()
    async def order(item: str) -> str:
        """Order something, when it is time."""
        with (folder / "begun").open("a") as begun:
            begun.write(f"{item}\n")
        while (folder / "held").exists():  # noqa: ASYNC110 - another process says when
            await asyncio.sleep(0.01)
        return f"ordered {item}"

    return server


def _serve(folder: Path) -> None:
    logging.disable(logging.WARNING)
    listener = socket.create_server(("127.0.0.1", 0))
    app = _made(folder).streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    server.run(sockets=[listener])


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
