"""From a call and its answer to what is written of them: redaction, hashes, summaries, facts.

Safe to run in any thread. A fault in what reads content must not break a call: then the record
says less.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Final, TypeVar

from msgspec import Struct, structs

from turnlog.core.canon import input_hash
from turnlog.core.classify import Ending
from turnlog.core.commit import Body, Facts
from turnlog.core.kinds import CommitKind, Flag, Status
from turnlog.core.redact import MARGIN, Redacted, Redactor
from turnlog.core.summary import SUMMARY_BYTES, preview, summarize
from turnlog.store.base import Blob, Draft

from .attempt import Ask, Attempt, Reply
from .clock import Clock

_DETAIL_CHARS: Final = 1024
_PARKED_LIFE: Final = 15 * 60 * 1_000_000_000
"""ns: how long a leg waits for more input before it counts as unknown (semantics, section 1)."""
_UNREADABLE: Final = "content that could not be read"


_T = TypeVar("_T")


class Content(Struct, frozen=True, gc=False):
    """Content as redaction left it, and its short form."""

    blob: Blob
    short: str
    hash: str | None


class Drafter:
    """Makes drafts. `keyed` is HMAC under the store's key; `record_limit` bounds blobs, in bytes."""

    def __init__(
        self,
        redactor: Redactor,
        clock: Clock,
        keyed: Callable[[bytes], bytes],
        report: Callable[[Exception], None],
        *,
        record_limit: int,
    ) -> None:
        self._redactor = redactor
        self._clock = clock
        self._keyed = keyed
        self._report = report
        self._record_limit = record_limit
        self._hash_key = keyed(b"hashes of redacted content")

    def intent(self, ask: Ask) -> Draft:
        """Return the commit before an attempt is sent."""
        seen = self._guarded(self._input, ask)
        facts = self.facts(ask, _marked(ask.flags, seen.blob))
        body = Body(input_hash=seen.hash, preview=seen.short)
        return Draft(session=ask.session, facts=facts, body=body, input_blob=seen.blob)

    def facts(self, ask: Ask, flags: tuple[Flag, ...]) -> Facts:
        """Return what an intent says."""
        return Facts(
            kind=CommitKind.INTENT,
            at=self._clock.wall(),
            clock=self._clock.monotonic(),
            turn_label=ask.turn_label,
            turn_source=ask.turn_source,
            call=ask.call,
            leg=ask.leg,
            attempt=ask.number,
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

    def outcome(self, attempt: Attempt, ending: Ending, reply: Reply) -> Draft:
        """Return the commit after an attempt has ended."""
        now, clock = self._clock.wall(), self._clock.monotonic()
        seen = self._guarded(self._output, reply)
        detail = self._redactor.text(reply.detail[:_DETAIL_CHARS])[0] if reply.detail else ""
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
            flags=_marked((*attempt.ask.flags, *sorted(attempt.marks), *reply.flags), seen.blob),
            http_status=reply.http_status,
            code=reply.code,
            expires=_expiry(now, ending.status, reply.ttl),
        )
        body = Body(
            output_hash=seen.hash,
            summary=seen.short if seen.blob.data or not detail else _line(detail),
            detail=detail,
            links=reply.links,
        )
        return Draft(
            session=attempt.ask.session,
            facts=facts,
            body=body,
            intent=attempt.intent,
            output_blob=seen.blob if seen.blob.data else None,
        )

    def _input(self, ask: Ask) -> Content:
        seen, complete = self._seen(ask.arguments, complete=ask.complete)
        blob = self._blob(seen.data, touched=seen.touched, complete=complete and ask.says_all)
        key = self._hash_key if seen.touched else None
        known = ask.complete and ask.says_all
        hashed = input_hash(ask.arguments, key=key) if known else None
        return Content(blob, preview(blob.data), hashed)

    def _output(self, reply: Reply) -> Content:
        seen, complete = self._seen(reply.content, complete=reply.complete)
        blob = self._blob(seen.data, touched=seen.touched, complete=complete)
        short = summarize(
            blob.data, media_type=reply.media_type, size=reply.size, is_mcp=reply.is_mcp
        )
        keyed = seen.touched or not reply.complete
        hashed = self._output_hash(reply, keyed=keyed) if reply.size else None
        return Content(blob, short, hashed)

    def _seen(self, content: bytes, *, complete: bool) -> tuple[Redacted, bool]:
        """Redact as much as will be kept; tell whether that is all."""
        most = self._record_limit + MARGIN
        whole = complete and len(content) <= most
        return self._redactor.json(content[:most], complete=whole), whole

    def _guarded(self, read: Callable[[_T], Content], said: _T) -> Content:
        try:
            return read(said)
        except Exception as error:  # noqa: BLE001 - the call goes on, the record says less
            self._report(error)
            return Content(Blob(b"", cut=True), _UNREADABLE, None)

    def _blob(self, data: bytes, *, touched: bool, complete: bool) -> Blob:
        kept = data[: self._record_limit]
        return Blob(kept, redacted=touched, cut=not complete or len(kept) < len(data))

    def _output_hash(self, reply: Reply, *, keyed: bool) -> str:
        digest = reply.digest or sha256(reply.content).digest()
        if keyed:
            return "hmac-sha256:" + self._keyed(digest).hex()
        return "sha256:" + digest.hex()


def _line(detail: str) -> str:
    return preview(detail.encode("utf-8", "replace"), SUMMARY_BYTES)


def _marked(flags: tuple[Flag, ...], blob: Blob) -> tuple[Flag, ...]:
    if blob.redacted:
        flags = (*flags, Flag.REDACTED)
    return (*flags, Flag.TRUNCATED_RECORD) if blob.cut else flags


def _expiry(now: int, status: Status, ttl: int | None) -> int:
    if not status.parked or (ttl is not None and ttl < 0):
        return 0
    return now + (_PARKED_LIFE if ttl is None else ttl)
