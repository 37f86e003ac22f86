"""Whatever a caller sends, identity is found, bounded and printable."""

import json

from hypothesis import given
from hypothesis import strategies as st

from turnlog.core.identity import NAME_BYTES, CallerEvidence, KeyLocation, Vendor, identify
from turnlog.core.kinds import Rung, TurnSource

TABLE = (
    Vendor(name="plain", session=(("a",), ("b", "c")), turn=(("t",),), call=(("k",),)),
    Vendor(name="header", where=KeyLocation.HEADER, session=(("h", "x"),)),
)
keys = st.sampled_from(["a", "b", "t", "k", "turnlog/session", "turnlog/turn"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("cx"), inner),
    max_leaves=5,
)
raws = (
    st.binary()
    | values.map(lambda v: json.dumps(v).encode())
    | st.text().map(lambda s: json.dumps(json.dumps({"c": s})).encode())
)
evidences = st.builds(
    CallerEvidence,
    path_session=st.text(),
    header_session=st.text(),
    header_turn=st.text(),
    meta=st.dictionaries(keys, raws),
    headers=st.dictionaries(st.just("h"), st.text()),
    mcp_session_id=st.text("0123456789abcdef"),
    upstream=st.sampled_from(["files", "git"]),
    credential=st.text("0123456789abcdef"),
    client_name=st.text(),
    connection=st.integers() | st.text(),
)


@given(evidences)
def test_names_are_printable_and_bounded(evidence: CallerEvidence) -> None:
    identity = identify(evidence, TABLE)
    for name in (identity.name, identity.turn_label, identity.client):
        assert name.isprintable()
        assert len(name.encode()) <= NAME_BYTES + len("header/") + len("files/")


@given(evidences)
def test_only_the_implicit_rung_is_without_a_name(evidence: CallerEvidence) -> None:
    identity = identify(evidence, TABLE)
    assert (identity.name == "") is (identity.rung is Rung.IMPLICIT)
    assert (identity.turn_label == "") is (identity.turn_source is TurnSource.GAP)
