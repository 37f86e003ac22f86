"""The identity of a request's caller: head, session and client."""

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Final

import msgspec
from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.identity import CallerEvidence, SessionIdentity, Vendor, identify, vendor_headers
from turnlog.core.kinds import Rung
from turnlog.core.lifecycle import SessionStage, Suspension
from turnlog.engine.legacy_sse import LegacyStream
from turnlog.exchange.principal import Pairs, PrincipalNames
from turnlog.exchange.replacement import Replacements, SessionStart
from turnlog.observe.clock import Clock
from turnlog.store.base import SessionRef, alias
from turnlog.transport.message_heads import (
    OutgoingHead,
    RequestStart,
    forwarded_lines,
    outgoing_head,
)
from turnlog.transport.routes import Route
from turnlog.wire.http.head import decoder_for, is_sealed, trace_id
from turnlog.wire.mcp import is_stateless

from .call_registry import Scope
from .session_gate import ImportedSessions, SessionGate

KEY: Final = b"idempotency-key"
"""The header by which a caller gives an idempotency key."""
PRINCIPAL_NAMES: Final = PrincipalNames()
MCP_LIMIT: Final = 16 << 20
"""bytes: an MCP message that is larger streams through and is recorded by its start."""
Digest = Callable[[bytes], bytes]
"""HMAC-SHA-256 under the store's key."""
_NOWHERE: Final[Mapping[str, str]] = {}
_NO_META: Final[Mapping[str, bytes]] = {}
IDLE_GAP: Final = 30 * 60 * 1_000_000_000
"""ns: an implicit session that was quiet this long is over."""
_SESSIONS: Final = 65_536
_CLIENTS: Final = 65_536
_NAME_CHARS: Final = 200
_IDENTITIES: Final = 4096
_NAMING: Final = frozenset({Rung.EXPLICIT, Rung.VENDOR})


class Client(Struct, frozen=True):
    """A client as it described itself at `initialize`, and the revision that was agreed."""

    name: str = ""
    version: str = ""
    revision: str = ""


UNKNOWN_CLIENT: Final = Client()


class _Info(Struct):
    name: str = ""
    version: str = ""


_decode_info: Final = msgspec.json.Decoder(_Info).decode


def read_client(client_info: bytes, revision: str = "") -> Client:
    """Return the client that a `clientInfo` object describes; an unnamed one if it is not such an object."""
    try:
        info = _decode_info(client_info)
    except (ValueError, RecursionError):
        info = _Info()
    return Client(_shown(info.name), _shown(info.version), revision)


def _shown(name: str) -> str:
    """Return a client's name, cut to a moderate length, without unprintable characters."""
    return "".join(char for char in name[:_NAME_CHARS] if char.isprintable())


class _MetSession(Struct):
    ref: SessionRef
    at: int
    """When it was last met: monotonic clock, ns."""
    kin: str
    """`SessionIdentity.kin`."""
    checked: int = -1
    """The number of control commits in the store when its stage was last looked at."""


class Sessions:
    """The sessions that this process has met lately."""

    def __init__(
        self,
        clock: Clock,
        table: tuple[Vendor, ...],
        clean: Callable[[str], str],
        digest: Callable[[bytes], bytes],
        gate: SessionGate | None = None,
        imported: ImportedSessions | None = None,
    ) -> None:
        """`clean` removes secrets from a text, `digest` is keyed. Without `gate` no session is suspended;
        `imported` knows the sessions of other stores."""
        self._gate = gate
        self._imported = imported
        self._clock = clock
        self._clean = clean
        self._digest = digest
        self._table = table
        vendor_keys = {
            keys[0] for vendor in table for keys in (*vendor.session, *vendor.turn, *vendor.call)
        }
        self.vendor_headers = frozenset(map(str.encode, vendor_headers(table)))
        """Headers by which vendors name sessions."""
        self._telling_keys = frozenset({"turnlog/session", "turnlog/turn", *vendor_keys})
        """Keys of `_meta` that may name a session or a turn."""
        self._identities: BoundedDict[tuple[str | int, ...], SessionIdentity] = BoundedDict(
            _IDENTITIES
        )
        self._met: BoundedDict[str, _MetSession] = BoundedDict(_SESSIONS)
        """By `SessionIdentity.key`; the one met last is at the end."""
        self.replacements = Replacements()

    def find(self, identity: SessionIdentity, client: Client) -> SessionRef:
        """Return the session of a call; a new one if it is unknown, or implicit and idle for too long."""
        key, now = identity.key, self._clock.monotonic()
        met = self._met.get(key)
        if met is None or (now - met.at > IDLE_GAP and identity.rung is Rung.IMPLICIT):
            ref = self._open(identity, client)
            self._note_replaced(ref, key)
            met = self._met[key] = _MetSession(ref, now, identity.kin)
        else:
            if self.replacements.lost:
                self.replacements.on_used(key)
            met.at = now
            self._met.move_to_end(key)
        if self._gate is not None and met.checked != (number := self._gate.number()):
            self._check(self._gate, met, number, identity, client)
        return met.ref

    def _check(
        self,
        gate: SessionGate,
        met: _MetSession,
        number: int,
        identity: SessionIdentity,
        client: Client,
    ) -> None:
        """Look at the stage of a session, after `number` control commits in the store."""
        checked = gate.look(met.ref) if number else met.ref
        if checked is None:
            return  # the store cannot be read: the next call looks again
        if checked.suspension is not None and _begins_anew(identity, checked.suspension):
            before, checked = checked, self._open(identity, client)
            checked.metadata["follows"] = ids.to_text(before.id or before.candidate)
        met.ref, met.checked = checked, number

    def begun(self, caller: Hashable, session: str) -> SessionStart:
        """Return whether the protocol session that a caller has begun by `initialize` replaces a lost one."""
        return self.replacements.on_initialized(caller, session, self._clock.monotonic() / 1e9)

    def _note_replaced(self, ref: SessionRef, key: str) -> None:
        """Add the session that a new one replaces, if any, to its metadata."""
        before = next(iter(self.replacements.predecessors(key)), None)
        replaced = self._met.get(before) if before is not None else None
        if replaced is not None and replaced.ref.id is not None:
            ref.metadata["replaces"] = ids.to_text(replaced.ref.id)

    def own(self, evidence: CallerEvidence, client: Client) -> list[SessionRef]:
        """Return the sessions that a request to turnlog's own pages may be about.

        That is the one it names, as in a call; else the recently active ones of its credential and
        client name, as far as they are on disk.
        """
        identity = self.identify(evidence)
        if identity.rung in _NAMING:
            return [self.find(identity, client)]
        kin, now = identity.kin, self._clock.monotonic()
        found: list[SessionRef] = []
        for met in reversed(self._met.values()):
            if now - met.at > IDLE_GAP:
                break
            if kin and met.kin == kin and met.ref.id is not None:
                found.append(met.ref)
        return found

    def tells(self, meta: Mapping[str, bytes]) -> bool:
        """Return whether `_meta` may name a session or a turn."""
        return not self._telling_keys.isdisjoint(meta)

    def identify(self, evidence: CallerEvidence) -> SessionIdentity:
        """Return the session that evidence points to; remembered unless `_meta` counts."""
        if evidence.headers or evidence.environment or self.tells(evidence.meta):
            return self._climb(evidence, self._table)
        key = (
            evidence.path_session,
            evidence.header_session,
            evidence.header_turn,
            evidence.mcp_session_id,
            evidence.upstream,
            evidence.target,
            evidence.credential,
            evidence.client_name,
            evidence.connection,
        )
        known = self._identities.get(key)
        if known is None:
            known = self._identities[key] = self._climb(evidence, ())
        return known

    def _climb(self, evidence: CallerEvidence, table: tuple[Vendor, ...]) -> SessionIdentity:
        found = self._recordable(identify(evidence, table))
        key = found.implicit_key
        if found.rung is not Rung.IMPLICIT:
            key = alias(found.rung, found.name, evidence.credential)
        return structs.replace(found, key=key, kin=_kin(evidence))

    def _recordable(self, found: SessionIdentity) -> SessionIdentity:
        """Return an identity without secrets: a session name that has one is replaced by its digest."""
        name, turn, client = map(self._clean, (found.name, found.turn_label, found.client))
        if name != found.name:
            # Cut out, it would leave the same name for several sessions.
            name = f"hmac-sha256:{self._digest(b'session name' + bytes(1) + found.name.encode()).hex()}"
        elif turn == found.turn_label and client == found.client:
            return found
        return structs.replace(found, name=name, turn_label=turn, client=client)

    def _open(self, identity: SessionIdentity, client: Client) -> SessionRef:
        if self._imported is not None and identity.rung is not Rung.IMPLICIT:
            found = self._imported.find(identity.key)
            if found is not None:
                return SessionRef(
                    candidate=found.session,
                    rung=identity.rung,
                    aliases=(found.alias,),
                    id=found.session,
                )
        metadata = {
            "why": identity.why,
            "confidence": identity.confidence,
            "client": identity.client or client.name,
            "client_version": client.version,
        }
        return SessionRef(
            candidate=ids.uuid7(self._clock.wall(), self._clock.entropy(10)),
            rung=identity.rung,
            aliases=() if identity.rung is Rung.IMPLICIT else (identity.key,),
            metadata={
                name: self._clean(value[:_NAME_CHARS]) for name, value in metadata.items() if value
            },
        )


def _begins_anew(identity: SessionIdentity, suspension: Suspension) -> bool:
    """Return whether the next call of a suspended session opens another one."""
    if suspension.stage is SessionStage.PURGED:
        return True  # its names are gone
    # A moved one goes on, and must not go on here.
    return identity.rung is Rung.IMPLICIT and suspension.is_final and not suspension.is_moved


def _kin(evidence: CallerEvidence) -> str:
    """Return the key of a credential and client name; empty if there is neither."""
    if not (evidence.credential or evidence.client_name):
        return ""
    return f"{evidence.credential}\n{evidence.client_name}"


class Clients(BoundedDict[Scope, Client]):
    """Clients by protocol session or connection, as they described themselves at `initialize`."""

    def __init__(self) -> None:
        super().__init__(_CLIENTS)


class Request:
    """One request with its route, or several of a connection with the same head.

    All digests are keyed. `environment` has the variables of a wrapped command by which clients name
    their conversations.
    """

    def __init__(
        self,
        asked: RequestStart,
        route: Route,
        digest: Digest,
        clients: Clients,
        connection: int | str,
        environment: Mapping[str, str] = _NOWHERE,
        principals: PrincipalNames = PRINCIPAL_NAMES,
        peer: str = "",
    ) -> None:
        self.asked = asked
        self.method = asked.method
        """HTTP method; empty where it came through a pipe."""
        self.is_piped = not asked.method
        """Whether it came through a pipe, and not over HTTP."""
        self.is_post = asked.method.upper() == "POST"
        """Whether it is a POST; in any case, because some servers ignore the case of methods."""
        self.route = route
        self.server = route.target.name
        self.transport = route.target.transport
        self.fields = asked.head.fields
        self._text = asked.head.text
        self.connection = connection
        self.peer = peer
        """The address of the connection's other end."""
        self._environment = environment
        self._digest = digest
        self._clients = clients
        self._principals = principals
        self._session = self.field(b"turnlog-session")
        self._turn = self.field(b"turnlog-turn")
        self._agent = self.field(b"user-agent")
        self.coding = self.field(b"content-encoding")
        self.key = self.field(KEY)
        """The idempotency key that a header gives."""
        self.revision = self.field(b"mcp-protocol-version")
        """The protocol revision that a header names."""
        self.credential = self._credential()
        """Keyed digest of the caller's credentials: the principal; empty for none."""
        # The stateless revisions have no sessions, so an id does not count.
        given = "" if is_stateless(self.revision) else self.field(b"mcp-session-id")
        self.mcp_session = self.session_digest(given)
        """Keyed digest of the protocol session's id; empty where there is none."""
        self.scope: Scope = (self.server, self.mcp_session or f"connection {connection}")
        """The scope in which JSON-RPC ids are unique: the protocol session, else the connection."""
        self.kin = self._kin(route)
        """The same for all requests of one client, on whatever connection.

        Empty if there is nothing to recognize it by, or a protocol session identifies it.
        """
        # With several fields none counts (W3C Trace Context, section 3.2.1).
        given = "" if b"traceparent" in asked.head.repeated else self.field(b"traceparent")
        self.trace = trace_id(given)
        """Trace id of the `traceparent` header (W3C Trace Context, section 3.2)."""
        self.why = self.field(b"turnlog-why")
        """The reason for the call that a header gives."""
        self.is_at_endpoint = False
        """Whether its path is known as an MCP endpoint, because a JSON-RPC message came with it."""
        self.channel: LegacyStream | None = None
        """The stream on which it is answered (2024-11-05)."""
        self._identity: tuple[Client, str, SessionIdentity] | None = None
        """Which session the calls of a client to a target mean, if their messages do not name it."""

    def elsewhere(self, asked: RequestStart, route: Route) -> "Request | None":
        """Return this request, or a copy of it for another path of its server.

        `None` if the caller may be another one.
        """
        if asked == self.asked:
            return self
        before = self.route
        tells_same = asked.head is self.asked.head and asked.method == self.method
        if not (tells_same and route.target is before.target and route.session == before.session):
            return None
        # A protocol session is that of its URL, and a query may hold a credential.
        if self.mcp_session or self._query_credentials(route) != self._query_credentials(before):
            return None
        # As `copy` does, at a third of its price: each call of a REST API asks for another path.
        other = Request.__new__(Request)
        vars(other).update(vars(self), asked=asked, route=route, kin=self._kin(route))
        other.is_at_endpoint = False
        vars(other).pop("target", None)
        vars(other).pop("forwarded", None)
        return other

    def _query_credentials(self, route: Route) -> Pairs:
        return self._principals.credentials((), route.given_query) if route.query else ()

    def joins(self, channel: LegacyStream) -> None:
        """Join an HTTP+SSE stream, whose endpoint is the protocol session."""
        self.channel, self._identity = channel, None
        self.target = channel.target
        self.mcp_session = self.session_digest(f"{channel.endpoint} of HTTP+SSE")
        self.scope = (self.server, self.mcp_session)
        self.kin = ""
        vars(self).pop("server_session", None)

    def _kin(self, route: Route) -> str:
        told = (route.session, self._session, self.credential, self._agent)
        if self.mcp_session or not any(told):
            return ""
        return "\0".join((self.server, route.resource, *told))

    @cached_property
    def target(self) -> str:
        """Keyed digest of upstream, path and query; calls of different targets are never duplicates."""
        return self._digest(_joined("target", *self.place)).hex()[:32]

    @cached_property
    def forwarded(self) -> OutgoingHead:
        """Its head on the way to the server."""
        target, resource = self.route.target, self.route.resource
        return outgoing_head(target, self.method, resource, self._forwarded_lines)

    @cached_property
    def _forwarded_lines(self) -> bytes:
        return forwarded_lines(self.asked.head.raw, self.route.target)

    @property
    def place(self) -> tuple[str, ...]:
        """The place of the server that the request is for, see `Target.place`."""
        route = self.route
        if route.target.is_command:
            return route.target.place
        given = self._principals.without_credentials(route.given_query)
        # Servers redirect `/mcp` to `/mcp/`, and clients follow: it is one place.
        return (*route.target.place, route.path.rstrip("/"), route.target.query, given)

    @cached_property
    def upstream(self) -> str:
        """Keyed digest of the upstream, the target of plain HTTP calls: path and query are in their input."""
        target = self.route.target
        place, mask = target.place, target.mask
        if mask is not None:
            # Neither the name of its tool nor what a rule makes of it has the values.
            place = (*place, mask.path, mask.query)
        return self._digest(_joined("target", *place)).hex()[:32]

    @property
    def http_version(self) -> str:
        """HTTP version of the request, such as `1.1`."""
        major, minor = self.asked.version
        return f"{major}.{minor}"

    def field(self, name: bytes) -> str:
        """Return the first value of a header, empty where there is none."""
        return self._text.get(name, "")

    def _credential(self) -> str:
        pairs = self._principals.credentials(self.asked.head.raw, self.route.given_query)
        return self._principal(pairs) if pairs else ""

    def _principal(self, pairs: Pairs) -> str:
        # Of a lone header the same as in 0.1, so that sessions go on.
        named = b"".join([b"\0%b\0%b" % pair for pair in pairs])
        return self._digest(b"credential" + named).hex()[:32]

    def session_digest(self, session_id: str) -> str:
        """Return the keyed digest of a protocol session's id."""
        if not session_id:
            return ""
        return self._digest(_joined("mcp-session", self.target, session_id)).hex()[:32]

    @property
    def stream_owner(self) -> tuple[str, ...]:
        """The digests of protocol session and principal, by which any process matches the answers on a
        resumed stream; none without a session."""
        if not self.mcp_session or self.channel is not None:
            return ()
        return self.mcp_session, self.credential

    @cached_property
    def server_session(self) -> str:
        """Keyed digest of the protocol session's id on this server, at whatever path; empty for none."""
        if not self.mcp_session:
            return ""
        channel, given = self.channel, self.field(b"mcp-session-id")
        session_id = f"{channel.endpoint} of HTTP+SSE" if channel is not None else given
        return self._digest(_joined("mcp-session", self.server, session_id)).hex()[:32]

    @property
    def asker(self) -> Scope:
        """The scope shared by all requests of one client to a server: its protocol session, else its
        connection."""
        return (self.server, self.server_session or f"connection {self.connection}")

    @property
    def client(self) -> Client:
        """The client's name, version and protocol revision from `initialize`, if that went through this proxy."""
        return self._clients.get(self.scope, UNKNOWN_CLIENT)

    @property
    def client_name(self) -> str:
        """The client's name if the message has none: from `initialize`, else `User-Agent`."""
        return self.client.name or self._agent

    @property
    def is_sealed(self) -> bool:
        """Whether its body must not be changed, because it is encoded or has a digest or signature."""
        return is_sealed(self.asked.head.raw) or b"content-encoding" in self.fields

    @property
    def is_undecodable(self) -> bool:
        """Whether the body has an unknown content coding."""
        return bool(self.coding) and decoder_for(self.coding, MCP_LIMIT) is None

    def decoded(self, body: bytes) -> bytes:
        """Return the body without its content coding; nothing if that is unknown."""
        if not self.coding:
            return body
        decoder = decoder_for(self.coding, MCP_LIMIT)
        return decoder.feed(body) if decoder is not None else b""

    def session_identity(
        self,
        sessions: Sessions,
        client: Client,
        meta: Mapping[str, bytes] = _NO_META,
        *,
        target: str = "",
    ) -> SessionIdentity:
        """Return the session that a call points to; `target` is its target if that is not `self.target`."""
        known, target = self._identity, target or self.target
        tells = bool(meta) and sessions.tells(meta)
        # A client that does not name itself goes by another name, which may change meanwhile.
        if known is not None and known[1] == target and not tells:
            before = known[0]
            if before is client or (client.name and before == client):
                return known[2]
        name = client.name or self.client_name
        identity = sessions.identify(self.evidence(sessions, meta, name, target))
        if not tells:
            self._identity = client, target, identity
        return identity

    def evidence(
        self,
        sessions: Sessions,
        meta: Mapping[str, bytes] = _NO_META,
        client_name: str = "",
        target: str = "",
    ) -> CallerEvidence:
        """Return the evidence of the session that this request has."""
        named = self._text.keys() & sessions.vendor_headers
        return CallerEvidence(
            path_session=self.route.session,
            header_session=self._session,
            header_turn=self._turn,
            meta=meta,
            headers={name.decode(): self._text[name] for name in named if self._text[name]},
            environment=self._environment,
            mcp_session_id=self.mcp_session,
            upstream=self.server,
            target=target or self.target,
            credential=self.credential,
            client_name=client_name or self.client_name,
            connection=self.connection,
        )


def _joined(*parts: str) -> bytes:
    return "\0".join(parts).encode("utf-8", "surrogatepass")
