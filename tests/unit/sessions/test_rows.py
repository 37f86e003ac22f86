import json

import msgspec
import pytest
from msgspec import Raw, structs

from turnlog.core import ids
from turnlog.core.commit import Commit, CommitBody, Facts, Lineage, Link
from turnlog.core.kinds import (
    CommitKind,
    Effect,
    Executed,
    Flag,
    Phase,
    Status,
    TurnSource,
    ValueOrigin,
)
from turnlog.core.operation import Operation
from turnlog.sessions.rows import row_of
from turnlog.store.recovery import closing

SESSION, CALL = ids.uuid7(10**18, bytes(10)), ids.uuid7(10**18, bytes(9) + b"1")
AT = 1_795_794_059_123_456_789
FIELDS = [
    "session", "seq", "intent_seq", "turn", "turn_source", "step", "timestamp", "server", "tool",
    "call", "attempt", "method", "operation", "input_hash", "input_summary", "output_summary", "delta", "status", "tool_result",
    "error", "kind", "retry", "retry_after_ms", "effect", "phase", "executed", "leg", "flags",
    "provenance", "duration_ms", "upstream", "hash",
]  # fmt: skip
"""As the interface lists them, in its order."""


def _commit(seq: int, facts: Facts, body: CommitBody | None = None) -> Commit:
    link = Link(
        session=SESSION, seq=seq, epoch=1, turn=3, step=2, turn_source=TurnSource.GAP,
        ref=None if facts.kind is CommitKind.INTENT else 1, body_hash=b"", prev=bytes(32),
    )  # fmt: skip
    return Commit(position=seq, link=link, facts=facts, hash=bytes([seq]) * 32, body=body)


INTENT_FACTS = Facts(
    kind=CommitKind.INTENT, at=AT, clock=0, call=CALL, server="files", tool="read_file",
    method="tools/call", effect=Effect.READ, bytes_in=300, protocol="2025-11-25",
    flags=(Flag.DUPLICATE_KEYS,), trace="0af7651916cd43dd8448eb211c80319c",
)  # fmt: skip
OUTCOME_FACTS = Facts(
    kind=CommitKind.OUTCOME, at=AT + 5_000_000, clock=5_000_000, call=CALL, phase=Phase.DONE,
    executed=Executed.YES, status=Status.OK, duration=12_345_678, bytes_out=500,
    protocol="2025-11-25", http_status=200, flags=(Flag.LATE, Flag.DUPLICATE_KEYS),
)  # fmt: skip
USED = Operation(field="tools_used", op="called", key="files.read_file")
MODIFIED = Operation(field="files_modified", op="modified", key="/a", maybe=True)
INTENT = _commit(1, INTENT_FACTS, CommitBody(input_hash="sha256:ab"))
OUTCOME = _commit(
    4,
    OUTCOME_FACTS,
    CommitBody(summary="3 items", delta=(Raw(msgspec.msgpack.encode(MODIFIED)),)),
)


def test_a_line_has_the_fields_of_the_interface_in_its_order() -> None:
    row = row_of([INTENT, _commit(4, structs.replace(OUTCOME_FACTS, status=Status.UNKNOWN))])

    line = json.loads(msgspec.json.encode(row))

    assert list(line)[: len(FIELDS)] == FIELDS
    assert list(line["upstream"])[:2] == ["protocol", "code"]


def test_an_intent_and_its_outcome_are_one_row() -> None:
    row = row_of([INTENT, OUTCOME])

    assert (row.intent_seq, row.seq, row.turn, row.step) == (1, 4, 3, 2)
    assert (row.session, row.call) == (ids.to_text(SESSION), ids.to_text(CALL))
    assert row.timestamp == "2026-11-27T15:40:59.123456Z"
    assert (row.server, row.tool, row.method, row.effect) == (
        "files", "read_file", "tools/call", Effect.READ,
    )  # fmt: skip
    assert (row.input_hash, row.output_summary, row.delta) == (
        "sha256:ab", "3 items", [USED, MODIFIED],
    )  # fmt: skip
    assert (row.status, row.executed, row.phase, row.duration_ms) == (
        Status.OK, Executed.YES, Phase.DONE, 12.346,
    )  # fmt: skip
    assert row.flags == [Flag.DUPLICATE_KEYS, Flag.LATE]
    assert (row.bytes_in, row.bytes_out, row.trace) == (300, 500, INTENT_FACTS.trace)
    assert row.hash == "sha256:" + "04" * 32


def test_a_row_has_the_retry_delay() -> None:
    asked = structs.replace(OUTCOME_FACTS, retry_after_ms=1500)
    assert row_of([INTENT, _commit(4, asked)]).retry_after_ms == 1500


@pytest.mark.promise("REC-14")
def test_the_last_of_several_outcomes_counts() -> None:
    lost = _commit(2, structs.replace(OUTCOME_FACTS, status=Status.UNKNOWN, error="unknown"))

    row = row_of([INTENT, lost, OUTCOME])

    assert (row.seq, row.status, row.error) == (4, Status.OK, None)


def test_an_attempt_in_flight_is_pending_and_maybe_executed() -> None:
    row = row_of([INTENT])

    assert (row.status, row.seq, row.duration_ms) == (Status.PENDING, 1, None)
    assert row.executed is Executed.MAYBE
    assert row.tool_result is None


def test_a_recovered_attempt_has_no_duration() -> None:
    closed = closing(INTENT_FACTS, at=9, clock=9, n=1, flags=())

    row = row_of([INTENT, _commit(4, closed)])

    assert (row.kind, row.duration_ms) == ("outcome_unknown", None)


def test_a_row_needs_no_bodies() -> None:
    row = row_of([structs.replace(INTENT, body=None), structs.replace(OUTCOME, body=None)])

    assert (row.input_hash, row.output_summary, row.delta) == (None, "", [USED])


@pytest.mark.parametrize(
    ("changes", "body", "has_result"),
    [
        ({}, CommitBody(), True),
        ({"flags": (Flag.NULL_RESULT,)}, None, False),
        ({"flags": (Flag.MALFORMED,)}, None, False),
        ({"flags": (Flag.EMPTY,)}, None, True),
        ({"status": Status.UNKNOWN}, None, False),
        ({"status": Status.INPUT_REQUIRED}, None, True),
        ({"status": Status.ACCEPTED}, None, True),
        ({"status": Status.ERROR}, None, True),
        ({"status": Status.ERROR, "bytes_out": 0}, None, False),
        ({"status": Status.ERROR, "code": -32603}, None, False),
        ({"status": Status.ERROR, "http_status": 502}, None, False),
        ({"status": Status.ERROR, "http_status": 502, "protocol": "http/1.1"}, None, True),
        ({"http_status": 204, "bytes_out": 0, "protocol": "http/1.1"}, None, True),
    ],
)
def test_tool_result_is_null_or_absent(
    changes: dict[str, object], body: CommitBody | None, has_result: bool
) -> None:
    facts = structs.replace(OUTCOME_FACTS, **changes)

    line = json.loads(msgspec.json.encode(row_of([INTENT, _commit(4, facts, body)])))

    assert ("tool_result" not in line) is has_result
    assert line.get("tool_result") is None


@pytest.mark.parametrize(
    ("changes", "code", "http_status"),
    [({}, 200, 200), ({"code": -32601, "http_status": 404}, -32601, 404), ({"http_status": 0}, None, None)],
)  # fmt: skip
def test_the_upstream_code_is_that_of_json_rpc_or_else_of_http(
    changes: dict[str, object], code: int | None, http_status: int | None
) -> None:
    row = row_of([INTENT, _commit(4, structs.replace(OUTCOME_FACTS, **changes))])

    assert (row.upstream.protocol, row.upstream.code, row.upstream.http_status) == (
        "2025-11-25", code, http_status,
    )  # fmt: skip


def test_provenance_comes_from_the_intent_and_is_null_in_older_stores() -> None:
    pinned = structs.replace(INTENT_FACTS, provenance="pinned")

    assert row_of([INTENT]).provenance is None
    assert row_of([_commit(1, pinned)]).provenance == "pinned"
    assert row_of([_commit(1, pinned), OUTCOME]).provenance == "pinned"


def test_reasons_of_the_provenance_are_of_the_tool_the_server_the_result_and_the_inputs() -> None:
    pinned = _commit(1, structs.replace(INTENT_FACTS, provenance="pinned"))
    other = _commit(1, structs.replace(INTENT_FACTS, provenance="mismatch"))
    lineage = (Lineage(pointer="/a", origin=ValueOrigin.UNVERIFIED),)
    body = CommitBody(failures=("server: version changed",), lineage=lineage, partial="cut")
    said = _commit(4, OUTCOME_FACTS, body)

    assert row_of([INTENT, OUTCOME]).provenance_reasons is msgspec.UNSET
    assert row_of([pinned, OUTCOME]).provenance_reasons is msgspec.UNSET
    assert row_of([other]).provenance_reasons == ["tool: mismatch"]
    assert row_of([other, said]).provenance_reasons == [
        "tool: mismatch",
        "server: version changed",
        "inputs: /a unverified",
        "inputs: partial (cut)",
    ]


def test_changes_come_from_the_last_commit_that_lists_any() -> None:
    declared = structs.replace(MODIFIED, maybe=True)
    begun = _commit(1, INTENT_FACTS, CommitBody(delta=(Raw(msgspec.msgpack.encode(declared)),)))
    assert row_of([begun]).delta == [USED, declared]
    unseen = structs.replace(OUTCOME_FACTS, status=Status.UNKNOWN, executed=Executed.MAYBE)
    assert row_of([begun, _commit(4, unseen)]).delta == [USED, declared]
    happened = _commit(5, OUTCOME_FACTS, CommitBody(summary="it happened"))
    assert row_of([begun, _commit(4, unseen), happened]).delta == [
        USED,
        structs.replace(declared, maybe=False),
    ]
    failed = structs.replace(OUTCOME_FACTS, status=Status.ERROR, executed=Executed.NO)
    assert row_of([begun, _commit(4, failed)]).delta == [USED]
