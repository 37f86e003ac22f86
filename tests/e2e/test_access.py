"""Denied calls are never sent, over any transport, and their callers get the reason."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, proxy_beside, ruled
from kit.clients import MCP_HEADERS, call, message
from kit.commands import Agent, settings
from kit.upstreams import answer, echo, ok, text_result
from kit.wraps import outcome, wrapping

RULES = """
rules:
  - name: only reads
    match: {tool: "delete*"}
    access: deny
    why: ask the owner
  - name: no admin
    match: {path: /admin/**}
    access: deny
  - {match: {tool: "*_file"}, effect: write}
"""
DENIED = call("delete_file", {"path": "/a"})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def sent(rig: Rig) -> list[str]:
    """Return the methods of the messages that the server has got."""
    return [str(request.json().get("method")) for request in rig.upstream.requests]


@pytest.mark.promise("ACC-1")
def test_a_denied_call_is_not_sent_and_says_which_rule_denies_it(rig: Rig) -> None:
    said = json.loads(rig.post(DENIED))

    assert (outcome(said)["kind"], outcome(said)["executed"]) == ("policy_blocked", "no")
    assert outcome(said)["retry"] == "never"
    text = said["result"]["content"][0]["text"]
    assert text.startswith("the rule 'only reads' denies calls of 'delete_file' of 'default': ask")
    assert "the call was not sent" in text
    assert rig.upstream.requests == []
    row = rig.row()
    assert (row.status, row.kind, row.phase) == ("error", "policy_blocked", "queued")


@pytest.mark.promise("ACC-2")
def test_other_calls_go_on(rig: Rig) -> None:
    rig.upstream.script = answer(ok(json.dumps(text_result(1, "done")).encode()))
    assert b"done" in rig.post(call("read_file"))


def test_a_session_has_the_client_that_its_calls_name_whatever_came_before(rig: Rig) -> None:
    info = {"io.modelcontextprotocol/clientInfo": {"name": "the-agent", "version": "9"}}
    rig.upstream.script = answer(ok(json.dumps(text_result(1, "done")).encode()))
    agent = ("User-Agent", "python-sdk/2")
    rig.post(message("tools/list"), agent)
    rig.post(call("read_file", _meta=info), agent)
    rig.row()
    listed = turnlog("sessions", "--json", data=rig.proxy.data).stdout.splitlines()
    (line,) = [json.loads(each) for each in listed if rig.session in each]
    assert line["metadata"]["client"] == "the-agent"
    assert line["metadata"]["client_version"] == "9"


@pytest.mark.promise("ACC-3")
def test_a_batch_with_a_denied_call_is_not_sent(rig: Rig) -> None:
    batch = [call("read_file", request_id=1), call("delete_file", request_id=2)]
    batch += [message("ping", request_id=3)]

    said = json.loads(rig.post(b"[" + b",".join(batch) + b"]"))

    assert rig.upstream.requests == []
    assert [one["id"] for one in said] == [1, 2, 3]
    assert {outcome(one)["kind"] for one in said[:2]} == {"policy_blocked"}
    assert {row.kind for row in rig.ended_rows(2)} == {"policy_blocked"}


@pytest.mark.promise("ACC-4")
@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","name":"delete_file"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file","name":"read"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"ping","params":{"name":"delete_file"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools\\/call","params":{"name":"delete\\u005ffile"}}',
        b"[" + b",".join([call("read", request_id=n) for n in range(300)]) + b"]",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{"a":"'
        + b"x" * (5 << 20)
        + b'"}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{"a":"'
        + b"x" * (17 << 20)
        + b'"}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read"',
    ],
    ids=["first", "last", "method", "no name", "escapes", "batch", "5 MiB", "17 MiB", "broken"],
)
def test_an_ambiguous_body_under_a_denial_is_refused(rig: Rig, body: bytes) -> None:
    with rig.client() as client:
        headers = (*MCP_HEADERS, ("Mcp-Protocol-Version", "2025-11-25"))
        client.request("POST", rig.path, body, headers=headers)

    assert rig.upstream.requests == []
    assert {row.kind for row in rig.ended_rows(1)} == {"policy_blocked"}


def test_an_encoded_body_is_read_or_refused(rig: Rig) -> None:
    for coding, body in (("gzip", gzip.compress(DENIED)), ("x-unknown", DENIED)):
        with rig.client() as client:
            headers = (*MCP_HEADERS, ("Content-Encoding", coding))
            client.request("POST", rig.path, body, headers=headers)
    assert rig.upstream.requests == []
    assert [row.kind for row in rig.ended_rows(2)] == ["policy_blocked"] * 2


@pytest.mark.promise("ACC-4")
def test_a_refusal_of_an_unreadable_call_gives_that_reason_and_not_the_rules_own(
    rig: Rig,
) -> None:
    said = json.loads(rig.post(DENIED, ("Content-Encoding", "x-unknown")))

    text = said["result"]["content"][0]["text"]
    assert "the rule 'only reads' denies" in text
    assert "cannot be read for certain" in text
    assert "ask the owner" not in text


LOOKALIKES = {
    "without jsonrpc": b'{"id":1,"method":"tools/call","params":{"name":"delete_file"}}',
    "another version": DENIED.replace(b'"2.0"', b'"1.0"'),
    "another case": DENIED.replace(b'"method":', b'"method":"ping","Method":'),
    "another name": DENIED.replace(b'"name":', b'"name":"read","Name":'),
    "in UTF-16": DENIED.decode().encode("utf-16"),
    "in UTF-32": DENIED.decode().encode("utf-32-le"),
    "with a comma": DENIED[:-1] + b",}",
    "two in one": message("ping") + b"\n" + DENIED,
    "in an array": b"[[" + DENIED + b"]]",
    "beside others": b"[" + message("ping") + b",[" + DENIED + b"]]",
    "in an answer": b'{"jsonrpc":"2.0","id":1,"result":{},"Method":"tools/call","Params":{"name":"delete_file"}}',
    "large": b'{"x":"' + b"y" * (3 << 20) + b'",' + DENIED[1:],
}


@pytest.mark.promise("ACC-5")
@pytest.mark.parametrize("body", LOOKALIKES.values(), ids=LOOKALIKES)
def test_a_message_that_some_servers_read_as_a_denied_call_is_refused(
    rig: Rig, body: bytes
) -> None:
    with rig.client() as client:
        client.request("POST", rig.path, body, headers=(("Content-Type", "application/json"),))

    assert rig.upstream.requests == []
    assert {row.kind for row in rig.ended_rows(1)} == {"policy_blocked"}


@pytest.mark.promise("ACC-5")
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "GET"])
def test_a_denied_call_in_another_method_than_post_is_refused(rig: Rig, method: str) -> None:
    with rig.client() as client:
        client.request(method, rig.path, DENIED, headers=MCP_HEADERS)
    assert rig.upstream.requests == []


@pytest.mark.promise("ACC-2")
@pytest.mark.parametrize("body", [b'{"method":"card","sum":3}', b'[{"a":1}]', b"a=1&b={}"])
def test_a_plain_body_that_holds_no_call_goes_on(rig: Rig, body: bytes) -> None:
    rig.upstream.script = echo
    with rig.client() as client:
        got = client.request("POST", f"/s/{rig.session}/default/pay", body)
    assert got.status in {200, 202}, got.body
    assert [request.body for request in rig.upstream.requests] == [body]


@pytest.mark.promise("ACC-6")
@pytest.mark.parametrize(
    ("method", "body", "headers"),
    [
        ("DELETE", b"", (("Accept", "text/event-stream"),)),
        ("DELETE", b"", (("Mcp-Anything", "1"),)),
        ("GET", b"", (("Mcp-Session-Id", "1"),)),
        ("POST", message("ping"), MCP_HEADERS),
        ("POST", call("read"), MCP_HEADERS),
        ("POST", b'{"jsonrpc":"2.0","id":1,"result":{}}', MCP_HEADERS),
    ],
    ids=["events", "header", "session", "ping", "call", "answer"],
)
def test_a_body_that_looks_like_mcp_does_not_open_a_denied_path(
    rig: Rig, method: str, body: bytes, headers: tuple[tuple[str, str], ...]
) -> None:
    with rig.client() as client:
        path = f"/s/{rig.session}/default/admin/users"
        got = client.request(method, path, body, headers=headers)
    assert got.status == 403, got.body
    assert rig.upstream.requests == []


def test_a_list_of_allowed_tools_leaves_only_the_mcp_endpoint_open(
    tmp_path: Path,
) -> None:
    rules = "rules: [{match: {tool: read}, access: allow}, {name: nothing else, access: deny}]"
    with ruled(tmp_path, rules) as rig:
        rig.fresh()
        rig.upstream.script = echo
        with rig.client() as client:
            for method, body in (("POST", message("initialize")), ("GET", b""), ("DELETE", b"")):
                assert client.request(method, rig.path, body, headers=MCP_HEADERS).status == 200
            seen = len(rig.upstream.requests)
            other = f"/s/{rig.session}/default/other"
            for method, body in (("POST", message("ping")), ("GET", b""), ("DELETE", b"")):
                assert client.request(method, other, body, headers=MCP_HEADERS).status == 403
        assert (seen, len(rig.upstream.requests)) == (3, 3)


@pytest.mark.promise("ACC-6")
@pytest.mark.parametrize(
    "path", ["/admin/users", "/x/../admin/users", "/%61dmin/users", "//admin/users", "/./admin/1"]
)
def test_a_denied_path_is_denied_however_it_is_spelt(rig: Rig, path: str) -> None:
    rig.upstream.script = echo
    with rig.client() as client:
        got = client.request("GET", f"/s/{rig.session}/default{path}")
    assert got.status == 403, got.body
    assert got.head.one("turnlog-kind") == "policy_blocked", got.body
    assert rig.upstream.requests == []


@pytest.mark.promise("ACC-7")
def test_a_denied_call_is_not_answered_from_an_earlier_one(tmp_path: Path) -> None:
    with ruled(tmp_path, "rules: [{match: {tool: put}, effect: write}]") as rig:
        rig.fresh()
        rig.upstream.script = answer(ok(json.dumps(text_result(1, "done")).encode()))
        key = ("Idempotency-Key", "one")
        assert b"done" in rig.post(call("put"), key)
        (tmp_path / "rules.yaml").write_text(
            "rules: [{name: none, match: {tool: put}, effect: write, access: deny}]"
        )
        rig.proxy.told("rules.reloaded")
        said = json.loads(rig.post(call("put"), key))
        assert outcome(said)["kind"] == "policy_blocked"
        assert len(rig.upstream.requests) == 1


@pytest.mark.promise("ACC-8")
def test_a_wrapped_command_gets_no_denied_call(tmp_path: Path) -> None:
    with wrapping(tmp_path, rules=RULES) as wrap:
        wrap.send(DENIED)
        assert outcome(wrap.stdout.json())["kind"] == "policy_blocked"
        twice = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a","name":"b"}}'
        wrap.send(twice)
        assert outcome(wrap.stdout.json())["kind"] == "policy_blocked"
        # Python's text files end lines at CR as well: the server would read the call by itself.
        wrap.send(message("ping", request_id=4)[:-1] + b',"params":{"a":\r' + DENIED + b"\r}}")
        assert outcome(wrap.stdout.json())["kind"] == "policy_blocked"
        wrap.send(DENIED.replace(b'"jsonrpc":"2.0",', b""))
        assert outcome(wrap.stdout.json())["kind"] == "policy_blocked"
        wrap.send(b'{"id":9,' + DENIED)
        assert wrap.asked(call("read", request_id=3))["params"]["name"] == "read"
    assert [row.kind for row in wrap.rows()][:5] == ["policy_blocked"] * 5


@pytest.mark.promise("ACC-8")
def test_a_command_behind_serve_gets_no_denied_call(tmp_path: Path) -> None:
    (tmp_path / "deny.yaml").write_text(
        "rules: [{name: quiet, match: {tool: say}, access: deny, why: be quiet}]"
    )
    with proxy_beside(tmp_path, settings={**settings(), "rules": ["deny.yaml"]}) as proxy:
        agent = Agent(proxy)
        said = agent.post(call("say", {"text": "x"})).json()
        assert outcome(said)["kind"] == "policy_blocked"
        agent.client.close()
