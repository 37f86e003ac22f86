"""What follows each attempt of a call that a rule may want to be made again: `exchange.retries`, asked as
soon as the attempt has ended."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from math import inf

from msgspec import structs

from turnlog.core.classify import more_executed
from turnlog.core.kinds import Effect, ErrorKind
from turnlog.engine.upstream_health import Health
from turnlog.exchange.retries import Command, Wait, exchange
from turnlog.observe.clock import Clock
from turnlog.record.attempt import Attempt
from turnlog.record.own_answers import retold
from turnlog.rules.policy import Policy
from turnlog.rules.retry import EndedAttempt, StopReason
from turnlog.store.base import StoreError

from .response_buffer import Held, Outlet


class Late(Exception):
    """The attempt that is due does not begin any more; `kind` is how it ends."""

    def __init__(self, reason: StopReason, kind: ErrorKind) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


class Course:
    """The steps of one call, one attempt after the other. `began` is on the loop's clock."""

    def __init__(
        self,
        policy: Policy,
        clock: Clock,
        health: Health,
        began: float,
        stop: asyncio.Event,
        *,
        repeatable: bool,
    ) -> None:
        """`stop` is set when nothing new may begin; what is not `repeatable` as a message is
        forwarded once."""
        self._health = health
        self._policy = policy
        self._steps = exchange(policy, partial(_dice, clock), repeatable=repeatable)
        self._began = began
        self._stop = stop
        self.held: Held | None = None
        """The agent's answer, should no other attempt be made."""
        self._answered: tuple[Attempt, Held] | None = None
        """The latest attempt that the server answered, and that answer."""
        self.next: Wait | None = None
        """What follows the attempt that has ended; `None` where its answer is the agent's."""
        self.out: Outlet | None = None
        """The way of the latest attempt's answer, once there is one."""

    def go_on(self) -> Command:
        """Return the first step, or the one that follows a wait."""
        return next(self._steps)

    def left(self) -> float:
        """Return for how many seconds another attempt may still begin."""
        return min(self._ends())[0] - asyncio.get_running_loop().time()

    def late(self, notice: "asyncio.Task[None] | None") -> StopReason | None:
        """Tell why the attempt that is due may not begin; `notice` takes the one before back."""
        if self._stop.is_set():
            return StopReason.STOPPING
        (total, _), _ = self._ends()
        if total <= asyncio.get_running_loop().time():
            return StopReason.TOTAL
        if notice is not None and not notice.done():
            return min(self._ends())[1]
        return None

    async def in_time(self, step: Coroutine[None, None, bytes]) -> bytes:
        """Do what comes before an attempt. Raises `StoreError`, and `Late` where it takes too long
        or the proxy stops meanwhile."""
        at, reason, kind = self._last_moment(asyncio.get_running_loop().time())
        limit = asyncio.timeout_at(at if at < inf else None)
        try:
            async with limit:
                done = await self._unless_stopped(step, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            if not self._stop.is_set():
                raise Late(reason, kind) from None
        else:
            if not self._stop.is_set():
                return done
        raise Late(StopReason.STOPPING, ErrorKind.OUTCOME_UNKNOWN)

    async def _unless_stopped(
        self, step: Coroutine[None, None, bytes], limit: asyncio.Timeout
    ) -> bytes:
        """Do a step; where the proxy stops meanwhile, the limit is reached at once."""
        failed: StoreError | None = None
        done = b""
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._end_at_stop(limit))
            try:
                done = await step
            except StoreError as error:
                failed = error  # a group would wrap it
            finally:
                watch.cancel()
        if failed is not None:
            raise failed
        return done

    async def _end_at_stop(self, limit: asyncio.Timeout) -> None:
        await self._stop.wait()
        if not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time())

    def _last_moment(self, now: float) -> tuple[float, StopReason, ErrorKind]:
        """Return when an attempt that is due `now` has to begin, on the loop's clock."""
        (total, _), (budget, _) = self._ends()
        queue = now + self._policy.timeout.queue
        return min(
            (total, StopReason.TOTAL, ErrorKind.DEADLINE_EXHAUSTED),
            (queue, StopReason.QUEUE, ErrorKind.QUEUE_TIMEOUT),
            (budget, StopReason.BUDGET, ErrorKind.QUEUE_TIMEOUT),
            key=lambda end: end[0],
        )

    def _ends(self) -> tuple[tuple[float, StopReason], tuple[float, StopReason]]:
        """When the call ends, and when its last attempt has to begin, on the loop's clock."""
        retry, total = self._policy.retry, self._policy.timeout.total
        budget = retry.budget if retry is not None else inf
        return (self._began + total, StopReason.TOTAL), (self._began + budget, StopReason.BUDGET)

    def follow(self, attempt: Attempt) -> None:
        """Decide what follows an attempt as soon as it has ended."""
        self.next, self.out = None, None
        attempt.decide = self._decide

    def _decide(self, attempt: Attempt) -> str:
        """Return why the attempt is the last one; nothing where it is not, or was answered."""
        assert attempt.ending is not None
        left = self.out is not None and self.out.left
        answered = self._answered[0] if self._answered is not None else None
        attempt.yields = answered is not None and not left and _says_enough(answered, attempt)
        tried = EndedAttempt(
            ending=attempt.ending,
            effect=attempt.ask.effect,
            keyed=bool(attempt.ask.key_sent),
            number=attempt.ask.number,
            elapsed=asyncio.get_running_loop().time() - self._began,
            retry_after=attempt.retry_after,
        )
        try:
            command = self._steps.send(tried)
        except StopIteration as end:
            return "" if end.value is StopReason.ANSWERED else end.value
        assert isinstance(command, Wait)  # nothing else follows an attempt
        if reason := self._hindrance(attempt):
            return reason
        self.next = command
        return ""

    def keep(self, attempt: Attempt, held: Held, *, ours: bool) -> Held:
        """Hold an attempt's answer; return what is the agent's, should no other attempt be made.

        In place of turnlog's own (`ours`) that may be one of the server's to an earlier attempt.
        """
        if not ours:
            self._answered = attempt, held
        elif attempt.yields and self._answered is not None:
            answered, held = self._answered
            answered.past = attempt.so_far
            held = structs.replace(held, lines=retold(held.lines, answered))
        self.held = held
        return held

    def _hindrance(self, attempt: Attempt) -> StopReason | None:
        if attempt.cancelled:
            return StopReason.CANCELLED
        if self._stop.is_set():
            return StopReason.STOPPING
        if self.out is not None and not self.out.holds:
            return StopReason.RELAYED
        return None if self._health.may_retry(attempt.ask.server) else StopReason.QUOTA


def _says_enough(answered: Attempt, last: Attempt) -> bool:
    """Tell whether an earlier answer may stand for a call whose last attempt has none: it must not say
    less of what may have happened than the call came to (429 says that nothing did)."""
    whole, said = last.overall, answered.ending
    assert whole is not None
    assert said is not None  # both have ended
    return (
        last.ask.effect is Effect.READ
        or more_executed(said.executed, whole.executed) is said.executed
    )


def _dice(clock: Clock) -> float:
    """Return a number in [0, 1)."""
    return int.from_bytes(clock.entropy(4), "big") / (1 << 32)
