"""The messages of one line of an agent that goes through a pipe, and what comes back of it.

There is no answer that belongs to it as a whole: each message of the server comes by itself.
"""

from collections.abc import Sequence

from msgspec import structs

from turnlog.core.classify import failed
from turnlog.core.kinds import ErrorKind, Phase
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.duplicates.duplicate_match import Joins, Repeated
from turnlog.engine.mcp.mcp_exchange import McpExchange
from turnlog.record.attempt import AnswerFacts, Ask, Attempt
from turnlog.record.errors import Failure
from turnlog.record.outcome import AnswerText
from turnlog.record.own_answers import JSON, OwnAnswer
from turnlog.store.base import Ticket
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Message, id_key


class PipedExchange(McpExchange):
    """One line of an agent, and the calls in it."""

    joins: Joins | None = None
    """The earlier call that its call waits for, or has waited for."""

    async def begin(self) -> None:
        """Queue the intents, after an earlier call that is waited for.

        Raises `StoreError`, and `Repeated` and `Joins` as `Repeats.admitted` does.
        """
        if self.joins is not None:
            await self._context.repeats.joined(self.joins)
        await super().begin()

    async def _admitted(self, ask: Ask, key: str) -> tuple[Ask, CallDriver | None]:
        """Let a call go on. Raises `Repeated`, and `Joins` where it has to wait: not here, where others
        are behind it.

        On a pipe no revision takes a call back by closing a stream.
        """
        return self._context.repeats.admitted(ask, stateless=False, before=self.joins)

    def kept(self, sent: OwnAnswer | None) -> OwnAnswer | None:
        """Return the whole response, for whoever asks the same again."""
        message = self.attempt.message.strip() if self.attempt is not None else b""
        return OwnAnswer(200, b"OK", JSON, message) if message else sent

    async def retold(self, found: Repeated) -> OwnAnswer:
        """Return the answer to a call that is not sent, once its outcome is on disk."""
        attempt = found.attempt
        if attempt.waits and attempt.outcome is not None:
            await self._context.recorder.settle([attempt.outcome])
        return self.repeated(found)

    def over(self) -> None:
        """Let whoever waits for the call look at how it has ended."""
        driver = self.driver
        if driver is not None and driver.is_guarded:
            self._context.repeats.over(driver, self.kept(driver.kept))
        elif driver is not None:
            driver.close()

    @property
    def messages(self) -> Sequence[Message]:
        """What its line holds."""
        return self._messages

    def said(self, message: Message | Outline, text: AnswerText) -> Sequence[Ticket]:
        """Read one message of the server that came by itself."""
        self.progress.phase = Phase.BODY
        return self.message(message, text)

    def late(
        self, attempt: Attempt, message: Message | Outline, text: AnswerText
    ) -> Sequence[Ticket]:
        """Read the answer to an attempt that was given up before it came."""
        tickets = super().late(attempt, message, text)
        if attempt is self.attempt:
            self.over()
        return tickets

    def acknowledge(self) -> None:
        """Close the calls that nobody will be answered, now that they have been sent."""
        self.acknowledged()

    def broken_off(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record that a pipe is closed; return what the calls that are open get, and only those."""
        open_ids = {each.caller_key for each in self.attempts if each.ask.is_call}
        self.progress.phase = failure.phase
        unanswered = self._unanswered(failure)
        calls = [asked for asked in unanswered.requests if id_key(asked.id) in open_ids]
        unanswered = structs.replace(unanswered, requests=calls)
        tickets = self._end_all(failure.kind, failure.detail, unanswered.said)
        return self._made(unanswered), tickets

    def taken_back(self, key: str) -> dict[str, Attempt | None]:
        """Record that the caller took the request with this id back; a guarded call runs on a while.

        Returns the keys of the ids by which the server knows it, and its attempts.
        """
        found: dict[str, Attempt | None] = {}
        for attempt, wire_key in list(self.attempts.items()):
            if attempt.cancelled and attempt.caller_key == key:
                found[wire_key] = attempt
                if attempt.is_guarded and self.driver is not None:
                    self.driver.on_left()
                    continue
                kind = ErrorKind.CANCELLED_BY_CALLER
                self.end(
                    attempt, failed(kind, self.progress.phase, attempt.ask.effect), AnswerFacts()
                )
        if self._own(key) is None and self.awaited.pop(key, None) is not None:
            found[key] = None
        return found
