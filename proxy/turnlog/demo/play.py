"""Run the demo: the server (started again whenever it dies), turnlog and the agent, as processes."""

import asyncio
import json
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

READY = 15.0
"""Seconds that a server or turnlog may take to start."""
STOPPED = 10.0
"""Seconds that a process may take to stop."""


class DemoError(RuntimeError):
    """A part of the demo did not start or failed."""


async def play(folder: Path) -> None:
    """Let the agent make its calls through turnlog; what turnlog kept is in `folder`/data."""
    notes = folder / "notes"
    notes.mkdir()
    port = _free_port()
    server = ("-m", "turnlog.demo.server", str(port), str(notes))
    async with asyncio.TaskGroup() as tasks:
        supervisor = tasks.create_task(_keep_running(server, folder / "server.log"))
        await _listening(port)
        async with _turnlog(f"http://127.0.0.1:{port}/mcp", folder) as url:
            await _agent(url)
        supervisor.cancel()


async def _keep_running(arguments: tuple[str, ...], log: Path) -> None:
    """Run a Python process; when it ends, run it again."""
    while True:
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdin=DEVNULL, stdout=output, stderr=output
            )
        try:
            await process.wait()
        finally:
            await _stop(process)


@asynccontextmanager
async def _turnlog(upstream: str, folder: Path) -> AsyncGenerator[str]:
    """Run turnlog in front of an upstream and yield its URL; its events go to a file."""
    flags = ("--upstream", upstream, "--listen", "127.0.0.1:0", "--log-format", "json")
    events = folder / "turnlog.jsonl"
    with events.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "turnlog", "serve", *flags, "--data", str(folder / "data")),
            stdin=DEVNULL,
            stdout=output,
        )
    try:
        yield await _ready_url(process, events)
    finally:
        await _stop(process)


async def _ready_url(process: Process, events: Path) -> str:
    try:
        async with asyncio.timeout(READY):
            while process.returncode is None:
                if url := _said_url(events):
                    return url
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise DemoError(f"turnlog was not ready within {READY:.0f} s, see {events}") from error
    raise DemoError(f"turnlog ended with {process.returncode} before it was ready")


def _said_url(events: Path) -> str | None:
    for line in events.read_text().splitlines(keepends=True):
        if line.endswith("\n") and '"proxy.ready"' in line:
            return str(json.loads(line)["turnlog.urls"][0])
    return None


async def _agent(url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "turnlog.demo.agent", url, stdin=DEVNULL
    )
    try:
        code = await process.wait()
    finally:
        await _stop(process)
    if code:
        raise DemoError(f"the agent ended with {code}")


async def _listening(port: int) -> None:
    """Wait until something accepts connections on a port."""
    try:
        async with asyncio.timeout(READY):
            while True:
                with suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise DemoError(f"the server did not listen on {port} within {READY:.0f} s") from error


async def _stop(process: Process) -> None:
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.terminate()
    try:
        async with asyncio.timeout(STOPPED):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
