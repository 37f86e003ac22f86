"""An MCP exchange: one POST (or listening GET), the calls in it, and their answers.

Every `tools/call` is recorded, and so are lookups (`core.kinds`). Other messages are only forwarded; some
are read because they concern calls: lists of tools, handshakes, cancellations, polls of tasks, answers on
another stream.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from msgspec import structs

from turnlog.core.canon import canonical_of_decoded
from turnlog.core.kinds import LOOKUPS, Effect, Flag, Rung
from turnlog.engine.call_driver import CallDriver, Unsent, unguarded
from turnlog.engine.call_keys import identified
from turnlog.engine.guarded_call import GuardedCall, guarded
from turnlog.engine.redirects import call_key
from turnlog.engine.request_identity import read_client
from turnlog.engine.tools.tool_cache import UNKNOWN_TOOL
from turnlog.record.attempt import BLANK, Ask, Attempt, GuessedCaller, following, suspended
from turnlog.record.deadlines import LateReader
from turnlog.record.input_gate import gated
from turnlog.record.own_answers import (
    CANCELLED,
    JSON,
    OwnAnswer,
    as_status,
    repeated,
)
from turnlog.record.recorder import OFF_LOOP
from turnlog.record.unread import all_read
from turnlog.rules.expression import UNREADABLE
from turnlog.rules.policy import deny_unreadable
from turnlog.transport.http_client import Content
from turnlog.wire import mcp
from turnlog.wire.http.head import trace_id
from turnlog.wire.http.response_head import NO_HEAD
from turnlog.wire.json_text import read_value, text_of
from turnlog.wire.jsonrpc import SCAN_LIMIT, Kind, Message, id_key
from turnlog.wire.splice import with_cancelled_ids, with_id

from .response_observer import ResponseObserver

_CALL: Final = "tools/call"
_REQUEST: Final = Kind.REQUEST
_NOTIFICATION: Final = Kind.NOTIFICATION
_SLICE: Final = 32
"""Calls of a batch that are begun before the loop may serve other requests."""
_UNSURE: Final = frozenset(
    {Flag.DUPLICATE_KEYS, Flag.NOT_JSON, Flag.MALFORMED, Flag.TRUNCATED_RECORD}
)
_UNREAD: Final = frozenset({Flag.NOT_JSON, Flag.MALFORMED})
"""Flags of a request that is not JSON-RPC."""
_KEY: Final = "turnlog/key"
_WHY: Final = "turnlog/why"
_TRACE: Final = "traceparent"
_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
_ID_REUSED: Final = Flag.ID_REUSED
_IMPLICIT: Final = Rung.IMPLICIT
_NO_META: Final[dict[str, bytes]] = {}


class McpExchange(ResponseObserver, eq=False):
    """One HTTP exchange of an MCP client; without messages it is a listening GET."""

    size: int = 0
    """Size of the body in bytes."""
    start: bytes = b""
    """The part of the body to record in place of parsed arguments, if it is too large to hold or cannot be
    parsed."""
    cut: bool = False
    """Whether that is not all of the body."""
    blocked: Ask | None = None
    """The first call that a rule forbids, if there is one."""
    is_due: bool = False
    """Whether an intent must be on disk before the request is sent."""
    _params: mcp.ToolCall | None = None
    """The parsed parameters, if its only message is a call."""
    _cancels: Mapping[str, bytes] = {}
    """For cancels in this request, the id of the attempt by the key of the caller's id, if they differ."""

    def __post_init__(self) -> None:
        """Set the revision, and the parameters of a single call."""
        super().__post_init__()
        messages, revision = self._messages, self._request.revision
        if len(messages) == 1 and messages[0].method == _CALL:
            self._params = params = mcp.read_call(messages[0].params)
            # A call states the revision in `_meta`, and most have none.
            if params.meta:
                revision = mcp.requested_revision(messages[0], revision)
        elif messages:
            revision = mcp.requested_revision(messages[0], revision)
        self.revision = revision or self._request.client.revision

    # -- before the request is sent --------------------------------------------------------

    async def begin(self) -> None:
        """Queue the intents. Raises `StoreError` if the calls must be refused."""
        if b"last-event-id" in self._request.fields:
            event_id = self._request.field(b"last-event-id")
            self._resumed = await self._context.calls.resume(self._request.scope, event_id)
        for number, message in enumerate(self._messages):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)  # requests of other callers go on meanwhile
            key = id_key(message.id)
            if message.kind is _REQUEST:
                self.awaited[key] = message
            if message.method == _CALL or self._may_be_denied(message):
                await self._open(message, key)
            elif (cancelled := mcp.cancelled_id(message)) is not None:
                await self._on_cancel(cancelled)
            elif message.method in LOOKUPS and message.kind is _REQUEST:
                await self._look_up(message, key)
            else:
                self._notice(message)

    async def on_disk(self) -> None:
        """Wait for the intents. Raises `StoreError` if the calls must be refused."""
        for attempt in tuple(self.attempts):
            await self._context.recorder.on_disk(attempt)

    def _may_be_denied(self, message: Message) -> bool:
        """Return whether a server may read a message as a call that a rule denies, where turnlog does not."""
        if not (message.method or self.cut) or not self._is_unsure(message):
            return False
        rules = self._context.rules.book.servers[self._request.server]
        return rules.against_unreadable is not None

    def _is_unsure(self, message: Message) -> bool:
        """Return whether a server may read a message differently than turnlog does."""
        return not _UNSURE.isdisjoint(message.flags) or self.cut or self.size > SCAN_LIMIT

    async def _on_cancel(self, key: str) -> None:
        """Handle a cancel for the call whose id has this key."""
        if not self._is_for_a_call(key) and not self._request.is_piped:
            # The cancel may have been read before its call, which came on another connection.
            await all_read()
            self._is_for_a_call(key)

    def _is_for_a_call(self, key: str) -> bool:
        """Cancel the call with this key, if it runs or has just ended; return whether there is one."""
        calls, scope, kin = self._context.calls, self._request.scope, self._request.kin
        if calls.leave(scope, key, kin) or calls.is_answered(scope, key, kin):
            # The call runs on, so the forwarded cancel gets an id that the server does not know.
            self._cancels = {**self._cancels, key: self._context.recorder.new_request_id()}
            return True
        known = calls.cancel(scope, key, kin)
        if known:
            self._cancels = {**self._cancels, key: known}
        return known is not None or self._context.duplicate_index.on_late_cancel(scope, kin, key)

    def _notice(self, message: Message) -> None:
        """Note a message that is not a call but may concern one."""
        calls, scope, kin = self._context.calls, self._request.scope, self._request.kin
        if message.kind in {Kind.RESPONSE, Kind.ERROR}:
            calls.on_server_request_settled(scope, id_key(message.id), kin)
        elif self._request.channel is not None:
            self._request.channel.expect(message)

    async def _open(self, message: Message, key: str) -> None:
        """Queue the intent of a call; `key` is the key of its id."""
        ask, is_single = self._call(message, key), len(self._messages) == 1
        is_alone = is_single and message.kind is _REQUEST and not self.as_batch
        ask = self._context.duplicate_index.with_branches(ask, can_be_answered=is_alone)
        if ask.policy.looks_at_inputs:
            ask = await gated(self._context.lineage, self._context.store, ask)
        if ask.is_blocked:
            self.blocked = self.blocked or ask
        # Only a call alone in its request can be answered from another call.
        elif is_alone and ask.may_be_guarded and (call := self._guarded_call(ask)) is not None:
            await self._guarded(message, call, key)
            return
        self._asks[key] = ask
        attempt = await self._begin(message, ask, key)
        if message.kind is _NOTIFICATION:
            self._notified |= {attempt}
        elif is_single:
            self.attempt, self.judges = attempt, ask.policy.judges_answers

    def _call(self, message: Message, key: str) -> Ask:
        """Return a `tools/call` as it is recorded."""
        context, request = self._context, self._request
        params = self._params or mcp.read_call(message.params)
        arguments = self.start or bytes(params.arguments)
        read = partial(self._read_arguments, message, arguments)
        model = context.tools.find(request, params.name, read)
        canonical = None if self.start else _canonical(message, arguments)
        ask = self._as_recorded(message, key, params, arguments, model, canonical)
        if ask.session.rung is _IMPLICIT and not request.is_piped:
            ask = self._with_guessed_caller(ask, params)
        # A further leg goes on with a call that is in flight.
        if ask.session.suspension is not None and not ask.leg:
            ask = suspended(ask, ask.session.suspension)
        if context.redirects.waiting:
            keys = call_key(ask, key, request.asker), call_key(ask, "")
            ask = context.redirects.followed(ask, context.clock.monotonic(), *keys)
        rule = context.rules.book.servers[request.server].against_unreadable
        if rule is not None and (self._is_unsure(message) or ask.tool == UNKNOWN_TOOL):
            ask = structs.replace(ask, policy=deny_unreadable(ask.policy, rule))
        return identified(ask, request, read, context.store.keyed_for)

    async def _look_up(self, message: Message, key: str) -> None:
        """Queue the intent of a lookup, which is only recorded: rules do not apply to it."""
        request = self._request
        model = structs.replace(
            BLANK,
            server=request.server,
            tool=message.method,
            method=message.method,
            effect=Effect.READ,
            principal=request.credential,
            target=request.target,
        )
        params = mcp.read_lookup(message.method, message.params)
        arguments = self.start or bytes(params.arguments)
        ask = self._as_recorded(message, key, params, arguments, model, None)
        session = ask.session.refusals or ask.session
        await self._begin(message, structs.replace(ask, session=session, key=""), key)

    def _as_recorded(
        self,
        message: Message,
        rpc_key: str,
        params: mcp.ToolCall,
        arguments: bytes,
        model: Ask,
        canonical: tuple[str, bytes] | None,
    ) -> Ask:
        """Return a call or lookup as it is recorded, before rules that need its arguments."""
        context, request = self._context, self._request
        key, why, trace, client = request.key, request.why, request.trace, request.client
        meta = _NO_META
        if params.meta:
            meta = {name: bytes(raw) for name, raw in params.meta.items()}
            key, why = text_of(meta.get(_KEY, b"")) or key, text_of(meta.get(_WHY, b"")) or why
            trace = trace_id(text_of(meta.get(_TRACE, b""))) or trace
            client = read_client(meta[_CLIENT_INFO]) if _CLIENT_INFO in meta else client
        identity = request.session_identity(context.sessions, client, meta)
        session, call, leg = context.sessions.find(identity, client), b"", 0
        if params.request_state or params.has_input_responses:
            before = context.continuations.continued(request.target, params, session)
            if before is not None:
                session, call, leg = before.session, before.call, before.leg + 1
        flags = message.flags + model.flags
        if context.calls.has(request.scope, rpc_key):
            flags = (*message.flags, _ID_REUSED, *model.flags)
        # Python 3.11 builds a dict for more than 15 keyword arguments, so the model brings the rest.
        return structs.replace(
            model,
            session=session,
            turn_label=identity.turn_label,
            turn_source=identity.turn_source,
            call=call or context.recorder.new_call(),
            leg=leg,
            arguments=arguments,
            canonical=canonical,
            complete=not self.cut,
            size=self.size,
            flags=flags,
            trace=trace,
            protocol=mcp.dated(self.revision),
            key=key,
            why=why,
            client=identity.client,
        )

    def _with_guessed_caller(self, ask: Ask, params: mcp.ToolCall) -> Ask:
        """Return a call with its guessed caller, as no session identifies it."""
        request, info = self._request, params.meta.get(_CLIENT_INFO)
        client = read_client(bytes(info)) if info is not None else request.client
        is_known = bool(request.credential or client.name)
        guess = GuessedCaller(
            f"{request.credential}\n{client.name}" if is_known else "",
            f"{client.version}\n{request.peer}",
            request.connection,
        )
        self._context.duplicate_index.on_guessed_call(guess)
        return structs.replace(ask, guess=guess) if ask.is_named else ask

    def _read_arguments(self, message: Message, arguments: bytes) -> object:
        """Return the decoded arguments for rules; `UNREADABLE` if the body could not be parsed."""
        if self.start or not _UNREAD.isdisjoint(message.flags):
            return UNREADABLE
        return read_value(arguments, UNREADABLE)

    async def _begin(
        self, message: Message, ask: Ask, key: str, driver: CallDriver | None = None
    ) -> Attempt:
        """Queue the intent of an attempt; `key` is the key of the id that is sent to the server, and `driver`
        that of its call, if it has one already. Raises `StoreError`.
        """
        context, request = self._context, self._request
        attempt = await context.recorder.begin(ask)
        attempt.caller_id = message.id
        attempt.scope, attempt.kin = request.scope, request.kin
        self.attempts[attempt] = key
        self.begun[key] = attempt
        self.is_due = self.is_due or attempt.is_due
        context.calls.add(request.scope, key, attempt)
        if driver is not None:
            driver.begins(attempt)
            return attempt
        is_member = len(self._messages) > 1 or message.kind is not _REQUEST
        driver = unguarded(
            attempt, context.recorder, is_member=is_member, is_piped=request.is_piped
        )
        self.drivers.append(driver)
        if not is_member:
            self.driver = driver
        return attempt

    async def _guarded(self, message: Message, call: GuardedCall, key: str) -> None:
        """Begin a guarded call, unless it is not sent because of an earlier one."""
        self.driver, self.judges = call, call.ask.policy.judges_answers
        self.drivers = [call]
        await self._decided(call, key)
        while not call.is_over:
            self._asks[key] = call.ask
            attempt = await self._begin(message, call.ask, key, call)
            if await call.intent_accepted():
                self.attempt = attempt
                return
            self._context.calls.remove(self._request.scope, self.attempts.pop(attempt), attempt)
            await self._decided(call, key)

    def _guarded_call(self, ask: Ask) -> GuardedCall | None:
        return guarded(self._context.duplicate_index, ask, stateless=self.stateless)

    async def _decided(self, call: GuardedCall, key: str) -> None:
        """Wait until it is decided whether a call is sent; a cancel for the id with this key ends the wait."""
        call.begin()
        if call.machine.is_undecided:
            request = self._request
            with self._context.calls.joining(request.scope, key, request.kin, call):
                await call.decided()

    def repeated(self, unsent: Unsent) -> OwnAnswer:
        """Return the answer to a call that is not sent because of an earlier one."""
        message, attempt, sentence = self._messages[0], unsent.attempt, unsent.sentence
        ask, ending, answer = attempt.ask, attempt.ending, unsent.answer
        assert ending is not None
        attempt.caller_id = message.id  # a late cancel names it
        attempt.scope, attempt.kin = self._request.scope, self._request.kin
        made = repeated(message, ask, ending, answer) if answer is not None else None
        if made is None:
            self._asks[attempt.caller_key] = ask
            return self._made(self._untold(sentence, sentence, ending))
        return made if self.is_answered_here else as_status(made)

    kept_as_sent: ClassVar = False
    """Whether duplicates get the answer byte by byte as sent: no, only the JSON-RPC response."""

    def kept(self, sent: OwnAnswer | None) -> OwnAnswer | None:
        """Return the whole response, for duplicates."""
        head, attempt = self._head, self.attempt
        if attempt is None or not attempt.message or head is NO_HEAD:
            return None
        return OwnAnswer(head.status, head.reason, JSON, attempt.message)

    def outgoing(self, content: Content) -> Content:
        """Return the body to send, with the ids in cancels replaced by those of the running attempts.

        A body that is changed is sent decoded.
        """
        if not self._cancels or not isinstance(content, bytes):
            return content
        return with_cancelled_ids(self._request.decoded(content), self._cancels) or content

    # -- another attempt -------------------------------------------------------------------

    def repeatable(self, content: Content) -> bool:
        """Return whether the same message can be sent again under another id."""
        if self.attempt is None or not isinstance(content, bytes) or self._request.is_sealed:
            return False
        return with_id(content, b"0") is not None

    async def again(self, content: bytes) -> bytes:
        """Begin another attempt of the one call; return its body. Raises `StoreError`."""
        assert self.attempt is not None
        message, before = self._messages[0], self.attempt
        wire_id, ask = self._context.recorder.new_request_id(), following(before)
        self._on_retry()
        key = id_key(wire_id)
        with self._context.calls.resting(self._request.scope, before):
            self.awaited[key] = message
            self._asks[before.caller_key] = ask
            self.attempt = attempt = await self._begin(message, ask, key, self.driver)
            attempt.wire_id, attempt.past = wire_id, before.so_far
            await self.on_disk()
        return with_id(content, wire_id) or content

    async def rest(self, pause: Awaitable[None]) -> None:
        """Await `pause` before the next attempt; the caller may cancel meanwhile."""
        assert self.attempt is not None
        with self._context.calls.resting(self._request.scope, self.attempt):
            await pause

    def withdrawn(self) -> OwnAnswer | None:
        """Return the answer to a call that its caller cancelled before the next attempt was sent."""
        ending = self.attempt.overall if self.attempt is not None else None
        if ending is None:
            return None
        return self._made(self._untold(CANCELLED, CANCELLED, ending))

    def respelling(self) -> dict[bytes, bytes]:
        """Return the ids of retries that the answer may hold, with the caller's id for each."""
        if self.listens:
            return self._context.calls.spellings(self._request.scope)
        if (attempt := self.attempt) is None or not attempt.wire_id:
            return {}
        return {attempt.wire_id: attempt.caller_id}

    def late_reader(self) -> LateReader | None:
        """Return the reader of late answers to its calls; `None` if it has no calls."""
        if not self.begun:
            return None
        # A new observer, so that the reader holds no reference to this exchange.
        reading = ResponseObserver(self._context, self._request, (), revision=self.revision)
        return partial(reading.take_late, self.begun)

    def cancelling(self) -> bytes:
        """Return the message that cancels the attempt; empty if closing its stream does that."""
        attempt = self.attempt
        if attempt is None or (self.stateless and not self._request.is_piped):
            return b""
        # A named write runs on: its caller cannot tell whether the effect has happened.
        return attempt.cancellation if self.is_withdrawn or not attempt.ask.is_named else b""


def _canonical(message: Message, arguments: bytes) -> tuple[str, bytes] | None:
    """Return a call's arguments in canonical form, if they are already decoded and not large."""
    if message.plain is None or len(arguments) > OFF_LOOP:
        return None
    params: Any = message.plain.get("params")
    try:
        return canonical_of_decoded(params["arguments"], arguments)
    except (KeyError, TypeError):  # no arguments, or not an object
        return None
