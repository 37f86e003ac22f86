"""An MCP exchange: one POST (or listening GET), the calls in it, and what its answers tell.

Every `tools/call` is recorded. Everything else goes by; some of it is read for what it says of
calls: lists of tools, handshakes, cancellations, polls of tasks, answers on another stream.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from turnlog.core import ids
from turnlog.core.classify import (
    Ending,
    http_answer,
    malformed_answer,
    rpc_answer,
    void_answer,
    without_answer,
)
from turnlog.core.kinds import Executed, Flag, Phase, Status
from turnlog.store.base import StoreError, Ticket
from turnlog.wire import mcp
from turnlog.wire.http import fields
from turnlog.wire.jsonrpc import Batch, Kind, Malformed, Message, Reason, id_key, outline_kind
from turnlog.wire.message import MessageReader
from turnlog.wire.rawjson import Shape, members, shape
from turnlog.wire.skim import Outline
from turnlog.wire.sse import Event

from .answers import Made, batch, envelope, failed_request
from .asking import Asking
from .context import Context
from .identity import read_client
from .legs import Legs
from .recorder import Attempt, Reply
from .request import Request
from .upstream import Answer, Failure, Fault

_NO_ID: Final = (b"", b"null")
_NS_PER_MS: Final = 1_000_000


class McpExchange:
    """One HTTP exchange of an MCP client. `messages` is what its body holds, if anything.

    Of a body that is too large to hold, or that nobody can read, `start` is how it begins.
    """

    def __init__(
        self,
        context: Context,
        request: Request,
        messages: Sequence[Message],
        *,
        start: bytes = b"",
    ) -> None:
        self._context = context
        self._request = request
        self._messages = messages
        self._waiting: dict[str, Message] = {
            id_key(message.id): message for message in messages if message.kind is Kind.REQUEST
        }
        self._attempts: dict[str, Attempt] = {}
        self._asking = Asking(context, request, start)
        self._legs = Legs(context, request.server)
        self._phase = Phase.QUEUED
        self._answer: Answer | None = None
        self._resumable = False
        self.revision = self._asking.revision(messages[0] if messages else None)
        self.stateless = mcp.is_stateless(self.revision)

    @property
    def listens(self) -> bool:
        """Whether this exchange waits for nothing: a listening stream."""
        if not self._messages:
            return True
        return self._messages[0].method == "subscriptions/listen"

    # -- before the request leaves ---------------------------------------------------------

    async def begin(self) -> None:
        """Write the intents. Raises `StoreError` when the calls have to be refused."""
        try:
            for message in self._messages:
                self._notice_request(message)
            for attempt in list(self._attempts.values()):
                await self._context.recorder.on_disk(attempt)
        except StoreError:
            self.left("session_unavailable")
            raise
        self._phase = Phase.SENDING

    def _notice_request(self, message: Message) -> None:
        if message.method == "tools/call" and message.kind is Kind.REQUEST:
            self._open(message)
        elif (cancelled := mcp.cancelled_id(message)) is not None:
            self._context.calls.cancel(self._request.scope, cancelled)

    def _open(self, message: Message) -> None:
        key = id_key(message.id)
        reused = self._context.calls.has(self._request.scope, key)
        ask = self._asking.call(message, self.revision, self._legs, reused=reused)
        attempt = self._context.recorder.begin(ask)
        self._attempts[key] = attempt
        self._context.calls.add(self._request.scope, key, attempt)

    # -- when turnlog has to answer itself -------------------------------------------------

    def refused(self, error: StoreError) -> Made:
        """Return the answer to calls that could not be recorded and so were not forwarded."""
        return self._made(
            f"the call was not forwarded: {error}", self._ending("session_unavailable")
        )

    def failed(self, failure: Failure) -> tuple[Made, Sequence[Ticket]]:
        """Record that there is no answer; return what to say instead."""
        self._phase = failure.phase
        made = self._made(_sentence(failure, self._request.server), self._ending(failure.fault))
        return made, self._end_all(failure.fault, failure.detail)

    def left(self, kind: str) -> None:
        """Record that nobody waits for the answers any more, for the reason `kind`.

        In the handshake revisions a stream with event ids may be resumed: its calls stay open.
        """
        if self._resumable and not self.stateless and kind == "cancelled_by_caller":
            self._detach()
        else:
            self._end_all(kind, "")

    def _made(self, sentence: str, ending: Ending) -> Made:
        requests = [message for message in self._messages if message.kind is Kind.REQUEST]
        answers = [
            failed_request(
                message.method,
                Raw(message.id),
                sentence,
                self._envelope(message, ending),
                stateless=self.stateless,
            )
            for message in requests
        ]
        return batch(answers, sentence)

    def _envelope(self, message: Message, ending: Ending) -> dict[str, object]:
        attempt = self._attempts.get(id_key(message.id))
        if attempt is None:
            return envelope(ending, session="", call="", tool="")
        ask = attempt.ask
        session = ids.to_text(ask.session.id) if ask.session.id is not None else ""
        return envelope(ending, session=session, call=ids.to_text(ask.call), tool=ask.tool)

    def _ending(self, kind: str) -> Ending:
        effects = [attempt.ask.effect for attempt in self._attempts.values()]
        return without_answer(kind, self._phase, effects[0] if effects else self._asking.effect)

    # -- reading along ---------------------------------------------------------------------

    def head(self, answer: Answer) -> None:
        """Take in the answer's head."""
        self._answer = answer
        self._phase = Phase.HEAD

    def event(self, event: Event) -> Sequence[Ticket]:
        """Read one event of a stream."""
        self._phase = Phase.BODY
        self._resumable = self._resumable or event.id is not None
        if event.body is None or not event.has_data:
            return ()
        return self._read(event.body, "application/json")

    def whole(self, body: MessageReader, media: str) -> Sequence[Ticket]:
        """Read an answer that is no stream, once it is complete."""
        tickets = list(self._read(body, media))
        for key in list(self._attempts):
            tickets += self._unanswered(key, body, media)
        return tickets

    def ended(self) -> Sequence[Ticket]:
        """Learn that a stream ended as it should; calls without a response may be resumed."""
        if self._resumable and not self.stateless:
            self._detach()
            return ()
        return self._end_all(Fault.CONNECTION_LOST, "the stream ended without the response")

    def broken(self, failure: Failure) -> Sequence[Ticket]:
        """Learn that the answer will never be complete."""
        if self._resumable and not self.stateless:
            self._detach()
            return ()
        self._phase = failure.phase
        return self._end_all(failure.fault, failure.detail)

    async def settle(self, tickets: Sequence[Ticket]) -> None:
        """Wait until all of `tickets` are on disk."""
        for ticket in tickets:
            await self._context.recorder.settle(ticket)

    def _read(self, body: MessageReader, media: str) -> Sequence[Ticket]:
        body.finish()
        content = body.content
        if isinstance(content, Batch):
            return [
                ticket
                for item in content.items
                if isinstance(item, Message)
                for ticket in self._message(item, body, media)
            ]
        return () if isinstance(content, Malformed) else self._message(content, body, media)

    def _message(
        self, message: Message | Outline, body: MessageReader, media: str
    ) -> Sequence[Ticket]:
        raw_id = message.id if isinstance(message, Message) else message.raw("id")
        kind = message.kind if isinstance(message, Message) else outline_kind(message)
        if kind not in {Kind.RESPONSE, Kind.ERROR}:
            return ()
        key = self._key_of(raw_id, kind)
        attempt = self._attempts.pop(key, None)
        if attempt is not None:
            self._context.calls.remove(self._request.scope, key, attempt)
        elif key in self._waiting:
            return self._notice_answer(self._waiting.pop(key), message, body)
        else:
            attempt = self._context.calls.claim(self._request.scope, key)
        if attempt is None:
            return ()
        return self._close(attempt, message, body, media)

    def _key_of(self, raw_id: bytes, kind: Kind | None) -> str:
        """An error without id answers the only request there is (JSON-RPC 2.0 section 5.1), and
        whatever comes answers a request whose id could not be read."""
        if "" in self._waiting:
            return ""
        if kind is Kind.ERROR and raw_id in _NO_ID and len(self._waiting) == 1:
            return next(iter(self._waiting))
        return id_key(raw_id)

    # -- closing attempts ------------------------------------------------------------------

    def _close(
        self, attempt: Attempt, message: Message | Outline, body: MessageReader, media: str
    ) -> Sequence[Ticket]:
        said = mcp.read_answer(message, revision=self.revision)
        reply = self._reply(message, said, body, media)
        links = self._legs.links(attempt.ask, said)
        reply = msgspec.structs.replace(reply, links=links, ttl=_ttl(said))
        ending = void_answer() if _is_void(message, said) else _answered(said, reply)
        ticket = self._context.recorder.end(attempt, ending, reply)
        self._context.calls.park(links, attempt)
        return () if ticket is None else (ticket,)

    def _reply(
        self, message: Message | Outline, said: mcp.Answer, body: MessageReader, media: str
    ) -> Reply:
        content = body.finish() if isinstance(message, Outline) else _content(message)
        flags = message.flags if isinstance(message, Message) else ()
        if self._answer is not None and media != "application/json":
            flags = (*flags, Flag.CONTENT_TYPE_MISMATCH)
        return Reply(
            http_status=self._answer.status if self._answer is not None else 0,
            code=said.code,
            content=content,
            complete=not body.truncated,
            digest=body.digest if body.truncated else b"",
            media_type="application/json",
            is_mcp=True,
            size=body.size,
            flags=flags,
            null_result=said.null_shape,
            detail=said.message,
        )

    def _unanswered(self, key: str, body: MessageReader, media: str) -> Sequence[Ticket]:
        """Record a call whose answer came whole and does not answer it."""
        attempt = self._attempts.pop(key)
        self._context.calls.remove(self._request.scope, key, attempt)
        status = self._answer.status if self._answer is not None else 0
        ending, flags = _not_an_answer(body, status)
        reply = Reply(
            http_status=status,
            content=body.finish(),
            complete=not body.truncated,
            digest=body.digest if body.truncated else b"",
            media_type=media,
            size=body.size,
            flags=flags,
            null_result=not body.size,
        )
        ticket = self._context.recorder.end(attempt, ending, reply)
        return () if ticket is None else (ticket,)

    def _end_all(self, kind: str, detail: str) -> Sequence[Ticket]:
        tickets: list[Ticket] = []
        status = self._answer.status if self._answer is not None else 0
        for key, attempt in self._attempts.items():
            self._context.calls.remove(self._request.scope, key, attempt)
            why = "cancelled_by_caller" if attempt.cancelled else kind
            ending = without_answer(why, self._phase, attempt.ask.effect)
            reply = Reply(http_status=status, detail=detail)
            if ticket := self._context.recorder.end(attempt, ending, reply):
                tickets.append(ticket)
        self._attempts.clear()
        return tickets

    def _detach(self) -> None:
        now = self._context.clock.monotonic()
        for key, attempt in self._attempts.items():
            self._context.calls.detach(self._request.scope, key, attempt, now)
        self._attempts.clear()

    # -- answers to what is no call --------------------------------------------------------

    def _notice_answer(
        self, asked: Message, message: Message | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        match asked.method:
            case "initialize" if isinstance(message, Message):
                self._handshake(asked, message)
            case "tools/list" if isinstance(message, Message) and message.result:
                self._asking.listed(message.result)
            case "tasks/get" | "tasks/result" | "tasks/cancel":
                return self._polled(asked, message, body)
            case _:
                pass
        return ()

    def _handshake(self, asked: Message, message: Message) -> None:
        headers = self._answer.headers if self._answer is not None else ()
        given = fields(headers, b"mcp-session-id")
        session = self._request.session_digest(given[0].decode("latin-1")) if given else ""
        scope = (self._request.server, session) if session else self._request.scope
        revision = mcp.agreed_revision(message.result) if message.result else ""
        info = bytes(members(asked.params).get("clientInfo", b""))
        self._context.clients.learn(scope, read_client(info, revision))

    def _polled(
        self, asked: Message, message: Message | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        poll = mcp.read_task_poll(asked.method, asked.params, message, revision=self.revision)
        if poll is None or not poll.terminal:
            return ()
        attempt = self._legs.finished_task(poll.task_id)
        if attempt is None:
            return ()
        reply = self._reply(message, poll.answer, body, "application/json")
        ticket = self._context.recorder.end(attempt, _answered(poll.answer, reply), reply)
        return () if ticket is None else (ticket,)


def _answered(said: mcp.Answer, reply: Reply) -> Ending:
    ending = rpc_answer(said.status, said.code)
    if reply.http_status >= 400 and http_answer(reply.http_status).executed is Executed.NO:
        return msgspec.structs.replace(ending, executed=Executed.NO)
    return ending


def _is_void(message: Message | Outline, said: mcp.Answer) -> bool:
    """Tell whether a result is `null` or `{}`, which the protocol forbids."""
    if said.status is not Status.OK:
        return False
    result = message.shape("result") if isinstance(message, Outline) else shape(message.result)
    return result in {Shape.NULL, Shape.EMPTY}


def _content(message: Message) -> bytes:
    if message.kind is Kind.RESPONSE:
        return bytes(message.result)
    error = {"code": message.error_code, "message": message.error_message}
    if message.error_data:
        return msgspec.json.encode({**error, "data": message.error_data})
    return msgspec.json.encode(error)


def _ttl(said: mcp.Answer) -> int | None:
    if said.task_ttl_ms is msgspec.UNSET:
        return None
    return -1 if said.task_ttl_ms is None else said.task_ttl_ms * _NS_PER_MS


def _not_an_answer(body: MessageReader, status: int) -> tuple[Ending, tuple[Flag, ...]]:
    content = body.content
    if status >= 400:
        return http_answer(status), ()
    if isinstance(content, Malformed):
        if content.reason is Reason.EMPTY:
            return void_answer(), content.flags
        marks = (Flag.NOT_JSON,) if content.reason is Reason.NOT_JSON else (Flag.MALFORMED,)
        return malformed_answer(), (*content.flags, *marks)
    return malformed_answer(), (Flag.ID_MISMATCH,)


def _sentence(failure: Failure, server: str) -> str:
    if failure.fault is Fault.CONNECT_FAILED:
        return f"the tool server {server!r} could not be reached; the call was not sent"
    return f"the connection to the tool server {server!r} broke; the call may have been executed"
