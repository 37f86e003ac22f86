"""Which process serves whom, and when one without requests is ended."""

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
from turnlog.engine.command.command_endpoint import IDLE, CommandEndpoint, EndpointRequest
from turnlog.engine.command.supervisor import Supervisor
from turnlog.exchange.principal import PrincipalNames
from turnlog.record.deadlines import Progress
from turnlog.settings.model import Share
from turnlog.transport.child_process import start
from turnlog.transport.http_client import Answer

EVENTS = {b"accept": b"application/json, text/event-stream"}


@asynccontextmanager
async def serving(
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

        endpoint = CommandEndpoint(supervisor, share, PrincipalNames())
        yield endpoint
        for left in endpoint.supervisors:
            left.end()


def later() -> float:
    return asyncio.get_running_loop().time() + IDLE + 1


async def post(
    endpoint: CommandEndpoint, body: bytes, fields: dict[bytes, bytes]
) -> tuple[Answer, Any]:
    answer = await endpoint.answer(EndpointRequest("POST", {**EVENTS, **fields}, body, Progress()))
    said = await answer.read()
    await answer.close()
    return answer, json.loads(said) if said else None


async def opened(endpoint: CommandEndpoint) -> dict[bytes, bytes]:
    """Begin a session; return the field that names it."""
    params: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}}
    answer, _ = await post(endpoint, message("initialize", params), {})
    fields = {name.lower(): value for name, value in answer.head.raw}
    return {b"mcp-session-id": fields[b"mcp-session-id"]}


async def pid(endpoint: CommandEndpoint, fields: dict[bytes, bytes]) -> str:
    return text_of((await post(endpoint, call("pid"), fields))[1])


async def stateless_pid(endpoint: CommandEndpoint, credential: bytes) -> str:
    fields = {
        b"authorization": credential,
        b"mcp-protocol-version": NEWEST.encode(),
        b"mcp-method": b"tools/call",
        b"mcp-name": b"pid",
    }
    return text_of((await post(endpoint, call("pid", _meta=META), fields))[1])


@pytest.mark.parametrize("share", Share)
async def test_a_process_without_requests_is_ended_and_its_sessions_go_on(
    tmp_path: Path, share: Share
) -> None:
    async with serving(tmp_path, share) as endpoint:
        one, two = await opened(endpoint), await opened(endpoint)
        before = {await pid(endpoint, fields) for fields in (one, two)}
        endpoint.rest(later())
        after = {await pid(endpoint, fields) for fields in (one, two)}
        assert len(before) == len(after) == (1 if share is Share.ALL else 2)
        assert not before & after


async def test_sessions_that_begin_at_the_same_time_share_one_process(tmp_path: Path) -> None:
    async with serving(tmp_path, Share.ALL) as endpoint:
        sessions = await asyncio.gather(*(opened(endpoint) for _ in range(3)))
        assert len({await pid(endpoint, fields) for fields in sessions}) == 1


async def test_a_client_that_leaves_before_the_handshake_is_answered_keeps_no_other_from_beginning(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "started"
    # The first process says nothing.
    script = f"test -e {mark} && exec {shlex.join(COMMAND)}; touch {mark}; exec sleep 300"
    async with (
        serving(tmp_path / "store", Share.ALL, ("sh", "-c", script)) as endpoint,
        asyncio.TaskGroup() as tasks,
    ):
        leaves, stays = (tasks.create_task(opened(endpoint)) for _ in range(2))
        await until(lambda: mark.exists() or None, "the first process")
        leaves.cancel()
        assert await pid(endpoint, await stays)
        assert len(endpoint.supervisors) == 1


async def test_a_session_that_listens_keeps_the_process_of_all(tmp_path: Path) -> None:
    async with serving(tmp_path, Share.ALL) as endpoint:
        one, two = await opened(endpoint), await opened(endpoint)
        before = await pid(endpoint, two)
        stream = await endpoint.answer(EndpointRequest("GET", {**EVENTS, **one}, b"", Progress()))
        endpoint.rest(later())
        assert await pid(endpoint, two) == before
        await stream.close()
        endpoint.rest(later())
        assert await pid(endpoint, two) != before


@pytest.mark.parametrize("share", Share)
async def test_a_call_without_a_client_that_waits_keeps_no_process(
    tmp_path: Path, share: Share
) -> None:
    async with serving(tmp_path, share) as endpoint, asyncio.TaskGroup() as tasks:
        one = await opened(endpoint)
        hanging = tasks.create_task(post(endpoint, call("hang", request_id="left"), one))
        before = await pid(endpoint, one)
        endpoint.rest(later())
        assert await pid(endpoint, one) == before
        hanging.cancel()
        await asyncio.wait({hanging})
        endpoint.rest(later())
        assert await pid(endpoint, one) != before


async def test_credentials_share_a_process_as_configured(tmp_path: Path) -> None:
    for share, count in ((Share.SESSION, 2), (Share.ALL, 1)):
        async with serving(tmp_path / share, share) as endpoint:
            before = {await stateless_pid(endpoint, name) for name in (b"one", b"two")}
            assert len(before) == len(endpoint.supervisors) == count
            endpoint.rest(later())
            assert not endpoint.supervisors
            assert await stateless_pid(endpoint, b"one") not in before
