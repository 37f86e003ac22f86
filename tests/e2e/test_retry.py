"""Retries by rules: what the agent gets, what reaches the server, what is recorded."""

import gzip
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.stores import turnlog
from kit.beside import Rig, ruled
from kit.clients import BOUND, MCP_HEADERS, ClosedEarlyError, call, message, wait_until
from kit.faults import CutBody, CutStream, Hangs, ResetAfterRequest, SlowHead
from kit.upstreams import (
    Peer,
    Script,
    answer,
    chunked,
    echo,
    event,
    ok,
    result,
    text_result,
)

RULES = """
rules:
  - name: what tools do
    match: {tool: [read_*, "GET *"]}
    effect: read
  - match: {tool: put_*}
    effect: idempotent_write
  - match: {tool: [write_*, "POST *"]}
    effect: write
  - name: try again
    retry:
      on: [connection, rate_limited, null_result, tool_error, timeout]
      max_attempts: 3
      base_interval: 10ms
      jitter: none
      budget: 30s
  - match: {tool: "*_soon"}
    timeout: {response: 200ms}
"""
STATELESS = (*MCP_HEADERS, ("MCP-Protocol-Version", "2026-07-28"))
UNAVAILABLE = ok(b"later", media="text/plain", status="503 Service Unavailable")
LIMITED = ok(b"slow down", headers="Retry-After: 1\r\n", status="429 Too Many Requests")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


class InTurn:
    """Each request meets the next script, the last one from then on."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)

    def __call__(self, peer: Peer) -> None:
        """Play the next one."""
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        script(peer)


def streamed(value: Any, *, sent: bytes = b"") -> Script:
    """Answer with an event stream: some bytes, then one event with the result for the request."""

    def script(peer: Peer) -> None:
        asked = peer.read().json()
        peer.start_events()
        if sent:
            peer.send(chunked(sent))
        peer.send_event(result(asked["id"], value))
        peer.end()

    return script


def texts(body: bytes) -> list[str]:
    return [part["text"] for part in json.loads(body)["result"]["content"]]


def data_of(body: bytes) -> Any:
    lines = [line for line in body.splitlines() if line.startswith(b"data:")]
    assert len(lines) == 1, body[:700]
    (line,) = lines
    return json.loads(line.removeprefix(b"data:"))


FAULTS: dict[str, Script] = {
    "unavailable": answer(UNAVAILABLE),
    "reset": ResetAfterRequest(),
    "cut body": CutBody(b'{"jsonrpc":"2.0",', 400),
    "empty stream": CutStream(()),
    "comments, then nothing": CutStream((b": ping\n\n",)),
    "null result in an event": streamed({}, sent=b": ping\n\n"),
    "internal error": answer(ok(b"oops", status="500 Oops")),
}


@pytest.mark.promise("RULE-11")
@pytest.mark.parametrize("headers", [MCP_HEADERS, STATELESS], ids=["handshake", "stateless"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_read_that_fails_is_made_again(
    rig: Rig, name: str, headers: tuple[tuple[str, str], ...]
) -> None:
    rig.upstream.script = InTurn(FAULTS[name], echo)
    with rig.client() as client:
        body = call("read_file", request_id="mine")
        given = client.request("POST", rig.path, body, headers=headers)
        assert (given.status, texts(given.body)) == (200, ["done"])
        assert given.json()["id"] == "mine"
        assert given.head.one("turnlog-attempts") == "2"
        assert texts(client.request("POST", rig.path, body, headers=headers).body) == ["done"]
    first, second, _ = rig.ended_rows(3)
    assert (first.call, first.attempt) == (second.call, 1)
    assert (second.attempt, second.status, second.flags) == (2, "ok", ["retried"])
    assert first.error is not None
    calls = [one.json() for one in rig.upstream.requests if b"tools/call" in one.body]
    assert calls[0]["id"] == calls[2]["id"] == "mine"
    assert calls[1] == {**calls[0], "id": calls[1]["id"]}
    assert calls[1]["id"].startswith("turnlog-")


def mislabelled(peer: Peer) -> None:
    """Answer with JSON that calls itself a stream of events."""
    asked = peer.read().json()
    body = json.dumps(text_result(asked["id"], "done")).encode()
    peer.send(ok(body, media="text/event-stream"))


def test_json_with_the_media_type_of_an_event_stream_is_an_answer(rig: Rig) -> None:
    rig.upstream.script = mislabelled
    assert texts(rig.post(call("read_file"))) == ["done"]
    rig.upstream.script = InTurn(answer(UNAVAILABLE), mislabelled)
    assert json.loads(rig.post(call("read_file", request_id=3)))["id"] == 3


def test_event_ids_of_one_attempt_do_not_make_the_next_resumable(rig: Rig) -> None:
    def with_event_id(peer: Peer) -> None:
        asked = peer.read().json()
        peer.start_events()
        peer.send_event(result(asked["id"], {}), event_id="1")
        peer.end()

    rig.upstream.script = InTurn(with_event_id, CutBody(b'{"jsonrpc":"2.0",', 400))
    said = data_of(rig.post(call("read_file")))
    assert said["result"]["_meta"]["turnlog/outcome"]["kind"] == "null_result"
    assert [row.status for row in rig.ended_rows(3)] == ["error"] * 3
    assert [row.kind for row in rig.rows()] == ["null_result", *["connection_lost"] * 2]


@pytest.mark.promise("RULE-8")
@pytest.mark.parametrize("tool", ["write_file", "unknown"])
@pytest.mark.parametrize("name", ["unavailable", "reset", "internal error"])
def test_a_call_that_may_have_had_an_effect_is_not_retried(rig: Rig, tool: str, name: str) -> None:
    rig.upstream.script = InTurn(FAULTS[name], echo)
    with rig.client() as client:
        client.request("POST", rig.path, call(tool), headers=MCP_HEADERS)
    row = rig.row()
    assert (row.retry, row.executed) == ("unsafe", "maybe")
    assert len(rig.upstream.requests) == 1


def test_an_answer_that_replaces_a_cut_one_says_how_the_call_ended(rig: Rig) -> None:
    rig.upstream.script = FAULTS["cut body"]
    with rig.client() as client:
        given = client.request("POST", rig.path, call("write_file"), headers=MCP_HEADERS)
    told = {name: given.head.one(f"turnlog-{name}") for name in ("status", "kind", "executed")}
    assert told == {"status": "unknown", "kind": "connection_lost", "executed": "maybe"}


def test_an_idempotent_write_is_made_again(rig: Rig) -> None:
    rig.upstream.script = InTurn(ResetAfterRequest(), echo)
    assert texts(rig.post(call("put_file"))) == ["done"]
    assert [row.attempt for row in rig.ended_rows(2)] == [1, 2]


def test_a_refusal_before_anything_ran_is_made_again_whatever_the_effect(rig: Rig) -> None:
    rig.upstream.script = InTurn(answer(LIMITED), echo)
    assert texts(rig.post(call("write_file"))) == ["done"]
    refused, made = rig.ended_rows(2)
    assert (refused.kind, refused.executed, made.status) == ("rate_limited", "no", "ok")


def retried(rig: Rig, made: str) -> list[Any]:
    return [one for one in rig.proxy.events("call.retried") if one["turnlog.call"] == made]


@pytest.mark.promise("RULE-13")
def test_retry_after_is_respected(rig: Rig) -> None:
    rig.upstream.script = InTurn(answer(LIMITED), echo)
    rig.post(call("read_file"))
    made = rig.ended_rows(2)[0].call
    wait_until(lambda: retried(rig, made), "it is logged")
    (event,) = retried(rig, made)
    assert event["turnlog.delay_ns"] == 1_000_000_000


@pytest.mark.promise("RULE-13")
def test_if_the_wait_exceeds_the_limit_the_refusal_is_given_at_once(rig: Rig) -> None:
    refusal = LIMITED.replace(b"Retry-After: 1\r\n", b"Retry-After: 3600\r\n")
    rig.upstream.script = answer(refusal)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("read_file"), headers=MCP_HEADERS)
    assert (given.status, given.body) == (429, b"slow down")
    assert given.head.one("retry-after") == "3600"
    assert rig.row().retry_after_ms == 3_600_000


@pytest.mark.promise("RULE-15")
def test_the_last_answer_is_relayed_as_it_came(rig: Rig) -> None:
    rig.upstream.script = answer(UNAVAILABLE)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("read_file"), headers=MCP_HEADERS)
    assert (given.status, given.body) == (503, b"later")
    assert [row.attempt for row in rig.ended_rows(3)] == [1, 2, 3]


def test_a_caller_gets_an_error_when_no_answer_came(rig: Rig) -> None:
    rig.upstream.script = ResetAfterRequest()
    said = json.loads(rig.post(call("read_file", request_id=7)))
    outcome = said["result"]["_meta"]["turnlog/outcome"]
    assert (said["id"], said["result"]["isError"]) == (7, True)
    assert (outcome["attempt"], outcome["kind"], outcome["retry"]) == (3, "connection_lost", "safe")
    shown = turnlog("show", rig.ended_rows(3)[0].call, "--json", data=rig.proxy.data).stdout
    told = [json.loads(line)["said"] for line in shown.splitlines()]
    assert told == ["", "", said["result"]["content"][0]["text"]]


LARGE = "x" * (3 << 20)


@pytest.mark.promise("RULE-15")
@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("way", ["length", "chunks", "event", "gzip"])
@pytest.mark.parametrize("size", [10, len(LARGE)])
def test_the_callers_id_comes_back_in_an_answer_of_any_shape(
    rig: Rig, way: str, size: int, where: str
) -> None:
    def script(peer: Peer) -> None:
        asked = peer.read().json()
        members = {"jsonrpc": "2.0", "id": asked["id"]}
        content = [{"type": "text", "text": LARGE[:size]}]
        named = {"id": asked["id"], asked["id"]: asked["id"]}
        value = {"result": {"content": content, "structuredContent": named}}
        body = json.dumps({**members, **value} if where == "first" else {**value, **members})
        match way:
            case "length":
                peer.send(ok(body.encode()))
            case "gzip":
                peer.send(ok(gzip.compress(body.encode()), headers="Content-Encoding: gzip\r\n"))
            case _:
                media = "text/event-stream" if way == "event" else "application/json"
                text = f"data: {body}\n\n" if way == "event" else body
                head = f"HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nTransfer-Encoding: chunked"
                peer.send(f"{head}\r\n\r\n".encode())
                for start in range(0, len(text), 65_521):
                    peer.send(chunked(text[start : start + 65_521].encode()))
                peer.end()

    rig.upstream.script = InTurn(answer(UNAVAILABLE), script)
    with rig.client() as client:
        headers = (*MCP_HEADERS, ("Accept-Encoding", "gzip"))
        given = client.request("POST", rig.path, call("read_file", request_id=41), headers=headers)
    said = data_of(given.body) if way == "event" else json.loads(given.body)
    assert said["id"] == 41
    assert said["result"]["content"][0]["text"] == LARGE[:size]
    own = rig.upstream.requests[1].json()["id"]
    # What the tool says of the id it was asked with is the tool's.
    assert said["result"]["structuredContent"] == {"id": own, own: own}
    assert given.head.one("content-encoding") is None
    assert rig.upstream.requests[1].all(b"accept-encoding") == [b"identity"]


@pytest.mark.parametrize("way", ["length", "chunks"])
@pytest.mark.parametrize("body", [b'{"jsonrpc":"2.0","id":1,"result":{}}', LARGE.encode()])
def test_a_body_without_its_declared_coding_is_forwarded_unchanged(
    rig: Rig, way: str, body: bytes
) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        if way == "length":
            peer.send(ok(body, headers="Content-Encoding: gzip\r\n"))
        else:
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            peer.send(b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
            peer.send(chunked(body))
            peer.end()

    rig.upstream.script = InTurn(answer(UNAVAILABLE), script)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("read_file"), headers=MCP_HEADERS)
    assert (given.body, given.head.one("content-encoding")) == (body, "gzip")
    assert rig.ended_rows(2)[1].kind == "malformed_result"


def test_an_answer_whose_coding_breaks_off_does_not_look_whole(rig: Rig) -> None:
    coded = gzip.compress(os.urandom(3 << 20))

    def script(peer: Peer) -> None:
        peer.read()
        broken = coded[: 2 << 20] + bytes(1 << 20)
        peer.send(ok(broken, headers="Content-Encoding: gzip\r\n"))

    rig.upstream.script = InTurn(answer(UNAVAILABLE), script)
    with rig.client() as client:
        client.ask("POST", rig.path, call("read_file"), headers=MCP_HEADERS)
        with pytest.raises(ClosedEarlyError):
            client.response()


def test_a_digest_of_a_changed_body_is_removed(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        asked = peer.read().json()
        fields = 'Content-Digest: sha-256=:x:\r\nETag: "1"\r\n'
        peer.send_json(text_result(asked["id"], "done"), headers=fields)

    rig.upstream.script = InTurn(answer(UNAVAILABLE), script)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("read_file"), headers=MCP_HEADERS)
    assert given.head.one("content-digest") is None
    assert given.head.one("etag") == 'W/"1"'


@pytest.mark.promise("RULE-14")
def test_once_an_event_has_left_no_other_attempt_is_made(rig: Rig) -> None:
    notice = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}}
    rig.upstream.script = InTurn(CutStream((event(notice),)), echo)
    body = rig.post(call("read_file"))
    first, second = [json.loads(line[6:]) for line in body.splitlines() if line[:5] == b"data:"]
    assert first == notice
    assert second["result"]["_meta"]["turnlog/outcome"]["kind"] == "connection_lost"
    assert [row.attempt for row in rig.ended_rows()] == [1]


WORD = event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}})
MEASURED: dict[str, tuple[Script, str]] = {
    "a response that is amended": (
        answer(ok(event(result(1, {})), media="text/event-stream")),
        "null_result",
    ),
    "no response": (answer(ok(WORD, media="text/event-stream")), "connection_lost"),
    "a cut": (CutBody(WORD, 400, "text/event-stream"), "connection_lost"),
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_stream_of_known_length_still_ends_at_its_length_when_turnlog_adds_an_event(
    rig: Rig, name: str
) -> None:
    script, kind = MEASURED[name]
    rig.upstream.script = InTurn(script, echo)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("write_file"), headers=MCP_HEADERS)
        told = json.loads(given.body.rpartition(b"data: ")[2])["result"]["_meta"]["turnlog/outcome"]
        assert (given.status, told["kind"]) == (200, kind)
        after = client.request("POST", rig.path, call("write_file"), headers=MCP_HEADERS)
        assert (after.status, texts(after.body)) == (200, ["done"])


def test_several_calls_in_one_request_are_made_once(rig: Rig) -> None:
    rig.upstream.script = InTurn(answer(UNAVAILABLE), echo)
    body = b"[" + call("read_a") + b"," + call("read_b", request_id=2) + b"]"
    rig.post(body)
    assert [row.attempt for row in rig.ended_rows(2)] == [1, 1]


def test_a_request_that_is_not_a_call_is_sent_once(rig: Rig) -> None:
    rig.upstream.script = InTurn(answer(UNAVAILABLE), echo)
    with rig.client() as client:
        given = client.request("POST", rig.path, message("tools/list"), headers=MCP_HEADERS)
    assert given.status == 503


@pytest.mark.promise("RULE-17")
@pytest.mark.parametrize("in_session", [True, False])
def test_a_cancel_names_the_attempt_in_flight(rig: Rig, in_session: bool) -> None:
    headers = rig.session_headers if in_session else MCP_HEADERS
    slow = SlowHead(b"")
    rig.upstream.script = InTurn(answer(UNAVAILABLE), slow, echo)
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, call("read_file", request_id=5), headers=headers)
        assert slow.asked.wait(BOUND)
        cancel = message(
            "notifications/cancelled", {"requestId": 5, "reason": "no"}, request_id=None
        )
        assert other.request("POST", rig.path, cancel, headers=headers).status == 202
        slow.go.set()
    sent = rig.upstream.requests[-1].json()["params"]
    assert sent == {"requestId": rig.upstream.requests[1].json()["id"], "reason": "no"}


SPACED = b'{ "params" : {"requestId":  5.0}, "method": "notifications/cancelled", "jsonrpc":"2.0"}'
ROUNDABOUT: dict[str, tuple[bytes, bool]] = {
    "a batch": (b'[ {"jsonrpc":"2.0","method":"a/b"},\n' + SPACED + b" ]", False),
    "a batch, packed": (b"[" + SPACED + b"]", True),
    "packed": (SPACED, True),
    "with a digest": (SPACED, False),
}


@pytest.mark.parametrize("name", ROUNDABOUT)
def test_a_cancel_of_any_form_names_the_attempt_in_flight(rig: Rig, name: str) -> None:
    body, packed = ROUNDABOUT[name]
    slow = SlowHead(b"")
    rig.upstream.script = InTurn(answer(UNAVAILABLE), slow, echo)
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, call("read_file", request_id=5), headers=rig.session_headers)
        assert slow.asked.wait(BOUND)
        coding = (("Content-Encoding", "gzip"),) if packed else ()
        headers = (*rig.session_headers, ("Content-Digest", "sha-256=:x:"), *coding)
        other.request("POST", rig.path, gzip.compress(body) if packed else body, headers=headers)
        slow.go.set()
    sent = rig.upstream.requests[-1]
    wire_id = json.dumps(rig.upstream.requests[1].json()["id"]).encode()
    assert sent.body == body.replace(b"5.0", wire_id)
    assert (sent.all(b"content-encoding"), sent.all(b"content-digest")) == ([], [])


def test_a_cancel_that_is_forwarded_unchanged_keeps_its_content_coding(rig: Rig) -> None:
    body = gzip.compress(SPACED)
    with rig.client() as client:
        headers = (*rig.session_headers, ("Content-Encoding", "gzip"))
        client.request("POST", rig.path, body, headers=headers)
    (sent,) = rig.upstream.requests
    assert (sent.body, sent.all(b"content-encoding")) == (body, [b"gzip"])


@pytest.mark.parametrize("in_session", [True, False])
def test_a_call_that_is_cancelled_between_two_attempts_is_not_made_again(
    rig: Rig, in_session: bool
) -> None:
    headers = rig.session_headers if in_session else MCP_HEADERS
    rig.upstream.script = InTurn(answer(LIMITED), echo)
    with rig.client() as client, rig.client() as other:
        client.ask("POST", rig.path, call("read_file", request_id=5), headers=headers)
        rig.ended_rows()
        cancel = message("notifications/cancelled", {"requestId": 5}, request_id=None)
        other.request("POST", rig.path, cancel, headers=headers)
        assert client.response().json()["result"]["isError"] is True
    assert [one.json()["method"] for one in rig.upstream.requests] == [
        "tools/call",
        "notifications/cancelled",
    ]


@pytest.mark.promise("RULE-18")
def test_an_attempt_whose_connection_was_lost_is_cancelled_before_the_next(rig: Rig) -> None:
    rig.upstream.script = InTurn(ResetAfterRequest(), echo)
    rig.post(call("read_file", request_id=9))
    wait_until(lambda: len(rig.upstream.requests) == 3, "the cancel reaches the server")
    (cancel,) = [one.json() for one in rig.upstream.requests if b"cancelled" in one.body]
    assert cancel["params"]["requestId"] == 9


@pytest.mark.parametrize("status", ["504 Gateway Timeout", "408 Request Timeout"])
def test_an_attempt_that_timed_out_at_a_gateway_is_cancelled_before_the_next(
    rig: Rig, status: str
) -> None:
    rig.upstream.script = InTurn(answer(ok(b"gone", status=status)), echo)
    assert texts(rig.post(call("read_file", request_id=9))) == ["done"]
    first, cancel, second = [one.json() for one in rig.upstream.requests]
    assert (first["id"], cancel["method"]) == (9, "notifications/cancelled")
    assert (cancel["params"]["requestId"], second["method"]) == (9, "tools/call")


def test_a_gateways_timeout_of_the_last_attempt_is_relayed(rig: Rig) -> None:
    rig.upstream.script = answer(ok(b"gone", status="504 Gateway Timeout"))
    with rig.client() as client:
        given = client.request("POST", rig.path, call("write_file"), headers=MCP_HEADERS)
        client.request("POST", rig.path, message("ping"), headers=MCP_HEADERS)
    assert (given.status, given.body) == (504, b"gone")
    methods = [one.json()["method"] for one in rig.upstream.requests]
    assert methods == ["tools/call", "ping"]


def test_an_agent_that_leaves_while_an_attempt_is_waited_for_ends_the_call(rig: Rig) -> None:
    rig.upstream.script = answer(LIMITED.replace(b"After: 1\r\n", b"After: 25\r\n"))
    with rig.client() as client:
        client.ask("POST", rig.path, call("read_file"), headers=MCP_HEADERS)
        rig.ended_rows()
    with rig.client() as client:
        rig.upstream.script = echo
        assert (
            client.request("POST", rig.path, call("read_file"), headers=MCP_HEADERS).status == 200
        )
    assert [row.attempt for row in rig.ended_rows(2)] == [1, 1]


@pytest.mark.parametrize(
    ("method", "again"), [("GET", True), ("PUT", True), ("DELETE", True), ("POST", False)]
)
def test_a_plain_call_is_made_again_as_its_effect_allows(
    rig: Rig, method: str, again: bool
) -> None:
    rig.upstream.script = InTurn(ResetAfterRequest(), answer(ok(b'{"a": 1}')))
    with rig.client() as client:
        given = client.request(method, f"/s/{rig.session}/items", b"x" if method != "GET" else b"")
    if again:
        assert (given.status, given.json()) == (200, {"a": 1})
        assert given.head.one("turnlog-attempts") == "2"
    else:
        assert given.status == 502
    assert len(rig.upstream.requests) == 1 + again


def test_each_attempt_has_its_own_time(rig: Rig) -> None:
    hangs = Hangs()
    rig.upstream.script = InTurn(hangs, echo)
    assert texts(rig.post(call("read_soon"))) == ["done"]
    assert hangs.hung_up.wait(BOUND)
    first, second = rig.ended_rows(2)
    assert (first.kind, first.phase, second.status) == ("response_timeout", "sent", "ok")


LONG_WAIT = LIMITED.replace(b"Retry-After: 1\r\n", b"Retry-After: 3600\r\n")
NOTICE = event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}})
REASONS: dict[str, tuple[str, Script, list[str | None]]] = {
    "answered": ("read_file", echo, [None]),
    "answered in the end": ("read_file", InTurn(answer(UNAVAILABLE), echo), [None, None]),
    "another error": ("read_file", answer(ok(b"no", status="400 No")), ["no_rule"]),
    "an effect": ("write_file", answer(UNAVAILABLE), ["not_repeatable"]),
    "too often": ("read_file", answer(UNAVAILABLE), [None, None, "attempts"]),
    "a long wait": ("read_file", answer(LONG_WAIT), ["budget"]),
    "an event has left": ("read_file", CutStream((NOTICE,)), ["relayed"]),
}


@pytest.mark.promise("RULE-19")
@pytest.mark.parametrize("name", REASONS)
def test_the_log_says_why_no_other_attempt_follows(rig: Rig, name: str) -> None:
    tool, rig.upstream.script, reasons = REASONS[name]
    rig.post(call(tool))
    rows = rig.ended_rows(len(reasons))
    assert reasons_of(rig, rows[0].call, len(reasons)) == reasons


def reasons_of(rig: Rig, call: str, count: int) -> list[str | None]:
    def ended() -> list[Any]:
        return [one for one in rig.proxy.events("call.ended") if one["turnlog.call"] == call]

    wait_until(lambda: len(ended()) >= count, "the log tells of all attempts")
    return [one.get("turnlog.reason") for one in ended()]


def test_a_body_that_was_not_kept_is_not_sent_again_and_the_log_says_so(rig: Rig) -> None:
    rig.upstream.script = answer(UNAVAILABLE)
    with rig.client() as client:
        given = client.request("PUT", f"/s/{rig.session}/items", b"x" * (2 << 20))
    assert given.status == 503
    assert reasons_of(rig, rig.row().call, 1) == ["body"]
