"""Interfaces between the parts that carry a call over HTTP."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol

from turnlog.core.kinds import ErrorKind
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.duplicates.duplicate_match import Repeated
from turnlog.exchange.delivery import BrokenAnswer
from turnlog.record.attempt import Ask, Attempt
from turnlog.record.errors import Failure, LateReader, Progress
from turnlog.record.own_answers import OwnAnswer
from turnlog.store.base import Ticket
from turnlog.transport.http_client import Answer, Content, Interim
from turnlog.transport.message_heads import Raw
from turnlog.transport.routes import Target
from turnlog.wire.http.head import Headers
from turnlog.wire.message import MessageReader
from turnlog.wire.sse import Event

from . import response_buffer


class AgentSide(response_buffer.AnswerSink, Protocol):
    """The agent's side: its request as it came, and where the answer goes."""

    @property
    def method(self) -> str:
        """HTTP method."""
        ...

    @property
    def raw(self) -> Raw:
        """Fields without Content-Length."""
        ...

    @property
    def headers(self) -> Headers:
        """Fields as they came."""
        ...

    def interim(self, status: int, reason: bytes, lines: bytes) -> None:
        """Forward an interim answer."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the agent has ended its side: it may be gone, or only have no more to say."""
        ...


class AnswerObserver(Protocol):
    """Reads a copy of the answer. Each method returns the tickets to settle before what it read goes on."""

    attempt: Attempt | None
    """The latest attempt, where there is exactly one call."""

    @property
    def waits(self) -> bool:
        """Whether the end of the answer has to wait for the disk."""
        ...

    @property
    def reads(self) -> int:
        """How much of one message has to be read, in bytes, where that is more than is kept."""
        ...

    def event(self, event: Event) -> Sequence[Ticket]:
        """Read one event of a stream."""
        ...

    def whole(self, body: MessageReader, media: str, size: int) -> Sequence[Ticket]:
        """Read an answer that is no stream, once it is complete; `size` is that on the wire."""
        ...

    def is_answered_by(self, body: MessageReader, *, cut: bool) -> bool:
        """Return whether what has come of an answer that is no stream is all that is waited for.

        Its transfer was `cut`, or goes on.
        """
        ...

    @property
    def is_heard(self) -> bool:
        """Whether the caller of a call that may outlive it is surely there for the response.

        Asked right before it is written: a caller that has read it may be gone at once.
        """
        ...

    def handed_over(self) -> None:
        """Note that what `whole` or `event` read last has been written to the agent."""
        ...

    def ended(self) -> Sequence[Ticket]:
        """End a stream that came to its end."""
        ...

    @property
    def is_resumable(self) -> bool:
        """Whether another stream may bring what this one did not, if the server lives."""
        ...

    def broken(self, failure: Failure, broken: BrokenAnswer) -> Sequence[Ticket]:
        """Record that the answer will never be complete."""
        ...

    @property
    def judges(self) -> bool:
        """Whether a rule has a say in how the call that is answered has ended."""
        ...

    @property
    def amends(self) -> bool:
        """Whether an answer to come may get a word of turnlog's."""
        ...

    def amended(self, message: bytes) -> bytes | None:
        """Return the message that was just read with that word; `None` where it stays as it is."""
        ...

    def instead(self) -> OwnAnswer | None:
        """Return turnlog's own answer, where nothing of the server's has left; `None` for none."""
        ...

    def last_events(self) -> bytes:
        """Return the events that end a stream whose responses never came; empty for none."""
        ...


class Exchange(AnswerObserver, Protocol):
    """One request of an agent, as far as it is carried out: MCP messages, or a plain HTTP call."""

    driver: CallDriver | None
    """What drives the call, where there is exactly one."""

    kept_as_sent: bool
    """Whether whoever asks the same again gets the answer as it went to the first caller."""

    @property
    def progress(self) -> Progress:
        """How far the attempt has come; each one has its own."""
        ...

    @progress.setter
    def progress(self, progress: Progress) -> None: ...

    def kept(self, sent: OwnAnswer | None) -> OwnAnswer | None:
        """Return the whole answer for whoever asks the same again; `sent` is what went, if it is known."""
        ...

    def repeated(self, found: Repeated) -> OwnAnswer:
        """Return the answer to a call that is not sent, because of an earlier one."""
        ...

    async def begin(self) -> None:
        """Queue the intents. Raises `StoreError` when the calls have to be refused, and `Repeated`."""
        ...

    @property
    def listens(self) -> bool:
        """Whether it waits for nothing: a listening stream."""
        ...

    @property
    def blocked(self) -> Ask | None:
        """The first call that a rule keeps from being sent, if there is one."""
        ...

    @property
    def is_once(self) -> bool:
        """Whether it holds a call with a named effect or a key: it must not run twice by accident."""
        ...

    @property
    def is_due(self) -> bool:
        """Whether an intent has to be on disk before it leaves."""
        ...

    async def on_disk(self) -> None:
        """Wait for the intents. Raises `StoreError`."""
        ...

    def outgoing(self, content: Content) -> Content:
        """Return the body as it leaves."""
        ...

    def repeatable(self, content: Content) -> bool:
        """Return whether another attempt can be made with this body."""
        ...

    async def again(self, content: bytes) -> bytes:
        """Begin another attempt; return its body. Raises `StoreError`."""
        ...

    async def rest(self, pause: Awaitable[None]) -> None:
        """Wait before the next attempt; the caller may cancel meanwhile."""
        ...

    def withdrawn(self) -> tuple[OwnAnswer, Sequence[Ticket]] | None:
        """Return the answer where the caller cancelled before the next attempt left."""
        ...

    def respelling(self) -> dict[bytes, bytes]:
        """Return what ids to change in the answer, and into what."""
        ...

    def late_reader(self) -> LateReader | None:
        """Return what reads answers to its calls when it is over; `None` where it has none."""
        ...

    def cancelling(self) -> bytes:
        """Return the message that takes the attempt back, if one is needed."""
        ...

    def head(self, answer: Answer) -> None:
        """Read the answer's head."""
        ...

    def failed(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record that there is no answer; return what to say instead."""
        ...

    def outlived(self, failure: Failure) -> tuple[OwnAnswer, Sequence[Ticket]]:
        """Record that the caller's time is over while the call runs on; return what to say to it."""
        ...

    def refused(self) -> OwnAnswer:
        """Return the answer to a call that cannot be recorded."""
        ...

    def left(self, kind: ErrorKind) -> None:
        """Record that nothing is waited for any more, for the reason `kind`."""
        ...

    def went_by(self, duration: int) -> None:
        """Log an exchange that held no call; `duration` in ns since its head was there."""
        ...


class UpstreamSender(Protocol):
    """The way to a tool server: over HTTP, or to a command of ours."""

    async def send(
        self,
        target: Target,
        method: str,
        resource: str,
        lines: bytes,
        body: Content,
        progress: Progress,
        *,
        length: int | None,
        interim: Interim | None = None,
    ) -> Answer:
        """Send one request, once, and return when the answer's head is there. Raises `Failure`."""
        ...

    def notify(
        self, target: Target, resource: str, lines: bytes, body: bytes
    ) -> asyncio.Task[None]:
        """Send a message whose answer nobody needs, in the background."""
        ...
