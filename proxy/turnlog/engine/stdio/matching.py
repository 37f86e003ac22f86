"""What the server of a pair of pipes was asked, and what its messages answer of that."""

from collections.abc import Sequence

from turnlog.core.kinds import Flag
from turnlog.engine.agent_request import Request
from turnlog.engine.command.process import FRAMED, Startup
from turnlog.engine.context import Context
from turnlog.observe.events import ProcessFailed, StrayOutput
from turnlog.record.attempt import Attempt
from turnlog.record.outcome import AnswerText, is_answer, nameless_error
from turnlog.store.base import Ticket
from turnlog.wire import mcp
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Batch, Defect, Kind, Malformed, Message, id_key, meant_key

from .errand import PendingAnswers, PipeCarrier
from .given_up import AbandonedAttempt, LateAnswers, Opening
from .piped import PipedExchange


class AnswerMatcher:
    """The requests that wait for an answer, and the attempts whose answers would come too late."""

    def __init__(self, context: Context, request: Request, startup: Startup) -> None:
        self._context = context
        self._request = request
        self._startup = startup
        self._aside = PipedExchange(context, request, ())
        """Reads what belongs to no request of the agent's."""
        self.awaited = PendingAnswers()
        self.past = LateAnswers()

    def give_up(self, errand: PipeCarrier, attempt: Attempt) -> None:
        """Wait for an attempt's answer no more; if it comes all the same it is late."""
        for key in list(errand.exchange.awaited):
            if self.awaited.drop(key, errand):
                self.past.add(key, AbandonedAttempt(errand.exchange, attempt, True))

    def taken_back(self, cancelled: str) -> None:
        """Wait for nothing that has the caller's id `cancelled`; it may be answered all the same."""
        for errand in list(self.awaited):
            for key, attempt in errand.exchange.taken_back(cancelled).items():
                self.awaited.drop(key, errand)
                if attempt is not None:
                    self.past.add(key, AbandonedAttempt(errand.exchange, attempt, False))

    def is_answered(self, key: str) -> bool:
        """Return whether the call with this id of the caller's runs on though its caller got an answer."""
        attempts = [errand.exchange.attempt for errand in self.awaited]
        is_awaited = any(attempt and attempt.caller_key == key for attempt in attempts)
        return not is_awaited and self.past.runs_on(key)

    def lost(self) -> None:
        """Learn that nothing will be answered any more."""
        self.awaited.clear()
        self.past.lost()

    # -- what the server says --------------------------------------------------------------

    def read(
        self, content: Message | Batch | Malformed | Outline, text: AnswerText
    ) -> Sequence[Ticket]:
        """Read what passes in any case; return what must be on disk before its last byte leaves."""
        match content:
            case Batch(items=items):
                return [
                    t for item in items if isinstance(item, Message) for t in self.read(item, text)
                ]
            case Malformed():
                self._stray(content, text)
                return ()
            case _ if is_answer(content):
                self._startup.on_message()
                return self._answered(content, text)
            case _:
                self._startup.on_message()
                self.awaited.heard(mcp.progress_token(content))
                return self._aside.said(content, text)

    def _answered(self, content: Message | Outline, text: AnswerText) -> Sequence[Ticket]:
        key = self.key_of(content)
        if (errand := self.awaited.take(key)) is not None:
            return errand.exchange.said(content, text)
        if (past := self.past.take(key)) is not None:
            return past.exchange.late(past.attempt, content, text)
        return self._aside.said(content, text)

    def key_of(self, message: Message | Outline) -> str:
        """An error without id answers the only request there is (JSON-RPC 2.0 section 5.1), and an
        id that nobody gave the one whose id could not be read."""
        if nameless_error(message) and len(self.awaited) == 1:
            return self.awaited.first_key
        key = meant_key(id_key(message.id), self._is_open)
        return "" if "" in self.awaited and not self._is_open(key) else key

    def _is_open(self, key: str) -> bool:
        return key in self.awaited or key in self.past

    def _stray(self, content: Malformed, text: AnswerText) -> None:
        """Note a line that is no message: something else in the server writes to its stdout."""
        if content.reason is Defect.EMPTY:
            return
        for attempt in self._context.calls.of(self._request.scope):
            attempt.marks.add(Flag.STRAY_OUTPUT)
        if self._startup.is_foreign(text.body.finish()):
            self._context.log.emit(ProcessFailed(server=self._request.server, reason=FRAMED))
        self._context.log.emit(StrayOutput(server=self._request.server, size=text.size))

    def opening(self, start: bytes) -> Opening:
        """Tell what becomes of a long line of the server's that begins like this."""
        message = mcp.start_of(start)
        if message is not None and message.kind not in {Kind.RESPONSE, Kind.ERROR}:
            return Opening.PASSES
        if message is None or not message.id:
            # It may be any answer: also one that comes too late, or that a limit still waits for.
            limited = self.past.any_answered or any(e.is_limited for e in self.awaited)
            return Opening.WAITS if limited else Opening.PASSES
        key = meant_key(id_key(message.id), self._is_open)
        if (errand := self.awaited.find(key)) is not None:
            errand.answering()
        elif (past := self.past.find(key)) is not None and past.answered:
            return Opening.STAYS
        return Opening.PASSES

    def is_replaced(self, item: Message | Malformed) -> bool:
        """Tell whether the agent must not get an answer as it is: its id is another attempt's, or
        something else has taken its place."""
        if not isinstance(item, Message) or not is_answer(item):
            return False
        key = id_key(item.id)
        past, errand = self.past.find(key), self.awaited.find(key)
        attempt = errand.exchange.attempt if errand is not None else None
        return (past is not None and past.answered) or (
            attempt is not None and attempt.wire_id != b""
        )
