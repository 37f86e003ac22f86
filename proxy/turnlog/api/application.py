"""The aiohttp application of everything under `/turnlog/` but health and readiness.

It has no port of its own: `engine.http.own_pages` relays requests to it.
"""

from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from turnlog.engine.context import Context
from turnlog.transport.routes import AGENT_TOOLS, API

from .agent_mcp.http import AgentTools
from .api import Api
from .pages import LARGEST, Snapshots, only_from_proxy, plain_head, problems

ANSWER_TIME: Final = 30.0
"""s that the answer to a read may take; writes wait for the disk without a limit."""
_HEAD_LIMIT: Final = 1 << 20
"""Bytes of a line, and number of fields: more than the proxy lets through."""
_STOP_TIME: Final = 0.25
"""s for handlers to end after the proxy has closed its connections."""


def application(
    context: Context,
    secret: str,
    token: Callable[[], bytes],
    threads: Executor,
    *,
    limit: float = ANSWER_TIME,
) -> web.Application:
    """Return the application. `token` reads the API's; it raises `StoreError`. `limit` in s."""
    app = web.Application(middlewares=[only_from_proxy(secret), problems], client_max_size=LARGEST)
    app.on_response_prepare.append(plain_head)
    snapshots = Snapshots(context.store, threads, limit)
    tools = AgentTools(context, snapshots)
    app.router.add_post(AGENT_TOOLS, tools.answer)
    app.router.add_post(f"/s/{{session:[^/]+}}{AGENT_TOOLS}", tools.answer)
    app.add_subapp(API, Api(context, token, snapshots).application())
    return app


@asynccontextmanager
async def serving(app: web.Application) -> AsyncGenerator[web.Server, None]:
    """Start an application; yield the factory of its server-side protocols."""
    runner = web.AppRunner(
        app,
        access_log=None,
        auto_decompress=False,
        handler_cancellation=True,
        max_field_size=_HEAD_LIMIT,
        max_headers=_HEAD_LIMIT,
        max_line_size=_HEAD_LIMIT,
        shutdown_timeout=_STOP_TIME,
    )
    await runner.setup()
    try:
        assert runner.server is not None  # since `setup`
        yield runner.server
    finally:
        await runner.cleanup()
