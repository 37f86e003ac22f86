"""Run the demo: server (restarted when it dies), turnlog and agent, each as a process."""

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

from .scenes import SCENES, SERVER, Scene, ScriptedCall

READY = 15.0
"""s that a process may take to start, and turnlog to log an expected event."""
ANSWERED = 60.0
"""s that a call may take, with all attempts."""
STOPPED = 10.0
"""s that a process may take to stop."""
_LOOK = 0.02
_SERVER_LOG = "server.log"

_RULES = Path(__file__).with_name("rules.yaml")


class DemoError(RuntimeError):
    """A part of the demo did not start or failed."""


class DemoListener(Protocol):
    """Gets notified of each step of the demo."""

    def on_rules(self, rules: Path) -> None:
        """The rules file was written."""
        ...

    def on_scene(self, title: str) -> None:
        """A scene begins."""
        ...

    def on_call(self, call: ScriptedCall) -> None:
        """The agent is about to make a call."""
        ...

    def on_answer(self, lines: list[str]) -> None:
        """The call was made; `lines` is the output of the agent."""
        ...

    def on_tools_listed(self) -> None:
        """The tools were listed and can be pinned now."""
        ...


async def play(folder: Path, listener: DemoListener) -> None:
    """Run all scenes; the store is then in `folder`/data.

    Raises `DemoError`, and what the listener raises (`OSError` when it cannot write its output).
    """
    try:
        await _play(folder, listener)
    except ExceptionGroup as group:
        if failed := group.subgroup((DemoError, OSError)):
            raise failed.exceptions[0] from group
        raise


async def _play(folder: Path, listener: DemoListener) -> None:
    rules = folder / "rules.yaml"
    rules.write_bytes(_RULES.read_bytes())
    listener.on_rules(rules)
    port = _free_port()
    async with asyncio.TaskGroup() as tasks:
        supervisor = tasks.create_task(_keep_running(port, folder))
        await _listening(port, folder)
        upstream = f"http://127.0.0.1:{port}/mcp"
        async with _turnlog(upstream, folder) as proxy, _agent(await proxy.url(), folder) as agent:
            for scene in SCENES:
                await _show(scene, agent, proxy, listener)
        supervisor.cancel()


async def _show(scene: Scene, agent: Process, proxy: "_Proxy", listener: DemoListener) -> None:
    listener.on_scene(scene.title)
    for call in scene.calls:
        listener.on_call(call)
        listener.on_answer(await _made(agent, call))
    if scene.pinned:
        await proxy.logged("tools.listed")
        await asyncio.to_thread(listener.on_tools_listed)
        await proxy.logged("lock.loaded")


async def _made(agent: Process, call: ScriptedCall) -> list[str]:
    """Return the agent's output for a call that it makes."""
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
    """Run the server; whenever it ends, start its next release."""
    notes = folder / "notes"
    notes.mkdir()
    for release in count(1):
        arguments = ("-m", "turnlog.demo.server", str(port), str(notes), str(release))
        with (folder / _SERVER_LOG).open("ab") as output:
            async with _python(*arguments, stdout=output, stderr=output) as process:
                await process.wait()


class _Proxy(msgspec.Struct, frozen=True):
    """The running turnlog and its log file."""

    process: Process
    events: Path

    async def url(self) -> str:
        """Wait until it is ready; return its URL."""
        return str((await self.logged("proxy.ready"))["turnlog.urls"][0])

    async def logged(self, name: str) -> dict[str, Any]:
        """Wait until it has logged an event of this name; return that event."""
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
    """Run turnlog in front of an upstream, logging to a file."""
    what = ("--upstream", f"{SERVER}={upstream}", "--rules", str(folder / "rules.yaml"))
    where = ("--listen", "127.0.0.1:0", "--data", str(folder / "data"))
    # By default reads may reach the disk after their answer; the demo prints the log at once.
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
