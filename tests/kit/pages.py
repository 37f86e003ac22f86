"""turnlog's own pages without a proxy before them: the application on a real store, and a client."""

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient
from yarl import URL

from turnlog.api.application import ANSWER_TIME, application
from turnlog.core import ids
from turnlog.core.classify import Ending, failed, succeeded
from turnlog.core.identity import CallerEvidence
from turnlog.core.kinds import Effect, ErrorKind, Phase
from turnlog.engine.context import Context
from turnlog.engine.http.own_pages import CALLER, METHOD, SECRET, resource_of
from turnlog.engine.services import recording
from turnlog.exchange.outcome import AnswerFacts
from turnlog.settings.layers import Flags, read_settings
from turnlog.store.base import SessionRef

from .attempts import Collected, ask, session

TOKEN = "t" * 32
_SECRET = "of this test"
V1 = "/turnlog/api/v1"
Connect: TypeAlias = Callable[
    [web.Application], Awaitable[TestClient[web.Request, web.Application]]
]
"""The fixture `aiohttp_client` of pytest-aiohttp."""


class Answered(msgspec.Struct, frozen=True):
    """An answer that has been read."""

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return what the body holds."""
        return msgspec.json.decode(self.body)

    def problem(self, status: int) -> dict[str, Any]:
        """Check that this is a problem of that status; return it."""
        assert self.status == status, self.body
        assert self.headers["Content-Type"] == "application/problem+json"
        said: dict[str, Any] = self.json()
        assert (said["status"], said["title"]) == (status, self.reason)
        return said


class Pages:
    """The application, asked as the proxy's relay asks it."""

    def __init__(
        self,
        context: Context,
        log: Collected,
        client: TestClient[web.Request, web.Application],
        data: Path,
    ) -> None:
        self.context = context
        self.log = log
        self.data = data
        self._client = client
        self._sessions: dict[str, SessionRef] = {}

    async def ask(
        self,
        target: str,
        method: str = "GET",
        body: bytes = b"",
        *,
        headers: tuple[tuple[str, str], ...] = (),
        caller: CallerEvidence | None = None,
        secret: str = _SECRET,
    ) -> Answered:
        """Send a request for a page, with the fields that the relay adds."""
        path, _, query = target.partition("?")
        said = base64.b64encode(
            msgspec.json.encode(caller or CallerEvidence(connection=1))
        ).decode()
        private = ((SECRET, secret), (CALLER, said), (METHOD, method))
        url = URL(resource_of(path, query), encoded=True)
        async with self._client.request(
            method, url, data=body or None, headers=[*headers, *private]
        ) as answer:
            return await _read(answer)

    async def api(
        self, path: str, method: str = "GET", body: bytes = b"", token: str = TOKEN
    ) -> Answered:
        """Send a request to the API with a token."""
        bearer = ("Authorization", f"Bearer {token}")
        return await self.ask(V1 + path, method, body, headers=(bearer,))

    async def found(self, path: str) -> Any:
        """Return what the API has under a path."""
        answer = await self.api(path)
        assert answer.status == 200, answer.body
        assert answer.headers["Content-Type"] == "application/json"
        return answer.json()

    async def call(
        self,
        tool: str = "write",
        *,
        arguments: bytes = b"{}",
        content: bytes = b'{"content":[{"type":"text","text":"done"}]}',
        ending: Ending | None = None,
        name: str = "trip",
        effect: Effect = Effect.UNKNOWN,
    ) -> str:
        """Record a call of the session `name` that has ended; return its id."""
        recorder = self.context.recorder
        ref = self._sessions.setdefault(name, session(name))
        asked = ask(ref, recorder.new_call(), tool=tool, arguments=arguments, effect=effect)
        attempt = await recorder.begin(asked)
        reply = AnswerFacts(
            http_status=200,
            content=content,
            media_type="application/json",
            is_mcp=True,
            is_result=True,
            size=len(content),
        )
        if (ticket := recorder.end(attempt, ending or succeeded(), reply)) is not None:
            await ticket.done()
        return ids.to_text(asked.call)

    async def unknown(
        self, tool: str = "send", arguments: bytes = b"{}", effect: Effect = Effect.UNKNOWN
    ) -> str:
        """Record a call of which nobody knows how it ended; return its id."""
        lost = failed(ErrorKind.CONNECTION_LOST, Phase.SENT, effect)
        return await self.call(tool, arguments=arguments, content=b"", ending=lost, effect=effect)


async def _read(answer: ClientResponse) -> Answered:
    return Answered(answer.status, answer.reason or "", dict(answer.headers), await answer.read())


@asynccontextmanager
async def own_pages(
    folder: Path, connect: Connect, *, limit: float = ANSWER_TIME
) -> AsyncGenerator[Pages]:
    """Open a store in `folder` and start the application; `limit` is what an answer may take, in s."""
    flags = Flags(upstreams=("http://127.0.0.1:1/mcp",), data=str(folder / "data"))
    settings = read_settings(flags=flags, environ={}, folder=folder)
    log = Collected()
    with ThreadPoolExecutor(1) as threads:
        async with recording(settings, log) as context:
            app = application(context, _SECRET, TOKEN.encode, threads, limit=limit)
            client = await connect(app)
            yield Pages(context, log, client, settings.data)
            await client.close()
