"""An MCP server of the official SDK with slow tools, which note each time that they begin to run.

`python -m kit.slow_server FOLDER` prints its URL. A line in FOLDER/begun is one run; while FOLDER/held
exists no tool ends. Words that may follow: `mounted` puts it under a mount of Starlette, which redirects
`/mcp` to `/mcp/` by an absolute URL, as FastAPI's do; `resumable` gives its streams events that a client can ask
for again, which makes FOLDER/resumed once one does; `whole` has it answer with JSON in place of streams.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.streamable_http import (
    EventCallback,
    EventId,
    EventMessage,
    EventStore,
    StreamId,
)
from mcp.types import JSONRPCMessage
from starlette.applications import Starlette
from starlette.routing import Mount

from kit import prefork

TOOLS = ("order", "order_slowly", "pay", "append", "poll")
"""They do the same: what they are for is what a rule says of them."""
_RESUMED_AFTER = 100
"""ms: a client that lost a stream asks for it again by then."""


class SlowServer:
    """The server, and what its tool did."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._begun = folder / "begun"
        self._held = folder / "held"
        self._resumed = folder / "resumed"

    @property
    def runs(self) -> list[str]:
        """What each run of the tool was called with, in order."""
        return self._begun.read_text("utf-8").split() if self._begun.exists() else []

    @property
    def is_resumed(self) -> bool:
        """Whether a client asked for the rest of a stream."""
        return self._resumed.exists()

    def hold(self) -> None:
        """Let runs of the tool not end."""
        self._held.touch()

    def let_go(self) -> None:
        """Let them end."""
        self._held.unlink()


@contextmanager
def slow_server(folder: Path, *words: str) -> Generator[SlowServer]:
    """Run the server until the block ends."""
    with prefork.running("kit.slow_server", str(folder), *words) as url:
        yield SlowServer(folder, url)


class _Events(EventStore):
    """All events in the order in which they came; the id of one is its number."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: list[tuple[StreamId, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(
        self, last_event_id: EventId, send_callback: EventCallback
    ) -> StreamId | None:
        (self._folder / "resumed").touch()
        last = int(last_event_id)
        stream, _ = self._events[last - 1]
        for number, (other, message) in enumerate(self._events[last:], last + 1):
            if other == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def _made(folder: Path) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("slow", version="1", log_level="ERROR")

    async def run(item: str, context: Context[Any, Any]) -> str:
        """Do something, when it is time."""
        with (folder / "begun").open("a") as begun:
            begun.write(f"{item}\n")
        await context.report_progress(1, 2)
        while (folder / "held").exists():  # noqa: ASYNC110 - another process says when
            await asyncio.sleep(0.01)
        return f"done {item}"

    for name in TOOLS:
        server.add_tool(run, name=name)
    return server


def main() -> None:
    """Serve until killed."""
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    logging.disable(logging.WARNING)
    listener = socket.create_server(("127.0.0.1", 0))
    app = _made(folder).streamable_http_app(
        streamable_http_path="/" if "mounted" in words else "/mcp",
        event_store=_Events(folder) if "resumable" in words else None,
        retry_interval=_RESUMED_AFTER,
        json_response="whole" in words,
    )
    if "mounted" in words:
        app = Starlette(routes=[Mount("/mcp", app=app)], lifespan=app.router.lifespan_context)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
