"""How far one attempt has come, and its time limits: timers that give its connection up.

No limit is held against a server while a caller that reads slowly keeps its answer waiting; the
clock goes on meanwhile.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from math import inf
from typing import Final, TypeVar

from msgspec import Struct

from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.rules.model import Timeouts
from turnlog.wire.jsonrpc import Message

from .errors import Failure

_T = TypeVar("_T")

_POLICIES: Final = 1024
"""Most different limits that are remembered."""
_AGAIN: Final = 1.0
"""s after which a limit that was reached while turnlog waited for the caller is checked again."""

_CALLED: Final = {
    ErrorKind.QUEUE_TIMEOUT: "queue",
    ErrorKind.CONNECT_TIMEOUT: "connect",
    ErrorKind.RESPONSE_TIMEOUT: "response",
    ErrorKind.PROGRESS_TIMEOUT: "idle",
    ErrorKind.DEADLINE_EXHAUSTED: "total",
}
Expire = Callable[[ErrorKind, str], bool]
"""Called at a limit, with the error and its detail. Returns false if the caller is slow, not the server: then it is called again after 1 s."""


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
    """Ids of the server's questions that the caller has not answered."""
    _sent: bool = False
    runs: bool = False
    """Whether time is counted."""
    is_for_connecting: bool = False
    """Whether none of them counts once there is a connection."""

    def before_sent(self, kind: ErrorKind, now: float) -> tuple[float | None, ErrorKind]:
        """Return when a step before sending must be over (`None` for never), and the error if it is not.

        `kind` is the error if the limit of the step itself is reached first.
        """
        at: float = now + getattr(self._limits, _CALLED[kind])
        end = self._began + self._limits.total
        if end <= at:
            kind, at = ErrorKind.DEADLINE_EXHAUSTED, end
        return None if at == inf else at, kind

    def detail(self, kind: ErrorKind) -> str:
        """Return which limit an attempt reached."""
        name = _CALLED[kind]
        return f"the limit timeout.{name} of {getattr(self._limits, name):g} s was reached"

    def connected(self, expire: Expire) -> bool:
        """Begin to count the total; return whether anything is limited from here on.

        `expire` gives the attempt up.
        """
        limits = self._limits
        if limits.response == limits.idle == limits.total == inf:
            return False
        self._expire, self.runs = expire, True
        if limits.total < inf:
            now = asyncio.get_running_loop().time()
            self._arm(ErrorKind.DEADLINE_EXHAUSTED, self._began + limits.total - now)
        return True

    def sent(self) -> None:
        """Start the limits of the response: the request's last byte was sent."""
        self._sent = True
        if self.runs and not self._asked:
            self._started = asyncio.get_running_loop().time()
            self._arm(ErrorKind.RESPONSE_TIMEOUT, self._limits.response - self._waited)
            self._arm(ErrorKind.PROGRESS_TIMEOUT, self._limits.idle)

    def on_data(self) -> None:
        """Restart the limit between two events, or two pieces of a body."""
        if self._limits.idle < inf and not self._asked:
            self._arm(ErrorKind.PROGRESS_TIMEOUT, self._limits.idle)

    def on_server_request(self, question: str) -> None:
        """Pause the limits: the server has sent a request to the caller (elicitation, sampling)."""
        first = not self._asked
        self._asked.add(question)
        if first and ErrorKind.RESPONSE_TIMEOUT in self._timers:
            self._waited += asyncio.get_running_loop().time() - self._started
        self._disarm(ErrorKind.RESPONSE_TIMEOUT)
        self._disarm(ErrorKind.PROGRESS_TIMEOUT)

    def on_server_request_settled(self, question: str) -> None:
        """Resume the limits: the server's request was answered or cancelled."""
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
        self._expire, self.runs = None, False

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


@lru_cache(maxsize=_POLICIES)
def connect_deadlines(limits: Timeouts) -> Deadlines | None:
    """Return the deadlines of all calls with these limits, if none of them counts once a call is sent."""
    # The default rules limit only the time to connect; such deadlines never change.
    if limits.response == limits.idle == limits.total == inf:
        return Deadlines(limits, 0.0, is_for_connecting=True)
    return None


LateReader = Callable[[str, Message, bytes], None]
"""Called with the key of an id as the caller gave it, the answer, and its text."""


# One is made for each call, and a struct takes a third of the time of another class.
class Progress(Struct, eq=False):
    """The phase of one attempt; its carrier advances it."""

    phase: Phase = Phase.QUEUED
    marks: frozenset[Flag] = frozenset()
    """Flags of what happened on the way."""
    deadlines: Deadlines | None = None
    """Its time limits; `None` where it has none."""
    on_timeout: Callable[[Failure], bool] | None = None
    """Returns whether the attempt runs on although its caller's time is over; `None` where it may not."""
    late: Callable[[], LateReader | None] | None = None
    """Returns what reads the late answers of a command: those to requests that were given up."""

    @property
    def may_continue(self) -> bool:
        """Whether the attempt may run on when its caller has given it up."""
        return self.on_timeout is not None

    def continues(self, failure: Failure) -> bool:
        """Return whether the attempt runs on, now that a time limit was reached."""
        return self.on_timeout is not None and self.on_timeout(failure)

    def mark(self, flag: Flag) -> None:
        """Note what happened on the way."""
        self.marks |= {flag}

    def sent(self) -> None:
        """Note that the whole request has been handed to the connection."""
        if self.phase is Phase.SENDING:
            self.phase = Phase.SENT
        if self.deadlines is not None:
            self.deadlines.sent()


def in_time(
    limits: Timeouts, began: float, since: float, step: Coroutine[None, None, _T]
) -> Coroutine[None, None, _T]:
    """Bound what comes before an attempt is sent: it raises `Failure` where it takes too long.

    `began` is when the call did, `since` when the wait does, on the loop's clock.
    """
    if limits.queue == limits.total == inf:
        return step
    deadlines = Deadlines(limits, began)
    at, kind = deadlines.before_sent(ErrorKind.QUEUE_TIMEOUT, since)
    assert at is not None
    return _by(at, step, Failure(kind, Phase.QUEUED, deadlines.detail(kind)))


async def _by(at: float, step: Coroutine[None, None, _T], failure: Failure) -> _T:
    """Await a step; raise `failure` if it is not done by `at`, on the loop's clock."""
    limit = asyncio.timeout_at(at)
    try:
        async with limit:
            return await step
    except TimeoutError:
        if not limit.expired():
            raise
        raise failure from None
