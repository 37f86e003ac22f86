"""`/turnlog/mcp`: the tools that an agent has for its own session, over Streamable HTTP.

Nobody is asked for a token here, so that a caller sees one session: the one that it names as in its
calls, else the only one that its credential and client name have been active in of late.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
from msgspec import structs

from turnlog.api.agent_tools import NoSessionError
from turnlog.core.note import Note
from turnlog.engine.agent_request import Request
from turnlog.engine.context import Context
from turnlog.engine.http.downstream import Downstream
from turnlog.engine.request_identity import Client, read_client
from turnlog.observe.events import StoreFailed
from turnlog.record.own_answers import JSON, Made, not_allowed, problem, with_headers
from turnlog.sessions.notes import NoteWriter, WrittenNote
from turnlog.store.base import SessionRef, View
from turnlog.store.states import SavedStates
from turnlog.transport.routes import AGENT_TOOLS, OWN, Route, Target
from turnlog.wire.endpoint import (
    INVALID_REQUEST,
    PARSE_ERROR,
    TOO_MANY,
    Refused,
    is_stateless_request,
    refusal,
    status_of,
)
from turnlog.wire.http.head import Headers
from turnlog.wire.json.rawjson import members
from turnlog.wire.jsonrpc import BATCH_LIMIT, Batch, Kind, Malformed, Message, Reason, parse
from turnlog.wire.mcp import STATELESS_SINCE

from .server import HANDSHAKES, OLDEST, Dialogue, Reply, agreed, refused

T = TypeVar("T")

_LARGEST: Final = 256 << 10
"""bytes of a request's body."""
_TIME: Final = 30.0
"""s that an answer may take."""
_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
_SESSION: Final = b"mcp-session-id"
_REVISION: Final = b"mcp-protocol-version"
_NOT_FOUND: Final = -32001
"""What servers of the official SDKs say of a session that they do not know."""
_LONGEST_ID: Final = 4096
_PRIVATE: Final = [(b"Cache-Control", b"no-store")]
_HERE: Final = Target(
    name=OWN, origin="", path=AGENT_TOOLS, query="", authority=b"", host="", port=0
)
_encode = msgspec.json.Encoder().encode
_decode_client: Final = msgspec.json.Decoder(Client).decode


class AgentTools:
    """Answers for `/turnlog/mcp` and `/s/{session}/turnlog/mcp`."""

    def __init__(self, context: Context, threads: Executor) -> None:
        self._context = context
        self._threads = threads

    async def answer(self, down: Downstream, session: str, connection: int) -> Made:
        """Return the answer to a request; `session` is what its path names. Raises `Gone`."""
        if down.method != "POST":
            return not_allowed(AGENT_TOOLS, ("POST",))
        body, whole = await down.read(_LARGEST)
        if not whole or len(body) > _LARGEST:
            detail = f"the body is larger than {_LARGEST} bytes"
            return problem(413, "Content Too Large", detail, {})
        route = Route(_HERE, AGENT_TOOLS, "", session, "")
        context = self._context
        request = Request(
            down.asked,
            route,
            context.digest,
            context.clients,
            connection,
            principals=context.principals,
        )
        try:
            made = await self._answer(request, parse(body, most=BATCH_LIMIT))
        except TimeoutError:
            detail = f"this took more than {_TIME:g} s, ask for less"
            made = problem(503, "Service Unavailable", detail, {})
        return with_headers(made, _PRIVATE)

    async def _answer(self, request: Request, content: Message | Batch | Malformed) -> Made:
        match content:
            case Malformed(reason=Reason.NOT_JSONRPC):
                why = Refused(INVALID_REQUEST, "the body is no JSON-RPC message")
                return _made(refused(b"", why), 400)
            case Malformed():
                return _made(refused(b"", Refused(PARSE_ERROR, "the body is no JSON")), 400)
            case Message() if is_stateless_request(content, request.fields):
                return await self._stateless(request, content)
            case _:
                return await self._handshaken(request, content)

    async def _stateless(self, request: Request, message: Message) -> Made:
        if message.kind is not Kind.REQUEST:
            return _ACCEPTED
        if why := refusal(message, request.fields):
            reply = refused(message.id, why)
        else:
            reply = await self._dialogue(request, _told_client(message)).reply(
                message, STATELESS_SINCE
            )
        return _made(reply, status_of(reply.code))

    async def _handshaken(self, request: Request, content: Message | Batch) -> Made:
        revision = request.field(_REVISION) or OLDEST
        client = _client_of(request.field(_SESSION))
        if revision not in HANDSHAKES and not _begins(content):
            why = Refused(INVALID_REQUEST, f"the revision is not known, {HANDSHAKES[0]} is")
            return _made(refused(b"", why), 400)
        if client is None:
            return _made(refused(b"", Refused(_NOT_FOUND, "session not found")), 404)
        dialogue = self._dialogue(request, client)
        match content:
            case Message(kind=Kind.REQUEST) if _begins(content):
                made = _made(await dialogue.reply(content, agreed(content)), 200)
                return with_headers(made, self._new_session(content))
            case Message(kind=Kind.REQUEST):
                return _made(await dialogue.reply(content, revision), 200)
            case Batch(is_partial=True):
                return _made(refused(b"", TOO_MANY), 400)
            case Batch() if revision == OLDEST and content.items:
                return await self._batch(dialogue, content)
            case Batch():
                why = Refused(INVALID_REQUEST, f"there are no such batches in {revision}")
                return _made(refused(b"", why), 400)
            case _:
                return _ACCEPTED

    async def _batch(self, dialogue: Dialogue, batch: Batch) -> Made:
        """Answer what of a batch is a request, in order."""
        bodies: list[bytes] = []
        for item in batch.items:
            if isinstance(item, Malformed):
                why = Refused(INVALID_REQUEST, "this is no JSON-RPC message")
                bodies.append(refused(b"", why).body)
            elif item.kind is Kind.REQUEST:
                bodies.append((await dialogue.reply(item, OLDEST)).body)
        return _made(Reply(b"[" + b",".join(bodies) + b"]"), 200) if bodies else _ACCEPTED

    def _dialogue(self, request: Request, client: Client) -> Dialogue:
        def desk(meta: Mapping[str, bytes]) -> _Desk:
            headers = request.vendor_headers(self._context.vendor_headers)
            evidence = request.evidence(dict(meta), headers, client.name)
            # The protocol session is one with turnlog, no server's: it names no conversation.
            evidence = structs.replace(evidence, mcp_session_id="")
            found = self._context.sessions.own(evidence, client)
            return _Desk(self._context, self._threads, _only(found))

        return Dialogue(desk, lambda error: self._context.log.emit(StoreFailed(reason=str(error))))

    def _new_session(self, message: Message) -> Headers:
        """Return the header that begins a protocol session.

        Its id holds what there is to know of it, so that it outlives this process: who the client
        says it is, which anyone may say.
        """
        params = members(message.params) if message.params else {}
        client = read_client(bytes(params.get("clientInfo", b"")))
        told = base64.urlsafe_b64encode(_encode(client)).decode()
        return [(b"Mcp-Session-Id", f"{self._context.clock.entropy(16).hex()}.{told}".encode())]


class _Desk:
    """A session of this proxy's store."""

    def __init__(self, context: Context, threads: Executor, session: SessionRef) -> None:
        self._context = context
        self._threads = threads
        self._session = session

    @property
    def now(self) -> int:
        return self._context.clock.wall()

    @property
    def saved(self) -> SavedStates:
        return self._context.states

    async def look(self, work: Callable[[View, bytes], T]) -> T:
        # A read's outcome waits for nothing: its agent may ask before it is written.
        await self._context.store.flush()

        def looked() -> T:
            with self._context.store.view() as view:
                return work(view, _on_disk(view, self._session))

        # A note has no such limit: once it is queued nobody may say that it was not written.
        async with asyncio.timeout(_TIME):
            return await asyncio.get_running_loop().run_in_executor(self._threads, looked)

    async def note(self, note: Note, note_id: str, head: int | None) -> WrittenNote:
        context = self._context
        noter = NoteWriter(
            context.store, context.redactor, context.clock.wall, context.clock.monotonic
        )
        return await noter.write(self._session, note, note_id=note_id, head=head)


def _on_disk(view: View, session: SessionRef) -> bytes:
    """Return the id of a session, which another process may have opened."""
    if session.id is not None:
        return session.id
    for name in session.aliases:
        if found := view.find_sessions(name):
            return found[0]
    raise NoSessionError(
        "nothing is recorded yet of the session that you name; call a tool in it or write a note, or "
        "correct the name: it counts together with your credential"
    )


def _begins(content: Message | Batch) -> bool:
    """Tell whether a handshake begins, which settles the revision."""
    return isinstance(content, Message) and content.method == "initialize"


def _only(found: list[SessionRef]) -> SessionRef:
    if len(found) == 1:
        return found[0]
    what = "no session" if not found else f"{len(found)} sessions"
    raise NoSessionError(
        f"{what} of this credential and client name had calls within 30 minutes; name yours as in "
        "your calls: by the path /s/NAME/turnlog/mcp or the header Turnlog-Session"
    )


def _told_client(message: Message) -> Client:
    """Return what a request without a handshake says of its client."""
    params = members(message.params)
    meta = members(params["_meta"]) if "_meta" in params else {}
    return read_client(bytes(meta.get(_CLIENT_INFO, b"")))


def _client_of(session_id: str) -> Client | None:
    """Return what a protocol session's id holds; nothing of none, `None` for an id that is none."""
    if not session_id:
        return Client()
    try:
        told = base64.urlsafe_b64decode(session_id[:_LONGEST_ID].partition(".")[2])
        return _decode_client(told)
    except ValueError:
        return None


def _made(reply: Reply, status: int) -> Made:
    return Made(status, HTTPStatus(status).phrase.encode(), JSON, reply.body)


_ACCEPTED: Final = Made(202, b"Accepted", (), b"")
