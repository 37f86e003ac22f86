"""What goes by beside calls, and is read for what it says of them: handshakes and lists of tools."""

from msgspec import Struct

from turnlog.observe.events import RequestRelayed, rpc_id
from turnlog.wire import mcp
from turnlog.wire.http import Headers, fields
from turnlog.wire.jsonrpc import Message
from turnlog.wire.rawjson import members

from .asking import Asking
from .context import Context
from .identity import read_client
from .request import Request


class Besides(Struct, frozen=True):
    """Reads the answers to one request of an agent that are no answers to a call."""

    context: Context
    request: Request
    asking: Asking

    def read(self, asked: Message, answer: Message, headers: Headers) -> None:
        """Read the answer to a request that is no call; `headers` came with it."""
        match asked.method:
            case "initialize":
                self._handshake(asked, answer, headers)
            case "tools/list" if answer.result:
                self.asking.listed(asked, answer.result)
            case _:
                pass

    def relayed(
        self, first: Message | None, *, revision: str, status: int, duration: int, events: int
    ) -> None:
        """Log an exchange that held no call; `duration` in ns since its head was there."""
        log = self.context.log
        if not log.wants(RequestRelayed):
            return
        log.emit(
            RequestRelayed(
                server=self.request.server,
                http_method=self.context.clean(self.request.method),
                method=self.context.clean(first.method) if first is not None else "",
                request_id=rpc_id(first.id.decode("utf-8", "replace")) if first is not None else "",
                protocol=revision,
                http_status=status,
                duration_ns=duration,
                events=events,
            )
        )

    def _handshake(self, asked: Message, answer: Message, headers: Headers) -> None:
        given = fields(headers, b"mcp-session-id")
        session = self.request.session_digest(given[0].decode("latin-1")) if given else ""
        scope = (self.request.server, session) if session else self.request.scope
        revision = mcp.agreed_revision(answer.result) if answer.result else ""
        info = bytes(members(asked.params).get("clientInfo", b""))
        self.context.clients.learn(scope, read_client(info, revision))
