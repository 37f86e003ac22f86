"""`core.commit`: records as bytes on disk."""

from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.commit import (
    GENESIS,
    CommitBody,
    Facts,
    Lineage,
    Link,
    body_digest,
    decode_body,
    decode_header,
    decode_link,
    digest,
    encode_body,
    encode_facts,
    encode_header,
)
from turnlog.core.kinds import (
    CommitKind,
    Effect,
    Executed,
    Flag,
    MatchEvidence,
    Phase,
    Status,
    TurnSource,
    ValueOrigin,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(0, 1 << 62)
facts = st.builds(
    Facts,
    kind=st.sampled_from(CommitKind),
    at=numbers,
    clock=numbers,
    call=st.binary(max_size=16),
    leg=st.integers(0, 9),
    n=st.integers(0, 9),
    server=texts,
    tool=texts,
    effect=st.sampled_from(Effect),
    phase=st.sampled_from(Phase),
    executed=st.sampled_from(Executed),
    status=st.sampled_from(Status),
    error=texts,
    flags=st.lists(st.sampled_from(Flag), max_size=4).map(tuple),
    code=st.none() | st.integers(-32768, 32767),
)
links = st.builds(
    Link,
    session=st.binary(min_size=16, max_size=16),
    seq=numbers,
    epoch=numbers,
    turn=st.integers(1, 99),
    step=st.integers(0, 99),
    turn_source=st.sampled_from(TurnSource),
    ref=st.none() | numbers,
    body_hash=st.binary(max_size=32),
    prev=st.binary(min_size=32, max_size=32),
    linked=st.booleans(),
)
bodies = st.builds(
    CommitBody,
    salt=st.binary(max_size=16),
    input_hash=st.none() | texts,
    summary=texts,
    delta=st.just((msgspec.Raw(msgspec.msgpack.encode({"op": "set"})),)) | st.just(()),
    links=st.lists(st.binary(max_size=32), max_size=3).map(tuple),
    metadata=st.dictionaries(texts, texts, max_size=3),
)
PLAIN = Facts(kind=CommitKind.INTENT, at=1, clock=1)
FIRST = Link(
    session=bytes(16),
    seq=0,
    epoch=1,
    turn=1,
    step=0,
    turn_source=TurnSource.GAP,
    ref=None,
    body_hash=b"",
    prev=GENESIS,
)


@given(link=links, said=facts)
def test_a_header_survives_encoding(link: Link, said: Facts) -> None:
    header = encode_header(link, encode_facts(said))
    assert decode_header(header) == (link, said)
    assert decode_link(header) == link


@given(body=bodies)
def test_a_body_survives_encoding(body: CommitBody) -> None:
    stored = encode_body(body)
    assert encode_body(decode_body(stored)) == stored
    assert decode_body(stored).summary == body.summary
    assert decode_body(stored).metadata == body.metadata


def test_fields_of_a_newer_version_are_ignored() -> None:
    version, link, said = msgspec.msgpack.decode(encode_header(FIRST, encode_facts(PLAIN)))
    newer = msgspec.msgpack.encode([version, [*link, "new"], [*said, "new"], "new"])
    assert decode_header(newer) == (FIRST, PLAIN)
    assert decode_link(newer) == FIRST
    body = [*msgspec.msgpack.decode(encode_body(CommitBody(summary="s"))), "new"]
    assert decode_body(msgspec.msgpack.encode(body)) == CommitBody(summary="s")


def test_fields_that_an_older_version_did_not_write_have_their_defaults() -> None:
    version, link, said = msgspec.msgpack.decode(encode_header(FIRST, encode_facts(PLAIN)))
    older = msgspec.msgpack.encode([version, link[:9], said[:3]])
    assert decode_header(older) == (FIRST, PLAIN)


def test_a_body_holds_where_inputs_came_from_and_older_ones_say_nothing() -> None:
    seen = Lineage(
        pointer="/path",
        origin=ValueOrigin.SOURCED,
        call=bytes(16),
        attempt=2,
        place="/content/0/text",
        evidence=MatchEvidence.ENTITY,
        tainted=True,
    )
    new = Lineage(pointer="/id", origin=ValueOrigin.UNVERIFIED)
    body = CommitBody(lineage=(seen, new), failures=("server: version changed",), partial="cut")
    stored = encode_body(body)
    assert decode_body(stored) == body
    # Readers of other languages and versions go by the place in the array.
    fields = msgspec.msgpack.decode(stored)
    assert fields[8] == [
        ["/path", "sourced", bytes(16), 2, "/content/0/text", "entity", True],
        ["/id", "unverified", b"", 1, "", "exact", False],
    ]
    assert fields[-2:] == [["server: version changed"], "cut"]
    older = decode_body(msgspec.msgpack.encode([*fields[:8], [], *fields[9:-2]]))
    assert (older.lineage, older.failures, older.partial) == ((), (), "")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x90", b"\x93\x01\x90\x90", b'{"json": 1}', b"\x92\x01" + b"\x91" * 9999],
)
def test_other_bytes_are_refused_as_a_header(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_header(data)


@pytest.mark.promise("CHAIN-5")
def test_a_header_holds_no_content() -> None:
    said = Facts(kind=CommitKind.OUTCOME, at=1, clock=1, call=bytes(16), server="s", tool="t")
    assert len(encode_header(FIRST, encode_facts(said))) < 260


def test_the_chain_hash_covers_every_byte_and_is_no_plain_hash() -> None:
    header = encode_header(FIRST, encode_facts(PLAIN))
    assert digest(header) == sha256(b"\x00" + header).digest()
    changed = {digest(header[:i] + bytes([header[i] ^ 1]) + header[i + 1 :]) for i in range(9)}
    assert len(changed | {digest(header)}) == 10


def test_a_commit_without_body_says_so() -> None:
    assert body_digest(b"") == b""
    assert body_digest(b"x") == sha256(b"x").digest()


def test_text_that_is_not_utf_8_makes_no_body() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_body(b"\x95\x01\xc4\x00\xc0\xc0\xa1\xff")
