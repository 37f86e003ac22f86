"""The carrier of one HTTP request: its attempts, the waits between them, and its answer.

It decides no policy: `exchange.call` does.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from math import inf
from typing import Final

from msgspec import Struct, structs

from turnlog.core.classify import MEANINGS, UNSENT
from turnlog.core.kinds import ErrorKind, Flag
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.command.command_endpoint import Commands
from turnlog.engine.concurrency import Slot
from turnlog.engine.context import Context
from turnlog.engine.request_identity import KEY, Request
from turnlog.engine.retry_limits import RetryLimits
from turnlog.exchange.call import Stage
from turnlog.exchange.events import (
    CallerChecked,
)
from turnlog.observe.events import AuthRequired, UpstreamFailed
from turnlog.record.attempt import Attempt, blocked
from turnlog.record.deadlines import Deadlines, in_time
from turnlog.record.errors import Failure
from turnlog.record.own_answers import OwnAnswer, call_lines, updated_call_lines
from turnlog.rules.policy import Policy
from turnlog.rules.retry import StopReason
from turnlog.store.base import StoreError, Ticket
from turnlog.transport.http_client import Answer, Content, Upstreams
from turnlog.transport.message_heads import (
    OutgoingHead,
    Raw,
    answer_lines,
    forwarded,
)
from turnlog.wire.answer_body import AnswerBody
from turnlog.wire.http.head import changed_body, fields, lines, notice_headers
from turnlog.wire.splice import Respelling

from .agent_side import AgentSide, GuardedAgent
from .relay import Exchange, Relay
from .response_buffer import HeldAnswer, ResponseBuffer, Withheld

NO_RULES: Final = Policy()
_UNLIMITED: Final = NO_RULES.timeout
"""The time limits of a call without a rule: most calls."""
# To look a member up costs more than to compare it.
_ENDED: Final = Stage.ENDED
_SETTLING: Final = Stage.SETTLING
_CHECKING: Final = Stage.CHECKING
_WAITING: Final = Stage.WAITING
_UNAUTHENTICATED: Final = 401
_AUTH_ADVICE: Final = (
    "clients refuse a login whose resource is not the URL they know; "
    "put a token for this server into the agent's own Authorization header"
)


Outlived = tuple[OwnAnswer, Sequence[Ticket]]
"""The answer to a caller that timed out, and the tickets to wait for before it is sent."""
UpstreamSender = Upstreams | Commands
"""The sender of requests: to servers over HTTP, or to commands that turnlog runs."""


class Guard(Struct, frozen=True):
    """The task and channels of a call that may outlive its caller."""

    task: asyncio.Task[None]
    """The task that carries the call."""
    agent: GuardedAgent
    told: "asyncio.Future[Outlived | None]"
    """The caller's timeout answer, or `None` at the call's end."""


# One is made for each call, and a struct takes a third of the time of another class.
class HttpCarrier(Struct, eq=False):
    """Carries one exchange out over HTTP (`engine.call_driver.Carrier`). Raises `AgentGone` when the agent
    leaves."""

    _context: Context
    _way: UpstreamSender
    _down: AgentSide
    _request: Request
    _exchange: Exchange
    _began: float
    """Time of the request on the loop's clock."""
    _policy: Policy
    guard: Guard | None = None
    """Set if the call may outlive its caller."""
    _out: ResponseBuffer | None = None
    """The buffer of the latest attempt's answer, once there is one."""
    _held: dict[int, tuple[Attempt | None, HeldAnswer]] = {}
    """Withheld answers, by the number of the attempt."""
    _changed: Raw | None = None
    """The fields to forward, without Content-Length, where they are not as they came."""
    _notice: asyncio.Task[None] | None = None
    """The task that sends the cancel of the attempt before."""

    # -- as `engine.call_driver.Carrier` ------------------------------------------------------

    @property
    def may_be_gone(self) -> bool:
        """Whether the caller has closed its sending side: it may be gone, or only half-closed."""
        return self._down.has_ended

    @property
    def has_left(self) -> bool:
        """Whether part of the latest answer was already sent."""
        return self._out is not None and self._out.left

    @property
    def is_held(self) -> bool:
        """Whether the latest answer can still be withheld from the caller."""
        return self._out is None or self._out.gate is not None

    @property
    def is_stopping(self) -> bool:
        """Whether the proxy is stopping."""
        return self._context.stop.is_set()

    @property
    def can_answer_timeout(self) -> bool:
        """Whether the caller can be answered with a timeout now."""
        guard = self.guard
        return guard is not None and not guard.told.done() and guard.agent.can_be_replaced

    def claim_slot(self) -> Slot:
        """Return a slot, held or queued, of the rule's concurrency limit."""
        return self._context.limiter.claim(self._policy)

    @property
    def has_retry_left(self) -> bool:
        """Whether the server's quota has a retry left."""
        return self._context.health.has_retry_left(self._request.server)

    def on_retry(self, *, refused: bool) -> None:
        """Count a retry that follows, or that the server's quota refused."""
        health = self._context.health
        (health.on_retry_refused if refused else health.on_retry)(self._request.server)

    def answer_timeout(self, failure: Failure) -> None:
        """Record the timeout and answer the caller with it; the call runs on."""
        assert self.guard is not None  # `can_answer_timeout` was true
        self.guard.agent.drop()
        self.guard.told.set_result(self._exchange.outlived(failure))

    def fail(self, kind: ErrorKind) -> None:
        """Record what is open as failed, unless its answer may still come on another stream."""
        self._exchange.left(kind)

    def cancel_at_server(self) -> None:
        """Cancel the latest attempt at the server, if it was sent."""
        if self._exchange.progress.phase in UNSENT:
            return
        if message := self._exchange.cancelling():
            route = self._request.route
            head = forwarded(tuple(notice_headers(self._raw)), route, "POST")
            self._notice = self._way.notify(route.target, head, message)

    def drop(self, kind: ErrorKind) -> None:
        """Stop carrying the call; its task records the end, because the whole answer may be here already."""
        if self.guard is not None:
            self.guard.task.cancel()

    # -- before anything is sent ------------------------------------------------------------

    def queued(self, content: Content) -> Coroutine[None, None, None] | None:
        """Return the coroutine to await before the call may be sent; `None` for most calls.

        Both this and the coroutine raise `StoreError`, and `Failure` if the call must not be sent.
        """
        if ask := self._exchange.blocked:
            raise blocked(ask)
        if self._exchange.attempt is not None:
            self._context.health.called(self._request.server)
        repeatable = self._policy.retry is not None and self._exchange.repeatable(content)
        if not self._exchange.is_due and self._policy.concurrency is None:
            self._on_recorded(repeatable=repeatable)
            return None
        step = self._recorded(repeatable=repeatable)
        limits = self._policy.timeout
        if limits != _UNLIMITED:
            step = in_time(limits, self._began, self._began, step)
        return step

    async def _recorded(self, *, repeatable: bool) -> None:
        await self._exchange.on_disk()
        self._on_recorded(repeatable=repeatable)
        driver = self._exchange.driver
        if driver is not None and driver.machine.stage is Stage.QUEUED:
            await driver.slot_granted()

    def _on_recorded(self, *, repeatable: bool) -> None:
        for each in self._exchange.drivers:
            each.on_recorded(is_repeatable=repeatable)

    # -- attempts ---------------------------------------------------------------------------

    def run(self, content: Content) -> Coroutine[None, None, None]:
        """Forward the request, retry it by its policy, and relay the last answer."""
        asked, content = content, self._exchange.outgoing(content)
        if content is not asked:
            self._changed = tuple(changed_body(self._raw, decoded=True))
        driver = self._exchange.driver
        if driver is not None:
            return self._drive(driver, content)
        return self._forward(content)

    async def _forward(self, content: Content) -> None:
        """Forward a request that is no call, or several; named ones only if their caller is still there."""
        checked = [each for each in self._exchange.drivers if each.machine.stage is _CHECKING]
        if checked:
            await checked[0].caller_checked()  # if it is gone, this task is cancelled
        for each in checked:
            if each.machine.stage is _CHECKING:  # else it was answered on another stream
                each.feed(CallerChecked())
        await self._attempt(content, hold=False)

    async def _drive(self, driver: CallDriver, content: Content) -> None:
        """Do what the call's machine waits for, until the call has ended."""
        machine = driver.machine
        if machine.stage is _ENDED:  # cancelled before it was sent
            await self._is_withdrawn()
        while True:
            if (send := driver.to_send) is not None:
                driver.to_send = None
                await self._attempt(content, hold=send.hold)
                if machine.stage is _SETTLING:
                    driver.on_outcome_written(written=True)
                if self._held:
                    await self._give(driver)
            elif machine.stage is _CHECKING:
                await self._check(driver)
            elif machine.stage is _WAITING:
                assert isinstance(content, bytes)  # a body that is not held is never retried
                content = await self._again(driver, content)
            else:
                return

    async def _check(self, driver: CallDriver) -> None:
        """Check whether the caller is still there; if not, this task is cancelled or the call ends."""
        await driver.caller_checked()
        if driver.machine.stage is _CHECKING:
            driver.feed(CallerChecked())
        else:
            await self._is_withdrawn()

    async def _again(self, driver: CallDriver, content: bytes) -> bytes:
        """Wait, and begin the next attempt; return its body."""
        limits = RetryLimits(self._policy, self._began, self._context.stop)
        before = self._exchange.attempt
        assert before is not None
        pause = self._pause(limits, driver.delay)
        body = await limits.another(driver, self._exchange, content, pause, self._notice)
        if body is not None:
            # The id in the answer has to be replaced, so the answer should not be encoded.
            plain = [pair for pair in self._raw if pair[0].lower() != b"accept-encoding"]
            self._changed = (*plain, (b"Accept-Encoding", b"identity"))
            driver.on_recorded(is_repeatable=True)
            return body
        if await self._is_withdrawn():
            self._context.recorder.abandoned(before, StopReason.CANCELLED)
        else:
            await self._give(driver)
        return content

    async def _pause(self, limits: RetryLimits, delay: float) -> None:
        """Wait until the next attempt is due, and the cancel of the one before was sent."""
        await limits.pause(delay)
        if self._notice is not None and not self._context.stop.is_set():
            # `asyncio.wait` takes no `inf`.
            left = limits.left
            await asyncio.wait({self._notice}, timeout=left if left < inf else None)

    async def _is_withdrawn(self) -> bool:
        """Answer a call that was cancelled before it was sent, or sent again; return whether it was."""
        withdrawn = self._exchange.withdrawn()
        if withdrawn is None:
            return False
        made, _ = withdrawn
        attempt = self._exchange.attempt
        if attempt is not None and attempt.waits and attempt.outcome is not None:
            await self._context.recorder.settle([attempt.outcome])
        await self.send(made)
        return True

    async def _give(self, driver: CallDriver) -> None:
        """Send the withheld answer that was chosen for the caller, if there is one."""
        released = driver.released
        if released is None or released.number not in self._held:
            return
        driver.released = None
        # The last attempt that was answered: a retry that was not sent is not in here.
        last, _ = self._held[max(self._held)]
        answered, held = self._held[released.number]
        if last is not None and released.reason is not None:
            self._context.recorder.abandoned(last, released.reason)
        if answered is not None and last is not None and answered is not last:
            answered.past = last.so_far
            held = structs.replace(held, lines=updated_call_lines(held.lines, answered))
        await held.send()

    async def _attempt(self, content: Content, *, hold: bool) -> None:
        """Make one attempt, and relay or withhold its answer."""
        self._notice = self._out = None
        attempt, circuit = self._exchange.attempt, None
        try:
            if attempt is not None:
                circuit = self._context.health.watch(self._request.server, attempt)
            answer = await self._sent(attempt, content)
        except Failure as failure:
            await self._failed(failure)
        else:
            await self._answered(answer, attempt, hold=hold)
        finally:
            if circuit is not None and attempt is not None and attempt.watch is not None:
                circuit(None)

    def _sent(self, attempt: Attempt | None, content: Content) -> Coroutine[None, None, Answer]:
        """Return the coroutine that sends an attempt, with its time limits set."""
        request, exchange, length = self._request, self._exchange, self._down.length
        progress, driver, target = exchange.progress, exchange.driver, request.route.target
        head = request.forwarded
        if self._changed is not None:
            head = forwarded(self._changed, request.route, head.method)
        if attempt is not None:
            if self._policy.timeout != _UNLIMITED:
                limits = Deadlines(self._policy.timeout, self._began)
                attempt.deadlines = progress.deadlines = limits
            if attempt.ask.key_sent:
                head = self._with_key(head, attempt.ask.key_sent)
        if driver is not None and driver.is_guarded:
            progress.on_timeout = driver.on_expired
        if target.is_command:
            progress.late = exchange.late_reader
        return self._way.send(
            target,
            head,
            content,
            progress,
            length if length >= 0 else None,
            self._interim,
        )

    async def _answered(self, answer: Answer, attempt: Attempt | None, *, hold: bool) -> None:
        """Relay the answer to an attempt, or withhold it if a retry follows."""
        exchange = self._exchange
        try:
            exchange.head(answer)
            if answer.head.status == _UNAUTHENTICATED:
                self._unauthenticated(answer)
            if attempt is not None:
                if attempt.ask.session.id is None:
                    await _opened(attempt)
                await self._relay(answer, attempt, hold=hold)
            else:
                await self._unrecorded(answer, hold=hold)
        except Withheld as withheld:
            self._keep(withheld.held)
        finally:
            await answer.close()

    async def _unrecorded(self, answer: Answer, *, hold: bool) -> None:
        """Relay an answer to what is no call."""
        started = self._context.clock.monotonic()
        try:
            await self._relay(answer, None, hold=hold)
        finally:
            self._exchange.went_by(self._context.clock.monotonic() - started)

    def _with_key(self, head: OutgoingHead, key: str) -> OutgoingHead:
        """Return a head with an `Idempotency-Key`, unless the caller sends that field itself."""
        if fields(self._down.asked.head.raw, KEY):
            return head
        line = lines([(b"Idempotency-Key", key.encode())])
        return OutgoingHead(head.method, head.lines + line, head.text + line)

    def _keep(self, held: HeldAnswer) -> None:
        attempt = self._exchange.attempt
        self._held[attempt.ask.number if attempt is not None else 1] = attempt, held

    def _interim(self, status: int, reason: bytes, raw: Raw) -> None:
        self._down.interim(status, reason, self._lines_of(raw))

    async def _failed(self, failure: Failure) -> None:
        if failure.kind is not ErrorKind.CIRCUIT_OPEN:
            self._note_failure(failure)
        made, tickets = self._exchange.failed(failure)
        await self._context.recorder.settle(tickets)
        if self._exchange.driver is None:
            await self.send(made)
        else:
            self._keep(self._whole(made))
            self._is_last()

    def _note_failure(self, failure: Failure) -> None:
        self._context.log.emit(
            UpstreamFailed(
                server=self._request.server,
                address=self._request.route.target.host,
                port=self._request.route.target.port,
                error=MEANINGS[failure.kind].family,
                kind=failure.kind,
                phase=failure.phase,
            )
        )

    def _relay(
        self, answer: Answer, attempt: Attempt | None, *, hold: bool
    ) -> Coroutine[None, None, None]:
        respelling = None
        if (attempt is None or attempt.wire_id) and (spellings := self._exchange.respelling()):
            respelling = Respelling(spellings)
        out = self._out = ResponseBuffer(self._down, self._is_last if hold else None, respelling)
        context, head = self._context, answer.head
        trusted = self._request.server in context.trusted
        if head.speaks_for_turnlog and not trusted:
            self._exchange.progress.mark(Flag.FORGED_OUTCOME)
        return Relay(
            out,
            answer,
            head,
            AnswerBody(head, trusted),
            self._exchange,
            context.recorder,
            max(context.keep, self._exchange.reads),
            self._lines_of(head.raw) if head.has_references or head.sets_cookies else head.lines,
            self._lines_of,
            answer.length,
        ).run()

    def _unauthenticated(self, answer: Answer) -> None:
        """Log advice if the server asks for a login that the client will refuse behind a proxy."""
        asked = fields(answer.head.raw, b"www-authenticate")
        if any(b"resource_metadata" in value for value in asked):
            self._context.log.emit(
                AuthRequired(
                    server=self._request.server,
                    http_status=answer.head.status,
                    advice=_AUTH_ADVICE,
                )
            )

    @property
    def _raw(self) -> Raw:
        """The fields to forward, without Content-Length."""
        return self._down.asked.head.raw if self._changed is None else self._changed

    def _lines_of(self, raw: Raw) -> bytes:
        """Return the lines for the agent of an answer's fields that are not those of its head."""
        return answer_lines(raw, self._request.route, self._down.asked.head.raw)

    def _is_last(self) -> bool:
        """Return whether no retry follows the attempt; log the retry if one does."""
        attempt, driver = self._exchange.attempt, self._exchange.driver
        if attempt is None or driver is None or driver.machine.stage is not _WAITING:
            return True
        self._context.recorder.retried(attempt, driver.delay)
        return False

    async def send(self, made: OwnAnswer) -> None:
        """Send an answer that turnlog made."""
        await self._whole(made).send()

    def _whole(self, made: OwnAnswer) -> HeldAnswer:
        """Return turnlog's own answer, with the fields that describe the call."""
        attempt = self._exchange.attempt
        head = lines(made.headers) + call_lines(attempt, whole=True)
        body = None if self._down.asked.method == "HEAD" else made.body
        return HeldAnswer(self._down, made.status, made.reason, head, body)


async def _opened(attempt: Attempt) -> None:
    """Wait for the id of a new session, because the answer's head names it."""
    if attempt.intent is not None:
        with suppress(StoreError):
            await attempt.intent.done()
