"""The log record of each kind of call and answer."""

import hashlib
import json
from typing import Any

import pytest

from kit.beside import Rig
from kit.clients import MCP_HEADERS, call, message, untold
from kit.upstreams import answer, chunked, event, ok, text_result
from turnlog.core.classify import MEANINGS
from turnlog.core.kinds import ErrorKind

TEXT = {"content": [{"type": "text", "text": "done"}]}


def rpc(value: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode()


def error(code: int, message: str = "no") -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}}
    ).encode()


ANSWERS: list[tuple[str, int, bytes, dict[str, Any]]] = [
    ("ok", 200, rpc(TEXT), {"status": "ok", "executed": "yes", "summary": "done"}),
    (
        "tool error",
        200,
        rpc({**TEXT, "isError": True}),
        {"kind": "tool_failed", "retry": "never", "executed": "maybe", "summary": "error: done"},
    ),
    (
        "method unknown",
        200,
        error(-32601),
        {"kind": "tool_not_found", "executed": "no", "code": -32601},
    ),
    (
        "bad params",
        200,
        error(-32602),
        {"kind": "invalid_request", "executed": "no", "code": -32602},
    ),
    (
        "internal",
        200,
        error(-32603),
        {"kind": "upstream_internal", "executed": "maybe", "code": -32603},
    ),
    ("own code", 200, error(7, "x"), {"kind": "upstream_internal", "executed": "maybe", "code": 7}),
    (
        "bad header",
        400,
        error(-32020),
        {"kind": "invalid_request", "executed": "no", "code": -32020},
    ),
    ("gone", 404, b"{}", {"kind": "invalid_request", "executed": "no", "code": 404}),
    ("unauthorized", 401, b"", {"kind": "unauthenticated", "executed": "no", "code": 401}),
    ("teapot", 418, b"short", {"kind": "invalid_request", "executed": "no", "code": 418}),
    ("busy", 429, b"slow down", {"kind": "rate_limited", "retry": "safe", "executed": "no"}),
    ("busy, as an error", 429, error(-32000), {"kind": "rate_limited", "code": -32000}),
    ("broken", 500, b"<html>", {"kind": "upstream_internal", "retry": "unsafe", "code": 500}),
    ("unavailable", 503, b"", {"kind": "upstream_unavailable", "retry": "unsafe", "code": 503}),
    ("unauthorized, null", 401, rpc(None), {"kind": "unauthenticated", "executed": "no"}),
    ("unauthorized, failed", 403, rpc({**TEXT, "isError": True}), {"kind": "permission_denied"}),
    ("unauthorized, elicits", 401, error(-32042), {"kind": "unauthenticated", "code": -32042}),
    ("bad request, empty object", 400, rpc({}), {"kind": "invalid_request", "executed": "no"}),
    ("broken, no content", 500, rpc({"_meta": {}}), {"kind": "upstream_internal"}),
    ("moved", 308, b"", {"kind": "invalid_request", "executed": "no", "flags": ["redirected"]}),
    ("see other", 303, b"", {"kind": "malformed_result", "executed": "maybe"}),
    ("null", 200, rpc(None), {"kind": "null_result", "flags": ["null_result", "void"]}),
    ("empty object", 200, rpc({}), {"kind": "null_result", "retry": "unsafe", "executed": "yes"}),
    ("no content", 200, rpc({"_meta": {}}), {"kind": "null_result", "executed": "yes"}),
    ("content null", 200, rpc({"content": None}), {"kind": "null_result", "executed": "yes"}),
    ("content empty", 200, rpc({"content": []}), {"status": "ok", "flags": ["null_result"]}),
    ("structured alone", 200, rpc({"structuredContent": {"a": 1}}), {"status": "ok", "flags": []}),
    ("empty list", 200, rpc({"structuredContent": {"result": []}}), {"flags": ["empty"]}),
    (
        "blank text",
        200,
        rpc({"content": [{"type": "text", "text": " "}]}),
        {"flags": ["null_result"]},
    ),
    (
        "a number",
        200,
        rpc(5),
        {"kind": "malformed_result", "flags": ["malformed"], "executed": "maybe"},
    ),
    ("a text", 200, rpc("x"), {"kind": "malformed_result", "flags": ["malformed"]}),
    ("false", 200, rpc(False), {"kind": "malformed_result", "flags": ["malformed"]}),
    ("an array", 200, rpc([TEXT]), {"kind": "malformed_result", "flags": ["malformed"]}),
    ("a number, unauthorized", 401, rpc(5), {"kind": "unauthenticated", "executed": "no"}),
    ("internal, bad request", 400, error(-32603), {"kind": "upstream_internal"}),
    ("own code, conflict", 409, error(-32000), {"kind": "conflict", "executed": "maybe"}),
    ("bad params, conflict", 412, error(-32602), {"kind": "invalid_request", "executed": "no"}),
    ("empty body", 200, b"", {"kind": "null_result", "flags": ["null_result", "void"]}),
    ("accepted, empty", 202, b"", {"kind": "null_result", "executed": "yes"}),
    (
        "html",
        200,
        b"<html>sorry</html>",
        {"kind": "malformed_result", "executed": "maybe", "flags": ["not_json"]},
    ),
    (
        "cut",
        200,
        rpc(TEXT)[:-3],
        {"kind": "malformed_result", "executed": "maybe", "flags": ["malformed"]},
    ),
    (
        "other id",
        200,
        b'{"jsonrpc":"2.0","id":2,"result":{"content":[]}}',
        {"kind": "malformed_result", "flags": ["id_mismatch"], "executed": "maybe"},
    ),
    (
        "id of other type",
        200,
        b'{"jsonrpc":"2.0","id":"1","result":{"content":[{"type":"text","text":"x"}]}}',
        {"status": "ok", "executed": "yes", "flags": ["id_mismatch"]},
    ),
    (
        "error without id",
        400,
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}',
        {"kind": "invalid_request", "code": -32600, "executed": "no"},
    ),
    (
        "duplicate keys",
        200,
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a"}]},"id":1}',
        {"status": "ok", "flags": ["duplicate_keys"]},
    ),
    ("nan", 200, rpc({**TEXT, "x": float("nan")}), {"status": "ok", "flags": ["nonstandard_json"]}),
    ("bom", 200, b"\xef\xbb\xbf" + rpc(TEXT), {"status": "ok", "flags": ["bom"]}),
    (
        "invalid utf-8",
        200,
        rpc(TEXT).replace(b"done", b"d\xff\xfe"),
        {"status": "ok", "flags": ["invalid_utf8"]},
    ),
    (
        "lone surrogate",
        200,
        rpc(TEXT).replace(b"done", b"\\ud800"),
        {"status": "ok", "flags": ["lone_surrogate"]},
    ),
    ("huge integer", 200, rpc({**TEXT, "n": 10**400}), {"status": "ok", "flags": []}),
    (
        "deep nesting",
        200,
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"x":' + b"[" * 5000 + b"]" * 5000 + b"}}",
        {"status": "ok"},
    ),
    ("url elicitation", 200, error(-32042), {"kind": "invalid_request", "executed": "no"}),
]


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [row[1:] for row in ANSWERS],
    ids=[row[0] for row in ANSWERS],
)
@pytest.mark.parametrize("way", ["length", "chunks"])
def test_an_answer_is_relayed_unchanged_and_recorded_with_its_judgement(
    rig: Rig, status: int, body: bytes, wanted: dict[str, Any], way: str
) -> None:
    head = f"HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\n"
    if way == "length":
        raw = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    else:
        pieces = [body[place : place + 7] for place in range(0, len(body), 7)]
        raw = head.encode() + b"Transfer-Encoding: chunked\r\n\r\n"
        raw += b"".join(map(chunked, pieces)) + b"0\r\n\r\n"
    rig.upstream.script = answer(raw)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert (given.status, untold(given.body)) == (status, body)
    row = rig.row()
    said = {
        "status": row.status,
        "executed": row.executed,
        "summary": row.output_summary,
        "flags": row.flags,
        "code": row.upstream.code,
        "kind": row.kind,
        "retry": row.retry,
    }
    if "kind" in wanted:
        assert row.status == "error"
        assert row.error == MEANINGS[ErrorKind(wanted["kind"])].family
    assert said | wanted == said
    assert (row.upstream.http_status, row.bytes_out) == (status, len(body))


@pytest.mark.promise("OUT-8")
@pytest.mark.parametrize("status", [200, 201, 400, 401, 500])
def test_only_an_answer_that_looks_like_a_success_gets_an_outcome_added(
    rig: Rig, status: int
) -> None:
    rig.upstream.script = answer(ok(rpc({}), status=f"{status} X"))
    given = rig.post(call("add"))
    assert (b"turnlog/outcome" in given) == (status < 400)
    assert (given == rpc({})) == (status >= 400)


@pytest.mark.parametrize("status", [304, 307, 308])
def test_a_call_that_is_redirected_elsewhere_did_not_run(rig: Rig, status: int) -> None:
    raw = f"HTTP/1.1 {status} X\r\nLocation: /mcp/\r\nContent-Length: 0\r\n\r\n".encode()
    rig.upstream.script = answer(raw)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert (given.status, given.head.one("location")) == (status, f"{rig.path}/")
    row = rig.row()
    assert (row.status, row.kind, row.executed) == ("error", "invalid_request", "no")
    assert row.flags == ([] if status == 304 else ["redirected"])


@pytest.mark.parametrize(
    "value",
    [case[2] for case in ANSWERS if case[1] == 200 and case[2]],
    ids=[case[0] for case in ANSWERS if case[1] == 200 and case[2]],
)
def test_an_event_carries_the_same_error_as_a_body(rig: Rig, value: bytes) -> None:
    stream = b"data: " + value + b"\n\n"
    rig.upstream.script = answer(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunked(stream)
        + b"0\r\n\r\n"
    )
    assert untold(rig.post(call("add"))) == stream
    as_event = rig.row()
    rig.fresh()
    rig.upstream.script = answer(ok(value))
    rig.post(call("add"))
    as_body = rig.row()
    assert as_event.kind == as_body.kind
    assert (as_event.status, as_event.executed, as_event.output_summary, as_event.flags) == (
        as_body.status,
        as_body.executed,
        as_body.output_summary,
        as_body.flags,
    )


REQUESTS: list[tuple[str, bytes, str, list[str]]] = [
    ("plain", call("add", {"a": 1}), "add", []),
    ("bom", b"\xef\xbb\xbf" + call("add"), "add", ["bom"]),
    (
        "nan",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":NaN}}}',
        "add",
        ["nonstandard_json"],
    ),
    (
        "duplicate keys",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"params":{"name":"b"}}',
        "b",
        ["duplicate_keys"],
    ),
    (
        "invalid utf-8",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":"\xff"}}}',
        "add",
        ["invalid_utf8"],
    ),
    (
        "invalid utf-8 in the name",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a\xff"}}',
        "a\ufffd",
        ["invalid_utf8"],
    ),
    (
        "lone surrogate in the name",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a\\udc00"}}',
        "a\ufffd",
        ["lone_surrogate"],
    ),
    (
        "huge integer",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":'
        + b"9" * 500
        + b"}}}",
        "add",
        [],
    ),
    (
        "deep nesting",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":'
        + b"[" * 5000
        + b"]" * 5000
        + b"}}}",
        "add",
        [],
    ),
    ("no params", b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', "?", []),
    (
        "params of the wrong type",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}',
        "?",
        [],
    ),
    (
        "name of the wrong type",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}',
        "?",
        [],
    ),
    (
        "a very long name",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"' + b"n" * 5000 + b'"}}',
        "",
        [],
    ),
    ("cut", call("add")[:-2], "?", ["malformed"]),
    ("not json", b"hello, world", "?", ["not_json"]),
    ("empty", b"", "?", ["malformed"]),
]


@pytest.mark.parametrize(
    ("body", "tool", "flags"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS]
)
def test_a_request_of_any_form_is_forwarded_and_recorded(
    rig: Rig, body: bytes, tool: str, flags: list[str]
) -> None:
    rig.upstream.script = answer(ok(rpc(TEXT)))
    rig.post(body, ("Mcp-Session-Id", "s"))
    assert rig.upstream.requests[0].body == body
    row = rig.row()
    assert row.flags == flags
    assert not tool or row.tool == tool


@pytest.mark.promise("REC-16")
def test_the_input_hash_is_of_the_arguments_alone_in_canonical_form(rig: Rig) -> None:
    rig.upstream.script = answer(ok(rpc(TEXT)))
    canonical = b'{"a":1,"b":[true,null],"text":"caf\xc3\xa9"}'
    rig.post(
        b'{"id":1,"jsonrpc":"2.0","method":"tools/call","params":{"_meta":{"x":1},"name":"add",'
        b'"arguments": {"text":"caf\\u00e9", "b":[true , null],\n"a":1}}}',
    )
    assert rig.row().input_hash == "sha256:" + hashlib.sha256(canonical).hexdigest()


@pytest.mark.promise("REC-16")
def test_absent_arguments_hash_like_empty_ones(rig: Rig) -> None:
    rig.upstream.script = answer(ok(rpc(TEXT)))
    rig.post(b'{"id":1,"jsonrpc":"2.0","method":"tools/call","params":{"name":"add"}}')
    rig.post(call("add", {}))
    first, second = rig.ended_rows(2)
    assert first.input_hash == second.input_hash == "sha256:" + hashlib.sha256(b"{}").hexdigest()


@pytest.mark.promise("REC-19")
def test_other_methods_and_notifications_are_no_calls(rig: Rig) -> None:
    for method in ("initialize", "ping", "tools/list", "resources/list", "server/discover"):
        rig.post(message(method, {}))
    rig.post(message("notifications/initialized", request_id=None))
    rig.post(b'{"jsonrpc":"2.0","id":5,"result":{}}')
    rig.post(call("add"))
    assert [row.tool for row in rig.ended_rows()] == ["add"]


def test_sizes_times_protocol_and_trace_are_recorded(rig: Rig) -> None:
    body = call("add", {"x": "y" * 100})
    rig.upstream.script = answer(ok(rpc(TEXT)))
    rig.post(
        body,
        ("MCP-Protocol-Version", "2025-06-18"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    )
    row = rig.row()
    assert (row.bytes_in, row.bytes_out) == (len(body), len(rpc(TEXT)))
    assert row.upstream.protocol == "2025-06-18"
    assert row.trace == "0af7651916cd43dd8448eb211c80319c"
    assert row.duration_ms is not None
    assert 0 < row.duration_ms < 60_000
    assert (row.method, row.attempt, row.leg, row.phase) == ("tools/call", 1, 0, "done")


def test_two_traceparents_are_no_trace(rig: Rig) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    rig.upstream.script = answer(ok(rpc(TEXT)))
    rig.post(call("add"), ("traceparent", trace), ("Traceparent", trace))
    assert rig.row().trace in ("", None)
    assert rig.upstream.requests[0].all(b"traceparent") == [trace.encode()] * 2


@pytest.mark.promise("REC-21")
@pytest.mark.parametrize("size", [17 << 20])
def test_a_message_above_16_mib_streams_and_is_recorded_by_its_start(rig: Rig, size: int) -> None:
    body = call("huge", {"text": "x" * size})
    rig.upstream.script = answer(ok(rpc(TEXT)))
    rig.post(body)
    assert rig.upstream.requests[0].body == body
    row = rig.row()
    assert (row.tool, row.status, row.input_hash, row.bytes_in) == ("huge", "ok", None, len(body))
    assert "truncated_record" in row.flags


def test_a_large_message_below_that_is_recorded_whole(rig: Rig) -> None:
    arguments = {"text": "x" * (3 << 20)}
    rig.upstream.script = answer(ok(rpc(TEXT)))
    rig.post(call("large", arguments))
    canonical = json.dumps(arguments, separators=(",", ":")).encode()
    assert rig.row().input_hash == "sha256:" + hashlib.sha256(canonical).hexdigest()


def test_events_carry_the_call_whatever_else_they_hold(rig: Rig) -> None:
    stream = (
        event({"jsonrpc": "2.0", "method": "x"})
        + b"data: junk\n\ndata: [1,2\n\n"
        + event(text_result(1, "real"))
    )
    rig.upstream.script = answer(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        + b"Content-Length: %d\r\n\r\n" % len(stream)
        + stream
    )
    assert untold(rig.post(call("add"))) == stream
    assert rig.row().output_summary == "real"


NAMED = ("Mcp-Session-Id", "of-yesterday")
NEW_ERA = ("MCP-Protocol-Version", "2026-07-28")
SESSIONS: list[tuple[str, int, bytes, tuple[tuple[str, str], ...], str]] = [
    ("gone", 404, b"", (NAMED,), "session_lost"),
    ("gone, with an error", 404, error(-32001, "Session not found"), (NAMED,), "session_lost"),
    ("perhaps gone", 400, error(-32000, "No valid session ID"), (NAMED,), "invalid_request"),
    ("no such method", 404, error(-32601), (NAMED,), "tool_not_found"),
    ("bad request", 400, error(-32600), (NAMED,), "invalid_request"),
    ("none was named", 404, b"", (), "invalid_request"),
    ("none was named, with an error", 400, error(-32000), (), "invalid_request"),
    ("a revision without sessions", 404, b"", (NAMED, NEW_ERA), "invalid_request"),
]


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [row[1:] for row in SESSIONS],
    ids=[row[0] for row in SESSIONS],
)
def test_a_session_is_lost_only_where_one_was_named(
    rig: Rig, status: int, body: bytes, headers: tuple[tuple[str, str], ...], kind: str
) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    rig.upstream.script = answer(f"{head}\r\n\r\n".encode() + body)
    assert rig.post(call("add"), *headers) == body
    row = rig.row()
    assert (row.kind, row.executed, row.status) == (kind, "no", "error")
    assert row.retry == ("safe" if kind == "session_lost" else "never")
