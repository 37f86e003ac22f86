"""The border to the tool servers: one request out, one answer back, every failure a value.

Behind it works aiohttp's `ClientSession` with everything off that would act on its own: no
cookies, redirects, decompression, proxies from the environment, time limits, or second send.
"""

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Final

import aiohttp
from aiohttp import hdrs
from aiohttp.client_middlewares import ClientHandlerType
from multidict import CIMultiDict
from yarl import URL

from turnlog.core.kinds import Phase
from turnlog.wire.http import Headers

IDLE_LIMIT: Final = 2.0
"""s: an idle connection older than this is closed, not reused. Servers close theirs after 5 s,
and a reset of a reused connection would look like a lost call."""
HEAD_LIMIT: Final = 256 * 1024
"""bytes: longest header line of an answer."""
READ_SIZE: Final = 256 * 1024
_LARGE_BODY: Final = 512 * 1024
_AUTOMATIC: Final = (hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE)

Content = bytes | AsyncIterator[bytes]


class Fault(StrEnum):
    """Why there is no (whole) answer."""

    CONNECT_FAILED = "connect_failed"
    CONNECTION_LOST = "connection_lost"


class Failure(Exception):
    """No answer, or no whole one. Raised only inside this border's two calls."""

    def __init__(self, fault: Fault, phase: Phase, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault
        self.phase = phase
        self.detail = detail


class _Lost(Exception):
    """A connection that broke after it was handed out; not a class that aiohttp retries."""


class Answer:
    """An upstream answer: its head, and its body as it comes in."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Headers = response.raw_headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, never empty. Raises `Failure` when it is cut short."""
        content = self._response.content
        try:
            while chunk := await content.readany():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            if rest := self._unread():
                yield rest
            raise Failure(Fault.CONNECTION_LOST, Phase.BODY, _reason(error)) from error

    def _unread(self) -> bytes:
        # What arrived just before the cut: aiohttp's reader raises before it hands that out.
        buffer = self._response.content._buffer  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        rest = b"".join(buffer)
        buffer.clear()
        return rest

    def close(self) -> None:
        """Give the connection back if the body was read to its end, else break it."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class Upstreams:
    """The connections to all upstreams, pooled by origin. Open and close on the event loop."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_LIMIT),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            skip_auto_headers=_AUTOMATIC,
            read_bufsize=READ_SIZE,
            max_line_size=HEAD_LIMIT,
            max_field_size=HEAD_LIMIT,
            middlewares=(_send_once,),
        )

    async def send(self, method: str, url: str, headers: Headers, body: Content) -> Answer:
        """Send one request, once, and return when the answer's head is there.

        `url` goes out as it is written. Raises `Failure`.
        """
        try:
            response = await self._session.request(
                method,
                URL(url, encoded=True),
                headers=_multidict(headers),
                data=_payload(body),
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Failure(Fault.CONNECT_FAILED, Phase.CONNECTING, _reason(error)) from error
        except (_Lost, aiohttp.ClientError, OSError, ValueError) as error:
            raise Failure(Fault.CONNECTION_LOST, Phase.SENT, _reason(error)) from error
        return Answer(response)

    async def close(self) -> None:
        """Break all connections."""
        await self._session.close()
        # aiohttp closes transports in the loop's next rounds.
        await asyncio.sleep(0)


async def _send_once(
    request: aiohttp.ClientRequest, handler: ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending again after a reused connection broke (RFC 9110 section 9.2.2
    allows that for idempotent methods; turnlog sends nothing twice on its own)."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Lost(_reason(error)) from error


def _payload(body: Content) -> Content | None:
    if isinstance(body, bytes) and len(body) > _LARGE_BODY:
        return _pieces(body)
    return body or None


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), READ_SIZE):
        yield body[start : start + READ_SIZE]


def _multidict(headers: Headers) -> CIMultiDict[str]:
    return CIMultiDict(
        [(k.decode("latin-1"), v.decode("utf-8", "surrogateescape")) for k, v in headers]
    )


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
