"""`api.api`: an answer to what is queued to be written has no time limit but the disk's."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kit.attempts import Collected, ask, session
from kit.clients import Client, Response
from kit.holding import nobody_writes
from turnlog.api.api import Api
from turnlog.core import ids
from turnlog.core.classify import failed
from turnlog.core.kinds import ErrorKind, Phase
from turnlog.engine.context import Context
from turnlog.engine.http.agent_connection import AgentConnection, AgentServer
from turnlog.engine.http.downstream import Downstream
from turnlog.engine.services import recording
from turnlog.record.attempt import Reply
from turnlog.settings.layers import Flags, read_settings
from turnlog.transport.message_heads import lines
from turnlog.transport.request_heads import AgentRequest

TOKEN = b"t" * 32
LIMIT = 0.05
"""s that the API gives a reader here."""
LONG = 20 * LIMIT


@asynccontextmanager
async def served(context: Context) -> AsyncGenerator[str]:
    """Serve the API; yield its URL."""
    with ThreadPoolExecutor(1) as threads:
        api = Api(context, lambda: TOKEN, threads, limit=LIMIT)

        async def answer(agent: AgentConnection, request: AgentRequest) -> bool:
            down = Downstream(agent, request)
            made = await api.answer(down, down.target, "")
            await down.answer(made.status, made.reason, lines(made.headers), made.body)
            return down.done()

        server = AgentServer(answer, lambda _, __: b"", access_log=None)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            listener.close()
            await server.shutdown(0.1)


async def unknown(context: Context) -> str:
    """Record a call of which nobody knows; return its id."""
    attempt = await context.recorder.begin(ask(session("orders"), context.recorder.new_call()))
    ending = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, attempt.ask.effect)
    ticket = context.recorder.end(attempt, ending, Reply())
    assert ticket is not None
    await ticket.done()
    return ids.to_text(attempt.ask.call)


def post(url: str, path: str, body: bytes) -> Response:
    headers = (("Authorization", f"Bearer {TOKEN.decode()}"),)
    with Client(url) as client:
        return client.request("POST", f"/turnlog/api/v1{path}", body, headers=headers)


@pytest.mark.parametrize("what", ["note", "verdict"])
async def test_what_is_written_late_is_answered_late_and_truly(tmp_path: Path, what: str) -> None:
    flags = Flags(upstreams=("http://127.0.0.1:1/mcp",), data=str(tmp_path / "data"))
    settings = read_settings(flags=flags, environ={}, folder=tmp_path)
    async with recording(settings, Collected()) as context, served(context) as url:
        call = await unknown(context)
        said = {
            "note": ("/sessions/orders/notes", b'{"kind": "decision", "text": "ask first"}'),
            "verdict": (f"/calls/{call}/resolve", b'{"verdict": "happened"}'),
        }
        with nobody_writes(settings.data):
            answer = asyncio.ensure_future(asyncio.to_thread(post, url, *said[what]))
            done, _ = await asyncio.wait({answer}, timeout=LONG)
            assert not done, answer.result()
        given = await answer
        assert given.status == 200
        written = given.json()
        with context.store.view() as view:
            (found,) = view.find_sessions("orders")
            (*_, last) = view.commits(found)
    assert written["seq"] == last.link.seq
