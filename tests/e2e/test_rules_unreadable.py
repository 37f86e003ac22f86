"""Odd or unreadable arguments and results do not bypass a rule."""

from collections.abc import Iterator

import pytest

from kit.beside import Rig, ruled
from kit.clients import call
from kit.faults import ResetAfterRequest
from kit.proxy import payloads
from kit.upstreams import answer, ok

RULES = """
rules:
  - name: over 100 is final
    match: {tool: pay, when: "$.args[?@ > 100]"}
    effect: irreversible
  - name: only a tool that is known may drop
    match: {tool: sql, when: "$.args[?@ == 'drop']"}
    provenance: pinned
  - {match: {method: POST, when: "$.args.body[?@ > 100]"}, effect: irreversible}
  - {match: {tool: [pay, "POST *"]}, effect: idempotent_write}
  - {match: {tool: deep}, effect: read, redact: "$..pin"}
  - match: {tool: state}
    map_error: [{kind: rate_limited, when: "$.result.structuredContent[?@ == 'busy']"}]
  - {match: {tool: wish}, expects: content, null_when: "$.result.structuredContent[?@ == 'none']"}
  - {retry: {on: connection, max_attempts: 2, base_interval: 10ms}}
"""
DEEP = b"[" * 1100 + b"]" * 1100
ODD = {
    "plain": b'"hi"',
    "half a pair": b'"hi \\ud83d"',
    "huge": b"1e400",
    "long": b"9" * 5000,
    "nan": b"NaN",
    "no utf-8": b'"\xff"',
    "deep": DEEP,
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def asking(tool: str, arguments: bytes) -> bytes:
    return call(tool).replace(b'"arguments": {}', b'"arguments": ' + arguments)


@pytest.mark.promise("RULE-25")
@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_an_irreversible_call_with_odd_arguments_stays_irreversible(rig: Rig, odd: bytes) -> None:
    rig.upstream.script = ResetAfterRequest()
    rig.post(asking("pay", b'{"amount":500,"note":%b}' % odd))
    row = rig.row()
    assert (row.effect, row.kind, row.retry) == ("irreversible", "connection_lost", "unsafe")


@pytest.mark.parametrize(
    "odd", [one for name, one in ODD.items() if name not in {"deep", "huge", "long"}]
)
def test_an_odd_but_readable_argument_makes_a_call_no_worse_than_it_is(
    rig: Rig, odd: bytes
) -> None:
    rig.upstream.script = ResetAfterRequest()
    rig.post(asking("pay", b'{"amount":50,"note":%b}' % odd))
    assert [row.effect for row in rig.ended_rows(2)] == ["idempotent_write"] * 2


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_a_tool_that_must_be_pinned_and_is_not_is_not_called(rig: Rig, odd: bytes) -> None:
    rig.post(asking("sql", b'{"do":"drop","n":%b}' % odd))
    assert rig.row().kind == "unverified_provenance"
    assert rig.upstream.requests == []


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_a_plain_call_is_read_as_cautiously_as_an_mcp_call(rig: Rig, odd: bytes) -> None:
    rig.upstream.script = ResetAfterRequest()
    with rig.client() as client:
        body = b'{"amount":500,"note":%b}' % odd
        client.request(
            "POST", f"/s/{rig.session}/pay", body, headers=(("Content-Type", "application/json"),)
        )
    assert rig.row().effect == "irreversible"


def test_a_secret_nested_too_deeply_removes_the_whole_value(rig: Rig) -> None:
    rig.post(asking("deep", b'{"a":%b{"pin":"1234-5678"}%b}' % (b"[" * 200, b"]" * 200)))
    assert "redacted" in rig.row().flags
    assert not [kept for kept in payloads(rig.proxy.data) if b"1234-5678" in kept]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(
    ("tool", "word", "kind"), [("state", "busy", "rate_limited"), ("wish", "none", "null_result")]
)
def test_a_result_is_judged_whatever_else_it_holds(
    rig: Rig, tool: str, word: str, kind: str, name: str
) -> None:
    said = b'{"content":[{"type":"text","text":"x"}],"structuredContent":{"x":"%b","e":%b}}'
    body = b'{"jsonrpc":"2.0","id":1,"result":%b}' % (said % (word.encode(), ODD[name]))
    rig.upstream.script = answer(ok(body))
    rig.post(call(tool))
    row = rig.row()
    if name == "deep":
        assert (row.kind, "not_searched" in row.flags) == (None, True)
    else:
        assert (row.kind, "not_searched" in row.flags) == (kind, False)
