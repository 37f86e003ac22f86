"""One guarded call under way: who waits for it, and for how long it runs when nobody does.

Guarded is a call whose effect a rule or a trusted annotation names, or that has an idempotency key
(semantics, section 5). It is carried out by a task of its own, which outlives its caller.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from turnlog.core.classify import Ending
from turnlog.core.kinds import Effect, Flag, NoteKind, Phase
from turnlog.exchange.duplicates import CANCELLED_LIFE, EarlierCall, NeverTwice, disconnect_action
from turnlog.record.attempt import NO_LINKS, Ask, Attempt
from turnlog.record.errors import Failure
from turnlog.record.own_answers import Made
from turnlog.record.recorder import Recorder
from turnlog.record.unread import all_read
from turnlog.rules.model import OnDisconnect
from turnlog.store.base import Ticket
from turnlog.transport.async_pipes import DOUBT

_DELIVERED: Final = NoteKind.DELIVERED
Outlived = Callable[[Failure], bool]
"""Answers a caller whose time is over in the call's place; false where it cannot be told any more."""


def _untold(_: Failure) -> bool:
    return False


def _certain() -> bool:
    return False


class Running:
    """A call that may outlive its caller. Times are on the loop's clock."""

    def __init__(
        self,
        ask: Ask,
        recorder: Recorder,
        limits: NeverTwice,
        *,
        stateless: bool,
        guessed: bytes = b"",
    ) -> None:
        """`guessed` is by what it may be joined while it runs, where its session is only guessed."""
        self.ask = ask
        links = ask.links
        self.found_by = tuple(filter(None, (links.key, links.same, links.anyone, guessed)))
        """Links by which it is found."""
        self.on_ended: Callable[[Running], None] | None = None
        """Called at the end of each attempt."""
        self.attempt: Attempt | None = None
        """The latest one."""
        self.kept: Made | None = None
        """The whole answer, for whoever asks the same again."""
        self.delivered = False
        """Whether the answer was handed to a caller whole."""
        self._recorder = recorder
        self._limits = limits
        is_findable = ask.guess is None or bool(self.found_by)
        self._said = ask.policy.on_disconnect
        self._leaves = disconnect_action(self._said, stateless=stateless, is_findable=is_findable)
        self._left_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._ended_at = 0.0
        self._cancelled_at: float | None = None
        self._abandoned = False
        self.left_by: set[int | str] = set()
        """Connections of callers that were taken for its own, joined it, and have left as well."""
        self.is_given_up = False
        """Whether it is taken back because nobody waits for it."""
        self._joined = 0
        """How many wait for it beside its caller."""
        self.is_over = False
        """Whether nothing carries it out any more; its answer may yet come on another stream."""
        self._waited_for: asyncio.Event | None = None
        """Its end, where somebody waits for it."""
        self._timer: asyncio.TimerHandle | None = None
        self._withdraw: Callable[[], object] | None = None
        self._outlived: Outlived = _untold
        self._doubted: Callable[[], bool] = _certain
        self._hears: Callable[[], bool] = _certain
        self._gone: asyncio.Event | None = None
        """That its caller has left, where somebody wants to know."""

    @property
    def size(self) -> int:
        """Bytes of the answer that is held."""
        return len(self.kept.body) if self.kept is not None else 0

    @property
    def ending(self) -> Ending | None:
        """How it ended; `None` while it runs."""
        return self.attempt.overall if self.attempt is not None and self.is_over else None

    @property
    def _answered(self) -> Ending | None:
        """How the server's answer to a caller who is there ended it, once that is on disk. What a
        stream holds behind the response is no part of it."""
        attempt = self.attempt
        if attempt is None or attempt.ending is None or attempt.outcome is None:
            return None
        is_last = attempt.ended and self.ask.policy.retry is None and not self.has_given_up
        is_whole = attempt.ending.phase is Phase.DONE and attempt.outcome.placed is not None
        return attempt.overall if is_last and is_whole else None

    @property
    def has_left(self) -> bool:
        """Whether its caller is gone."""
        return self._abandoned

    @property
    def has_given_up(self) -> bool:
        """Whether its caller has closed or cancelled: what comes afterwards is not read (MCP, cancellation)."""
        return self._abandoned or self._cancelled_at is not None

    @property
    def is_abandoned(self) -> bool:
        """Whether its caller is gone and nobody else waits for it."""
        return self._abandoned and not self._joined

    @property
    def may_be_guessed(self) -> bool:
        """Whether a caller that is only guessed may join it: it runs on, and was left a moment ago."""
        lately = self._loop.time() - self._left_at <= self._limits.cancel_grace
        return self._abandoned and lately and not self.is_over and self._cancelled_at is None

    def seen(self) -> EarlierCall:
        """Return what a call that asks the same has to know of this one."""
        now, cancelled = self._loop.time(), self._cancelled_at
        answered = None if self.is_over else self._answered
        return EarlierCall(
            ending=answered or self.ending,
            began=now - self._began,
            ended=now - self._ended_at if self.is_over else 0.0,
            abandoned=self._abandoned,
            cancelled=None if cancelled is None else now - cancelled,
            delivered=self.delivered or answered is not None,
            repeats=Flag.REPEAT_OF_UNKNOWN in self.ask.flags,
        )

    def begins(self, attempt: Attempt) -> None:
        """Learn of the attempt that is under way."""
        self.attempt = attempt
        attempt.running = self
        if self._abandoned:
            attempt.marks.add(Flag.LATE)

    @property
    def is_carried(self) -> bool:
        """Whether somebody carries it out."""
        return self._withdraw is not None

    def carried_by(self, withdraw: Callable[[], object], outlived: Outlived) -> None:
        """Learn who carries it out: `withdraw` gives it up, and lets `Repeats` know that it is over."""
        self._withdraw, self._outlived = withdraw, outlived

    def heard_by(self, doubted: Callable[[], bool], hears: Callable[[], bool]) -> None:
        """Set what is known of the agent that gets its answer: `doubted` tells whether it may be gone
        without a word, `hears` whether what is written goes there."""
        self._doubted, self._hears = doubted, hears

    @property
    def is_written(self) -> bool:
        """Whether the intent of its latest attempt is on disk."""
        intent = self.attempt.intent if self.attempt is not None else None
        return intent is not None and intent.placed is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether its caller has ended its side: it may be gone, or only have no more to say."""
        return not self._abandoned and self._doubted()

    async def asked_beside(self) -> None:
        """Wait until it is known whether its caller has given it up: the same call was made again.

        A close or a cancel comes on another connection, and may be read behind the call that follows it.
        """
        await all_read()
        await self.made_certain()

    async def made_certain(self) -> None:
        """Wait until it is known whether its caller is gone, as far as that shows in time."""
        for wait in DOUBT:
            if not self.is_in_doubt:
                return
            if self._gone is None:
                self._gone = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._gone.wait()

    def over(self) -> None:
        """Learn that it has ended, or ended anew: whoever joined it looks at how."""
        self._disarm()
        self._note_silence()
        self._ended_at = self._loop.time()
        self.is_over = True
        if self._waited_for is not None:
            self._waited_for.set()

    def _note_silence(self) -> None:
        """Note that no answer came in the end: the log holds no more than that its time was over."""
        attempt = self.attempt
        if self.is_over or not self._abandoned or self._cancelled_at is not None or not attempt:
            return
        if attempt.n and not attempt.ended:
            self._note(NoteKind.UNANSWERED, attempt.outcome)

    def settled(self) -> None:
        """Learn that an attempt has ended. Where its stream had ended before, the answer counts: from
        it on it is given to who asks again."""
        if self.is_over:
            self._ended_at = self._loop.time()
        if self.on_ended is not None:
            self.on_ended(self)

    async def ended(self) -> None:
        """Wait for its end."""
        if self.is_over:
            return
        if self._waited_for is None:
            self._waited_for = asyncio.Event()
        await self._waited_for.wait()

    async def joined(self) -> None:
        """Wait for its answer, beside its caller or in its place; not for long where it was cancelled:
        a server may never answer what it was told to drop."""
        self._joined += 1
        if self._cancelled_at is None:
            self._disarm()
        else:
            self._run_on()
        try:
            await self.ended()
        finally:
            self._joined -= 1
            if self.is_abandoned and not self._unqueued():
                self._run_on()
            elif not self._joined:
                self._disarm()

    def arrived(self) -> None:
        """Note that its answer was handed to a caller whole. A stream may have ended before it."""
        answered = self.attempt is not None and self.attempt.ending is not None
        if self.attempt is not None and answered and not self.delivered:
            self.delivered = True
            # Of a call that nobody can ask for again it matters only where its caller had left.
            if self._abandoned or self.ask.links is not NO_LINKS:
                self._note(_DELIVERED, self.attempt.outcome)

    @property
    def is_heard(self) -> bool:
        """Whether its caller is surely there and has not had the answer."""
        is_there = not self._abandoned and self._hears()
        return is_there and not self.delivered and not self.is_in_doubt

    def time_out(self, failure: Failure) -> bool:
        """Learn that its caller's time is over; tell whether it runs on all the same.

        Where another attempt could follow, or the caller cannot be told, it does not.
        """
        again = self.ask.effect is Effect.IDEMPOTENT_WRITE or bool(self.ask.key_sent)
        retried = self.ask.policy.retry is not None and again
        stays = self._said is not OnDisconnect.CANCEL and self.ask.is_named and not retried
        if not stays or self._abandoned or self._joined or not self._outlived(failure):
            return False
        self._leaves = OnDisconnect.DRAIN
        return True

    def left(self) -> None:
        """Learn that its caller is gone."""
        attempt = self.attempt
        if self.delivered and not self.is_over and self._withdraw is not None:
            self._withdraw()  # nobody waits for the end of the transfer
        if self._abandoned or self.delivered or attempt is None:
            return
        if self.is_over and attempt.ending is None:
            return  # its stream is over, and the answer to come
        self._abandoned, self._left_at = True, self._loop.time()
        if self._gone is not None:
            self._gone.set()
        if self.is_over:
            self._note(NoteKind.ABANDONED, attempt.outcome or attempt.intent)
            return
        if self._unqueued():
            return
        attempt.marks.add(Flag.LATE)
        self._note(NoteKind.ABANDONED, attempt.intent)
        self._run_on()

    def on_guess_left(self, connection: int | str) -> None:
        """Count a caller that was taken for its own, and is gone now, as its own: what that one asks next may
        join it for as long as if it had been the first."""
        self.left_by.add(connection)
        self._left_at = self._loop.time()

    def _unqueued(self) -> bool:
        """Send it never, where it still waits to be sent and nobody waits for it."""
        if self._joined or self.attempt is None or self.attempt.unqueue is None:
            return False
        self.attempt.unqueue()
        return True

    def cancelled(self) -> None:
        """Learn that its caller took it back, and that the server is told."""
        if self._cancelled_at is not None or self.is_over:
            return
        self._cancelled_at = self._loop.time()
        if self.attempt is not None:
            self._note(NoteKind.CANCEL_FORWARDED, self.attempt.intent)
        if self.is_abandoned or self._joined:
            self._run_on()

    def on_late_cancel(self) -> bool:
        """Count its answer as not delivered, where it is on its way or was handed over a moment ago, and
        tell whether that is so; see `Repeats.on_late_cancel`."""
        attempt, since_then = self.attempt, self._loop.time() - self._ended_at
        if attempt is None or (self.is_over and since_then >= CANCELLED_LIFE):
            return False
        self._abandoned, self.delivered = True, False
        self._note(NoteKind.ABANDONED, attempt.outcome or attempt.intent)
        return True

    def asked(self) -> None:
        """Learn that the server asks the caller something: who is gone cannot answer."""
        if self.is_abandoned:
            self._give_up()

    async def resumed(self) -> None:
        """Give it up to the stream that resumes its own, if its caller has left."""
        if self.is_abandoned and self._withdraw is not None:
            self._withdraw()
            await self.ended()

    def stop(self) -> None:
        """Give it up, because turnlog stops."""
        if self._withdraw is not None:
            self._withdraw()

    def shrink(self) -> None:
        """Let go of what nobody asks for once it has ended: many of these are remembered."""
        self._withdraw, self._outlived, self.on_ended = None, _untold, None
        self._doubted, self._hears = _certain, _certain
        if self.attempt is not None:
            self.attempt.retire()
            self.ask = self.attempt.ask

    def forgotten(self) -> None:
        """Learn that nothing is answered from it any more. What refers to each other would wait for
        the collector, which hardly looks at what has lived for long."""
        if self.is_over and self.attempt is not None and self.attempt.ended:
            self.attempt.running = None

    def _note(self, kind: NoteKind, follows: Ticket | None) -> None:
        if self.attempt is not None:
            self._recorder.note(kind, self.ask.session, self.attempt.facts, follows)

    def _run_on(self) -> None:
        """Run for as long as a call may that nobody waits for."""
        self._disarm()
        if not self.is_over:
            self._timer = self._loop.call_later(self._left, self._give_up)

    @property
    def _left(self) -> float:
        if self._cancelled_at is not None:
            return self._cancelled_at + CANCELLED_LIFE - self._loop.time()
        match self._leaves:
            case OnDisconnect.CANCEL:
                return 0.0
            case OnDisconnect.GRACE:
                return self._limits.cancel_grace
            case OnDisconnect.DRAIN:
                return self._limits.drain

    def _give_up(self) -> None:
        if (self._joined and self._cancelled_at is None) or self._withdraw is None:
            return
        self.is_given_up = True
        self.cancelled()
        self._disarm()
        self._withdraw()

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
