"""`core.state.session_state`: the state's bytes."""

from msgspec import structs

from kit.commits import Log, changed
from turnlog.core.note import Budget, Fact, FactAction
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import (
    VERSION,
    SessionTaint,
    State,
    decode_state,
    encode_state,
    state_hash,
)


def grown() -> State:
    log = Log(client="agent")
    log.begin("a")
    log.timed_out("a", changed("modified", "/a", maybe=True))
    log.call("b", changed("created", "/b"))
    log.note(Fact(id="p", action=FactAction.ASSERT, subject="port", value="80"))
    log.note(Budget(seconds=1.5))
    return fold(State(), log.commits)


def test_a_state_survives_encoding() -> None:
    assert decode_state(encode_state(grown())) == grown()


def test_equal_states_have_the_same_hash_in_any_order_of_entries() -> None:
    found = grown()
    turned = structs.replace(found, metadata=dict(reversed({"x": "1", **found.metadata}.items())))
    same = structs.replace(found, metadata={"x": "1", **found.metadata})
    assert state_hash(turned) == state_hash(same) != state_hash(found)
    assert state_hash(found).startswith("sha256:")


def test_bytes_of_another_version_are_not_a_state() -> None:
    other = structs.replace(grown(), version=VERSION + 1)
    assert decode_state(encode_state(other)) is None
    assert decode_state(b"\xc1") is None
    assert decode_state(encode_state(grown())[:-3]) is None


def test_a_session_without_a_label_has_the_bytes_that_older_versions_wrote() -> None:
    assert b"taint" not in encode_state(grown())
    labelled = structs.replace(grown(), taint=SessionTaint(since=3, by=(3,)))
    assert decode_state(encode_state(labelled)) == labelled
