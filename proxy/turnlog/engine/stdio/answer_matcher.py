"""Matches the messages of a wrapped server with the requests of its agent, by id."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import ErrorKind, Flag
from turnlog.engine.command.process import FRAMED, Startup
from turnlog.engine.context import Context
from turnlog.engine.request_identity import Request
from turnlog.exchange.outcome import AnswerText, is_answer, nameless_error
from turnlog.observe.events import ProcessFailed, StrayOutput
from turnlog.record.attempt import Attempt
from turnlog.store.base import Ticket
from turnlog.wire import mcp
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Batch, Defect, Kind, Malformed, Message, id_key, meant_key

from .pipe_carrier import PipeCarrier, PipedExchange

_MOST: Final = 1024
"""Attempts that were given up and are remembered."""


class LongLine(StrEnum):
    """The treatment of a long line of the server, decided at its start."""

    PASSES = "passes"
    STAYS = "stays"
    """Withheld: it is late, and the agent already has another answer."""
    WAITS = "waits"
    """Held until its end, which decides."""


class AbandonedAttempt(Struct, frozen=True):
    """An attempt that was given up before its answer came."""

    exchange: PipedExchange
    attempt: Attempt
    answered: bool
    """Whether the agent has got an answer in its place."""


class AnswerMatcher:
    """The requests without an answer, and the attempts whose answers are late, by the server's ids."""

    def __init__(self, context: Context, request: Request, startup: Startup) -> None:
        self._context = context
        self._request = request
        self._startup = startup
        self._other = PipedExchange(context, request, ())
        """Reads messages that belong to no request of the agent."""
        self._awaited: dict[str, list[PipeCarrier]] = {}
        # An agent may use an id again before it is answered: the newest request is the one answered.
        self._late: OrderedDict[str, AbandonedAttempt] = OrderedDict()

    @property
    def is_awaiting(self) -> bool:
        """Whether any request has no answer."""
        return bool(self._awaited)

    def __iter__(self) -> Iterator[PipeCarrier]:
        """Go through the carriers of requests without an answer, each once, oldest first."""
        return iter(list(dict.fromkeys(one for many in self._awaited.values() for one in many)))

    def add(self, carrier: PipeCarrier) -> None:
        """Expect the answers to a line."""
        for key in carrier.exchange.awaited:
            self._awaited.setdefault(key, []).append(carrier)

    def _find(self, key: str) -> PipeCarrier | None:
        return self._awaited[key][-1] if key in self._awaited else None

    def give_up(self, carrier: PipeCarrier, attempt: Attempt) -> None:
        """Expect the answers to an attempt no more; those that come are late."""
        for key in list(carrier.exchange.awaited):
            if self._drop(key, carrier):
                self._abandon(key, AbandonedAttempt(carrier.exchange, attempt, True))

    def on_cancel(self, cancelled: str) -> None:
        """Expect no answer to the agent's request with this id; one may come all the same."""
        for carrier in self:
            for key, attempt in carrier.exchange.on_cancel(cancelled).items():
                self._drop(key, carrier)
                if attempt is not None:
                    self._abandon(key, AbandonedAttempt(carrier.exchange, attempt, False))

    def _drop(self, key: str, carrier: PipeCarrier) -> bool:
        carriers = self._awaited.get(key, [])
        if carrier not in carriers:
            return False
        carriers.remove(carrier)
        if not carriers:
            del self._awaited[key]
        return True

    def _abandon(self, key: str, late: AbandonedAttempt) -> None:
        self._late[key] = late
        if len(self._late) > _MOST:
            self._late.popitem(last=False)

    def is_answered(self, key: str) -> bool:
        """Return whether the agent's call with this id runs on though the agent got an answer."""
        for carrier in self:
            attempt = carrier.exchange.attempt
            if attempt is not None and attempt.caller_key == key:
                return False
        return any(
            late.answered and late.attempt.caller_key == key and late.attempt.is_guarded
            for late in self._late.values()
        )

    def on_end(self) -> None:
        """Record that no answer will come any more."""
        self._awaited.clear()
        for late in self._late.values():
            if not late.attempt.ended:
                late.attempt.marks.add(Flag.PROCESS_EXIT)
                late.exchange.left(ErrorKind.CONNECTION_LOST)
            if late.attempt is late.exchange.attempt:
                late.exchange.over()

    # -- the server's messages -------------------------------------------------------------

    def read(
        self, content: Message | Batch | Malformed | Outline, text: AnswerText
    ) -> Sequence[Ticket]:
        """Read one line; return what must be on disk before its last byte leaves."""
        match content:
            case Batch(items=items):
                return [
                    t for item in items if isinstance(item, Message) for t in self.read(item, text)
                ]
            case Malformed():
                self._on_stray(content, text)
                return ()
            case _ if is_answer(content):
                _, tickets = self.take(content, text)
                return tickets
            case _:
                self._startup.on_message()
                self._on_progress(mcp.progress_token(content))
                return self._other.on_message(content, text)

    def take(
        self, content: Message | Outline, text: AnswerText
    ) -> tuple[PipeCarrier | AbandonedAttempt | None, Sequence[Ticket]]:
        """Read an answer; return what it is for, and what must be on disk before it leaves."""
        self._startup.on_message()
        key = self._key_of(content)
        if (carrier := self._find(key)) is not None:
            self._drop(key, carrier)
            return carrier, carrier.exchange.on_message(content, text)
        if (late := self._late.pop(key, None)) is not None:
            return late, late.exchange.late(late.attempt, content, text)
        return None, self._other.on_message(content, text)

    def _on_progress(self, token: str) -> None:
        for carrier in self if token else ():
            attempt = carrier.exchange.attempt
            if attempt is not None and attempt.patience is not None and carrier.token == token:
                attempt.patience.on_data()

    def _key_of(self, message: Message | Outline) -> str:
        """Return the key of the request that an answer is for."""
        # An error without id answers the only request there is (JSON-RPC 2.0 section 5.1), and an id
        # that nobody gave the one whose id could not be read.
        if nameless_error(message) and len(self._awaited) == 1:
            return next(iter(self._awaited))
        key = meant_key(id_key(message.id), self._is_open)
        return "" if "" in self._awaited and not self._is_open(key) else key

    def _is_open(self, key: str) -> bool:
        return key in self._awaited or key in self._late

    def _on_stray(self, content: Malformed, text: AnswerText) -> None:
        """Flag and log a line that is no message: something else in the server writes to its stdout."""
        if content.reason is Defect.EMPTY:
            return
        for attempt in self._context.calls.of(self._request.scope):
            attempt.marks.add(Flag.STRAY_OUTPUT)
        if self._startup.is_foreign(text.body.finish()):
            self._context.log.emit(ProcessFailed(server=self._request.server, reason=FRAMED))
        self._context.log.emit(StrayOutput(server=self._request.server, size=text.size))

    def long_line(self, start: bytes) -> LongLine:
        """Return how a long line that begins like this goes on."""
        message = mcp.start_of(start)
        if message is not None and message.kind not in {Kind.RESPONSE, Kind.ERROR}:
            return LongLine.PASSES
        if message is None or not message.id:
            # It may be any answer: also a late one, or one that a time limit still counts for.
            is_limited = any(late.answered for late in self._late.values())
            is_limited = is_limited or any(carrier.is_limited for carrier in self)
            return LongLine.WAITS if is_limited else LongLine.PASSES
        key = meant_key(id_key(message.id), self._is_open)
        if (carrier := self._find(key)) is not None:
            carrier.on_answer_begun()
        elif (late := self._late.get(key)) is not None and late.answered:
            return LongLine.STAYS
        return LongLine.PASSES

    def is_replaced(self, item: Message | Malformed) -> bool:
        """Return whether the agent must not get an answer as it is: its id is another attempt's, or
        the agent got another answer."""
        if not isinstance(item, Message) or not is_answer(item):
            return False
        key = id_key(item.id)
        late, carrier = self._late.get(key), self._find(key)
        attempt = carrier.exchange.attempt if carrier is not None else None
        is_respelled = attempt is not None and attempt.wire_id != b""
        return is_respelled or (late is not None and late.answered)
