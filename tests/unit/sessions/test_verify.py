from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from turnlog.core.commit import (
    GENESIS,
    CommitBody,
    Facts,
    Link,
    body_digest,
    decode_header,
    digest,
    encode_body,
    encode_facts,
    encode_header,
)
from turnlog.core.kinds import CommitKind, Gone, TurnSource
from turnlog.sessions.verify import Anchor, ChainVerdict, Stored, verify
from turnlog.store.base import Blob

SESSION = bytes(15) + b"\x01"
Records = list[Stored]


def _header(
    seq: int, prev: bytes, body: bytes, kind: CommitKind, session: bytes = SESSION
) -> bytes:
    link = Link(
        session=session, seq=seq, epoch=1, turn=1, step=1, turn_source=TurnSource.GAP, ref=None,
        body_hash=body_digest(body), prev=prev,
    )  # fmt: skip
    return encode_header(link, encode_facts(Facts(kind=kind, at=seq, clock=seq, tool=f"t{seq}")))


def _chain(length: int, *, redact_at: int = -1) -> Records:
    """Return a session's records as a store writes them; positions have room between them."""
    records: Records = []
    prev = GENESIS
    for seq in range(length):
        body = encode_body(CommitBody(salt=b"s", summary=f"commit {seq}")) if seq % 2 else b""
        kind = CommitKind.REDACT if seq == redact_at else CommitKind.INTENT
        header = _header(seq, prev, body, kind)
        records.append((seq * 3, header, body or None))
        prev = digest(header)
    return records


def _changed(record: Stored, change: Callable[[Link, Facts], tuple[Link, Facts]]) -> Stored:
    position, header, body = record
    link, facts = change(*decode_header(header))
    return position, encode_header(link, encode_facts(facts)), body


def _rechained(record: Stored, prev: bytes) -> Stored:
    return _changed(record, lambda link, facts: _retold(structs.replace(link, prev=prev), facts))


def _retold(link: Link, facts: Facts) -> tuple[Link, Facts]:
    return link, structs.replace(facts, tool="another")


def _anchor(records: Records, seq: int) -> Anchor:
    return Anchor(seq, digest(records[seq][1]))


def _verdict(records: Iterable[Stored], *anchors: Anchor) -> tuple[ChainVerdict, int | None]:
    finding = verify(SESSION, records, anchors)
    assert bool(finding.detail) is not finding.verdict.intact
    return finding.verdict, finding.seq


def test_a_log_as_it_was_written_is_ok() -> None:
    records = _chain(6)

    finding = verify(SESSION, records, [_anchor(records, 3), _anchor(records, 5)])

    assert (finding.verdict, finding.commits, finding.seq) == (ChainVerdict.OK, 6, None)


def test_a_session_without_commits_is_ok_unless_an_anchor_knows_one() -> None:
    assert _verdict([]) == (ChainVerdict.OK, None)
    assert _verdict([], Anchor(0, b"x")) == (ChainVerdict.TRUNCATED, 0)


@pytest.mark.parametrize("seq", [0, 1, 2, 4])
def test_a_missing_commit_is_a_gap(seq: int) -> None:
    records = _chain(6)
    del records[seq]

    assert _verdict(records) == (ChainVerdict.GAP, seq)


@pytest.mark.promise("CHAIN-1")
@pytest.mark.parametrize("seq", [0, 1, 2, 4])
def test_a_changed_header_is_found_by_the_next(seq: int) -> None:
    records = _chain(6)
    records[seq] = _changed(records[seq], _retold)

    assert _verdict(records) == (ChainVerdict.MUTATED, seq)


@pytest.mark.parametrize("seq", [0, 1, 3])
def test_a_changed_link_is_blamed_on_its_own_commit(seq: int) -> None:
    records = _chain(6)
    records[seq] = _changed(
        records[seq], lambda link, facts: (structs.replace(link, prev=b"x" * 32), facts)
    )

    assert _verdict(records) == (ChainVerdict.MUTATED, seq)


def test_a_changed_newest_commit_needs_an_anchor() -> None:
    records = _chain(6)
    anchor = _anchor(records, 5)
    records[5] = _changed(records[5], _retold)

    assert _verdict(records) == (ChainVerdict.OK, None)
    assert _verdict(records, anchor) == (ChainVerdict.MUTATED, 5)


@pytest.mark.promise("CHAIN-4")
def test_a_rewritten_rest_needs_an_anchor() -> None:
    records = _chain(6)
    anchor = _anchor(records, 4)
    for seq in range(2, 6):
        records[seq] = _rechained(records[seq], digest(records[seq - 1][1]))

    assert _verdict(records) == (ChainVerdict.OK, None)
    assert _verdict(records, anchor) == (ChainVerdict.MUTATED, 4)


@pytest.mark.promise("CHAIN-2")
def test_a_changed_body_is_found() -> None:
    records = _chain(6)
    records[3] = (*records[3][:2], encode_body(CommitBody(summary="nothing happened")))

    assert _verdict(records) == (ChainVerdict.MUTATED, 3)


def test_an_added_body_is_found() -> None:
    records = _chain(6)
    records[2] = (*records[2][:2], encode_body(CommitBody()))

    assert _verdict(records) == (ChainVerdict.MUTATED, 2)


@pytest.mark.promise("CHAIN-5")
def test_bodies_deleted_by_turnlog_are_redacted_ok() -> None:
    records = _chain(6, redact_at=4)
    records[1] = (*records[1][:2], None)
    records[3] = (*records[3][:2], None)

    finding = verify(SESSION, records)

    assert (finding.verdict, finding.bodies_dropped) == (ChainVerdict.REDACTED_OK, 2)


def test_bodies_deleted_by_others_are_mutated() -> None:
    records = _chain(6, redact_at=2)
    records[1] = (*records[1][:2], None)
    records[3] = (*records[3][:2], None)

    assert _verdict(records) == (ChainVerdict.MUTATED, 3)


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 4), (3, 4)])
def test_swapped_commits_are_reordered(first: int, second: int) -> None:
    records = _chain(6)
    records[first], records[second] = records[second], records[first]

    assert _verdict(records) == (ChainVerdict.REORDERED, first)


def test_a_duplicate_commit_is_reordered() -> None:
    records = _chain(4)
    records.insert(2, (4, *records[1][1:]))

    assert _verdict(records) == (ChainVerdict.REORDERED, 1)


def test_a_commit_at_an_earlier_position_is_reordered() -> None:
    records = _chain(4)
    records[2] = (1, *records[2][1:])

    assert _verdict(records) == (ChainVerdict.REORDERED, 2)


@pytest.mark.promise("CHAIN-4")
def test_a_truncated_log_needs_an_anchor() -> None:
    records = _chain(6)
    anchor = _anchor(records, 5)

    assert _verdict(records[:4]) == (ChainVerdict.OK, None)
    assert _verdict(records[:4], anchor) == (ChainVerdict.TRUNCATED, 4)


def test_bytes_that_are_no_header_are_mutated() -> None:
    records = _chain(6)
    records[2] = (6, b"\xc1 no header", None)

    assert _verdict(records) == (ChainVerdict.MUTATED, 2)


def test_another_sessions_commit_is_mutated() -> None:
    records = _chain(3)
    records[1] = (3, _header(1, digest(records[0][1]), b"", CommitKind.NOTE, bytes(16)), None)

    assert _verdict(records) == (ChainVerdict.MUTATED, 1)


def test_garbage_after_a_gap_does_not_hide_it() -> None:
    records = _chain(6)
    records[4] = (12, b"garbage", None)
    del records[1]

    assert _verdict(records) == (ChainVerdict.GAP, 1)


@pytest.mark.promise("CHAIN-1")
@given(st.data())
def test_any_flipped_bit_of_a_commit_with_a_successor_is_found(data: st.DataObject) -> None:
    records = _chain(5)
    seq = data.draw(st.integers(0, 3))
    position, header, body = records[seq]
    bit = data.draw(st.integers(0, len(header) * 8 - 1))
    flipped = bytearray(header)
    flipped[bit // 8] ^= 1 << bit % 8
    records[seq] = (position, bytes(flipped), body)

    verdict, found = _verdict(records)

    assert not verdict.intact
    assert found is not None
    assert found <= seq + 1


@pytest.mark.promise("CHAIN-2")
@pytest.mark.parametrize(
    ("name", "said"),
    [("input", CommitBody(input_blob=b"d" * 32)), ("output", CommitBody(output_blob=b"d" * 32))],
)
def test_a_changed_payload_is_found(name: str, said: CommitBody) -> None:
    body = encode_body(said)
    first = (0, _header(0, GENESIS, b"", CommitKind.OPEN), None)
    second = (1, _header(1, digest(first[1]), body, CommitKind.INTENT), body)

    untouched = verify(SESSION, [first, second], read=lambda _: Blob(b""))
    changed = verify(SESSION, [first, second], read=lambda _: Gone.DAMAGED)

    assert untouched.verdict is ChainVerdict.OK
    assert (changed.verdict, changed.seq) == (ChainVerdict.MUTATED, 1)
    assert changed.detail == f"its stored {name} is damaged"


def test_payloads_gone_for_a_reason_are_counted() -> None:
    body = encode_body(CommitBody(input_blob=b"d" * 32, output_blob=b"e" * 32))
    first = (0, _header(0, GENESIS, b"", CommitKind.OPEN), None)
    second = (1, _header(1, digest(first[1]), body, CommitKind.INTENT), body)
    why = {b"d" * 32: Gone.TRIMMED, b"e" * 32: Gone.UNSAVED}

    found = verify(SESSION, [first, second], read=why.__getitem__)

    assert (found.verdict, found.detail) == (
        ChainVerdict.OK,
        "1 payload trimmed, 1 payload unsaved",
    )
    assert found.gone == {Gone.TRIMMED: 1, Gone.UNSAVED: 1}
