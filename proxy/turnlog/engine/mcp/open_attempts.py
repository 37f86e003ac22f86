"""The calls of one MCP exchange that have no outcome yet, and the requests that wait for answers."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct, field

from turnlog.core.classify import Ending, failed
from turnlog.core.kinds import ErrorKind
from turnlog.engine.call_registry import DETACHED_LIFE, Scope
from turnlog.engine.context import Context
from turnlog.record.attempt import AnswerFacts, Ask, Attempt
from turnlog.record.errors import Progress
from turnlog.store.base import Ticket
from turnlog.wire.jsonrpc import Kind, Message, id_key

_REQUEST: Final = Kind.REQUEST


class OpenAttempts(Struct, eq=False):
    """Begins attempts and ends them, here and in what all exchanges share."""

    context: Context
    scope: Scope
    kin: str
    awaited: dict[str, Message]
    """The requests that have no answer, by the key of the id that the server knows."""
    progress: Progress = field(default_factory=Progress)
    """How far what is open here has come."""
    attempts: dict[Attempt, str] = {}
    """Those without an outcome, and the key of each one's id; a batch may hold one id twice."""
    begun: dict[str, Attempt] = {}
    """All that were begun, by the same keys."""
    notified: set[Attempt] = set()
    """Those that nobody will be answered."""
    asks: dict[str, Ask] = {}
    """What each call asks, by the key of the id that its caller gave: lookups get no answer as calls do."""

    @property
    def waits(self) -> bool:
        """Whether any of its attempts waits for the disk."""
        for attempt in self.attempts:  # noqa: SIM110 - 0.05 us, any() takes 0.35
            if attempt.waits:
                return True
        return False

    async def begin(self, message: Message, ask: Ask, key: str) -> Attempt:
        """Queue the intent of a call's first attempt; `key` is that of its id. Raises `StoreError`."""
        attempt = await self.context.recorder.begin(ask)
        attempt.caller_id = message.id
        attempt.scope, attempt.kin = self.scope, self.kin
        self.attempts[attempt] = key
        self.begun[key] = attempt
        self.context.calls.add(self.scope, key, attempt)
        return attempt

    async def again(self, message: Message, ask: Ask, wire_id: bytes) -> Attempt:
        """Queue the intent of another attempt, which the server knows under another id."""
        key = id_key(wire_id)
        self.awaited[key] = message
        self.asks[id_key(message.id)] = ask
        attempt = await self.begin(message, ask, key)
        attempt.wire_id = wire_id
        return attempt

    def drop(self, attempt: Attempt) -> None:
        """Forget an attempt that was begun in vain: its message is to be begun anew."""
        self.context.calls.remove(self.scope, self.attempts.pop(attempt), attempt)

    @contextmanager
    def resting(self, attempt: Attempt) -> Generator[None]:
        """Note that the next attempt has not left: the caller may cancel meanwhile."""
        self.context.calls.rest(self.scope, attempt)
        try:
            yield
        finally:
            self.context.calls.wake(self.scope, attempt)

    def own(self, key: str) -> Attempt | None:
        """Return the attempt that the server knows by the id with this key."""
        for attempt, its in self.attempts.items():
            if its == key:
                return attempt
        return None

    def end(self, attempt: Attempt, ending: Ending, reply: AnswerFacts) -> Sequence[Ticket]:
        """Record how an attempt ended, be it one of this exchange or not."""
        if marks := self.progress.marks:  # what happened on the way of all that is open here
            for each in self.attempts:
                each.marks.update(marks)
        ticket = self.context.recorder.end(attempt, ending, reply)
        self._forget(attempt)
        return () if ticket is None else (ticket,)

    def _forget(self, attempt: Attempt) -> None:
        key = self.attempts.pop(attempt, None)
        if key is not None:
            self.awaited.pop(key, None)
            self.context.calls.remove(self.scope, key, attempt)

    @contextmanager
    def reopened(self, attempt: Attempt) -> Generator[None]:
        """Let another outcome follow the one that is recorded within the block."""
        key = self.attempts[attempt]
        awaited = self.awaited.get(key)
        yield
        self.context.recorder.reopen(attempt)
        self.attempts[attempt] = key
        if awaited is not None:
            self.awaited[key] = awaited
        self.context.calls.add(self.scope, key, attempt)

    def end_all(self, kind: ErrorKind, reply: AnswerFacts) -> Sequence[Ticket]:
        """Record that all that is open failed so; what was cancelled was cancelled."""
        phase = self.progress.phase
        tickets: list[Ticket] = []
        for attempt in list(self.attempts):
            if attempt.n and attempt.is_guarded:
                # What its caller was told stands: no answer came to it.
                self._forget(attempt)
                continue
            why = ErrorKind.CANCELLED_BY_CALLER if attempt.cancelled else kind
            tickets += self.end(attempt, failed(why, phase, attempt.ask.effect), reply)
        return tickets

    def detach(self) -> None:
        """Leave what is open to a stream that resumes this one."""
        now = self.context.clock.monotonic()
        for attempt, key in self.attempts.items():
            if not attempt.ended:
                self.context.calls.detach(self.scope, key, attempt, now, _life(attempt))
        self.attempts.clear()


def _life(attempt: Attempt) -> int:
    """Return for how long a call waits for a stream that resumes its own, in ns."""
    if attempt.patience is None:
        return DETACHED_LIFE
    now = asyncio.get_running_loop().time()
    return round(attempt.patience.resumable(DETACHED_LIFE / 1e9, now) * 1e9)
