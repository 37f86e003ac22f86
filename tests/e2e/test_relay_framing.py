"""Answers in odd or hostile framing: relayed when they are sound, cut off when they are not.

What one answer leaves behind never becomes the answer to another request.
"""

import threading

import pytest

from kit.beside import Rig
from kit.clients import BOUND, MCP_HEADERS, Client, ClosedEarlyError, call, wait_until
from kit.upstreams import Peer, Script, answer, chunked, ok

GOOD = ok(b"good")
NEXT = ok(b"next")


def then_close(raw: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(raw)
        peer.close()

    return script


def byte_by_byte(raw: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.read()
        for place in range(len(raw)):
            peer.send(raw[place : place + 1])

    return script


SOUND = {
    "lines ended by LF": b"HTTP/1.1 200 OK\nContent-Length: 4\n\ngood",
    "blanks around values": b"HTTP/1.1 200 OK\r\nContent-Length:\t 4 \t\r\n\r\ngood",
    "names in capitals": b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH: 4\r\n\r\ngood",
    "chunked in capitals": b"HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: Chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n",
    "sizes with zeros": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0004\r\ngood\r\n000\r\n\r\n",
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\nA: 1\r\nB: 2\r\n\r\n",
    "hints that close": b"HTTP/1.1 103 Hints\r\nConnection: close\r\n\r\n" + GOOD,
    "an old 100": b"HTTP/1.0 100 Continue\r\n\r\n" + GOOD,
    "hints first": b"HTTP/1.1 103 Hints\r\nLink: <a>\r\n\r\n" * 3 + GOOD,
    "the same length twice": b"HTTP/1.1 200 OK\r\n" + b"Content-Length: 4\r\n" * 2 + b"\r\ngood",
    "the same length in a list": b"HTTP/1.1 200 OK\r\nContent-Length: 4, 4 ,4\r\n\r\ngood",
    "a fold": b"HTTP/1.1 200 OK\r\nX-Folded: one\r\n  two\r\n\tthree\r\nContent-Length: 4\r\n\r\ngood",
    "a fold in a hint": b"HTTP/1.1 103 Hints\r\nLink: <a>\r\n <b>\r\n\r\n" * 2 + GOOD,
    "a folded coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n",
    "a higher minor version": b"HTTP/1.2 200 OK\r\nContent-Length: 4\r\n\r\ngood",
    "two blanks before the status": b"HTTP/1.1  200 OK\r\nContent-Length: 4\r\n\r\ngood",
    "a blank before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\ngood",
    "a field without colon": b"HTTP/1.1 200 OK\r\nsome words\r\nContent-Length: 4\r\n\r\ngood",
    "a name that is no token": b"HTTP/1.1 200 OK\r\nX(1): 1\r\nContent-Length: 4\r\n\r\ngood",
    "a field with NUL": b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 4\r\n\r\ngood",
    "a field with CR": b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 4\r\n\r\ngood",
    "a field with control characters": b"HTTP/1.1 200 OK\r\nX: \1\x1b\r\nContent-Length: 4\r\n\r\ngood",
    "a signed length": b"HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\ngood",
    "identity": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 4\r\n\r\ngood",
    "chunked twice": b"HTTP/1.1 200 OK\r\n"
    + b"Transfer-Encoding: chunked\r\n" * 2
    + b"\r\n4\r\ngood\r\n0\r\n\r\n",
    "blanks behind sizes": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4  \r\ngood\r\n0\t\r\n\r\n",
    "CR CR LF": b"HTTP/1.1 200 OK\r\r\nContent-Length: 4\r\r\n\r\r\ngood",
    "a fold before all fields": b"HTTP/1.1 200 OK\r\n X: 1\r\nContent-Length: 4\r\n\r\ngood",
    "1.0 and kept alive": b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\ngood",
}


@pytest.mark.promise("WIRE-15")
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("pace", ["at once", "byte by byte"])
def test_a_sound_answer_is_relayed(rig: Rig, name: str, pace: str) -> None:
    rig.upstream.script = answer(SOUND[name]) if pace == "at once" else byte_by_byte(SOUND[name])
    with rig.client() as client:
        given = client.request("GET", "/tool")
        assert (given.status, given.body) == (200, b"good")
        rig.upstream.script = answer(NEXT)
        assert client.request("GET", "/next").body == b"next"


@pytest.mark.parametrize("behind", [b"\n", b"\r\n", b"\r\n\r\n", b"\n\n"])
@pytest.mark.parametrize("sound", ["the plainest", "in chunks"])
def test_line_ends_after_an_answer_shift_no_later_one(rig: Rig, sound: str, behind: bytes) -> None:
    raw = GOOD if sound == "the plainest" else SOUND["chunked in capitals"]
    rig.upstream.script = answer(raw + behind)
    with rig.client() as client:
        given = [client.request("GET", "/tool") for _ in range(4)]
    assert [(one.status, one.body) for one in given] == [(200, b"good")] * 4


UNSOUND = {
    "no status": b"HTTP/1.1\r\n\r\n",
    "a status below 100": b"HTTP/1.1 099 Odd\r\nContent-Length: 4\r\n\r\ngood",
    "letters for a status": b"HTTP/1.1 OK\r\nContent-Length: 0\r\n\r\n",
    "another protocol": b"ICY 200 OK\r\n\r\n",
    "a length with a unit": b"HTTP/1.1 200 OK\r\nContent-Length: 4 bytes\r\n\r\ngood",
    "another protocol that is switched to": b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\ngood",
    "a hexadecimal length": b"HTTP/1.1 200 OK\r\nContent-Length: 0x4\r\n\r\ngood",
    "an immense length": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\ngood",
    "two lengths in a list": b"HTTP/1.1 200 OK\r\nContent-Length: 4, 5\r\n\r\ngood!",
    "a folded length": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n 5\r\n\r\ngood",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ngood!",
    "an unknown coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\ngood",
    "chunked not last": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n4\r\ngood\r\n0\r\n\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * (2 << 20),
}


@pytest.mark.promise("WIRE-14")
@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_head_is_no_answer(rig: Rig, name: str) -> None:
    rig.upstream.script = then_close(UNSOUND[name])
    with rig.client() as client:
        given = client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
        assert given.json()["result"]["isError"] is True
        assert "sent what is no HTTP" in given.json()["result"]["content"][0]["text"]
        rig.upstream.script = answer(NEXT)
        assert client.request("GET", "/next").body == b"next"
    row = rig.row()
    assert (row.status, row.kind, row.executed) == ("unknown", "malformed_result", "maybe")


def test_a_head_that_breaks_off_is_a_lost_connection(rig: Rig) -> None:
    for raw in (b"HTTP/1.1 200 OK\r\n", SOUND["a fold"][:50], SOUND["the same length twice"][:55]):
        rig.upstream.script = then_close(raw)
        with rig.client() as client:
            client.request("POST", rig.path, call("add"), headers=MCP_HEADERS)
    assert [row.kind for row in rig.ended_rows(3)] == ["connection_lost"] * 3


@pytest.mark.promise("WIRE-15")
def test_a_head_that_was_mended_goes_on_in_a_valid_form(rig: Rig) -> None:
    rig.upstream.script = answer(SOUND["a fold"])
    with rig.client() as client:
        head = client.request("GET", "/tool").head
    assert head.relayed == (("X-Folded", "one two three"), ("Content-Length", "4"))
    rig.upstream.script = answer(SOUND["the same length in a list"])
    with rig.client() as client:
        assert client.request("HEAD", "/tool").head.relayed == (("Content-Length", "4"),)


CHUNKS = {
    "no size": b"good\r\n0\r\n\r\n",
    "a bad size": b"4g\r\ngood\r\n0\r\n\r\n",
    "a negative size": b"-4\r\ngood\r\n0\r\n\r\n",
    "an immense size": b"fffffffffffffffff\r\ngood\r\n0\r\n\r\n",
    "too little data": b"5\r\ngood\r\n0\r\n\r\n",
    "too much data": b"3\r\ngood\r\n0\r\n\r\n",
    "no end": b"4\r\ngood\r\n",
    "an end in the middle": b"4\r\ngo",
}


@pytest.mark.promise("WIRE-14")
@pytest.mark.parametrize("name", CHUNKS)
def test_unsound_chunks_are_never_passed_off_as_a_whole_body(rig: Rig, name: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    rig.upstream.script = then_close(head + CHUNKS[name])
    with rig.client() as client:
        client.ask("PUT", f"/s/{rig.session}/tool", b"x")
        head_ = client.head()
        if head_.status == 200:
            with pytest.raises(ClosedEarlyError):
                client.body(head_)
        else:
            assert head_.status == 502
    assert (rig.row().status, rig.row().kind) == ("unknown", "connection_lost")


SPLITTERS = {
    "a second answer behind the first": GOOD + ok(b"evil"),
    "bytes behind the length": GOOD + b"trailing bytes",
    "an answer behind the last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunked(b"good")
    + b"0\r\n\r\n"
    + ok(b"evil"),
    "line ends behind the length": GOOD + b"\r\n\r\n",
}


@pytest.mark.promise("WIRE-14")
@pytest.mark.parametrize("name", SPLITTERS)
@pytest.mark.parametrize("late", [False, True])
def test_bytes_after_an_answer_answer_no_other_request(rig: Rig, name: str, late: bool) -> None:
    raw = SPLITTERS[name]
    # What comes after the next request was sent is an answer to it, for all that anybody can tell.
    all_sent = threading.Event()

    def script(peer: Peer) -> None:
        peer.read()
        place = raw.index(b"0\r\n\r\n") + 5 if b"chunked" in raw else len(GOOD)
        peer.send(raw[:place] if late else raw)
        if late:
            peer.send(raw[place:])
        all_sent.set()

    rig.upstream.script = script
    with rig.client() as client:
        assert client.request("GET", "/tool").body == b"good"
        assert all_sent.wait(BOUND)
        rig.upstream.script = answer(NEXT)
        assert client.request("GET", "/next").body == b"next"
        assert client.request("GET", "/next").body == b"next"


BODILESS = {
    "204 with a body": ("GET", b"HTTP/1.1 204 No\r\nContent-Length: 4\r\n\r\nevil"),
    "304 with a body": ("GET", b"HTTP/1.1 304 No\r\nContent-Length: 4\r\n\r\nevil"),
    "HEAD with a body": ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"),
    "HEAD with chunks": (
        "HEAD",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n",
    ),
    "HEAD with an answer": ("HEAD", b"HTTP/1.1 200 OK\r\n\r\n" + ok(b"evil")),
}


@pytest.mark.parametrize("name", BODILESS)
def test_a_body_of_an_answer_that_cannot_have_one_is_dropped(rig: Rig, name: str) -> None:
    method, raw = BODILESS[name]
    rig.upstream.script = answer(raw)
    with rig.client() as client:
        assert client.request(method, "/tool").body == b""
        rig.upstream.script = answer(NEXT)
        assert client.request("GET", "/next").body == b"next"


def test_an_answer_that_came_before_its_request_does_not_answer_it(rig: Rig) -> None:
    sent: list[int] = []

    def script(peer: Peer) -> None:
        peer.read()
        peer.send(GOOD)
        peer.send(ok(b"evil"))
        sent.append(1)

    rig.upstream.script = script
    with rig.client() as client:
        client.request("GET", "/tool")
        wait_until(lambda: sent, "the unasked answer is sent")
        rig.upstream.script = answer(NEXT)
        for _ in range(3):
            assert client.request("GET", "/next").body == b"next"


def test_an_answer_that_switches_protocols_is_relayed_or_refused_but_not_misread(rig: Rig) -> None:
    rig.upstream.script = then_close(
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02hi"
    )
    with rig.client() as client:
        client.ask("GET", "/tool", headers=(("Connection", "Upgrade"), ("Upgrade", "websocket")))
        assert client.head().status == 502
    assert not rig.upstream.requests[0].all(b"upgrade")


@pytest.mark.parametrize("end", [b"0\r\n", b"0;a\r\nX: 1\r\n", b"0\r\nX: 1"])
def test_a_chunked_body_is_whole_once_its_last_chunk_has_come(rig: Rig, end: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    rig.upstream.script = then_close(head + b"4\r\ngood\r\n" + end)
    with rig.client() as client:
        assert client.request("GET", f"/s/{rig.session}/tool").body == b"good"
    assert rig.row().status == "ok"
    for cut in (b"0", b"0\r", b"00", b"5\r\n", b"4\r\n\r\n", b""):
        rig.upstream.script = then_close(head + b"4\r\ngood\r\n" + cut)
        with rig.client() as client:
            client.ask("GET", "/tool")
            with pytest.raises(ClosedEarlyError):
                client.body(client.head())


def test_a_slow_request_head_delays_no_other_client(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        if peer.read().target != b"/slow":
            peer.send(NEXT)
            return
        for place in range(len(GOOD)):
            peer.send(GOOD[place : place + 1])
            if place == 20:
                with Client(rig.proxy.url) as other:
                    assert other.request("GET", "/next").body == b"next"

    rig.upstream.script = script
    with rig.client() as client:
        assert client.request("GET", "/slow").body == b"good"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17])
def test_answers_cut_at_any_byte_are_reported_as_cut(rig: Rig, size: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 20\r\n\r\n" + b"x" * 20
    for place in range(size, len(whole), 19):
        rig.upstream.script = then_close(whole[:place])
        with rig.client() as client:
            client.ask("GET", "/tool")
            head = client.head()
            if head.status == 502:
                continue
            with pytest.raises(ClosedEarlyError):
                client.body(head)
