"""An MCP exchange: one POST (or listening GET), the calls in it, and what its answers tell.

Every `tools/call` is recorded, and so are lookups (`core.kinds`). Everything else goes by; some of
it is read for what it says of calls: lists of tools, handshakes, cancellations, polls of tasks, answers
on another stream.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from turnlog.core.classify import UNSENT, EarlierAttempts, Ending, ending_of_call, failed
from turnlog.core.kinds import LOOKUPS, Effect, ErrorKind, Flag, NoteKind, Phase
from turnlog.engine.agent_request import Request
from turnlog.engine.call_driver import CallDriver, unguarded_terms
from turnlog.engine.call_registry import Joiner
from turnlog.engine.context import Context
from turnlog.engine.duplicates.deduplication import KEPT
from turnlog.engine.duplicates.duplicate_match import Repeated, RequestKey
from turnlog.exchange.broken import AfterBreak, BrokenAnswer, after_break
from turnlog.record.attempt import Ask, Attempt, following
from turnlog.record.errors import Failure, LateReader, Progress
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
    repeated,
)
from turnlog.record.unread import all_read
from turnlog.rules.result_rules import judges_answers
from turnlog.store.base import StoreError, Ticket
from turnlog.transport.http_client import Answer, Content
from turnlog.transport.http_server import Gone
from turnlog.wire import mcp
from turnlog.wire.jsonrpc import Kind, Message, id_key
from turnlog.wire.message import MessageReader
from turnlog.wire.splice import as_event, with_cancelled_ids, with_id
from turnlog.wire.sse import Event

from .call_factory import CallFactory
from .handshake_observer import LIST_LIMIT, LISTS
from .listening import Listening
from .open_attempts import OpenAttempts, awaited
from .response_observer import ResponseObserver

_CALL: Final = "tools/call"
_REQUEST: Final = Kind.REQUEST
_NOTIFICATION: Final = Kind.NOTIFICATION
_SLICE: Final = 32
"""Calls of a batch that are begun before other requests get their turn."""
_SENT: Final = frozenset({Phase.SENT, Phase.HEAD, Phase.BODY, Phase.DONE})


class McpExchange:
    """One HTTP exchange of an MCP client. `messages` is what its body holds, if anything.

    `size` is the body's, in bytes. Of one that is too large to hold, or that nobody can read,
    `start` is what there is to record, `cut` or not.
    """

    def __init__(
        self,
        context: Context,
        request: Request,
        messages: Sequence[Message],
        size: int = 0,
        as_batch: bool = False,
        *,
        start: bytes = b"",
        cut: bool = False,
    ) -> None:
        self._context = context
        self._request = request
        self._messages = messages
        self._as_batch = as_batch
        first = messages[0] if messages else None
        self._underway = underway = OpenAttempts(
            context, request.scope, request.kin, awaited(messages)
        )
        self._listening = Listening(context, request, underway) if first is None else None
        self._asking = asking = CallFactory(context, request, start, size, not cut)
        self.attempt: Attempt | None = None
        """The latest attempt, where there is exactly one call."""
        self.driver: CallDriver | None = None
        """What drives the call, where there is exactly one."""
        self.blocked: Ask | None = None
        """The first call that a rule keeps from being sent, if there is one."""
        self.is_due = False
        """Whether an intent has to be on disk before it leaves."""
        self._resumed: Attempt | None = None
        """The call whose stream this one goes on with."""
        self._lost: Unanswered | None = None
        """What is said in place of an answer that never came."""
        self._cancels: dict[str, bytes] = {}
        """Ids of the attempts that cancels in this request are for, where the caller knows others."""
        self.listens = first is None or first.method == "subscriptions/listen"
        """Whether this exchange waits for nothing: a listening stream."""
        self.judges = False
        """Whether a rule has a say in how the one call has ended."""
        is_call = len(messages) == 1 and messages[0].method == _CALL
        self._said = mcp.read_call(messages[0].params) if is_call else None
        """What its one message asks, where that is a call."""
        self.revision = revision = asking.revision(first, self._said)
        self.stateless = stateless = mcp.is_stateless(revision)
        self._reading = ResponseObserver(
            context, request, underway, asking, self._listening, revision, stateless
        )

    @property
    def progress(self) -> Progress:
        """How far the attempt has come."""
        return self._underway.progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        self._underway.progress = progress

    @property
    def waits(self) -> bool:
        """Whether the end of the answer has to wait for the disk."""
        return self._underway.waits

    @property
    def reads(self) -> int:
        """How much of one message has to be read, in bytes: a list of tools may be long."""
        if self.attempt is not None:  # one call, and no list
            return KEPT if self.attempt.is_guarded else 0
        for asked in self._messages:
            if asked.method == LISTS:
                return LIST_LIMIT
        return LIST_LIMIT if self.listens else 0

    def went_by(self, duration: int) -> None:
        """Log an exchange of which nothing is recorded; `duration` in ns since its head was there."""
        if not self._underway.begun:
            self._reading.relayed(self._messages[0] if self._messages else None, duration)

    # -- before the request leaves ---------------------------------------------------------

    async def begin(self) -> None:
        """Queue the intents. Raises `StoreError` when the calls have to be refused."""
        if b"last-event-id" in self._request.fields:
            event_id = self._request.field(b"last-event-id")
            self._resumed = await self._context.calls.resume(self._request.scope, event_id)
        try:
            for number, message in enumerate(self._messages, 1):
                if number % _SLICE == 0:
                    await asyncio.sleep(0)  # other agents' requests go on meanwhile
                if message.method == _CALL or self._may_be_denied(message):
                    await self._open(message)
                elif (cancelled := mcp.cancelled_id(message)) is not None:
                    await self._on_cancel(cancelled)
                elif message.method in LOOKUPS and message.kind is _REQUEST:
                    await self._look_up(message)
                else:
                    self._notice(message)
        except StoreError:
            self.left(ErrorKind.SESSION_UNAVAILABLE)
            raise

    async def on_disk(self) -> None:
        """Wait for the intents. Raises `StoreError` when the calls have to be refused."""
        try:
            for attempt in tuple(self._underway.attempts):
                await self._context.recorder.on_disk(attempt)
        except StoreError:
            self.left(ErrorKind.SESSION_UNAVAILABLE)
            raise

    def _may_be_denied(self, message: Message) -> bool:
        """Return whether a server may read a denied call in what turnlog reads as something else."""
        asking = self._asking
        may_ask = bool(message.method) or not asking.whole
        return may_ask and asking.is_closed and asking.is_unsure(message)

    async def _on_cancel(self, key: str) -> None:
        """Take in a cancel for the id with this key."""
        if not self._is_for_a_call(key) and not self._request.is_piped:
            # It may have been read before its call, which came on another connection.
            await all_read()
            self._is_for_a_call(key)

    def _is_for_a_call(self, key: str) -> bool:
        """Return whether a cancel is for a call that is under way, or was a moment ago; have it taken back."""
        calls, scope, kin = self._context.calls, self._request.scope, self._request.kin
        if calls.leave(scope, key, kin) or calls.is_answered(scope, key, kin):
            # The server must not end what runs on, and may know another call by that id.
            self._cancels[key] = self._context.recorder.new_request_id()
            return True
        known = calls.cancel(scope, key, kin)
        if known:
            self._cancels[key] = known
        by = RequestKey(scope, kin, key)
        return known is not None or self._context.repeats.on_late_cancel(by)

    def _notice(self, message: Message) -> None:
        """Take in what is no call: it may be about one."""
        calls, scope, kin = self._context.calls, self._request.scope, self._request.kin
        if message.kind in {Kind.RESPONSE, Kind.ERROR}:
            calls.told(scope, id_key(message.id), kin)
        elif self._request.channel is not None:
            self._request.channel.expect(message)

    async def _open(self, message: Message) -> None:
        key = id_key(message.id)
        reused = self._context.calls.has(self._request.scope, key)
        said = self._said or mcp.read_call(message.params)
        ask = self._asking.call(message, said, self.revision, reused=reused)
        if ask.may_be_guarded and self._is_alone(message) and not ask.is_blocked:
            attempt = await self._guarded(message, ask, key)
        else:
            attempt = await self._underway.begin(message, ask, key)
            if len(self._messages) == 1 and message.kind is _REQUEST:
                self._drive(attempt)
        self.is_due = self.is_due or attempt.is_due
        if attempt.ask.is_blocked:
            self.blocked = self.blocked or attempt.ask
        if message.kind is _NOTIFICATION:
            self._underway.notified.add(attempt)
        elif len(self._messages) == 1:
            self.attempt = attempt
            self.judges = judges_answers(ask.policy)

    async def _look_up(self, message: Message) -> None:
        """Queue the intent of a lookup, which is recorded only: no rule speaks of it."""
        key = id_key(message.id)
        reused = self._context.calls.has(self._request.scope, key)
        ask = self._asking.lookup(message, self.revision, reused=reused)
        attempt = await self._underway.begin(message, ask, key)
        self.is_due = self.is_due or attempt.is_due

    async def _guarded(self, message: Message, ask: Ask, key: str) -> Attempt:
        """Begin a call that an earlier one may stand for. Raises what `_admitted` does."""
        while True:
            admitted, self.driver = await self._admitted(ask, key)
            attempt = await self._underway.begin(message, admitted, key)
            if self.driver is None:
                self._drive(attempt)
                return attempt
            self.driver.begins(attempt)
            if await self._context.repeats.claimed(self.driver, attempt):
                return attempt
            self._underway.drop(attempt)
            self.driver = None
            if attempt.cancelled:
                raise Gone("the call was taken back before it had begun")

    def _drive(self, attempt: Attempt) -> None:
        """Begin the life of a call for which no earlier one stands."""
        context, ask = self._context, attempt.ask
        terms = unguarded_terms(ask, waits=attempt.waits)
        self.driver = CallDriver(ask, terms, context.recorder, context.clock, attempt=attempt)

    async def _admitted(self, ask: Ask, key: str) -> tuple[Ask, CallDriver | None]:
        """Let a call go on, after an earlier one that it joins. Raises `Repeated`, and `Gone` where its
        caller takes it back."""
        waits = partial(self._joined, key)
        return await self._context.repeats.admit(ask, stateless=self.stateless, waits=waits)

    async def _joined(self, key: str, earlier: Awaitable[None]) -> None:
        """Wait for an earlier call, unless a cancel comes for the id with this key."""
        joiner = Joiner(self._request.kin)
        try:
            with self._context.calls.joining(self._request.scope, key, joiner):
                await joiner.wait(earlier)
        except TimeoutError as error:
            # Nobody answers what was cancelled (MCP, cancellation): the request ends.
            raise Gone("the call was taken back") from error

    def _is_alone(self, message: Message) -> bool:
        """Tell whether one answer is all that the caller waits for: then another call may get it."""
        alone = len(self._messages) == 1 and not self._as_batch
        return alone and message.kind is _REQUEST

    def repeated(self, found: Repeated) -> OwnAnswer:
        """Return the answer to a call that is not sent, because of an earlier one."""
        message, ask, ending = self._messages[0], found.attempt.ask, found.attempt.ending
        assert ending is not None
        found.caller = RequestKey(self._request.scope, self._request.kin, id_key(message.id))
        made = repeated(message, ask, ending, found.answer) if found.answer is not None else None
        if made is None:
            self._underway.asks[id_key(message.id)] = ask
            return self._made(self._untold(found.sentence, found.sentence, ending))
        return made if self.is_answered_here else as_status(made)

    @property
    def is_answered_here(self) -> bool:
        """Whether its client looks for answers in those to its posts: in 2024-11-05 it does not."""
        return self._request.channel is None

    kept_as_sent = False
    """Whether whoever asks the same again gets the answer as it went: no, the response alone."""

    def kept(self, sent: OwnAnswer | None) -> OwnAnswer | None:
        """Return the whole response, for whoever asks the same again."""
        answer = self._reading.answer
        if self.attempt is None or not self.attempt.message or answer is None:
            return None
        return OwnAnswer(answer.status, answer.reason, JSON, self.attempt.message)

    def outgoing(self, content: Content) -> Content:
        """Return the body as it leaves: a cancel names the attempt that is under way.

        Where that changes it, it leaves without its coding.
        """
        if not self._cancels or not isinstance(content, bytes):
            return content
        return with_cancelled_ids(self._request.decoded(content), self._cancels) or content

    # -- another attempt -------------------------------------------------------------------

    def repeatable(self, content: Content) -> bool:
        """Tell whether the same message can be sent again under another id."""
        if self.attempt is None or not isinstance(content, bytes) or self._request.is_sealed:
            return False
        return with_id(content, b"0") is not None

    async def again(self, content: bytes) -> bytes:
        """Begin another attempt of the one call; return its body. Raises `StoreError`."""
        assert self.attempt is not None
        message, before = self._messages[0], self.attempt
        wire_id = self._context.recorder.new_request_id()
        self._lost = None
        self._reading.anew()
        with self._underway.resting(before):
            self.attempt = await self._underway.again(message, following(before), wire_id)
            self.attempt.past = before.so_far
            self.attempt.cancelled = before.cancelled
            if self.driver is not None:
                self.driver.begins(self.attempt)
            await self.on_disk()
        return with_id(content, wire_id) or content

    async def rest(self, pause: Awaitable[None]) -> None:
        """Wait before the next attempt; the caller may cancel meanwhile."""
        assert self.attempt is not None
        with self._underway.resting(self.attempt):
            await pause

    def withdrawn(self) -> tuple[OwnAnswer, Sequence[Ticket]] | None:
        """Return the answer where the caller cancelled before the next attempt left."""
        attempt = self.attempt
        if attempt is None or not attempt.cancelled:
            return None
        tickets = self._reading.end_all(ErrorKind.CANCELLED_BY_CALLER, "", CANCELLED)
        assert attempt.overall is not None  # just now, or it was waited for the next one
        return self._made(self._untold(CANCELLED, CANCELLED, attempt.overall)), tickets

    def respelling(self) -> dict[bytes, bytes]:
        """Return what ids of later attempts the answer may hold, and what the caller knows instead."""
        if self.listens:
            return self._context.calls.spellings(self._request.scope)
        return self.attempt.respelling if self.attempt is not None else {}

    def late_reader(self) -> LateReader | None:
        """Return what reads answers to its calls when it is over; `None` where it has none."""
        begun = self._underway.begun
        if not begun:
            return None
        # One of its own, which does not refer back to what is under way here.
        aside = OpenAttempts(self._context, self._request.scope, self._request.kin, {})
        reading = ResponseObserver(
            self._context,
            self._request,
            aside,
            self._asking,
            None,
            self.revision,
            self.stateless,
        )
        return partial(reading.take_late, begun)

    def cancelling(self) -> bytes:
        """Return the message that takes the attempt back; empty where closing its stream does."""
        attempt = self.attempt
        if attempt is None or (self.stateless and not self._request.is_piped):
            return b""
        # A named write runs on: who gave it up does not know that it did not happen.
        given_up = attempt.driver is not None and attempt.driver.is_given_up
        return attempt.cancellation if given_up or not attempt.ask.is_named else b""

    # -- when turnlog has to answer itself -------------------------------------------------

    @property
    def is_once(self) -> bool:
        """Whether it holds a call with a named effect or a key."""
        for attempt in self._underway.attempts:  # noqa: SIM110 - as in `OpenAttempts.waits`
            if attempt.ask.may_be_guarded:
                return True
        return False

    def refused(self) -> OwnAnswer:
        """Return the answer to calls that could not be recorded and so were not forwarded."""
        ending = self._ending(ErrorKind.SESSION_UNAVAILABLE)
        return self._made(self._untold(NOT_RECORDED, NOT_RECORDED_BESIDE, ending))

    def failed(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record that there is no answer; return what to say instead."""
        if failure.phase in UNSENT and self._resumed is not None:
            lost = Failure(ErrorKind.CONNECTION_LOST, Phase.BODY, failure.detail)
            tickets = self._lose(lost, told=True)
            if events := self.last_events():
                return OwnAnswer(200, b"OK", EVENTS, events), tickets
        self.progress.phase = failure.phase
        unanswered = self._unanswered(failure)
        tickets = self._reading.end_all(
            failure.kind, failure.detail, unanswered.said, failure.retry_after
        )
        return self._made(unanswered), tickets

    def outlived(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record that the caller's time is over while the call runs on; return what to say to it."""
        assert self.attempt is not None  # only a call runs on
        with self._underway.reopened(self.attempt):
            return self.failed(failure)

    def instead(self) -> OwnAnswer | None:
        """Return turnlog's own answer, where nothing of the server's has left; `None` for none."""
        return self._made(self._lost) if self._lost is not None else None

    def last_events(self) -> bytes:
        """Return the events that end a stream whose responses never came; empty for none."""
        listening = self._listening.lost if self._listening is not None else []
        lost = listening if self._lost is None else [self._lost]
        return b"".join(as_event(message) for each in lost for message in each.as_messages())

    @property
    def _past(self) -> EarlierAttempts | None:
        return self.attempt.past if self.attempt is not None else None

    @property
    def amends(self) -> bool:
        """Whether an answer to come may get a word of turnlog's."""
        if self._listening is not None:
            return not self._listening.spoken
        return self.attempt is not None and self.attempt.ending is None

    def amended(self, message: bytes) -> bytes | None:
        """Return the message that was just read with that word; `None` where it stays as it is."""
        if self._listening is not None:
            return self._listening.renamed()
        return amended(self.attempt, message) if self.attempt is not None else None

    def left(self, kind: ErrorKind) -> None:
        """Record that nobody waits for the answers any more, for the reason `kind`.

        What may still be answered on another stream stays open.
        """
        if not (self._underway.attempts or self._underway.awaited or self.listens):
            return  # all that was asked is answered
        self._reading.unanswered()
        if self._listening is not None:
            self._listening.hang_up(Failure(kind, Phase.BODY, ""))
        given_up = self.driver is not None and self.driver.is_given_up
        if self._goes_on and kind == ErrorKind.CANCELLED_BY_CALLER and not given_up:
            self._underway.detach()
        else:
            self._reading.end_all(kind, "")

    @property
    def _goes_on(self) -> bool:
        """Whether an answer may come on another stream.

        In the handshake revisions a stream with event ids may be resumed; in 2024-11-05 all answers
        come on the one stream.
        """
        channel = self._request.channel
        if channel is not None:
            return channel.is_open and self.progress.phase in _SENT
        return self.is_resumable

    def _unanswered(self, failure: Failure) -> Unanswered:
        """Return what is to be told of all requests because of a failure."""
        server = self._request.server
        return self._untold(
            failure.sentence(server, self._past),
            failure.sentence_without_call(server),
            self._ending(failure.kind),
            failure.retry_after,
        )

    def _untold(
        self, said: str, said_without_call: str, ending: Ending, retry_after: float | None = None
    ) -> Unanswered:
        return Unanswered(
            requests=[message for message in self._messages if message.kind is _REQUEST],
            asks=self._underway.asks,
            ending=ending,
            said=said,
            said_without_call=said_without_call,
            stateless=self.stateless,
            retry_after=retry_after,
        )

    def _made(self, unanswered: Unanswered) -> OwnAnswer:
        """Return turnlog's own answer to the request as a whole."""
        piped, as_batch = self._request.is_piped, self._as_batch
        make = unanswered.as_message if piped else unanswered.as_answer
        made = make(as_batch=as_batch)
        # Requests that were not read have ids that no answer can name.
        all_read = not self._messages or Flag.TRUNCATED_RECORD not in self._messages[-1].flags
        return made if self.is_answered_here and all_read else as_status(made)

    def _ending(self, kind: ErrorKind) -> Ending:
        effect = next((ask.effect for ask in self._underway.asks.values()), Effect.UNKNOWN)
        return ending_of_call(failed(kind, self.progress.phase, effect), self._past)

    # -- reading along ---------------------------------------------------------------------

    def head(self, answer: Answer) -> None:
        """Read the answer's head."""
        self._reading.head(answer)

    def event(self, event: Event) -> Sequence[Ticket]:
        """Read one event of a stream."""
        if event.id is not None:
            self._number(event.id)
        return self._reading.event(event)

    def _number(self, event_id: str) -> None:
        for attempt, key in self._underway.attempts.items():
            if attempt.event_ids is None and not self.stateless:
                self._note_resumable(attempt, key)
            attempt.numbered(event_id)
        if self._resumed is not None:
            self._resumed.numbered(event_id)

    def _note_resumable(self, attempt: Attempt, key: str) -> None:
        """Write a note by which another process finds the call of an answer, should this one die."""
        if link := self._request.stream_link(key):
            kind, session = NoteKind.RESUMABLE, attempt.ask.session
            self._context.recorder.note(kind, session, attempt.facts, attempt.intent, (link,))

    def whole(self, body: MessageReader, media: str, size: int) -> Sequence[Ticket]:
        """Read an answer that is no stream, once it is complete."""
        return self._reading.whole(body, media, size)

    def is_answered_by(self, body: MessageReader, *, cut: bool) -> bool:
        """Return whether what has come is a response to each request, be its transfer cut or not."""
        return self._reading.is_answered_by(body)

    @property
    def is_heard(self) -> bool:
        """Whether the caller of a call that may outlive it is surely there for the response."""
        return self.driver is not None and self.driver.is_guarded and self.driver.is_heard

    def handed_over(self) -> None:
        """Note that the response has been written to the agent."""
        if self.driver is not None and not self._underway.attempts:
            self.driver.on_delivered()

    def ended(self) -> Sequence[Ticket]:
        """Learn that a stream ended as it should; calls without a response may be resumed."""
        self._reading.unanswered()
        listening, lost = self._listening, ErrorKind.CONNECTION_LOST
        failure = Failure(lost, self.progress.phase, "no response before its end")
        tickets = [*listening.hang_up(failure)] if listening is not None else []
        tickets += self._reading.acknowledged()
        if self._goes_on:
            self._underway.detach()
            return tickets
        tickets += self._reading.misfits()
        # What a server does to its own answer the agent sees as it is, unless a rule speaks of it.
        return [*tickets, *self._lose(failure, told=self._manages(failure))]

    @property
    def is_resumable(self) -> bool:
        """Whether another stream may bring what this one did not, if the server lives."""
        numbered = self._reading.resumable or self._resumed is not None
        return numbered and not self.stateless

    def broken(self, failure: Failure, broken: BrokenAnswer) -> Sequence[Ticket]:
        """Record that the answer will never be complete."""
        if self._listening is not None and self._listening.is_channel:
            return self._listening.hang_up(failure, told=broken.between_events)
        if self._request.channel is not None and self._goes_on:
            self._underway.detach()  # it is answered on another stream
            return ()
        then = after_break(broken, managed=self._manages(failure), events_are_messages=True)
        if then is AfterBreak.RESUMPTION:
            self._reading.unanswered()
            self._underway.detach()
            return ()
        self.progress.phase = failure.phase
        return self._lose(failure, told=then is AfterBreak.ANSWER)

    def _manages(self, failure: Failure) -> bool:
        """Return whether a rule made turnlog answerable for a failure of the one call."""
        attempt = self.attempt
        is_open = attempt is not None and attempt in self._underway.attempts
        return is_open and attempt is not None and failure.is_managed(attempt.ask.policy)

    def _lose(self, failure: Failure, *, told: bool) -> Sequence[Ticket]:
        """Record that nothing more is answered; the agent is `told`, but of what it took back."""
        if self._resumed is not None and self._listening is not None:
            if self._context.calls.take(self._request.scope, self._resumed):
                return self._listening.lose(self._resumed, failure, told=told)
            return ()
        underway = self._underway
        taken_back = {key for attempt, key in underway.attempts.items() if attempt.cancelled}
        lost = [asked for key, asked in underway.awaited.items() if key not in taken_back]
        if not told or not lost:
            return self._reading.end_all(failure.kind, failure.detail)
        unanswered = structs.replace(self._unanswered(failure), requests=lost)
        tickets = self._reading.end_all(failure.kind, failure.detail, unanswered.said)
        self._lost = unanswered
        return tickets
