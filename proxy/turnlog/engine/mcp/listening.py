"""An agent's listening stream, as far as it is the one on which all answers come (2024-11-05)."""

from collections.abc import Callable, Sequence
from typing import Final

from turnlog.core.classify import Ending, ending_of_call, failed
from turnlog.core.kinds import Effect
from turnlog.engine.context import Context
from turnlog.engine.legacy_sse import LegacyStream, Say, endpoint_of, renamed
from turnlog.engine.request_identity import Request
from turnlog.exchange.outcome import AnswerFacts
from turnlog.record.attempt import Attempt
from turnlog.record.errors import Failure
from turnlog.record.own_answers import Unanswered
from turnlog.store.base import Ticket
from turnlog.wire.jsonrpc import Kind, Message
from turnlog.wire.sse import SseEvent

EndAttempt = Callable[[Attempt, Ending, AnswerFacts], Sequence[Ticket]]
_ENDPOINT: Final = "endpoint"
"""Type of the event that such a stream begins with."""


class Listening:
    """The answers to a GET that asks for nothing, where it may be such a stream."""

    def __init__(self, context: Context, request: Request, end: EndAttempt) -> None:
        self._context = context
        self._request = request
        self._end = end
        self._channel: LegacyStream | None = None
        self.say: Say | None = None
        """Sends the agent an event of turnlog's on this stream."""
        self._renamed: bytes | None = None
        self.lost: list[Unanswered] = []
        """What is said in place of answers that never came."""
        self.told: list[Attempt] = []
        """The calls whose callers are told so."""
        self.spoken = False
        """Whether an event has come that says anything."""

    @property
    def is_channel(self) -> bool:
        """Whether requests are answered here."""
        return self._channel is not None

    def begins(self, event: SseEvent) -> bool:
        """Return whether an event is the first one of such a stream, and register that then."""
        first, self.spoken = not self.spoken, True
        if not first or event.type != _ENDPOINT:
            return False
        route, named = self._request.route, event.data.decode("utf-8", "surrogateescape")
        host = self._request.field(b"host")
        if endpoint := endpoint_of(route, named, host):
            server, target = self._request.server, self._request.target
            self._channel = self._context.legacy_streams.open(server, endpoint, target, self.say)
            self._request.joins(self._channel)
            self._renamed = renamed(route, named, host)
        return True

    def renamed(self) -> bytes | None:
        """Return what the event just taken in says to the agent; `None` where that is the same."""
        instead, self._renamed = self._renamed, None
        return instead

    def asked(self, key: str) -> Message | None:
        """Return the request, no call, that an answer here belongs to."""
        return self._channel.asked(key) if self._channel is not None else None

    def is_asked(self, key: str) -> bool:
        """Return whether a request, no call, waits for its answer here."""
        return self._channel is not None and self._channel.is_asked(key)

    def break_off(self, failure: Failure, *, told: bool) -> Sequence[Ticket]:
        """Record that the stream was cut off; `lost` is what the agent is then `told`."""
        if self._channel is not None:
            self._channel.has_broken = True
        return self.hang_up(failure, told=told)

    def hang_up(self, failure: Failure, *, told: bool = False) -> Sequence[Ticket]:
        """Record that nothing more is answered here; `lost` is what the agent is then `told`."""
        channel, self._channel = self._channel, None
        if channel is None:
            return ()
        self._context.legacy_streams.close(channel)
        tickets: list[Ticket] = []
        for attempt in self._context.calls.detached(self._request.scope):
            tickets += self.lose(attempt, failure, told=told)
        if told and (asked := channel.unanswered):
            ending = failed(failure.kind, failure.phase, Effect.UNKNOWN)
            said = failure.sentence_without_call(self._request.server)
            self.lost.append(
                Unanswered(
                    requests=asked, asks={}, ending=ending, said=said, said_without_call=said
                )
            )
        return tickets

    def lose(self, attempt: Attempt, failure: Failure, *, told: bool) -> Sequence[Ticket]:
        """Record that no stream brings the answer to a call any more."""
        ask, told = attempt.ask, told and not attempt.is_cancelled
        ending = failed(attempt.cause(failure.kind), failure.phase, ask.effect)
        server = self._request.server
        without_call = failure.sentence_without_call(server)
        said = failure.sentence(server, attempt.past) if ask.is_call else without_call
        said = said if told else ""
        tickets = self._end(attempt, ending, AnswerFacts(detail=failure.detail, said=said))
        if told:
            self.told.append(attempt)
            asked = Message(kind=Kind.REQUEST, id=attempt.caller_id, method=ask.method)
            self.lost.append(
                Unanswered(
                    requests=[asked],
                    asks={attempt.caller_key: ask} if ask.is_call else {},
                    ending=ending_of_call(ending, attempt.past),
                    said=said,
                    said_without_call=without_call,
                )
            )
        return tickets
