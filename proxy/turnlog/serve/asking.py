"""From a `tools/call` request to what the recorder writes of it."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Raw, structs

from turnlog.core.expression import UNREADABLE
from turnlog.core.identity import Identity
from turnlog.core.kinds import Effect, Flag
from turnlog.core.policy import Policy, Subject
from turnlog.core.provenance import Provenance, Standing
from turnlog.observe.events import DefinitionsFailed, ToolsListed
from turnlog.store.base import SessionRef
from turnlog.wire import mcp
from turnlog.wire.jsonrpc import Message
from turnlog.wire.rawjson import read_value, text_of

from .attempt import TOOL_CHARS, Ask
from .catalog import effect_of
from .context import Context
from .identity import Client, read_client
from .keys import HEADER, effect_link, key_for
from .legs import Legs
from .request import Request, trace_id

UNKNOWN_TOOL: Final = "?"
"""Tool name of a call that does not say which."""
_UNREAD: Final = frozenset({Flag.NOT_JSON, Flag.MALFORMED})
"""Flags of a request that is no JSON-RPC."""
_UNNAMED: Final = frozenset({Effect.READ, Effect.UNKNOWN})
_REVISION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WHY: Final = "turnlog/why"
_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"


class Asking:
    """Reads the calls of one request, with what the request says around them.

    `start` is the body, `whole` or not, where that is all there is to record of the input; `size`
    is the body's, in bytes.
    """

    def __init__(
        self, context: Context, request: Request, start: bytes, size: int, *, whole: bool
    ) -> None:
        self._context = context
        self._request = request
        self._start = start
        self._size = size
        self._whole = whole

    def revision(self, message: Message | None) -> str:
        """Return the protocol revision of the request, as it says or as was agreed before."""
        header = self._request.field(b"mcp-protocol-version")
        if message is None:
            return header or self._request.client.revision
        named = mcp.requested_revision(message, header.encode("latin-1"))
        return named or self._request.client.revision

    def call(self, message: Message, revision: str, legs: Legs, *, reused: bool) -> Ask:
        """Return what to record of a `tools/call`."""
        said = mcp.read_call(message.params)
        meta = {name: bytes(raw) for name, raw in said.meta.items()}
        found, identity = self._session(meta)
        session, call, leg = self._place(legs, said, found)
        tool = self._context.clean(said.name[:TOOL_CHARS]) or UNKNOWN_TOOL
        key = _key(meta)
        arguments = self._start or bytes(said.arguments)

        def read() -> object:
            return self._said(message, arguments)

        definition, standing, effect, policy = self._ruled(said.name, tool, read)
        ask = Ask(
            session=session,
            turn_label=identity.turn_label,
            turn_source=identity.turn_source,
            call=call,
            leg=leg,
            server=self._request.server,
            tool=tool,
            method="tools/call",
            effect=effect,
            definition=definition,
            arguments=arguments,
            complete=self._whole,
            size=self._size,
            flags=_flags(message, standing, reused=reused),
            trace=_trace(meta) or self._request.trace,
            protocol=revision if _REVISION.fullmatch(revision) else "",
            policy=policy,
            standing=standing,
            is_named=effect not in _UNNAMED,
            key=key or self._request.field(HEADER),
            key_sent=key_for(self._request, policy, effect, given=key, call=call, leg=leg),
            principal=self._request.credential,
            why=_why(meta) or self._request.why,
            client=identity.client,
        )
        link = effect_link(ask, read, self._context.store.keyed)
        return structs.replace(ask, effect_link=link) if link else ask

    def _session(self, meta: dict[str, bytes]) -> tuple[SessionRef, Identity]:
        headers = self._request.vendor_headers(self._context.vendor_headers)
        client = self._client(meta)
        evidence = self._request.evidence(meta, headers, client.name)
        return self._context.sessions.find(evidence, client)

    def _place(
        self, legs: Legs, said: mcp.ToolCall, session: SessionRef
    ) -> tuple[SessionRef, bytes, int]:
        """Return the session, the call and the leg: those of the call that goes on, if one does."""
        before = legs.continued(said, session)
        if before is None:
            return session, self._context.recorder.new_call(), 0
        return before.session, before.call, before.leg + 1

    def _ruled(
        self, name: str, tool: str, arguments: Callable[[], object]
    ) -> tuple[bytes, Standing, Effect, Policy]:
        """Return the tool's definition (its hash) and how it stands, its effect, and its rules."""
        server = self._request.server
        definition = self._context.catalog.find(server, self._request.credential, name)
        digest = definition.digest if definition is not None else b""
        hint = effect_of(definition, trusted=server in self._context.trusted)
        subject = Subject(server=server, tool=name, method="tools/call", hint=hint)
        policy = self._context.rules.book.policy(subject, arguments)
        standing = self._context.pins.standing(server, tool, digest)
        return digest, standing, policy.effect or hint, policy

    def _said(self, message: Message, arguments: bytes) -> object:
        """Return the arguments for rules to look at: a body that nobody could read has none."""
        if self._start or not _UNREAD.isdisjoint(message.flags):
            return UNREADABLE
        return read_value(arguments, UNREADABLE)

    def _client(self, meta: Mapping[str, bytes]) -> Client:
        if _CLIENT_INFO in meta:
            return read_client(meta[_CLIENT_INFO])
        return self._request.client

    def is_unlisted(self, tool: str) -> bool:
        """Tell whether the last complete `tools/list` of this caller lacks the tool."""
        return self._context.catalog.lacks(self._request.server, self._request.credential, tool)

    def listed(self, result: Raw, *, after: Raw | None) -> None:
        """Take in a page of `tools/list`; `after` is the cursor that was asked for, if any."""
        page = mcp.read_tools_list(result)
        server, credential = self._request.server, self._request.credential
        learned = self._context.catalog.learn(server, credential, page, first=after is None)
        self._context.keeper.note(server, credential, page, learned.whole)
        self._context.log.emit(
            ToolsListed(
                server=server,
                tools=len(page.definitions),
                added=learned.added,
                changed=learned.changed,
                complete=not page.next_cursor,
                stuck=page.next_cursor != "" and page.next_cursor == text_of(bytes(after or b"")),
            )
        )

    def unread(self) -> None:
        """Learn that the caller got a list that nobody here could read: what its tools are now is
        not known."""
        server = self._request.server
        if self._context.catalog.forget(server, self._request.credential):
            reason = f"a list of tools of {server!r} cannot be read, so they count as not seen"
            self._context.log.emit(DefinitionsFailed(reason=reason))


def _flags(message: Message, standing: Standing, *, reused: bool) -> tuple[Flag, ...]:
    flags = (*message.flags, Flag.ID_REUSED) if reused else message.flags
    changed = standing.provenance is Provenance.MISMATCH
    return (*flags, Flag.CHANGED_DEFINITION) if changed else flags


def _key(meta: Mapping[str, bytes]) -> str:
    return text_of(meta["turnlog/key"]) if "turnlog/key" in meta else ""


def _why(meta: Mapping[str, bytes]) -> str:
    return text_of(meta[_WHY]) if _WHY in meta else ""


def _trace(meta: Mapping[str, bytes]) -> str:
    return trace_id(text_of(meta["traceparent"])) if "traceparent" in meta else ""
