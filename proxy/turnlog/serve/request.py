"""What every request of an agent tells before its body is looked at."""

from functools import cached_property
from typing import Final

from turnlog.core.identity import Evidence
from turnlog.store.base import Store
from turnlog.wire.http import Headers

from .calls import Scope
from .downstream import Downstream
from .identity import Client, Clients
from .routes import Route

_CREDENTIALS: Final = ("authorization", "x-api-key", "api-key", "cookie")
"""Headers that authenticate a caller; the first that is there names the principal."""
_TRACE_ID: Final = slice(3, 35)
_TRACEPARENT_LENGTH: Final = 55


class Request:
    """One request, with its route. Digests of what identifies the caller are keyed."""

    def __init__(
        self, down: Downstream, route: Route, store: Store, clients: Clients, connection: int
    ) -> None:
        self.method = down.method
        self.route = route
        self.server = route.target.name
        self.raw_headers: Headers = down.headers
        self.fields: dict[str, str] = {}
        for name, value in down.headers:
            self.fields.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        self.http_version = down.version
        self.connection = connection
        self._store = store
        self._clients = clients

    def field(self, name: str) -> str:
        """Return the first value of a header, empty where there is none."""
        return self.fields.get(name, "")

    @cached_property
    def credential(self) -> str:
        """Keyed digest of what authenticates the caller; empty where nothing does."""
        for name in _CREDENTIALS:
            if value := self.field(name):
                return self.digest(f"credential\0{name}\0{value}")
        return ""

    @cached_property
    def mcp_session(self) -> str:
        """Keyed digest of the protocol session's id; empty where there is none."""
        return self.session_digest(self.field("mcp-session-id"))

    def session_digest(self, session_id: str) -> str:
        """Return the keyed digest of a protocol session's id."""
        return self.digest(f"mcp-session\0{self.server}\0{session_id}") if session_id else ""

    @cached_property
    def scope(self) -> Scope:
        """Within what JSON-RPC ids are unique: the protocol session, else the connection."""
        return self.server, self.mcp_session or f"connection {self.connection}"

    @cached_property
    def client(self) -> Client:
        """What the client said at `initialize`, if that went through here."""
        return self._clients.find(self.scope)

    @property
    def trace(self) -> str:
        """Trace id of the `traceparent` header (W3C Trace Context, section 3.2)."""
        return trace_id(self.field("traceparent"))

    @property
    def length(self) -> int:
        """Length of the body as declared, in bytes; 0 where nothing is said."""
        declared = self.field("content-length")
        return int(declared) if declared.isdigit() else 0

    def vendor_headers(self, names: frozenset[str]) -> dict[str, str]:
        """Return the headers that name sessions, as far as they are there."""
        return {name: self.fields[name] for name in names if name in self.fields}

    def digest(self, text: str) -> str:
        """Return 16 bytes of a digest under the store's key, as hex."""
        return self._store.keyed(text.encode("utf-8", "surrogateescape")).hex()[:32]

    def evidence(
        self, meta: dict[str, bytes], headers: dict[str, str], client_name: str
    ) -> Evidence:
        """Return what this request shows of its session; `headers` are those vendors use."""
        client = client_name or self.client.name or self.field("user-agent")
        return Evidence(
            path_session=self.route.session,
            header_session=self.field("turnlog-session"),
            header_turn=self.field("turnlog-turn"),
            meta=meta,
            headers=headers,
            mcp_session_id=self.mcp_session,
            upstream=self.server,
            credential=self.credential,
            client_name=client,
            connection=self.connection,
        )


def trace_id(traceparent: str) -> str:
    """Return the trace id of a `traceparent`, empty where it is none."""
    if len(traceparent) < _TRACEPARENT_LENGTH:
        return ""
    identifier = traceparent[_TRACE_ID]
    return identifier if all(char in "0123456789abcdef" for char in identifier) else ""
