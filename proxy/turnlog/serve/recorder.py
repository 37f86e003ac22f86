"""From a call on the wire to commits in the store: one intent, one outcome, each attempt.

Nothing here waits, so that a handler that is being cancelled can still record. Whoever must
wait for the disk awaits the ticket that `begin` and `end` leave behind.
"""

from hashlib import sha256
from typing import Final

from msgspec import Struct

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
    TurnSource,
    WhenFull,
)
from turnlog.core.redact import Redactor
from turnlog.core.summary import preview, summarize
from turnlog.observe.events import CallEnded, Log, RecorderFailed, SessionOpened
from turnlog.store.base import Blob, Draft, SessionRef, Store, StoreError, StoreFull, Ticket

from .clock import Clock

_PARKED_LIFE: Final = 15 * 60 * 1_000_000_000
"""ns: how long a leg waits for more input before it counts as unknown (semantics, section 1)."""


class Ask(Struct, frozen=True, kw_only=True):
    """A call as it was asked for. `arguments` is JSON as it came, cut if `complete` is false."""

    session: SessionRef
    turn_label: str
    turn_source: TurnSource
    call: bytes
    leg: int
    server: str
    tool: str
    method: str
    effect: Effect
    definition: bytes
    arguments: bytes
    complete: bool
    size: int
    flags: tuple[Flag, ...]
    trace: str
    protocol: str

    @property
    def is_mcp(self) -> bool:
        """Whether this is a `tools/call`, and not a plain HTTP tool."""
        return self.method == "tools/call"


class Reply(Struct, frozen=True, kw_only=True):
    """What is known of an answer. `content` is the result as it came, cut if not `complete`."""

    http_status: int = 0
    code: int | None = None
    content: bytes = b""
    complete: bool = True
    digest: bytes = b""
    """sha256 of the whole content; empty where `content` is all of it."""
    media_type: str = ""
    is_mcp: bool = False
    size: int = 0
    flags: tuple[Flag, ...] = ()
    links: tuple[bytes, ...] = ()
    ttl: int | None = None
    """ns that a task lives; `None` where nothing was said, -1 for ever."""
    null_result: bool = False
    detail: str = ""


class Attempt:
    """One attempt under way. `intent` is `None` where the store could not take it."""

    __slots__ = ("ask", "cancelled", "ended", "intent", "n", "outcome", "started", "waits")

    def __init__(self, ask: Ask, started: int, *, waits: bool) -> None:
        self.ask = ask
        self.started = started
        self.waits = waits
        """Whether the disk is waited for: the intent before the first byte leaves, the outcome
        before the answer's last piece is released."""
        self.intent: Ticket | None = None
        self.outcome: Ticket | None = None
        self.n = 0
        """Number of the outcome to come."""
        self.ended = False
        self.cancelled = False
        """Whether the caller took the call back."""


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
        self._opening: set[SessionRef] = set()
        self._hash_key = store.keyed(b"hashes of redacted content")

    def new_call(self) -> bytes:
        """Return the id of a new call."""
        return ids.uuid7(self._clock.wall(), self._clock.entropy(10))

    def begin(self, ask: Ask) -> Attempt:
        """Queue the intent of an attempt. Raises `StoreError` when the call has to be refused."""
        attempt = Attempt(ask, self._clock.monotonic(), waits=self._waits(ask.effect))
        if ask.session.id is None:
            self._opening.add(ask.session)
        try:
            attempt.intent = self._store.submit(self._intent(ask), wait=attempt.waits)
        except StoreError as error:
            self._unrecorded(error)
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
        facts, body, blob = self._outcome(attempt, ending, reply)
        ticket: Ticket | None = None
        if attempt.intent is not None:
            draft = Draft(
                session=attempt.ask.session,
                facts=facts,
                body=body,
                intent=attempt.intent,
                output_blob=blob,
            )
            ticket = self._submit_outcome(draft, wait=attempt.waits)
        if self._opening:
            self._announce()
        self._log.emit(_ended(attempt, facts, unrecorded=ticket is None))
        attempt.outcome = ticket
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
        attempt = Attempt(ask, self._clock.monotonic(), waits=self._waits(ask.effect))
        attempt.intent = intent
        attempt.n = n
        attempt.ended = True
        return attempt

    def _waits(self, effect: Effect) -> bool:
        match self._durability:
            case Durability.STRICT:
                return True
            case Durability.RELAXED:
                return False
            case Durability.BALANCED:
                return effect is not Effect.READ

    def _unrecorded(self, error: StoreError) -> None:
        if self._when_full is WhenFull.REFUSE_WRITES or not isinstance(error, StoreFull):
            raise error
        self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))

    def _submit_outcome(self, draft: Draft, *, wait: bool) -> Ticket | None:
        try:
            return self._store.submit(draft, wait=wait)
        except StoreError as error:
            self._log.emit(RecorderFailed(reason=str(error), flag=Flag.UNRECORDED))
            return None

    def _intent(self, ask: Ask) -> Draft:
        seen = self._redactor.json(ask.arguments, complete=ask.complete)
        blob = self._blob(seen.data, touched=seen.touched, complete=ask.complete)
        hashed = input_hash(ask.arguments, key=self._hash_key if seen.touched else None)
        facts = Facts(
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
            flags=_marked(ask.flags, seen.touched, blob.cut),
            trace=ask.trace,
            protocol=ask.protocol,
        )
        body = Body(input_hash=hashed if ask.complete else None, preview=preview(blob.data))
        return Draft(session=ask.session, facts=facts, body=body, input_blob=blob)

    def _outcome(
        self, attempt: Attempt, ending: Ending, reply: Reply
    ) -> tuple[Facts, Body, Blob | None]:
        ask = attempt.ask
        seen = self._redactor.json(reply.content, complete=reply.complete)
        blob = self._blob(seen.data, touched=seen.touched, complete=reply.complete)
        detail, detail_touched = self._redactor.text(reply.detail)
        now = self._clock.wall()
        facts = Facts(
            kind=CommitKind.OUTCOME,
            at=now,
            clock=self._clock.monotonic(),
            call=ask.call,
            leg=ask.leg,
            n=attempt.n,
            server=ask.server,
            tool=ask.tool,
            method=ask.method,
            definition=ask.definition,
            effect=ask.effect,
            phase=ending.phase,
            executed=ending.executed,
            status=ending.status,
            error=ending.error,
            error_kind=ending.kind,
            retry=ending.retry,
            duration=self._clock.monotonic() - attempt.started,
            bytes_in=ask.size,
            bytes_out=reply.size,
            flags=_marked((*ask.flags, *reply.flags), seen.touched or detail_touched, blob.cut),
            trace=ask.trace,
            protocol=ask.protocol,
            http_status=reply.http_status,
            code=reply.code,
            expires=_expiry(now, ending.status, reply.ttl),
        )
        body = Body(
            output_hash=self._output_hash(reply, keyed=seen.touched) if reply.size else None,
            summary=summarize(
                blob.data, media_type=reply.media_type, size=reply.size, is_mcp=reply.is_mcp
            ),
            detail=detail,
            links=reply.links,
            null_result=reply.null_result,
        )
        return facts, body, blob if blob.data else None

    def _blob(self, data: bytes, *, touched: bool, complete: bool) -> Blob:
        kept = data[: self._record_limit]
        return Blob(kept, redacted=touched, cut=not complete or len(kept) < len(data))

    def _output_hash(self, reply: Reply, *, keyed: bool) -> str:
        digest = reply.digest or sha256(reply.content).digest()
        if keyed or not reply.complete:
            return "hmac-sha256:" + self._store.keyed(digest).hex()
        return "sha256:" + digest.hex()


def _marked(flags: tuple[Flag, ...], redacted: bool, cut: bool) -> tuple[Flag, ...]:
    if redacted:
        flags = (*flags, Flag.REDACTED)
    return (*flags, Flag.TRUNCATED_RECORD) if cut else flags


def _expiry(now: int, status: Status, ttl: int | None) -> int:
    if not status.parked or (ttl is not None and ttl < 0):
        return 0
    return now + (_PARKED_LIFE if ttl is None else ttl)


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
