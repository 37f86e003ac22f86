"""The application as an upstream of its own process: over a socketpair, cancelled with its caller."""

import asyncio

import pytest
from aiohttp import web

from turnlog.api.application import serving
from turnlog.engine.http.own_pages import APPLICATION, resource_of
from turnlog.record.deadlines import Progress
from turnlog.transport.http_client import Answer, Upstreams
from turnlog.transport.message_heads import outgoing_head


async def get(upstreams: Upstreams, path: str = "/") -> Answer:
    head = outgoing_head(APPLICATION, "GET", path, b"\r\nHost: turnlog")
    return await upstreams.send(APPLICATION, head, b"", Progress())


async def test_a_connection_is_used_again_and_has_no_port() -> None:
    connections: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        connections.append(id(request.transport))
        assert not request.transport.get_extra_info("peername")
        return web.Response(body=b"done")

    app = web.Application()
    app.router.add_get("/", answer)
    async with Upstreams() as upstreams, serving(app) as accept:
        upstreams.add_here(APPLICATION, accept)
        for _ in range(3):
            found = await get(upstreams)
            assert await found.read() == b"done"
            await found.close()
    assert len(set(connections)) == 1


async def test_a_request_that_is_given_up_cancels_its_handler() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return web.Response()

    app = web.Application()
    app.router.add_get("/", wait)
    async with Upstreams() as upstreams, serving(app) as accept:
        upstreams.add_here(APPLICATION, accept)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(get(upstreams))
            await begun.wait()
            asking.cancel()
        async with asyncio.timeout(10):
            await ended.wait()


@pytest.mark.parametrize(
    ("path", "query", "resource"),
    [
        ("/turnlog/api", "", "/turnlog/api"),
        ("/turnlog/l%6Fg", "a=%20&b=+", "/turnlog/l%256Fg?a=%20&b=+"),
        ("/turnlog/a#b", "", "/turnlog/a%23b"),
        ("/turnlog/\udcff", "", "/turnlog/%FF"),
    ],
)
def test_a_path_is_quoted_once_more(path: str, query: str, resource: str) -> None:
    assert resource_of(path, query) == resource
