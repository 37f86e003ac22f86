"""The API under `/turnlog/api`: token, parameters, and problems for errors."""

import asyncio
import hmac
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Struct

from turnlog.core.hints import Hint, in_words
from turnlog.engine.context import Context
from turnlog.engine.http.own_pages import METHOD
from turnlog.observe.events import RefusalReason, RequestRefused, StoreFailed
from turnlog.packs.shape import UNREADABLE, describe_json_error, mismatch_of
from turnlog.sessions.errors import (
    CompactedError,
    NotFoundError,
    NotHeldError,
    SessionsError,
    UnresolvableError,
)
from turnlog.store.base import (
    REFUSALS,
    Conflict,
    LeaseRefused,
    Refusal,
    StoreError,
    StoreFull,
    TransitionRefused,
)
from turnlog.transport.routes import API

from .endpoints import ENDPOINTS, ApiRequest, ReadEndpoint, WriteEndpoint
from .openapi import description
from .pages import NO_STORE, ProblemError, Snapshots, body_of, document, in_time
from .parameters import BadParameterError

HINTS: Final = {
    Hint.SESSIONS: "`GET /sessions` lists them",
    Hint.CALLS: "`GET /log` names them",
    Hint.CALLS_OF_SESSION: "`GET /log` names its calls",
    Hint.DANGLING: "`GET /dangling` lists those that can be resolved",
    Hint.LATER_STATE: "ask for a later one, as with `at={}` or `seq={}..`",
    Hint.GO_ON_HERE: "import its bundle from there to go on here, or give `anyway` to go on without what was done there",
    Hint.UNPACK: "do this there, or first let the session go on here (`POST /sessions/{session}/lifecycle`)",
    Hint.RELEASE: "`POST /sessions/{session}/release` ends the hold",
    Hint.LEASE_NUMBER: "give it by `fence`, `GET /sessions` has it",
    Hint.BRANCH: "name the one whose later calls your choice is for by `session`",
    Hint.UNCLAIM: "wait, or end it by `POST /sessions/{session}/lifecycle`",
}
_NO_ROOM: Final = "no room is left in the store; the log says how much it needs"
_UNUSABLE: Final = "the store cannot be read or written now; the log says why"
_LARGEST: Final = 64 << 10
"""Bytes of a request's body."""


class Api:
    """Answers for `/turnlog/api/...`."""

    def __init__(self, context: Context, token: Callable[[], bytes], snapshots: Snapshots) -> None:
        """`token` returns the token; it raises `StoreError`."""
        self._context = context
        self._read_token = token
        self._snapshots = snapshots
        self._token = b""
        with suppress(ProblemError):
            self._known_token()

    def application(self) -> web.Application:
        """Return the application that is mounted at `/turnlog/api`."""
        app = web.Application(middlewares=[self._token_check(), _no_page])
        app.on_response_prepare.append(_private)
        app.router.add_get("/openapi.json", self._describe)
        for endpoint in ENDPOINTS:
            path = "/v1" + endpoint.path.replace("}", ":[^/]+}")
            match endpoint:
                case ReadEndpoint():
                    app.router.add_get(path, partial(self._read, endpoint))
                case WriteEndpoint():
                    app.router.add_post(path, partial(self._write, endpoint))
        return app

    async def _describe(self, request: web.Request) -> web.Response:
        _pairs(_query_of(request), ())
        return document(await asyncio.to_thread(_described))

    async def _read(self, endpoint: ReadEndpoint, request: web.Request) -> web.Response:
        api_request = self._api_request(endpoint, request)
        with self._as_problems():
            return await self._snapshots.read(
                lambda view: document(endpoint.read(view, api_request))
            )

    async def _write(self, endpoint: WriteEndpoint, request: web.Request) -> web.Response:
        async with in_time(self._snapshots.limit):
            api_request = self._api_request(endpoint, request)
            body = await _body(endpoint, request)
        # No time limit from here on: what is queued will be written, so a timeout would be wrong.
        with self._as_problems():
            return document(await endpoint.write(self._context, api_request, body))

    def _api_request(
        self, endpoint: ReadEndpoint | WriteEndpoint, request: web.Request
    ) -> ApiRequest:
        return ApiRequest(
            names={name: unquote(text) for name, text in request.match_info.items()},
            query=_query(_query_of(request), endpoint.query),
            now=self._context.clock.wall(),
            saved=self._context.saved_states,
            threads=self._snapshots.threads,
        )

    @contextmanager
    def _as_problems(self) -> Generator[None]:
        """Raise errors of the store and of the use cases as `ProblemError`."""
        try:
            yield
        except BadParameterError as error:
            raise _bad(error.name, str(error)) from error
        except (SessionsError, *REFUSALS) as error:
            raise _problem_of(error) from error
        except StoreError as error:
            # Its text names folders of this host.
            self._context.log.emit(StoreFailed(reason=str(error)))
            no_room = isinstance(error, StoreFull)
            raise ProblemError(503, _NO_ROOM if no_room else _UNUSABLE) from error

    def _token_check(self) -> Middleware:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            # A repeated field is joined by commas and never equals the token (RFC 9110 section 5.3).
            joined = ", ".join(request.headers.getall(hdrs.AUTHORIZATION, ()))
            scheme, _, given = joined.encode("utf-8", "surrogateescape").partition(b" ")
            known = self._known_token()
            if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(b" "), known):
                return await handler(request)
            raise self._refused(request, was_given=bool(given))

        return check

    def _refused(self, request: web.Request, *, was_given: bool) -> ProblemError:
        method = self._context.clean(request.headers[METHOD])
        self._context.log.emit(
            RequestRefused(reason=RefusalReason.TOKEN, http_method=method, http_status=401)
        )
        challenge = 'Bearer realm="turnlog"' + (', error="invalid_token"' if was_given else "")
        detail = "give the token that DATA/token holds: `Authorization: Bearer TOKEN`"
        return ProblemError(401, detail, {hdrs.WWW_AUTHENTICATE: challenge})

    def _known_token(self) -> bytes:
        """Return the token. If it cannot be read, API requests are refused; calls go on."""
        if not self._token:
            try:
                self._token = self._read_token()
            except StoreError as error:
                self._context.log.emit(StoreFailed(reason=str(error)))
                detail = "the token of the API cannot be read or made; the log says why"
                raise ProblemError(503, detail) from error
        return self._token


@web.middleware
async def _no_page(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        raise ProblemError(
            404,
            f"the API has no {request.path!r}; `GET /turnlog/api/openapi.json` lists what it has",
        ) from None


async def _private(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(NO_STORE)


def _query_of(request: web.Request) -> str:
    """Return the query as it was sent, still encoded."""
    return request.raw_path.partition("?")[2]


def _query(text: str, kind: type[Struct]) -> Struct:
    pairs = _pairs(text, kind.__struct_fields__)
    try:
        return msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        found = mismatch_of(error, pairs, kind)
        detail, name = f"parameter {found.message}", str((*found.steps, found.missing)[0] or "")
        raise ProblemError(400, detail, parameter=name) from error


def _pairs(text: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return the parameters of a query, each of which must be known and occur once."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise ProblemError(400, f"the query is unreadable: {error}") from error
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            words = ", ".join(known) or "none"
            raise _bad(name, f"it is unknown, known are: {words}")
        if name in found:
            raise _bad(name, "it is given twice")
        found[name] = value
    return found


def _bad(name: str, why: str) -> ProblemError:
    return ProblemError(400, f"parameter {name!r}: {why}", parameter=name)


async def _body(endpoint: WriteEndpoint, request: web.Request) -> Any:
    body = await body_of(request, _LARGEST)
    try:
        return endpoint.read(body)
    except UNREADABLE as error:
        why = describe_json_error(error, body, endpoint.body, "it")
    except ValueError as error:
        why = str(error)
    raise ProblemError(400, f"the body is invalid: {why}")


def _problem_of(error: SessionsError | Refusal) -> ProblemError:
    detail = in_words(error, HINTS)
    match error:
        case NotHeldError():
            return ProblemError(409, detail, reason="not_held")
        case NotFoundError():
            return ProblemError(404, detail)
        case CompactedError():
            return ProblemError(410, detail, reason="compacted", first=error.first)
        case UnresolvableError():
            return ProblemError(409, detail, reason=error.reason)
        case TransitionRefused():
            return ProblemError(409, detail, head=error.seq, stage=error.stage, action=error.action)
        case LeaseRefused():
            return ProblemError(409, detail, head=error.seq, fence=error.fence)
        case Conflict():
            return ProblemError(409, detail, head=error.seq)
        case _:
            return ProblemError(400, detail)


@cache
def _described() -> dict[str, Any]:
    return description(ENDPOINTS, f"{API}/v1")
