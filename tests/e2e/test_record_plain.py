"""Plain HTTP tools: the name of the tool, the input, and the outcome."""

import hashlib
import json
from pathlib import Path

import pytest

from kit.beside import Rig, proxy_beside, ruled
from kit.clients import MCP_HEADERS, call
from kit.proxy import payloads
from kit.upstreams import Peer, RawUpstream, answer, ok

TOOLS = [
    ("GET", "/orders", "GET /orders"),
    ("GET", "/orders/17", "GET /orders/*"),
    ("GET", "/orders/17/items?x=1", "GET /orders/*/items"),
    ("PUT", "/v1/users/abcdefghijklmnopqrstuvwxyz", "PUT /*/users/*"),
    ("DELETE", "/a//b/", "DELETE /a//b/"),
    ("POST", "/", "POST /"),
    ("PATCH", "/caf%C3%A9", "PATCH /*"),
]


@pytest.mark.promise("REC-17")
@pytest.mark.parametrize(("method", "path", "tool"), TOOLS)
def test_a_tool_is_a_method_and_a_pattern(rig: Rig, method: str, path: str, tool: str) -> None:
    with rig.client() as client:
        client.request(method, f"/s/{rig.session}{path}", b"{}" if method == "POST" else b"")
    row = rig.row()
    assert (row.tool, row.method, row.upstream.protocol) == (tool, method, "http/1.1")


EFFECTS = {
    "GET": "read",
    "HEAD": "read",
    "OPTIONS": "read",
    "PUT": "idempotent_write",
    "DELETE": "idempotent_write",
    "POST": "unknown",
    "PATCH": "unknown",
    "PURGE": "unknown",
}


@pytest.mark.promise("RULE-24")
@pytest.mark.parametrize("method", EFFECTS)
def test_the_method_suggests_the_effect(rig: Rig, method: str) -> None:
    with rig.client() as client:
        client.request(method, f"/s/{rig.session}/orders")
    assert rig.row().effect == EFFECTS[method]


RULES = """
rules:
  - {name: all, match: {path: /orders/*}, redact: []}
  - {name: one, match: {path: /orders/1}, effect: write}
  - {name: rest, match: {method: GET}, effect: unknown}
"""


def test_a_rule_for_one_path_does_not_apply_to_others(tmp_path: Path) -> None:
    with ruled(tmp_path, RULES) as rig:
        rig.session = "paths"
        with rig.client() as client:
            for path in ("orders/1", "orders/2", "orders/1", "other/1", "other/2"):
                client.request("GET", f"/s/{rig.session}/{path}")
        effects = [row.effect for row in rig.ended_rows(5)]
    assert effects == ["write", "unknown", "write", "unknown", "unknown"]


def hashed(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return "sha256:" + hashlib.sha256(text).hexdigest()


@pytest.mark.promise("REC-17")
def test_the_input_is_path_query_and_body(rig: Rig) -> None:
    body = b'{ "b" : 1, "a" : [ ] }'
    with rig.client() as client:
        client.request("POST", f"/s/{rig.session}/orders/17?x=1&y=%20", body)
    wanted: dict[str, object] = {
        "path": "/orders/17",
        "query": "x=1&y=%20",
        "body": {"a": [], "b": 1},
    }
    assert rig.row().input_hash == hashed(wanted)


def test_a_call_without_body_has_a_null_body(rig: Rig) -> None:
    with rig.client() as client:
        client.request("GET", f"/s/{rig.session}/orders")
    assert rig.row().input_hash == hashed({"path": "/orders", "query": "", "body": None})


def test_equal_inputs_have_equal_hashes_and_others_have_not(rig: Rig) -> None:
    bodies = (b"raw bytes \xff", b"raw bytes \xff", b"raw bytes \xfe", b'{"a": 1}', b'{"a":1}')
    with rig.client() as client:
        for body in bodies:
            client.request("PUT", f"/s/{rig.session}/x", body)
    hashes = [row.input_hash for row in rig.ended_rows(5)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[3] == hashes[4]


ITEMS = json.dumps({"items": [f"item {number}" for number in range(200_000)]}).encode()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_large_json_body_is_recorded_by_its_start(rig: Rig, mark: bytes) -> None:
    with rig.client() as client:
        client.request("PUT", f"/s/{rig.session}/x?of={rig.session}", mark + ITEMS)
    assert rig.upstream.requests[0].body == mark + ITEMS
    row = rig.row()
    assert (row.input_hash, row.flags) == (None, ["truncated_record"])
    kept = kept_of(rig)
    place = f'{{"path":"/x","query":"of={rig.session}","body_start":{{"items": ["item 0", "item 1",'
    assert kept.startswith(place.encode())
    assert 60_000 < len(kept) < 70_000


@pytest.mark.promise("REC-18")
@pytest.mark.parametrize(
    "body",
    [
        b"a line of text\n" * 140_000,
        b"x" * (2 << 20),
        bytes(range(256)) * 8192,
        b"user=a&password=hunter2&file=" + b"x" * (2 << 20),
    ],
    ids=["text", "one run", "binary", "form"],
)
def test_a_large_body_that_is_not_json_is_recorded_by_path_query_and_digest(
    rig: Rig, body: bytes
) -> None:
    with rig.client() as client:
        client.request("POST", f"/s/{rig.session}/x?of={rig.session}", body)
    assert rig.upstream.requests[0].body == body
    row = rig.row()
    assert (row.input_hash, row.flags, row.bytes_in) == (None, ["truncated_record"], len(body))
    said = json.loads(kept_of(rig))
    assert (said["path"], said["query"]) == ("/x", f"of={rig.session}")
    assert said["body_start"].startswith("hmac-sha256:")
    assert set(said) == {"path", "query", "body_start"}


def kept_of(rig: Rig) -> bytes:
    """Return the input that was recorded of this test's call, which names its session."""
    (kept,) = [text for text in payloads(rig.proxy.data) if f"of={rig.session}".encode() in text]
    return kept


@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("text/plain", b"a line of text\n" * 140_000),
        ("application/octet-stream", bytes(range(256)) * 8192),
        ("application/json", ITEMS),
        ("application/json", b"\xef\xbb\xbf" + ITEMS),
    ],
)
def test_the_start_of_a_large_answer_is_recorded(rig: Rig, media: str, body: bytes) -> None:
    body = body[:10] + rig.session.encode() + body[10:]
    rig.upstream.script = answer(ok(body, media=media))
    with rig.client() as client:
        assert client.request("GET", f"/s/{rig.session}/x").body == body
    row = rig.row()
    assert (row.status, row.flags, row.bytes_out) == ("ok", ["truncated_record"], len(body))
    found = [text for text in payloads(rig.proxy.data) if text and body.startswith(text)]
    assert max(map(len, found)) > 1_000_000


STATUSES = [
    (200, "ok", "yes"),
    (204, "ok", "yes"),
    (302, "ok", "yes"),
    (400, "invalid_request", "no"),
    (401, "unauthenticated", "no"),
    (404, "not_found", "no"),
    (409, "conflict", "maybe"),
    (429, "rate_limited", "no"),
    (500, "upstream_internal", "maybe"),
    (503, "upstream_unavailable", "maybe"),
]


@pytest.mark.parametrize(("status", "wanted", "executed"), STATUSES)
def test_the_status_decides_the_outcome_of_a_plain_call(
    rig: Rig, status: int, wanted: str, executed: str
) -> None:
    rig.upstream.script = answer(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
    with rig.client() as client:
        client.request("POST", f"/s/{rig.session}/x", b"1")
    row = rig.row()
    assert (row.kind or row.status, row.executed, row.upstream.code) == (wanted, executed, status)
    assert row.status == ("ok" if row.kind is None else "error")


@pytest.mark.parametrize(
    ("method", "head", "body", "flags"),
    [
        ("POST", "200 OK", b"", ["null_result"]),
        ("POST", "202 Accepted", b"", ["null_result"]),
        ("POST", "200 OK", b"null", ["null_result"]),
        ("POST", "200 OK", b"[]", []),
        ("DELETE", "204 No Content", b"", []),
        ("POST", "302 Found", b"", ["redirected"]),
        ("POST", "304 Not Modified", b"", []),
        ("HEAD", "200 OK", b"", []),
    ],
)
def test_a_body_that_is_missing_is_flagged_and_no_error(
    rig: Rig, method: str, head: str, body: bytes, flags: list[str]
) -> None:
    length = b"" if head.startswith("204") else b"Content-Length: %d\r\n" % len(body)
    rig.upstream.script = answer(b"HTTP/1.1 %b\r\n%b\r\n%b" % (head.encode(), length, body))
    with rig.client() as client:
        client.request(method, f"/s/{rig.session}/x", b"1" if method == "POST" else b"")
    row = rig.row()
    assert (row.status, row.flags) == ("ok", flags)


SUMMARIES = [
    ("text/plain", b"all is well\n", "all is well"),
    ("application/json", b'{"a": 1}', '{"a": 1}'),
    ("image/png", b"\x89PNG\r\n" + bytes(2048), "2 KiB image/png"),
    ("text/plain", b"\x1b[31mred\x1b[0m\x07", "red"),
    ("text/plain", b"", "empty"),
]


@pytest.mark.parametrize(("media", "body", "summary"), SUMMARIES)
def test_the_answer_is_summed_up(rig: Rig, media: str, body: bytes, summary: str) -> None:
    rig.upstream.script = answer(ok(body, media=media))
    with rig.client() as client:
        assert client.request("GET", f"/s/{rig.session}/x").body == body
    row = rig.row()
    assert (row.output_summary, row.bytes_out) == (summary, len(body))


def test_a_stream_of_a_plain_tool_is_its_answer(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events()
        for number in range(3):
            peer.send_event({"n": number})
        peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        client.request("POST", f"/s/{rig.session}/watch", b'{"from": 1}')
    row = rig.row()
    assert (row.status, row.tool) == ("ok", "POST /watch")


@pytest.mark.promise("REC-19")
def test_well_known_documents_and_listening_are_no_calls(rig: Rig) -> None:
    path = f"/s/{rig.session}"
    with rig.client() as client:
        client.request("GET", f"{path}/.well-known/oauth-protected-resource")
        client.request("GET", f"{path}/mcp", headers=(("Accept", "text/event-stream"),))
        client.request("DELETE", f"{path}/mcp", headers=(("Mcp-Session-Id", "x"),))
        client.request("POST", f"{path}/mcp", call("last"), headers=MCP_HEADERS)
    assert [row.tool for row in rig.ended_rows()] == ["last"]


DISCOVERY = (
    "/.well-known/oauth-protected-resource/mcp",
    "/.well-known/openid-configuration",
    "/mcp/.well-known/oauth-authorization-server",
    "/tenant/one/.well-known/openid-configuration",
)


@pytest.mark.parametrize("path", DISCOVERY)
def test_discovery_documents_anywhere_in_the_path_are_no_calls(rig: Rig, path: str) -> None:
    with rig.client() as client:
        client.request("GET", f"/s/{rig.session}{path}")
        client.request("HEAD", f"/s/{rig.session}{path}")
        client.request("POST", f"/s/{rig.session}{path}", call("last"))
    assert [row.tool for row in rig.ended_rows()] == ["last"]


@pytest.mark.parametrize("path", ["/mcp", "/sse", "/v1/mcp"])
def test_probes_of_an_mcp_endpoint_are_no_calls_before_its_first_message(
    rig: Rig, path: str
) -> None:
    path = f"/s/{rig.session}{path}"
    with rig.client() as client:
        for method in ("GET", "HEAD", "OPTIONS"):
            assert client.request(method, path).status == 200
        client.request("POST", path, call("last"))
    assert [row.tool for row in rig.ended_rows()] == ["last"]


def test_a_path_that_a_json_rpc_message_went_to_has_no_plain_calls(rig: Rig) -> None:
    path = f"/s/{rig.session}/agents/7"
    with rig.client() as client:
        client.request("HEAD", path)
        client.request("POST", path, call("first"))
        for method in ("GET", "HEAD", "OPTIONS", "DELETE"):
            client.request(method, path)
        client.request("GET", f"{path}/else")
    tools = [row.tool for row in rig.ended_rows(3)]
    assert tools == ["HEAD /agents/*", "first", "GET /agents/*/else"]


def test_json_that_is_no_json_rpc_is_a_plain_call(rig: Rig) -> None:
    with rig.client() as client:
        client.request("POST", f"/s/{rig.session}/graphql", b'{"query": "{ me }", "id": 1}')
    assert rig.row().tool == "POST /graphql"


def test_json_rpc_on_any_path_is_mcp(rig: Rig) -> None:
    with rig.client() as client:
        client.request("POST", f"/s/{rig.session}/any/path", call("add"))
    assert rig.row().tool == "add"


@pytest.mark.parametrize("transport", ["mcp", "http"])
def test_the_transport_can_be_set(tmp_path_factory: pytest.TempPathFactory, transport: str) -> None:
    with RawUpstream() as upstream:
        settings = {"upstreams": {"default": {"url": upstream.url, "transport": transport}}}
        with proxy_beside(tmp_path_factory.mktemp("proxy"), settings=settings) as proxy:
            rig = Rig(upstream, proxy)
            rig.fresh()
            with rig.client() as client:
                client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
                client.request("GET", f"/s/{rig.session}/plain")
            expected = ["add"] if transport == "mcp" else ["POST /mcp", "GET /plain"]
            assert [row.tool for row in rig.ended_rows(len(expected))] == expected
