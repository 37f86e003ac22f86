"""The log record of messages that are too large to be held."""

import gzip
import hashlib
import json

import pytest

from kit.beside import Rig
from kit.clients import MCP_HEADERS, call
from kit.upstreams import answer, chunked, ok, text_result

LARGE = json.dumps(text_result(1, "z" * (2 << 20))).encode()
BODIES: dict[str, tuple[bytes, str, str, list[str]]] = {
    "whole": (LARGE, "ok", "yes", []),
    "whole, blanks behind": (LARGE + b" \n", "ok", "yes", []),
    "without content": (
        json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"x": "y" * (2 << 20)}}).encode(),
        "null_result",
        "yes",
        ["null_result", "void"],
    ),
    "cut in a string": (LARGE[:-6], "malformed_result", "maybe", ["malformed"]),
    "cut at the last bracket": (LARGE[:-1], "malformed_result", "maybe", ["malformed"]),
    "one bracket too many": (LARGE + b"}", "malformed_result", "maybe", ["not_json"]),
    "two messages": (LARGE + LARGE, "malformed_result", "maybe", ["not_json"]),
    "no JSON": (b"\xfe" * (2 << 20), "malformed_result", "maybe", ["not_json"]),
    "no JSON-RPC": (
        json.dumps({"content": "z" * (2 << 20)}).encode(),
        "malformed_result",
        "maybe",
        ["malformed"],
    ),
    "another id": (
        json.dumps(text_result(2, "z" * (2 << 20))).encode(),
        "malformed_result",
        "maybe",
        ["id_mismatch"],
    ),
}


@pytest.mark.promise("REC-21")
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("way", ["length", "chunks"])
def test_a_large_answer_is_recorded_with_its_outcome(rig: Rig, name: str, way: str) -> None:
    body, wanted, executed, flags = BODIES[name]
    if way == "length":
        raw = ok(body)
    else:
        pieces = [body[place : place + 100_003] for place in range(0, len(body), 100_003)]
        raw = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        raw += b"Transfer-Encoding: chunked\r\n\r\n"
        raw += b"".join(map(chunked, pieces)) + b"0\r\n\r\n"
    rig.upstream.script = answer(raw)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == body
    row = rig.row()
    assert (row.kind or row.status, row.executed) == (wanted, executed)
    assert sorted(row.flags) == sorted([*flags, "truncated_record"])
    assert row.bytes_out == len(body)


def test_a_correct_answer_that_decompresses_beyond_the_limit_stays_ok(rig: Rig) -> None:
    packed = gzip.compress(json.dumps(text_result(1, "z" * (20 << 20))).encode(), 1)
    rig.upstream.script = answer(ok(packed, headers="Content-Encoding: gzip\r\n"))
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == packed
    row = rig.row()
    assert (row.status, row.executed, row.flags) == (
        "ok",
        "yes",
        ["not_searched", "truncated_record"],
    )


def test_a_cut_large_request_is_recorded_with_the_part_that_arrived(rig: Rig) -> None:
    body = call("add", {"text": "z" * (2 << 20)})[:-2]
    rig.upstream.script = answer(ok(json.dumps(text_result(1, "done")).encode()))
    rig.post(body)
    assert rig.upstream.requests[0].body == body
    row = rig.row()
    assert (row.tool, row.bytes_in) == ("add", len(body))
    assert sorted(row.flags) == ["malformed", "truncated_record"]
    assert row.input_hash == "raw-sha256:" + hashlib.sha256(body).hexdigest()


def test_a_large_request_is_recognized_with_its_members_in_any_order(rig: Rig) -> None:
    arguments = json.dumps({"x": "y" * (2 << 20)})
    body = (
        f'{{"params":{{"name":"add","arguments":{arguments}}},'
        '"id":1,"jsonrpc":"2.0","method":"tools/call"}'
    ).encode()
    rig.upstream.script = answer(ok(json.dumps(text_result(1, "x")).encode()))
    with rig.client() as client:
        client.request(
            "POST", rig.path, body, headers=(*MCP_HEADERS, ("MCP-Protocol-Version", "2025-06-18"))
        )
    row = rig.row()
    assert (row.tool, row.method, row.status) == ("add", "tools/call", "ok")


def test_a_request_too_large_to_hold_is_the_call_that_its_headers_name(rig: Rig) -> None:
    arguments = json.dumps({"x": "y" * (17 << 20)})
    body = (
        f'{{"params":{{"arguments":{arguments},"name":"add"}},'
        '"id":1,"jsonrpc":"2.0","method":"tools/call"}'
    ).encode()
    rig.upstream.script = answer(ok(json.dumps(text_result(1, "x")).encode()))
    headers = (("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"))
    with rig.client() as client:
        client.request(
            "POST", rig.path, body, headers=(*MCP_HEADERS, *headers, ("Mcp-Name", "add"))
        )
    row = rig.row()
    assert (row.tool, row.method) == ("add", "tools/call")
