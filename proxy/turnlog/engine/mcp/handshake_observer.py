"""Answers to requests that are no calls: handshakes and lists of tools."""

from collections.abc import Iterable
from typing import Final

from msgspec import Raw, Struct

from turnlog.core.kinds import Rung
from turnlog.engine.context import Context
from turnlog.engine.request_identity import Client, Request, read_client
from turnlog.exchange.coverage import CoverageGap
from turnlog.exchange.replacement import SessionStart
from turnlog.observe.events import DefinitionsFailed, SessionUncovered, ToolsListed
from turnlog.store.base import alias
from turnlog.wire import mcp
from turnlog.wire.http.head import Headers, fields
from turnlog.wire.json_stream import Outline
from turnlog.wire.json_text import members, text_of
from turnlog.wire.jsonrpc import Kind, Message, outline_kind
from turnlog.wire.mcp import is_request
from turnlog.wire.tools_list import read_tools_list

LISTS: Final = "tools/list"
LIST_LIMIT: Final = 4 << 20
"""bytes: a longer list of tools is not read, and its tools count as not seen."""


INFO_CHARS: Final = 256
"""Characters of a server's name, and of its version, that are kept."""
_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_NO_MEMBER: Final = Raw(b"")


class HandshakeObserver(Struct, frozen=True):
    """Reads the answers to one request of a caller that are not answers to calls."""

    context: Context
    request: Request

    def read(self, asked: Message, answer: Message | Outline, headers: Headers) -> None:
        """Read the answer to a request that is no call; `headers` came with it."""
        match asked.method, answer:
            case "initialize", Message():
                self._handshake(asked, answer, headers)
            case "server/discover", Message():
                self._on_server_info(answer.result)
            case "tools/list", Message() if answer.result:
                self._on_tools(answer.result, after=members(asked.params).get("cursor"))
            case "tools/list", Outline():
                self._on_unread_tools()
            case _:
                pass

    def stray(self, message: Message | Outline) -> None:
        """Read an answer to what was not asked here: tools may be listed on any stream."""
        if isinstance(message, Outline):
            if is_request(message) or outline_kind(message) is Kind.NOTIFICATION:
                return
            self._on_unread_tools()
        elif message.kind is Kind.RESPONSE and "tools" in members(message.result):
            self._on_tools(message.result, after=None)

    def unanswered(self, awaited: Iterable[Message]) -> None:
        """Note that these got no answer that could be read, though the caller got one."""
        if any(asked.method == LISTS for asked in awaited):
            self._on_unread_tools()

    def _on_tools(self, result: Raw, *, after: Raw | None) -> None:
        """Remember a page of `tools/list`; `after` is the cursor that was asked for, if any."""
        page = read_tools_list(result)
        context, server, credential = self.context, self.request.server, self.request.credential
        target = self.request.target
        learned = context.tool_listings.learn(target, credential, page, first=after is None)
        name = context.pins.name_of(server, self.request.place)
        context.definition_writer.note(name, credential, page, learned.whole)
        context.log.emit(
            ToolsListed(
                server=server,
                tools=len(page.definitions),
                added=learned.added,
                changed=learned.changed,
                complete=not page.next_cursor,
                stuck=page.next_cursor != "" and page.next_cursor == text_of(bytes(after or b"")),
            )
        )

    def _on_unread_tools(self) -> None:
        """Forget the caller's tools: it got a list that could not be read here."""
        server, target = self.request.server, self.request.target
        if self.context.tool_listings.forget(target, self.request.credential):
            reason = f"a list of tools of {server!r} cannot be read, so they count as not seen"
            self.context.log.emit(DefinitionsFailed(reason=reason))

    def _on_server_info(self, result: Raw) -> None:
        """Note what the server says that it is."""
        said = members(result)
        info = said.get("serverInfo") or members(said.get("_meta", _NO_MEMBER)).get(_SERVER_INFO)
        parts = members(info or _NO_MEMBER)
        name, version = (
            self.context.clean(text_of(bytes(parts.get(part, _NO_MEMBER)), INFO_CHARS))
            for part in ("name", "version")
        )
        if name or version:
            request = self.request
            self.context.identities.on_server_info(request.server, request.place, name, version)

    def _handshake(self, asked: Message, answer: Message, headers: Headers) -> None:
        given = fields(headers, b"mcp-session-id")
        session = self.request.session_digest(given[0].decode("latin-1")) if given else ""
        scope = (self.request.server, session) if session else self.request.scope
        revision = mcp.agreed_revision(answer.result) if answer.result else ""
        info = bytes(members(asked.params).get("clientInfo", b""))
        client = read_client(info, revision)
        self.context.clients[scope] = client
        if answer.result:
            self._on_server_info(answer.result)
        if session and client.name and answer.result:
            self._begun(session, client)

    def _begun(self, session: str, client: Client) -> None:
        """Log a protocol session that may go on with one of several that were lost."""
        request, name = self.request, self.context.clean(client.name)
        caller = (request.credential, request.target, name)
        named = alias(Rung.TRANSPORT, f"{request.server}/{session}", request.credential)
        if self.context.sessions.begun(caller, named) is SessionStart.AMBIGUOUS:
            event = SessionUncovered(
                server=request.server, client=name, reason=CoverageGap.AMBIGUOUS
            )
            self.context.log.emit(event)
