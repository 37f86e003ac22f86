"""Run the demo: the server (started again whenever it dies), turnlog and the agent, as processes."""

import asyncio
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import msgspec

from .scenes import SCENES, SERVER, Call, Scene

READY = 15.0
"""Seconds that a process may take to start, and to notice what it should."""
ANSWERED = 60.0
"""Seconds that a call may take, with all its attempts."""
STOPPED = 10.0
"""Seconds that a process may take to stop."""
_LOOK = 0.02
_SERVER_LOG = "server.log"

_RULES = Path(__file__).with_name("rules.yaml")


class DemoError(RuntimeError):
    """A part of the demo did not start or failed."""


class Audience(Protocol):
    """Who is told what happens, as it happens."""

    def ruled(self, rules: Path) -> None:
        """Rules were written down, which turnlog will go by."""
        ...

    def scene(self, title: str) -> None:
        """A scene begins."""
        ...

    def asked(self, call: Call) -> None:
        """The agent is about to make a call."""
        ...

    def answered(self, lines: list[str]) -> None:
        """The call was made; `lines` is what the agent says of it."""
        ...

    def pin(self) -> None:
        """Now is the time to pin what the tools are."""
        ...


async def play(folder: Path, audience: Audience) -> None:
    """Let the agent make its calls through turnlog; what turnlog kept is in `folder`/data.

    Raises `DemoError`, and what `audience` raises: `OSError` where its output is not taken.
    """
    try:
        await _play(folder, audience)
    except ExceptionGroup as group:
        if failed := group.subgroup((DemoError, OSError)):
            raise failed.exceptions[0] from group
        raise


async def _play(folder: Path, audience: Audience) -> None:
    rules = folder / "rules.yaml"
    rules.write_bytes(_RULES.read_bytes())
    audience.ruled(rules)
    port = _free_port()
    async with asyncio.TaskGroup() as tasks:
        supervisor = tasks.create_task(_keep_running(port, folder))
        await _listening(port, folder)
        upstream = f"http://127.0.0.1:{port}/mcp"
        async with _turnlog(upstream, folder) as proxy, _agent(await proxy.url(), folder) as agent:
            for scene in SCENES:
                await _show(scene, agent, proxy, audience)
        supervisor.cancel()


async def _show(scene: Scene, agent: Process, proxy: "_Proxy", audience: Audience) -> None:
    audience.scene(scene.title)
    for call in scene.calls:
        audience.asked(call)
        audience.answered(await _made(agent, call))
    if scene.pinned:
        await proxy.said("tools.listed")
        await asyncio.to_thread(audience.pin)
        await proxy.said("lock.loaded")


async def _made(agent: Process, call: Call) -> list[str]:
    """Let the agent make a call, and return what it says of it."""
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write(msgspec.json.encode(call) + b"\n")
    lines: list[str] = []
    try:
        async with asyncio.timeout(ANSWERED):
            while line := (await agent.stdout.readline()).decode():
                if line == "\n":
                    return lines
                lines.append(line.rstrip("\n"))
    except TimeoutError as error:
        raise DemoError(f"{call} was not answered within {ANSWERED:.0f} s") from error
    raise DemoError(f"the agent ended during {call}, see agent.log beside the data")


async def _keep_running(port: int, folder: Path) -> None:
    """Run the server; when it ends, run its next release."""
    notes = folder / "notes"
    notes.mkdir()
    for release in count(1):
        arguments = ("-m", "turnlog.demo.server", str(port), str(notes), str(release))
        with (folder / _SERVER_LOG).open("ab") as output:
            async with _python(*arguments, stdout=output, stderr=output) as process:
                await process.wait()


class _Proxy(msgspec.Struct, frozen=True):
    """turnlog at work, and the file of its events."""

    process: Process
    events: Path

    async def url(self) -> str:
        """Wait until it is ready, and return its URL."""
        return str((await self.said("proxy.ready"))["turnlog.urls"][0])

    async def said(self, name: str) -> dict[str, Any]:
        """Wait until it has written an event, and return it."""
        try:
            async with asyncio.timeout(READY):
                while self.process.returncode is None:
                    if event := self._written(name):
                        return event
                    await asyncio.sleep(_LOOK)
        except TimeoutError as error:
            raise DemoError(
                f"turnlog did not say {name!r} within {READY:.0f} s, see {self.events}"
            ) from error
        raise DemoError(f"turnlog ended with {self.process.returncode}, see {self.events}")

    def _written(self, name: str) -> dict[str, Any] | None:
        for line in self.events.read_text("utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                event: dict[str, Any] = msgspec.json.decode(line)
                if event["event"] == name:
                    return event
        return None


@asynccontextmanager
async def _turnlog(upstream: str, folder: Path) -> AsyncGenerator[_Proxy]:
    """Run turnlog in front of an upstream; its events go to a file."""
    what = ("--upstream", f"{SERVER}={upstream}", "--rules", str(folder / "rules.yaml"))
    where = ("--listen", "127.0.0.1:0", "--data", str(folder / "data"))
    # Reads need not be on disk before their answers; here the log is printed beside each answer.
    how = ("--durability", "strict", "--log-format", "json")
    events = folder / "turnlog.jsonl"
    with events.open("wb") as output:
        async with _python("-m", "turnlog", "serve", *what, *where, *how, stdout=output) as process:
            yield _Proxy(process, events)


@asynccontextmanager
async def _agent(url: str, folder: Path) -> AsyncGenerator[Process]:
    arguments = ("-m", "turnlog.demo.agent", url)
    with (folder / "agent.log").open("wb") as output:
        async with _python(*arguments, stdin=PIPE, stdout=PIPE, stderr=output) as process:
            yield process


@asynccontextmanager
async def _python(
    *arguments: str, stdin: int = DEVNULL, stdout: Any = DEVNULL, stderr: Any = None
) -> AsyncGenerator[Process]:
    """Run a Python process until the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=stdin, stdout=stdout, stderr=stderr
    )
    try:
        yield process
    finally:
        await _stop(process)


async def _listening(port: int, folder: Path) -> None:
    """Wait until the server accepts connections on its port."""
    try:
        async with asyncio.timeout(READY):
            while True:
                with suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return
                await asyncio.sleep(_LOOK)
    except TimeoutError as error:
        said = (
            f"the server did not listen on {port} within {READY:.0f} s, see {folder / _SERVER_LOG}"
        )
        raise DemoError(said) from error


async def _stop(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
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
