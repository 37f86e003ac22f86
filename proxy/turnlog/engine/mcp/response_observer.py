"""The observer of the answers to one MCP exchange: it ends attempts, notes other messages, and makes turnlog's
own answers where the server gave none."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field, structs

from turnlog.core.classify import (
    SUCCESS,
    UNSENT,
    EarlierAttempts,
    Ending,
    ending_of_call,
    failed,
    is_method_preserving_redirect,
)
from turnlog.core.kinds import Effect, ErrorKind, Flag, NoteKind, Phase
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.context import Context
from turnlog.engine.duplicate_index import KEPT
from turnlog.engine.legacy_sse import LegacyStream, Say
from turnlog.engine.redirects import CONSENTED, FOLLOWED, RedirectTarget, call_key, lead
from turnlog.engine.request_identity import Request
from turnlog.engine.tools.handshake_observer import LIST_LIMIT, LISTS
from turnlog.exchange.call import Stage
from turnlog.exchange.delivery import AfterBreak, BrokenAnswer, after_break
from turnlog.exchange.events import ServerAsked
from turnlog.exchange.open_requests import answered_key
from turnlog.exchange.outcome import (
    SAYS_WHEN,
    AnswerFacts,
    Circumstances,
    acknowledged,
    answered_by_text,
    call_answered,
    instead,
    is_answer,
    is_unfit,
    judged,
    looks_like_success,
    lookup_answered,
    mislabelled,
    notification_answered,
    unanswered,
    waiting,
)
from turnlog.observe.events import RequestRelayed, rpc_id
from turnlog.record.attempt import Ask, Attempt
from turnlog.record.deadlines import Progress
from turnlog.record.errors import Failure
from turnlog.record.own_answers import (
    CANCELLED,
    EVENTS,
    JSON,
    NOT_RECORDED,
    NOT_RECORDED_BESIDE,
    OwnAnswer,
    Unanswered,
    amended,
    as_status,
)
from turnlog.store.base import Ticket
from turnlog.wire import mcp
from turnlog.wire.http.response_head import NO_HEAD, ResponseHead
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Batch, Kind, Malformed, Message, id_key, other_type
from turnlog.wire.message import MessageReader
from turnlog.wire.splice import as_event
from turnlog.wire.sse import SseEvent
from turnlog.wire.tool_result import CallAnswer, read_answer, read_lookup_answer

from .listening import Listening

if TYPE_CHECKING:  # it needs an extra that may not be installed
    from turnlog.engine.tools.signatures import ResultSignatures

_NULL_ID: Final = b"null"
_SENT: Final = frozenset({Phase.SENT, Phase.HEAD, Phase.BODY, Phase.DONE})


# One is made for each request, and a struct takes a third of the time of another class.
class ResponseObserver(Struct, eq=False):
    """Reads the answers to the requests of one exchange, and ends the attempts that they answer."""

    _context: Context
    _request: Request
    _messages: Sequence[Message]
    """The messages of the request."""
    as_batch: bool = False
    """Whether they came as a batch."""
    revision: str = ""
    progress: Progress = field(default_factory=Progress)
    """The phase of the exchange, with its timers."""
    attempt: Attempt | None = None
    """The latest attempt, if there is exactly one call."""
    driver: CallDriver | None = None
    """The driver of the call or lookup, if the request is exactly one."""
    drivers: list[CallDriver] = []
    """The drivers of all calls and lookups of the request."""
    attempts: dict[Attempt, str] = {}
    """Attempts without an outcome, with the key of each one's id; a batch may hold an id twice."""
    begun: dict[str, Attempt] = {}
    """All attempts that were begun, by the same keys."""
    awaited: dict[str, Message] = {}
    """The requests without an answer, by the key of the id sent to the server."""
    _asks: dict[str, Ask] = {}
    """The calls by the key of the caller's id; without lookups, for which turnlog's answers differ."""
    judges: bool = False
    """Whether a rule judges the result of the one call."""
    listens: bool = False
    """Whether this is a listening stream, which waits for no response."""
    _listening: Listening | None = None
    _resumed: Attempt | None = None
    """The call whose stream this one resumes."""
    _lost: Unanswered | None = None
    """Turnlog's own answer in place of one that never came."""
    _head: ResponseHead = NO_HEAD
    """The head of the answer."""
    _is_numbered: bool = False
    """Whether the stream may be resumed: an event had an id."""
    others: tuple[Attempt, ...] = ()
    """Attempts of other exchanges whose responses were read here, and not handed over yet."""
    _unfit: MessageReader | None = None
    """The last message in the place of a response that answers no request."""
    _events: int = 0
    _notified: frozenset[Attempt] = frozenset()
    """Attempts sent as notifications, which get no response."""

    def __post_init__(self) -> None:
        """Set whether this is a listening stream."""
        if not self._messages:
            self._listening, self.listens = Listening(self._context, self._request, self.end), True
        elif self._messages[0].method == "subscriptions/listen":
            self.listens = True

    @property
    def stateless(self) -> bool:
        """Whether the revision has no protocol sessions."""
        return mcp.is_stateless(self.revision)

    @property
    def waits(self) -> bool:
        """Whether the end of the answer must wait for the disk."""
        for attempt in self.attempts:  # noqa: SIM110 - 0.05 us, any() takes 0.35
            if attempt.waits:
                return True
        return False

    @property
    def is_withdrawn(self) -> bool:
        """Whether the call was given up because no caller waits for it."""
        return self.driver is not None and self.driver.machine.stage is Stage.WITHDRAWN

    @property
    def keep(self) -> int:
        """How many bytes of one message are kept, because they are read or recorded."""
        keep, driver = self._context.keep, self.driver
        if self.attempt is not None:  # one call, and no list
            return max(keep, KEPT) if driver is not None and driver.is_guarded else keep
        may_list = self.listens or any(asked.method == LISTS for asked in self._messages)
        return max(keep, LIST_LIMIT) if may_list else keep

    @property
    def is_answered_here(self) -> bool:
        """Whether responses come in the answer to the POST; not in revision 2024-11-05."""
        return self._request.channel is None

    @property
    def was_accepted(self) -> bool:
        """Whether the server has accepted the POST, so that its caller waits on another stream (2024-11-05)."""
        return self._request.channel is not None and 200 <= self._head.status < 300

    def on_relayed(self, say: Say) -> None:
        """Note how the agent can be sent an event of turnlog's, if this is a listening stream."""
        if self._listening is not None:
            self._listening.say = say

    def check_accepted(self, head: ResponseHead) -> None:
        """Raise `Failure` if a POST was accepted whose answer nobody can get any more (2024-11-05)."""
        channel = self._request.channel
        if channel is not None and channel.has_broken and 200 <= head.status < 300:
            detail = "the stream on which it would be answered has broken off"
            raise Failure(ErrorKind.CONNECTION_LOST, Phase.HEAD, detail)

    # -- an answer as it arrives -----------------------------------------------------------

    def _on_retry(self) -> None:
        """Reset the state of the answer to the attempt before."""
        self._lost = self._unfit = None
        self._head, self._events, self._is_numbered = NO_HEAD, 0, False

    def on_head(self, head: ResponseHead) -> None:
        """Read the answer's head."""
        self._head, self.progress.phase = head, Phase.HEAD

    def event(self, event: SseEvent) -> Sequence[Ticket]:
        """Read one event of a stream."""
        self.progress.phase = Phase.BODY
        self._events += 1
        if event.id is not None:
            self._is_numbered = True
            self._number(event.id)
        body = event.body
        if body is None or not body.size:
            return ()
        if self._listening is not None and self._listening.begins(event):
            return ()
        body.event = event.type
        return self.message(body.content, body)

    def _number(self, event_id: str) -> None:
        for attempt, key in self.attempts.items():
            is_first = attempt.event_ids is None and not self.stateless
            if is_first and (owner := self._request.stream_owner):
                self._context.continuations.note_resumable(attempt, owner, key)
            attempt.numbered(event_id)
        if self._resumed is not None:
            self._resumed.numbered(event_id)

    def whole(self, body: MessageReader, media: str, size: int) -> Sequence[Ticket]:
        """Read a complete answer that is not a stream; `size` is its size on the wire."""
        body.media, body.coded_size = media, size
        tickets = self.message(body.content, body)
        open_ = self.attempts or self.awaited
        if not open_ and self._request.channel is None:
            return tickets
        return [*tickets, *self._rest_of(body)]

    def _rest_of(self, body: MessageReader) -> Sequence[Ticket]:
        """End the attempts that a whole answer has left open."""
        tickets: list[Ticket] = []
        if self.awaited:
            for event in mislabelled(body, self._context.keep):
                tickets += self.message(event.content, event)
        channel = self._request.channel
        if channel is not None and self.was_accepted:
            return [*tickets, *self._accepted(channel)]
        for attempt in list(self.attempts):
            ask, around = attempt.ask, self._around(attempt.ask)
            if attempt in self._notified:
                ending, reply = notification_answered(body, around)
            else:
                ending, reply = unanswered(body, around)
                if ask.is_call:
                    ending, reply = judged(ask, ending, reply)
            tickets += self._end_by_answer(attempt, ending, reply)
            self._redirected(attempt)
        self._on_all_read()
        return tickets

    def _redirected(self, attempt: Attempt) -> None:
        """Remember a redirected call, so that the request that follows the redirect continues it."""
        if not is_method_preserving_redirect(self._head.status):
            return
        leads = self._leads
        if leads.resource is None:
            return
        self._context.redirects.note(
            call_key(attempt.ask, attempt.caller_key, self._request.asker),
            attempt,
            self._context.clock.monotonic() + FOLLOWED,
        )
        if self._request.channel is not None:
            self._context.legacy_streams.move(self._request.channel, leads.resource)

    def is_answered_by(self, body: MessageReader, *, cut: bool) -> bool:
        """Return whether the body so far holds a response to each open request."""
        awaited = self.awaited
        if not (self.attempts and awaited) or self._request.channel is not None:
            return False
        found = body.so_far
        if found is None:
            return False
        messages = found.items if isinstance(found, Batch) else (found,)
        answered = {
            answered_key(message, awaited, self._is_open)
            for message in messages
            if isinstance(message, Message | Outline) and is_answer(message)
        }
        return awaited.keys() <= answered

    @property
    def hands_over(self) -> bool:
        """Whether a response was read that counts as delivered once the caller has it."""
        return self._is_awaited or bool(self.others)

    def giving_others(self) -> ExitStack:
        """Keep repeats of the calls of other exchanges waiting, within the block, while the caller gets the
        responses to them (decision 79)."""
        giving = ExitStack()
        for attempt in self.others:
            giving.enter_context(self._context.duplicate_index.giving(attempt.ask.call))
        return giving

    @property
    def _is_awaited(self) -> bool:
        """Whether its call is guarded and was answered, and its caller waits for that."""
        driver, attempt = self.driver, self.attempt
        is_answered = attempt is not None and attempt.ending is not None and not self.attempts
        return is_answered and driver is not None and driver.is_guarded and driver.is_awaited

    def handed_over(self) -> None:
        """Mark the responses that were read as delivered to the caller."""
        if self.driver is not None and self._is_awaited:
            self.driver.on_delivered()
        others, self.others = self.others, ()
        for attempt in others:
            self._on_delivered(attempt)

    def _on_delivered(self, attempt: Attempt) -> None:
        """Mark the response to a call of another exchange as delivered."""
        if attempt.is_guarded and attempt.driver is not None:
            attempt.driver.on_delivered()
        elif attempt.facts.guarded:  # from another process
            session, facts = attempt.ask.session, attempt.facts
            self._context.recorder.note(NoteKind.DELIVERED, session, facts, attempt.outcome)
            # The note is on disk a moment later; a repeat may be here before.
            self._context.duplicate_index.on_credited(attempt.ask.call, delivered=True)

    def _on_all_read(self) -> None:
        """Note the requests that the answer, now read to its end, has left without a response."""
        # In revision 2024-11-05 responses come on another stream.
        if 0 < self._head.status < 400 and self._request.channel is None:
            self._context.handshakes.unanswered(self._request, self.awaited.values())

    def went_by(self, duration: int) -> None:
        """Log an exchange without a record; `duration` in ns, from the answer's head."""
        log, request, clean = self._context.log, self._request, self._context.clean
        if self.begun or not log.wants(RequestRelayed):
            return
        first = self._messages[0] if self._messages else None
        log.emit(
            RequestRelayed(
                server=request.server,
                http_method=clean(request.method),
                method=clean(first.method) if first is not None else "",
                request_id=rpc_id(clean(first.id.decode("utf-8", "replace"))) if first else "",
                protocol=clean(self.revision),
                http_status=self._head.status,
                duration_ns=duration,
                events=self._events,
            )
        )

    # -- messages --------------------------------------------------------------------------

    def _answers_nothing(
        self, content: Message | Outline | Malformed, body: MessageReader
    ) -> Sequence[Ticket]:
        if not isinstance(content, Malformed) and mcp.is_request(content):
            self._server_asks(id_key(content.id))
        elif not isinstance(content, Malformed) and (back := mcp.cancelled_id(content)):
            self._context.calls.on_server_request_settled(self._request.scope, back)
        elif self.attempts and is_unfit(body, content):
            self._unfit = body
        return ()

    def message(
        self, message: Message | Batch | Malformed | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        """Read a message, or each of a batch, and end the attempt that it answers, if it does."""
        attempt = self.attempt
        if attempt in self.attempts and isinstance(message, Message):
            sent = attempt.wire_id or attempt.caller_id
            # Most answers are the result of the one call. A request with the id null has no such answer.
            if message.id == sent and message.kind is Kind.RESPONSE and sent != _NULL_ID:
                return self._close(attempt, message, body)
        if isinstance(message, Batch):
            items = (item for item in message.items if isinstance(item, Message))
            return [ticket for item in items for ticket in self.message(item, body)]
        return self._message(message, body)

    def _message(
        self, message: Message | Malformed | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        """Read a message that is not the result of the one call."""
        if isinstance(message, Malformed) or not is_answer(message):
            return self._answers_nothing(message, body)
        key = answered_key(message, self.awaited, self._is_open)
        asked = self._listening.asked(key) if self._listening is not None else None
        if asked is not None:
            return self._notice_answer(asked, message, body)
        if (own := self._own(key)) is not None:
            return self._close(own, message, body)
        if key in self.awaited:
            return self._notice_answer(self.awaited.pop(key), message, body)
        if (elsewhere := self._elsewhere(key)) is not None:
            return self._close_elsewhere(elsewhere, message, body)
        self._context.handshakes.stray(self._request, message)
        return self._answers_nothing(message, body)

    def _own(self, key: str) -> Attempt | None:
        """Return the attempt that was sent under the id with this key."""
        for attempt, its in self.attempts.items():
            if its == key:
                return attempt
        return None

    def _is_open(self, key: str) -> bool:
        if key in self.awaited or self._own(key) is not None:
            return True
        listening = self._listening is not None and self._listening.is_asked(key)
        return listening or self._context.calls.has(self._request.scope, key)

    @property
    def _resumes(self) -> bool:
        return b"last-event-id" in self._request.fields

    def _elsewhere(self, key: str) -> Attempt | None:
        """Return the attempt of another exchange that an answer belongs to; on a resumed stream it may be
        of another process."""
        attempt = self._context.calls.claim(self._request.scope, key)
        if attempt is None and self._resumes and (owner := self._request.stream_owner):
            attempt = self._context.continuations.resumed(owner, key)
        return attempt

    def _close_elsewhere(
        self, attempt: Attempt, message: Message | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        if self._resumes:
            attempt.marks.add(Flag.RESUMED)
        tickets = self._close(attempt, message, body)
        driver = attempt.driver
        if attempt.message and isinstance(driver, CallDriver) and driver.is_over:
            # Its own exchange cannot keep it for duplicates any more.
            answer = OwnAnswer(200, b"OK", JSON, attempt.message)
            self._context.duplicate_index.over(driver, answer)
            attempt.message = b""
        if self._request.is_piped:
            self._on_delivered(attempt)
        else:
            self.others = (*self.others, attempt)
        return tickets

    def _server_asks(self, key: str) -> None:
        """Mark the calls that a request of the server may belong to: they may wait for the caller."""
        attempts = list(self.attempts) or self._context.calls.of(self._request.scope)
        for attempt in attempts:
            attempt.marks.add(Flag.SERVER_REQUEST)
            # On a pipe a client that gave up a call is still there and can answer.
            if attempt.driver is not None and not self._request.is_piped:
                attempt.driver.feed(ServerAsked())
        self._context.calls.on_server_request(self._request.scope, key, attempts)

    def _notice_answer(
        self, asked: Message, message: Message | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        """Read the answer to a request that is not a call."""
        self._context.handshakes.read(self._request, asked, message, self._head.raw)
        return self._context.continuations.polled(
            self._request.target, asked, message, body, self.revision, self._around
        )

    # -- the ends of attempts --------------------------------------------------------------

    def _close(
        self, attempt: Attempt, message: Message | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        """End an attempt by its answer."""
        ask, sent, came = attempt.ask, attempt.wire_id or attempt.caller_id, message.id
        if came != sent and other_type(id_key(came)) == id_key(sent):
            attempt.marks.add(Flag.ID_MISMATCH)
        if not ask.is_call:
            return self._close_lookup(attempt, message, body)
        if verifiers := self._context.result_signatures:
            body = _with_signature(verifiers.get(ask.server), message, body)
        parsed, driver = read_answer(message, revision=self.revision), attempt.driver
        if driver is not None and driver.is_guarded and isinstance(message, Message):
            attempt.message = body.finish()
        reply = answered_by_text(parsed, message, body, self._head.status)
        if reply is not None and not ask.policy.judges_answers:
            attempt.amends = False
            return self.end(attempt, SUCCESS, reply)
        around = self._around_call(attempt, parsed)
        ending, reply = call_answered(ask, parsed, message, body, around)
        attempt.amends = bool(ending.error) and looks_like_success(parsed, reply)
        tickets = self._end_leg(attempt, parsed, ending, reply)
        if parsed.code == mcp.URL_ELICITATION_REQUIRED:
            until = self._context.clock.monotonic() + CONSENTED
            self._context.redirects.note(call_key(ask, ""), attempt, until)
        return tickets

    def _close_lookup(
        self, attempt: Attempt, message: Message | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        """End a lookup by its answer."""
        parsed = read_lookup_answer(message, revision=self.revision)
        ending, reply = lookup_answered(parsed, message, body, self._around(attempt.ask))
        return self._end_leg(attempt, parsed, ending, reply)

    def _end_leg(
        self, attempt: Attempt, parsed: CallAnswer, ending: Ending, reply: AnswerFacts
    ) -> Sequence[Ticket]:
        """Record the outcome of an attempt that was answered, and remember it if it waits for another leg."""
        if ending.status.parked:
            links = self._context.continuations.park(self._request.target, attempt, parsed)
            reply = structs.replace(reply, links=links)
        return self._end_by_answer(attempt, ending, reply)

    def take_late(
        self, begun: Mapping[str, Attempt], key: str, message: Message, raw: bytes
    ) -> None:
        """Record a late answer, if it is to a request of this exchange."""
        if (attempt := begun.get(key)) is not None:
            body = MessageReader.of(raw)
            self.late(attempt, message, body)

    def late(
        self, attempt: Attempt, message: Message | Outline, body: MessageReader
    ) -> Sequence[Ticket]:
        """Record the answer to an attempt that was given up before."""
        if attempt.ended:
            self._context.recorder.reopen(attempt)
        attempt.marks.add(Flag.LATE)
        driver = attempt.driver
        if driver is None or not driver.may_give_late(attempt):
            return self._close(attempt, message, body)
        attempt.message = body.finish() if isinstance(message, Message) else b""
        tickets = self._close(attempt, message, body)
        driver.on_late_answer(attempt)
        return tickets

    def _around_call(self, attempt: Attempt, parsed: CallAnswer) -> Circumstances:
        """Return the circumstances by which the answer to a call is judged."""
        around, request = self._around(attempt.ask), self._request
        if parsed.code is None:
            return around
        return structs.replace(
            around,
            is_unlisted=self._context.servers.is_unlisted(request, attempt.ask.tool),
            is_cancelled=attempt.is_cancelled and attempt.is_guarded,
        )

    def _around(self, ask: Ask) -> Circumstances:
        """Return the circumstances by which an answer is judged."""
        in_session = bool(self._request.mcp_session) and not self.stateless
        status = self._head.status
        elsewhere = 300 <= status < 400 and self._leads.elsewhere
        return Circumstances(status, ask.effect, in_session, elsewhere)

    @property
    def _leads(self) -> RedirectTarget:
        """Where the answer leads, if it is a redirect."""
        request = self._request
        return lead(request.route, self._head.raw, request.field(b"host"))

    def _end_by_answer(
        self, attempt: Attempt, ending: Ending, reply: AnswerFacts
    ) -> Sequence[Ticket]:
        """Record the outcome of an attempt that was answered."""
        if reply.http_status in SAYS_WHEN:
            reply = waiting(reply, self._head.raw, self._context.clock.wall)
        return self.end(attempt, ending, reply)

    def end(self, attempt: Attempt, ending: Ending, reply: AnswerFacts) -> Sequence[Ticket]:
        """Record the outcome of an attempt, of this exchange or another."""
        if marks := self.progress.marks:  # flags of the exchange count for all its open attempts
            for each in self.attempts:
                each.marks.update(marks)
        ticket = self._context.recorder.end(attempt, ending, reply)
        self._forget(attempt)
        return () if ticket is None else (ticket,)

    def _forget(self, attempt: Attempt) -> None:
        key = self.attempts.pop(attempt, None)
        if key is not None:
            self.awaited.pop(key, None)
            self._context.calls.remove(self._request.scope, key, attempt)

    def _end_all(
        self,
        kind: ErrorKind,
        detail: str,
        said: str = "",
        retry_after: float | None = None,
        *,
        is_final: bool = False,
    ) -> Sequence[Ticket]:
        """Record all open attempts as failed; `said` is the text for their caller."""
        reply = AnswerFacts(
            http_status=self._head.status, detail=detail, said=said, retry_after=retry_after
        )
        phase = self.progress.phase
        tickets: list[Ticket] = []
        for attempt in list(self.attempts):
            if attempt.n and attempt.is_guarded:
                # Its timeout was already recorded and answered; no other answer came.
                self._forget(attempt)
                continue
            ending = failed(attempt.cause(kind), phase, attempt.ask.effect, is_final=is_final)
            tickets += self.end(attempt, ending, reply)
        return tickets

    def _detach(self) -> None:
        """Leave open attempts to a stream that resumes this one."""
        now = self._context.clock.monotonic()
        for attempt, key in self.attempts.items():
            if not attempt.ended:
                self._context.calls.detach(self._request.scope, key, attempt, now)
        self.attempts.clear()

    def acknowledged(self) -> Sequence[Ticket]:
        """End the calls that were sent as notifications, which get no response."""
        tickets: list[Ticket] = []
        for attempt in self._notified & self.attempts.keys():
            tickets += self._end_by_answer(
                attempt, acknowledged(self._around(attempt.ask)), AnswerFacts()
            )
        return tickets

    def _accepted(self, channel: LegacyStream) -> Sequence[Ticket]:
        """Leave open attempts to the legacy stream on which they are answered."""
        tickets = list(self.acknowledged())
        if not channel.is_open:
            return [*tickets, *self._end_all(ErrorKind.CONNECTION_LOST, "its stream has ended")]
        self._detach()
        return tickets

    # -- incomplete answers ----------------------------------------------------------------

    def ended(self) -> Sequence[Ticket]:
        """Handle the end of a stream; calls without a response stay open if it can be resumed."""
        if not (self.attempts or self.awaited or self.listens):
            return ()  # everything was answered
        self._on_all_read()
        listening, lost = self._listening, ErrorKind.CONNECTION_LOST
        failure = Failure(lost, self.progress.phase, "no response before its end")
        tickets = [*listening.hang_up(failure)] if listening is not None else []
        tickets += self.acknowledged()
        if self._goes_on:
            self._detach()
            return tickets
        for attempt in list(self.attempts):
            verdict = instead(self._unfit, self._around(attempt.ask))
            if verdict is not None and not attempt.is_cancelled:
                tickets += self._end_by_answer(attempt, *verdict)
        # The caller sees the server's incomplete answer as it is, unless a rule manages such failures.
        return [*tickets, *self._lose(failure, told=self._manages(failure))]

    @property
    def is_resumable(self) -> bool:
        """Whether another stream can bring the missing responses, if the server is still reachable."""
        numbered = self._is_numbered or self._resumed is not None
        return numbered and not self.stateless

    @property
    def _goes_on(self) -> bool:
        """Whether an answer may come on another stream."""
        # In the handshake revisions a stream with event ids can be resumed; in 2024-11-05 all answers come
        # on one stream.
        channel = self._request.channel
        if channel is not None:
            return channel.is_open and self.progress.phase in _SENT
        return self.is_resumable

    def broken(self, failure: Failure, broken: BrokenAnswer) -> Sequence[Ticket]:
        """Record that the answer will never be complete."""
        if self._listening is not None and self._listening.is_channel:
            tickets = self._listening.break_off(failure, told=broken.between_events)
            self.others = (*self.others, *self._listening.told)
            return tickets
        if self._request.channel is not None and self._goes_on:
            self._detach()  # the answer comes on another stream
            return ()
        then = after_break(broken, managed=self._manages(failure), events_are_messages=True)
        if then is AfterBreak.RESUMPTION:
            self._on_all_read()
            self._detach()
            return ()
        self.progress.phase = failure.phase
        return self._lose(failure, told=then is AfterBreak.ANSWER)

    def left(self, kind: ErrorKind) -> None:
        """End the open attempts with `kind`, because no caller waits for them any more.

        Attempts that may still be answered on another stream stay open.
        """
        if not (self.attempts or self.awaited or self.listens):
            return  # everything was answered
        self._on_all_read()
        if self._listening is not None:
            self._listening.hang_up(Failure(kind, Phase.BODY, ""))
        if self._goes_on and kind == ErrorKind.CANCELLED_BY_CALLER and not self.is_withdrawn:
            self._detach()
        else:
            self._end_all(kind, "", CANCELLED if self._is_refused(kind) else "")

    def _is_refused(self, kind: ErrorKind) -> bool:
        """Return whether the call ends unsent because it was cancelled: its caller is told so, if it is here."""
        is_unsent = kind == ErrorKind.CANCELLED_BY_CALLER and self.progress.phase in UNSENT
        # On a pipe it gets no answer (MCP, cancellation).
        if self.driver is None or self._request.is_piped:
            return False
        return is_unsent and self.driver.machine.cancelled_at is not None

    def _manages(self, failure: Failure) -> bool:
        """Return whether a rule makes turnlog answer in place of the server after this failure."""
        attempt = self.attempt
        is_open = attempt is not None and attempt in self.attempts
        return is_open and attempt is not None and failure.is_managed(attempt.ask.policy)

    def _lose(self, failure: Failure, *, told: bool) -> Sequence[Ticket]:
        """Record open attempts as failed; if `told`, the caller gets an answer to each that it did not cancel."""
        if self._resumed is not None and self._listening is not None:
            if self._context.calls.take(self._request.scope, self._resumed):
                return self._listening.lose(self._resumed, failure, told=told)
            return ()
        taken_back = {key for attempt, key in self.attempts.items() if attempt.is_cancelled}
        lost = [asked for key, asked in self.awaited.items() if key not in taken_back]
        if not told or not lost:
            return self._end_all(failure.kind, failure.detail)
        unanswered = structs.replace(self._unanswered(failure), requests=lost)
        tickets = self._end_all(failure.kind, failure.detail, unanswered.said)
        self._lost = unanswered
        return tickets

    # -- turnlog's own answers -------------------------------------------------------------

    def refused(self) -> OwnAnswer:
        """Return the answer to calls that were not sent because they could not be recorded."""
        self.left(ErrorKind.SESSION_UNAVAILABLE)
        ending = self._ending(ErrorKind.SESSION_UNAVAILABLE)
        return self._made(self._untold(NOT_RECORDED, NOT_RECORDED_BESIDE, ending))

    def failed(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record that there is no answer; return turnlog's own answer."""
        if failure.phase in UNSENT and self._resumed is not None:
            lost = Failure(ErrorKind.CONNECTION_LOST, Phase.BODY, failure.detail)
            tickets = self._lose(lost, told=True)
            if events := self.last_events():
                return OwnAnswer(200, b"OK", EVENTS, events), tickets
        self.progress.phase = failure.phase
        unanswered = self._unanswered(failure)
        tickets = self._end_all(
            failure.kind,
            failure.detail,
            unanswered.said,
            failure.retry_after,
            is_final=failure.is_final,
        )
        return self._made(unanswered), tickets

    def outlived(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record a timeout of the caller while the call runs on; return the answer to it."""
        assert self.attempt is not None  # only a single call can run on
        attempt, calls = self.attempt, self._context.calls
        key = self.attempts[attempt]
        awaited = self.awaited.get(key)
        told = self.failed(failure)
        # The call may still get another outcome.
        self._context.recorder.reopen(attempt)
        self.attempts[attempt] = key
        if awaited is not None:
            self.awaited[key] = awaited
        calls.add(self._request.scope, key, attempt)
        return told

    def instead(self) -> OwnAnswer | None:
        """Return turnlog's own answer in place of the server's; `None` for none."""
        return self._made(self._lost) if self._lost is not None else None

    def last_events(self) -> bytes:
        """Return turnlog's own answers as the last events of a stream; empty for none."""
        listening = self._listening.lost if self._listening is not None else []
        lost = listening if self._lost is None else [self._lost]
        return b"".join(as_event(message) for each in lost for message in each.as_messages())

    @property
    def amends(self) -> bool:
        """Whether the outcome may be added to an answer that has not come yet."""
        if self._listening is not None:
            return not self._listening.spoken
        return self.attempt is not None and self.attempt.ending is None

    def amended(self, message: bytes) -> bytes | None:
        """Return the message just read with the outcome added; `None` if it is not changed."""
        if self._listening is not None:
            return self._listening.renamed()
        attempt = self.attempt
        return amended(attempt, message) if attempt is not None and attempt.amends else None

    @property
    def _past(self) -> EarlierAttempts | None:
        return self.attempt.past if self.attempt is not None else None

    def _unanswered(self, failure: Failure) -> Unanswered:
        """Return turnlog's own answers to all requests after a failure."""
        server = self._request.server
        return self._untold(
            failure.sentence(server, self._past),
            failure.sentence_without_call(server),
            self._ending(failure.kind, is_final=failure.is_final),
            failure.retry_after,
        )

    def _untold(
        self, said: str, said_without_call: str, ending: Ending, retry_after: float | None = None
    ) -> Unanswered:
        return Unanswered(
            requests=[message for message in self._messages if message.kind is Kind.REQUEST],
            asks=self._asks,
            ending=ending,
            said=said,
            said_without_call=said_without_call,
            stateless=self.stateless,
            retry_after=retry_after,
        )

    def _made(self, unanswered: Unanswered) -> OwnAnswer:
        """Return turnlog's own answer to the request as a whole."""
        make = unanswered.as_message if self._request.is_piped else unanswered.as_answer
        made = make(as_batch=self.as_batch)
        # The ids of requests that were not read are unknown, so only an HTTP status can answer them.
        all_read = not self._messages or Flag.TRUNCATED_RECORD not in self._messages[-1].flags
        return made if self.is_answered_here and all_read else as_status(made)

    def _ending(self, kind: ErrorKind, *, is_final: bool = False) -> Ending:
        effect = next((ask.effect for ask in self._asks.values()), Effect.UNKNOWN)
        ending = failed(kind, self.progress.phase, effect, is_final=is_final)
        return ending_of_call(ending, self._past)


def _with_signature(
    verifier: "ResultSignatures | None", message: Message | Outline, body: MessageReader
) -> MessageReader:
    """Return a body with the check of the JWS in its result; a batch has several results in one body."""
    if verifier is None or not isinstance(message, Message) or not message.result:
        return body
    checks = body.checks.with_others(verifier.check(bytes(message.result)))
    return structs.replace(body, checks=checks)
