"""Shared by turnlog's own pages: problems as answers, bodies, the caller, snapshots, middlewares."""

import asyncio
import base64
import hmac
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from turnlog.core.identity import CallerEvidence
from turnlog.engine.http.own_pages import CALLER, SECRET
from turnlog.record.own_answers import problem
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View
from turnlog.transport.routes import own_path

T = TypeVar("T")
LARGEST: Final = 256 << 10
"""Bytes of the largest body that any page accepts."""
NO_STORE: Final[Mapping[str, str]] = {hdrs.CACHE_CONTROL: "no-store"}
_CONTENT_TOO_LARGE: Final = 413
_FAULT: Final = "turnlog failed at this request; its log says where"
_log: Final = logging.getLogger(__name__)
_decode_caller = msgspec.json.Decoder(CallerEvidence).decode
_encode = msgspec.json.Encoder().encode


class ProblemError(Exception):
    """The request is answered with a problem document (RFC 9457) that has these members."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, **members: object
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}
        self.members = members

    def response(self) -> web.Response:
        """Return the answer."""
        # RFC 9110 renamed 413; `http` does so since Python 3.13.
        is_large = self.status == _CONTENT_TOO_LARGE
        title = "Content Too Large" if is_large else HTTPStatus(self.status).phrase
        return web.Response(
            status=self.status,
            reason=title,
            headers={hdrs.CONTENT_TYPE: "application/problem+json", **self.headers},
            body=problem(self.status, title, self.detail, self.members).body,
        )


def document(value: object) -> web.Response:
    """Return a JSON document as an answer."""
    return web.Response(body=_encode(value), content_type="application/json")


async def body_of(request: web.Request, limit: int) -> bytes:
    """Return the body of a request. Raises `ProblemError` if it is larger than `limit` bytes."""
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        body = None
    if body is None or len(body) > limit:
        raise ProblemError(_CONTENT_TOO_LARGE, f"the body is larger than {limit} bytes")
    return body


@asynccontextmanager
async def in_time(limit: float) -> AsyncGenerator[None, None]:
    """Raise `ProblemError` when the block takes longer than `limit` seconds."""
    try:
        async with asyncio.timeout(limit):
            yield
    except TimeoutError:
        detail = f"this took more than {limit:g} s, ask for less"
        raise ProblemError(503, detail, NO_STORE) from None


class Snapshots:
    """Reads the store in separate threads, so that a query delays no call."""

    def __init__(self, store: LmdbStore, threads: Executor, limit: float) -> None:
        """A read may take `limit` seconds."""
        self.limit = limit
        self.threads = threads
        self._store = store

    async def read(self, work: Callable[[View], T]) -> T:
        """Return the result of `work` on a snapshot. Raises `ProblemError` if it takes too long."""
        async with in_time(self.limit):
            # Answers to reads do not wait for the disk: their outcomes may not be written yet.
            await self._store.flush()
            return await self._store.read(work, self.threads)


def caller_of(request: web.Request) -> CallerEvidence:
    """Return the caller of a request, as identified by the proxy."""
    return _decode_caller(base64.b64decode(request.headers[CALLER]))


def only_from_proxy(secret: str) -> Middleware:
    """Return a middleware that refuses requests that this process did not relay."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get(SECRET, "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode()):
            return ProblemError(403, "ask turnlog on the address that it listens on").response()
        return await handler(request)

    return check


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with a problem document if a page raises one, does not exist, or fails."""
    path = request.path
    found = own_path(path)
    page = path if found is None else found[1]
    try:
        return await handler(request)
    except ProblemError as error:
        return error.response()
    except web.HTTPNotFound:
        where = "turnlog" if found is None else "in a session turnlog"
        return ProblemError(404, f"{where} has no page {page!r}").response()
    except web.HTTPMethodNotAllowed as error:
        allowed = sorted(error.allowed_methods)
        detail = f"{page} takes {' and '.join(allowed)}"
        return ProblemError(405, detail, {hdrs.ALLOW: ", ".join(allowed)}).response()
    except Exception:  # noqa: BLE001 - a caller gets an answer, whatever fails here
        _log.exception("a request could not be handled")
        return ProblemError(500, _FAULT).response()


async def plain_head(_: web.Request, response: web.StreamResponse) -> None:
    """Remove the fields that aiohttp adds to an answer."""
    for name in (hdrs.SERVER, hdrs.DATE):
        response.headers.pop(name, None)
    if isinstance(response, web.Response) and response.body is None:
        response.headers.pop(hdrs.CONTENT_TYPE, None)
