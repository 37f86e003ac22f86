"""What comes back for one MCP exchange: which attempts its messages end, and what else they tell."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from turnlog.core.classify import Ending, is_method_preserving_redirect, refused
from turnlog.core.kinds import ErrorKind, Flag, NoteKind, Phase
from turnlog.engine.agent_request import Request
from turnlog.engine.context import Context
from turnlog.engine.http.redirects import CONSENTED, FOLLOWED, RedirectTarget, call_key, lead
from turnlog.record.attempt import AnswerFacts, Ask, Attempt
from turnlog.record.judging import judged, waiting
from turnlog.record.outcome import (
    JSON,
    AnswerText,
    Circumstances,
    acknowledged,
    answered,
    instead,
    is_answer,
    is_unfit,
    mislabelled,
    nameless_error,
    raw_id,
    unanswered,
)
from turnlog.store.base import Ticket
from turnlog.transport.http_client import Answer
from turnlog.wire import mcp
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Batch, Malformed, Message, id_key, meant_key, other_type
from turnlog.wire.message import MessageReader
from turnlog.wire.sse import Event
from turnlog.wire.tool_result import CallAnswer, read_answer, read_lookup_answer

from .call_factory import CallFactory
from .continuations import Continuations
from .handshake_observer import HandshakeObserver
from .legacy_sse import LegacyStream
from .listening import Listening
from .open_attempts import OpenAttempts

_HEAD: Final = Phase.HEAD
_BODY: Final = Phase.BODY


class ResponseObserver(Struct, eq=False):
    """Reads along for one exchange, and ends the attempts that are answered."""

    _context: Context
    _request: Request
    _underway: OpenAttempts
    _asking: CallFactory
    _listening: Listening | None
    _revision: str
    _stateless: bool
    answer: Answer | None = None
    status: int = 0
    """The HTTP status; 0 while there is none."""
    resumable: bool = False
    """Whether the stream may be resumed: an event had an id."""
    _unfit: AnswerText | None = None
    """What came last in the place of a response and answers nothing."""
    _events: int = 0

    def anew(self) -> None:
        """Begin with the answer to another attempt."""
        self.answer, self.status, self.resumable = None, 0, False
        self._unfit, self._events = None, 0

    @property
    def _besides(self) -> HandshakeObserver:
        return HandshakeObserver(self._context, self._request, self._asking)

    def relayed(self, first: Message | None, duration: int) -> None:
        """Log an exchange that held no call; `duration` in ns since its head was there."""
        self._besides.relayed(
            first,
            revision=self._revision,
            status=self.status,
            duration=duration,
            events=self._events,
        )

    def head(self, answer: Answer) -> None:
        """Read the answer's head."""
        self.answer, self.status = answer, answer.status
        self._underway.progress.phase = _HEAD

    def event(self, event: Event) -> Sequence[Ticket]:
        """Read one event of a stream."""
        self._underway.progress.phase = _BODY
        self._events += 1
        self.resumable = self.resumable or event.id is not None
        if event.body is None or not event.has_data:
            return ()
        if self._listening is not None and self._listening.begins(event):
            return ()
        return self._read(AnswerText(event.body, JSON, event.body.size, event.type))

    def whole(self, body: MessageReader, media: str, size: int) -> Sequence[Ticket]:
        """Read an answer that is no stream, once it is complete."""
        text = AnswerText(body, media, size)
        tickets = list(self._read(text))
        underway, channel = self._underway, self._request.channel
        if not underway.awaited and not underway.attempts and channel is None:
            return tickets
        if underway.awaited:
            tickets += [t for one in mislabelled(body, self._context.keep) for t in self._read(one)]
        if channel is not None and 200 <= self.status < 300:
            return [*tickets, *self._accepted(channel)]
        for attempt in list(underway.attempts):
            around = self.around(attempt.ask)
            ending, reply = unanswered(text, around)
            if attempt in underway.notified:
                # An array beside it answers others: no id in it can be this one's.
                flags = tuple(flag for flag in reply.flags if flag is not Flag.ID_MISMATCH)
                ending, reply = acknowledged(around), structs.replace(reply, flags=flags)
            elif attempt.ask.is_call:
                ending, reply = judged(attempt.ask, ending, reply)
            tickets += self.end(attempt, ending, reply)
            self._redirected(attempt)
        self.unanswered()
        return tickets

    def _redirected(self, attempt: Attempt) -> None:
        """Remember a call that is asked for again at another place of its server, if it is."""
        if self.answer is None or not is_method_preserving_redirect(self.status):
            return
        leads = self._leads(self.answer)
        if leads.resource is None:
            return
        self._context.redirected.note(
            call_key(attempt.ask, attempt.caller_key, self._request.asker),
            attempt,
            self._context.clock.monotonic() + FOLLOWED,
        )
        if self._request.channel is not None:
            self._context.channels.move(self._request.channel, leads.resource)

    def is_answered_by(self, body: MessageReader) -> bool:
        """Return whether what has come of a body is a response to each request that is open."""
        awaited = self._underway.awaited
        if not (self._underway.attempts and awaited) or self._request.channel is not None:
            return False
        found = body.so_far
        messages = found.items if isinstance(found, Batch) else (found,)
        answered = {
            self._key_of(message)
            for message in messages
            if isinstance(message, Message | Outline) and is_answer(message)
        }
        return awaited.keys() <= answered

    def misfits(self) -> Sequence[Ticket]:
        """End what is open by what came in the place of its response, where something did."""
        tickets: list[Ticket] = []
        for attempt in list(self._underway.attempts):
            verdict = instead(self._unfit, self.around(attempt.ask))
            if verdict is not None and not attempt.cancelled:
                tickets += self.end(attempt, *verdict)
        return tickets

    def unanswered(self) -> None:
        """Learn that all that could be read of the answer was read, as far as it has come."""
        # In 2024-11-05 they are answered elsewhere.
        if self.answer is not None and self.status < 400 and self._request.channel is None:
            self._besides.unanswered(self._underway.awaited.values())

    def _read(self, text: AnswerText) -> Sequence[Ticket]:
        content = text.body.content
        if isinstance(content, Message):
            return self.message(content, text)
        if isinstance(content, Batch):
            return [
                ticket
                for item in content.items
                if isinstance(item, Message)
                for ticket in self.message(item, text)
            ]
        if not isinstance(content, Malformed):
            return self.message(content, text)
        return self._answers_nothing(content, text)

    def _answers_nothing(
        self, content: Message | Outline | Malformed, text: AnswerText
    ) -> Sequence[Ticket]:
        if not isinstance(content, Malformed) and mcp.is_request(content):
            self._server_asks(id_key(raw_id(content)))
        elif not isinstance(content, Malformed) and (back := mcp.cancelled_id(content)):
            self._context.calls.told(self._request.scope, back)
        elif self._underway.attempts and is_unfit(text, content):
            self._unfit = text
        return ()

    def message(self, message: Message | Outline, text: AnswerText) -> Sequence[Ticket]:
        """Read one message, and end the attempt that it answers, if it does."""
        if not is_answer(message):
            return self._answers_nothing(message, text)
        key = self._key_of(message)
        asked = self._listening.asked(key) if self._listening is not None else None
        if asked is not None:
            return self._notice_answer(asked, message, text)
        own = self._underway.own(key)
        if own is not None:
            return self.close(own, message, text)
        if key in self._underway.awaited:
            return self._notice_answer(self._underway.awaited.pop(key), message, text)
        attempt = self._elsewhere(key)
        if attempt is None:
            self._besides.stray(message)
            return self._answers_nothing(message, text)
        return self._close_elsewhere(attempt, message, text)

    @property
    def _resumes(self) -> bool:
        return b"last-event-id" in self._request.fields

    def _elsewhere(self, key: str) -> Attempt | None:
        """Return the call of another exchange that an answer belongs to; on a resumed stream it may be one
        of another process."""
        attempt = self._context.calls.claim(self._request.scope, key)
        if attempt is None and self._resumes and (link := self._request.stream_link(key)):
            attempt = self._legs.resumed(link)
        return attempt

    def _close_elsewhere(
        self, attempt: Attempt, message: Message | Outline, text: AnswerText
    ) -> Sequence[Ticket]:
        if self._resumes:
            attempt.marks.add(Flag.RESUMED)
        tickets = self.close(attempt, message, text)
        attempt.message = b""  # its own exchange is over, nobody takes it from there
        if attempt.is_guarded and attempt.driver is not None:
            attempt.driver.on_delivered()
        elif attempt.facts.guarded:  # of another process, which remembers it no more
            session, facts = attempt.ask.session, attempt.facts
            self._context.recorder.note(NoteKind.DELIVERED, session, facts, attempt.outcome)
        return tickets

    def _server_asks(self, key: str) -> None:
        """Mark the calls that a request of the server may belong to: they wait for the agent."""
        attempts = list(self._underway.attempts) or self._context.calls.of(self._request.scope)
        for attempt in attempts:
            attempt.marks.add(Flag.SERVER_REQUEST)
            # Whoever gave a call up is there all the same on a pipe, and answers.
            if attempt.driver is not None and not self._request.is_piped:
                attempt.driver.on_server_asks()
        self._context.calls.asked(self._request.scope, key, attempts)

    def _key_of(self, message: Message | Outline) -> str:
        """An error without id answers the only request there is (JSON-RPC 2.0 section 5.1), and
        whatever comes answers a request whose id could not be read."""
        awaited = self._underway.awaited
        if "" in awaited:
            return ""
        if len(awaited) == 1 and nameless_error(message):
            return next(iter(awaited))
        key = id_key(raw_id(message))
        return key if key in awaited else meant_key(key, self._is_open)

    def _is_open(self, key: str) -> bool:
        if key in self._underway.awaited or self._underway.own(key) is not None:
            return True
        listening = self._listening is not None and self._listening.is_asked(key)
        return listening or self._context.calls.has(self._request.scope, key)

    @property
    def _legs(self) -> Continuations:
        return Continuations(self._context, self._request.target)

    # -- closing attempts ------------------------------------------------------------------

    def acknowledged(self) -> Sequence[Ticket]:
        """End the calls that were sent as notifications: they get no answer."""
        tickets: list[Ticket] = []
        for attempt in self._underway.notified & self._underway.attempts.keys():
            tickets += self.end(attempt, acknowledged(self.around(attempt.ask)), AnswerFacts())
        return tickets

    def _accepted(self, channel: LegacyStream) -> Sequence[Ticket]:
        """Leave what was asked to the stream on which it is answered."""
        tickets = list(self.acknowledged())
        if not channel.is_open:
            return [*tickets, *self.end_all(ErrorKind.CONNECTION_LOST, "its stream has ended")]
        self._underway.detach()
        return tickets

    def close(
        self, attempt: Attempt, message: Message | Outline, text: AnswerText
    ) -> Sequence[Ticket]:
        """End an attempt by its answer."""
        sent, came = attempt.wire_id or attempt.caller_id, raw_id(message)
        if came != sent and other_type(id_key(came)) == id_key(sent):
            attempt.marks.add(Flag.ID_MISMATCH)
        if not attempt.ask.is_call:
            return self._close_lookup(attempt, message, text)
        said = read_answer(message, revision=self._revision)
        ending, reply = answered(said, message, text, self.around(attempt.ask))
        fails = said.code is not None
        if fails and self._is_unlisted(said, ending, attempt.ask):
            ending = refused(ErrorKind.TOOL_NOT_FOUND, attempt.ask.effect)
        ending, reply = judged(attempt.ask, ending, reply, harmless=said.harmless)
        if fails and _has_dropped(attempt, ending):
            ending = refused(ErrorKind.CANCELLED_BY_CALLER, attempt.ask.effect)
        if attempt.is_guarded and isinstance(message, Message):
            attempt.message = text.body.finish()
        succeeds = reply.is_result and self.status < 400 and not said.is_error
        attempt.amends = succeeds and bool(ending.error)
        if ending.status.parked and (links := self._legs.links(attempt.ask, said)):
            self._context.calls.park(links, attempt)
            reply = structs.replace(reply, links=links)
        tickets = self.end(attempt, ending, reply)
        if said.code == mcp.URL_ELICITATION_REQUIRED:
            until = self._context.clock.monotonic() + CONSENTED
            self._context.redirected.note(call_key(attempt.ask, ""), attempt, until)
        return tickets

    def _close_lookup(
        self, attempt: Attempt, message: Message | Outline, text: AnswerText
    ) -> Sequence[Ticket]:
        """End a lookup by its answer."""
        said, ask = read_lookup_answer(message, revision=self._revision), attempt.ask
        ending, reply = answered(said, message, text, self.around(ask))
        if said.code == mcp.RESOURCE_NOT_FOUND:
            ending = refused(ErrorKind.NOT_FOUND, ask.effect)
        if ending.status.parked and (links := self._legs.links(ask, said)):
            self._context.calls.park(links, attempt)
            reply = structs.replace(reply, links=links)
        return self.end(attempt, ending, reply)

    def take_late(
        self, begun: Mapping[str, Attempt], key: str, message: Message, raw: bytes
    ) -> None:
        """Record a late answer, where it is one to a request of this exchange."""
        if (attempt := begun.get(key)) is not None:
            body = MessageReader()
            body.feed(raw)
            self.late(attempt, message, AnswerText(body, JSON, len(raw)))

    def late(
        self, attempt: Attempt, message: Message | Outline, text: AnswerText
    ) -> Sequence[Ticket]:
        """Record the answer to an attempt that was given up before it came."""
        if attempt.ended:
            self._context.recorder.reopen(attempt)
        attempt.marks.add(Flag.LATE)
        return self.close(attempt, message, text)

    def _is_unlisted(self, said: CallAnswer, ending: Ending, ask: Ask) -> bool:
        """MCP says of a tool that is not there what JSON-RPC says of wrong arguments."""
        wrong = said.code == mcp.INVALID_PARAMS and ending.kind == ErrorKind.INVALID_REQUEST
        return wrong and self._asking.is_unlisted(ask.tool)

    def around(self, ask: Ask) -> Circumstances:
        """Return what counts beside an answer."""
        in_session = bool(self._request.mcp_session) and not self._stateless
        elsewhere = False
        if self.answer is not None and 300 <= self.status < 400:
            elsewhere = self._leads(self.answer).elsewhere
        return Circumstances(self.status, ask.effect, in_session, elsewhere)

    def _leads(self, answer: Answer) -> RedirectTarget:
        request = self._request
        return lead(request.route, answer.headers, request.field(b"host"))

    def end(self, attempt: Attempt, ending: Ending, reply: AnswerFacts) -> Sequence[Ticket]:
        """Record how an attempt ended."""
        if self.answer is not None:
            reply = waiting(reply, self.answer.headers, self._context.clock.wall)
        return self._underway.end(attempt, ending, reply)

    def end_all(
        self, kind: ErrorKind, detail: str, said: str = "", retry_after: float | None = None
    ) -> Sequence[Ticket]:
        """Record that all that is open failed so; `said` is what its caller is told."""
        reply = AnswerFacts(
            http_status=self.status, detail=detail, said=said, retry_after=retry_after
        )
        return self._underway.end_all(kind, reply)

    # -- answers to what is no call --------------------------------------------------------

    def _notice_answer(
        self, asked: Message, message: Message | Outline, text: AnswerText
    ) -> Sequence[Ticket]:
        headers = self.answer.headers if self.answer is not None else ()
        self._besides.read(asked, message, headers)
        return self._legs.polled(asked, message, text, self._revision, self.around)


def _has_dropped(attempt: Attempt, ending: Ending) -> bool:
    """Tell whether a server says by an error that it has dropped a guarded call, as it was told to.

    Many have a code of their own for that.
    """
    told = attempt.cancelled and attempt.is_guarded
    return told and ending.kind == ErrorKind.UPSTREAM_INTERNAL
