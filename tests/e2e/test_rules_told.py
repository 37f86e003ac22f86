"""An answer that looks like success and is an error carries the outcome, in every framing."""

import gzip
import json
import os
from collections.abc import Callable, Iterator

import pytest

from kit.beside import Rig, ruled
from kit.clients import MCP_HEADERS, ClosedEarlyError, call
from kit.upstreams import Peer, Script, chunked, ok, result

RULES = """
rules:
  - {match: {tool: wants}, effect: read, expects: content}
  - {match: {tool: reads}, effect: read}
  - {match: {tool: "GET /page"}, expects: structured}
"""
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
NOTHING = json.dumps(result(1, {"content": []})).encode()
VOID = json.dumps(result(1, {})).encode()
FULL = json.dumps(result(1, {"content": [{"type": "text", "text": "x" * 3000}]})).encode()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def in_chunks(body: bytes, size: int = 7) -> Script:
    """Answer with JSON in chunks of a size."""

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(body), size):
            peer.send(chunked(body[start : start + size]))
        peer.end()

    return script


def until_close(body: bytes) -> Script:
    """Answer with JSON that ends where the connection does."""

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(JSON + b"\r\n" + body)
        peer.close()

    return script


def events(*pieces: bytes, headers: str = "") -> Script:
    """Answer with an event stream."""

    def script(peer: Peer) -> None:
        peer.read()
        peer.start_events(headers=headers)
        for piece in pieces:
            peer.send(chunked(piece))
        peer.end()

    return script


def whole(body: bytes, *, media: str = "application/json", headers: str = "") -> Script:
    """Answer with a body of known length."""

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(ok(body, media=media, headers=headers))

    return script


GZIP = "Content-Encoding: gzip\r\n"
FRAMES: dict[str, Callable[[bytes], Script]] = {
    "length": whole,
    "gzip": lambda body: whole(gzip.compress(body), headers=GZIP),
    "chunks": in_chunks,
    "until close": until_close,
    "text": lambda body: whole(body, media="text/plain"),
    "event": lambda body: events(b"data: %b\n\n" % body),
    "marked event": lambda body: events(b"\xef\xbb\xbfdata: %b\n\n" % body),
    "gzip event": lambda body: events(gzip.compress(b"data: %b\n\n" % body), headers=GZIP),
    "gzip event in pieces": lambda body: events(
        *(bytes([byte]) for byte in gzip.compress(b"data: %b\n\n" % body)), headers=GZIP
    ),
    "not gzip at all": lambda body: events(b"data: %b\n\n" % body, headers=GZIP),
}
UNTOLD = {"not gzip at all"}
ODD: dict[str, Callable[[bytes], Script]] = {
    "marked": lambda body: whole(b"\xef\xbb\xbf" + body),
    "marked data of an event": lambda body: events(b"data: \xef\xbb\xbf%b\n\n" % body),
    "array": lambda body: whole(b"[%b]" % body),
    "array in an event": lambda body: events(b"data: [%b]\n\n" % body),
    "null in meta": lambda body: whole(
        body.replace(b'"result": {', b'"result": {"_meta": null, ').replace(b", }", b"}")
    ),
}


@pytest.mark.parametrize("frame", ODD)
def test_an_oddly_written_answer_gets_an_outcome_too(rig: Rig, frame: str) -> None:
    rig.upstream.script = ODD[frame](NOTHING)
    given = rig.post(call("wants"))
    assert b'"turnlog/outcome"' in given
    assert given.count(b'"content": []') == 1
    assert rig.row().kind == "null_result"


@pytest.mark.parametrize("frame", FRAMES)
def test_an_answer_that_a_rule_makes_an_error_says_so(rig: Rig, frame: str) -> None:
    rig.upstream.script = FRAMES[frame](NOTHING)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("wants"), headers=MCP_HEADERS)
    body = gzip.decompress(given.body) if given.body.startswith(b"\x1f\x8b") else given.body
    assert (b'"turnlog/outcome"' in body) is (frame not in UNTOLD)
    if frame in UNTOLD:
        assert given.body == b"data: %b\n\n" % NOTHING
    else:
        assert rig.row().kind == "null_result"
        # Nothing but a word was put in.
        assert body.count(b'"content": []') == 1
    if "event" not in frame and frame not in UNTOLD:
        assert given.head.one("turnlog-status") == "error"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_message_with_the_media_type_of_an_event_stream_is_recorded(
    rig: Rig, mark: bytes
) -> None:
    rig.upstream.script = events(mark + NOTHING)
    assert rig.post(call("wants")) == mark + NOTHING
    assert rig.row().kind == "null_result"


@pytest.mark.promise("OUT-8")
@pytest.mark.parametrize("frame", FRAMES)
def test_an_answer_that_is_not_an_error_is_unchanged(rig: Rig, frame: str) -> None:
    rig.upstream.script = FRAMES[frame](FULL)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("wants"), headers=MCP_HEADERS)
    coded = given.head.one("content-encoding") == "gzip" and frame not in UNTOLD
    body = gzip.decompress(given.body) if coded else given.body
    mark = b"\xef\xbb\xbf" if frame == "marked event" else b""
    assert body == (mark + b"data: %b\n\n" % FULL if b"data:" in body else FULL)


@pytest.mark.parametrize("script", [in_chunks(VOID, 1000), until_close(VOID)])
def test_an_error_by_the_protocol_is_amended_in_an_answer_of_one_piece(
    rig: Rig, script: Script
) -> None:
    rig.upstream.script = script
    with rig.client() as client:
        given = client.request("POST", rig.path, call("any"), headers=MCP_HEADERS)
    assert given.json()["result"]["_meta"]["turnlog/outcome"]["kind"] == "null_result"
    assert given.head.one("turnlog-status") is None


@pytest.mark.promise("WAIT-11")
def test_a_long_answer_without_a_length_is_relayed_without_its_outcome(rig: Rig) -> None:
    body = json.dumps(result(1, {"content": [{"type": "text", "text": "x" * (2 << 20)}]})).encode()
    rig.upstream.script = in_chunks(body, 65536)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("wants"), headers=MCP_HEADERS)
    assert (given.body, given.head.one("turnlog-status")) == (body, None)


def test_an_event_stream_whose_coding_breaks_off_does_not_look_whole(rig: Rig) -> None:
    coded = gzip.compress(b": %b\n\n" % os.urandom(3 << 20).translate(None, b"\r\n"))
    rig.upstream.script = events(coded[: 2 << 20], bytes(1 << 20), headers=GZIP)
    with rig.client() as client:
        client.ask("POST", rig.path, call("wants"), headers=MCP_HEADERS)
        with pytest.raises(ClosedEarlyError):
            client.response()


def test_what_the_head_of_an_answer_refers_to_stays_behind_the_proxy_if_its_coding_is_wrong(
    rig: Rig,
) -> None:
    names = "Location: /mcp/else\r\nSet-Cookie: sid=1; Path=/\r\n"
    rig.upstream.script = events(b"data: %b\n\n" % NOTHING, headers=GZIP + names)
    with rig.client() as client:
        judged = client.request("POST", rig.path, call("wants"), headers=MCP_HEADERS).head
        plain = client.request("POST", rig.path, call("reads"), headers=MCP_HEADERS).head
    assert (judged.one("location"), plain.one("location")) == (rig.path + "/else",) * 2
    assert judged.one("set-cookie") == plain.one("set-cookie") != "sid=1; Path=/"


def test_an_event_stream_that_no_rule_judges_stays_encoded(rig: Rig) -> None:
    coded = gzip.compress(b"data: %b\n\n" % NOTHING)
    rig.upstream.script = events(coded, headers=GZIP)
    with rig.client() as client:
        given = client.request("POST", rig.path, call("reads"), headers=MCP_HEADERS)
    assert (given.body, given.head.one("content-encoding")) == (coded, "gzip")


@pytest.mark.promise("OUT-27")
def test_the_head_of_a_plain_answer_holds_the_outcome_by_the_rules(rig: Rig) -> None:
    rig.upstream.script = in_chunks(b"{}x")
    with rig.client() as client:
        given = client.request("GET", f"/s/{rig.session}/page")
    assert given.head.one("turnlog-kind") == "malformed_result"
