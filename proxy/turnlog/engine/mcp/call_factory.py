"""From a request that is recorded to what the recorder writes of it."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct, structs

from turnlog.core.canon import canonical_of_decoded
from turnlog.core.identity import SessionIdentity
from turnlog.core.kinds import LOOKUPS, Effect, Flag, Rung
from turnlog.engine.agent_request import Request, former
from turnlog.engine.context import Context
from turnlog.engine.duplicates.call_keys import effect_link, key_for
from turnlog.engine.http.redirects import call_key
from turnlog.engine.request_identity import read_client
from turnlog.engine.tools.tool_cache import UNKNOWN_TOOL
from turnlog.record.attempt import BLANK, Ask, GuessedCaller
from turnlog.record.recorder import OFF_LOOP
from turnlog.rules.expression import UNREADABLE
from turnlog.rules.policy import deny_unreadable
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
_IMPLICIT: Final = Rung.IMPLICIT
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
        named = self.request.revision
        # A call says it in `_meta`, and most have none.
        if message is not None and (said is None or said.meta):
            named = mcp.requested_revision(message, named)
        return named or self.request.client.revision

    def call(self, message: Message, said: mcp.ToolCall, revision: str, *, reused: bool) -> Ask:
        """Return what to record of a `tools/call`, which asks what is `said`."""
        context, request = self.context, self.request
        arguments = self.start or bytes(said.arguments)
        read = partial(self._said, message, arguments)
        whose = request.server, request.target, request.credential, said.name
        model = context.tools.find(*whose) or context.tools.look(*whose, request.place, read)
        ask, identity = self._asked(message, said, model, arguments, revision, reused=reused)
        if ask.session.rung is _IMPLICIT and not request.is_piped:
            ask = self._guessed(ask, said)
        if context.redirected:
            keys = call_key(ask, id_key(message.id), request.asker), call_key(ask, "")
            ask = context.redirected.followed(ask, context.clock.monotonic(), *keys)
        if self.is_unsure(message) or ask.tool == UNKNOWN_TOOL:
            ask = self._closed(ask)
        if ask.may_be_guarded:
            ask = structs.replace(ask, former=former(request, identity))
        policy = model.policy
        if policy.idempotency is None and not policy.effect_key:
            return ask
        key_sent = key_for(
            request, ask.policy, ask.effect, given=ask.key, call=ask.call, leg=ask.leg
        )
        effect = effect_link(ask, read, context.store.keyed)
        return structs.replace(ask, key_sent=key_sent, effect_link=effect)

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
        arguments = self.start or bytes(said.arguments)
        ask, _ = self._asked(message, said, model, arguments, revision, reused=reused)
        return structs.replace(ask, key="")

    def _asked(
        self,
        message: Message,
        said: mcp.ToolCall,
        model: Ask,
        arguments: bytes,
        revision: str,
        *,
        reused: bool,
    ) -> tuple[Ask, SessionIdentity]:
        """Return what a request asks that is recorded, and whose it is."""
        context, request = self.context, self.request
        meta = {name: bytes(raw) for name, raw in said.meta.items()} if said.meta else _NO_META
        key, why, trace = _told(meta) if meta else _NOTHING_TOLD
        client = read_client(meta[_CLIENT_INFO]) if _CLIENT_INFO in meta else request.client
        hint = request.meant(context.sessions, context.vendor_headers, client, meta)
        session, identity = context.sessions.find(hint, client), hint.identity
        before: Ask | None = None
        if said.request_state or said.has_input_responses:
            before = Continuations(context, request.target).continued(said, session)
        flags = (*message.flags, _ID_REUSED) if reused else message.flags
        # Of more than 15 arguments with names Python 3.11 makes a dict first, and a model has the rest.
        ask = structs.replace(
            model,
            session=session if before is None else before.session,
            turn_label=identity.turn_label,
            turn_source=identity.turn_source,
            call=context.recorder.new_call() if before is None else before.call,
            leg=0 if before is None else before.leg + 1,
            arguments=arguments,
            canonical=None if self.start else _canonical(message, arguments),
            complete=self.whole,
            size=self.size,
            flags=flags + model.flags,
            trace=trace or request.trace,
            protocol=dated(revision),
            key=key or request.key,
            why=why or request.why,
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

    def _said(self, message: Message, arguments: bytes) -> object:
        """Return the arguments for rules to look at: a body that nobody could read has none."""
        if self.start or not _UNREAD.isdisjoint(message.flags):
            return UNREADABLE
        return read_value(arguments, UNREADABLE)


def _canonical(message: Message, arguments: bytes) -> tuple[str, bytes] | None:
    """Return a call's arguments in canonical form, where they are decoded already and not large."""
    if message.plain is None or len(arguments) > OFF_LOOP or message.method in LOOKUPS:
        return None
    params: Any = message.plain.get("params")
    try:
        return canonical_of_decoded(params["arguments"], arguments)
    except (KeyError, TypeError):  # it has no arguments, or is no object
        return None


def _told(meta: Mapping[str, bytes]) -> tuple[str, str, str]:
    """Return what `_meta` says of the call: its idempotency key, why it is made, its trace id."""
    return _text(meta, _KEY), _text(meta, _WHY), trace_id(_text(meta, _TRACE))


def _text(meta: Mapping[str, bytes], name: str) -> str:
    """Return the text that a member of `_meta` says; empty where there is none."""
    return text_of(meta[name]) if name in meta else ""
