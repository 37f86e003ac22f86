"""What lies under `/turnlog/`: answers of turnlog about itself."""

import asyncio
from typing import Final

from turnlog.api.agent_mcp.http import AgentTools
from turnlog.engine.http.downstream import Downstream
from turnlog.record.own_answers import Made, document, not_allowed, problem
from turnlog.store.base import Store, StoreError
from turnlog.transport.routes import AGENT_TOOLS, API, HEALTH, is_probe

from .api import Api

_BLOCKED: Final = "calls cannot be recorded now; the event store.blocked in turnlog's log says why"
"""The reason names folders, and whoever reaches the port may read this."""


class Own:
    """Answers for `/turnlog/...`."""

    def __init__(self, store: Store, stop: asyncio.Event, api: Api, tools: AgentTools) -> None:
        """`stop` is set as soon as the proxy stops."""
        self._store = store
        self._stop = stop
        self._api = api
        self._tools = tools

    async def answer(self, down: Downstream, path: str, query: str, connection: int) -> Made:
        """Return the answer to a request whose path begins with `/turnlog`. Raises `Gone`."""
        if path == AGENT_TOOLS:
            return await self._tools.answer(down, "", connection)
        if path == API or path.startswith(API + "/"):
            return await self._api.answer(down, path, query)
        if not is_probe(path):
            return problem(404, "Not Found", f"turnlog has no page {path!r}", {})
        if down.method not in {"GET", "HEAD"}:
            return not_allowed(path, ("GET", "HEAD"))
        if path == HEALTH:
            return document({"status": "ok"})
        return self._ready()

    async def answer_within(
        self, down: Downstream, session: str, path: str, connection: int
    ) -> Made:
        """Return the answer to a request whose path is one of turnlog's behind a session's name.

        Raises `Gone`.
        """
        if path == AGENT_TOOLS:
            return await self._tools.answer(down, session, connection)
        return problem(404, "Not Found", f"in a session turnlog has no page {path!r}", {})

    def _ready(self) -> Made:
        if self._stop.is_set():
            return problem(503, "Service Unavailable", "turnlog is stopping", {})
        if self._store.down:
            return problem(503, "Service Unavailable", _BLOCKED, {})
        try:
            with self._store.view():
                return document({"status": "ready"})
        except StoreError:
            return problem(503, "Service Unavailable", "the store cannot be read", {})
