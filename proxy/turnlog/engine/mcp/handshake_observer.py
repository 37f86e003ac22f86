"""What goes by beside calls, and is read for what it says of them: handshakes and lists of tools."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import Rung
from turnlog.engine.agent_request import Request
from turnlog.engine.context import Context
from turnlog.engine.request_identity import Client, read_client
from turnlog.exchange.coverage import CoverageGap
from turnlog.exchange.replacement import SessionStart
from turnlog.observe.events import SessionUncovered
from turnlog.store.base import alias
from turnlog.wire import mcp
from turnlog.wire.http.head import Headers, fields
from turnlog.wire.json_stream import Outline
from turnlog.wire.json_text import members
from turnlog.wire.jsonrpc import Kind, Message, outline_kind
from turnlog.wire.mcp import is_request

from .call_factory import CallFactory

LISTS: Final = "tools/list"
LIST_LIMIT: Final = 4 << 20
"""bytes: a longer list of tools is not read, and its tools count as not seen."""


class HandshakeObserver(Struct, frozen=True):
    """Reads the answers to one request of an agent that are no answers to a call."""

    context: Context
    request: Request
    asking: CallFactory

    def read(self, asked: Message, answer: Message | Outline, headers: Headers) -> None:
        """Read the answer to a request that is no call; `headers` came with it."""
        match asked.method, answer:
            case "initialize", Message():
                self._handshake(asked, answer, headers)
            case "tools/list", Message() if answer.result:
                self.asking.listed(answer.result, after=members(asked.params).get("cursor"))
            case "tools/list", Outline():
                self.asking.unread()
            case _:
                pass

    def stray(self, message: Message | Outline) -> None:
        """Read an answer to what was not asked here: tools may be listed on any stream."""
        if isinstance(message, Outline):
            if is_request(message) or outline_kind(message) is Kind.NOTIFICATION:
                return
            self.asking.unread()
        elif message.kind is Kind.RESPONSE and "tools" in members(message.result):
            self.asking.listed(message.result, after=None)

    def unanswered(self, awaited: Iterable[Message]) -> None:
        """Note that these got no answer that could be read, though the caller got one."""
        if any(asked.method == LISTS for asked in awaited):
            self.asking.unread()

    def _handshake(self, asked: Message, answer: Message, headers: Headers) -> None:
        given = fields(headers, b"mcp-session-id")
        session = self.request.session_digest(given[0].decode("latin-1")) if given else ""
        scope = (self.request.server, session) if session else self.request.scope
        revision = mcp.agreed_revision(answer.result) if answer.result else ""
        info = bytes(members(asked.params).get("clientInfo", b""))
        client = read_client(info, revision)
        self.context.clients.learn(scope, client)
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
