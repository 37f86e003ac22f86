"""Drafts of commits from a call and its answer: redacted content, hashes, summaries, facts.

Safe to run in any thread. An error in what reads content must not break a call: then the record
says less.
"""

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Raw, Struct, structs

from turnlog.core.canon import canonical, input_hash
from turnlog.core.classify import Ending
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import (
    Actor,
    CommitKind,
    Executed,
    Flag,
    NoteKind,
    Phase,
    Status,
)
from turnlog.core.text.terminal import (
    SUMMARY_BYTES,
    body_summary,
    preview,
    result_summary,
    text_summary,
)
from turnlog.exchange.outcome import AnswerFacts, seen
from turnlog.observe.clock import Clock
from turnlog.provenance.taint import taint_flags
from turnlog.provenance.values import Inputs, unsourced
from turnlog.provenance.verdict import NO_INPUTS, unmet_result
from turnlog.redaction.redact import MARGIN, Redacted, Redactor
from turnlog.redaction.rule_redaction import RuleSecrets, cut_json, cut_text, select_secrets
from turnlog.rules.effects import Delta, extract_delta
from turnlog.rules.expression import ExpressionInput
from turnlog.rules.model import KeepContent, RequiredInputs, Unmet
from turnlog.rules.policy import NO_DEMAND
from turnlog.settings.upstream_url import UrlMask
from turnlog.store.base import Blob, Draft, Ticket
from turnlog.wire.json_text import value_of

from .attempt import NO_LINKS, Ask, Attempt
from .own_answers import envelope, with_tail

_DETAIL_CHARS: Final = 1024
PARKED_LIFE: Final = 15 * 60 * 1_000_000_000
"""ns: how long a leg waits for more input before it counts as unknown."""
_FOR_EVER: Final = 2**63 - 1
"""ns UTC: in the year 2262."""
_BEGUN: Final = Ending(status=Status.PENDING, phase=Phase.QUEUED, executed=Executed.MAYBE)
"""The ending of a call of which only the arguments are known."""
_NOTHING_SEEN: Final = ExpressionInput()
_NO_MASKS: Final[Mapping[str, UrlMask]] = {}
# Looking a member of an enum up costs more than all else in most of these lines.
_INTENT: Final = CommitKind.INTENT
_OUTCOME: Final = CommitKind.OUTCOME
_NOTE: Final = CommitKind.NOTE
_TURNLOG: Final = Actor.TURNLOG
_DONE: Final = Phase.DONE
_OK: Final = Status.OK
_FULL: Final = KeepContent.FULL
_NOTHING: Final = KeepContent.NOTHING
_NO_DELTA: Final = Delta()
_encode = msgspec.msgpack.Encoder().encode


class _Ruled(Struct, frozen=True):
    """Content without what rules redact and without values of its upstream's URL."""

    content: bytes
    touched: bool
    text: str
    """The reason for a call, or the detail of an error."""
    delta: Delta


_UNREAD: Final = "content that could not be read"
_CUT: Final = (Flag.TRUNCATED_RECORD,)


class Drafter:
    """Makes drafts. `keyed` is the HMAC of the digests of a session; `record_limit` bounds blobs, in bytes;
    `masks` say what is shown of upstreams' URLs, by name."""

    def __init__(
        self,
        redactor: Redactor,
        clock: Clock,
        keyed: Callable[[bytes | None, bytes], bytes],
        report: Callable[[Exception], None],
        *,
        record_limit: int,
        masks: Mapping[str, UrlMask] = _NO_MASKS,
    ) -> None:
        self._redactor = redactor
        self._clock = clock
        self._keyed = keyed
        self._report = report
        self._record_limit = record_limit
        self._masks = masks

    def intent(self, ask: Ask, *, waited: int = 0) -> Draft:
        """Return the commit before an attempt is sent, which began `waited` ns ago."""
        try:
            body, blob, marks = self._input(ask)
        except Exception as error:  # noqa: BLE001 - the call goes on, the record says less
            self._report(error)
            body, blob, marks = CommitBody(preview=_UNREAD), Blob(b"", cut=True), _CUT
        keep, links = ask.policy.store, ask.links
        if keep is _NOTHING:
            body = structs.replace(body, preview="", why="")
        if links is not NO_LINKS or ask.effect_link:
            effect = (ask.effect_link,) if ask.effect_link else ()
            body = structs.replace(body, links=(*links.stored, *effect))
        facts = self.facts(ask, ask.flags + marks, waited=waited)
        draft = Draft(
            session=ask.session, facts=facts, body=body, blob=blob if keep is _FULL else None
        )
        if ask.seen is not None:
            draft.claims, draft.seen = links.claims, ask.seen
            draft.sole_claim = links.choice
        return draft

    def _hash_key(self, ask: Ask) -> bytes:
        return self._keyed(ask.session.id, b"hashes of redacted content")

    def facts(self, ask: Ask, flags: tuple[Flag, ...], *, waited: int = 0) -> Facts:
        """Return the facts of the intent of an attempt that began `waited` ns ago."""
        facts = Facts(
            kind=_INTENT,
            at=self._clock.wall() - waited,
            clock=self._clock.monotonic() - waited,
            turn_label=ask.turn_label,
            turn_source=ask.turn_source,
            call=ask.call,
            server=ask.server,
            tool=ask.tool,
            method=ask.method,
            definition=ask.definition,
            effect=ask.effect,
            bytes_in=ask.size,
            trace=ask.trace,
            protocol=ask.protocol,
            provenance=ask.standing.provenance,
        )
        links, guarded = ask.links, False
        if links is not NO_LINKS:
            guarded = bool(links.same or links.key) and not links.source
        if not (flags or guarded or ask.leg or ask.number > 1):
            return facts
        # What is rare stands apart: beyond 15 keywords Python makes a dict of them for each call.
        return structs.replace(facts, leg=ask.leg, attempt=ask.number, flags=flags, guarded=guarded)

    def note(self, kind: NoteKind, on: Facts) -> Facts:
        """Return the facts of a note on a commit of a call."""
        return Facts(
            kind=_NOTE,
            at=self._clock.wall(),
            clock=self._clock.monotonic(),
            actor=_TURNLOG,
            call=on.call,
            leg=on.leg,
            attempt=on.attempt,
            server=on.server,
            tool=on.tool,
            method=on.method,
            effect=on.effect,
            phase=_DONE,
            status=_OK,
            note=kind,
        )

    def outcome(self, attempt: Attempt, ending: Ending, reply: AnswerFacts) -> Draft:
        """Return the commit after an attempt has ended."""
        now, clock = self._clock.wall(), self._clock.monotonic()
        ask = attempt.ask
        try:
            body, blob, marks = self._output(ask, ending, reply)
        except Exception as error:  # noqa: BLE001 - the call goes on, the record says less
            self._report(error)
            body, blob, marks = _unread_body(ask, reply), None, _CUT
        if reply.said and ask.is_call:  # other requests are answered by a status
            said = with_tail(reply.said, envelope(ask, attempt.overall or ending))
            # It may name members of the input, and their names may be secrets.
            body = structs.replace(body, said=self._redactor.text(said)[0])
        inputs = attempt.inputs or NO_INPUTS
        found = attempt.verdict = ask.verdict(reply.checks, inputs)
        if inputs is not NO_INPUTS or found.failures:
            body = structs.replace(
                body, lineage=inputs.lineage, partial=inputs.partial, failures=found.failures
            )
        facts = structs.replace(
            attempt.facts,
            kind=_OUTCOME,
            at=now,
            clock=clock,
            phase=ending.phase,
            executed=ending.executed,
            status=ending.status,
            error=ending.error,
            error_kind=ending.kind,
            retry=ending.retry,
            duration=clock - attempt.started,
            bytes_out=reply.size,
            provenance=found.provenance,
            flags=attempt.flags + marks,
            http_status=reply.http_status,
        )
        if inputs.has_tainted or attempt.flags or ask.policy.provenance is not NO_DEMAND:
            found_flags = _provenance_flags(ask, inputs, reply, facts)
            attempt.flags = tuple(dict.fromkeys((*attempt.flags, *found_flags)))
            facts = structs.replace(facts, flags=attempt.flags + marks)
        if attempt.n or ending.status.parked or not (reply.code is reply.retry_after is None):
            facts = _with_rare(facts, attempt.n, reply)
        return Draft(session=ask.session, facts=facts, body=body, intent=attempt.intent, blob=blob)

    def _input(self, ask: Ask) -> tuple[CommitBody, Blob, tuple[Flag, ...]]:
        """Return what is kept of an input: the body, the blob, and flags if some of it is not recorded."""
        policy, arguments, touched, delta, why = ask.policy, ask.arguments, False, _NO_DELTA, ""
        if policy.redact or policy.delta or ask.why or ask.server in self._masks:
            ruled = self._ruled_input(ask)
            arguments, touched, delta, why = ruled.content, ruled.touched, ruled.delta, ruled.text
        elif ask.canonical is not None and ask.complete and self._is_kept_as_is(arguments):
            # Most inputs are short and hold no secret.
            body = CommitBody(
                input_hash=input_hash(ask.canonical),
                preview=preview(arguments),
                pinned=ask.standing.pinned,
                client=ask.client,
            )
            return body, Blob(arguments), ()
        blob = self._kept(arguments, touched=touched, complete=ask.complete)
        hashed = None
        if not ask.says_all:
            blob = structs.replace(blob, cut=True)
        elif ask.complete:
            form = ask.canonical or canonical(ask.arguments)
            hashed = input_hash(form, key=self._hash_key(ask) if blob.redacted else None)
        body = CommitBody(
            input_hash=hashed,
            preview=preview(blob.data),
            pinned=ask.standing.pinned,
            delta=_packed(delta) if delta is not _NO_DELTA else (),
            why=why,
            client=ask.client,
        )
        is_whole = not (blob.redacted or blob.cut or delta.cut)
        return body, blob, () if is_whole else _marks(blob, delta)

    def _output(
        self, ask: Ask, ending: Ending, reply: AnswerFacts
    ) -> tuple[CommitBody, Blob | None, tuple[Flag, ...]]:
        """Return what is kept of an answer: the body, the blob, and flags if some of it is not recorded."""
        content, touched, delta, detail = reply.content, False, _NO_DELTA, reply.detail
        policy = ask.policy
        if policy.redact or policy.delta or ask.server in self._masks:
            ruled = self._ruled_output(ask, ending, reply)
            content, touched, delta, detail = ruled.content, ruled.touched, ruled.delta, ruled.text
        elif reply.text and policy.store is _FULL and self._is_kept_as_is(content):
            # Most answers are one short text without a secret: there is nothing else to say of them.
            digest = sha256(content).digest()
            summary = text_summary(reply.text)
            body = CommitBody(output_hash=f"sha256:{digest.hex()}", summary=summary)
            return body, Blob(content, digest=digest), ()
        digest = reply.digest or (sha256(reply.content).digest() if reply.complete else b"")
        blob = self._kept(content, touched=touched, complete=reply.complete, digest=digest)
        if not digest:
            digest, blob = _digests(reply, blob)
        hashed = None
        if reply.size:
            keyed = blob.redacted or not reply.complete
            hashed = (
                f"hmac-sha256:{self._keyed(ask.session.id, digest).hex()}"
                if keyed
                else f"sha256:{digest.hex()}"
            )
        if detail:
            detail = (
                "" if _is_silent(ask, reply) else self._redactor.text(detail[:_DETAIL_CHARS])[0]
            )
        body = CommitBody(
            output_hash=hashed,
            summary=_summary(ask, reply, blob.data, detail),
            detail=detail,
            delta=_packed(delta) if delta is not _NO_DELTA else (),
            links=reply.links,
        )
        is_whole = not (blob.redacted or blob.cut or delta.cut)
        is_kept = blob.data and policy.store is _FULL
        return body, blob if is_kept else None, () if is_whole else _marks(blob, delta)

    def _ruled_input(self, ask: Ask) -> _Ruled:
        policy, masked = ask.policy, self._masked(ask)
        looked = seen(masked, AnswerFacts()) if policy.redact or policy.delta else _NOTHING_SEEN
        what = select_secrets(policy.redact, looked)
        clean = partial(self._clean, what)
        cut = Redacted(masked.arguments, False)
        if policy.redact:
            value = value_of(masked.arguments) if ask.complete else None
            cut = cut_json(masked.arguments, "args", value, what)
        return _Ruled(
            content=cut.data,
            touched=cut.touched or masked is not ask,
            text=clean(ask.why)[:_DETAIL_CHARS] if ask.why else "",
            # If the call ends without an answer, no more is known than this.
            delta=extract_delta(policy.delta, looked, _BEGUN, clean) if policy.delta else _NO_DELTA,
        )

    def _ruled_output(self, ask: Ask, ending: Ending, reply: AnswerFacts) -> _Ruled:
        policy, mask, came = ask.policy, self._masks.get(ask.server), reply.content
        if mask is not None:
            content, detail = mask.cut_content(came), mask.cut(reply.detail)
            reply = structs.replace(reply, content=content, detail=detail)
        is_masked = reply.content != came
        if not (policy.redact or policy.delta):
            return _Ruled(reply.content, is_masked, reply.detail, _NO_DELTA)
        looked = seen(self._masked(ask), reply)
        what = select_secrets(policy.redact, looked)
        if reply.is_mcp and reply.complete and not reply.is_result:
            # In an error only the secrets are redacted that rules select elsewhere.
            text, touched = cut_text(reply.content.decode("utf-8", "surrogateescape"), what)
            cut = Redacted(text.encode("utf-8", "surrogateescape"), touched)
        else:
            value = value_of(reply.content) if looked.result is not None else None
            cut = cut_json(reply.content, "result", value, what)
        return _Ruled(
            content=cut.data,
            touched=cut.touched or is_masked,
            text=cut_text(reply.detail, what)[0],
            delta=extract_delta(policy.delta, looked, ending, partial(self._clean, what)),
        )

    def _clean(self, what: RuleSecrets, text: str) -> str:
        """Return a text without secrets and without what rules redact."""
        return self._redactor.text(cut_text(text, what)[0])[0]

    def _masked(self, ask: Ask) -> Ask:
        """Return a call without the values of its upstream's URL."""
        mask = self._masks.get(ask.server)
        if mask is None:
            return ask
        arguments = mask.cut_content(ask.shown or ask.arguments)
        return ask if arguments == ask.arguments else structs.replace(ask, arguments=arguments)

    def _kept(self, content: bytes, *, touched: bool, complete: bool, digest: bytes = b"") -> Blob:
        """Return content as it is recorded: without secrets, up to the limit; `digest` is its sha256 as it came."""
        limit = self._record_limit
        if len(content) > limit + MARGIN:
            content, complete = content[: limit + MARGIN], False
        left = self._redactor.json(content, complete=complete)
        kept, redacted = left.data, touched or left.touched
        if len(kept) > limit:
            kept, complete = kept[:limit], False
        return Blob(kept, redacted, not complete, digest if complete and not redacted else b"")

    def _is_kept_as_is(self, content: bytes) -> bool:
        """Return whether whole content is recorded as it came."""
        return len(content) <= self._record_limit and self._redactor.is_clean(content)


def _digest(reply: AnswerFacts) -> bytes:
    """Return the sha256 of an answer that was received whole."""
    hash_ = sha256(reply.content)
    hash_.update(reply.rest)
    return hash_.digest()


def _digests(reply: AnswerFacts, blob: Blob) -> tuple[bytes, Blob]:
    """Return the sha256 of an answer that was received whole, and its kept part with a sha256 of its own."""
    if blob.redacted:
        return _digest(reply), blob
    # One pass for both: what is kept is how the answer begins.
    hash_ = sha256(blob.data)
    own = hash_.digest()
    hash_.update(memoryview(reply.content)[len(blob.data) :])
    hash_.update(reply.rest)
    return hash_.digest(), structs.replace(blob, digest=own)


def retell(outcome: Draft, source: Ticket | None, delta: tuple[Raw, ...]) -> None:
    """Copy the summary of the earlier outcome to a replayed call, if that outcome is in memory, and its changes."""
    told = source.placed if source is not None else None
    if delta and outcome.body is not None:
        outcome.body = structs.replace(outcome.body, delta=delta)
    if told is None or told.body is None or outcome.body is None or outcome.body.summary:
        return
    outcome.body = structs.replace(outcome.body, summary=told.body.summary)


def _provenance_flags(
    ask: Ask, inputs: Inputs, reply: AnswerFacts, facts: Facts
) -> tuple[Flag, ...]:
    """Return the flags of an outcome that follow from its inputs and its result."""
    found, demand = taint_flags(facts, inputs.lineage), ask.policy.provenance
    if demand is NO_DEMAND or demand.then is not Unmet.FLAG:
        return found
    is_unmet = ask.is_unpinned(Unmet.FLAG) or (
        not facts.error and unmet_result(demand, reply.checks)
    )
    is_unmet = is_unmet or (demand.inputs is RequiredInputs.SOURCED and bool(unsourced(inputs)))
    return (*found, Flag.UNVERIFIED) if is_unmet else found


def _is_silent(ask: Ask, reply: AnswerFacts) -> bool:
    """Return whether a rule keeps the content of an answer out of the record."""
    return ask.policy.store is _NOTHING and reply.size > 0


def _unread_body(ask: Ask, reply: AnswerFacts) -> CommitBody:
    """Return what is kept of an answer whose content could not be read."""
    answered = reply.http_status or reply.size or reply.content
    short = _UNREAD if answered and not _is_silent(ask, reply) else ""
    return CommitBody(summary=short, links=reply.links)


def _summary(ask: Ask, reply: AnswerFacts, kept: bytes, detail: str) -> str:
    """Return an answer on one line; without an answer the detail, which is turnlog's own."""
    if _is_silent(ask, reply):
        return ""
    if detail and not kept:
        return preview(detail.encode("utf-8", "replace"), SUMMARY_BYTES)
    if reply.is_mcp:
        return result_summary(kept, size=reply.size)
    if reply.http_status or reply.size:
        return body_summary(kept, reply.media_type, size=reply.size)
    return ""


def _marks(blob: Blob, delta: Delta) -> tuple[Flag, ...]:
    redacted = (Flag.REDACTED,) if blob.redacted else ()
    return (*redacted, Flag.TRUNCATED_RECORD) if blob.cut or delta.cut else redacted


def _packed(delta: Delta) -> tuple[Raw, ...]:
    return tuple(Raw(_encode(operation)) for operation in delta.operations)


def _with_rare(facts: Facts, n: int, reply: AnswerFacts) -> Facts:
    """Return an outcome's facts with the fields that few outcomes have."""
    wait = reply.retry_after
    return structs.replace(
        facts,
        n=n,
        code=reply.code,
        expires=_expiry(facts.at, reply.ttl) if facts.status.parked else 0,
        retry_after_ms=None if wait is None else round(wait * 1000),
    )


def _expiry(now: int, ttl: int | None) -> int:
    if ttl is None:
        return now + PARKED_LIFE
    # A client's "for ever" may be more than a record can say.
    return min(now + ttl, _FOR_EVER) if ttl >= 0 else 0
