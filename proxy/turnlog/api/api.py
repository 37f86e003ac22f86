"""The API under `/turnlog/api`: who may ask, which endpoint is meant, and problems for answers.

Snapshots are read in threads of its own: what an operator asks for holds up no call.
"""

import asyncio
import hmac
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from turnlog.engine.context import Context
from turnlog.engine.http.downstream import Downstream
from turnlog.observe.events import RefusalReason, RequestRefused, StoreFailed
from turnlog.packs.shape import UNREADABLE, describe_json_error, mismatch
from turnlog.record.own_answers import Made, document, not_allowed, problem, with_headers
from turnlog.sessions.errors import NoteError, NotFoundError, UnresolvableError
from turnlog.store.base import Conflict, StoreError
from turnlog.transport.routes import API

from .endpoints import ENDPOINTS, Act, Asked, Endpoint, Read, method
from .openapi import description
from .parameters import BadParameterError

_V1: Final = f"{API}/v1"
_OPENAPI: Final = f"{API}/openapi.json"
_TIME: Final = 30.0
"""s that an answer may take; one to what is written waits for the disk."""
_LARGEST: Final = 64 << 10
"""bytes of a request's body."""
_PRIVATE: Final = [(b"Cache-Control", b"no-store")]
_READS: Final = ("GET", "HEAD")


class _Refused(Exception):
    """A request is answered by a problem."""

    def __init__(self, made: Made) -> None:
        super().__init__(made.reason)
        self.made = made


class Api:
    """Answers for `/turnlog/api/...`."""

    def __init__(
        self,
        context: Context,
        token: Callable[[], bytes],
        threads: Executor,
        *,
        limit: float = _TIME,
    ) -> None:
        """`token` reads what requests have to bring; it raises `StoreError`. `limit` in s."""
        self._context = context
        self._read_token = token
        self._threads = threads
        self._limit = limit
        self._token = b""
        with suppress(_Refused):
            self._known_token()

    async def answer(self, down: Downstream, path: str, query: str) -> Made:
        """Return the answer to a request. Raises `Gone`."""
        try:
            self._check_token(down)
            async with asyncio.timeout(self._limit) as limit:
                made = await self._answer(down, path, query, limit)
        except _Refused as refused:
            made = refused.made
        except TimeoutError:
            detail = f"this took more than {self._limit:g} s, ask for less"
            made = problem(503, "Service Unavailable", detail, {})
        return with_headers(made, _PRIVATE)

    async def _answer(
        self, down: Downstream, path: str, query: str, limit: asyncio.Timeout
    ) -> Made:
        if path == _OPENAPI:
            _check_method(down.method, path, _READS)
            _pairs(query, ())
            return await self._in_thread(_described)
        endpoint, names = _find(down.method, path)
        asked = Asked(
            names=names,
            query=_query(query, endpoint.query),
            now=self._context.clock.wall(),
            saved=self._context.states,
        )
        match endpoint:
            case Read():
                with _told():
                    await self._context.store.flush()
                return await self._in_thread(lambda: self._read(endpoint, asked))
            case Act():
                body = await _body(down, endpoint)
                # What is queued will be written: only the disk knows when, and nobody may say never.
                limit.reschedule(None)
                with _told():
                    return document(await endpoint.act(self._context, asked, body))

    def _read(self, endpoint: Read, asked: Asked) -> Made:
        with _told(), self._context.store.view() as view:
            return document(endpoint.read(view, asked))

    async def _in_thread(self, work: Callable[[], Made]) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _check_token(self, down: Downstream) -> None:
        fields = down.head.fields
        scheme, _, given = fields.get(b"authorization", b"").partition(b" ")
        known = self._known_token()
        is_bearer = scheme.lower() == b"bearer" and b"authorization" not in down.head.repeated
        if is_bearer and hmac.compare_digest(given.strip(b" "), known):
            return
        challenge = b'Bearer realm="turnlog"' + (b', error="invalid_token"' if given else b"")
        detail = "give the token that DATA/token holds: `Authorization: Bearer TOKEN`"
        self._context.log.emit(
            RequestRefused(
                reason=RefusalReason.TOKEN,
                http_method=self._context.clean(down.method),
                http_status=401,
            )
        )
        raise _Refused(
            with_headers(
                problem(401, "Unauthorized", detail, {}), [(b"WWW-Authenticate", challenge)]
            )
        )

    def _known_token(self) -> bytes:
        """Return the token. Where it cannot be read, nobody has it, and calls go on."""
        if not self._token:
            try:
                self._token = self._read_token()
            except StoreError as error:
                self._context.log.emit(StoreFailed(reason=str(error)))
                detail = "the token of the API cannot be read or made; the log says why"
                raise _Refused(problem(503, "Service Unavailable", detail, {})) from error
        return self._token


def _find(asked: str, path: str) -> tuple[Endpoint, dict[str, str]]:
    """Return the endpoint that is meant, and what its path names."""
    rest = path.removeprefix(_V1)
    found = [
        (endpoint, names)
        for endpoint in ENDPOINTS
        if rest != path and (names := _names(endpoint.path, rest)) is not None
    ]
    if not found:
        raise _Refused(problem(404, "Not Found", f"the API has no {path!r}", {}))
    methods = [method(endpoint) for endpoint, _ in found]
    _check_method(asked, path, (*methods, "HEAD") if "GET" in methods else tuple(methods))
    wanted = "GET" if asked == "HEAD" else asked
    return found[methods.index(wanted)]


def _names(pattern: str, path: str) -> dict[str, str] | None:
    """Return what stands in a path for each `{name}` of a pattern; `None` for another path."""
    wanted, given = pattern.split("/"), path.split("/")
    if len(wanted) != len(given):
        return None
    names: dict[str, str] = {}
    for part, text in zip(wanted, given, strict=True):
        if part.startswith("{") and text:
            names[part.strip("{}")] = unquote(text)
        elif part != text:
            return None
    return names


def _check_method(asked: str, path: str, allowed: tuple[str, ...]) -> None:
    if asked not in allowed:
        raise _Refused(not_allowed(path, allowed))


def _query(text: str, kind: type[Struct]) -> Struct:
    pairs = _pairs(text, kind.__struct_fields__)
    try:
        return msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        found = mismatch(error, pairs, kind)
        detail, name = f"parameter {found.message}", str(found.steps[0]) if found.steps else ""
        raise _Refused(problem(400, "Bad Request", detail, {"parameter": name})) from error


def _pairs(text: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return the parameters of a query, each of which must be known and stand there once."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise _Refused(
            problem(400, "Bad Request", f"the query is unreadable: {error}", {})
        ) from error
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            words = ", ".join(known) or "none"
            raise _Refused(_bad(name, f"it is not known here, known are: {words}"))
        if name in found:
            raise _Refused(_bad(name, "it stands there twice"))
        found[name] = value
    return found


def _bad(name: str, said: str) -> Made:
    detail = f"parameter {name!r}: {said}"
    return problem(400, "Bad Request", detail, {"parameter": name})


async def _body(down: Downstream, endpoint: Act) -> Any:
    body, whole = await down.read(_LARGEST)
    if not whole or len(body) > _LARGEST:
        detail = f"the body is larger than {_LARGEST} bytes"
        raise _Refused(problem(413, "Content Too Large", detail, {}))
    try:
        return endpoint.read(body)
    except UNREADABLE as error:
        said = describe_json_error(error, body, endpoint.body, "it")
    except ValueError as error:
        said = str(error)
    raise _Refused(problem(400, "Bad Request", f"the body is not as it must be: {said}", {}))


@contextmanager
def _told() -> Generator[None]:
    """Make problems of what the store and the use cases raise."""
    try:
        yield
    except BadParameterError as error:
        raise _Refused(_bad(error.name, str(error))) from error
    except NotFoundError as error:
        raise _Refused(problem(404, "Not Found", str(error), {})) from error
    except NoteError as error:
        raise _Refused(problem(400, "Bad Request", str(error), {})) from error
    except UnresolvableError as error:
        made = problem(409, "Conflict", str(error), {"reason": error.reason})
        raise _Refused(made) from error
    except Conflict as error:
        raise _Refused(problem(409, "Conflict", str(error), {"head": error.seq})) from error
    except StoreError as error:
        raise _Refused(problem(503, "Service Unavailable", str(error), {})) from error


@cache
def _described() -> Made:
    said: dict[str, Any] = description(ENDPOINTS, _V1)
    return document(said)
