"""A real client that reaches its own timeout, cancels its call and repeats it."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import mcp
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client

from kit.beside import session_notes, session_rows
from kit.proxy import data_of, environment, until
from turnlog.sessions.rows import Row

RULES = """
rules:
  - {match: {tool: "charge*"}, effect: write}
  - {match: {tool: "*_timed"}, timeout: {response: 300ms}}
"""
BUSY = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
def say(message, **what):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **what}), flush=True)
def charge(message):
    with (folder / "charges").open("a") as charges:
        charges.write("charge\\n")
    while not (folder / "go").exists():
        time.sleep(0.01)
    say(message, result={"content": [{"type": "text", "text": "charged"}]})
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        info = {"name": "busy", "version": "1"}
        revision = message["params"]["protocolVersion"]
        say(message, result={"protocolVersion": revision, "capabilities": {}, "serverInfo": info})
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("charge", "charge_timed")]
        say(message, result={"tools": tools})
    elif method == "tools/call":
        charge(message)
    elif "id" in message:
        say(message, error={"code": -32601, "message": "no such method"})
"""
"""A server that does one thing after the other: it reads a cancel when it has answered."""
OFFICIAL = """
import pathlib, sys
import anyio
from mcp.server.mcpserver import MCPServer
folder = pathlib.Path(sys.argv[1])
server = MCPServer("official", version="1")

@server.tool()
async def charge(amount: int) -> str:
    with (folder / "charges").open("a") as charges:
        charges.write("charge\\n")
    try:
        while not (folder / "go").exists():
            await anyio.sleep(0.01)
    except anyio.get_cancelled_exc_class():
        (folder / "dropped").touch()
        raise
    return "charged"

server.run()
"""
"""A server that drops what is cancelled, and never answers it."""


@asynccontextmanager
async def client_of(folder: Path, server: str) -> AsyncGenerator[mcp.Client]:
    """Connect the official client to a server, through a wrap of the session `one`."""
    (folder / "server.py").write_text(server)
    (folder / "rules.yaml").write_text(RULES)
    flags = ["--session", "one", "--data", str(data_of(folder))]
    flags += ["--rules", str(folder / "rules.yaml")]
    command = [sys.executable, str(folder / "server.py"), str(folder)]
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "turnlog", "wrap", *flags, "--", *command],
        env=environment(),
    )
    async with mcp.Client(stdio_client(parameters)) as client:
        yield client


async def gives_up(client: mcp.Client) -> None:
    """Ask for a charge, and lose patience when the server has long been at it."""
    with pytest.raises(mcp.MCPError, match="timed out"):
        await client.call_tool("charge", {"amount": 1}, read_timeout_seconds=3)


async def charged(client: mcp.Client, tool: str = "charge") -> None:
    result = await client.call_tool(tool, {"amount": 1}, read_timeout_seconds=30)
    (content,) = result.content
    assert isinstance(content, mcp.types.TextContent)
    assert content.text == "charged"


def charges(folder: Path) -> int:
    return (folder / "charges").read_text().count("charge")


def is_abandoned(folder: Path) -> bool:
    return "abandoned" in session_notes(data_of(folder), "one")


def rows(folder: Path) -> list[Row]:
    return [row for row in session_rows(data_of(folder), "one") if row.tool.startswith("charge")]


async def test_a_caller_that_gave_up_and_repeats_gets_the_answer_of_the_only_execution(
    tmp_path: Path,
) -> None:
    async with client_of(tmp_path, BUSY) as client:
        await gives_up(client)
        await until(lambda: is_abandoned(tmp_path) or None, "the call runs on")
        (tmp_path / "go").touch()
        await charged(client)
        assert charges(tmp_path) == 1
        # The answer arrived: whoever charges once more means it.
        await charged(client)
    assert charges(tmp_path) == 2
    assert [row.status for row in rows(tmp_path)] == ["ok", "replayed", "ok"]
    assert rows(tmp_path)[0].flags == ["late"]


async def test_a_repeat_after_an_obeyed_cancel_is_sent_and_logged(
    tmp_path: Path,
) -> None:
    async with client_of(tmp_path, OFFICIAL) as client:
        await gives_up(client)
        await until(
            lambda: (tmp_path / "dropped").exists() or None, "the server has dropped the call"
        )
        (tmp_path / "go").touch()
        await charged(client)
    assert charges(tmp_path) == 2
    first, second = rows(tmp_path)
    assert (first.kind, first.executed) == ("cancelled_by_caller", "maybe")
    assert (second.status, second.flags) == ("ok", ["repeat_of_unknown"])


async def test_a_caller_that_timed_out_gets_the_answer_later(tmp_path: Path) -> None:
    async with client_of(tmp_path, BUSY) as client:
        result = await client.call_tool("charge_timed", {"amount": 1})
        assert result.is_error
        (tmp_path / "go").touch()
        await charged(client, "charge_timed")
    assert charges(tmp_path) == 1
    assert [row.status for row in rows(tmp_path)] == ["ok", "replayed"]
