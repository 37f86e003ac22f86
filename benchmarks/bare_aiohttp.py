"""The control: the plainest fair proxy that aiohttp allows, on its low-level server.

It reads the request's body whole, forwards it by one shared ClientSession with everything off
that ClientSession adds, and relays the answer's chunks as they come. It knows nothing of tools.
The first line on stdout is `{"port": N}`; it ends on SIGTERM.
"""

import asyncio
import signal
import sys
from collections.abc import Mapping

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict
from yarl import URL

# RFC 9110 7.6.1: these belong to one connection. Host is the upstream's.
_HOP_BY_HOP = (
    "Connection",
    "Keep-Alive",
    "Proxy-Authenticate",
    "Proxy-Authorization",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
)
_OWN_REQUEST = (*_HOP_BY_HOP, "Host", "Content-Length")
_NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class Proxy:
    """Forwards every request to one origin."""

    def __init__(self, origin: str, session: ClientSession) -> None:
        self.origin = origin
        self.session = session

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Forward one request and relay its answer."""
        body = await request.read()
        url = URL(self.origin + request.raw_path, encoded=True)
        async with self.session.request(
            request.method,
            url,
            headers=without(request.headers, _OWN_REQUEST),
            data=body or None,
            allow_redirects=False,
        ) as answer:
            headers = without(answer.headers, _HOP_BY_HOP)
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response


def without(headers: Mapping[str, str], names: tuple[str, ...]) -> CIMultiDict[str]:
    """Return a copy of `headers` that lacks `names`."""
    kept = CIMultiDict(headers)
    for name in names:
        kept.popall(name, None)
    return kept


async def serve(origin: str) -> None:
    """Listen on a free port until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    session = ClientSession(
        connector=TCPConnector(limit=0),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        timeout=ClientTimeout(total=None),
        skip_auto_headers=_NOT_ADDED,
    )
    async with session:
        server = web.Server(Proxy(origin, session).handle, access_log=None)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        print(f'{{"port": {listener.sockets[0].getsockname()[1]}}}', flush=True)
        await stop.wait()
        listener.close()
        await server.shutdown(1.0)


def main() -> None:
    """Proxy to the origin named on the command line."""
    asyncio.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
