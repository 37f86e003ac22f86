"""Who talks to which process, and when one that nobody uses is ended."""

import asyncio
import json
import shlex
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kit.attempts import bench
from kit.clients import call, message
from kit.commands import COMMAND, META, NEWEST, text_of
from kit.proxy import until
from turnlog.engine.command.child import start
from turnlog.engine.command.command_endpoint import IDLE, CommandEndpoint, EndpointRequest
from turnlog.engine.command.supervisor import Supervisor
from turnlog.exchange.principal import PrincipalNames
from turnlog.record.deadlines import Progress
from turnlog.settings.model import Share
from turnlog.transport.http_client import Answer

EVENTS = {b"accept": b"application/json, text/event-stream"}


@asynccontextmanager
async def fronting(
    folder: Path, share: Share, command: Sequence[str] = COMMAND
) -> AsyncGenerator[CommandEndpoint]:
    async with bench(folder) as one, asyncio.TaskGroup() as tasks:

        def supervisor(renames: bool) -> Supervisor:
            return Supervisor(
                "cmd",
                partial(start, command),
                one.log,
                one.recorder,
                tasks,
                lambda: 600.0,
                str,
                renames=renames,
            )

        front = CommandEndpoint(supervisor, share, PrincipalNames())
        yield front
        for left in front.supervisors:
            left.end()


def later() -> float:
    return asyncio.get_running_loop().time() + IDLE + 1


async def post(
    front: CommandEndpoint, body: bytes, fields: dict[bytes, bytes]
) -> tuple[Answer, Any]:
    answer = await front.answer(EndpointRequest("POST", {**EVENTS, **fields}, body, Progress()))
    said = await answer.read()
    await answer.close()
    return answer, json.loads(said) if said else None


async def opened(front: CommandEndpoint) -> dict[bytes, bytes]:
    """Begin a session; return the field that names it."""
    params: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}}
    answer, _ = await post(front, message("initialize", params), {})
    fields = {name.lower(): value for name, value in answer.headers}
    return {b"mcp-session-id": fields[b"mcp-session-id"]}


async def pid(front: CommandEndpoint, fields: dict[bytes, bytes]) -> str:
    return text_of((await post(front, call("pid"), fields))[1])


async def stateless_pid(front: CommandEndpoint, credential: bytes) -> str:
    fields = {
        b"authorization": credential,
        b"mcp-protocol-version": NEWEST.encode(),
        b"mcp-method": b"tools/call",
        b"mcp-name": b"pid",
    }
    return text_of((await post(front, call("pid", _meta=META), fields))[1])


@pytest.mark.parametrize("share", Share)
async def test_a_process_that_nobody_uses_is_ended_and_its_sessions_go_on(
    tmp_path: Path, share: Share
) -> None:
    async with fronting(tmp_path, share) as front:
        one, two = await opened(front), await opened(front)
        before = {await pid(front, fields) for fields in (one, two)}
        front.rest(later())
        after = {await pid(front, fields) for fields in (one, two)}
        assert len(before) == len(after) == (1 if share is Share.ALL else 2)
        assert not before & after


async def test_who_opens_at_the_same_time_meets_in_one_process(tmp_path: Path) -> None:
    async with fronting(tmp_path, Share.ALL) as front:
        sessions = await asyncio.gather(*(opened(front) for _ in range(3)))
        assert len({await pid(front, fields) for fields in sessions}) == 1


async def test_who_leaves_before_the_command_has_answered_keeps_no_other_from_opening(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "started"
    # The first process says nothing.
    script = f"test -e {mark} && exec {shlex.join(COMMAND)}; touch {mark}; exec sleep 300"
    async with (
        fronting(tmp_path / "store", Share.ALL, ("sh", "-c", script)) as front,
        asyncio.TaskGroup() as tasks,
    ):
        leaves, stays = (tasks.create_task(opened(front)) for _ in range(2))
        await until(lambda: mark.exists() or None, "the first process")
        leaves.cancel()
        assert await pid(front, await stays)
        assert len(front.supervisors) == 1


async def test_a_session_that_listens_keeps_the_process_of_all(tmp_path: Path) -> None:
    async with fronting(tmp_path, Share.ALL) as front:
        one, two = await opened(front), await opened(front)
        before = await pid(front, two)
        stream = await front.answer(EndpointRequest("GET", {**EVENTS, **one}, b"", Progress()))
        front.rest(later())
        assert await pid(front, two) == before
        await stream.close()
        front.rest(later())
        assert await pid(front, two) != before


@pytest.mark.parametrize("share", Share)
async def test_a_call_that_nobody_waits_for_keeps_no_process(tmp_path: Path, share: Share) -> None:
    async with fronting(tmp_path, share) as front, asyncio.TaskGroup() as tasks:
        one = await opened(front)
        hanging = tasks.create_task(post(front, call("hang", request_id="left"), one))
        before = await pid(front, one)
        front.rest(later())
        assert await pid(front, one) == before
        hanging.cancel()
        await asyncio.wait({hanging})
        front.rest(later())
        assert await pid(front, one) != before


async def test_credentials_share_a_process_as_configured(tmp_path: Path) -> None:
    for share, count in ((Share.SESSION, 2), (Share.ALL, 1)):
        async with fronting(tmp_path / share, share) as front:
            before = {await stateless_pid(front, name) for name in (b"one", b"two")}
            assert len(before) == len(front.supervisors) == count
            front.rest(later())
            assert not front.supervisors
            assert await stateless_pid(front, b"one") not in before
