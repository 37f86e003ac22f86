"""Carry out what `exchange.retries` decides for one request: attempts, waits, the answer.

It knows no policy. The clock, the dice and the network are here.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from math import inf
from typing import Final, cast

from msgspec import Struct

from turnlog.core.classify import MEANINGS, UNSENT
from turnlog.core.kinds import ErrorKind, Flag
from turnlog.engine.concurrency import Place, turn
from turnlog.engine.context import Context
from turnlog.engine.duplicates.call_keys import HEADER
from turnlog.exchange.retries import Command, Forward, Wait
from turnlog.observe.events import AuthRequired, UpstreamFailed
from turnlog.record.attempt import Attempt
from turnlog.record.deadlines import Patience
from turnlog.record.errors import Failure, Progress, blocked, in_time
from turnlog.record.own_answers import Made, told
from turnlog.rules.policy import Policy
from turnlog.rules.retry import StopReason, may_still_run
from turnlog.store.base import StoreError
from turnlog.transport.async_pipes import DOUBT
from turnlog.transport.http_client import Answer, Content
from turnlog.transport.message_heads import AnswerHead, Heads, Raw, lines, without_lengths
from turnlog.transport.routes import Route
from turnlog.wire.http.head import Headers, changed_body, content_length, fields, notice_headers
from turnlog.wire.splice import Respelling

from .contracts import Exchange, Hearer, Way
from .course import Course, Late
from .relay import Relay
from .response_buffer import Held, Outlet, Withheld

NO_RULES: Final = Policy()
_UNLIMITED: Final = NO_RULES.timeout
"""What a call has that no rule limits: most have."""
_UNAUTHENTICATED: Final = 401
_AUTH_ADVICE: Final = (
    "clients refuse a login whose resource is not the URL they know; "
    "put a token for this server into the agent's own Authorization header"
)


# One is made for each call, and a struct takes a third of the time of another class.
class Runner(Struct, eq=False):
    """Carries out one exchange. Raises `Gone` when the agent leaves."""

    _context: Context
    _heads: Heads
    _way: Way
    _down: Hearer
    _route: Route
    _exchange: Exchange
    _began: float
    """When, by the loop's clock."""
    _raw: Raw
    """The fields to forward, without Content-Length."""
    _policy: Policy
    _course: Course | None = None
    """What follows each attempt, where a rule may want another one."""
    _notice: asyncio.Task[None] | None = None
    """Takes the attempt before back."""
    _place: Place | None = None
    """Among the calls under way, where a rule counts them."""

    def run(self, content: Content) -> Coroutine[None, None, None]:
        """Forward the request, as often as its policy wants, and relay the last answer."""
        asked, content = content, self._exchange.outgoing(content)
        if content is not asked:
            self._raw = tuple(changed_body(self._raw, decoded=True))
        if self._policy.retry is None:
            return self._attempt(content, hold=False)
        return self._often(content)

    async def _often(self, content: Content) -> None:
        """Make one attempt after the other."""
        clock, stop = self._context.clock, self._context.stop
        health = self._context.health
        repeatable = self._exchange.repeatable(content)
        course = Course(self._policy, clock, health, self._began, stop, repeatable=repeatable)
        self._course = course
        command: Command | None = course.go_on()
        while command is not None:
            match command:
                case Wait():
                    command = await self._wait(command.delay)
                case Forward(number=1):
                    await self._attempt(content, hold=command.hold)
                    command = course.next
                case Forward():
                    command = await self._again(cast("bytes", content), hold=command.hold)

    async def _wait(self, delay: float) -> Command | None:
        """Wait before the next attempt; what is held is the answer where none may begin any more."""
        attempt, course = self._exchange.attempt, self._course
        assert attempt is not None
        assert course is not None  # who waits has one
        await self._exchange.rest(self._pause(delay, course))
        if await self._is_withdrawn(attempt):
            return None
        if late := course.late(self._notice):
            await self._release(attempt, late)
        else:
            return course.go_on()
        return None

    async def _is_withdrawn(self, before: Attempt) -> bool:
        """Answer a call that was cancelled before its next attempt left; tell whether it was."""
        withdrawn = self._exchange.withdrawn()
        if withdrawn is None:
            return False
        made, tickets = withdrawn
        self._context.recorder.abandoned(before, StopReason.CANCELLED)
        await self._context.recorder.settle(tickets)
        await self.send(made)
        return True

    async def _pause(self, delay: float, course: Course) -> None:
        """Wait until the next attempt is due, and the server has learnt that the one before is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._context.stop.wait()
        if self._notice is not None and not self._context.stop.is_set():
            # `inf` is no time to wait for.
            left = course.left()
            await asyncio.wait({self._notice}, timeout=left if left < inf else None)

    @property
    def _next(self) -> Command | None:
        return self._course.next if self._course is not None else None

    async def _release(self, attempt: Attempt, reason: StopReason) -> None:
        """Send the answer to an attempt that no other follows."""
        self._context.recorder.abandoned(attempt, reason)
        assert self._course is not None
        assert self._course.held is not None  # what is followed by a wait was withheld
        await self._course.held.send()

    def queued(self) -> Coroutine[None, None, None] | None:
        """Return what to wait for until the call may leave; most calls wait for nothing.

        Raises `StoreError`, and `Failure` where it must not, and so does what is waited for.
        """
        if ask := self._exchange.blocked:
            raise blocked(ask)
        if self._exchange.attempt is not None:
            self._context.health.called(self._route.target.name)
        if self._policy.concurrency is not None:
            self._place = self._context.places.claim(self._exchange.attempt)
        if self._place is None and not self._exchange.is_due:
            return None
        step = self._exchange.on_disk() if self._place is None else self._turn(self._place)
        limits = self._policy.timeout
        if limits is not _UNLIMITED:
            step = in_time(limits, self._began, self._began, step)
        return step

    async def _turn(self, place: Place) -> None:
        await self._exchange.on_disk()
        if self._exchange.attempt is not None:
            await turn(place, self._exchange.attempt)

    def over(self) -> None:
        """Give up the call's place: it has ended, however that was."""
        if self._place is not None:
            self._place.give_back()

    async def _again(self, content: bytes, *, hold: bool) -> Command | None:
        before, course = self._exchange.attempt, self._course
        assert before is not None
        assert course is not None  # only a rule makes another attempt
        self._exchange.progress = Progress()
        try:
            content = await course.in_time(self._exchange.again(content))
        except StoreError:
            await self._release(before, StopReason.UNRECORDED)
            return None
        except Late as late:
            self._exchange.left(late.kind)
            await self._release(before, late.reason)
            return None
        if await self._is_withdrawn(before):
            return None
        # The answer's id will be changed, so it had better not be encoded.
        plain = [pair for pair in self._raw if pair[0].lower() != b"accept-encoding"]
        self._raw = (*plain, (b"Accept-Encoding", b"identity"))
        await self._attempt(content, hold=hold)
        return course.next

    async def _attempt(self, content: Content, *, hold: bool) -> None:
        """Make one attempt; the course knows the next step if its answer was not the last one."""
        self._notice = None
        if self._exchange.is_once and await self._is_given_up():
            if self._course is not None:
                self._course.next = None
            return
        self._begin_patience()
        attempt, ended = self._exchange.attempt, None
        head = self._heads.forwarded((self._raw, self._route.target.authority))
        if attempt is not None and attempt.ask.key_sent:
            head += self._key(attempt.ask.key_sent)
        try:
            if attempt is not None:
                ended = self._context.health.watch(self._route.target.name, attempt)
            answer = await self._sent(head, content)
        except Failure as failure:
            await self._failed(failure)
        else:
            await self._answered(answer, hold=hold)
        finally:
            if ended is not None and attempt is not None and attempt.watch is not None:
                ended(None)

    async def _is_given_up(self) -> bool:
        """Return whether the caller has closed or cancelled before anything was sent; the call is over then.

        A proxy that was stopped must not send what its agent may have asked for elsewhere meanwhile.
        """
        running = self._exchange.running
        if running is not None:
            await running.made_certain()
            if running.has_left:
                self._exchange.left(ErrorKind.CANCELLED_BY_CALLER)
                return True
        elif self._down.has_ended:
            for wait in DOUBT:  # where it turns out that the agent is gone, this is cancelled
                await asyncio.sleep(wait)
        if (withdrawn := self._exchange.withdrawn()) is not None:
            made, tickets = withdrawn
            await self._context.recorder.settle(tickets)
            await self.send(made)
            return True
        return False

    async def _answered(self, answer: Answer, *, hold: bool) -> None:
        """Relay the answer to an attempt; send one that was withheld where no other is made."""
        held: Held | None = None
        try:
            self._exchange.head(answer)
            if answer.status == _UNAUTHENTICATED:
                self._unauthenticated(answer)
            attempt = self._exchange.attempt
            if attempt is not None and attempt.ask.session.id is None:
                await _opened(attempt)
            started = self._context.clock.monotonic()
            try:
                await self._relay(answer, hold=hold)
            finally:
                self._exchange.went_by(self._context.clock.monotonic() - started)
            if self._course is not None:
                self._course.next = None  # the agent has the answer
        except Withheld as withheld:
            held = self._kept(withheld.held, ours=self._exchange.instead() is not None)
        finally:
            await answer.close()
        self._take_back()
        if held is not None and self._next is None:
            await held.send()

    def _key(self, sent: str) -> bytes:
        """Return the line of an idempotency key that the caller did not send in this way itself."""
        if fields(self._down.headers, HEADER):
            return b""
        return lines([(b"Idempotency-Key", sent.encode())])

    def _kept(self, held: Held, *, ours: bool) -> Held:
        attempt, course = self._exchange.attempt, self._course
        if attempt is None or course is None:
            return held
        return course.keep(attempt, held, ours=ours)

    def _begin_patience(self) -> None:
        attempt = self._exchange.attempt
        if attempt is None:
            return
        if self._course is not None:
            self._course.follow(attempt)
        limits, running = self._policy.timeout, self._exchange.running
        attempt.patience = Patience(limits, self._began)
        if limits is not _UNLIMITED:
            self._exchange.progress.patience = attempt.patience
        if running is not None:
            self._exchange.progress.time_out = running.time_out

    def _sent(self, head: bytes, content: Content) -> Coroutine[None, None, Answer]:
        if self._route.target.is_command:
            self._exchange.progress.late = self._exchange.late_reader()
        length = None if isinstance(content, bytes) else content_length(self._down.headers)
        return self._way.send(
            self._route.target,
            self._down.method,
            self._route.resource,
            head,
            content,
            self._exchange.progress,
            length=length if isinstance(length, int) else None,
            interim=self._interim,
        )

    def _interim(self, status: int, reason: bytes, headers: Headers) -> None:
        self._down.interim(status, reason, self._head_of(without_lengths(headers)).lines)

    async def _failed(self, failure: Failure) -> None:
        if failure.kind is not ErrorKind.CIRCUIT_OPEN:
            self._note_failure(failure)
        made, tickets = self._exchange.failed(failure)
        await self._context.recorder.settle(tickets)
        last = self._is_last()
        self._take_back()
        held = self._kept(self._whole(made), ours=True)
        if last:
            await held.send()

    def _note_failure(self, failure: Failure) -> None:
        self._context.log.emit(
            UpstreamFailed(
                server=self._route.target.name,
                address=self._route.target.host,
                port=self._route.target.port,
                error=MEANINGS[failure.kind].family,
                kind=failure.kind,
                phase=failure.phase,
            )
        )

    def _relay(self, answer: Answer, *, hold: bool) -> Coroutine[None, None, None]:
        spellings = self._exchange.respelling()
        respelling = Respelling(spellings) if spellings else None
        out = Outlet(self._down, self._is_last if hold else None, respelling)
        if self._course is not None:
            self._course.out = out
        head = self._head_of(answer.raw)
        recorder, keep = self._context.recorder, max(self._context.keep, self._exchange.reads)
        trusted = self._route.target.name in self._context.trusted
        if head.speaks_for_turnlog and not trusted:
            self._exchange.progress.mark(Flag.FORGED_OUTCOME)
        relay = Relay(
            out, answer, head, self._head_of, self._exchange, recorder, keep, trusted, head.lines
        )
        return relay.run()

    def _unauthenticated(self, answer: Answer) -> None:
        """Say how to go on where a server sends the client to another origin's login."""
        asked = fields(answer.headers, b"www-authenticate")
        if any(b"resource_metadata" in value for value in asked):
            self._context.log.emit(
                AuthRequired(
                    server=self._route.target.name, http_status=answer.status, advice=_AUTH_ADVICE
                )
            )

    def _head_of(self, raw: Raw) -> AnswerHead:
        return self._heads.answer(raw, self._route, self._raw)

    def _is_last(self) -> bool:
        """Tell what came of the attempt; return whether its answer is the agent's."""
        attempt, course = self._exchange.attempt, self._course
        if attempt is None or course is None or (wait := course.next) is None:
            return True
        if attempt.cancelled:
            course.next = None
            return True
        self._context.recorder.retried(attempt, wait.delay)
        return False

    def _take_back(self) -> None:
        """Tell the server that nobody waits for the attempt any more, if it may be at work yet.

        Where the agent itself gave up it says so itself.
        """
        attempt = self._exchange.attempt
        ending = attempt.ending if attempt is not None else None
        if ending is not None and may_still_run(ending, again=self._next is not None):
            self._notify_cancel()

    def _notify_cancel(self) -> None:
        if message := self._exchange.cancelling():
            target = self._route.target
            raw = tuple(notice_headers(self._raw))
            head = self._heads.forwarded((raw, target.authority))
            notice = self._way.notify(target, self._route.resource, head, message)
            self._notice = notice

    def withdraw(self) -> None:
        """Take back a call that nobody waits for; where the caller did, the server knows."""
        attempt = self._exchange.attempt
        sent = self._exchange.progress.phase not in UNSENT
        if attempt is not None and not attempt.cancelled and sent:
            self._notify_cancel()

    async def send(self, made: Made) -> None:
        """Send an answer that turnlog made."""
        await self._whole(made).send()

    def _whole(self, made: Made) -> Held:
        """Return an answer that turnlog made, with what is known of the call now."""
        attempt = self._exchange.attempt
        head = lines(made.headers) + (told(attempt, whole=True) if attempt is not None else b"")
        body = None if self._down.method == "HEAD" else made.body
        return Held(self._down, made.status, made.reason, head, body)


async def _opened(attempt: Attempt) -> None:
    """Wait for the id of a session that a call opened: the answer names it."""
    if attempt.intent is not None:
        with suppress(StoreError):
            await attempt.intent.done()
