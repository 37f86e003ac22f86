"""The HTTP endpoint of one command: sessions, streams, and who talks to which process (MCP, transports).

Handshake revisions get a session each, and with `share: session` a process of its own; requests of
the stateless ones share a process, apart by what authenticates their callers. With `share: all`
all sessions share one process, and all stateless requests another: one speaks one of the two.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final, assert_never

import msgspec
from msgspec import Raw, Struct

from turnlog.core.kinds import Phase
from turnlog.exchange.principal import PrincipalNames
from turnlog.record.errors import Failure, Progress
from turnlog.settings.model import Share
from turnlog.transport.http_client import Answer, connected
from turnlog.wire import mcp
from turnlog.wire.endpoint import TOO_MANY, RpcRefusal, is_stateless_request, refusal, status_of
from turnlog.wire.jsonrpc import BATCH_LIMIT, Batch, Kind, Message, messages_of, parse, texts_of
from turnlog.wire.mcp import INVALID_REQUEST, PARSE_ERROR
from turnlog.wire.splice import with_id

from .client import CommandClient
from .reply import CommandMessage, CommandReply, Replied
from .supervisor import Declined, Met, Supervisor, unopened

IDLE: Final = 30 * 60.0
"""s: a process that nobody has asked anything for so long is ended; it is started again on demand."""
_SESSIONS: Final = 10_000
"""Most sessions that are known; the oldest is not, when another one begins."""
_SESSION: Final = b"mcp-session-id"
_SESSION_NOT_FOUND: Final = -32001
"""What servers of the official SDKs say."""
_ALLOWED: Final = (b"Allow", b"GET, POST, DELETE")
_NOT_ONE: Final = RpcRefusal(INVALID_REQUEST, "the body has to be one message with one id")


class EndpointRequest(Struct, frozen=True):
    """One HTTP request, as far as it counts here."""

    method: str
    fields: Mapping[bytes, bytes]
    body: bytes
    progress: Progress

    @property
    def streams(self) -> bool:
        """Whether the agent takes events."""
        return b"text/event-stream" in self.fields.get(b"accept", b"").lower()


class EndpointPath(Struct, frozen=True):
    """Where one agent talks to a command."""

    lane: Supervisor
    seat: CommandClient


class _Opening(Struct, frozen=True):
    """Connects, and opens the conversation where nobody has."""

    lane: Supervisor
    handshake: bytes

    async def connect(self) -> Supervisor:
        """Connect. Raises `Failure`."""
        return await self.lane.connect(self.handshake)


class CommandEndpoint:
    """One command upstream and its sessions. `lane` makes a way to it, with or without own ids."""

    def __init__(
        self, lane: Callable[[bool], Supervisor], share: Share, principals: PrincipalNames
    ) -> None:
        self._lane = lane
        self._share = share
        self._principals = principals
        self.lanes: set[Supervisor] = set()
        """All that may have a process."""
        self._common: Supervisor | None = None
        """What all sessions share, once there is one."""
        self._sessions: dict[bytes, EndpointPath] = {}
        self._stateless: dict[bytes, EndpointPath] = {}
        """By what authenticates who asks."""

    def _new_lane(self, renames: bool) -> Supervisor:
        lane = self._lane(renames)
        self.lanes.add(lane)
        return lane

    async def answer(self, asked: EndpointRequest) -> Answer:
        """Carry out one request. Raises `Failure`."""
        revision = asked.fields.get(b"mcp-protocol-version", b"").decode("latin-1")
        match asked.method:
            case "GET" | "DELETE" if mcp.is_stateless(revision):
                return CommandMessage(405, headers=((b"Allow", b"POST"),))
            case "POST":
                return await self._post(asked)
            case "GET":
                return self._listen(asked)
            case "DELETE":
                return self._delete(asked)
            case _:
                return CommandMessage(405, headers=(_ALLOWED,))

    async def _post(self, asked: EndpointRequest) -> Answer:
        content = parse(asked.body, most=BATCH_LIMIT)
        if isinstance(content, Batch) and content.is_partial:
            return refusing(b"", TOO_MANY)
        messages = messages_of(content)
        if not messages:
            return refusing(b"", RpcRefusal(PARSE_ERROR, "the body is no JSON-RPC message"))
        if is_stateless_request(messages[0], asked.fields):
            return await self._one(asked, messages)
        if messages[0].method == "initialize" and _SESSION not in asked.fields:
            return await self._open(asked, messages)
        place = self._sessions.get(asked.fields.get(_SESSION, b""))
        if place is None:
            return _no_session(asked, messages[0].id)
        if place.lane.renames and (refused := _unfit(asked.body, messages)) is not None:
            return refusing(messages[0].id, refused)
        return await self._exchange(asked, messages, place, cancel=False)

    async def _one(self, asked: EndpointRequest, messages: Sequence[Message]) -> Answer:
        """Carry out one request of the stateless revisions."""
        message = messages[0]
        refused = refusal(message, asked.fields)
        if refused is None and with_id(asked.body, b"0") is None and message.id:
            refused = _NOT_ONE
        if refused is not None:
            # The first message decides what a command speaks: it must not be one like this.
            return refusing(message.id, refused)
        return await self._exchange(asked, messages, self._place_of(asked), cancel=True)

    def _place_of(self, asked: EndpointRequest) -> EndpointPath:
        told = self._principals.credentials(asked.fields.items())
        credential = sha256(repr(told).encode()).digest()
        if credential not in self._stateless:
            lane = self._stateless_lane()
            self._stateless[credential] = EndpointPath(lane, lane.seat())
        return self._stateless[credential]

    def _stateless_lane(self) -> Supervisor:
        match self._share:
            case Share.SESSION:
                return self._new_lane(True)
            case Share.ALL:
                shared = next((place.lane for place in self._stateless.values()), None)
                return shared or self._new_lane(True)
            case _:
                assert_never(self._share)

    async def _open(self, asked: EndpointRequest, messages: Sequence[Message]) -> Answer:
        match self._share:
            case Share.SESSION:
                return await self._begin(asked, messages)
            case Share.ALL:
                return await self._join(asked, messages[0])
            case _:
                assert_never(self._share)

    async def _begin(self, asked: EndpointRequest, messages: Sequence[Message]) -> Answer:
        """Begin a session, with a process of its own."""
        lane = self._new_lane(False)
        place = EndpointPath(lane, lane.seat())
        try:
            reply = await self._ask(asked, messages, place, cancel=False)
        except Failure as failure:
            self._end(place)
            raise unopened(failure) from failure
        except BaseException:
            self._end(place)
            raise
        if reply.is_single and reply.result is None:
            self._end(place)
            return Replied(reply, asked.progress.patience, (), lane.left)
        if reply.result is not None:
            lane.met = Met(asked.body)
        return Replied(reply, asked.progress.patience, (self._admit(place),), lane.left)

    async def _join(self, asked: EndpointRequest, message: Message) -> Answer:
        """Begin a session in the conversation of all; the first one opens that."""
        if with_id(asked.body, b"0") is None:
            return refusing(message.id, _NOT_ONE)
        lane = self._common = self._common or self._new_lane(True)
        place = EndpointPath(lane, lane.seat())
        try:
            return await self._joined(asked, message, place)
        except BaseException:
            self._end(place)
            raise

    async def _joined(
        self, asked: EndpointRequest, message: Message, place: EndpointPath
    ) -> Answer:
        opening = _Opening(place.lane, asked.body)
        try:
            await connected(opening, asked.progress.patience, asyncio.get_running_loop().time())
        except Declined as declined:
            if place.lane.met is not None:
                raise
            self._end(place)
            return CommandMessage(200, with_id(declined.answer, message.id) or declined.answer)
        met = place.lane.met
        assert met is not None  # or there is no connection
        if (refused := _too_old(message, met)) is not None:
            self._end(place)
            return refusing(message.id, refused, status=200)
        asked.progress.phase = Phase.SENDING
        asked.progress.sent()
        return CommandMessage(
            200, with_id(met.answer, message.id) or met.answer, (self._admit(place),)
        )

    def _admit(self, place: EndpointPath) -> tuple[bytes, bytes]:
        """Add a session; return the field that names it."""
        session = secrets.token_hex(16).encode()
        self._sessions[session] = place
        while len(self._sessions) > _SESSIONS:
            self._end(self._sessions.pop(next(iter(self._sessions))))
        return (b"Mcp-Session-Id", session)

    async def _exchange(
        self,
        asked: EndpointRequest,
        messages: Sequence[Message],
        place: EndpointPath,
        *,
        cancel: bool,
    ) -> Answer:
        lane = place.lane
        if not any(message.kind is Kind.REQUEST for message in messages):
            await connected(lane, asked.progress.patience, asyncio.get_running_loop().time())
            lane.tell(place.seat, messages, asked.body)
            asked.progress.phase = Phase.SENDING
            asked.progress.sent()
            return CommandMessage(202)
        reply = await self._ask(asked, messages, place, cancel=cancel)
        left = lane.cancel if cancel else lane.left
        status = status_of(reply.error_code) if cancel else 200
        return Replied(reply, asked.progress.patience, (), left, status=status)

    async def _ask(
        self,
        asked: EndpointRequest,
        messages: Sequence[Message],
        place: EndpointPath,
        *,
        cancel: bool,
    ) -> CommandReply:
        """Send requests, and wait until something comes back. Raises `Failure`."""
        lane, progress = place.lane, asked.progress
        await connected(lane, progress.patience, asyncio.get_running_loop().time())
        progress.phase = Phase.SENDING
        reply = CommandReply(progress, streams=asked.streams)
        if progress.patience is not None and not progress.patience.connected(reply.expire):
            progress.patience = None
        lane.ask(place.seat, reply, messages, asked.body)
        progress.sent()
        try:
            await reply.first()
        except BaseException:
            (lane.cancel if cancel else lane.left)(reply)
            raise
        return reply

    def _listen(self, asked: EndpointRequest) -> Answer:
        place = self._sessions.get(asked.fields.get(_SESSION, b""))
        if place is None:
            return _no_session(asked)
        seat = place.seat
        if not asked.streams or seat.listener is not None:
            return CommandMessage(409 if asked.streams else 405, headers=(_ALLOWED,))
        reply = CommandReply(asked.progress, streams=True)
        seat.listen(reply)
        return Replied(reply, None, (), seat.left)

    def _delete(self, asked: EndpointRequest) -> Answer:
        place = self._sessions.pop(asked.fields.get(_SESSION, b""), None)
        if place is None:
            return _no_session(asked)
        self._end(place)
        return CommandMessage(200)

    def _end(self, place: EndpointPath) -> None:
        """Remove a client, and with the last one the process."""
        place.lane.leave(place.seat)
        if place.lane.closed:
            self.lanes.discard(place.lane)
            self._common = None if self._common is place.lane else self._common

    def rest(self, now: float) -> None:
        """End the processes that nobody has used for long; `now` is on the loop's clock."""
        for credential, place in list(self._stateless.items()):
            if place.lane.is_quiet(place.seat) and now - place.seat.used > IDLE:
                del self._stateless[credential]
                self._end(place)
        for lane in self.lanes:
            if lane.is_idle and now - lane.used > IDLE:
                lane.close()


def _unfit(body: bytes, messages: Sequence[Message]) -> RpcRefusal | None:
    """Return why what a session sends must not get to a command that it shares."""
    texts = list(texts_of(parse(body), body))
    if any(message.method == "initialize" for message in messages):
        return RpcRefusal(INVALID_REQUEST, "the session has been initialized")
    requests = [text for message, text in texts if message.kind is Kind.REQUEST]
    if len(texts) != len(messages) or any(with_id(text, b"0") is None for text in requests):
        return RpcRefusal(INVALID_REQUEST, "each request has to be one message with one id")
    return None


def _too_old(message: Message, met: Met) -> RpcRefusal | None:
    """Return why the conversation that there is does not do for an `initialize`.

    A client that asks for a later revision is offered the one that is spoken, as servers do.
    """
    asked = mcp.requested_revision(message)
    answer, first = parse(met.answer), parse(met.asked)
    assert isinstance(answer, Message)
    assert isinstance(first, Message)
    spoken = mcp.agreed_revision(answer.result)
    if asked >= spoken or asked == mcp.requested_revision(first):
        return None
    why = f"the command is shared and speaks {spoken} by now, {asked!r} is not possible"
    return RpcRefusal(mcp.INVALID_PARAMS, why, {"supported": [spoken], "requested": asked})


def _no_session(asked: EndpointRequest, raw_id: bytes = b"") -> CommandMessage:
    """Return the answer to an unknown session: clients begin a new one (MCP, transports)."""
    if _SESSION in asked.fields:
        return refusing(raw_id, RpcRefusal(_SESSION_NOT_FOUND, "session not found"), status=404)
    missing = RpcRefusal(INVALID_REQUEST, "Mcp-Session-Id is missing, initialize first")
    return refusing(raw_id, missing)


def refusing(raw_id: bytes, why: RpcRefusal, *, status: int = 0) -> CommandMessage:
    """Return the answer that refuses a request; 0 is the status that goes with the error."""
    error = {"code": why.code, "message": why.message, **({"data": why.data} if why.data else {})}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(raw_id or b"null"), "error": error})
    return CommandMessage(status or status_of(why.code), body)
