"""The carrier of one HTTP request: its attempts, the waits between them, and its answer.

It decides no policy: `exchange.call` does.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final

from msgspec import Struct, structs

from turnlog.core.classify import MEANINGS, UNSENT
from turnlog.core.kinds import ErrorFamily, ErrorKind, Flag
from turnlog.engine.call_driver import CallDriver
from turnlog.engine.command.command_endpoint import Commands
from turnlog.engine.context import Context
from turnlog.engine.mcp.mcp_exchange import McpExchange
from turnlog.engine.request_identity import KEY, Request
from turnlog.engine.retry_wait import RetryWait
from turnlog.exchange.call import Stage
from turnlog.exchange.events import CallerChecked, Left, Stopped
from turnlog.observe.events import AuthRequired, RefusalReason, RequestRefused, UpstreamFailed
from turnlog.record.attempt import Attempt, blocked
from turnlog.record.deadlines import Deadlines, connect_deadlines, in_time
from turnlog.record.errors import Failure
from turnlog.record.own_answers import JSON, OwnAnswer, amended, call_lines, updated_call_lines
from turnlog.rules.policy import Policy
from turnlog.rules.retry import StopReason
from turnlog.store.base import StoreError, Ticket
from turnlog.transport.http_client import Answer, Content, Upstreams
from turnlog.transport.http_server import AgentGone
from turnlog.transport.message_heads import (
    OutgoingHead,
    Raw,
    answer_lines,
    forwarded,
    sent_request,
)
from turnlog.wire.answer_body import AnswerBody
from turnlog.wire.http.content_digest import UNSIGNED, ContentDigests
from turnlog.wire.http.head import EVENTS, Body, changed_body, fields, lines, notice_headers
from turnlog.wire.http.response_head import ResponseHead
from turnlog.wire.outcome_key import without_outcome
from turnlog.wire.splice import Respelling, with_id

from .agent_side import AgentSide, GuardedAgent
from .relay import Exchange, HeldAnswer, Relay, Withheld

NO_RULES: Final = Policy()
_UNLIMITED: Final = NO_RULES.timeout
"""The time limits of a call without a rule: most calls."""
_UNAUTHENTICATED: Final = 401
_AUTH_ADVICE: Final = (
    "clients refuse a login whose resource is not the URL they know; "
    "put a token for this server into the agent's own Authorization header"
)


Outlived = tuple[OwnAnswer, Sequence[Ticket]]
"""The answer to an agent that timed out, and the tickets to wait for before it is sent."""
UpstreamSender = Upstreams | Commands
"""The sender of requests: to servers over HTTP, or to commands that turnlog runs."""


class Guard(Struct, frozen=True):
    """The task and channels of a call that may outlive its agent."""

    task: asyncio.Task[None]
    """The task that carries the call."""
    agent: GuardedAgent
    told: "asyncio.Future[Outlived | None]"
    """The agent's timeout answer, or `None` at the call's end."""


# One is made for each call, and a struct takes a third of the time of another class.
class HttpCarrier(Struct, eq=False):
    """Carries one exchange out over HTTP (`engine.call_driver.Carrier`). Raises `AgentGone` when the agent
    leaves."""

    context: Context
    _way: UpstreamSender
    _down: AgentSide
    _request: Request
    _exchange: Exchange
    _began: float
    """Time of the request on the loop's clock."""
    _policy: Policy
    guard: Guard | None = None
    """Set if the call may outlive its agent."""
    _out: Relay | None = None
    """The relay of the latest attempt's answer, once there is one."""
    _held: dict[int, tuple[Attempt | None, HeldAnswer]] = {}
    """Withheld answers, by the number of the attempt."""
    _step: Callable[[], Coroutine[None, None, None]] | None = None
    """What the machine wants next of the task that carries the call."""
    _content: Content = b""
    """The body of the attempt to send."""
    _hold: bool = False
    """Whether the answer to that attempt is held until it is judged."""
    _given: int = 0
    """Number of the attempt whose answer goes to the agent, if it is held."""
    _reason: StopReason | None = None
    """Why an expected retry is not made."""
    _changed: Raw | None = None
    """The fields to forward, without Content-Length, where they are not as they came."""
    _notice: asyncio.Task[None] | None = None
    """The task that sends the cancel of the attempt before."""

    # -- as `engine.call_driver.Carrier` ------------------------------------------------------

    @property
    def may_be_gone(self) -> bool:
        """Whether the agent has closed its sending side: it may be gone, or only half-closed."""
        return self._down.has_ended

    @property
    def has_left(self) -> bool:
        """Whether part of the latest answer was already sent."""
        return self._out is not None and self._out.has_left

    @property
    def is_held(self) -> bool:
        """Whether the latest answer can still be withheld from the agent."""
        return self._out is None or self._out.gate is not None

    @property
    def can_answer_timeout(self) -> bool:
        """Whether the agent can be answered with a timeout now."""
        guard = self.guard
        return guard is not None and not guard.told.done() and guard.agent.can_be_replaced

    def check_caller(self) -> None:
        """Check whether the agent is still there, before the call is sent."""
        self._step = self._check

    def send(self, *, hold: bool) -> None:
        """Send the latest attempt; with `hold`, hold its answer until it is judged."""
        self._step, self._hold = self._attempt, hold

    def rest(self, delay: float) -> None:
        """Hold the answer to the latest attempt, and begin another one after `delay` seconds."""
        self._step = partial(self._again, delay)

    def release(self, number: int, reason: StopReason | None) -> None:
        """Send the agent the answer to attempt `number` if it is held; `reason` is why no retry follows."""
        self._given, self._reason = number, reason

    def hold(self, late: Attempt) -> None:
        """Hold the late answer to an attempt in place of the one to it that is held."""
        text = late.message.strip()
        if self._request.server not in self.context.trusted:
            text = without_outcome(text) or text
        text = with_id(text, late.caller_id) or text  # a shared command knows another one
        text = amended(late, text) or text
        self._held[late.ask.number] = late, self._whole(OwnAnswer(200, b"OK", JSON, text))

    def answer_timeout(self, failure: Failure) -> None:
        """Record the timeout and answer the agent with it; the call runs on."""
        assert self.guard is not None  # `can_answer_timeout` was true
        self.guard.agent.drop()
        self.guard.told.set_result(self._exchange.outlived(failure))

    def fail(self, attempt: Attempt, kind: ErrorKind) -> None:
        """Record what is open as failed, unless its answer may still come on another stream."""
        # Over HTTP the calls of a batch share the stream, and fail together.
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

    def on_bug(self, attempt: Attempt) -> None:
        """End the request because of a bug."""
        self.fail(attempt, ErrorKind.OUTCOME_UNKNOWN)
        self.drop(ErrorKind.OUTCOME_UNKNOWN)

    # -- from the first record to the end -----------------------------------------------------

    async def carry(self, content: Content) -> None:
        """Forward the request once it may be sent, and relay its answer; an early end is recorded too."""
        try:
            try:
                if (wait := self._begin(content)) is not None:
                    await wait
            except (StoreError, Failure) as error:
                await self.refuse(error)
            else:
                while (step := self._step) is not None:
                    self._step = None
                    await step()
                if self._held or self._reason is not None:
                    await self._give()
            # Ends what is still open; attempts that have ended are not changed.
            self._exchange.left(ErrorKind.OUTCOME_UNKNOWN)
        except BaseException as error:
            self.end(error)
            raise
        finally:
            self._out = None  # else both would wait for the collector

    def _begin(self, content: Content) -> Coroutine[None, None, None] | None:
        """Return the coroutine to await before the call may be sent; `None` for most calls.

        Both this and the coroutine raise `StoreError`, and `Failure` if the call must not be sent.
        """
        exchange, drivers = self._exchange, self._exchange.drivers
        for driver in drivers:
            driver.carrier = self
        if ask := exchange.blocked:
            raise blocked(ask)
        self._content = content
        server, health = self._request.server, self.context.health
        if exchange.attempt is not None and server in health.watched:
            health.called(server)
        repeatable = self._policy.retry is not None and exchange.repeatable(content)
        if not exchange.is_due and self._policy.concurrency is None:
            self._on_recorded(drivers, repeatable=repeatable)
            return None
        step = self._recorded(drivers, repeatable=repeatable)
        limits = self._policy.timeout
        if limits != _UNLIMITED:
            step = in_time(limits, self._began, self._began, step)
        return step

    async def _recorded(self, drivers: Sequence[CallDriver], *, repeatable: bool) -> None:
        """Wait until the intents are on disk, and for the call's slot."""
        await self._exchange.on_disk()
        self._on_recorded(drivers, repeatable=repeatable)
        driver = self._exchange.driver
        if driver is not None and driver.machine.stage is Stage.QUEUED:
            await driver.slot_granted()

    def _on_recorded(self, drivers: Sequence[CallDriver], *, repeatable: bool) -> None:
        for each in drivers:
            each.on_recorded(is_repeatable=repeatable)
        if self._exchange.driver is None:
            self._step = self._check_several

    async def refuse(self, error: StoreError | Failure) -> None:
        """Answer a call that must not be sent."""
        exchange = self._exchange
        if isinstance(error, StoreError):
            made = exchange.refused()
            event = RequestRefused(
                reason=RefusalReason.STORE,
                http_method=self.context.clean(self._down.asked.method),
                http_status=made.status,
            )
            self.context.log.emit(event)
        else:
            # A timeout on the disk is not followed by another wait for it: nothing was sent.
            if MEANINGS[error.kind].family is not ErrorFamily.TIMEOUT:
                for driver in exchange.drivers:
                    await self.context.recorder.opened(driver.attempt)
            made, tickets = exchange.failed(error)
            if error.kind is ErrorKind.UNVERIFIED_PROVENANCE:
                await self.context.recorder.settle(tickets)
        await self._send_own(made)

    def end(self, error: BaseException) -> None:
        """Record the end of a call that is not carried to its end."""
        by_caller = isinstance(error, AgentGone | asyncio.CancelledError)
        has_left = by_caller and not self.context.stop.is_set()
        for driver in self._exchange.drivers:
            if not driver.is_guarded:
                driver.feed(Left() if has_left else Stopped())
        kind = ErrorKind.CANCELLED_BY_CALLER if has_left else ErrorKind.OUTCOME_UNKNOWN
        self._exchange.left(kind)

    # -- the steps that the machine wants -----------------------------------------------------

    async def _check_several(self) -> None:
        """Prepare a request with several calls, or none; named ones leave only if their agent is there."""
        content = self._exchange.outgoing(self._content)
        if content is not self._content:
            self._content, self._changed = content, tuple(changed_body(self._raw, decoded=True))
        checked = [each for each in self._exchange.drivers if each.machine.stage is Stage.CHECKING]
        if checked:
            await checked[0].caller_checked()  # if it is gone, this task is cancelled
        for each in checked:
            if each.machine.stage is Stage.CHECKING:  # else it was answered on another stream
                each.feed(CallerChecked())
        self._step = self._attempt

    async def _check(self) -> None:
        """Check whether the agent is still there; if not, this task is cancelled or the call ends."""
        driver = self._driver
        await driver.caller_checked()
        if driver.machine.stage is Stage.CHECKING:
            driver.feed(CallerChecked())

    async def _again(self, delay: float) -> None:
        """Wait, and begin the next attempt."""
        driver, content = self._driver, self._content
        assert isinstance(content, bytes)  # a body that is not held is never retried
        wait = RetryWait(driver, self._exchange, self.context, self._began)
        body = await wait.next_attempt(content, delay, self._notice)
        if body is None:
            if driver.machine.stage is Stage.SETTLING:
                late, _ = self._held[driver.machine.given]
                if late is not None and late.outcome is not None:
                    await self.context.recorder.settle([late.outcome])
                driver.on_outcome_settled()
            return
        self._content = body
        # The id in the answer has to be replaced, so the answer should not be encoded.
        plain = [pair for pair in self._raw if pair[0].lower() != b"accept-encoding"]
        self._changed = (*plain, (b"Accept-Encoding", b"identity"))
        driver.on_recorded(is_repeatable=True)

    async def _give(self) -> None:
        """Send the held answer that was chosen for the agent; if the call was cancelled, say so instead."""
        # The last attempt that was answered: a retry that was not sent is not in here.
        last, _ = self._held[max(self._held)] if self._held else (None, None)
        if last is not None and self._reason is not None:
            self.context.recorder.abandoned(last, self._reason)
        if self._reason is StopReason.CANCELLED:
            await self._withdraw()
        elif self._given in self._held:
            answered, held = self._held[self._given]
            if answered is not None and last is not None and answered is not last:
                answered.past = last.so_far
            # Of a late answer it is known only now where its outcome stands.
            if answered is not None and (answered is not last or Flag.LATE in answered.marks):
                held = structs.replace(held, lines=updated_call_lines(held.lines, answered))
            await held.send()

    async def _withdraw(self) -> None:
        """Answer a call that was cancelled before it was sent, or sent again."""
        made, attempt = self._exchange.withdrawn(), self._exchange.attempt
        if made is None:
            return
        if attempt is not None and attempt.waits and attempt.outcome is not None:
            await self.context.recorder.settle([attempt.outcome])
        await self._send_own(made)

    @property
    def _driver(self) -> CallDriver:
        driver = self._exchange.driver
        assert driver is not None  # it asked for what is done
        return driver

    async def _attempt(self) -> None:
        """Make one attempt, and relay or withhold its answer."""
        self._notice = self._out = None
        attempt, circuit = self._exchange.attempt, None
        try:
            if attempt is not None and self._request.server in self.context.health.watched:
                circuit = self.context.health.watch(self._request.server, attempt)
            answer = await self._sent(attempt, self._content)
            if self._request.channel is not None:
                await self._check_accepted(answer)
        except Failure as failure:
            await self._failed(failure)
        else:
            await self._answered(answer, attempt)
        finally:
            if circuit is not None and attempt is not None and attempt.watch is not None:
                circuit(None)
        driver = self._exchange.driver
        if driver is not None and driver.machine.stage is Stage.SETTLING:
            driver.on_outcome_settled()

    def _sent(self, attempt: Attempt | None, content: Content) -> Coroutine[None, None, Answer]:
        """Return the coroutine that sends an attempt, with its time limits set."""
        request, exchange, length = self._request, self._exchange, self._down.length
        progress, driver, target = exchange.progress, exchange.driver, request.route.target
        head = request.forwarded
        if self._changed is not None:
            head = forwarded(self._changed, request.route, head.method)
        if attempt is not None:
            limits = self._policy.timeout
            if limits != _UNLIMITED:
                progress.deadlines = connect_deadlines(limits)
                if progress.deadlines is None:
                    attempt.deadlines = progress.deadlines = Deadlines(limits, self._began)
            if attempt.ask.key_sent:
                head = self._with_key(head, attempt.ask.key_sent)
        if driver is not None and driver.is_guarded:
            progress.on_timeout = driver.on_expired
        if isinstance(self._way, Commands):
            progress.late = exchange.late_reader
        size = length if length >= 0 else None
        return self._way.send(target, head, content, progress, size, self._interim)

    async def _check_accepted(self, answer: Answer) -> None:
        """Raise `Failure` if a POST was accepted whose answer nobody can get any more (2024-11-05)."""
        exchange = self._exchange
        assert isinstance(exchange, McpExchange)  # only MCP has such streams
        try:
            exchange.check_accepted(answer.head)
        except Failure:
            await answer.close()
            raise

    async def _answered(self, answer: Answer, attempt: Attempt | None) -> None:
        """Relay the answer to an attempt, or withhold it if a retry follows."""
        exchange = self._exchange
        try:
            exchange.on_head(answer.head)
            if answer.head.status == _UNAUTHENTICATED:
                self._unauthenticated(answer)
            if attempt is not None:
                if attempt.ask.session.id is None:
                    await self.context.recorder.opened(attempt)
                await self._relay(answer, attempt)
            else:
                await self._unrecorded(answer)
        except Withheld as withheld:
            self._keep(withheld.held)
        finally:
            await answer.close()

    async def _unrecorded(self, answer: Answer) -> None:
        """Relay an answer to what is no call."""
        started = self.context.clock.monotonic()
        try:
            await self._relay(answer, None)
        finally:
            self._exchange.went_by(self.context.clock.monotonic() - started)

    def _with_key(self, head: OutgoingHead, key: str) -> OutgoingHead:
        """Return a head with an `Idempotency-Key`, unless the agent sends that field itself."""
        if fields(self._down.asked.head.raw, KEY):
            return head
        line = lines([(b"Idempotency-Key", key.encode())])
        return OutgoingHead(head.method, head.lines + line, head.text + line)

    def _keep(self, held: HeldAnswer) -> None:
        self._held[self._driver.machine.number] = self._exchange.attempt, held

    def _interim(self, status: int, reason: bytes, raw: Raw) -> None:
        self._down.interim(status, reason, self._lines_of(raw))

    async def _failed(self, failure: Failure) -> None:
        if failure.kind is not ErrorKind.CIRCUIT_OPEN:
            self._note_failure(failure)
        for driver in self._exchange.drivers:
            await self.context.recorder.opened(driver.attempt)
        made, tickets = self._exchange.failed(failure)
        await self.context.recorder.settle(tickets)
        if self._policy.retry is None:
            await self._send_own(made)
        else:
            self._keep(self._whole(made))

    def _note_failure(self, failure: Failure) -> None:
        self.context.log.emit(
            UpstreamFailed(
                server=self._request.server,
                address=self._request.route.target.host,
                port=self._request.route.target.port,
                error=MEANINGS[failure.kind].family,
                kind=failure.kind,
                phase=failure.phase,
            )
        )

    def _relay(self, answer: Answer, attempt: Attempt | None) -> Coroutine[None, None, None]:
        respelling = None
        if (attempt is None or attempt.wire_id) and (spellings := self._exchange.respelling()):
            respelling = Respelling(spellings)
        context, head = self.context, answer.head
        trusted = self._request.server in context.trusted
        is_checked = attempt is not None and (head.is_sealed or head.names_digests)
        if head.speaks_for_turnlog and not trusted:
            self._exchange.progress.mark(Flag.FORGED_OUTCOME)
        self._out = Relay(
            self._down,
            self._is_last if self._hold else None,
            respelling,
            answer,
            head,
            AnswerBody(head, trusted),
            self._exchange,
            context.recorder,
            self._exchange.keep,
            self._lines_of(head.raw) if head.has_references or head.sets_cookies else head.lines,
            self._lines_of,
            answer.length,
            self._digests(head) if is_checked else None,
        )
        if self._exchange.listens and isinstance(self._exchange, McpExchange):
            self._exchange.on_relayed(self._out.say)
        return self._out.run()

    def _digests(self, head: ResponseHead) -> ContentDigests | None:
        """Return the checks of its content that an answer's head and the configuration allow."""
        request, signed = self._request, UNSIGNED
        verifier = self.context.http_signatures.get(request.server)
        # An event stream is recorded before its end, and no signature of its head covers it.
        if verifier is not None and head.media != EVENTS:
            sent = sent_request(request.forwarded, request.route)
            has_content = head.body is not Body.NONE
            try:
                signed = verifier.check(head.status, head.raw, sent, has_content=has_content)
            except Exception as error:  # noqa: BLE001 - it is logged, and the answer goes on unchecked
                self.context.recorder.faulted(error)
        if signed is UNSIGNED and not head.names_digests:
            return None
        return ContentDigests(head, signed)

    def _unauthenticated(self, answer: Answer) -> None:
        """Log advice if the server asks for a login that the agent will refuse behind a proxy."""
        asked = fields(answer.head.raw, b"www-authenticate")
        if any(b"resource_metadata" in value for value in asked):
            self.context.log.emit(
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
        """Return whether no retry follows the attempt that was judged."""
        return self._step is None

    async def _send_own(self, made: OwnAnswer) -> None:
        """Send an answer that turnlog made."""
        await self._whole(made).send()

    def _whole(self, made: OwnAnswer) -> HeldAnswer:
        """Return turnlog's own answer, with the fields that describe the call."""
        attempt = self._exchange.attempt
        head = lines(made.headers) + call_lines(attempt, whole=True)
        body = None if self._down.asked.method == "HEAD" else made.body
        return HeldAnswer(self._down, made.status, made.reason, head, body)
