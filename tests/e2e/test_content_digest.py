"""Digests of answers (RFC 9530): checked as the content passes, which arrives byte by byte as it was sent."""

import base64
import gzip
import hashlib
import json

import pytest

from kit.beside import Rig
from kit.clients import MCP_HEADERS, call
from kit.upstreams import Peer, answer, chunked, event, ok, text_result
from turnlog.sessions.rows import Row

BODY = b'{"balance": 17}'
OTHER = b'{"balance": 99}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def digest(content: bytes, *, algorithm: str = "sha-256") -> str:
    """Return a member of a Content-Digest field."""
    value = hashlib.new(algorithm.replace("-", ""), content).digest()
    return f"{algorithm}=:{base64.b64encode(value).decode()}:"


def field(value: str, *, name: str = "Content-Digest") -> str:
    return f"{name}: {value}\r\n"


def flags_of_get(rig: Rig, raw: bytes, *, method: str = "GET") -> list[str]:
    """Answer a plain request with these bytes; return the flags of its row once it has its answer."""
    rig.upstream.script = answer(raw)
    with rig.client() as client:
        client.request(method, f"/s/{rig.session}/balance")
    return list(rig.row().flags)


def reasons_of(row: Row) -> list[str]:
    assert isinstance(row.provenance_reasons, list)
    return row.provenance_reasons


HOLDING = [
    field(digest(BODY)),
    field(digest(BODY, algorithm="sha-512")),
    field(f"{digest(BODY)}, {digest(BODY, algorithm='sha-512')}"),
    field(f"md5=:{'A' * 22}==:, {digest(BODY)}"),  # an algorithm that is not known is ignored
    field(f"{digest(BODY)};note=1"),
    field("md5=:AAAAAAAAAAAAAAAAAAAAAA==:"),
    field("not a dictionary ="),
    field("sha-256=5"),
    field(digest(BODY), name="Repr-Digest"),
    field(digest(OTHER, algorithm="sha-512"), name="Digest"),
]


@pytest.mark.promise("PROV-9")
@pytest.mark.parametrize("headers", HOLDING)
def test_an_answer_whose_digest_holds_is_not_flagged(rig: Rig, headers: str) -> None:
    assert "unverified" not in flags_of_get(rig, ok(BODY, headers=headers))


FAILING = [
    field(digest(OTHER)),
    field(digest(OTHER, algorithm="sha-512")),
    field(f"{digest(BODY)}, {digest(OTHER, algorithm='sha-512')}"),
    field(digest(BODY)) + field(digest(OTHER, algorithm="sha-512")),
    field("sha-256=:AAAA:"),
    field(digest(OTHER), name="Repr-Digest"),
    field(digest(BODY)) + field(digest(OTHER), name="Repr-Digest"),
]


@pytest.mark.promise("PROV-9")
@pytest.mark.parametrize("headers", FAILING)
def test_an_answer_whose_digest_fails_is_flagged_and_passed_on(rig: Rig, headers: str) -> None:
    rig.upstream.script = answer(ok(BODY, headers=headers))
    with rig.client() as client:
        got = client.request("GET", f"/s/{rig.session}/balance")
    assert got.body == BODY
    assert got.head.all("content-digest") == [
        line.partition(": ")[2] for line in headers.split("\r\n") if line.startswith("Content-D")
    ]
    assert got.head.one("turnlog-flags") == "unverified"
    row = rig.row()
    assert (row.status, row.error, row.flags) == ("ok", None, ["unverified"])
    assert row.provenance == "mismatch"
    assert any(str(reason).startswith("result: ") for reason in reasons_of(row))
    assert got.head.one("turnlog-provenance") == "mismatch"


@pytest.mark.promise("PROV-9")
@pytest.mark.parametrize("named", [BODY, OTHER])
def test_the_digest_of_an_mcp_answer_is_checked(rig: Rig, named: bytes) -> None:
    body = json.dumps(text_result(1, "done")).encode()
    headers = field(digest(body if named == BODY else OTHER))
    rig.upstream.script = answer(ok(body, headers=headers))
    with rig.client() as client:
        got = client.request("POST", rig.path, call("pay"), headers=MCP_HEADERS)
    assert got.body == body
    assert ("unverified" in rig.row().flags) == (named == OTHER)


@pytest.mark.parametrize("named", [BODY, OTHER])
def test_the_digest_covers_the_content_as_it_is_coded(rig: Rig, named: bytes) -> None:
    coded = gzip.compress(BODY)
    headers = "Content-Encoding: gzip\r\n" + field(digest(coded if named == BODY else BODY))
    flags = flags_of_get(rig, ok(coded, headers=headers))
    assert ("unverified" in flags) == (named == OTHER)


@pytest.mark.parametrize("named", [BODY, OTHER])
def test_a_digest_is_checked_of_content_in_chunks_whose_end_comes_late(
    rig: Rig, named: bytes
) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(HEAD + f"Transfer-Encoding: chunked\r\n{field(digest(named))}\r\n".encode())
        peer.send(chunked(BODY[:5]))
        peer.send(chunked(BODY[5:]))
        peer.send(b"0\r\n\r\n")

    rig.upstream.script = script
    with rig.client() as client:
        got = client.request("GET", f"/s/{rig.session}/balance")
    assert got.body == BODY
    assert ("unverified" in rig.row().flags) == (named == OTHER)


@pytest.mark.parametrize("named", [BODY, OTHER])
def test_a_digest_in_trailers_is_checked(rig: Rig, named: bytes) -> None:
    head = HEAD + b"Trailer: Content-Digest\r\nTransfer-Encoding: chunked\r\n\r\n"
    end = f"0\r\n{field(digest(named))}\r\n".encode()
    flags = flags_of_get(rig, head + chunked(BODY) + end)
    assert ("unverified" in flags) == (named == OTHER)


def test_large_content_is_checked_as_it_passes(rig: Rig) -> None:
    large = b"x" * (5 << 20)
    assert "unverified" in flags_of_get(
        rig, ok(large, media="text/plain", headers=field(digest(OTHER)))
    )


NOT_CHECKED = [
    ("HEAD", ok(b"", headers=field(digest(OTHER)))),
    ("GET", b"HTTP/1.1 304 Not Modified\r\n" + field(digest(OTHER)).encode() + b"\r\n"),
    ("GET", b"HTTP/1.1 204 No Content\r\n" + field(digest(OTHER)).encode() + b"\r\n"),
    (
        "GET",
        ok(
            BODY,
            status="206 Partial Content",
            headers="Content-Range: bytes 0-14/99\r\n" + field(digest(OTHER), name="Repr-Digest"),
        ),
    ),
    (
        "GET",
        HEAD
        + f"{field(digest(OTHER))}Transfer-Encoding: chunked\r\n\r\n".encode()
        + chunked(b'{"cut')
        + b"5\r\nab",
    ),
    (
        "GET",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        + f"{field(digest(OTHER))}Connection: close\r\n\r\n".encode()
        + event({"a": 1}),
    ),
]


@pytest.mark.parametrize(("method", "raw"), NOT_CHECKED)
def test_a_digest_of_content_that_was_not_sent_whole_says_nothing(
    rig: Rig, method: str, raw: bytes
) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(raw)
        peer.close()

    rig.upstream.script = script
    with rig.client() as client:
        client.ask(method, f"/s/{rig.session}/balance")
        rig.ended_rows()
    assert "unverified" not in rig.row().flags


@pytest.mark.parametrize("named", [BODY, OTHER])
def test_a_range_has_a_digest_of_its_own_content(rig: Rig, named: bytes) -> None:
    headers = "Content-Range: bytes 0-14/99\r\n" + field(digest(named))
    flags = flags_of_get(rig, ok(BODY, status="206 Partial Content", headers=headers))
    assert ("unverified" in flags) == (named == OTHER)
