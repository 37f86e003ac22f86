"""Batches of more calls than are recorded one by one."""

import json
from pathlib import Path

import pytest

from kit.beside import Rig
from kit.clients import MCP_HEADERS, Client, call
from kit.upstreams import answer, chunked, event, ok, text_result
from kit.wraps import text_answer, wrapping
from turnlog.wire.jsonrpc import BATCH_LIMIT

MANY = BATCH_LIMIT + 44
CALLS = b"[" + b",".join(call("put", {"n": n}, request_id=n) for n in range(MANY)) + b"]"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
ANSWERS = json.dumps([text_result(n, f"done {n}") for n in reversed(range(MANY))]).encode()


@pytest.mark.promise("REC-23")
def test_all_of_a_large_batch_is_relayed_and_the_calls_over_the_bound_are_one_row(
    rig: Rig,
) -> None:
    rig.upstream.script = answer(ok(ANSWERS))

    with rig.client() as client:
        got = client.request("POST", rig.path, CALLS, headers=MCP_HEADERS)

    assert got.body == ANSWERS
    assert [request.body for request in rig.upstream.requests] == [CALLS]
    *read, rest = rig.ended_rows(BATCH_LIMIT + 1)
    assert {(row.tool, row.status) for row in read} == {("put", "ok")}
    assert read[0].output_summary == "done 0"
    assert (rest.tool, rest.status, rest.effect) == ("?", "ok", "unknown")
    assert rest.flags == ["truncated_record"]


def test_a_large_batch_that_is_answered_by_a_stream_is_recorded_the_same(rig: Rig) -> None:
    said = b"".join(chunked(event(text_result(n, "done"))) for n in range(MANY))
    rig.upstream.script = answer(STREAM_HEAD + said + b"0\r\n\r\n")

    with rig.client() as client:
        got = client.request("POST", rig.path, CALLS, headers=MCP_HEADERS)

    assert got.body.count(b"data:") == MANY
    rows = rig.ended_rows(BATCH_LIMIT + 1)
    assert [row.status for row in rows] == ["ok"] * len(rows)
    assert [row.tool for row in rows].count("?") == 1


def test_a_large_batch_without_a_server_is_answered_by_its_status(rig: Rig) -> None:
    rig.upstream.script = lambda peer: peer.close()

    with rig.client() as client:
        got = client.request("POST", rig.path, CALLS, headers=MCP_HEADERS)

    assert got.status == 502


def test_a_command_gets_a_large_batch_whole(tmp_path: Path) -> None:
    with wrapping(tmp_path) as wrap:
        assert wrap.asked(CALLS) == json.loads(CALLS)
        for n in range(MANY):
            wrap.server.say(text_answer(n))
            assert wrap.stdout.json()["id"] == n
    assert [row.tool for row in wrap.rows()] == ["put"] * BATCH_LIMIT + ["?"]


def test_turnlogs_own_endpoint_refuses_a_batch_over_the_bound(rig: Rig) -> None:
    with Client(rig.proxy.url) as client:
        got = client.request("POST", "/turnlog/mcp", CALLS, headers=MCP_HEADERS)

    assert got.status == 400
    assert f"at most {BATCH_LIMIT} messages" in got.json()["error"]["message"]
