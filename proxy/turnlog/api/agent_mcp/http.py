"""`/turnlog/mcp`: the tools that an agent has for its own session, over Streamable HTTP.

No token is needed here, so a caller sees only one session: the one that it names in the same way as
in its calls, else the only one in which its credential and client name were active recently.
"""

import base64
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from msgspec import structs

from turnlog.api.agent_tools import NoSessionError
from turnlog.api.endpoints import changed, note_writer
from turnlog.api.pages import LARGEST, NO_STORE, Snapshots, body_of, caller_of
from turnlog.core.identity import CallerEvidence
from turnlog.core.kinds import Actor
from turnlog.core.note import Note
from turnlog.engine.context import Context
from turnlog.engine.request_identity import Client, read_client
from turnlog.observe.events import StoreFailed
from turnlog.sessions.control.lifecycle import SessionChange, operation_of
from turnlog.sessions.control.writer import OperationResult
from turnlog.sessions.notes import WrittenNote
from turnlog.store.base import SessionRef
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates
from turnlog.wire.endpoint import RpcRefusal, is_stateless_request
from turnlog.wire.json_text import members
from turnlog.wire.jsonrpc import BATCH_LIMIT, Batch, Malformed, Message, parse
from turnlog.wire.mcp import INVALID_REQUEST, STATELESS_SINCE

from .server import HANDSHAKES, OLDEST, McpReply, McpServer, agreed_revision, is_initialize, refused

T = TypeVar("T")

_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
_SESSION: Final = "Mcp-Session-Id"
_REVISION: Final = "Mcp-Protocol-Version"
_NOT_FOUND: Final = -32001
"""The code of the official SDKs for a session that a server does not know."""
_LONGEST_ID: Final = 4096
_encode = msgspec.json.Encoder().encode
_decode_client: Final = msgspec.json.Decoder(Client).decode


class AgentTools:
    """Answers for `/turnlog/mcp` and `/s/{session}/turnlog/mcp`."""

    def __init__(self, context: Context, snapshots: Snapshots) -> None:
        self._context = context
        self._snapshots = snapshots

    async def answer(self, request: web.Request) -> web.Response:
        """Return the answer to a request."""
        content = parse(await body_of(request, LARGEST), most=BATCH_LIMIT)
        fields = {name.lower(): value for name, value in request.raw_headers}
        if isinstance(content, Message) and is_stateless_request(content, fields):
            server = self._server_for(caller_of(request), _client_in(content))
            reply = await server.answer(content, STATELESS_SINCE, fields)
        else:
            reply = await self._answer_with_handshake(request, content)
        if reply is None:
            return web.Response(status=HTTPStatus.ACCEPTED, headers=NO_STORE)
        headers = {"Content-Type": "application/json", **NO_STORE}
        if is_initialize(content) and reply.status == HTTPStatus.OK:
            headers[_SESSION] = self._new_session(content)
        return web.Response(status=reply.status, headers=headers, body=reply.body)

    async def _answer_with_handshake(
        self, request: web.Request, content: Message | Batch | Malformed
    ) -> McpReply | None:
        revision = request.headers.get(_REVISION, "") or OLDEST
        client = _client_of(request.headers.get(_SESSION, ""))
        if is_initialize(content):
            revision = agreed_revision(content)
        if not isinstance(content, Malformed):
            if revision not in HANDSHAKES:
                why = RpcRefusal(INVALID_REQUEST, f"the revision is not known, {HANDSHAKES[0]} is")
                return refused(b"", why, 400)
            if client is None:
                return refused(b"", RpcRefusal(_NOT_FOUND, "session not found"), 404)
        return await self._server_for(caller_of(request), client or Client()).answer(
            content, revision
        )

    def _server_for(self, caller: CallerEvidence, client: Client) -> McpServer:
        def session_of(meta: Mapping[str, bytes]) -> LiveSession:
            name = client.name or caller.client_name
            evidence = structs.replace(caller, meta=meta, client_name=name)
            found = self._context.sessions.own(evidence, client)
            return LiveSession(self._context, self._snapshots, _only(found))

        return McpServer(
            session_of, lambda error: self._context.log.emit(StoreFailed(reason=str(error)))
        )

    def _new_session(self, message: Message) -> str:
        """Return the id of a new protocol session."""
        # The id encodes all that is known of the session, so that it survives a restart: the client's
        # own name, which is no secret.
        params = members(message.params) if message.params else {}
        client = read_client(bytes(params.get("clientInfo", b"")))
        encoded = base64.urlsafe_b64encode(_encode(client)).decode()
        return f"{self._context.clock.entropy(16).hex()}.{encoded}"


class LiveSession:
    """A session of the running proxy."""

    def __init__(self, context: Context, snapshots: Snapshots, session: SessionRef) -> None:
        self._context = context
        self._snapshots = snapshots
        self._session = session

    @property
    def now(self) -> int:
        return self._context.clock.wall()

    @property
    def saved(self) -> SavedStates:
        return self._context.saved_states

    async def read(self, work: Callable[[View, bytes], T]) -> T:
        return await self._snapshots.read(lambda view: work(view, _stored_id(view, self._session)))

    async def note(self, note: Note, note_id: str, head: int | None) -> WrittenNote:
        # Notes have no time limit: a queued note will be written, so a timeout would be wrong.
        noter = note_writer(self._context)
        return await noter.write(self._session, note, note_id=note_id, head=head)

    async def change(self, change: SessionChange) -> OperationResult:
        context = self._context
        with context.store.view() as view:
            session = _stored_id(view, self._session)
            operation = operation_of(view, session, change, Actor.AGENT, context.clean)
        return await changed(context, session, operation)


def _stored_id(view: View, session: SessionRef) -> bytes:
    """Return the id of a session, also of one that another process opened."""
    if session.id is not None:
        return session.id
    for name in session.aliases:
        if found := view.find_sessions(name):
            return found[0]
    raise NoSessionError(
        "nothing is recorded yet of the session that you name; call a tool in it, write a note, or "
        "correct the name (names belong to a credential)"
    )


def _only(found: list[SessionRef]) -> SessionRef:
    if len(found) == 1:
        return found[0]
    what = "no session" if not found else f"{len(found)} sessions"
    raise NoSessionError(
        f"{what} of this credential and client name had calls within 30 minutes; name yours as in "
        "your calls: by the path /s/NAME/turnlog/mcp or the header Turnlog-Session"
    )


def _client_in(message: Message) -> Client:
    """Return the client that a request names in its `_meta`."""
    params = members(message.params)
    meta = members(params["_meta"]) if "_meta" in params else {}
    return read_client(bytes(meta.get(_CLIENT_INFO, b"")))


def _client_of(session_id: str) -> Client | None:
    """Return the client encoded in a protocol session's id; `None` for an invalid id."""
    if not session_id:
        return Client()
    try:
        decoded = base64.urlsafe_b64decode(session_id[:_LONGEST_ID].partition(".")[2])
        return _decode_client(decoded)
    except ValueError:
        return None
