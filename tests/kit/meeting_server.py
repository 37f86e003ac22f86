"""An MCP server of the official SDK over stdin and stdout, whose tools know of several callers.

Run as `python meeting_server.py`. `meet` returns once so many calls of it are open; `wait` until it
is cancelled.
"""

import os

import anyio
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("meeting", version="1", log_level="ERROR")


class Name(BaseModel):
    """What `ask` asks for."""

    name: str


class _Calls:
    def __init__(self) -> None:
        self.met = anyio.Event()
        self.meeting = 0
        self.waiting = 0
        self.cancelled = 0


_calls = _Calls()


@server.tool()
def pid() -> int:
    """Return the process's id."""
    return os.getpid()


@server.tool()
async def meet(who: str, parties: int, context: Context) -> str:
    """Report progress before and after so many callers are there."""
    await context.report_progress(1, 2, who)
    _calls.meeting += 1
    if _calls.meeting == parties:
        _calls.met.set()
    await _calls.met.wait()
    await context.report_progress(2, 2, who)
    return who


@server.tool()
async def wait() -> None:
    """Wait until cancelled."""
    _calls.waiting += 1
    try:
        await anyio.sleep_forever()
    finally:
        _calls.cancelled += 1


@server.tool()
def waits() -> dict[str, int]:
    """Return how many waits have begun, and how many were cancelled."""
    return {"begun": _calls.waiting, "cancelled": _calls.cancelled}


@server.tool()
async def ask(context: Context) -> str:
    """Ask for a name."""
    answer = await context.elicit("who are you?", Name)
    return answer.data.name if answer.action == "accept" else answer.action


@server.tool()
def large(letter: str) -> str:
    """Return ten megabytes."""
    return letter * (10 << 20)


if __name__ == "__main__":
    server.run()
