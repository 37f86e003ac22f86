"""What is on disk when the upstream gets the request, and when the agent has its answer."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.beside import Rig, proxy_beside, session_rows
from kit.clients import MCP_HEADERS, Client, call, message
from kit.upstreams import Peer, RawUpstream, Script, answer, chunked, event, ok, result, text_result
from turnlog.sessions.rows import Row

TOOLS: list[dict[str, object]] = [
    {"name": "read", "inputSchema": {}, "annotations": {"readOnlyHint": True}},
    {"name": "put", "inputSchema": {}, "annotations": {"idempotentHint": True}},
    {"name": "write", "inputSchema": {}, "annotations": {"readOnlyHint": False}},
    {"name": "bare", "inputSchema": {}},
]
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
ANSWER = json.dumps(text_result(1, "done")).encode()


class Spy:
    """Looks into the store when a call arrives upstream, then answers it."""

    def __init__(self, rig: Rig, reply: Script) -> None:
        self.rig = rig
        self.reply = reply
        self.seen: list[Row] = []

    def __call__(self, peer: Peer) -> None:
        """Look before a byte of the body is read."""
        self.seen = self.rig.rows()
        self.reply(peer)


@pytest.fixture(scope="module", params=["balanced", "strict", "relaxed"])
def durable(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Rig]]:
    folder: Path = tmp_path_factory.mktemp("proxy")
    with RawUpstream() as upstream:
        trusted = {"url": upstream.url, "trust_annotations": True}
        settings = {"durability": request.param, "upstreams": {"default": trusted}}
        with proxy_beside(folder, settings=settings) as proxy:
            rig = Rig(upstream, proxy)
            upstream.script = answer(ok(json.dumps(result(1, {"tools": TOOLS})).encode()))
            with rig.client() as client:
                client.request("POST", "/mcp", message("tools/list"), headers=MCP_HEADERS)
            yield request.param, rig


@pytest.fixture
def rig(durable: tuple[str, Rig]) -> Rig:
    durable[1].fresh()
    return durable[1]


@pytest.fixture
def mode(durable: tuple[str, Rig]) -> str:
    return durable[0]


def waits(mode: str, effect: str) -> bool:
    return mode == "strict" or (mode == "balanced" and effect != "read")


EFFECTS = {
    "read": "read",
    "put": "idempotent_write",
    "write": "write",
    "bare": "write",
    "new": "unknown",
}


@pytest.mark.promise("REC-6")
@pytest.mark.parametrize("tool", EFFECTS)
def test_the_intent_is_on_disk_before_the_upstream_is_asked(rig: Rig, mode: str, tool: str) -> None:
    spy = Spy(rig, answer(ok(ANSWER)))
    rig.upstream.script = spy
    with rig.client() as client:
        client.request("POST", rig.path, call(tool), headers=MCP_HEADERS)
    assert rig.row().effect == EFFECTS[tool]
    if waits(mode, EFFECTS[tool]):
        (seen,) = spy.seen
        assert (seen.status, seen.tool, seen.executed) == ("pending", tool, "maybe")


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE", "PURGE"])
def test_the_intent_of_a_plain_write_is_on_disk_first(rig: Rig, mode: str, method: str) -> None:
    spy = Spy(rig, answer(ok(b"{}")))
    rig.upstream.script = spy
    with rig.client() as client:
        client.request(method, f"/s/{rig.session}/orders", b"{}")
    if waits(mode, "write"):
        assert [row.status for row in spy.seen] == ["pending"]
    assert rig.row().status == "ok"


@pytest.mark.promise("REC-6")
def test_a_large_write_has_its_intent_on_disk_before_its_first_byte_leaves(
    rig: Rig, mode: str
) -> None:
    spy = Spy(rig, answer(ok(b"{}")))
    rig.upstream.script = spy
    with rig.client() as client:
        client.request("PUT", f"/s/{rig.session}/files", b"x" * (2 << 20))
    if waits(mode, "write"):
        assert [(row.status, row.input_hash) for row in spy.seen] == [("pending", None)]
    assert (rig.row().status, rig.row().bytes_in) == ("ok", 2 << 20)


@pytest.mark.promise("REC-6")
def test_a_batch_has_all_its_intents_on_disk_first(rig: Rig, mode: str) -> None:
    both = json.dumps([text_result(1, "one"), text_result(2, "two")]).encode()
    spy = Spy(rig, answer(ok(both)))
    rig.upstream.script = spy
    batch = b"[" + call("write", request_id=1) + b"," + call("put", request_id=2) + b"]"
    with rig.client() as client:
        client.request("POST", rig.path, batch, headers=MCP_HEADERS)
    if waits(mode, "write"):
        assert [row.status for row in spy.seen] == ["pending", "pending"]
    assert [row.status for row in rig.ended_rows(2)] == ["ok", "ok"]


def _by_length(rig: Rig, client: Client) -> None:
    rig.upstream.script = answer(ok(ANSWER))
    client.ask("POST", rig.path, call("write"), headers=MCP_HEADERS)
    client.response()


def _by_chunks(rig: Rig, client: Client) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    rig.upstream.script = answer(raw + chunked(ANSWER[:20]) + chunked(ANSWER[20:]) + b"0\r\n\r\n")
    client.ask("POST", rig.path, call("write"), headers=MCP_HEADERS)
    client.head()
    got = b""
    while got != ANSWER:
        got += client.chunk()


def _by_event(rig: Rig, client: Client) -> None:
    rig.upstream.script = answer(
        STREAM_HEAD + chunked(event(text_result(1, "done"))) + b"0\r\n\r\n"
    )
    client.ask("POST", rig.path, call("write"), headers=MCP_HEADERS)
    client.head()
    client.until(b"}\n\n")


def _by_large_json(rig: Rig, client: Client) -> None:
    body = json.dumps(text_result(1, "z" * (3 << 20))).encode()
    rig.upstream.script = answer(ok(body))
    client.ask("POST", rig.path, call("write"), headers=MCP_HEADERS)
    client.head()
    client.exactly(len(body))


def _by_head_alone(rig: Rig, client: Client) -> None:
    rig.upstream.script = answer(b"HTTP/1.1 204 None\r\n\r\n")
    client.ask("DELETE", f"/s/{rig.session}/orders")
    client.head()


def _by_text(rig: Rig, client: Client) -> None:
    rig.upstream.script = answer(ok(b"line\n" * 10, media="text/plain"))
    client.ask("POST", f"/s/{rig.session}/orders", b"x")
    client.head()
    client.exactly(50)


def _by_text_until_close(rig: Rig, client: Client) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nline")
        peer.close()

    rig.upstream.script = script
    client.ask("POST", f"/s/{rig.session}/orders", b"x")
    client.response()


def _by_failure(rig: Rig, client: Client) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.reset()

    rig.upstream.script = script
    client.ask("POST", rig.path, call("write"), headers=MCP_HEADERS)
    client.response()


WAYS: list[Callable[[Rig, Client], None]] = [
    _by_length,
    _by_chunks,
    _by_event,
    _by_large_json,
    _by_head_alone,
    _by_text,
    _by_text_until_close,
    _by_failure,
]


@pytest.mark.promise("REC-7")
@pytest.mark.parametrize("way", WAYS)
def test_the_outcome_is_on_disk_once_the_agent_has_the_last_byte(
    rig: Rig, mode: str, way: Callable[[Rig, Client], None]
) -> None:
    with rig.client() as client:
        way(rig, client)
        at_once = [row.status for row in session_rows(rig.proxy.data, rig.session)]
    if mode != "relaxed":
        assert at_once in (["ok"], ["unknown"])
    assert rig.row().status in {"ok", "unknown"}


@pytest.mark.promise("REC-8")
def test_a_read_is_recorded_in_order_although_its_answer_does_not_wait_for_it(rig: Rig) -> None:
    rig.upstream.script = answer(ok(ANSWER))
    with rig.client() as client:
        for number in range(20):
            client.request("POST", rig.path, call("read", {"n": number}), headers=MCP_HEADERS)
    rows = rig.ended_rows(20)
    assert [row.status for row in rows] == ["ok"] * 20
    assert [row.intent_seq for row in rows] == sorted(row.intent_seq for row in rows)


@pytest.mark.promise("RULE-23")
def test_annotations_count_only_where_they_are_trusted(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        said: dict[str, Any] = peer.read().json()
        tools = said["method"] == "tools/list"
        peer.send_json(result(1, {"tools": TOOLS}) if tools else text_result(1, "done"))

    with RawUpstream(script) as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        rig = Rig(upstream, proxy)
        rig.fresh()
        upstream.script = script
        with rig.client() as client:
            client.request("POST", rig.path, message("tools/list"), headers=MCP_HEADERS)
            client.request("POST", rig.path, call("read"), headers=MCP_HEADERS)
        row = rig.row()
    assert row.effect == "unknown"
    assert row.definition is not None
