"""The calls of one MCP exchange that have no outcome yet, and the requests that wait for answers."""

import asyncio
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final

from turnlog.core.classify import Ending, failed
from turnlog.core.kinds import ErrorKind
from turnlog.store.base import Ticket
from turnlog.wire.jsonrpc import Kind, Message, id_key

from .attempt import Ask, Attempt, Reply
from .calls import DETACHED_LIFE, Scope
from .context import Context
from .fault import Progress

_REQUEST: Final = Kind.REQUEST


class Underway:
    """Begins attempts and ends them, here and in what all exchanges share."""

    __slots__ = (
        "_context",
        "_kin",
        "_scope",
        "asks",
        "attempts",
        "awaited",
        "notified",
        "progress",
    )

    def __init__(
        self, context: Context, scope: Scope, kin: str, messages: Iterable[Message]
    ) -> None:
        self._context = context
        self._scope = scope
        self._kin = kin
        self.progress = Progress()
        """How far what is open here has come."""
        self.attempts: dict[Attempt, str] = {}
        """Those without an outcome, and the key of each one's id; a batch may hold one id twice."""
        self.notified: set[Attempt] = set()
        """Those that nobody will be answered."""
        self.asks: dict[str, Ask] = {}
        """What each call asks, by the key of the id that its caller gave."""
        self.awaited: dict[str, Message] = {}
        """The requests that have no answer, by the key of the id that the server knows."""
        for message in messages:
            if message.kind is _REQUEST:
                self.awaited[id_key(message.id)] = message

    @property
    def waits(self) -> bool:
        """Whether any of its attempts waits for the disk."""
        for attempt in self.attempts:  # noqa: SIM110 - 0.05 us, any() takes 0.35
            if attempt.waits:
                return True
        return False

    async def begin(self, message: Message, ask: Ask, key: str) -> Attempt:
        """Queue the intent of a call's first attempt; `key` is that of its id. Raises `StoreError`."""
        self.asks[key] = ask
        attempt = await self._context.recorder.begin(ask)
        self._add(attempt, message, key)
        return attempt

    async def again(self, message: Message, ask: Ask, wire_id: bytes) -> Attempt:
        """Queue the intent of another attempt, which the server knows under another id."""
        key = id_key(wire_id)
        self.awaited[key] = message
        self.asks[id_key(message.id)] = ask
        attempt = await self._context.recorder.begin(ask)
        attempt.wire_id = wire_id
        self._add(attempt, message, key)
        return attempt

    def _add(self, attempt: Attempt, message: Message, key: str) -> None:
        attempt.caller_id = bytes(message.id)
        attempt.kin = self._kin
        self.attempts[attempt] = key
        self._context.calls.add(self._scope, key, attempt)

    def drop(self, attempt: Attempt) -> None:
        """Forget an attempt that was begun in vain: its message is to be begun anew."""
        self._context.calls.remove(self._scope, self.attempts.pop(attempt), attempt)

    async def on_disk(self) -> None:
        """Wait for the intents. Raises `StoreError`."""
        for attempt in tuple(self.attempts):
            await self._context.recorder.on_disk(attempt)

    @contextmanager
    def resting(self, attempt: Attempt) -> Generator[None]:
        """Note that the next attempt has not left: the caller may cancel meanwhile."""
        self._context.calls.rest(self._scope, attempt)
        try:
            yield
        finally:
            self._context.calls.wake(self._scope, attempt)

    def own(self, key: str) -> Attempt | None:
        """Return the attempt that the server knows by the id with this key."""
        for attempt, its in self.attempts.items():
            if its == key:
                return attempt
        return None

    def _mark(self) -> None:
        """Note what happened on the way of all that is open here."""
        if marks := self.progress.marks:
            for attempt in self.attempts:
                attempt.marks.update(marks)

    def end(self, attempt: Attempt, ending: Ending, reply: Reply) -> Sequence[Ticket]:
        """Record how an attempt ended, be it one of this exchange or not."""
        self._mark()
        ticket = self._context.recorder.end(attempt, ending, reply)
        self._forget(attempt)
        return () if ticket is None else (ticket,)

    def _forget(self, attempt: Attempt) -> None:
        key = self.attempts.pop(attempt, None)
        if key is not None:
            self.awaited.pop(key, None)
            self._context.calls.remove(self._scope, key, attempt)

    @contextmanager
    def reopened(self, attempt: Attempt) -> Generator[None]:
        """Let another outcome follow the one that is recorded within the block."""
        key = self.attempts[attempt]
        awaited = self.awaited.get(key)
        yield
        self._context.recorder.reopen(attempt)
        self.attempts[attempt] = key
        if awaited is not None:
            self.awaited[key] = awaited
        self._context.calls.add(self._scope, key, attempt)

    def end_all(self, kind: ErrorKind, reply: Reply) -> Sequence[Ticket]:
        """Record that all that is open failed so; what was cancelled was cancelled."""
        phase = self.progress.phase
        tickets: list[Ticket] = []
        for attempt in list(self.attempts):
            if attempt.n and attempt.running is not None:
                # What its caller was told stands: no answer came to it.
                self._forget(attempt)
                continue
            why = ErrorKind.CANCELLED_BY_CALLER if attempt.cancelled else kind
            tickets += self.end(attempt, failed(why, phase, attempt.ask.effect), reply)
        return tickets

    def detach(self) -> None:
        """Leave what is open to a stream that resumes this one."""
        now = self._context.clock.monotonic()
        for attempt, key in self.attempts.items():
            if not attempt.ended:
                self._context.calls.detach(self._scope, key, attempt, now, _life(attempt))
        self.attempts.clear()


def _life(attempt: Attempt) -> int:
    """Return for how long a call waits for a stream that resumes its own, in ns."""
    if attempt.patience is None:
        return DETACHED_LIFE
    now = asyncio.get_running_loop().time()
    return round(attempt.patience.resumable(DETACHED_LIFE / 1e9, now) * 1e9)
