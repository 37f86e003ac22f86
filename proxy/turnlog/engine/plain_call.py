"""A plain HTTP tool call: one request, one answer, one attempt."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final, cast

from msgspec import structs

from turnlog.core.classify import (
    EarlierAttempts,
    Ending,
    ending_of_call,
    failed,
    is_method_preserving_redirect,
)
from turnlog.core.kinds import ErrorFamily, ErrorKind, Flag, Phase
from turnlog.exchange.delivery import AfterBreak, BrokenAnswer, after_break
from turnlog.exchange.outcome import AnswerFacts, answered_plainly, judged, waiting
from turnlog.record.attempt import Ask, Attempt, following, suspended
from turnlog.record.deadlines import Progress
from turnlog.record.errors import Failure
from turnlog.record.input_gate import gated
from turnlog.record.own_answers import KEY, NOT_RECORDED, OwnAnswer, envelope, problem, with_tail
from turnlog.rules.expression import UNREADABLE
from turnlog.rules.http_tools import Input, http_input
from turnlog.rules.model import Access
from turnlog.rules.policy import deny_unreadable
from turnlog.store.base import Ticket
from turnlog.transport.http_client import Content
from turnlog.wire.http.response_head import NO_HEAD, ResponseHead
from turnlog.wire.json_text import read_value
from turnlog.wire.jsonrpc import Defect, Malformed
from turnlog.wire.message import MessageReader
from turnlog.wire.splice import as_event
from turnlog.wire.sse import SseEvent

from .call_driver import CallDriver, Unsent, unguarded
from .call_keys import identified
from .context import Context
from .guarded_call import guarded
from .redirects import FOLLOWED, RedirectTarget, lead, plain_key
from .request_identity import Request

_STATUSES: Final[dict[str, int]] = {
    ErrorFamily.TIMEOUT: 504,
    ErrorFamily.UNVERIFIED: 403,
    ErrorFamily.BLOCKED: 403,
    ErrorFamily.SESSION: 503,
}
_CUT: Final = (Flag.TRUNCATED_RECORD,)
_REASONS: Final = {
    403: "Forbidden",
    409: "Conflict",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class PlainCall:
    """The exchange of a plain HTTP tool.

    `body` is its start where not `whole`; `size` is all of it in bytes, as far as that is known.
    """

    def __init__(
        self, context: Context, request: Request, body: bytes, size: int, *, whole: bool = True
    ) -> None:
        self._context = context
        self._request = request
        self._body = body
        self._ask = _ask(context, request, body, size, whole=whole)
        self._whole = whole
        self.driver: CallDriver | None = None
        """What drives the call, once it has begun."""
        self.attempt: Attempt | None = None
        self._head = NO_HEAD
        self._lost: Failure | None = None
        self.progress = Progress()
        self._streamed: MessageReader | None = None
        """What came as events."""

    @property
    def keep(self) -> int:
        """How many bytes of the answer are kept."""
        return self._context.keep

    @property
    def waits(self) -> bool:
        """Whether the end of the answer has to wait for the disk."""
        return self.attempt is not None and self.attempt.waits

    def went_by(self, duration: int) -> None:
        """Log nothing: this is a call, and recorded."""

    listens = False
    """Whether this exchange waits for nothing: never, it waits for its answer."""

    async def begin(self) -> None:
        """Queue the intent. Raises `StoreError` when the call has to be refused."""
        if self._ask.policy.looks_at_inputs:
            self._ask = await gated(self._context.lineage, self._context.store, self._ask)
        recorder, ask, call = self._context.recorder, self._ask, None
        if self._whole and ask.may_be_guarded and not ask.is_blocked:
            call = self.driver = guarded(self._context.duplicate_index, ask, stateless=False)
        if call is None:
            self.attempt = await recorder.begin(ask)
            self.driver = unguarded(self.attempt, recorder)
            return
        await call.decided()
        while not call.is_over:
            self._ask = call.ask
            self.attempt = await recorder.begin(self._ask)
            call.begins(self.attempt)
            if await call.intent_accepted():
                return
            self.attempt = None
            await call.decided()

    def repeated(self, unsent: Unsent) -> OwnAnswer:
        """Return the answer to a call that is not sent, because of an earlier one."""
        if unsent.answer is not None:
            return unsent.answer
        ending = unsent.attempt.ending
        assert ending is not None
        return self._problem(_STATUSES.get(ending.error, 409), unsent.sentence, ending)

    is_answered_here = True
    """Whether its client looks for answers in those to its requests: yes."""

    was_accepted = False
    """Whether its client waits on another stream for the answer: no."""

    kept_as_sent = True
    """Whether duplicates get the answer byte by byte as sent: yes."""

    def kept(self, sent: OwnAnswer | None) -> OwnAnswer | None:
        """Return the server's whole answer, for duplicates."""
        ending = self.attempt.ending if self.attempt is not None else None
        return sent if ending is not None and ending.phase is Phase.DONE else None

    @property
    def blocked(self) -> Ask | None:
        """The call, where a rule keeps it from being sent."""
        return self._ask if self._ask.is_blocked else None

    @property
    def is_due(self) -> bool:
        """Whether the intent has to be on disk before it leaves."""
        return self.attempt is not None and self.attempt.is_due

    async def on_disk(self) -> None:
        """Wait for the intent. Raises `StoreError` when the call has to be refused."""
        if self.attempt is not None:
            await self._context.recorder.on_disk(self.attempt)

    def outgoing(self, content: Content) -> Content:
        """Return the body as it leaves: as it came."""
        return content

    def repeatable(self, content: Content) -> bool:
        """Return whether the same request can be sent again: its whole body is here."""
        return isinstance(content, bytes)

    async def again(self, content: bytes) -> bytes:
        """Begin another attempt; return its body. Raises `StoreError`."""
        assert self.attempt is not None  # only a call that was recorded is made again
        self._ask = following(self.attempt)
        self._lost, self._head, self._streamed = None, NO_HEAD, None
        past = self.attempt.so_far
        self.attempt = await self._context.recorder.begin(self._ask)
        self.attempt.past = past
        if self.driver is not None:
            self.driver.begins(self.attempt)
        await self.on_disk()
        return content

    async def rest(self, pause: Awaitable[None]) -> None:
        """Await `pause` before the next attempt; a caller cancels by closing its connection."""
        await pause

    def withdrawn(self) -> None:
        """Return no answer: a caller cancels a plain call by closing its connection."""

    def late_reader(self) -> None:
        """Return nothing: what a command is asked are messages of MCP."""

    def respelling(self) -> dict[bytes, bytes]:
        """Return what ids to change in the answer: a plain request has none."""
        return {}

    def cancelling(self) -> bytes:
        """Return the message that takes the attempt back: closing the connection does."""
        return b""

    @property
    def judges(self) -> bool:
        """Whether a rule has a say in how the call has ended."""
        return self._ask.policy.judges_answers

    amends = False
    """Whether the outcome may be added to an answer to come: never."""

    def amended(self, message: bytes) -> None:
        """Leave an answer as it is."""

    def instead(self) -> OwnAnswer | None:
        """Return what the caller gets in place of an answer that never came."""
        ending = self.attempt.overall if self.attempt is not None else None
        if self._lost is None or ending is None:
            return None
        return self._unanswered(self._lost, ending)

    def last_events(self) -> bytes:
        """Return the event that ends a stream which was cut, where a rule speaks of that."""
        made = self.instead()
        return as_event(made.body) if made is not None else b""

    def refused(self) -> OwnAnswer:
        """Return the answer to a call that could not be recorded and so was not forwarded."""
        self.left(ErrorKind.SESSION_UNAVAILABLE)
        ending = failed(ErrorKind.SESSION_UNAVAILABLE, Phase.QUEUED, self._ask.effect)
        return self._problem(503, NOT_RECORDED, ending)

    def failed(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record that there is no answer; return what to say instead."""
        effect = self._ask.effect
        ending = failed(failure.kind, failure.phase, effect, is_final=failure.is_final)
        said = failure.sentence(self._ask.server, self._past)
        reply = AnswerFacts(detail=failure.detail, said=said, retry_after=failure.retry_after)
        tickets = self._end(ending, reply)
        return self._unanswered(failure, ending_of_call(ending, self._past)), tickets

    def outlived(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record that the caller's time is over while the call runs on; return what to say to it."""
        assert self.attempt is not None  # only a call runs on
        made, tickets = self.failed(failure)
        self._context.recorder.reopen(self.attempt)
        return made, tickets

    @property
    def _past(self) -> EarlierAttempts | None:
        return self.attempt.past if self.attempt is not None else None

    def _unanswered(self, failure: Failure, ending: Ending) -> OwnAnswer:
        status = 409 if failure.is_final else _STATUSES.get(ending.error, 502)
        return self._problem(status, failure.sentence(self._ask.server, self._past), ending)

    @property
    def drivers(self) -> Sequence[CallDriver]:
        """The driver of the call, once it has begun."""
        return () if self.driver is None else (self.driver,)

    def left(self, kind: ErrorKind) -> None:
        """End the open attempt with `kind`, because no caller waits for it any more."""
        if self.attempt is None or self.attempt.ended or self.attempt.n:
            return  # with an outcome already, what its caller was told stands
        ending = failed(kind, self.progress.phase, self._ask.effect)
        self._end(ending, AnswerFacts(http_status=self._head.status))

    def on_head(self, head: ResponseHead) -> None:
        """Read the answer's head."""
        self._head, self.progress.phase = head, Phase.HEAD

    def event(self, event: SseEvent) -> Sequence[Ticket]:
        """Keep an event's data; the stream is the answer."""
        if self._streamed is None:
            self._streamed = MessageReader(self._context.keep)
        self._streamed.feed(event.data + b"\n")
        if event.body is not None and event.body.notes:
            self._streamed.notes = event.body.notes
        return ()

    def whole(self, body: MessageReader, media: str, size: int) -> Sequence[Ticket]:
        """Record the answer."""
        ask = self._ask
        body.media, body.coded_size = media, size
        target = RedirectTarget()
        if is_method_preserving_redirect(self._head.status):
            target = lead(self._request.route, self._head.raw, self._request.field(b"host"))
        ending, reply = answered_plainly(
            ask.method, self._head.status, body, ask.effect, elsewhere=target.elsewhere
        )
        tickets = self._end(*judged(ask, ending, reply))
        if target.resource is not None and self._whole and self.attempt is not None:
            key = plain_key(ask, target.resource, self._body, self._request.asker)
            until = self._context.clock.monotonic() + FOLLOWED
            self._context.redirects.note(key, self.attempt, until)
        return tickets

    def is_answered_by(self, body: MessageReader, *, cut: bool) -> bool:
        """Return whether an answer that was cut is a whole JSON text all the same.

        One that goes on may bring more of them, as streams of JSON lines do.
        """
        if not cut or self.attempt is None or self.attempt.ended:
            return False
        found = body.so_far
        return found is not None and (
            not isinstance(found, Malformed) or found.reason is Defect.NOT_JSONRPC
        )

    hands_over = False
    """Whether an answer counts as delivered before its transfer ends: never."""

    others = ()
    """Attempts of other exchanges whose responses came here: none."""

    giving_others = nullcontext
    """It holds no answers to other requests."""

    def handed_over(self) -> None:
        """Note nothing: the answer ends where its transfer does."""

    def ended(self) -> Sequence[Ticket]:
        """Record the answer that came as events."""
        said = self._streamed or MessageReader()
        return self.whole(said, "text/event-stream", said.size)

    is_resumable = False
    """Whether another stream may bring what this one did not: of HTTP tools nothing is known."""

    def broken(self, failure: Failure, broken: BrokenAnswer) -> Sequence[Ticket]:
        """Record that the answer was cut."""
        managed = failure.is_managed(self._ask.policy)
        told = after_break(broken, managed=managed, events_are_messages=False) is AfterBreak.ANSWER
        self._lost = failure if told else None
        said = failure.sentence(self._ask.server, self._past) if told else ""
        ending = failed(failure.kind, failure.phase, self._ask.effect)
        return self._end(
            ending, AnswerFacts(http_status=self._head.status, detail=failure.detail, said=said)
        )

    def _end(self, ending: Ending, reply: AnswerFacts) -> Sequence[Ticket]:
        if self.attempt is None:
            return ()
        self.attempt.marks.update(self.progress.marks)
        reply = waiting(reply, self._head.raw, self._context.clock.wall)
        ticket = self._context.recorder.end(self.attempt, ending, reply)
        return () if ticket is None else (ticket,)

    def _problem(self, status: int, detail: str, ending: Ending) -> OwnAnswer:
        found = self.attempt.verdict if self.attempt is not None else None
        outcome = envelope(self._ask, ending, found=found)
        return problem(status, _REASONS[status], with_tail(detail, outcome), {KEY: outcome})


def _said(asked: bytes, body: bytes, *, whole: bool) -> object:
    """Return a call's input for rules to look at: with the body as a lax server would read it."""
    said = read_value(asked, UNREADABLE)
    if not body or not isinstance(said, dict):
        return said
    inner = read_value(body, UNREADABLE) if whole else UNREADABLE
    return inner if inner is UNREADABLE else {**cast("dict[str, object]", said), "body": inner}


def is_denied(
    context: Context, request: Request, body: bytes, *, whole: bool, at_endpoint: bool
) -> bool:
    """Return whether a rule denies a request as a plain HTTP call, or may do so because of its inputs.

    `at_endpoint` only one that denies paths counts.
    """
    # It must not open a session: most such requests turn out to be MCP, whose messages name their client.
    asked = _input(request, body, context.store.keyed, whole=whole)
    policy = _tool(context, request, partial(_said, asked.text, body, whole=whole)).policy
    rules = context.rules.book.servers[request.server]
    if policy.access is not Access.DENY:
        return not at_endpoint and rules.gates_path(policy)
    return not at_endpoint or rules.denies_path(policy.decided_by["access"])


def _input(
    request: Request, body: bytes, digest: Callable[[bytes], bytes], *, whole: bool
) -> Input:
    path, query = request.route.text, request.route.query[1:]
    return http_input(path, query, body, whole=whole, digest=digest)


def _tool(context: Context, request: Request, read: Callable[[], object]) -> Ask:
    """Return the part of a call that is the tool's; `read` returns its input for rules."""
    tool = context.http_tools.find(request, request.route.text, read)
    rule = context.rules.book.servers[request.server].against_unreadable
    if rule is not None and request.is_undecodable:
        tool = structs.replace(tool, policy=deny_unreadable(tool.policy, rule))
    return tool


def _ask(context: Context, request: Request, body: bytes, size: int, *, whole: bool) -> Ask:
    sessions, client = context.sessions, request.client
    identity = request.session_identity(sessions, client, target=request.upstream)
    session = sessions.find(identity, client)
    digest = partial(context.store.keyed_for, session.id)
    asked = _input(request, body, digest, whole=whole)
    mask, shown = request.route.target.mask, b""
    if mask is not None:
        place = mask.shown(request.route.text, request.route.query[1:])
        shown = http_input(*place, body, whole=whole, digest=digest).text
    read = partial(_said, asked.text, body, whole=whole)
    ask = structs.replace(
        _tool(context, request, read),
        session=session,
        turn_label=identity.turn_label,
        turn_source=identity.turn_source,
        call=context.recorder.new_call(),
        arguments=asked.text,
        shown=shown,
        complete=not asked.cut,
        says_all=whole,
        size=size,
        flags=() if whole else _CUT,
        trace=request.trace,
        key=request.key,
        why=request.why,
        client=identity.client,
    )
    if session.suspension is not None:
        ask = suspended(ask, session.suspension)
    if whole and context.redirects.waiting:
        key = plain_key(ask, request.route.resource, body, request.asker)
        ask = context.redirects.followed(ask, context.clock.monotonic(), key)
    ask = identified(ask, request, read, context.store.keyed_for)
    return context.duplicate_index.with_branches(ask, can_be_answered=whole)
