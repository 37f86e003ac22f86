"""Writes calls to the store and to the log: one intent and one outcome for each attempt.

`end` never awaits, so that a handler that is being cancelled can still record. To wait for the
disk, await the tickets that `begin` and `end` leave in the attempt.
"""

import asyncio
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Final

from msgspec import Raw, structs

from turnlog.core import ids
from turnlog.core.canon import canonical
from turnlog.core.classify import Ending
from turnlog.core.commit import Commit, CommitBody, Facts
from turnlog.core.kinds import (
    Durability,
    Effect,
    ErrorKind,
    Flag,
    NoteKind,
    Status,
    WhenFull,
)
from turnlog.core.lifecycle import Suspension, suspension_of
from turnlog.core.turns import LoopDetector
from turnlog.exchange.outcome import AnswerFacts
from turnlog.observe.clock import Clock
from turnlog.observe.events import (
    CallBug,
    CallEnded,
    CallRetried,
    CallStarted,
    Log,
    ProxyFaulted,
    RecorderFailed,
    RetryAbandoned,
    SessionOpened,
    StoreFailed,
    StoreFilled,
)
from turnlog.rules.model import TaintAction
from turnlog.rules.retry import StopReason
from turnlog.store.base import (
    Conflict,
    Draft,
    SessionRef,
    SessionSuspended,
    StoreError,
    StoreFull,
    Ticket,
)
from turnlog.store.lmdb import LmdbStore

from .attempt import Ask, Attempt, refusal_of
from .drafts import Drafter, retell
from .errors import Failure
from .lineage import LineageTracker
from .session_memory import ReservedPlace
from .unread import Unread

OFF_LOOP: Final = 64 * 1024
"""Bytes: larger content is redacted and summed up in a thread."""
_TAINT_FLAGS: Final = {
    TaintAction.MARK: Flag.TAINT_MARKED,
    TaintAction.ENDORSE: Flag.TAINT_ENDORSED,
}


class PreparingTicket:
    """The ticket of an outcome that is still being prepared in another thread."""

    def __init__(self, task: "asyncio.Task[Ticket | None]") -> None:
        self._task = task

    @property
    def placed(self) -> Commit | None:
        """The commit once it is on disk."""
        ticket = self._task.result() if self._task.done() else None
        return ticket.placed if ticket is not None else None

    async def done(self) -> Commit:
        """Wait until the outcome is on disk. Raises `StoreError`."""
        ticket = await asyncio.shield(self._task)
        if ticket is None:
            raise StoreError("the outcome was not written")
        return await ticket.done()


class Recorder:
    """Writes attempts to the store and to the event log. Never raises on content."""

    def __init__(
        self,
        store: LmdbStore,
        drafter: Drafter,
        log: Log,
        clock: Clock,
        work: asyncio.TaskGroup,
        *,
        durability: Durability,
        when_full: WhenFull,
        lineage: LineageTracker | None = None,
    ) -> None:
        """Without `lineage` it is not recorded where inputs come from."""
        self._store = store
        self._lineage = lineage
        self._drafter = drafter
        self._log = log
        self.clock = clock
        self._work = work
        self._ids = ids.Ids(clock.entropy)
        self._unwaited = _unwaited(durability)
        self._says_started = log.wants(CallStarted)
        self._tells_content = log.tells_content
        self._when_full = when_full
        self._trouble = ""
        """What the log says of the store since a call could not be recorded; empty once one can be."""
        self._loops = LoopDetector()
        self._unread = Unread()

    def new_call(self) -> bytes:
        """Return the id of a new call."""
        return self._ids.new(self.clock.wall())

    def new_request_id(self) -> bytes:
        """Return a new JSON-RPC id for a retry, as JSON; it cannot be guessed."""
        return b'"turnlog-%b"' % ids.to_text(self.new_call()).encode()

    async def begin(self, ask: Ask) -> Attempt:
        """Queue the intent of an attempt. Raises `StoreError` when the call has to be refused."""
        if len(ask.arguments) > OFF_LOOP:
            draft = await asyncio.to_thread(self._drafter.intent, ask)
        else:
            draft = self._drafter.intent(ask)
        waits = ask.effect not in self._unwaited
        is_due = waits or ask.seen is not None
        attempt = Attempt(ask, draft.facts, draft.facts.clock, waits, is_due, past=ask.past)
        if self._tells_content and draft.body is not None:
            attempt.preview = draft.body.preview
        if is_due:
            # A further leg or attempt goes on with a call that is in flight.
            is_first = ask.is_call and not ask.leg and ask.number == 1
            draft.awaits_session = is_first and not ask.is_blocked
        if self._lineage is not None:
            self._lineage.on_begun(attempt, draft.blob)
        try:
            if ask.session.id is None:
                # The store assigns a session's id, and the answer's head names it.
                opened = partial(self._opened, ask.session)
                attempt.intent = self._store.submit(draft, wait=True, on_written=opened)
            else:
                attempt.intent = self._store.submit(draft, wait=is_due)
        except (StoreError, ValueError) as error:
            self._unrecorded(ask, error)
        if self._says_started:
            self._log.emit(_started(ask))
        return attempt

    async def on_disk(self, attempt: Attempt) -> None:
        """Wait until the intent is durable, if it has to be.

        Raises `StoreError`, also `Conflict`, and `Failure` if the session lets no calls pass any more.
        """
        if attempt.is_due and attempt.intent is not None:
            try:
                await attempt.intent.done()
                self._trouble = ""
            except SessionSuspended as refused:
                raise self._not_sent(attempt, refused.suspension) from None
            except StoreError as error:
                attempt.intent = None
                self._unrecorded(attempt.ask, error)

    def _not_sent(self, attempt: Attempt, suspension: Suspension) -> Failure:
        """Return why a call is not sent whose session was suspended while it was recorded."""
        if suspension.is_moved:
            # A session that was packed for another store can come back only if nothing is added to it.
            attempt.intent = None
            reason = "a refused call of a session that was moved is not recorded"
            self._log.emit(RecorderFailed(reason=reason, flag=Flag.UNRECORDED))
        elif isinstance(attempt.intent, Draft):
            attempt.intent.awaits_session = False  # it is written with its outcome
        failure = refusal_of(suspension)
        if suspension.is_final and not suspension.is_moved:
            failure.is_final = not self._goes_on_elsewhere(attempt.ask.session)
        return failure

    def _goes_on_elsewhere(self, closed: SessionRef) -> bool:
        """Return whether the next call of a closed session's caller belongs to another session."""
        if not closed.aliases:
            return True
        try:
            with self._store.view() as view:
                named = view.session_of(closed)
                row = view.session(named) if named is not None else None
        except StoreError:
            return False
        # After a merge its names lead to the other one.
        return row is not None and suspension_of(row.control, "") is None

    def unsent(
        self,
        ask: Ask,
        ending: Ending,
        reply: AnswerFacts,
        source: Ticket | None,
        *,
        waited: float = 0.0,
        delta: tuple[Raw, ...] = (),
        is_durable: bool = False,
        is_elsewhere: bool = False,
    ) -> Attempt:
        """Queue intent and outcome of a call that is not sent.

        `source` is the commit that it is answered from, `waited` the seconds that it waited for that, `delta`
        what the earlier call changed where only this one counts; with `is_durable` the answer leaves once both are
        on disk, whatever the effect. With `is_elsewhere` its answer is that of a call of another session.
        Never raises: an error of the store is logged, and the caller gets its answer.
        """
        asked = structs.replace(ask, effect_link=b"")
        draft = self._drafter.intent(asked, waited=round(waited * 1e9))
        draft.intent = source
        waits = is_durable or self.waits(ask)
        attempt = Attempt(ask, draft.facts, draft.facts.clock, waits, past=ask.past)
        attempt.ended, attempt.ending = True, ending
        attempt.retry_after = reply.retry_after
        if ending.error:
            self._notice_failure(attempt, ending, reply)
        if self._lineage is not None:
            self._lineage.on_begun(attempt, draft.blob)
        self._complete(attempt, reply)
        outcome = self._drafter.outcome(attempt, ending, reply)
        if ending.status is Status.REPLAYED:
            retell(outcome, source, delta)
        if self._tells_content and draft.body is not None:
            attempt.preview = draft.body.preview
        opened = partial(self._opened, ask.session) if ask.session.id is None else None
        try:
            # Queued one after the other, they are written in one transaction.
            attempt.intent = outcome.intent = self._store.submit(
                draft, wait=attempt.waits or opened is not None, on_written=opened
            )
        except (StoreError, ValueError) as error:
            self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))
        attempt.outcome = self._submit_outcome(attempt, outcome)
        if is_elsewhere and source is not None and self._lineage is not None:
            place = self._lineage.reserve(attempt)
            self._work.create_task(self._lineage.on_given(attempt, source, place))
        return attempt

    def note(
        self,
        kind: NoteKind,
        session: SessionRef,
        on: Facts,
        follows: Ticket | None,
        links: tuple[bytes, ...] = (),
    ) -> None:
        """Queue a note on a commit of a call, `follows`, found by `links`; it is not awaited."""
        # `abandoned` is written at once, because a duplicate may reach another process next. `delivered`
        # is written only when all input received before has been read: it may hold the cancel, and if
        # this process ended in between, others would count the answer as delivered.
        if kind is NoteKind.DELIVERED:
            note = partial(self._note, kind, session, on, follows, links)
            self._unread.after(on.call, note)
            return
        if kind is NoteKind.ABANDONED:
            self._unread.discard(on.call)
        self._note(kind, session, on, follows, links)

    def flush(self) -> None:
        """Write the notes that wait for unread input: no more will be read."""
        self._unread.flush()

    def _note(
        self,
        kind: NoteKind,
        session: SessionRef,
        on: Facts,
        follows: Ticket | None,
        links: tuple[bytes, ...],
    ) -> None:
        try:
            facts, body = self._drafter.note(kind, on), CommitBody(links=links) if links else None
            draft = Draft(session=session, facts=facts, body=body, intent=follows)
            if kind is NoteKind.DELIVERED:
                self._store.submit(draft, wait=False)
            else:
                self._store.submit(draft, wait=True, on_written=partial(self._noted, draft))
        except (StoreError, ValueError) as error:
            self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))

    def _noted(self, note: Draft, written: bool) -> None:
        # A note on an intent that was refused, as another process has made the call, goes with it.
        if not written and note.refused is None:
            reason = "a note was not written"
            self._log.emit(RecorderFailed(reason=reason, flag=Flag.UNRECORDED))

    def end(self, attempt: Attempt, ending: Ending, reply: AnswerFacts) -> Ticket | None:
        """Queue the outcome of an attempt, once; return the ticket to wait for, if any."""
        if attempt.ended:
            return None
        attempt.ended, attempt.ending, attempt.retry_after = True, ending, reply.retry_after
        if ending.error:
            self._notice_failure(attempt, ending, reply)
        if reply.checks.failures or attempt.ask.server_status.changes:
            attempt.marks.add(Flag.UNVERIFIED)
        attempt.tell(ending)
        if attempt.driver is not None:
            decided = attempt.driver.on_judged(attempt, is_own_answer=bool(reply.said))
            attempt.reason = decided.reason
            if decided.is_late:
                attempt.marks.add(Flag.LATE)
            if reply.said and not decided.is_told:
                reply = structs.replace(reply, said="")  # the caller gets another answer
        self._complete(attempt, reply)
        if len(reply.content) > OFF_LOOP:
            place = self._lineage.reserve(attempt) if self._lineage is not None else None
            preparing = self._end_off_loop(attempt, ending, reply, place)
            ticket: Ticket | None = PreparingTicket(self._work.create_task(preparing))
        else:
            ticket = self._submit_outcome(attempt, self._drafter.outcome(attempt, ending, reply))
        attempt.outcome = ticket
        return ticket if attempt.waits else None

    def _complete(self, attempt: Attempt, reply: AnswerFacts) -> None:
        """Set what the outcome says beside the ending."""
        attempt.flags = _flags(attempt, reply)
        if self._lineage is not None:
            self._lineage.settle(attempt)

    def _notice_failure(self, attempt: Attempt, ending: Ending, reply: AnswerFacts) -> None:
        """Mark a failure with the flags that it has for itself: `unverified`, and `loop` if the same call has
        failed the same way too often."""
        ask = attempt.ask
        if ending.kind == ErrorKind.UNVERIFIED_PROVENANCE:
            attempt.marks.add(Flag.UNVERIFIED)
        if Flag.REDIRECTED in reply.flags:
            return  # following the redirect continues the same call
        if not (ask.arguments and ask.complete and ask.says_all):
            return  # without the whole input two calls cannot be compared
        large = len(ask.arguments) > OFF_LOOP
        asked = ask.arguments if large else (ask.canonical or canonical(ask.arguments))[1]
        which = (ask.session, ask.turn_label, ask.server, ask.tool, ask.method)
        placed = attempt.intent.placed if attempt.intent is not None else None
        turn = placed.link.turn if placed is not None else 0
        if self._loops.add_failure(
            (*which, sha256(asked).digest(), ending.kind), ask.call, turn=turn
        ):
            attempt.marks.add(Flag.LOOP)

    async def _end_off_loop(
        self, attempt: Attempt, ending: Ending, reply: AnswerFacts, place: ReservedPlace | None
    ) -> Ticket | None:
        """Prepare an outcome with large content in a thread, so that other calls go on meanwhile.

        `place` is that of its output among what is to be indexed.
        """
        draft = await asyncio.to_thread(self._drafter.outcome, attempt, ending, reply)
        return self._submit_outcome(attempt, draft, place)

    def _submit_outcome(
        self, attempt: Attempt, draft: Draft, place: ReservedPlace | None = None
    ) -> Ticket | None:
        if self._lineage is not None:
            self._lineage.on_ended(attempt, draft, place)
        # Until its intent is on disk a new session has no id, which the log names.
        waits = attempt.waits or attempt.ask.session.id is None
        on_written = partial(self._on_written, attempt, draft) if waits else None
        ticket = None
        if draft.intent is not None:
            try:
                ticket = self._store.submit(draft, wait=attempt.waits, on_written=on_written)
            except (StoreError, ValueError) as error:
                self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))
        if ticket is None or on_written is None:
            self._on_written(attempt, draft, ticket is not None)
        return ticket

    def _on_written(self, attempt: Attempt, outcome: Draft, written: bool) -> None:
        """Log the end of an attempt, and release its answer if that waited for the disk."""
        if written:
            self._trouble = ""
        if attempt.waits and attempt.driver is not None:
            attempt.driver.on_outcome_settled()
        content = outcome.body if self._tells_content else None
        self._log.emit(_ended(attempt, outcome.facts, content, written=written))

    def _opened(self, ref: SessionRef, written: bool) -> None:
        """Log a new session once, even if it began with several calls at once."""
        if not written or ref.is_logged:
            return
        ref.is_logged = True
        self._log.emit(
            SessionOpened(
                session=ids.to_text(ref.id or b""),
                rung=ref.rung,
                client=ref.metadata.get("client", ""),
                confidence=ref.metadata.get("confidence", ""),
            )
        )

    def retried(self, attempt: Attempt, delay: float) -> None:
        """Log that another attempt follows, after `delay` seconds."""
        if (ending := attempt.ending) is None:
            return
        ask = attempt.ask
        self._log.emit(
            CallRetried(
                session=ids.to_text(ask.session.id or b""),
                call=ids.to_text(ask.call),
                attempt=ask.number,
                server=ask.server,
                tool=ask.tool,
                kind=ending.kind,
                delay_ns=round(delay * 1e9),
            )
        )

    def abandoned(self, attempt: Attempt, reason: StopReason) -> None:
        """Log that an expected retry is not made."""
        ask = attempt.ask
        self._log.emit(
            RetryAbandoned(
                session=ids.to_text(ask.session.id or b""),
                call=ids.to_text(ask.call),
                attempt=ask.number,
                server=ask.server,
                tool=ask.tool,
                reason=reason,
            )
        )

    async def opened(self, attempt: Attempt | None) -> None:
        """Wait for the id of an attempt's session if it is new, because the answer names it."""
        if attempt is not None and attempt.ask.session.id is None and attempt.intent is not None:
            with suppress(StoreError):
                await attempt.intent.done()

    async def settle(self, tickets: Sequence[Ticket]) -> None:
        """Wait until outcomes are durable; errors of the store are logged only."""
        for ticket in tickets:
            try:
                await ticket.done()
            except StoreError as error:
                self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))

    def on_bug(self, ask: Ask, stage: str, happened: str) -> None:
        """Log an event that is not legal at the stage of the call."""
        self._log.emit(
            CallBug(
                session=ids.to_text(ask.session.id or b""),
                call=ids.to_text(ask.call),
                server=ask.server,
                tool=ask.tool,
                stage=stage,
                happened=happened,
            )
        )

    def faulted(self, error: Exception) -> None:
        """Log an unexpected exception: its type and place, never its text, which may hold content."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        self._log.emit(
            ProxyFaulted(
                exception=type(error).__qualname__, where=frame.name, line=frame.lineno or 0
            )
        )

    def reopen(self, attempt: Attempt) -> None:
        """Allow another outcome for an attempt that has one, such as that of a task."""
        attempt.n, attempt.ended = attempt.n + 1, False

    def taken_up(self, ask: Ask, intent: Ticket, *, n: int) -> Attempt:
        """Return an attempt that an earlier process made, whose last outcome has number `n`."""
        facts = self._drafter.facts(ask, ask.flags)
        waits = self.waits(ask)
        attempt = Attempt(ask, facts, facts.clock, waits, past=ask.past)
        attempt.intent, attempt.n, attempt.ended = intent, n, True
        return attempt

    def waits(self, ask: Ask) -> bool:
        """Return whether intent and outcome of a call must be on disk before the call, and its answer, leave."""
        return ask.effect not in self._unwaited

    def _unrecorded(self, ask: Ask, error: StoreError | ValueError) -> None:
        """Log that a request cannot be recorded; raise `StoreError` if that refuses it (tool calls only)."""
        if isinstance(error, Conflict):
            raise error
        if isinstance(error, ValueError):  # it cannot be stored
            error = StoreError(str(error))
        # Logged once, however many calls are refused for the same reason.
        is_full = isinstance(error, StoreFull)
        trouble = "full" if is_full else str(error)
        if trouble != self._trouble:
            self._trouble = trouble
            self._log.emit(self._filled() if is_full else StoreFailed(reason=trouble))
        if self._when_full is WhenFull.REFUSE_WRITES and ask.is_call:
            raise error
        self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))

    def _filled(self) -> StoreFilled:
        with self._store.view() as view:
            usage = view.usage()
        return StoreFilled(
            used=usage.log_bytes + usage.blob_bytes + usage.state_bytes,
            limit=usage.limit,
            disk_free=usage.disk_free,
            when_full=self._when_full,
        )


def _started(ask: Ask) -> CallStarted:
    """Return the log event for an attempt that begins."""
    return CallStarted(
        session=ids.to_text(ask.session.id or b""),
        call=ids.to_text(ask.call),
        leg=ask.leg,
        attempt=ask.number,
        server=ask.server,
        tool=ask.tool,
        method=ask.method if ask.is_mcp else "",
        http_method="" if ask.is_mcp else ask.method,
        protocol=ask.protocol if ask.is_mcp else "",
        effect=ask.effect,
        bytes_in=ask.size,
        flags=ask.flags,
        trace=ask.trace,
    )


def _ended(
    attempt: Attempt, facts: Facts, content: CommitBody | None, *, written: bool
) -> CallEnded:
    """Return the log event for an attempt that ended, with `content` if the log shows content."""
    ask = attempt.ask
    event = CallEnded(
        session=ids.to_text(ask.session.id or b""),
        call=ids.to_text(ask.call),
        server=ask.server,
        tool=ask.tool,
        method=ask.method,
        protocol=ask.protocol,
        status=facts.status,
        executed=facts.executed,
        effect=facts.effect,
        phase=facts.phase,
        http_status=facts.http_status,
        duration_ns=facts.duration,
        bytes_in=facts.bytes_in,
        bytes_out=facts.bytes_out,
        flags=facts.flags,
    )
    # Other fields are set below: with more than 15 keywords Python builds a dict for each call.
    if attempt.facts.flags or not written:
        # As in the call's row: flags of the intent count too.
        flags = (*dict.fromkeys((*attempt.facts.flags, *facts.flags)),)
        event = structs.replace(event, flags=flags if written else (*flags, Flag.UNRECORDED))
    if content is not None:
        said = content.summary
        event = structs.replace(event, input_summary=attempt.preview, output_summary=said)
    if not ask.is_mcp:
        version = ask.protocol.partition("/")[2]
        event = structs.replace(event, method="", http_method=ask.method)
        event = structs.replace(event, protocol="", http_version=version)
    placed = attempt.intent.placed if attempt.intent is not None else None
    seq, turn, step = 0, 0, 0
    if placed is not None:
        link = placed.link
        seq, turn, step = link.seq, link.turn, link.step
    event = structs.replace(event, seq=seq, turn=turn, step=step, provenance=facts.provenance)
    if ask.number > 1 or ask.leg:
        event = structs.replace(event, attempt=ask.number, leg=ask.leg)
    if facts.trace:
        event = structs.replace(event, trace=facts.trace)
    if facts.error or attempt.reason or facts.code is not None:
        event = structs.replace(
            event,
            error=facts.error,
            kind=facts.error_kind,
            retry=facts.retry,
            reason=attempt.reason,
            code=facts.code,
        )
    return event


def _flags(attempt: Attempt, reply: AnswerFacts) -> tuple[Flag, ...]:
    ask, flags = attempt.ask, attempt.ask.flags
    if ask.policy.taint is not None and reply.content:
        attempt.marks.add(_TAINT_FLAGS[ask.policy.taint])
    if not (attempt.marks or reply.flags):
        return flags
    return tuple(dict.fromkeys((*flags, *sorted(attempt.marks), *reply.flags)))


def _unwaited(durability: Durability) -> frozenset[Effect]:
    """Return the effects whose calls need not wait for the disk."""
    match durability:
        case Durability.STRICT:
            return frozenset()
        case Durability.RELAXED:
            return frozenset(Effect)
        case Durability.BALANCED:
            return frozenset({Effect.READ})
