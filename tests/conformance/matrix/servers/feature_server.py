"""Serve every feature that the client matrices use, with the official Python SDK.

Two servers share the tools: one answers with event streams, one with JSON. Both listen on free
ports of 127.0.0.1; their URLs are printed as one JSON line once they accept connections.
"""

import asyncio
import json
import logging
import socket
import sys
from typing import Annotated, Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import (
    AcceptedElicitation,
    Context,
    Elicit,
    ElicitationResult,
    Resolve,
    Sample,
)
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel

# How long a tool that was cancelled may take to notice.
NOTICE = 10.0


class Name(BaseModel):
    """What the elicitation asks for."""

    name: str


class Marks:
    """Remembers which calls of `hang` were stopped."""

    def __init__(self) -> None:
        self._stopped: dict[str, asyncio.Event] = {}

    def event(self, mark: str) -> asyncio.Event:
        """Return the event that is set once the call with this mark was stopped."""
        return self._stopped.setdefault(mark, asyncio.Event())


def ask_name() -> Elicit[Name]:
    """Ask the agent's user for a name."""
    return Elicit("What is your name?", Name)


def ask_model(topic: str) -> Sample:
    """Ask the agent's model for a line about a topic."""
    text = TextContent(type="text", text=f"One line about {topic}, please.")
    return Sample([SamplingMessage(role="user", content=text)], max_tokens=50)


async def greet(answer: Annotated[ElicitationResult[Name], Resolve(ask_name)]) -> str:
    """Greet whoever the elicitation names."""
    if isinstance(answer, AcceptedElicitation):
        return f"hello, {answer.data.name}"
    return f"not told: {answer.action}"


async def draft(topic: str, line: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Return what the agent's model said about a topic."""
    return f"{topic}: {line.content.text if line.content.type == 'text' else line.content.type}"


async def count(to: int, ctx: Context[Any, Any]) -> str:
    """Report progress `to` times."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"step {number}")
    return f"counted to {to}"


def echo(value: Any) -> dict[str, Any]:
    """Return the value as it came."""
    return {"value": value}


def fail(reason: str) -> str:
    """Fail as a tool."""
    raise ToolError(reason)


def big(size: int) -> str:
    """Return a text of `size` characters."""
    return "0123456789abcdef" * (size // 16)


def build(marks: Marks) -> MCPServer:
    """Make a server with all tools."""
    server: MCPServer = MCPServer("features", version="1", log_level="ERROR")

    async def hang(mark: str, ctx: Context[Any, Any]) -> str:
        """Work until cancelled; the first progress report says that it began."""
        await ctx.report_progress(1, 2, "began")
        try:
            await asyncio.Event().wait()
        finally:
            marks.event(mark).set()
        return "never"

    async def stopped(mark: str) -> str:
        """Say whether the call of `hang` with this mark was stopped."""
        try:
            async with asyncio.timeout(NOTICE):
                await marks.event(mark).wait()
        except TimeoutError:
            return "still running"
        return "stopped"

    for tool in (greet, draft, count, echo, fail, big, hang, stopped):
        server.add_tool(tool, structured_output=False)
    return server


async def serve(path: str, *apps: Any) -> None:
    """Run the servers until the process is terminated."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in apps]
    servers = [
        uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        for app in apps
    ]
    urls = [f"http://127.0.0.1:{sock.getsockname()[1]}{path}" for sock in sockets]
    async with asyncio.TaskGroup() as tasks:
        for server, sock in zip(servers, sockets, strict=True):
            tasks.create_task(server.serve(sockets=[sock]))
        while not all(server.started for server in servers):  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.01)
        print(json.dumps({"urls": urls}), flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    marks = Marks()
    match sys.argv[1:]:
        case ["stdio"]:
            build(marks).run("stdio")
        case ["sse"]:
            asyncio.run(serve("/sse", build(marks).sse_app()))
        case _:
            both = [build(marks).streamable_http_app(json_response=mode) for mode in (False, True)]
            asyncio.run(serve("/mcp", *both))
