"""Serve over HTTP what a stdio server offers, with the official Python SDK on both sides.

Arguments: the command of the stdio server. It listens on a free port of 127.0.0.1; its URL is
printed as one JSON line once it accepts connections. The tools, results and errors are the
server's own.
"""

import asyncio
import json
import logging
import os
import socket
import sys
from typing import Any

import uvicorn
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.lowlevel import Server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult


def bridge(session: ClientSession) -> Server[Any]:
    """Make a server that passes each request on to `session`."""

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return await session.list_tools()

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        return await session.call_tool(params.name, params.arguments)

    return Server("bridge", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def serve(command: str, arguments: list[str]) -> None:
    """Start the stdio server, and pass requests on until the process is terminated."""
    parameters = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        app = bridge(session).streamable_http_app(json_response=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        listener = socket.create_server(("127.0.0.1", 0))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve(sockets=[listener]))
            while not server.started:  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0.01)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            print(json.dumps({"urls": [url]}), flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
