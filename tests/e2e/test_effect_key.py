"""The `effect_key` of a rule is stored as a keyed digest, by which calls of the same effect are found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.beside import Rig, ruled
from kit.clients import call
from kit.wraps import initialize, wrapping
from turnlog.core.kinds import CommitKind
from turnlog.store.lmdb import LmdbReader

RULES = """
rules:
  - {match: {tool: "read*"}, effect: read}
  - {match: {tool: ["*pay*", "POST /pay"], method: [tools/call, POST]}, effect_key: [$.args.order, $.args.body.order]}
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def links(data: Path, calls: list[str]) -> list[tuple[bytes, ...]]:
    """Return the links of these calls' intents."""
    reader = LmdbReader.open(data)
    try:
        with reader.view() as view:
            commits = [commit for one in view.sessions() for commit in view.commits(one.session)]
        found = {
            commit.facts.call.hex(): commit.body.links
            for commit in commits
            if commit.facts.kind is CommitKind.INTENT and commit.body is not None
        }
        return [found[call.replace("-", "")] for call in calls]
    finally:
        reader.close()


def own_links(rig: Rig, count: int) -> list[tuple[bytes, ...]]:
    return links(rig.proxy.data, [row.call for row in rig.ended_rows(count)])


def test_calls_of_the_same_effect_carry_the_same_digest_and_no_others_do(rig: Rig) -> None:
    rig.post(call("pay", {"order": 1, "note": "a"}))
    rig.post(call("pay", {"note": "b", "order": 1}))
    rig.post(call("pay", {"order": 2}))
    rig.post(call("prepay", {"order": 1}))
    rig.post(call("pay", {"note": "c"}))
    rig.post(call("look", {"order": 1}))
    rig.post(call("read_pay", {"order": 1}))
    one, again, other_order, other_tool, *nameless = own_links(rig, 7)
    assert one == again
    assert len({one, other_order, other_tool}) == 3
    assert {len(found) for found in (one, other_order, other_tool)} == {1}
    assert nameless == [(), (), ()]


def test_plain_calls_have_effects_as_well(rig: Rig) -> None:
    path = f"/s/{rig.session}/pay"
    with rig.client() as client:
        for body in (b'{"order": 1, "n": 1}', b'{"order": 1, "n": 2}', b"no json"):
            assert client.request("POST", path, body).status == 200
    one, again, unread = own_links(rig, 3)
    assert one == again != ()
    assert unread == ()


def test_a_replayed_call_has_no_effect(rig: Rig) -> None:
    key = ("Idempotency-Key", rig.session)
    rig.post(call("pay", {"order": 1}), key)
    rig.post(call("pay", {"order": 1}), key)
    rig.post(call("pay", {"order": 1, "n": 2}))
    sent, replayed, other = (set(each) for each in own_links(rig, 3))
    (effect,) = sent & other
    assert effect not in replayed


def test_in_a_pipe_calls_of_the_same_effect_carry_the_same_digest(tmp_path: Path) -> None:
    with wrapping(tmp_path, rules=RULES) as wrap:
        initialize(wrap)
        for number in (1, 2):
            wrap.server.answer(wrap.asked(call("pay", {"order": 1, "n": number})))
            wrap.stdout.line()
        calls = [row.call for row in wrap.rows()]
    one, again = links(wrap.data, calls)
    assert one == again != ()
