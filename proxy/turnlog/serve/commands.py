"""Tool servers that are started by a command, behind Streamable HTTP (MCP, transports).

To the rest of the proxy they look like servers that are reached over HTTP: a request goes out, an
answer comes back, every failure is a value. Handshake revisions get a session each, and with
`share: session` a process of its own; requests of the stateless ones share a process, apart by
what authenticates their callers.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Raw, Struct

from turnlog.core.kinds import Phase
from turnlog.observe.events import Log
from turnlog.wire import mcp
from turnlog.wire.endpoint import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Refused,
    is_stateless_request,
    refusal,
    status_of,
)
from turnlog.wire.jsonrpc import Kind, Message, messages_of, parse
from turnlog.wire.splice import with_id

from .connection import Interim
from .context import Rules
from .fault import Failure, Progress
from .lane import Lane, unopened
from .recorder import Recorder
from .reply import Replied, Reply, Said
from .request import CREDENTIALS
from .routes import COMMAND
from .settings import Upstream
from .startup import startup_limit
from .upstream import Answer, Content, connected

IDLE: Final = 30 * 60.0
"""s: a process that nobody has asked anything for so long is ended; it is started again on demand."""
_SWEEP: Final = 30.0
_SESSIONS: Final = 10_000
"""Most sessions that are known; the oldest is not, when another one begins."""
_NOTICE: Final = 5.0
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
_SESSION: Final = b"mcp-session-id"
_SESSION_NOT_FOUND: Final = -32001
"""What servers of the official SDKs say."""
_ALLOWED: Final = (b"Allow", b"GET, POST, DELETE")


class Asked(Struct, frozen=True):
    """One HTTP request, as far as it counts here."""

    method: str
    fields: Mapping[bytes, bytes]
    body: bytes
    progress: Progress

    @property
    def streams(self) -> bool:
        """Whether the agent takes events."""
        return b"text/event-stream" in self.fields.get(b"accept", b"").lower()


class Front:
    """One command upstream and its sessions."""

    def __init__(self, lane: Callable[[bool], Lane]) -> None:
        self._lane = lane
        self.lanes: set[Lane] = set()
        """All that may have a process."""
        self._sessions: dict[bytes, Lane] = {}
        self._stateless: dict[bytes, Lane] = {}

    def _new_lane(self, shared: bool) -> Lane:
        lane = self._lane(shared)
        self.lanes.add(lane)
        return lane

    async def answer(self, asked: Asked) -> Answer:
        """Carry out one request. Raises `Failure`."""
        revision = asked.fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        match asked.method:
            case "GET" | "DELETE" if mcp.is_stateless(revision):
                return Said(405, headers=((b"Allow", b"POST"),))
            case "POST":
                return await self._post(asked)
            case "GET":
                return await self._listen(asked)
            case "DELETE":
                return self._delete(asked)
            case _:
                return Said(405, headers=(_ALLOWED,))

    async def _post(self, asked: Asked) -> Answer:
        messages = messages_of(parse(asked.body))
        if not messages:
            return _refused(b"", Refused(PARSE_ERROR, "the body is no JSON-RPC message"))
        if is_stateless_request(messages[0], asked.fields):
            return await self._one(asked, messages)
        if messages[0].method == "initialize" and _SESSION not in asked.fields:
            return await self._open(asked, messages)
        lane = self._sessions.get(asked.fields.get(_SESSION, b""))
        if lane is None:
            return _no_session(asked, messages[0].id)
        return await self._exchange(asked, messages, lane, cancel=False)

    async def _one(self, asked: Asked, messages: Sequence[Message]) -> Answer:
        """Carry out one request of the stateless revisions."""
        message = messages[0]
        refused = refusal(message, asked.fields)
        if refused is None and with_id(asked.body, b"0") is None and message.id:
            refused = Refused(INVALID_REQUEST, "the body has to be one message with one id")
        if refused is not None:
            # The first message decides what a command speaks: it must not be one like this.
            return _refused(message.id, refused)
        return await self._exchange(asked, messages, self._lane_of(asked), cancel=True)

    def _lane_of(self, asked: Asked) -> Lane:
        told = b"\0".join(asked.fields.get(name, b"") for name in CREDENTIALS)
        credential = sha256(told).digest()
        if credential not in self._stateless:
            self._stateless[credential] = self._new_lane(True)
        return self._stateless[credential]

    async def _open(self, asked: Asked, messages: Sequence[Message]) -> Answer:
        """Begin a session, with a process of its own."""
        lane = self._new_lane(False)
        try:
            reply = await self._ask(asked, messages, lane, cancel=False)
        except Failure as failure:
            self._end(lane)
            raise unopened(failure) from failure
        except BaseException:
            self._end(lane)
            raise
        if reply.is_single and reply.result is None:
            self._end(lane)
            return Replied(reply, asked.progress.patience, (), lane.left)
        lane.met(asked.body, reply)
        session = secrets.token_hex(16).encode()
        self._sessions[session] = lane
        while len(self._sessions) > _SESSIONS:
            self._end(self._sessions.pop(next(iter(self._sessions))))
        headers = ((b"Mcp-Session-Id", session),)
        return Replied(reply, asked.progress.patience, headers, lane.left)

    async def _exchange(
        self, asked: Asked, messages: Sequence[Message], lane: Lane, *, cancel: bool
    ) -> Answer:
        if not any(message.kind is Kind.REQUEST for message in messages):
            await connected(lane, asked.progress.patience, asyncio.get_running_loop().time())
            lane.tell(messages[0], asked.body)
            asked.progress.phase = Phase.SENDING
            asked.progress.sent()
            return Said(202)
        reply = await self._ask(asked, messages, lane, cancel=cancel)
        left = lane.cancel if cancel else lane.left
        status = status_of(reply.error_code) if cancel else 200
        return Replied(reply, asked.progress.patience, (), left, status=status)

    async def _ask(
        self, asked: Asked, messages: Sequence[Message], lane: Lane, *, cancel: bool
    ) -> Reply:
        """Send requests, and wait until something comes back. Raises `Failure`."""
        progress = asked.progress
        await connected(lane, progress.patience, asyncio.get_running_loop().time())
        progress.phase = Phase.SENDING
        reply = Reply(progress, streams=asked.streams)
        if progress.patience is not None and not progress.patience.connected(reply.expire):
            progress.patience = None
        lane.ask(reply, messages, asked.body)
        progress.sent()
        try:
            await reply.first()
        except BaseException:
            (lane.cancel if cancel else lane.left)(reply)
            raise
        return reply

    async def _listen(self, asked: Asked) -> Answer:
        lane = self._sessions.get(asked.fields.get(_SESSION, b""))
        if lane is None:
            return _no_session(asked)
        if not asked.streams or lane.listener is not None:
            return Said(409 if asked.streams else 405, headers=(_ALLOWED,))
        reply = Reply(asked.progress, streams=True)
        lane.listen(reply)
        return Replied(reply, None, (), lane.left)

    def _delete(self, asked: Asked) -> Answer:
        lane = self._sessions.pop(asked.fields.get(_SESSION, b""), None)
        if lane is None:
            return _no_session(asked)
        self._end(lane)
        return Said(200)

    def _end(self, lane: Lane) -> None:
        lane.end()
        self.lanes.discard(lane)

    def rest(self, now: float) -> None:
        """End the processes that nobody has used for long; `now` is on the loop's clock."""
        unused = [lane for lane in self.lanes if lane.is_idle and now - lane.used > IDLE]
        for lane in unused:
            lane.close()
        for credential, lane in list(self._stateless.items()):
            if lane in unused:
                del self._stateless[credential]
                self._end(lane)


class Commands:
    """All command upstreams, by the origin that stands for each. An async context manager."""

    def __init__(
        self, upstreams: Mapping[str, Upstream], log: Log, recorder: Recorder, rules: Rules
    ) -> None:
        self._tasks = asyncio.TaskGroup()
        self._recorder = recorder
        self._rules = rules
        self._fronts = {
            f"{COMMAND}{name}": self._front(name, upstream, log, recorder)
            for name, upstream in upstreams.items()
            if upstream.command
        }

    def _front(self, name: str, upstream: Upstream, log: Log, recorder: Recorder) -> Front:
        startup = partial(startup_limit, self._rules, name)

        def lane(shared: bool) -> Lane:
            return Lane(name, upstream.command, log, recorder, self._tasks, startup, shared=shared)

        return Front(lane)

    async def __aenter__(self) -> "Commands":
        """Begin."""
        await self._tasks.__aenter__()
        self._sweeping = self._tasks.create_task(self._sweep())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End all processes."""
        self._sweeping.cancel()
        for front in self._fronts.values():
            for lane in front.lanes:
                lane.end()
        await self._tasks.__aexit__(None, None, None)

    async def _sweep(self) -> None:
        """End the processes that nobody has used for long."""
        while True:
            await asyncio.sleep(_SWEEP)
            now = asyncio.get_running_loop().time()
            for front in self._fronts.values():
                front.rest(now)

    async def send(
        self,
        origin_url: str,
        method: str,
        resource: str,
        lines: bytes,
        body: Content,
        progress: Progress,
        *,
        length: int | None,
        interim: Interim | None = None,
    ) -> Answer:
        """Carry out one request, as `Upstreams.send` does. Raises `Failure`."""
        progress.phase = Phase.CONNECTING
        whole = body if isinstance(body, bytes) else b"".join([piece async for piece in body])
        one_line = _on_one_line(whole)
        if one_line is None:
            return _refused(b"", Refused(PARSE_ERROR, "the body is no JSON-RPC message"))
        asked = Asked(method, _fields(lines), one_line, progress)
        return await self._fronts[origin_url].answer(asked)

    def notify(
        self, origin_url: str, resource: str, lines: bytes, body: bytes
    ) -> asyncio.Task[None]:
        """Send a message that gets no answer."""
        return self._tasks.create_task(self._notify(origin_url, resource, lines, body))

    async def _notify(self, origin_url: str, resource: str, lines: bytes, body: bytes) -> None:
        try:
            async with asyncio.timeout(_NOTICE):
                await self.send(origin_url, "POST", resource, lines, body, Progress(), length=None)
        except (Failure, TimeoutError):
            return
        except Exception as error:  # noqa: BLE001 - it is logged; nobody waits for this
            self._recorder.faulted(error)


def _on_one_line(body: bytes) -> bytes | None:
    """Return a body as the one line that it has to be for a command; `None` for what is no JSON.

    In JSON line ends stand between values alone; whoever reads less strictly must not let them
    make several messages of one.
    """
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


def _no_session(asked: Asked, raw_id: bytes = b"") -> Said:
    """Say that a session is not known: clients begin a new one (MCP, transports)."""
    if _SESSION in asked.fields:
        return _refused(raw_id, Refused(_SESSION_NOT_FOUND, "session not found"), status=404)
    missing = Refused(INVALID_REQUEST, "Mcp-Session-Id is missing, initialize first")
    return _refused(raw_id, missing)


def _refused(raw_id: bytes, why: Refused, *, status: int = 0) -> Said:
    error = {"code": why.code, "message": why.message, **({"data": why.data} if why.data else {})}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(raw_id or b"null"), "error": error})
    return Said(status or status_of(why.code), body)
