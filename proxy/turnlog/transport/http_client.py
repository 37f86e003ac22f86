"""The border to the tool servers: one request out, one answer back, every failure a value.

Connections are pooled by upstream. Nothing here acts on its own: no second send, no redirects, no
cookies, no decompression, no time limits but those of rules.
"""

import asyncio
import os
import select
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol, TypeVar, cast

from turnlog.core.kinds import ErrorKind, Phase
from turnlog.record.deadlines import Deadlines, Progress
from turnlog.record.errors import Failure
from turnlog.settings.values import is_ip
from turnlog.wire.http.head import Body, Headers
from turnlog.wire.http.mend import HEAD_END, LINE_ENDS
from turnlog.wire.http.response_head import ResponseHead
from turnlog.wire.jsonrpc import Message

from .http1 import (
    HEAD_LIMIT,
    READ_AHEAD,
    BadChunksError,
    BodyReader,
    Chunks,
    begins_like_response,
    is_beyond_mending,
    joined,
    read_response,
)
from .message_heads import OutgoingHead, Raw
from .routes import Target
from .tunnel import tunnelled

__all__ = ["Answer", "Connection", "Content", "Failure", "Interim", "Upstreams"]

IDLE_LIMIT: Final = 2.0
"""s: an idle connection older than this is closed, not reused. Servers close theirs after 5 s,
and a reset of a reused connection would look like a lost call."""
_CONNECTING: Final = Phase.CONNECTING
_C = TypeVar("_C")
_PIECE: Final = 256 * 1024
_IDLE_CONNECTIONS: Final = 256
_REACHED: Final = 2.0
"""s: a server that takes longer to accept a connection is taken for gone."""
_NOTICE: Final = 5.0
"""s: how long a message may take whose answer is dropped."""

_SENDING: Final = Phase.SENDING
# To look a member up costs more than to compare it.
_BY_LENGTH: Final = Body.LENGTH
_CHUNKED: Final = Body.CHUNKED
_NONE: Final = Body.NONE
_TOO_LONG: Final = f"the answer's head is longer than {HEAD_LIMIT} bytes"

Content = bytes | AsyncIterator[bytes]
"""A request's body: whole, or as it comes."""
OnCertificate = Callable[[str, bytes], None]
"""Takes the name of an upstream and its certificate, DER."""
Interim = Callable[[int, bytes, Raw], None]
"""Takes status, reason and fields of an interim answer (1xx), without Content-Length."""


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection to a tool server, carrying one exchange at a time (RFC 9112).

    From the head of an answer on it is that `Answer`, until it is closed as such.
    """

    head: ResponseHead
    """Head of the final answer, once it has come."""
    content: Message | None = None
    """What the body says: it is not parsed here."""
    origin: "Origin"
    """The pool that it belongs to."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        """Ends the wait of the one task that waits for data, or for the connection's end."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._poll = select.poll()
        self._error: Failure | None = None
        self._closed = False
        self._paused = False
        self._came: bytes | bytearray = b""
        """The start of a head that is not whole; nothing between two exchanges."""
        self._searched = 0
        """How much of that was looked through for its end."""
        self._busy = False
        """Whether an exchange is under way; what follows is about that."""
        self._method = ""
        self._progress = Progress()
        self._interim: Interim | None = None
        self._uploaded = False
        self._upload: asyncio.Task[None] | None = None
        """Sends a body that is too long to be sent at once."""
        self._body: BodyReader | None = None
        """Body of the final answer; set together with its head."""
        self.length: int | None = None
        """Length of the answer's body in bytes; `None` where only its end tells."""
        self._persists = False
        """Whether the answer's head says that the connection stays, and nothing has come behind it."""

    # -- one exchange ----------------------------------------------------------------------

    def begin(
        self,
        method: str,
        progress: Progress,
        request: bytes,
        interim: Interim | None = None,
        *,
        is_whole: bool = True,
    ) -> None:
        """Send a request, or its first bytes; `interim` gets 1xx answers. Raises `Failure`."""
        self._busy, self._uploaded = True, is_whole
        self._method, self._progress, self._interim = method, progress, interim
        self._body = self.length = self._upload = None
        progress.phase = _SENDING
        deadlines = progress.deadlines
        if deadlines is not None:
            counts = not deadlines.is_for_connecting and deadlines.connected(self.expire)
            progress.deadlines = deadlines if counts else None
        if self._closed or self._transport is None:
            raise Failure(ErrorKind.CONNECTION_LOST, Phase.SENDING, "the connection is closed")
        self._transport.write(request)
        if is_whole:
            progress.sent()

    def write(self, data: bytes) -> None:
        """Write a piece of the request. Raises `Failure`."""
        if self._error is not None:
            raise self._error
        assert self._transport is not None  # the request has begun
        self._transport.write(data)

    def upload(self, group: asyncio.TaskGroup, body: Content, length: int | None) -> None:
        """Send the body of a request that has begun, in a task of `group`."""
        self._upload = group.create_task(self._send_pieces(body, length))

    async def _send_pieces(self, body: Content, length: int | None) -> None:
        """Send a body while the answer may already be coming. A failure is raised where the answer is read."""
        is_chunked = length is None and not isinstance(body, bytes)
        try:
            async for piece in _pieces(body) if isinstance(body, bytes) else body:
                self.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
                await self.drain()
            if is_chunked:
                self.write(b"0\r\n\r\n")
            self._uploaded = True
            self._progress.sent()
        except Failure:
            pass
        except Exception as error:  # noqa: BLE001 - the agent's side broke: the request is cut
            self.fail(str(error) or type(error).__name__)

    async def drain(self) -> None:
        """Wait while the server reads slowly. Raises `Failure`."""
        await self._writable.wait()
        if self._error is not None:
            raise self._error

    async def answered(self) -> None:
        """Wait until the answer's head has come. Raises `Failure`."""
        while self._body is None:
            if self._error is not None:
                raise self._error
            await self._news()

    async def read(self) -> bytes:
        """Return what has come of the body; nothing at its end. Raises `Failure` if it is cut."""
        body = self._body
        assert body is not None  # there is a head
        while not body.pieces:
            if not body.missing:
                return b""
            if self._error is not None:
                raise self._error
            await self._news()
        data = body.take()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def take_whole(self) -> bytes | None:
        """Read the body at once if it is here from its start to its end, and nothing of it was read."""
        body = self._body
        if body is None or body.missing or not body.pieces or self._paused:
            return None
        return body.take()

    @property
    def has_piece(self) -> bool:
        """Whether something of the body is here that was not read."""
        return self._body is not None and bool(self._body.pieces)

    @property
    def trailers(self) -> Headers:
        """The fields behind the body, once it is at its end."""
        return self._body.trailers if self._body is not None else ()

    @property
    def at_end(self) -> bool:
        """Whether the whole answer has come and been read."""
        body = self._body
        return body is not None and not (body.missing or body.pieces)

    def finish(self) -> bool:
        """End the exchange; return whether the connection can carry another."""
        deadlines, body = self._progress.deadlines, self._body
        self._busy, self._interim, self._upload = False, None, None
        if deadlines is not None:
            deadlines.close()
        is_usable = self._uploaded and self._persists and not (self._paused or self._closed)
        if is_usable and body is not None and not (body.missing or body.pieces):
            return True
        self.abort()
        return False

    async def close(self) -> None:
        """Read no more of the answer; return to the pool if the exchange is complete, else break the connection."""
        # A request that is still being sent is cut: the agent's side is not read after this.
        try:
            if self._upload is not None:
                await _stopped(self._upload)
        finally:
            if self.finish():
                self.origin.give_back(self)

    async def give_up(self) -> None:
        """End an exchange that got no answer."""
        upload = self._upload
        self.abort()
        self.finish()
        if upload is not None:
            await _stopped(upload)

    async def is_reachable(self) -> bool:
        """Return whether the server accepts a connection within `_REACHED`."""
        with suppress(Failure, TimeoutError):
            async with asyncio.timeout(_REACHED):
                connection = await self.origin.connect()
            self.origin.give_back(connection)
            return True
        return False

    def expire(self, kind: ErrorKind, detail: str) -> bool:
        """Fail the exchange with a timeout; false if no task is waiting for it now."""
        if self._waiter is None or self._waiter.done() or self._error is not None:
            return False
        phase = self._progress.phase if self._body is None else Phase.BODY
        failure = Failure(kind, phase, detail)
        if not self._progress.continues(failure):
            self._error = failure
            self.abort()
            self._wake()
        return True

    def abort(self) -> None:
        """Break the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def certificate(self) -> bytes:
        """The server's certificate as DER; empty without TLS."""
        tls = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return (tls.getpeercert(binary_form=True) if tls is not None else None) or b""

    def is_quiet(self) -> bool:
        """Return whether the server has neither closed an idle connection nor said anything since.

        The loop tells of that only when it looks again, and the server may close behind an answer.
        """
        return not (self._closed or self._error is not None or self._poll.poll(0))

    @property
    def _has_come(self) -> bool:
        """Whether the whole answer has arrived."""
        return self._body is not None and not self._body.missing

    def _news(self) -> "asyncio.Future[None]":
        """Return a future that ends when something has come, or the connection has ended."""
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, detail: str, kind: ErrorKind = ErrorKind.CONNECTION_LOST) -> None:
        """Fail the exchange and close the connection."""
        if self._error is None and not self._has_come:
            phase = Phase.SENT if self._body is None else Phase.BODY
            self._error = Failure(kind, phase, detail)
        self.abort()
        self._wake()

    def _refuse(self, detail: str) -> None:
        """Fail at an unreadable answer; amid a body it counts as cut."""
        amid = self._body is not None
        self.fail(detail, ErrorKind.CONNECTION_LOST if amid else ErrorKind.MALFORMED_RESULT)

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Read what came and wake the task that waits for it."""
        body = self._body
        if not self._busy or (body is not None and not body.missing):
            # Unsolicited bytes make the connection unusable.
            self._closed = True
            self.abort()
            return
        if body is None:
            data = self._behind_heads(data)
            body = self._body
        if body is not None:
            try:
                rest = body.feed(data)
            except BadChunksError as error:
                self._refuse(f"the answer's chunks are not sound: {error}")
                return
            if rest and rest.strip(b"\r\n"):
                self._persists = False  # unsolicited bytes behind the answer
            if body.size > READ_AHEAD and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        self._wake()

    def _behind_heads(self, data: bytes) -> bytes:
        """Read heads up to that of the final answer; return what stands behind it."""
        came: bytes | bytearray = joined(self._came, data) if self._came else data
        end = 0
        while self._body is None and self._error is None:
            start = LINE_ENDS.match(came, end).end()  # type: ignore[union-attr]  # it matches nothing as well
            found = HEAD_END.search(came, max(self._searched - 3, start))
            if found is None:
                self._wait_for_head(came[start:] if start else came)
                return b""
            self._searched, end = 0, found.end()
            self._read_head(bytes(came[start:end]))
        self._came = b""
        return bytes(came[end:])

    def _wait_for_head(self, start: bytes | bytearray) -> None:
        """Keep the start of a head, if it can become one."""
        self._came, self._searched = start, len(start)
        if not begins_like_response(start):
            self._refuse("the answer is not HTTP/1.1")
        elif len(start) > HEAD_LIMIT:
            self._refuse(_TOO_LONG)

    def _read_head(self, head: bytes) -> None:
        """Read a whole head: of the answer, or of an interim one (1xx)."""
        found = read_response(head, self._method)
        if isinstance(found, str):
            self._refuse(f"the answer is not HTTP/1.1: {found}")
            return
        answer, length = found
        if len(head) > HEAD_LIMIT:
            self._refuse(_TOO_LONG)
        elif answer.status >= 200:
            self.head, self._persists, body = answer, answer.persists, answer.body
            if body is _BY_LENGTH:
                self.length, self._body = length, BodyReader(length)
            elif body is _CHUNKED:
                self._body = BodyReader(-1, Chunks(is_response=True))
            else:
                self._body = BodyReader(0 if body is _NONE else -1)
        elif answer.status < 100 or answer.status == 101:
            # No other protocol was requested: Upgrade is not forwarded (RFC 9110, 15.2.2).
            self._refuse(f"the answer's status is {answer.status:03d}")
        elif self._interim is not None:
            self._interim(answer.status, answer.reason, answer.raw)

    def eof_received(self) -> bool:
        """End a body that has no other end, and fail at a head that could never become one."""
        if self._body is not None:
            if self._body.missing and self._body.end():
                self._wake()
        elif self._came and is_beyond_mending(bytes(self._came)):
            self._refuse("the answer is not HTTP/1.1: its head breaks off, and was none before")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail an exchange that is not complete, and wake the task that waits."""
        self._closed = True
        self._interim = None
        self.resume_writing()
        if exc is not None and self._busy and not self._has_come:
            self._read_what_is_left()
        if self._busy and not self._has_come:
            self.fail(str(exc) if exc else "the server closed the connection")
        self._wake()

    def _read_what_is_left(self) -> None:
        """Read an answer that the server sent before it closed on an unfinished request."""
        # The transport gives up when it cannot write; what it has not read is still in the socket.
        transport = self._transport
        if transport is not None and transport.get_extra_info("ssl_object") is None:
            with suppress(OSError):
                while data := os.read(transport.get_extra_info("socket").fileno(), READ_AHEAD):
                    self.data_received(data)
        self.eof_received()

    def pause_writing(self) -> None:
        """Stop writing until the transport's buffer is empty enough."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on writing."""
        self._writable.set()


class Origin:
    """Where a tool server listens, and the idle connections to it."""

    def __init__(self, target: Target, on_certificate: OnCertificate | None = None) -> None:
        """`on_certificate` gets the server's certificate with each new connection."""
        self._name = target.name
        self._on_certificate = on_certificate if target.pins_key else None
        self.host, self.port, self.proxy = target.host, target.port, target.proxy
        is_encrypted, ca = target.is_encrypted, target.ca
        self.tls = ssl.create_default_context(cafile=ca or None) if is_encrypted else None
        # To race addresses loses the winner's socket if it is cancelled in the wrong moment.
        self._race = None if is_ip(self.host) else 0.25
        self.idle: list[tuple[Connection, float]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self) -> Connection:
        """Open a connection. Raises `Failure`."""
        try:
            connection = await self._connect()
        except OSError as error:
            detail = error.strerror or str(error) or type(error).__name__
            if self.proxy is not None:
                detail = f"through the proxy {self.proxy.url} ({self.proxy.source}): {detail}"
            raise Failure(ErrorKind.CONNECT_FAILED, Phase.CONNECTING, detail) from error
        connection.origin = self
        if self._on_certificate is not None and (found := connection.certificate):
            self._on_certificate(self._name, found)
        return connection

    async def _connect(self) -> Connection:
        if self.proxy is not None and self.tls is not None:
            return await tunnelled(self.proxy, self.host, self.port, self.tls, Connection)
        to = self.proxy or self
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, to.host, to.port, ssl=self.tls, happy_eyeballs_delay=self._race
        )
        return connection

    def reuse(self) -> Connection | None:
        """Return an idle connection that is still usable, or `None`."""
        while self.idle:
            connection, since = self.idle.pop()
            if monotonic() - since < IDLE_LIMIT and connection.is_quiet():
                return connection
            connection.abort()
        return None

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, for `IDLE_LIMIT` at the most."""
        self.idle.append((connection, monotonic()))
        if len(self.idle) > _IDLE_CONNECTIONS:
            self.idle.pop(0)[0].abort()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_LIMIT, self._trim)

    def _trim(self) -> None:
        """Close what has been idle too long, and come back for the rest."""
        while self.idle and monotonic() - self.idle[0][1] >= IDLE_LIMIT:
            self.idle.pop(0)[0].abort()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(IDLE_LIMIT, self._trim) if self.idle else None


class OriginHere(Origin):
    """A server in this process, and the idle connections to it."""

    def __init__(self, target: Target, accept: Callable[[], asyncio.Protocol]) -> None:
        """`accept` returns the server's side of a new connection."""
        super().__init__(target)
        self._accept = accept

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            await loop.connect_accepted_socket(self._accept, theirs)
            _, connection = await loop.create_connection(Connection, sock=ours)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return connection


class Answer(Protocol):
    """An answer of a tool server: its head, and its body as it comes in."""

    head: ResponseHead
    length: int | None
    """Length of the body in bytes; `None` where only its end tells."""
    content: Message | None
    """What the body says that was read, if it was parsed already."""

    def take_whole(self) -> bytes | None:
        """Read the body at once if it is here from its start to its end, and nothing of it was read."""
        ...

    def read(self) -> Coroutine[None, None, bytes]:
        """Return what has come of the body; nothing at its end. Raises `Failure` if it is cut."""
        ...

    @property
    def trailers(self) -> Headers:
        """The fields behind the body, once it is at its end."""
        ...

    @property
    def has_piece(self) -> bool:
        """Whether something of the body is here that was not read."""
        ...

    @property
    def at_end(self) -> bool:
        """Whether the whole answer has come and been read."""
        ...

    async def is_reachable(self) -> bool:
        """Return whether its server accepts a connection within a short time."""
        ...

    async def close(self) -> None:
        """Read no more of it."""
        ...


class Upstreams:
    """The connections to all upstreams. An async context manager."""

    def __init__(self, on_certificate: OnCertificate | None = None) -> None:
        """`on_certificate` gets the certificates of servers whose keys are pinned."""
        self._on_certificate = on_certificate
        self._origins: dict[str, Origin] = {}
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> "Upstreams":
        """Begin."""
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Break the idle connections, and wait for what goes on in the background."""
        for origin in self._origins.values():
            for connection, _ in origin.idle:
                connection.abort()
        await self._group.__aexit__(None, None, None)

    def add_here(self, target: Target, accept: Callable[[], asyncio.Protocol]) -> None:
        """Reach an upstream in this process; `accept` returns its side of a new connection."""
        self._origins[target.name] = OriginHere(target, accept)

    async def send(
        self,
        target: Target,
        head: OutgoingHead,
        body: Content,
        progress: Progress,
        length: int | None = None,
        interim: Interim | None = None,
    ) -> Answer:
        """Send one request, once, and return when the answer's head is there.

        `length` is that of a body in pieces, if known; `interim` gets 1xx answers. Raises `Failure`.
        """
        origin = self._origins.get(target.name) or self._met(target)
        progress.phase = _CONNECTING
        connection = origin.reuse()
        if connection is None:
            now = asyncio.get_running_loop().time()
            connection = await connected(origin.connect(), progress.deadlines, now)
        try:
            if isinstance(body, bytes) and len(body) <= _PIECE:
                request = head.text + _framing(head.method, body) + body
                connection.begin(head.method, progress, request, interim)
            else:
                start = head.text + _framing(head.method, body, length)
                connection.begin(head.method, progress, start, interim, is_whole=False)
                connection.upload(self._group, body, length)
            await connection.answered()
        except BaseException:
            await connection.give_up()
            raise
        return connection

    def _met(self, target: Target) -> Origin:
        """Return an origin to which nothing was sent before."""
        origin = self._origins[target.name] = Origin(target, self._on_certificate)
        return origin

    def notify(self, target: Target, head: OutgoingHead, body: bytes) -> asyncio.Task[None]:
        """Send a message in the background, for `_NOTICE` at the most, and drop the answer."""
        return self._group.create_task(self._notify(target, head, body))

    async def _notify(self, target: Target, head: OutgoingHead, body: bytes) -> None:
        with suppress(Failure, TimeoutError):
            async with asyncio.timeout(_NOTICE):
                answer = await self.send(target, head, body, Progress())
                try:
                    while await answer.read():
                        pass
                finally:
                    await answer.close()


async def connected(
    connect: Coroutine[None, None, _C], deadlines: Deadlines | None, now: float
) -> _C:
    """Connect within the time there is. Raises `Failure`."""
    if deadlines is None:
        return await connect
    at, kind = deadlines.before_sent(ErrorKind.CONNECT_TIMEOUT, now)
    limit = asyncio.timeout_at(at)
    try:
        async with limit:
            return await connect
    except TimeoutError:
        if not limit.expired():
            raise
        raise Failure(kind, Phase.CONNECTING, deadlines.detail(kind)) from None


_BODILESS_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
"""Methods without a body unless one was sent: they need no `Content-Length: 0`."""


def _framing(method: str, body: Content, length: int | None = None) -> bytes:
    """Return the field that frames a body, and the end of the head."""
    if isinstance(body, bytes):
        if body or method not in _BODILESS_METHODS:
            return b"\r\nContent-Length: %d\r\n\r\n" % len(body)
        return b"\r\n\r\n"
    if length is None:
        return b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    return b"\r\nContent-Length: %d\r\n\r\n" % length


async def _stopped(upload: asyncio.Task[None]) -> None:
    """End an upload that is not finished, and wait until it has."""
    if not upload.done():
        upload.cancel()
        await asyncio.wait({upload})


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]
