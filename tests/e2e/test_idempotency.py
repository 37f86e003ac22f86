"""A server that honours idempotency keys gets the same key with each attempt of a call."""

from collections.abc import Iterator
from hashlib import sha256
from uuid import UUID

import pytest

from kit.beside import Rig, ruled
from kit.clients import MCP_HEADERS, call, message
from kit.faults import ResetAfterRequest
from kit.upstreams import Peer, Script, answer, echo, ok

RULES = """
rules:
  - {match: {tool: "*_named"}, effect: irreversible}
  - {match: {tool: "read*"}, effect: read}
  - {match: {tool: ["keyed*", "read*", "POST /keyed"], method: [tools/call, POST]}, idempotency: header}
  - {match: {tool: "*_once"}, retry: {on: auth}}
  - {retry: {on: [connection, tool_error, timeout, conflict], base_interval: 10ms}}
"""
OWN = ("Idempotency-Key", '"of the caller"')


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


class Then:
    """Fail once, then answer."""

    def __init__(self, first: Script) -> None:
        self._scripts = [first]

    def __call__(self, peer: Peer) -> None:
        """Play the next script."""
        (self._scripts.pop() if self._scripts else echo)(peer)


def keys(rig: Rig) -> list[list[bytes]]:
    return [
        request.all(b"idempotency-key")
        for request in rig.upstream.requests
        if b"notifications/" not in request.body
    ]


FAULTS: dict[str, Script] = {
    "reset": ResetAfterRequest(),
    "unavailable": answer(ok(b"later", media="text/plain", status="503 Service Unavailable")),
    "internal error": answer(ok(b"oops", status="500 Oops")),
    "conflict": answer(ok(b"busy", status="409 Conflict")),
}


@pytest.mark.promise("RULE-10")
@pytest.mark.parametrize("tool", ["keyed", "keyed_named"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_call_with_a_key_is_retried_whatever_its_effect(rig: Rig, name: str, tool: str) -> None:
    rig.upstream.script = Then(FAULTS[name])
    assert b"done" in rig.post(call(tool))
    first, second = rig.ended_rows(2)
    assert (first.attempt, second.attempt, second.status) == (1, 2, "ok")
    (key,), again = keys(rig)
    assert again == [key]
    assert str(UUID(key.decode().strip('"'))) == first.call
    assert key.startswith(b'"')


def test_each_call_has_a_key_of_its_own(rig: Rig) -> None:
    rig.post(call("keyed"))
    rig.post(call("keyed"))
    one, other = keys(rig)
    assert one != other


@pytest.mark.parametrize(
    ("meta", "sent"),
    [
        ("mine", b'"mine"'),
        ('a "b" \\', b'"a \\"b\\" \\\\"'),
        ("schlüssel", f'"{sha256("schlüssel".encode()).hexdigest()}"'.encode()),
    ],
)
def test_a_key_in_the_message_is_the_one_that_is_sent(rig: Rig, meta: str, sent: bytes) -> None:
    rig.upstream.script = Then(FAULTS["reset"])
    rig.post(call("keyed", {"session": rig.session}, _meta={"turnlog/key": meta}))
    assert keys(rig) == [[sent], [sent]]


@pytest.mark.promise("RULE-10")
def test_a_key_in_the_header_stays_as_it_is(rig: Rig) -> None:
    rig.upstream.script = Then(FAULTS["reset"])
    rig.post(call("keyed"), OWN)
    assert keys(rig) == [[OWN[1].encode()]] * 2


def test_a_plain_call_gets_a_key_too(rig: Rig) -> None:
    rig.upstream.script = Then(FAULTS["reset"])
    with rig.client() as client:
        assert client.request("POST", f"/s/{rig.session}/keyed", b"{}").status == 200
    one, other = keys(rig)
    assert one == other
    assert len(one) == 1


def test_a_read_gets_no_key(rig: Rig) -> None:
    rig.post(call("read"))
    assert keys(rig) == [[]]


def test_a_request_that_is_not_a_call_gets_no_key(rig: Rig) -> None:
    rig.post(message("tools/list"))
    assert keys(rig) == [[]]


@pytest.mark.promise("RULE-9")
def test_without_a_rule_a_key_of_the_caller_changes_nothing(rig: Rig) -> None:
    rig.upstream.script = Then(FAULTS["internal error"])
    with rig.client() as client:
        given = client.request("POST", rig.path, call("other"), headers=(*MCP_HEADERS, OWN))
    assert given.status == 500
    assert keys(rig) == [[OWN[1].encode()]]


@pytest.mark.promise("RULE-9")
def test_a_key_alone_makes_no_second_attempt(rig: Rig) -> None:
    rig.upstream.script = Then(FAULTS["internal error"])
    with rig.client() as client:
        given = client.request("POST", rig.path, call("keyed_once"), headers=MCP_HEADERS)
    assert given.status == 500
    assert len(keys(rig)) == 1
