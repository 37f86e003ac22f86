"""Calls that keep failing in the same way are flagged."""

import pytest

from kit.beside import Rig
from kit.clients import call
from kit.upstreams import Peer, echo, ok, result

FAILURE = {"isError": True, "content": [{"type": "text", "text": "no"}]}


def fails(peer: Peer) -> None:
    peer.send_json(result(peer.read().json()["id"], FAILURE))


def flags(rig: Rig, count: int) -> list[bool]:
    return ["loop" in row.flags for row in rig.ended_rows(count)]


@pytest.mark.promise("OUT-26")
def test_the_third_equal_failure_and_later_ones_are_flagged(rig: Rig) -> None:
    rig.upstream.script = fails
    for number, spaces in enumerate(["", " ", "", "  "]):
        body = call("look", {"a": 1}, request_id=number)
        rig.post(body.replace(b'{"a": 1}', b'{"a": %b1}' % spaces.encode()))
    assert flags(rig, 4) == [False, False, True, True]


def test_other_input_and_other_failures_are_counted_separately(rig: Rig) -> None:
    rig.upstream.script = fails
    rig.post(call("look", {"a": 1}))
    rig.post(call("look", {"a": 1}))
    rig.post(call("look", {"a": 2}))
    rig.post(call("see", {"a": 1}))
    rig.upstream.script = lambda peer: peer.send(ok(peer.read().body, status="500 Oops"))
    rig.post(call("look", {"a": 1}))
    rig.upstream.script = echo
    rig.post(call("look", {"a": 1}))
    assert flags(rig, 6) == [False] * 6


def test_another_turn_begins_anew(rig: Rig) -> None:
    rig.upstream.script = fails
    for turn in ("one", "one", "two", "two", "two"):
        rig.post(call("look", {"a": 1}), ("Turnlog-Turn", turn))
    assert flags(rig, 5) == [False, False, False, False, True]
