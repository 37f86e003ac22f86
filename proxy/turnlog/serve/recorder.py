"""From a call on the wire to commits in the store: one intent, one outcome, each attempt.

Nothing here waits, so that a handler that is being cancelled can still record. Whoever must
wait for the disk awaits the ticket that `begin` and `end` leave behind.
"""

from hashlib import sha256
from typing import Final

from msgspec import structs

from turnlog.core import ids
from turnlog.core.canon import input_hash
from turnlog.core.classify import Ending
from turnlog.core.commit import Body, Commit, Facts
from turnlog.core.kinds import (
    CommitKind,
    Durability,
    Effect,
    Flag,
    Status,
    WhenFull,
)
from turnlog.core.redact import Redactor
from turnlog.core.summary import SUMMARY_BYTES, preview, summarize
from turnlog.observe.events import (
    CallEnded,
    CallStarted,
    Log,
    RecorderFailed,
    SessionOpened,
    StoreFilled,
)
from turnlog.store.base import Blob, Draft, SessionRef, Store, StoreError, StoreFull, Ticket

from .attempt import Ask, Attempt, Reply
from .clock import Clock

_DETAIL_CHARS: Final = 1024
_PARKED_LIFE: Final = 15 * 60 * 1_000_000_000
"""ns: how long a leg waits for more input before it counts as unknown (semantics, section 1)."""


class Recorder:
    """Writes attempts to the store and to the event log. Never raises on content."""

    def __init__(
        self,
        store: Store,
        redactor: Redactor,
        log: Log,
        clock: Clock,
        *,
        durability: Durability,
        when_full: WhenFull,
        record_limit: int,
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._log = log
        self._clock = clock
        self._durability = durability
        self._when_full = when_full
        self._record_limit = record_limit
        self._full = False
        """Whether `store.full` was said and is still true."""
        self._opening: set[SessionRef] = set()
        self._hash_key = store.keyed(b"hashes of redacted content")

    def new_call(self) -> bytes:
        """Return the id of a new call."""
        return ids.uuid7(self._clock.wall(), self._clock.entropy(10))

    def begin(self, ask: Ask) -> Attempt:
        """Queue the intent of an attempt. Raises `StoreError` when the call has to be refused."""
        draft = self._intent(ask)
        attempt = self._attempt(ask, draft.facts)
        try:
            attempt.intent = self._store.submit(draft, wait=attempt.waits)
            if ask.session.id is None:
                self._opening.add(ask.session)
            self._full = False
        except StoreError as error:
            self._unrecorded(error)
        if self._log.wants(CallStarted):
            self._log.emit(_started(ask))
        return attempt

    async def on_disk(self, attempt: Attempt) -> None:
        """Wait until the intent is durable, where it has to be. Raises `StoreError`."""
        if attempt.waits and attempt.intent is not None:
            try:
                await attempt.intent.done()
            except StoreError as error:
                attempt.intent = None
                self._unrecorded(error)

    def end(self, attempt: Attempt, ending: Ending, reply: Reply) -> Ticket | None:
        """Queue the outcome of an attempt, once; return what must be waited for, if anything."""
        if attempt.ended:
            return None
        attempt.ended = True
        draft = self._outcome(attempt, ending, reply)
        ticket = self._submit_outcome(draft, wait=attempt.waits)
        if self._opening:
            self._announce()
        self._log.emit(_ended(attempt, draft.facts, unrecorded=ticket is None))
        return ticket if attempt.waits else None

    def _announce(self) -> None:
        """Log the sessions that have got their id from the store since."""
        for ref in [ref for ref in self._opening if ref.id is not None]:
            self._opening.discard(ref)
            self._log.emit(
                SessionOpened(
                    session=ids.to_text(ref.id or b""),
                    rung=ref.rung,
                    client=ref.metadata.get("client", ""),
                    confidence=ref.metadata.get("confidence", ""),
                )
            )

    async def settle(self, ticket: Ticket) -> None:
        """Wait until an outcome is durable. A store that fails is logged, the answer goes on."""
        try:
            await ticket.done()
        except StoreError as error:
            self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))

    def reopen(self, attempt: Attempt) -> None:
        """Let another outcome follow: that of a task that has ended."""
        attempt.n += 1
        attempt.ended = False

    def taken_up(self, ask: Ask, intent: Ticket, *, n: int) -> Attempt:
        """Return an attempt of an earlier process, whose last outcome so far has number `n`."""
        facts = self._facts(ask, ask.flags)
        attempt = self._attempt(ask, facts)
        attempt.intent = intent
        attempt.n = n
        attempt.ended = True
        return attempt

    def _attempt(self, ask: Ask, facts: Facts) -> Attempt:
        return Attempt(ask, facts, self._clock.monotonic(), waits=self._waits(ask.effect))

    def _waits(self, effect: Effect) -> bool:
        match self._durability:
            case Durability.STRICT:
                return True
            case Durability.RELAXED:
                return False
            case Durability.BALANCED:
                return effect is not Effect.READ

    def _unrecorded(self, error: StoreError) -> None:
        """Log that a call cannot be recorded; raise `error` where it has to be refused."""
        if isinstance(error, StoreFull) and not self._full:
            self._full = True
            self._log.emit(self._filled())
        if self._when_full is WhenFull.REFUSE_WRITES:
            raise error
        self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))

    def _filled(self) -> StoreFilled:
        with self._store.view() as view:
            usage = view.usage()
        return StoreFilled(
            used=usage.log_bytes + usage.blob_bytes,
            limit=usage.limit,
            disk_free=usage.disk_free,
            when_full=self._when_full,
        )

    def _submit_outcome(self, draft: Draft, *, wait: bool) -> Ticket | None:
        if draft.intent is None:
            return None
        try:
            return self._store.submit(draft, wait=wait)
        except StoreError as error:
            self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))
            return None

    def _intent(self, ask: Ask) -> Draft:
        seen = self._redactor.json(ask.arguments, complete=ask.complete)
        blob = self._blob(seen.data, touched=seen.touched, complete=ask.complete)
        key = self._hash_key if seen.touched else None
        body = Body(
            input_hash=input_hash(ask.arguments, key=key) if ask.complete else None,
            preview=preview(blob.data),
        )
        facts = self._facts(ask, _marked(ask.flags, seen.touched, blob.cut))
        return Draft(session=ask.session, facts=facts, body=body, input_blob=blob)

    def _facts(self, ask: Ask, flags: tuple[Flag, ...]) -> Facts:
        return Facts(
            kind=CommitKind.INTENT,
            at=self._clock.wall(),
            clock=self._clock.monotonic(),
            turn_label=ask.turn_label,
            turn_source=ask.turn_source,
            call=ask.call,
            leg=ask.leg,
            server=ask.server,
            tool=ask.tool,
            method=ask.method,
            definition=ask.definition,
            effect=ask.effect,
            bytes_in=ask.size,
            flags=flags,
            trace=ask.trace,
            protocol=ask.protocol,
        )

    def _outcome(self, attempt: Attempt, ending: Ending, reply: Reply) -> Draft:
        seen = self._redactor.json(reply.content, complete=reply.complete)
        blob = self._blob(seen.data, touched=seen.touched, complete=reply.complete)
        detail, detail_touched = self._text(reply.detail[:_DETAIL_CHARS])
        now, clock = self._clock.wall(), self._clock.monotonic()
        facts = structs.replace(
            attempt.facts,
            kind=CommitKind.OUTCOME,
            at=now,
            clock=clock,
            n=attempt.n,
            phase=ending.phase,
            executed=ending.executed,
            status=ending.status,
            error=ending.error,
            error_kind=ending.kind,
            retry=ending.retry,
            duration=clock - attempt.started,
            bytes_out=reply.size,
            flags=_marked(
                (*attempt.ask.flags, *sorted(attempt.marks), *reply.flags),
                seen.touched or detail_touched,
                blob.cut,
            ),
            http_status=reply.http_status,
            code=reply.code,
            expires=_expiry(now, ending.status, reply.ttl),
        )
        body = Body(
            output_hash=self._output_hash(reply, keyed=seen.touched) if reply.size else None,
            summary=_summary(reply, blob.data, detail),
            detail=detail,
            links=reply.links,
            null_result=reply.null_result,
        )
        return Draft(
            session=attempt.ask.session,
            facts=facts,
            body=body,
            intent=attempt.intent,
            output_blob=blob if blob.data else None,
        )

    def _text(self, text: str) -> tuple[str, bool]:
        return self._redactor.text(text) if text else (text, False)

    def _blob(self, data: bytes, *, touched: bool, complete: bool) -> Blob:
        kept = data[: self._record_limit]
        return Blob(kept, redacted=touched, cut=not complete or len(kept) < len(data))

    def _output_hash(self, reply: Reply, *, keyed: bool) -> str:
        digest = reply.digest or sha256(reply.content).digest()
        if keyed or not reply.complete:
            return "hmac-sha256:" + self._store.keyed(digest).hex()
        return "sha256:" + digest.hex()


def _summary(reply: Reply, content: bytes, detail: str) -> str:
    """Return what came back in one line; where nothing did, why."""
    if detail and not content:
        return preview(detail.encode("utf-8", "replace"), SUMMARY_BYTES)
    return summarize(content, media_type=reply.media_type, size=reply.size, is_mcp=reply.is_mcp)


def _marked(flags: tuple[Flag, ...], redacted: bool, cut: bool) -> tuple[Flag, ...]:
    if redacted:
        flags = (*flags, Flag.REDACTED)
    return (*flags, Flag.TRUNCATED_RECORD) if cut else flags


def _expiry(now: int, status: Status, ttl: int | None) -> int:
    if not status.parked or (ttl is not None and ttl < 0):
        return 0
    return now + (_PARKED_LIFE if ttl is None else ttl)


def _started(ask: Ask) -> CallStarted:
    session = ask.session.id
    return CallStarted(
        session=ids.to_text(session) if session is not None else "",
        call=ids.to_text(ask.call),
        leg=ask.leg,
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


def _ended(attempt: Attempt, facts: Facts, *, unrecorded: bool) -> CallEnded:
    ask = attempt.ask
    placed: Commit | None = attempt.intent.placed if attempt.intent is not None else None
    session = ask.session.id
    return CallEnded(
        session=ids.to_text(session) if session is not None else "",
        call=ids.to_text(ask.call),
        leg=ask.leg,
        turn=placed.link.turn if placed is not None else 0,
        step=placed.link.step if placed is not None else 0,
        server=ask.server,
        tool=ask.tool,
        method=ask.method if ask.is_mcp else "",
        http_method="" if ask.is_mcp else ask.method,
        protocol=ask.protocol if ask.is_mcp else "",
        http_version="" if ask.is_mcp else ask.protocol.partition("/")[2],
        status=facts.status,
        error=facts.error,
        kind=facts.error_kind,
        retry=facts.retry,
        executed=facts.executed,
        effect=facts.effect,
        phase=facts.phase,
        http_status=facts.http_status,
        code=facts.code,
        duration_ns=facts.duration,
        bytes_in=facts.bytes_in,
        bytes_out=facts.bytes_out,
        flags=(*facts.flags, Flag.UNRECORDED) if unrecorded else facts.flags,
        trace=facts.trace,
    )
