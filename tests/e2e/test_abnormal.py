"""Abnormal answers, in every revision and form: the kind of each, and that the next call works."""

import json
from collections.abc import Iterator

import pytest

from kit.beside import Rig, ruled
from kit.clients import MCP_HEADERS, Client, call
from kit.faults import CutStream, ResetAfterRequest
from kit.upstreams import Peer, Script, answer, chunked, echo, ok

ERAS = {
    "handshake": MCP_HEADERS,
    "stateless": (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28")),
}
HTML = ok(b"<html><h1>Welcome</h1></html>", media="text/html")


def said(body: bytes, *, status: str = "200 OK") -> Script:
    return answer(ok(body, status=status))


def as_event(body: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        peer.send(chunked(b"data: " + body + b"\n\n"))
        peer.end()

    return script


def rpc(rest: str) -> bytes:
    return ('{"jsonrpc":"2.0","id":1,' + rest + "}").encode()


CUSTOM = rpc('"error":{"code":4242,"message":"no","data":{"why":"because"}}')
ANSWERS: dict[str, tuple[Script, str]] = {
    "503": (said(b"", status="503 Busy"), "upstream_unavailable"),
    "429": (said(b"", status="429 Slow Down"), "rate_limited"),
    "500": (said(b"oops", status="500 Oops"), "upstream_internal"),
    "404": (said(b"", status="404 Not Here"), "invalid_request"),
    "reset": (ResetAfterRequest(), "connection_lost"),
    "200 empty": (said(b""), "null_result"),
    "result null": (said(rpc('"result":null')), "null_result"),
    "result {}": (said(rpc('"result":{}')), "null_result"),
    "cut JSON": (said(rpc('"result":{}')[:-3]), "malformed_result"),
    "HTML": (answer(HTML), "malformed_result"),
    "wrong id": (said(b'{"jsonrpc":"2.0","id":2,"result":{"content":[]}}'), "malformed_result"),
    "custom error": (said(CUSTOM), "upstream_internal"),
    "stream that breaks off": (CutStream(()), "connection_lost"),
    "result null in an event": (as_event(rpc('"result":null')), "null_result"),
    "result {} in an event": (as_event(rpc('"result":{}')), "null_result"),
    "custom error in an event": (as_event(CUSTOM), "upstream_internal"),
}

RULES = "rules: [{name: bounded, timeout: {response: 5s, total: 10s}}]"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def works(rig: Rig, client: Client, era: str) -> bool:
    rig.upstream.script = echo
    given = client.request("POST", rig.path, call("add"), headers=ERAS[era])
    return bool(given.json()["result"]["content"] == [{"type": "text", "text": "done"}])


@pytest.mark.promise("OUT-6")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", ANSWERS)
def test_it_ends_in_its_kind_and_the_next_call_works(rig: Rig, name: str, era: str) -> None:
    script, kind = ANSWERS[name]
    rig.upstream.script = script
    with rig.client() as client:
        client.request("POST", rig.path, call("add"), headers=ERAS[era])
        assert works(rig, client, era)
    with rig.client() as client:
        assert works(rig, client, era)
    abnormal, *after = rig.ended_rows(2)
    assert {row.status for row in after} == {"ok"}
    assert abnormal.kind == kind
    assert abnormal.status in {"error", "unknown"}


@pytest.mark.promise("OUT-7")
@pytest.mark.parametrize("era", ERAS)
def test_an_error_of_the_servers_own_keeps_its_code_and_data(rig: Rig, era: str) -> None:
    rig.upstream.script = said(CUSTOM)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=ERAS[era])
    assert given.body == CUSTOM
    assert json.loads(given.body)["error"]["data"] == {"why": "because"}
    assert given.head.one("turnlog-kind") == "upstream_internal"
    assert rig.row().upstream.code == 4242
