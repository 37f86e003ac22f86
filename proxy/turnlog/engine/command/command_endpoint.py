"""Command upstreams as Streamable HTTP endpoints: sessions, streams, and which process serves whom (MCP,
transports).

Handshake revisions get a session each, and with `share: session` a process of its own; requests of
the stateless ones share a process, apart by the credentials of their callers. With `share: all`
all sessions share one process, and all stateless requests another: a process speaks one of the two.
To the rest of the proxy it is a server that is reached over HTTP: every failure is a value.
"""

import asyncio
import secrets
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Raw, Struct

from turnlog.core.kinds import Phase
from turnlog.engine.tools.server_identities import ServerIdentities
from turnlog.engine.tools.tool_cache import ActiveRules
from turnlog.exchange.principal import PrincipalNames
from turnlog.observe.events import Log
from turnlog.packs.lock import COMMAND
from turnlog.record.deadlines import Progress
from turnlog.record.errors import Failure
from turnlog.record.recorder import Recorder
from turnlog.settings.model import Share, UpstreamSettings
from turnlog.transport.child_process import Child, start
from turnlog.transport.http_client import Content, Interim, connected
from turnlog.transport.message_heads import OutgoingHead
from turnlog.transport.routes import Target
from turnlog.wire import mcp
from turnlog.wire.endpoint import TOO_MANY, RpcRefusal, is_stateless_request, refusal, status_of
from turnlog.wire.jsonrpc import BATCH_LIMIT, Batch, Kind, Message, messages_of, parse, texts_of
from turnlog.wire.mcp import INVALID_REQUEST, PARSE_ERROR
from turnlog.wire.splice import with_id

from .multiplexer import CommandClient
from .process import startup_limit
from .reply import CommandReply
from .supervisor import Declined, Handshake, Supervisor, unopened

IDLE: Final = 30 * 60.0
"""s: a process without requests for so long is ended; the next request starts it again."""
_SWEEP: Final = 30.0
_NOTICE: Final = 5.0
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
_SESSIONS: Final = 10_000
"""Most known sessions; a new one replaces the oldest."""
_SESSION: Final = b"mcp-session-id"
_SESSION_NOT_FOUND: Final = -32001
"""The code that servers of the official SDKs use."""
_ALLOWED: Final = (b"Allow", b"GET, POST, DELETE")
_NOT_JSON: Final = RpcRefusal(PARSE_ERROR, "the body is no JSON-RPC message")
_NOT_ONE: Final = RpcRefusal(INVALID_REQUEST, "the body has to be one message with one id")


class EndpointRequest(Struct, frozen=True):
    """One HTTP request to a command."""

    method: str
    fields: Mapping[bytes, bytes]
    body: bytes
    progress: Progress

    @property
    def streams(self) -> bool:
        """Whether the client accepts events."""
        return b"text/event-stream" in self.fields.get(b"accept", b"").lower()

    async def connect(self, supervisor: Supervisor, initialize: bytes = b"") -> None:
        """Start the process where it does not run, within the time limit. Raises `Failure`."""
        if not supervisor.is_ready:
            now = asyncio.get_running_loop().time()
            await connected(supervisor.connect(initialize), self.progress.deadlines, now)

    def on_sent(self) -> None:
        """Mark the whole request as sent."""
        self.progress.phase = Phase.SENDING
        self.progress.sent()


class ClientPath(Struct, frozen=True):
    """A client, and the process that serves it."""

    supervisor: Supervisor
    client: CommandClient


class CommandEndpoint:
    """One command upstream and its sessions."""

    def __init__(
        self, new: Callable[[bool], Supervisor], share: Share, principals: PrincipalNames
    ) -> None:
        """`new` makes a supervisor, for several clients or for one."""
        self._new = new
        self._is_shared = share is Share.ALL
        self._principals = principals
        self.supervisors: set[Supervisor] = set()
        self._common: Supervisor | None = None
        """The supervisor shared by all sessions, once started."""
        self._sessions: dict[bytes, ClientPath] = {}
        self._stateless: dict[bytes, ClientPath] = {}
        """Paths of clients without sessions, by the digest of their credentials."""

    def _new_path(self, shared: Supervisor | None, *, renames: bool) -> ClientPath:
        """Return a new client of the process that is shared, or of a new one."""
        supervisor = shared or self._new(renames)
        self.supervisors.add(supervisor)
        return ClientPath(supervisor, supervisor.new_client())

    async def answer(self, asked: EndpointRequest) -> CommandReply:
        """Carry out one request. Raises `Failure`."""
        revision = asked.fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        match asked.method:
            case "GET" | "DELETE" if mcp.is_stateless(revision):
                return CommandReply.whole(405, headers=((b"Allow", b"POST"),))
            case "POST":
                return await self._post(asked)
            case "GET":
                return self._listen(asked)
            case "DELETE":
                return self._delete(asked)
            case _:
                return CommandReply.whole(405, headers=(_ALLOWED,))

    async def _post(self, asked: EndpointRequest) -> CommandReply:
        content = parse(asked.body, most=BATCH_LIMIT)
        if isinstance(content, Batch) and content.is_partial:
            return _refusing(b"", TOO_MANY)
        messages = messages_of(content)
        if not messages:
            return _refusing(b"", _NOT_JSON)
        if is_stateless_request(messages[0], asked.fields):
            return await self._stateless_request(asked, messages)
        if messages[0].method == "initialize" and _SESSION not in asked.fields:
            return await (self._join if self._is_shared else self._begin)(asked, messages)
        path = self._sessions.get(asked.fields.get(_SESSION, b""))
        if path is None:
            return _no_session(asked, messages[0].id)
        is_shared = path.supervisor.multiplexer.renames
        if is_shared and (refused := _refusal_of_shared(asked.body, messages)) is not None:
            return _refusing(messages[0].id, refused)
        return await self._exchange(asked, messages, path, cancel=False)

    async def _stateless_request(
        self, asked: EndpointRequest, messages: Sequence[Message]
    ) -> CommandReply:
        """Carry out one request of the stateless revisions."""
        message = messages[0]
        refused = refusal(message, asked.fields)
        if refused is None and with_id(asked.body, b"0") is None and message.id:
            refused = _NOT_ONE
        if refused is not None:
            # The first message decides what a command speaks: it must not be one like this.
            return _refusing(message.id, refused)
        return await self._exchange(asked, messages, self._path_of(asked), cancel=True)

    def _path_of(self, asked: EndpointRequest) -> ClientPath:
        """Return the client with the request's credentials."""
        credentials = self._principals.credentials(asked.fields.items())
        digest = sha256(repr(credentials).encode()).digest()
        if digest not in self._stateless:
            running = self._stateless.values() if self._is_shared else ()
            shared = next((path.supervisor for path in running), None)
            self._stateless[digest] = self._new_path(shared, renames=True)
        return self._stateless[digest]

    async def _begin(self, asked: EndpointRequest, messages: Sequence[Message]) -> CommandReply:
        """Begin a session with a process of its own."""
        path = self._new_path(None, renames=False)
        left = path.supervisor.multiplexer.on_left
        try:
            reply = await self._ask(asked, messages, path, left)
        except Failure as failure:
            self._end(path)
            raise unopened(failure) from failure
        except BaseException:
            self._end(path)
            raise
        is_result = reply.only is not None and reply.only.kind is Kind.RESPONSE
        if reply.is_single and not is_result:
            self._end(path)
            return reply.begin(left)
        if is_result:
            path.supervisor.handshake = Handshake(asked.body)
        return reply.begin(left, (self._admit(path),))

    async def _join(self, asked: EndpointRequest, messages: Sequence[Message]) -> CommandReply:
        """Begin a session with the process that all share; the first one opens its conversation."""
        if with_id(asked.body, b"0") is None:
            return _refusing(messages[0].id, _NOT_ONE)
        path = self._new_path(self._common, renames=True)
        self._common = path.supervisor
        try:
            return await self._joined(asked, messages[0], path)
        except BaseException:
            self._end(path)
            raise

    async def _joined(
        self, asked: EndpointRequest, message: Message, path: ClientPath
    ) -> CommandReply:
        try:
            await asked.connect(path.supervisor, asked.body)
        except Declined as declined:
            if path.supervisor.handshake is not None:
                raise
            self._end(path)
            return CommandReply.whole(200, with_id(declined.answer, message.id) or declined.answer)
        handshake = path.supervisor.handshake
        assert handshake is not None  # or there is no connection
        if (refused := _too_old(message, handshake)) is not None:
            self._end(path)
            return _refusing(message.id, refused, status=200)
        asked.on_sent()
        answer = with_id(handshake.answer, message.id) or handshake.answer
        return CommandReply.whole(200, answer, (self._admit(path),))

    def _admit(self, path: ClientPath) -> tuple[bytes, bytes]:
        """Add a session; return the header field that names it."""
        session = secrets.token_hex(16).encode()
        self._sessions[session] = path
        while len(self._sessions) > _SESSIONS:
            self._end(self._sessions.pop(next(iter(self._sessions))))
        return (b"Mcp-Session-Id", session)

    async def _exchange(
        self,
        asked: EndpointRequest,
        messages: Sequence[Message],
        path: ClientPath,
        *,
        cancel: bool,
    ) -> CommandReply:
        """Send messages, and return their response; with `cancel` they are cancelled if the client leaves."""
        supervisor, multiplexer = path.supervisor, path.supervisor.multiplexer
        if not any(message.kind is Kind.REQUEST for message in messages):
            await asked.connect(path.supervisor)
            supervisor.send(path.client, None, messages, asked.body)
            asked.on_sent()
            return CommandReply.whole(202)
        left = multiplexer.cancel if cancel else multiplexer.on_left
        reply = await self._ask(asked, messages, path, left)
        code = reply.only.error_code if cancel and reply.only is not None else None
        return reply.begin(left, status=status_of(code))

    async def _ask(
        self,
        asked: EndpointRequest,
        messages: Sequence[Message],
        path: ClientPath,
        left: Callable[[CommandReply], None],
    ) -> CommandReply:
        """Send requests, and wait for the first message of their response. Raises `Failure`."""
        progress = asked.progress
        await asked.connect(path.supervisor)
        progress.phase = Phase.SENDING
        reply = CommandReply(progress, streams=asked.streams)
        if progress.deadlines is not None and not progress.deadlines.connected(reply.expire):
            progress.deadlines = None
        path.supervisor.send(path.client, reply, messages, asked.body)
        progress.sent()
        try:
            await reply.first()
        except BaseException:
            left(reply)
            raise
        return reply

    def _listen(self, asked: EndpointRequest) -> CommandReply:
        path = self._sessions.get(asked.fields.get(_SESSION, b""))
        if path is None:
            return _no_session(asked)
        client = path.client
        if not asked.streams or client.listener is not None:
            return CommandReply.whole(409 if asked.streams else 405, headers=(_ALLOWED,))
        reply = CommandReply(asked.progress, streams=True)
        client.listen(reply)
        return reply.begin(client.on_listener_closed)

    def _delete(self, asked: EndpointRequest) -> CommandReply:
        path = self._sessions.pop(asked.fields.get(_SESSION, b""), None)
        if path is None:
            return _no_session(asked)
        self._end(path)
        return CommandReply.whole(200)

    def _end(self, path: ClientPath) -> None:
        """Remove a client, and with the last one the process."""
        supervisor = path.supervisor
        supervisor.remove(path.client)
        if supervisor.closed:
            self.supervisors.discard(supervisor)
            self._common = None if self._common is supervisor else self._common

    def rest(self, now: float) -> None:
        """End the processes that had no request for long; `now` is on the loop's clock."""
        for credential, path in list(self._stateless.items()):
            if path.supervisor.multiplexer.is_quiet(path.client) and now - path.client.used > IDLE:
                del self._stateless[credential]
                self._end(path)
        for supervisor in self.supervisors:
            if supervisor.multiplexer.is_quiet() and now - supervisor.used > IDLE:
                supervisor.close()


class Commands:
    """All command upstreams, by the origin that stands for each. An async context manager."""

    def __init__(
        self,
        upstreams: Mapping[str, UpstreamSettings],
        log: Log,
        recorder: Recorder,
        rules: ActiveRules,
        clean: Callable[[str], str],
        principals: PrincipalNames,
        identities: ServerIdentities,
    ) -> None:
        self._tasks = asyncio.TaskGroup()
        self._recorder = recorder

        def endpoint(name: str, upstream: UpstreamSettings) -> CommandEndpoint:
            def run() -> Child:
                child = start(upstream.command, upstream.env, upstream.cwd)
                path, cwd = upstream.env.get("PATH"), upstream.cwd
                started = identities.on_started(name, upstream.command, path, cwd)
                self._tasks.create_task(started)
                return child

            limit = partial(startup_limit, rules, name)

            def new(renames: bool) -> Supervisor:
                tasks = self._tasks
                return Supervisor(name, run, log, recorder, tasks, limit, clean, renames=renames)

            return CommandEndpoint(new, upstream.share, principals)

        self._endpoints = {
            f"{COMMAND}{name}": endpoint(name, upstream)
            for name, upstream in upstreams.items()
            if upstream.command
        }

    async def __aenter__(self) -> "Commands":
        """Begin."""
        await self._tasks.__aenter__()
        self._sweeping = self._tasks.create_task(self._sweep())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End all processes."""
        self._sweeping.cancel()
        for endpoint in self._endpoints.values():
            for supervisor in endpoint.supervisors:
                supervisor.end()
        await self._tasks.__aexit__(None, None, None)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            now = asyncio.get_running_loop().time()
            for endpoint in self._endpoints.values():
                endpoint.rest(now)

    async def send(
        self,
        target: Target,
        head: OutgoingHead,
        body: Content,
        progress: Progress,
        length: int | None = None,
        interim: Interim | None = None,
    ) -> CommandReply:
        """Carry out one request, as `Upstreams.send` does. Raises `Failure`."""
        progress.phase = Phase.CONNECTING
        whole = body if isinstance(body, bytes) else b"".join([piece async for piece in body])
        one_line = _on_one_line(whole)
        if one_line is None:
            return _refusing(b"", _NOT_JSON)
        asked = EndpointRequest(head.method, _fields(head.lines), one_line, progress)
        return await self._endpoints[target.origin].answer(asked)

    def notify(self, target: Target, head: OutgoingHead, body: bytes) -> asyncio.Task[None]:
        """Send a message that gets no answer."""
        return self._tasks.create_task(self._notify(target, head, body))

    async def _notify(self, target: Target, head: OutgoingHead, body: bytes) -> None:
        try:
            async with asyncio.timeout(_NOTICE):
                await self.send(target, head, body, Progress())
        except (Failure, TimeoutError):
            return
        except Exception as error:  # noqa: BLE001 - it is logged; the task is not awaited
            self._recorder.faulted(error)


def _on_one_line(body: bytes) -> bytes | None:
    """Return a body as the one line that a command reads; `None` where it is no JSON."""
    # In JSON line ends stand between values only; a command that reads less strictly must not take one
    # message for several. A byte order mark is no JSON (RFC 8259, section 8.1): a command that is
    # shared may end at one.
    body = body.removeprefix(BOM_UTF8)
    if b"\n" not in body and b"\r" not in body:
        return body
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return body.translate(_LINE_ENDS)


def _fields(lines: bytes) -> dict[bytes, bytes]:
    pairs = (line.partition(b":") for line in lines.split(b"\r\n") if line)
    return {name.lower(): value.strip() for name, _, value in pairs}


def _refusal_of_shared(body: bytes, messages: Sequence[Message]) -> RpcRefusal | None:
    """Return why messages of a session must not be sent to a command that it shares."""
    texts = list(texts_of(parse(body), body))
    if any(message.method == "initialize" for message in messages):
        return RpcRefusal(INVALID_REQUEST, "the session has been initialized")
    requests = [text for message, text in texts if message.kind is Kind.REQUEST]
    if len(texts) != len(messages) or any(with_id(text, b"0") is None for text in requests):
        return RpcRefusal(INVALID_REQUEST, "each request has to be one message with one id")
    return None


def _too_old(message: Message, handshake: Handshake) -> RpcRefusal | None:
    """Return why the running process cannot serve this `initialize`.

    A client that asks for a later revision is offered the one that is spoken, as servers do.
    """
    asked = mcp.requested_revision(message)
    answer, first = parse(handshake.answer), parse(handshake.request)
    assert isinstance(answer, Message)
    assert isinstance(first, Message)
    spoken = mcp.agreed_revision(answer.result)
    if asked >= spoken or asked == mcp.requested_revision(first):
        return None
    why = f"the command is shared and speaks {spoken} by now, {asked!r} is not possible"
    return RpcRefusal(mcp.INVALID_PARAMS, why, {"supported": [spoken], "requested": asked})


def _no_session(asked: EndpointRequest, raw_id: bytes = b"") -> CommandReply:
    """Return the answer to an unknown session: clients begin a new one (MCP, transports)."""
    if _SESSION in asked.fields:
        return _refusing(raw_id, RpcRefusal(_SESSION_NOT_FOUND, "session not found"), status=404)
    missing = RpcRefusal(INVALID_REQUEST, "Mcp-Session-Id is missing, initialize first")
    return _refusing(raw_id, missing)


def _refusing(raw_id: bytes, why: RpcRefusal, *, status: int = 0) -> CommandReply:
    """Return the answer that refuses a request; 0 stands for the status of the error's code."""
    error = {"code": why.code, "message": why.message, **({"data": why.data} if why.data else {})}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(raw_id or b"null"), "error": error})
    return CommandReply.whole(status or status_of(why.code), body)
