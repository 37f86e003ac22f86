"""A complete response is the answer, even if its transfer breaks off or never ends."""

import json
from collections.abc import Iterator
from typing import Final

import pytest

from kit.beside import Rig, ruled
from kit.clients import MCP_HEADERS, call, wait_until
from kit.upstreams import Peer, Script, chunked, event, text_result

RULES: Final = """
rules:
  - {match: {tool: reads}, effect: read}
  - {match: {tool: expects}, effect: read, expects: content}
  - {match: {tool: writes}, effect: write}
  - {match: {tool: "timed*"}, timeout: {response: 200ms}}
  - {match: {tool: timed_write}, effect: write}
  - {match: {tool: "GET /timed"}, timeout: {response: 300ms}}
"""
JSON: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SAID: Final = text_result(1, "x" * 300)
BODY: Final = json.dumps(SAID).encode()
HALF: Final = len(BODY) // 2
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"

FRAMES: Final[dict[str, tuple[bytes, ...]]] = {
    "chunks": (JSON + CHUNKED + chunked(BODY),),
    "two chunks": (JSON + CHUNKED + chunked(BODY[:HALF]), chunked(BODY[HALF:])),
    "a length that is too long": (JSON + b"Content-Length: %d\r\n\r\n" % (len(BODY) + 9) + BODY,),
    "a length far too long": (JSON + b"Content-Length: 9000000\r\n\r\n" + BODY,),
    "until close": (JSON + b"\r\n" + BODY,),
    "text": (JSON.replace(b"application/json", b"text/plain") + CHUNKED + chunked(BODY),),
    "array": (JSON + CHUNKED + chunked(b"[" + BODY + b"]"),),
    "events": (
        JSON.replace(b"application/json", b"text/event-stream") + CHUNKED + chunked(event(SAID)),
    ),
}
TOOLS: Final = ("reads", "expects", "unknown", "writes", "timed", "timed_write")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ruled(tmp_path_factory.mktemp("proxy"), RULES) as rig:
        yield rig


def never_ending(pieces: tuple[bytes, ...]) -> Script:
    """Answer, and keep the connection open without a further word."""

    def script(peer: Peer) -> None:
        peer.read()
        for piece in pieces:
            peer.send(piece)
        peer.wait_for_hang_up()

    return script


def breaking_off(pieces: tuple[bytes, ...]) -> Script:
    def script(peer: Peer) -> None:
        peer.read()
        for piece in pieces:
            peer.send(piece)
        peer.close()

    return script


@pytest.mark.promise("OUT-15")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("frame", FRAMES)
def test_a_response_whose_transfer_never_ends_is_the_answer(
    rig: Rig, frame: str, tool: str
) -> None:
    rig.upstream.script = never_ending(FRAMES[frame])
    with rig.client() as client:
        client.ask("POST", rig.path, call(tool), headers=MCP_HEADERS)
        assert BODY[-40:] in client.until(BODY[-40:])
        row = rig.row()
    assert (row.status, row.executed, row.error) == ("ok", "yes", None)
    assert row.output_summary.startswith("xxx")


@pytest.mark.promise("OUT-15")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("frame", FRAMES)
def test_a_response_whose_transfer_breaks_off_is_the_answer(
    rig: Rig, frame: str, tool: str
) -> None:
    rig.upstream.script = breaking_off(FRAMES[frame])
    with rig.client() as client:
        client.ask("POST", rig.path, call(tool), headers=MCP_HEADERS)
        assert BODY[-40:] in client.until(BODY[-40:])
    row = rig.row()
    assert (row.status, row.executed, row.error) == ("ok", "yes", None)


@pytest.mark.parametrize("frame", ["chunks", "a length that is too long", "events"])
def test_a_call_whose_transfer_never_ended_can_be_made_again(rig: Rig, frame: str) -> None:
    rig.upstream.script = never_ending(FRAMES[frame])
    for _ in range(2):
        with rig.client() as client:
            client.ask("POST", rig.path, call("writes"), headers=MCP_HEADERS)
            client.until(BODY[-40:])
    first, second = rig.ended_rows(2)
    assert (first.status, second.status) == ("ok", "ok")
    assert second.flags == first.flags == []
    assert len(rig.upstream.requests) == 2
    wait_until(lambda: rig.notes().count("delivered") == 2, "both are noted as delivered")


@pytest.mark.parametrize("cut", [BODY[:-1], BODY[:HALF], BODY.replace(b'"id": 1', b'"id": 2')])
@pytest.mark.parametrize("tool", ["reads", "writes"])
def test_half_a_response_or_that_of_another_call_does_not_count(
    rig: Rig, tool: str, cut: bytes
) -> None:
    rig.upstream.script = breaking_off((JSON + CHUNKED + chunked(cut),))
    with rig.client() as client:
        client.ask("POST", rig.path, call(tool), headers=MCP_HEADERS)
        client.rest()
    assert rig.row().error == "connection"


@pytest.mark.parametrize("length", ["Content-Length: 400\r\n\r\n", "\r\n"])
def test_json_of_a_plain_tool_whose_transfer_breaks_off_after_its_end_is_the_answer(
    rig: Rig, length: str
) -> None:
    body = b'{"item": "%b"}' % (b"y" * 300)
    rig.upstream.script = breaking_off((JSON + length.encode() + body,))
    with rig.client() as client:
        given = client.request("GET", f"/s/{rig.session}/page")
    assert given.body == body
    assert rig.row().status == "ok"


@pytest.mark.parametrize("page", ["page", "timed"])
def test_json_of_a_plain_tool_whose_transfer_never_ends_is_the_answer_after_its_caller_left(
    rig: Rig, page: str
) -> None:
    body = b'{"item": "%b"}' % (b"y" * 300)
    rig.upstream.script = never_ending((JSON + CHUNKED + chunked(body),))
    with rig.client() as client:
        client.ask("GET", f"/s/{rig.session}/{page}")
        client.until(body[-40:])
        if page == "timed":
            client.rest()
    assert rig.row().status == "ok"


@pytest.mark.promise("OUT-27")
@pytest.mark.parametrize("frame", ["a length that is too long", "until close"])
def test_the_head_of_a_complete_response_has_the_outcome_before_its_transfer_ends(
    rig: Rig, frame: str
) -> None:
    rig.upstream.script = never_ending(FRAMES[frame])
    with rig.client() as client:
        client.ask("POST", rig.path, call("expects"), headers=MCP_HEADERS)
        assert client.head().one("turnlog-status") == "ok"


def test_lines_of_json_of_a_plain_tool_are_recorded_to_their_end(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(JSON + CHUNKED + chunked(b'{"line": 1}\n'))
        peer.send(chunked(b'{"line": 2}\n'))
        peer.end()

    rig.upstream.script = script
    with rig.client() as client:
        given = client.request("GET", f"/s/{rig.session}/lines")
    assert rig.row().bytes_out == len(given.body) == 24
