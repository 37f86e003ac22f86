"""Answers reach the agent as the tool server sent them: status, fields and body, byte by byte."""

import gzip

import pytest

from kit.beside import Rig
from kit.clients import MCP_HEADERS, ClosedEarlyError, call
from kit.faults import CloseAfterRequest, CutBody, CutHead, Garbage
from kit.packing import PACKERS
from kit.upstreams import Peer, Script, answer, chunked, ok, text_result
from turnlog.client import Outcome, outcome_of_headers

RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"caf\\u00e9"}]}}'
HEAD = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n"


def length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def split(body: bytes, size: int) -> bytes:
    pieces = [body[place : place + size] for place in range(0, len(body), size)]
    return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunked, pieces)) + b"0\r\n\r\n"


def until_close(raw: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(raw)
        peer.close()

    return script


FRAMINGS = {
    "length": answer(HEAD + JSON + length(RESULT)),
    "one chunk": answer(HEAD + JSON + split(RESULT, 1000)),
    "many chunks": answer(HEAD + JSON + split(RESULT, 3)),
    "extensions and trailers": answer(
        HEAD
        + JSON
        + b"Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b'%x;name="va;lue";flag\r\n%b\r\n0;last=1\r\nX-Sum: 1\r\n\r\n' % (len(RESULT), RESULT)
    ),
    "until close": until_close(HEAD + JSON + b"\r\n" + RESULT),
    "until close, 1.0": until_close(b"HTTP/1.0 200 OK\r\n" + JSON + b"\r\n" + RESULT),
    "1.0 with length": until_close(b"HTTP/1.0 200 OK\r\n" + JSON + length(RESULT)),
    "interim answers": answer(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        + HEAD
        + JSON
        + length(RESULT)
    ),
    "no reason": answer(b"HTTP/1.1 200 \r\n" + JSON + length(RESULT)),
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_the_body_arrives_whole_in_every_framing(rig: Rig, framing: str) -> None:
    rig.upstream.script = FRAMINGS[framing]
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
        assert (given.status, given.body) == (200, RESULT)
        rig.upstream.script = answer(HEAD + JSON + length(RESULT))
        assert client.request("POST", rig.path, call("add"), headers=MCP_HEADERS).body == RESULT
    rows = rig.ended_rows(2)
    assert [(row.status, row.bytes_out) for row in rows] == [("ok", len(RESULT))] * 2


def test_a_length_beside_chunks_does_not_count_and_is_dropped(rig: Rig) -> None:
    rig.upstream.script = answer(HEAD + JSON + b"Content-Length: 5\r\n" + split(RESULT, 9))
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == RESULT
    assert given.head.all("content-length") == []


@pytest.mark.promise("WIRE-6")
def test_fields_of_an_answer_keep_their_order_case_duplicates_and_bytes(rig: Rig) -> None:
    fields = [
        b"x-lower: 1",
        b"X-UPPER: caf\xe9 \xff\xc3\xa9",
        b"Set-Cookie: a=1; Path=/; HttpOnly",
        b"X-Empty:",
        b"set-cookie: b=2",
        b"Mcp-Session-Id: abc",
        b'ETag: W/"1"',
        b"Server: upstream/1.0",
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT",
        b'WWW-Authenticate: Bearer resource_metadata="http://x/y", scope="a b"',
        b"Via: 1.1 inner",
        b"Content-Type: application/json; charset=utf-8",
    ]
    rig.upstream.script = answer(HEAD + b"".join(each + b"\r\n" for each in fields) + length(b"{}"))
    with rig.client() as client:
        given = client.request("GET", "/tool")
    wanted = [
        tuple(part.strip() for part in each.decode("latin-1").split(":", 1)) for each in fields
    ]
    assert [pair for pair in given.head.relayed if pair[0] != "Content-Length"] == wanted


@pytest.mark.promise("WIRE-7")
def test_a_bare_answer_gets_the_names_of_its_call_and_no_other_field(rig: Rig) -> None:
    rig.upstream.script = answer(HEAD + length(b"x"))
    with rig.client() as client:
        given = client.request("GET", f"/s/{rig.session}/tool")
    assert given.head.relayed == (("Content-Length", "1"),)
    (row,) = rig.ended_rows()
    told = set(given.head.headers) - set(given.head.relayed)
    assert told == {("Turnlog-Session", row.session), ("Turnlog-Call", row.call)}


def test_a_server_cannot_say_in_turnlogs_name_how_a_call_ended(rig: Rig) -> None:
    rig.upstream.script = answer(HEAD + b"turnlog-Retry: safe\r\n" + length(b"x"))
    with rig.client() as client:
        given = client.request("GET", f"/s/{rig.session}/tool")
    (row,) = rig.ended_rows()
    said = outcome_of_headers(given.head.headers)
    assert said == Outcome(session=row.session, call=row.call)


@pytest.mark.promise("WIRE-8")
def test_hop_by_hop_fields_of_an_answer_end_here(rig: Rig) -> None:
    rig.upstream.script = answer(
        HEAD + b"Connection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n"
        b"Proxy-Authenticate: Basic\r\nX-Stay: 1\r\n" + length(b"x")
    )
    with rig.client() as client:
        given = client.request("GET", "/tool")
    assert given.head.relayed == (("X-Stay", "1"), ("Content-Length", "1"))


@pytest.mark.promise("WIRE-9")
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (200, "Fine by me"),
        (201, "Created"),
        (206, "Partial"),
        (299, "Odd"),
        (300, "Choose"),
        (302, "Found"),
        (400, "Bad Request"),
        (401, "Unauthorized"),
        (403, "No"),
        (404, "caf\xe9"),
        (405, "Not that"),
        (418, "I'm a teapot"),
        (429, "Slow down"),
        (500, ""),
        (503, "Later"),
        (599, "Last"),
        (799, "Beyond"),
    ],
)
def test_status_and_reason_are_the_upstreams(rig: Rig, status: int, reason: str) -> None:
    line = f"HTTP/1.1 {status} {reason}\r\n".encode("latin-1")
    rig.upstream.script = answer(line + length(b"why"))
    with rig.client() as client:
        given = client.request("GET", "/tool")
    assert (given.status, given.head.reason, given.body) == (status, reason, b"why")


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_body_has_none(rig: Rig, status: int) -> None:
    rig.upstream.script = answer(b'HTTP/1.1 %d None\r\nETag: "1"\r\n\r\n' % status)
    with rig.client() as client:
        given = client.request("PUT", f"/s/{rig.session}/tool", b"x")
        assert (given.status, given.body) == (status, b"")
        assert given.head.relayed == (("ETag", '"1"'),)
        rig.upstream.script = answer(HEAD + length(b"next"))
        assert client.request("GET", "/next").body == b"next"
    (row,) = rig.ended_rows()
    assert (row.status, row.upstream.http_status) == ("ok", status)


def test_the_length_in_an_answer_to_head_stays(rig: Rig) -> None:
    rig.upstream.script = answer(HEAD + b"Content-Length: 12345\r\n\r\n")
    with rig.client() as client:
        given = client.request("HEAD", "/tool")
        assert (given.head.one("content-length"), given.body) == ("12345", b"")
        rig.upstream.script = answer(HEAD + length(b"next"))
        assert client.request("GET", "/next").body == b"next"


def test_a_304_keeps_its_content_length(rig: Rig) -> None:
    rig.upstream.script = answer(b"HTTP/1.1 304 Same\r\nContent-Length: 99\r\n\r\n")
    with rig.client() as client:
        assert client.request("GET", "/tool").head.one("content-length") == "99"


def test_chunked_answers_to_head_have_no_body(rig: Rig) -> None:
    rig.upstream.script = answer(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    with rig.client() as client:
        assert client.request("HEAD", "/tool").status == 200
        rig.upstream.script = answer(HEAD + length(b"next"))
        assert client.request("GET", "/next").body == b"next"


@pytest.mark.promise("WIRE-10")
@pytest.mark.parametrize("coding", PACKERS)
def test_an_encoded_answer_is_relayed_as_it_is_and_recorded_decoded(rig: Rig, coding: str) -> None:
    packed = PACKERS[coding](RESULT)
    rig.upstream.script = answer(
        HEAD + JSON + f"Content-Encoding: {coding}\r\n".encode() + length(packed)
    )
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == packed
    assert given.head.one("content-encoding") == coding
    row = rig.row()
    assert (row.status, row.output_summary) == ("ok", "café")
    assert row.bytes_out == len(packed)


@pytest.mark.parametrize("coding", ["gzip", "unheard-of"])
def test_an_answer_that_cannot_be_decoded_is_relayed_all_the_same(rig: Rig, coding: str) -> None:
    rig.upstream.script = answer(
        HEAD + JSON + f"Content-Encoding: {coding}\r\n".encode() + length(b"\x1f\x8bno gzip")
    )
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == b"\x1f\x8bno gzip"
    row = rig.row()
    assert (row.kind, row.executed, row.flags) == ("malformed_result", "maybe", ["not_json"])


@pytest.mark.promise("WIRE-10")
@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_an_encoded_request_goes_on_as_it_is_and_is_recorded_decoded(rig: Rig, coding: str) -> None:
    packed = PACKERS[coding](call("packed", {"a": 1}))
    with rig.client() as client:
        given = client.request(
            "POST", rig.path, packed, headers=(*MCP_HEADERS, ("Content-Encoding", coding))
        )
    request = rig.upstream.requests[0]
    assert (given.status, request.body) == (200, packed)
    assert request.all(b"content-encoding") == [coding.encode()]
    row = rig.row()
    assert (row.tool, row.bytes_in) == ("packed", len(packed))


@pytest.mark.promise("SEC-11")
def test_a_gzip_bomb_is_relayed_and_does_no_harm(rig: Rig) -> None:
    bomb = gzip.compress(bytes(200 << 20), 9)
    rig.upstream.script = answer(HEAD + JSON + b"Content-Encoding: gzip\r\n" + length(bomb))
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == bomb
    assert rig.row().status == "error"


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("announced", [True, False])
def test_a_cut_answer_looks_cut(rig: Rig, large: bool, announced: bool) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":{"x":"' + b"y" * (3_000_000 if large else 30)
    if announced:
        rig.upstream.script = CutBody(sent=body, announced=len(body) + 10)
    else:
        rig.upstream.script = until_close(
            HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body)
        )
    with rig.client() as client:
        client.ask("POST", rig.path, call("add"), headers=MCP_HEADERS)
        head = client.head()
        with pytest.raises(ClosedEarlyError):
            client.body(head)
    row = rig.row()
    assert (row.status, row.kind, row.executed) == ("unknown", "connection_lost", "maybe")


def test_data_before_a_cut_reaches_the_agent(rig: Rig) -> None:
    rig.upstream.script = CutBody(sent=b"x" * 1000, announced=2000, media="text/plain")
    with rig.client() as client:
        client.ask("GET", "/tool")
        assert client.head().one("content-length") == "2000"
        assert client.rest() == b"x" * 1000


@pytest.mark.parametrize("fault", [CloseAfterRequest(), CutHead(), Garbage()])
def test_no_answer_at_all_is_a_failed_call_and_the_connection_goes_on(
    rig: Rig, fault: Script
) -> None:
    rig.upstream.script = fault
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add", request_id="a1"), headers=MCP_HEADERS)
        assert given.status == 200
        said = given.json()
        assert (said["id"], said["result"]["isError"]) == ("a1", True)
        outcome = said["result"]["_meta"]["turnlog/outcome"]
        assert (outcome["status"], outcome["executed"]) == ("unknown", "maybe")
        rig.upstream.script = answer(ok(RESULT))
        again = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
        assert again.body == RESULT
    rows = rig.ended_rows(2)
    assert [row.status for row in rows] == ["unknown", "ok"]
    assert rows[0].call == outcome["call"]


@pytest.mark.promise("WAIT-11")
@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 10 << 20])
def test_json_around_the_limit_of_what_is_held_arrives_whole(rig: Rig, size: int) -> None:
    start = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"'
    body = start + b"x" * (size - len(start) - 5) + b'"}]}}'
    rig.upstream.script = answer(ok(body))
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == body
    row = rig.row()
    assert (row.status, row.bytes_out) == ("ok", size)


@pytest.mark.parametrize("large", [200_000, 64_000])
def test_answers_with_a_large_head_pass(rig: Rig, large: int) -> None:
    rig.upstream.script = answer(HEAD + b"X-Large: " + b"L" * large + b"\r\n" + length(b"x"))
    with rig.client() as client:
        assert client.request("GET", "/tool").head.one("x-large") == "L" * large


@pytest.mark.promise("WIRE-22")
def test_first_bytes_of_a_large_answer_do_not_wait_for_the_last(rig: Rig) -> None:
    def slow(peer: Peer) -> None:
        peer.read()
        peer.send(HEAD + b"Content-Type: text/plain\r\nContent-Length: 6\r\n\r\nabc")
        assert peer.next_request().target == b"/never"

    rig.upstream.script = slow
    with rig.client() as client:
        client.ask("GET", "/tool")
        client.head()
        assert client.exactly(3) == b"abc"


def test_one_way_to_say_that_a_body_is_json_suffices(rig: Rig) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"x"}]}}'
    rig.upstream.script = answer(ok(body, media="Application/JSON; Charset=UTF-8"))
    with rig.client() as client:
        client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert (rig.row().status, rig.row().flags) == ("ok", [])


def test_the_wrong_media_type_is_flagged_and_relayed(rig: Rig) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"x"}]}}'
    rig.upstream.script = answer(ok(body, media="text/event-stream"))
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert given.body == body
    row = rig.row()
    assert (row.status, row.flags) == ("ok", ["content_type_mismatch"])


def test_answers_reach_several_agents_at_once_unmixed(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        request = peer.read().json()
        peer.send_json(text_result(request["id"], "for " + request["params"]["name"]))

    rig.upstream.script = script
    clients = [rig.client() for _ in range(20)]
    for number, client in enumerate(clients):
        client.ask("POST", rig.path, call(f"tool-{number}", request_id=1), headers=MCP_HEADERS)
    for number, client in enumerate(clients):
        text = client.response("POST").json()["result"]["content"][0]["text"]
        assert text == f"for tool-{number}"
        client.close()
    rows = rig.ended_rows(20)
    assert {row.tool: row.output_summary for row in rows} == {
        f"tool-{number}": f"for tool-{number}" for number in range(20)
    }
