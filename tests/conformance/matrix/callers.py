"""Clients of the official SDKs that make one call after the other and tell what they saw of each."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp.types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    TextContent,
)

from conformance.matrix import rig

T = TypeVar("T")

Target = str | Sequence[str | Path]
"""What a client connects to: a URL, or the command of a stdio server."""

_ANSWERED: Final = 60.0
"""s within which a client has started, has made a call, or has ended."""
_LINE: Final = 1 << 24
"""bytes: the longest line that a client may print."""


class Asked(msgspec.Struct, frozen=True):
    """A call, taken back after `cancel_at` reports of progress; 0 is never."""

    tool: str
    arguments: dict[str, Any] = {}
    cancel_at: int = 0


class Seen(msgspec.Struct, frozen=True):
    """The progress of a call, and its result; none where it was taken back."""

    steps: list[float]
    result: dict[str, Any] | None

    @property
    def failed(self) -> bool:
        """Whether the result says that the tool failed."""
        return self.result is not None and bool(self.result.get("isError"))


class Session(msgspec.Struct, frozen=True):
    """A client that is connected: the names of all tools, and what makes a call."""

    tools: list[str]
    call: Callable[[Asked], Awaitable[Seen]]


class Caller(Protocol):
    """Opens a session; `variables` are added to the environment of a command."""

    def __call__(
        self, target: Target, variables: Mapping[str, str], /
    ) -> AbstractAsyncContextManager[Session]:
        """Connect until the block ends."""
        ...


@asynccontextmanager
async def python(target: Target, variables: Mapping[str, str]) -> AsyncGenerator[Session]:
    """Call with the Python SDK."""
    server = _server(target, variables)
    async with Client(server, elicitation_callback=_elicit, sampling_callback=_sample) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        yield Session(tools, partial(_call, client))


def _server(target: Target, variables: Mapping[str, str]) -> Any:
    if isinstance(target, str):
        return target
    program, *arguments = map(str, target)
    environ = rig.environment(**variables)
    server = StdioServerParameters(command=program, args=arguments, env=environ)
    return stdio_client(server, errlog=sys.stderr)


async def _call(client: Client, asked: Asked) -> Seen:
    steps: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)
        if len(steps) == asked.cancel_at:
            call.cancel()

    call = asyncio.ensure_future(
        client.call_tool(asked.tool, asked.arguments, progress_callback=note)
    )
    try:
        return Seen(steps, json.loads((await call).model_dump_json(by_alias=True)))
    except asyncio.CancelledError:
        return Seen(steps, None)


async def _elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def _sample(
    context: ClientRequestContext, params: CreateMessageRequestParams
) -> CreateMessageResult:
    text = TextContent(type="text", text=f"a line within {params.max_tokens} tokens")
    return CreateMessageResult(role="assistant", content=text, model="scripted")


@asynccontextmanager
async def typescript(
    script: str, revision: str, target: Target, variables: Mapping[str, str]
) -> AsyncGenerator[Session]:
    """Call with a TypeScript SDK, by the script of its line."""
    command = rig.node_script(script)
    wanted = target if isinstance(target, str) else json.dumps(list(map(str, target)))
    process = await asyncio.create_subprocess_exec(
        *(*map(str, command), wanted, wanted, revision, "./calls.mjs"),
        stdin=PIPE,
        stdout=PIPE,
        env=rig.environment(**variables),
        limit=_LINE,
    )
    try:
        yield Session(await _told(process, list[str]), partial(_ask, process))
        await _end(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ask(process: Process, asked: Asked) -> Seen:
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(asked) + b"\n")
    return await _told(process, Seen)


async def _told(process: Process, what: type[T]) -> T:
    assert process.stdout is not None
    async with asyncio.timeout(_ANSWERED):
        line = await process.stdout.readline()
    assert line, "the client has ended: what it said of that is on stderr"
    return msgspec.json.decode(line, type=what)


async def _end(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    async with asyncio.timeout(_ANSWERED):
        code = await process.wait()
    assert code == 0, f"the client ended with {code}"


CALLERS: Final[Mapping[str, Caller]] = {
    "python": python,
    "typescript-1": partial(typescript, "typescript_one.mjs", "2025-11-25"),
    "typescript-2-legacy": partial(typescript, "typescript_two.mjs", "2025-11-25"),
    "typescript-2-auto": partial(typescript, "typescript_two.mjs", "auto"),
}
"""The reference servers speak the handshake eras: `auto` asks for more, as the Python SDK does."""
