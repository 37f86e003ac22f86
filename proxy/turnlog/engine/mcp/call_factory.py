"""From a request that is recorded to what the recorder writes of it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, cast

from msgspec import Struct, structs

from turnlog.core.canon import canonical_of_decoded
from turnlog.core.identity import SessionIdentity
from turnlog.core.kinds import Effect, Flag, Rung
from turnlog.engine.agent_request import Request, former
from turnlog.engine.context import Context
from turnlog.engine.duplicates.call_keys import HEADER, effect_link, key_for
from turnlog.engine.http.redirects import call_key
from turnlog.engine.request_identity import Client, read_client
from turnlog.engine.tools.tool_cache import UNKNOWN_TOOL
from turnlog.record.attempt import BLANK, Ask, GuessedCaller
from turnlog.record.recorder import OFF_LOOP
from turnlog.rules.expression import UNREADABLE
from turnlog.rules.policy import deny_unreadable
from turnlog.store.base import SessionRef
from turnlog.wire import mcp
from turnlog.wire.http.head import trace_id
from turnlog.wire.json_text import read_value, text_of
from turnlog.wire.jsonrpc import SCAN_LIMIT, Message, id_key
from turnlog.wire.mcp import dated

from .continuations import Continuations

_UNSURE: Final = frozenset(
    {Flag.DUPLICATE_KEYS, Flag.NOT_JSON, Flag.MALFORMED, Flag.TRUNCATED_RECORD}
)
_UNREAD: Final = frozenset({Flag.NOT_JSON, Flag.MALFORMED})
"""Flags of a request that is no JSON-RPC."""
_KEY: Final = "turnlog/key"
_WHY: Final = "turnlog/why"
_TRACE: Final = "traceparent"
_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
_ID_REUSED: Final = Flag.ID_REUSED
_NO_META: Final[dict[str, bytes]] = {}
_NOTHING_TOLD: Final = ("", "", "")


class CallFactory(Struct, frozen=True):
    """Reads the calls of one request, with what the request says around them."""

    context: Context
    request: Request
    start: bytes
    """The body, `whole` or not, where that is all there is to record of the input."""
    size: int
    """The body's, in bytes."""
    whole: bool

    def revision(self, message: Message | None, said: mcp.ToolCall | None) -> str:
        """Return the protocol revision of the request, as it says or as was agreed before.

        `said` is what its message asks, where that is a call.
        """
        named = self.request.field(b"mcp-protocol-version")
        # A call says it in `_meta`, and most have none.
        if message is not None and (said is None or said.meta):
            named = mcp.requested_revision(message, named)
        return named or self.request.client.revision

    def call(self, message: Message, said: mcp.ToolCall, revision: str, *, reused: bool) -> Ask:
        """Return what to record of a `tools/call`, which asks what is `said`."""
        request = self.request
        arguments = self.start or bytes(said.arguments)
        model = self._model(message, said.name, arguments)
        canonical = None if self.start else _canonical(message, arguments)
        ask, identity = self._asked(message, said, model, canonical, revision, reused=reused)
        given = ask.key
        if not given and (key := request.field(HEADER)):
            ask = structs.replace(ask, key=key)
        if ask.session.rung is Rung.IMPLICIT and not request.is_piped:
            ask = self._guessed(ask, said)
        if self.context.redirected:
            keys = call_key(ask, id_key(message.id), request.asker), call_key(ask, "")
            ask = self.context.redirected.followed(ask, self.context.clock.monotonic(), *keys)
        if self.is_unsure(message) or ask.tool == UNKNOWN_TOOL:
            ask = self._closed(ask)
        if ask.may_be_guarded:
            ask = structs.replace(ask, former=former(request, identity))
        policy = model.policy
        if policy.idempotency is None and not policy.effect_key:
            return ask
        return self._keyed(ask, given, partial(self._said, message, arguments))

    def lookup(self, message: Message, revision: str, *, reused: bool) -> Ask:
        """Return what to record of a request that only looks something up: no rule speaks of it."""
        request = self.request
        model = structs.replace(
            BLANK,
            server=request.server,
            tool=message.method,
            method=message.method,
            effect=Effect.READ,
            principal=request.credential,
            target=request.target,
        )
        said = mcp.read_lookup(message.method, message.params)
        ask, _ = self._asked(message, said, model, None, revision, reused=reused)
        return structs.replace(ask, key="")

    def _asked(
        self,
        message: Message,
        said: mcp.ToolCall,
        model: Ask,
        canonical: tuple[str, bytes] | None,
        revision: str,
        *,
        reused: bool,
    ) -> tuple[Ask, SessionIdentity]:
        """Return what a request asks that is recorded, with the key in its message, and whose it is."""
        meta = {name: bytes(raw) for name, raw in said.meta.items()} if said.meta else _NO_META
        found, identity = self._session(meta)
        session, call, leg = self._place(said, found)
        key, why, trace = _told(meta) if meta else _NOTHING_TOLD
        flags = (*message.flags, _ID_REUSED) if reused else message.flags
        # Of more than 15 arguments with names Python 3.11 makes a dict first, and a model has the rest.
        ask = structs.replace(
            model,
            session=session,
            turn_label=identity.turn_label,
            turn_source=identity.turn_source,
            call=call,
            leg=leg,
            arguments=self.start or bytes(said.arguments),
            canonical=canonical,
            complete=self.whole,
            size=self.size,
            flags=flags + model.flags,
            trace=trace or self.request.trace,
            protocol=dated(revision),
            key=key,
            why=why or self.request.why,
            client=identity.client,
        )
        return ask, identity

    def is_unsure(self, message: Message) -> bool:
        """Return whether a server may read something else in a message than turnlog does."""
        return not _UNSURE.isdisjoint(message.flags) or not self.whole or self.size > SCAN_LIMIT

    @property
    def is_closed(self) -> bool:
        """Whether a rule may deny calls of this server: what is not read surely is refused then."""
        return self.context.rules.book.rule_against_unreadable(self.request.server) is not None

    def _closed(self, ask: Ask) -> Ask:
        rule = self.context.rules.book.rule_against_unreadable(self.request.server)
        return (
            ask if rule is None else structs.replace(ask, policy=deny_unreadable(ask.policy, rule))
        )

    def _keyed(self, ask: Ask, given: str, arguments: Callable[[], object]) -> Ask:
        """Return a call with the keys that its rules speak of; `given` is its caller's, in the message."""
        return structs.replace(
            ask,
            key_sent=key_for(
                self.request, ask.policy, ask.effect, given=given, call=ask.call, leg=ask.leg
            ),
            effect_link=effect_link(ask, arguments, self.context.store.keyed),
        )

    def _guessed(self, ask: Ask, said: mcp.ToolCall) -> Ask:
        """Return a call with who its caller may be: nothing else tells that."""
        request, info = self.request, said.meta.get(_CLIENT_INFO)
        client = read_client(bytes(info)) if info is not None else request.client
        is_known = bool(request.credential or client.name)
        guess = GuessedCaller(
            f"{request.credential}\n{client.name}" if is_known else "",
            f"{client.version}\n{request.peer}",
            request.connection,
        )
        self.context.repeats.on_guessed_call(guess)
        return structs.replace(ask, guess=guess) if ask.is_named else ask

    def _session(self, meta: dict[str, bytes]) -> tuple[SessionRef, SessionIdentity]:
        sessions, client = self.context.sessions, self._client(meta)
        meant = self.request.meant(sessions, self.context.vendor_headers, client, meta)
        return sessions.find(meant, client), meant.identity

    def _place(self, said: mcp.ToolCall, session: SessionRef) -> tuple[SessionRef, bytes, int]:
        """Return the session, the call and the leg: those of the call that goes on, if one does."""
        if said.request_state or said.has_input_responses:
            legs = Continuations(self.context, self.request.target)
            before = legs.continued(said, session)
            if before is not None:
                return before.session, before.call, before.leg + 1
        return session, self.context.recorder.new_call(), 0

    def _model(self, message: Message, name: str, arguments: bytes) -> Ask:
        """Return what a call of the tool with this name asks as others do."""
        tools, request = self.context.tools, self.request
        whose = request.server, request.target, request.credential
        known = tools.find(*whose, name)
        if known is not None:
            return known
        said = partial(self._said, message, arguments)
        return tools.look(*whose, name, request.place, said)

    def _said(self, message: Message, arguments: bytes) -> object:
        """Return the arguments for rules to look at: a body that nobody could read has none."""
        if self.start or not _UNREAD.isdisjoint(message.flags):
            return UNREADABLE
        return read_value(arguments, UNREADABLE)

    def _client(self, meta: Mapping[str, bytes]) -> Client:
        if _CLIENT_INFO in meta:
            return read_client(meta[_CLIENT_INFO])
        return self.request.client


def _canonical(message: Message, arguments: bytes) -> tuple[str, bytes] | None:
    """Return a call's arguments in canonical form, where they are decoded already and not large."""
    if message.plain is None or len(arguments) > OFF_LOOP:
        return None
    params = message.plain.get("params")
    if not isinstance(params, dict) or "arguments" not in params:
        return None
    return canonical_of_decoded(cast("dict[str, object]", params)["arguments"], arguments)


def _told(meta: Mapping[str, bytes]) -> tuple[str, str, str]:
    """Return what `_meta` says of the call: its idempotency key, why it is made, its trace id."""
    return _text(meta, _KEY), _text(meta, _WHY), trace_id(_text(meta, _TRACE))


def _text(meta: Mapping[str, bytes], name: str) -> str:
    """Return the text that a member of `_meta` says; empty where there is none."""
    return text_of(meta[name]) if name in meta else ""
