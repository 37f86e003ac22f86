"""Time limits of rules: what each one limits, and what the agent and the server get."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, ruled
from kit.clients import BOUND, MCP_HEADERS, call, message, wait_until
from kit.faults import Hangs, SlowHead
from kit.upstreams import Peer, Script, answer, chunked, echo, event, ok, text_result

RULES = """
rules:
  - match: {tool: "*_response*", method: [tools/call, GET]}
    timeout: {response: 300ms}
  - match: {tool: "* /response"}
    timeout: {response: 300ms}
  - match: {tool: "*_idle*"}
    timeout: {idle: 300ms}
  - match: {tool: "*_total*"}
    timeout: {total: 1s}
  - match: {tool: "*_surfaced*"}
    surface: error
  - match: {tool: "write_*"}
    effect: write
"""
STATELESS = (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28"))
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
NOTICE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}}
NONE: dict[str, object] = {}
QUESTION = {"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": NONE}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def messages(body: bytes) -> list[Any]:
    return [json.loads(line[5:]) for line in body.splitlines() if line.startswith(b"data:")]


def outcome(said: Any) -> Any:
    return said["result"]["_meta"]["turnlog/outcome"]


LIMITS = [
    ("response", "response_timeout", ()),
    ("response", "response_timeout", (STREAM, chunked(b": ping\n\n"))),
    ("response", "response_timeout", (JSON_HEAD, b"{")),
    ("idle", "progress_timeout", ()),
    ("idle", "progress_timeout", (STREAM, chunked(b": ping\n\n"))),
    ("total", "deadline_exhausted", ()),
]


@pytest.mark.promise("WAIT-1")
@pytest.mark.parametrize("headers", [MCP_HEADERS, STATELESS], ids=["handshake", "stateless"])
@pytest.mark.parametrize(("limit", "kind", "sent"), LIMITS)
def test_a_server_that_hangs_costs_no_more_than_the_limit(
    rig: Rig,
    limit: str,
    kind: str,
    sent: tuple[bytes, ...],
    headers: tuple[tuple[str, str], ...],
) -> None:
    hangs = Hangs(*sent)
    rig.upstream.script = hangs
    with rig.client() as client:
        body = call(f"read_{limit}", request_id="mine")
        given = client.request("POST", rig.path, body, headers=headers)
        assert hangs.hung_up.wait(BOUND)
        rig.upstream.script = echo
        assert client.request("POST", rig.path, body, headers=headers).status == 200
    said = (
        messages(given.body)[0]
        if given.body.startswith((b"data", b"event", b":"))
        else given.json()
    )
    assert (given.status, said["id"], said["result"]["isError"]) == (200, "mine", True)
    assert (outcome(said)["kind"], outcome(said)["error"]) == (kind, "timeout")
    assert "resultType" in said["result"] or headers is MCP_HEADERS
    row = rig.ended_rows(2)[0]
    assert (row.kind, row.executed, row.status) == (kind, "maybe", "unknown")
    assert outcome(said)["call"] == row.call
    seconds = "1" if limit == "total" else "0.3"
    assert row.output_summary == f"the limit timeout.{limit} of {seconds} s was reached"


@pytest.mark.promise("WAIT-2")
def test_the_server_gets_a_cancel_when_no_caller_waits(rig: Rig) -> None:
    rig.upstream.script = hang_once(rig)
    rig.post(call("read_response", request_id=5))
    rig.upstream.wait_for_requests(2)
    cancel = rig.upstream.requests[1].json()
    assert (cancel["method"], cancel["params"]["requestId"]) == ("notifications/cancelled", 5)


@pytest.mark.promise("WAIT-2")
@pytest.mark.parametrize(
    ("tool", "headers"), [("write_response", MCP_HEADERS), ("read_response", STATELESS)]
)
def test_no_cancel_is_sent_where_the_call_runs_on_or_closing_is_the_cancel(
    rig: Rig, tool: str, headers: tuple[tuple[str, str], ...]
) -> None:
    rig.upstream.script = hang_once(rig)
    with rig.client() as client:
        client.request("POST", rig.path, call(tool), headers=headers)
        client.request("POST", rig.path, call("next"), headers=headers)
    assert [b"tools/call" in one.body for one in rig.upstream.requests] == [True, True]


@pytest.mark.parametrize("packed", [True, False])
def test_a_cancel_has_none_of_its_calls_headers_about_the_body(rig: Rig, packed: bool) -> None:
    rig.upstream.script = hang_once(rig)
    body = call("read_response", request_id=5)
    fields = {
        "Content-Digest": "sha-256=:x:",
        "Digest": "sha-256=x",
        "Signature": "sig=:x:",
        "Signature-Input": 'sig=("content-digest")',
        "Idempotency-Key": f"packed-{packed}",
        "Content-MD5": "x",
    }
    if packed:
        body, fields["Content-Encoding"] = gzip.compress(body), "gzip"
    headers = (*MCP_HEADERS, ("Authorization", "Bearer mine"), *fields.items())
    with rig.client() as client:
        client.request("POST", rig.path, body, headers=headers)
    rig.upstream.wait_for_requests(2)
    asked, cancel = rig.upstream.requests
    names = [name.lower().encode() for name in fields]
    assert all(asked.all(name) for name in names)
    assert [name for name in names if cancel.all(name)] == []
    assert cancel.all(b"authorization") == [b"Bearer mine"]
    wait_until(lambda: bool(cancel.body), "the cancel is there")
    assert cancel.json()["params"]["requestId"] == 5


def hang_once(rig: Rig) -> Script:
    def script(peer: Peer) -> None:
        rig.upstream.script = echo
        Hangs()(peer)

    return script


def test_after_an_event_was_relayed_the_answer_is_the_last_event(rig: Rig) -> None:
    rig.upstream.script = Hangs(STREAM, chunked(event(NOTICE)), chunked(b'data: {"half'))
    said = messages(rig.post(call("read_idle", request_id=3)))
    assert said[0] == NOTICE
    assert (said[1]["id"], outcome(said[1])["kind"]) == (3, "progress_timeout")
    assert len(said) == 2


def test_an_error_is_surfaced_as_one_where_a_rule_says_so(rig: Rig) -> None:
    rig.upstream.script = Hangs()
    said = json.loads(rig.post(call("read_response_surfaced")))
    assert said["error"]["code"] == -32603
    assert said["error"]["data"]["turnlog/outcome"]["kind"] == "response_timeout"


def test_events_keep_a_call_alive(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        asked = peer.read().json()
        if "id" not in asked:
            echo(peer)
            return
        peer.start_events()
        for _ in range(6):
            peer.send_event(NOTICE)
            peer.wait_for_hang_up(0.1)
        peer.send_event(text_result(asked["id"], "done"))
        peer.end()

    rig.upstream.script = script
    assert len(messages(rig.post(call("read_idle")))) == 7
    assert rig.row().status == "ok"


@pytest.mark.promise("WAIT-3")
def test_a_request_of_the_server_counts_against_the_agents_time(rig: Rig) -> None:
    asks = SlowHead(chunked(event(text_result(1, "done"))) + b"0\r\n\r\n")

    def script(peer: Peer) -> None:
        if b"tools/call" not in peer.read().body:
            echo(peer)
            return
        peer.send(STREAM + chunked(event(QUESTION)))
        asks(peer)

    rig.upstream.script = script
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, call("read_response"), headers=rig.session_headers)
        head = client.head()
        client.chunk()
        # Longer than the limit, and nothing happens: another call reaches it meanwhile.
        with rig.client() as third:
            rig.upstream.script = Hangs()
            third.request(
                "POST", rig.path, call("read_response", request_id=2), headers=MCP_HEADERS
            )
        rig.upstream.script = script
        reply = b'{"jsonrpc":"2.0","id":"q1","result":{}}'
        assert other.request("POST", rig.path, reply, headers=rig.session_headers).status < 300
        asks.go.set()
        assert b"done" in client.body(head)


@pytest.mark.promise("WAIT-3")
@pytest.mark.parametrize("in_session", [True, False])
def test_the_time_limit_continues_once_the_agent_has_answered_the_server(
    rig: Rig, in_session: bool
) -> None:
    headers = rig.session_headers if in_session else MCP_HEADERS

    def script(peer: Peer) -> None:
        if b"tools/call" in peer.read().body:
            Hangs(STREAM + chunked(event(QUESTION)))(peer)
        else:
            echo(peer)

    rig.upstream.script = script
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, call("read_response"), headers=headers)
        head = client.head()
        client.chunk()
        reply = b'{"jsonrpc":"2.0","id":"q1","result":{}}'
        other.request("POST", rig.path, reply, headers=headers)
        (said,) = messages(client.body(head))
    assert outcome(said)["kind"] == "response_timeout"


@pytest.mark.promise("WAIT-4")
def test_an_agent_that_reads_slowly_spends_none_of_the_servers_time(rig: Rig) -> None:
    large = ok(b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"x":"' + b"x" * (8 << 20) + b'"}}')
    rig.upstream.script = answer(large)
    with rig.client(receive_buffer=4096) as client:
        client.ask("POST", rig.path, call("read_response_idle"), headers=MCP_HEADERS)
        head = client.head()
        with rig.client() as other:
            rig.upstream.script = Hangs()
            for number in (2, 3, 4):
                body = call("read_response", request_id=number)
                other.request("POST", rig.path, body, headers=MCP_HEADERS)
        assert len(client.body(head)) == len(large.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("sent", [(), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",)])
def test_a_plain_call_that_takes_too_long_is_a_504(rig: Rig, sent: tuple[bytes, ...]) -> None:
    rig.upstream.script = Hangs(*sent)
    with rig.client() as client:
        client.ask("GET", f"/s/{rig.session}/response")
        if sent:
            assert client.head().status == 200
            client.rest()
        else:
            given = client.response()
            assert given.status == 504
            assert given.json()["turnlog/outcome"]["kind"] == "response_timeout"
    assert rig.row().kind == "response_timeout"


@pytest.mark.promise("WAIT-5")
def test_no_other_request_has_a_limit(rig: Rig) -> None:
    slow = SlowHead(ok(b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}'))
    rig.upstream.script = slow
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, message("tools/list"), headers=MCP_HEADERS)
        assert slow.asked.wait(BOUND)
        rig.upstream.script = Hangs()
        other.request("POST", rig.path, call("read_response"), headers=MCP_HEADERS)
        slow.go.set()
        assert client.response().json()["result"] == {"tools": []}


def test_an_answer_that_turnlog_could_not_send_is_not_recorded_as_sent(rig: Rig) -> None:
    part = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    rig.upstream.script = Hangs(part, chunked(b'{"jsonrpc":'))
    with rig.client() as client:
        client.ask("POST", rig.path, call("read_response"), headers=MCP_HEADERS)
        client.head()
        client.rest()
    (line,) = turnlog("show", rig.row().call, "--json", data=rig.proxy.data).stdout.splitlines()
    assert json.loads(line)["said"] == ""
