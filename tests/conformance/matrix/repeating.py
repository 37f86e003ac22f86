"""Agents of the official SDKs that make calls as they come, and tell what came of each."""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from conformance.matrix import rig

_ANSWERED: Final = 20.0
"""s within which a client has started, has made a call, or has ended."""


class Told(msgspec.Struct, frozen=True):
    """What was told of a call: that it goes on, the text of its result, or that of what was raised."""

    number: int
    what: Literal["progress", "result", "raised"]
    text: str = ""


class Down(Exception):
    """The client has ended by itself; what it said of that is on stderr."""


class Agent:
    """A client that is connected, in a process of its own."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._asked = 0
        self._told: list[Told] = []
        self.is_down = False
        """Whether it ended by itself."""

    def ask(self, tool: str, *, patience: float = 0, key: str = "", watched: bool = False) -> int:
        """Begin a call and return its number.

        The client gives it up after `patience` seconds; of one that is `watched` progress is told.
        """
        assert self._process.stdin is not None
        self._asked += 1
        asked = {"number": self._asked, "tool": tool, "item": "tea"}
        line = json.dumps({**asked, "patience": patience, "key": key, "watched": watched})
        self._process.stdin.write(line.encode() + b"\n")
        return self._asked

    async def told(self, number: int) -> Told:
        """Wait for what is told next of a call. Raises `Down`."""
        while not (found := [told for told in self._told if told.number == number]):
            self._told.append(msgspec.json.decode(await self.line(), type=Told))
        self._told.remove(found[0])
        return found[0]

    async def call(self, tool: str, *, patience: float = 0, key: str = "") -> Told:
        """Make a call and wait for what comes of it."""
        return await self.told(self.ask(tool, patience=patience, key=key))

    async def line(self) -> bytes:
        """Wait for the next line that it prints. Raises `Down`."""
        assert self._process.stdout is not None
        async with asyncio.timeout(_ANSWERED):
            line = await self._process.stdout.readline()
        if not line:
            self.is_down = True
            raise Down
        return line

    async def end(self) -> None:
        """Let it close its session and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(_ANSWERED):
            code = await self._process.wait()
        assert code == 0, f"the client ended with {code}"

    async def die(self) -> None:
        """End it the hard way, if it runs."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def agent(script: str, revision: str, url: str) -> AsyncGenerator[Agent]:
    """Connect until the block ends; an agent that has ended before is left as it is."""
    process = await asyncio.create_subprocess_exec(
        *map(str, _command(script, revision, url)), stdin=PIPE, stdout=PIPE, env=rig.environment()
    )
    one = Agent(process)
    try:
        assert json.loads(await one.line()) == "connected"
        yield one
        if process.returncode is None and not one.is_down:
            await one.end()
    finally:
        await one.die()


def _command(script: str, revision: str, url: str) -> list[Any]:
    if script.endswith(".mjs"):
        return [*rig.node_script(script), url, url, revision, "./repeats.mjs"]
    python: Path = rig.PYTHON_ONE if script.endswith("_one.py") else rig.PYTHON_TWO
    return [python, rig.HERE / "clients" / script, url, revision]
