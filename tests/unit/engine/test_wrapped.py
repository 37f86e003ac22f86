"""How long a wrapped command and its client are waited for at the end, with a short limit."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from kit.attempts import Collected
from kit.clients import BOUND, call, message
from kit.wraps import End
from turnlog.app.wrap import request_of
from turnlog.engine.services import recording
from turnlog.engine.stdio.wrapped import Wrapped
from turnlog.settings.layers import Flags, read_wrap_settings
from turnlog.transport.child_process import start

MUTE = "exec sleep 300"


class Client(Struct, frozen=True):
    """The client of one wrap: its ends of the pipes, and the relay's exit code to come."""

    stdin: End
    stdout: End
    relay: "asyncio.Task[int]"
    their_stdin: int

    async def exited(self) -> int:
        """Wait for the end of the relay; return the command's exit code."""
        async with asyncio.timeout(BOUND):
            code = await self.relay
        assert not asyncio.get_running_loop().remove_reader(self.their_stdin)
        return code


@asynccontextmanager
async def wrapping(folder: Path, script: str) -> AsyncGenerator[Client]:
    """Wrap a shell script in this process."""
    theirs, stdin = os.pipe()
    stdout, ours = os.pipe()
    settings = read_wrap_settings(Flags(data=str(folder / "data")), "sh")
    async with recording(settings, Collected()) as context, asyncio.TaskGroup() as tasks:
        child = start(("sh", "-c", script))
        request = request_of(context, "sh", ("sh",), "", {})
        wrapped = Wrapped(child, context, request, stdin=theirs, stdout=ours, stall_limit=0.05)
        client = Client(End(stdin), End(stdout), tasks.create_task(wrapped.relay()), theirs)
        try:
            yield client
        finally:
            client.stdin.close()
            client.stdout.close()
            child.end()
    os.close(theirs)


async def test_a_silent_command_that_ignores_the_end_of_its_input_is_ended(tmp_path: Path) -> None:
    async with wrapping(tmp_path, MUTE) as client:
        client.stdin.close()
        assert await client.exited() == -signal.SIGTERM


async def test_a_request_that_was_cancelled_is_not_waited_for(tmp_path: Path) -> None:
    cancel = message("notifications/cancelled", {"requestId": 1}, request_id=None)
    async with wrapping(tmp_path, MUTE) as client:
        client.stdin.send(message("resources/list", request_id=1) + b"\n" + cancel + b"\n")
        client.stdin.close()
        assert await client.exited() == -signal.SIGTERM


@pytest.mark.promise("PIPE-6")
async def test_a_batch_is_waited_for_until_it_is_answered(tmp_path: Path) -> None:
    answers = [b'{"jsonrpc":"2.0","id":%d,"result":{}}' % number for number in (1, 2)]
    said = b"[%b,%b]\n" % tuple(answers)
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f"read line; read word <{go}; echo '{said.decode().strip()}'; {MUTE}"
    async with wrapping(tmp_path, script) as client:
        calls = (call("a", request_id=1), call("b", request_id=2))
        client.stdin.send(b"[%b,%b]\n" % calls)
        client.stdin.close()
        await asyncio.to_thread(go.write_text, "word\n")
        assert await client.exited() == -signal.SIGTERM
        assert client.stdout.line() == said


async def test_a_client_that_reads_nothing_after_the_command_has_ended_is_not_waited_for(
    tmp_path: Path,
) -> None:
    async with wrapping(tmp_path, f"yes {'x' * 999} | head -c 500000; exit 3") as client:
        assert await client.exited() == 3
