"""Answers to requests that are no calls: handshakes and lists of tools."""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Raw, Struct

from turnlog.core.kinds import Rung
from turnlog.engine.request_identity import Client, Clients, Request, Sessions, read_client
from turnlog.exchange.coverage import CoverageGap
from turnlog.exchange.replacement import SessionStart
from turnlog.observe.events import Log, SessionUncovered
from turnlog.store.base import alias
from turnlog.wire import mcp
from turnlog.wire.http.head import Headers, fields
from turnlog.wire.json_stream import Outline
from turnlog.wire.json_text import members, text_of
from turnlog.wire.jsonrpc import Kind, Message, outline_kind
from turnlog.wire.mcp import is_request

from .server_records import ServerRecords

LISTS: Final = "tools/list"
LIST_LIMIT: Final = 4 << 20
"""bytes: a longer list of tools is not read, and its tools count as not seen."""


INFO_CHARS: Final = 256
"""Characters of a server's name, and of its version, that are kept."""
_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_NO_MEMBER: Final = Raw(b"")


class HandshakeObserver(Struct, frozen=True):
    """Reads answers that are not answers to calls."""

    _servers: ServerRecords
    _sessions: Sessions
    _clients: Clients
    _clean: Callable[[str], str]
    _log: Log

    def read(
        self, request: Request, asked: Message, answer: Message | Outline, headers: Headers
    ) -> None:
        """Read the answer to a request that is no call; `headers` came with it."""
        match asked.method, answer:
            case "initialize", Message():
                self._handshake(request, asked, answer, headers)
            case "server/discover", Message():
                self._on_server_info(request, answer.result)
            case "tools/list", Message() if answer.result:
                self._servers.on_tools(
                    request, answer.result, after=members(asked.params).get("cursor")
                )
            case "tools/list", Outline():
                self._servers.on_unread_tools(request)
            case _:
                pass

    def stray(self, request: Request, message: Message | Outline) -> None:
        """Read an answer to what was not asked here: tools may be listed on any stream."""
        if isinstance(message, Outline):
            if is_request(message) or outline_kind(message) is Kind.NOTIFICATION:
                return
            self._servers.on_unread_tools(request)
        elif message.kind is Kind.RESPONSE and "tools" in members(message.result):
            self._servers.on_tools(request, message.result, after=None)

    def unanswered(self, request: Request, awaited: Iterable[Message]) -> None:
        """Note that these got no answer that could be read, though the caller got one."""
        if any(asked.method == LISTS for asked in awaited):
            self._servers.on_unread_tools(request)

    def _on_server_info(self, request: Request, result: Raw) -> None:
        """Note what the server says that it is."""
        said = members(result)
        info = said.get("serverInfo") or members(said.get("_meta", _NO_MEMBER)).get(_SERVER_INFO)
        parts = members(info or _NO_MEMBER)
        name, version = (
            self._clean(text_of(bytes(parts.get(part, _NO_MEMBER)), INFO_CHARS))
            for part in ("name", "version")
        )
        if name or version:
            self._servers.identities.on_server_info(request.server, request.place, name, version)

    def _handshake(
        self, request: Request, asked: Message, answer: Message, headers: Headers
    ) -> None:
        given = fields(headers, b"mcp-session-id")
        session = request.session_digest(given[0].decode("latin-1")) if given else ""
        scope = (request.server, session) if session else request.scope
        revision = mcp.agreed_revision(answer.result) if answer.result else ""
        info = bytes(members(asked.params).get("clientInfo", b""))
        client = read_client(info, revision)
        self._clients[scope] = client
        if answer.result:
            self._on_server_info(request, answer.result)
        if session and client.name and answer.result:
            self._begun(request, session, client)

    def _begun(self, request: Request, session: str, client: Client) -> None:
        """Log a protocol session that may go on with one of several that were lost."""
        name = self._clean(client.name)
        caller = (request.credential, request.target, name)
        named = alias(Rung.TRANSPORT, f"{request.server}/{session}", request.credential)
        if self._sessions.begun(caller, named) is SessionStart.AMBIGUOUS:
            event = SessionUncovered(
                server=request.server, client=name, reason=CoverageGap.AMBIGUOUS
            )
            self._log.emit(event)
