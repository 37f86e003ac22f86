"""The time limits of one attempt: timers that give its connection up.

No limit is held against a server while an agent that reads slowly keeps its answer waiting; the
clock goes on meanwhile.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import ErrorKind
from turnlog.rules.model import Timeouts

_AGAIN: Final = 1.0
"""s: how long after a limit was reached, while the agent was waited for, one looks again."""

_CALLED: Final = {
    ErrorKind.QUEUE_TIMEOUT: "queue",
    ErrorKind.CONNECT_TIMEOUT: "connect",
    ErrorKind.RESPONSE_TIMEOUT: "response",
    ErrorKind.PROGRESS_TIMEOUT: "idle",
    ErrorKind.DEADLINE_EXHAUSTED: "total",
}
Expire = Callable[[ErrorKind, str], bool]
"""Gives an attempt up for a reason, in a word and in detail; false where nobody waits for the server right now."""


# One is made for each call, and a struct takes a third of the time of another class.
class Deadlines(Struct, eq=False):
    """Timers of one attempt. `began` is when its call did, on the loop's clock."""

    _limits: Timeouts
    _began: float
    _timers: dict[ErrorKind, asyncio.TimerHandle] = {}
    _expire: Expire | None = None
    _waited: float = 0.0
    """s of `response` that are over."""
    _started: float = 0.0
    _asked: set[str] = set()
    """Ids of the server's questions that the agent has not answered."""
    _sent: bool = False

    def before_sent(
        self, limit: float, kind: ErrorKind, now: float
    ) -> tuple[float | None, ErrorKind]:
        """Return when a step that takes at most `limit` must be over, and what it is if not."""
        end = self._began + self._limits.total
        if end <= now + limit:
            kind, at = ErrorKind.DEADLINE_EXHAUSTED, end
        else:
            at = now + limit
        return None if at == inf else at, kind

    def detail(self, kind: ErrorKind) -> str:
        """Return which limit an attempt reached."""
        name = _CALLED[kind]
        return f"the limit timeout.{name} of {getattr(self._limits, name):g} s was reached"

    def connect_by(self, now: float) -> tuple[float | None, ErrorKind]:
        """Return when there must be a connection."""
        return self.before_sent(self._limits.connect, ErrorKind.CONNECT_TIMEOUT, now)

    def queue_by(self, now: float) -> tuple[float | None, ErrorKind]:
        """Return when the call must be on its way."""
        return self.before_sent(self._limits.queue, ErrorKind.QUEUE_TIMEOUT, now)

    def connected(self, expire: Expire) -> bool:
        """Begin to count the total, if anything is limited from here on; tell whether it is.

        `expire` gives the attempt up.
        """
        if not self._limits.bounds_answer:
            return False
        self._expire = expire
        if self._limits.total < inf:
            now = asyncio.get_running_loop().time()
            self._arm(ErrorKind.DEADLINE_EXHAUSTED, self._began + self._limits.total - now)
        return True

    def sent(self) -> None:
        """Begin to wait for the response: the request's last byte is on its way."""
        self._sent = True
        if not self._asked and self._expire is not None:
            self._started = asyncio.get_running_loop().time()
            self._arm(ErrorKind.RESPONSE_TIMEOUT, self._limits.response - self._waited)
            self._arm(ErrorKind.PROGRESS_TIMEOUT, self._limits.idle)

    def heard(self) -> None:
        """Begin to wait for the next event, or the next piece of a body."""
        if self._limits.idle < inf and not self._asked:
            self._arm(ErrorKind.PROGRESS_TIMEOUT, self._limits.idle)

    @property
    def runs(self) -> bool:
        """Whether time is counted."""
        return self._expire is not None

    def asked(self, question: str) -> None:
        """Wait for the agent: the server has asked it something (elicitation, sampling)."""
        first = not self._asked
        self._asked.add(question)
        if first and ErrorKind.RESPONSE_TIMEOUT in self._timers:
            self._waited += asyncio.get_running_loop().time() - self._started
        self._disarm(ErrorKind.RESPONSE_TIMEOUT)
        self._disarm(ErrorKind.PROGRESS_TIMEOUT)

    def told(self, question: str) -> None:
        """Wait for the server again: its question is answered, or taken back."""
        self._asked.discard(question)
        if not self._asked and self._sent:
            self.sent()

    def resumable(self, default: float, now: float) -> float:
        """Return for how many seconds a stream that has ended may be resumed, as the rules say."""
        idle = inf if self._asked else self._limits.idle
        life = min(idle, self._began + self._limits.total - now)
        return default if life == inf else max(life, 0.0)

    def close(self) -> None:
        """Stop all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._expire = None

    def _arm(self, kind: ErrorKind, delay: float) -> None:
        self._disarm(kind)
        if delay < inf:
            loop = asyncio.get_running_loop()
            self._timers[kind] = loop.call_later(max(delay, 0), self._reached, kind)

    def _disarm(self, kind: ErrorKind) -> None:
        if timer := self._timers.pop(kind, None):
            timer.cancel()

    def _reached(self, kind: ErrorKind) -> None:
        if self._expire is not None and not self._expire(kind, self.detail(kind)):
            self._arm(kind, _AGAIN)
