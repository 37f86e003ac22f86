"""One attempt as a row of the log: its intent joined with its last outcome."""

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from turnlog.core import ids
from turnlog.core.commit import Commit, CommitBody, Facts
from turnlog.core.kinds import (
    Actor,
    CommitKind,
    Effect,
    Executed,
    Flag,
    Gone,
    MatchEvidence,
    Phase,
    RequestKind,
    Status,
    TurnSource,
    is_tool_call,
    request_kind,
)
from turnlog.core.operation import Operation, had_effect, tool_use
from turnlog.core.text.units import timestamp
from turnlog.provenance.values import Inputs, carried
from turnlog.provenance.verdict import reasons
from turnlog.store.read.view import View

from .payloads import Payload, read_input, read_output

_decode_operation = msgspec.msgpack.Decoder(Operation).decode
_NS_PER_MS = 1_000_000
_NO_RESULT = frozenset(
    {Flag.NULL_RESULT, Flag.MALFORMED, Flag.NOT_JSON, Flag.ID_MISMATCH, Flag.RESOLVED}
)


class Upstream(Struct, frozen=True, kw_only=True):
    """The server's protocol, and the codes of its answer."""

    protocol: str | None
    code: int | None
    """JSON-RPC error code, else the HTTP status."""
    http_status: int | None


class TaintedSource(Struct, frozen=True, kw_only=True):
    """A tainted output whose values an input carries; the commit is `None` if it is not in this store."""

    session: str | None
    seq: int | None
    evidence: MatchEvidence
    """The strongest of all values from there."""


class Row(Struct, frozen=True, kw_only=True):
    """One line of `turnlog log --json`; docs/reference/cli.md describes the fields."""

    session: str
    seq: int
    """The seq of the newest commit of this attempt."""
    intent_seq: int
    turn: int
    turn_source: TurnSource
    step: int
    timestamp: str
    """When the attempt began, RFC 3339, UTC."""
    server: str
    tool: str
    call: str
    attempt: int
    method: str
    operation: RequestKind
    input_hash: str | None
    input_summary: str
    """The beginning of the redacted input, at most 200 bytes."""
    output_summary: str
    delta: list[Operation]
    """The use of the tool, then the changes that the call made."""
    status: Status
    tool_result: UnsetType | None = UNSET
    """`null` when the tool gave no result; absent when it gave one."""
    error: str | None
    kind: str | None
    retry: str | None
    retry_after_ms: int | None = None
    effect: Effect
    phase: Phase
    executed: Executed
    leg: int
    flags: list[Flag]
    provenance: str | None = None
    provenance_reasons: UnsetType | list[str] = UNSET
    """Why it is no better; absent if there is nothing to say."""
    duration_ms: float | None
    upstream: Upstream
    hash: str
    definition: str | None
    trace: str | None
    bytes_in: int
    bytes_out: int
    actor: Actor
    """Who wrote the newest commit."""
    client: str | None
    """The name that the caller gives itself."""
    epoch: int
    """The process that wrote the newest commit: each proxy has its own number."""
    gone: Gone | None
    """Why the content of a commit can no longer be read; `null` where all can."""
    input: UnsetType | Payload = UNSET
    """The redacted input; absent unless payloads are asked for."""
    output: UnsetType | Payload = UNSET
    tainted_by: UnsetType | list[TaintedSource] = UNSET
    """The tainted outputs that its input was found to use when it ended; absent for none."""
    discarded: UnsetType | bool = UNSET
    """`true` for a call that a rewind has discarded; absent otherwise."""


def row_of(attempt: list[Commit]) -> Row:
    """Return the row of an attempt: an intent and its outcomes, of which the last counts."""
    intent, last = attempt[0], attempt[-1]
    facts = last.facts
    pending = last.facts.kind is CommitKind.INTENT
    body, definition = last.body or CommitBody(), facts.definition or intent.facts.definition
    return Row(
        session=ids.to_text(intent.link.session),
        seq=last.link.seq,
        intent_seq=intent.link.seq,
        turn=intent.link.turn,
        turn_source=intent.link.turn_source,
        step=intent.link.step,
        timestamp=timestamp(intent.facts.at),
        server=intent.facts.server,
        tool=intent.facts.tool,
        call=ids.to_text(intent.facts.call),
        attempt=intent.facts.attempt,
        method=intent.facts.method,
        operation=request_kind(intent.facts.method),
        input_hash=intent.body.input_hash if intent.body else None,
        input_summary=intent.body.preview if intent.body else "",
        output_summary="" if pending else body.summary,
        delta=_delta(attempt),
        status=Status.PENDING if pending else facts.status,
        tool_result=UNSET if _has_result(facts) else None,
        error=facts.error or None,
        kind=facts.error_kind or None,
        retry=facts.retry or None,
        retry_after_ms=facts.retry_after_ms,
        effect=intent.facts.effect,
        phase=facts.phase,
        # The intent is written before the call is sent, so without an outcome it may have run.
        executed=Executed.MAYBE if pending else facts.executed,
        leg=intent.facts.leg,
        flags=list(dict.fromkeys((*intent.facts.flags, *facts.flags))),
        provenance=facts.provenance or intent.facts.provenance or None,
        provenance_reasons=_reasons(intent.facts, body) or UNSET,
        # 0 means that the process which closed the attempt did not see it end.
        duration_ms=round(facts.duration / _NS_PER_MS, 3) if facts.duration else None,
        upstream=_upstream(intent.facts, facts),
        hash=f"sha256:{last.hash.hex()}",
        definition=f"sha256:{definition.hex()}" if definition else None,
        trace=intent.facts.trace or None,
        bytes_in=intent.facts.bytes_in,
        bytes_out=facts.bytes_out,
        actor=facts.actor,
        client=(intent.body.client if intent.body else "") or None,
        epoch=last.link.epoch,
        gone=next((commit.gone for commit in attempt if commit.gone), None),
    )


def _reasons(intent: Facts, body: CommitBody) -> list[str]:
    return reasons(intent.provenance, body.failures, Inputs(body.lineage, body.partial))


def row_in(view: View, attempt: list[Commit]) -> Row:
    """Return the row of an attempt with the commits that its tainted values came from."""
    row = row_of(attempt)
    if Flag.TAINTED_IN not in row.flags:
        return row
    found: dict[tuple[bytes, int], MatchEvidence] = {}
    order = list(MatchEvidence)
    for entry in carried(e for c in attempt if c.body for e in c.body.lineage):
        key = entry.call, entry.attempt
        found[key] = min(found.get(key, entry.evidence), entry.evidence, key=order.index)
    return structs.replace(row, tainted_by=[_source(view, *item) for item in found.items()])


def outcome_of(view: View, call: bytes, attempt: int) -> Commit | None:
    """Return the last outcome of an attempt; `None` if it is not in this store."""
    found = [
        commit
        for commit in view.readable(call)
        if commit.facts.kind is CommitKind.OUTCOME and commit.facts.attempt == attempt
    ]
    return found[-1] if found else None


def _source(view: View, key: tuple[bytes, int], evidence: MatchEvidence) -> TaintedSource:
    found = outcome_of(view, *key)
    return TaintedSource(
        session=ids.to_text(found.link.session) if found is not None else None,
        seq=found.link.seq if found is not None else None,
        evidence=evidence,
    )


def with_payloads(view: View, attempt: list[Commit]) -> Row:
    """Return the row of an attempt with its redacted input and output."""
    given, returned = read_input(view, attempt), read_output(view, attempt)
    return structs.replace(row_in(view, attempt), input=given, output=returned)


def _delta(attempt: list[Commit]) -> list[Operation]:
    intent = attempt[0].facts
    uses = [tool_use(intent.server, intent.tool)] if is_tool_call(intent.method) else []
    return [*uses, *changes(attempt)]


def changes(attempt: list[Commit]) -> list[Operation]:
    """Return the changes that an attempt made or may have made, by its last commit that lists any."""
    facts = attempt[-1].facts
    ended = facts.kind is CommitKind.OUTCOME
    if facts.status is Status.REPLAYED:
        # It lists changes only where the call that it was answered from does not count.
        attempt = attempt[-1:]
    elif ended and not had_effect(facts.executed, facts.status, facts.error_kind):
        return []
    told = next((c for c in reversed(attempt) if c.body and c.body.delta), None)
    found = [_decode_operation(raw) for raw in told.body.delta] if told and told.body else []
    if told is not attempt[-1] and ended and facts.executed is Executed.YES:
        return [structs.replace(operation, maybe=False) for operation in found]
    return found


def _has_result(facts: Facts) -> bool:
    """Return whether the tool gave a result, including one with `isError`."""
    if facts.kind is CommitKind.INTENT or facts.status is Status.UNKNOWN:
        return False
    if not _NO_RESULT.isdisjoint(facts.flags):
        return False
    if facts.status is not Status.ERROR:
        return True
    if facts.bytes_out == 0 or facts.code is not None:
        return False
    # For a plain HTTP tool every body is the result; for MCP only a JSON-RPC answer with 200.
    return facts.protocol.startswith("http/") or facts.http_status in (0, 200)


def _upstream(intent: Facts, last: Facts) -> Upstream:
    status = last.http_status or None
    return Upstream(
        protocol=last.protocol or intent.protocol or None,
        code=status if last.code is None else last.code,
        http_status=status,
    )
