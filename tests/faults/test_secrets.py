"""Secrets that pass through turnlog are found nowhere in what it writes.

Each test plants values that stand nowhere else, waits until the proxy stopped, and looks for them
in every file: raw, and in every blob decompressed.
"""

import base64
import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, call, message
from kit.packing import PACKERS
from kit.proxy import written
from kit.upstreams import Peer, RawUpstream, chunked, event, ok, text_result
from turnlog.core.commit import decode_body
from turnlog.store.base import Blob
from turnlog.store.lmdb import LmdbReader

API_KEY = "sk-ant-api03-" + "Qm3vX9pLz7Rt2Wc8" * 5
GITHUB = "ghp_" + "a8Zk3Lq9Xw2Mv7Bn4Rt6Yc1Ph5Ds0Jf8Ge"
PASSWORD = "Tr0ub4dor-planted-here"
SESSION = "f81d4fae7dec11d0a76500a0c91e6bf6planted"
COOKIE = "c00kievaluethatisplanted0815"
BEARER = "bearervaluethatisplanted4711xyz"
AWS = "AKIA" + "PLANTEDKEYID1234"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJwbGFudGVkIjoidHJ1ZSIsIm4iOjEyMzQ1fQ.c2lnbmF0dXJlcGxhbnRlZGhlcmU"
BEARER_SHAPE = "glpat-" + "Zq3Lw9Xv2Mb7Nt4R6Yc1"
NESTED = "nested-planted-value-2718281828"
LATE = "late-planted-value-1414213562"
NUMBER = "90210314159"
MARK = "harmless-and-easily-found"
"""Stands beside the secrets, to show that the search finds what is there."""
PARTS = (API_KEY[:13], *(API_KEY[place : place + 20] for place in range(13, 73, 4)))
"""A secret's unmistakable start, and runs of it long enough to be of use."""

PLANTED = {
    "api key": API_KEY,
    "github token": GITHUB,
    "password": PASSWORD,
    "session": SESSION,
    "cookie": COOKIE,
    "bearer": BEARER,
    "aws": AWS,
    "jwt": JWT,
    "nested": NESTED,
    "late": LATE,
    "number": NUMBER,
}


def everything(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield all that was written, and what its compressed parts say."""
    for path, data in written(folder).items():
        yield str(path.relative_to(folder)), data
    reader = LmdbReader.open(folder / "data")
    try:
        with reader.view() as view:
            for session in view.sessions():
                yield "session", repr(session).encode()
                for position, header, body in view.headers(session.session):
                    yield f"commit {position}", header + (body or b"")
                    said = decode_body(body) if body else None
                    for handle in (said.input_blob, said.output_blob) if said else ():
                        blob = view.blob(handle) if handle else None
                        yield f"blob of {position}", blob.data if isinstance(blob, Blob) else b""
    finally:
        reader.close()


def forms(secret: str) -> set[bytes]:
    """Return how a secret may be spelt on disk."""
    plain = secret.encode()
    return {
        plain,
        plain[::-1],
        urllib.parse.quote(secret, safe="").encode(),
        base64.b64encode(plain).rstrip(b"="),
        plain.hex().encode(),
        plain.decode().encode("utf-16-le"),
    }


def leaks(folder: Path, *secrets: str) -> list[str]:
    found: list[str] = []
    places = list(everything(folder))
    blobs = [data for place, data in places if place.startswith("blob")]
    assert any(MARK.encode() in data for data in blobs), "the search finds nothing at all"
    for place, data in places:
        for secret in secrets:
            found += [f"{form!r} in {place}" for form in forms(secret) if form in data]
    return found


def nested(value: object, levels: int) -> str:
    text = json.dumps(value)
    for _ in range(levels - 1):
        text = json.dumps({"inner": text})
    return text


def test_secrets_of_an_mcp_call_are_nowhere(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        said = {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {
                "content": [
                    {
                        "type": "text",
                        "text": f"export OPENAI_API_KEY={API_KEY}\npassword: {PASSWORD}",
                    },
                    {"type": "text", "text": nested({"client_secret": NESTED, "token": GITHUB}, 3)},
                ],
                "structuredContent": {"access_token": BEARER, "aws": AWS, "jwt": JWT},
            },
        }
        peer.send_json(said, headers=f"Set-Cookie: sid={COOKIE}\r\nMcp-Session-Id: {SESSION}\r\n")

    arguments = {
        "mark": MARK,
        "password": PASSWORD,
        "pin_password": int(NUMBER),
        "header": f"Authorization: Bearer {BEARER}",
        "url": f"https://user:{PASSWORD}@example.com/x?access_token={BEARER}&api_key={API_KEY}",
        "nested": nested({"api_key": NESTED, "headers": {"Cookie": f"sid={COOKIE}"}}, 3),
        "list": [{"secret": {"value": NESTED, "n": int(NUMBER)}}],
        "text": f"my key is {API_KEY} and {GITHUB} and {AWS} and {JWT}",
    }
    headers = (
        *MCP_HEADERS,
        ("Authorization", f"Bearer {BEARER}"),
        ("Cookie", f"sid={COOKIE}"),
        ("X-Api-Key", API_KEY),
        ("Mcp-Session-Id", SESSION),
        ("Mcp-Param-Password", PASSWORD),
        ("Mcp-Param-Note", JWT),
        ("X-Custom", GITHUB),
        ("MCP-Protocol-Version", "2026-07-28"),
    )
    with (
        RawUpstream(script) as upstream,
        proxy_beside(tmp_path, upstream.url, flags=("--log-level", "debug")) as proxy,
    ):
        with Client(proxy.url) as client:
            client.request("POST", "/mcp", message("initialize", arguments), headers=headers)
            for number in range(2):
                body = call("login", arguments, request_id=number, _meta={"token": GITHUB})
                client.request("POST", "/mcp", body, headers=headers)
        assert API_KEY.encode() in upstream.requests[1].body
    assert leaks(tmp_path, *PLANTED.values()) == []


@pytest.mark.promise("SEC-13")
def test_header_values_are_not_stored_but_for_those_that_name_the_caller(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(ok(f'{{"said": "{MARK}"}}'.encode(), headers="X-Region: plainly-answered\r\n"))

    headers = (("X-Project", "plainly-asked"), ("User-Agent", "named-agent/1"))
    with (
        RawUpstream(script) as upstream,
        proxy_beside(tmp_path, upstream.url, flags=("--log-level", "debug")) as proxy,
        Client(proxy.url) as client,
    ):
        client.request("POST", "/mcp", call("read"), headers=(*MCP_HEADERS, *headers))
        client.request("GET", "/v1/x", headers=headers)
    assert leaks(tmp_path, "plainly-asked", "plainly-answered") == []
    assert leaks(tmp_path, "named-agent/1") != []


def test_secrets_of_errors_and_streams_are_nowhere(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        name = peer.read().json()["params"]["name"]
        if name == "error":
            error = {
                "code": -32603,
                "message": f"{MARK} bad password={PASSWORD}",
                "data": {"token": BEARER},
            }
            peer.send_json({"jsonrpc": "2.0", "id": 1, "error": error})
        elif name == "html":
            peer.send(ok(f"<b>api_key: {API_KEY}</b>".encode(), media="text/html", status="500 No"))
        else:
            peer.start_events()
            whole = b": x\n" + event(
                text_result(1, f"token {GITHUB} cookie: {COOKIE}"), event_id=JWT
            )
            for place in range(0, len(whole), 5):
                peer.send(chunked(whole[place : place + 5]))
            peer.end()

    with (
        RawUpstream(script) as upstream,
        proxy_beside(tmp_path, upstream.url) as proxy,
        Client(proxy.url) as client,
    ):
        for name in ("error", "html", "stream"):
            client.request("POST", "/mcp", call(name), headers=MCP_HEADERS)
    assert leaks(tmp_path, PASSWORD, BEARER, API_KEY, GITHUB, COOKIE, JWT) == []


def test_secrets_of_plain_calls_are_nowhere(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(
            ok(
                json.dumps({"refresh_token": NESTED, "note": API_KEY}).encode(),
                headers=f"Location: /x?access_token={BEARER}\r\n",
            )
        )

    with (
        RawUpstream(script) as upstream,
        proxy_beside(tmp_path, upstream.url) as proxy,
        Client(proxy.url) as client,
    ):
        query = f"api_key={API_KEY}&password={urllib.parse.quote(PASSWORD)}&token={GITHUB}&x=1"
        client.request("GET", f"/v1/{GITHUB}/list?{query}")
        client.request("GET", f"/v1/list?%61ccess_token={BEARER}&b={JWT}")
        client.request(
            "POST", "/v1/login", json.dumps({"user": "a", "b": MARK, "password": PASSWORD}).encode()
        )
        form = f"user=a&password={PASSWORD}&client_secret={NESTED}".encode()
        client.request("POST", "/v1/form", form)
        client.request("PUT", "/v1/raw", f"token: {GITHUB}\nAuthorization: Basic {BEARER}".encode())
        client.request("GET", "/v1/x", headers=(("Cookie", f"a={COOKIE}"), ("X-Api-Key", API_KEY)))
    assert leaks(tmp_path, API_KEY, PASSWORD, GITHUB, BEARER, JWT, NESTED, COOKIE) == []


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_secrets_in_encoded_bodies_are_nowhere(tmp_path: Path, coding: str) -> None:
    pack = PACKERS[coding]

    def script(peer: Peer) -> None:
        peer.read()
        body = pack(json.dumps(text_result(1, f"{MARK} password={PASSWORD} {API_KEY}")).encode())
        peer.send(ok(body, headers=f"Content-Encoding: {coding}\r\n"))

    coded = (("Content-Encoding", coding),)
    with (
        RawUpstream(script) as upstream,
        proxy_beside(tmp_path, upstream.url) as proxy,
        Client(proxy.url) as client,
    ):
        packed = pack(call("login", {"token": GITHUB, "x": JWT}))
        client.request("POST", "/mcp", packed, headers=(*MCP_HEADERS, *coded))
        plain = pack(json.dumps({"password": NESTED}).encode())
        client.request("POST", "/plain", plain, headers=coded)
    assert leaks(tmp_path, PASSWORD, API_KEY, GITHUB, JWT, NESTED) == []


def test_a_secret_across_the_cap_of_a_record_leaves_no_part_behind(tmp_path: Path) -> None:
    limit = 64 << 10

    def filled(start: int) -> dict[str, str]:
        pad = "word " * ((limit - start) // 5)
        return {"pad": pad, "key": f"x {API_KEY}", "z": "z" * 400, "a": MARK}

    def script(peer: Peer) -> None:
        asked = peer.read().json()
        if "params" not in asked:
            peer.send(ok(b"{}"))
            return
        start = asked["params"]["arguments"]["start"]
        text = json.dumps({"structuredContent": filled(start), "content": []})
        body = b'{"jsonrpc":"2.0","id":1,"result":' + text.encode() + b"}"
        if asked["params"]["name"] == "json":
            peer.send(ok(body))
            return
        peer.start_events()
        peer.send(chunked(b"data: " + body + b"\n\n"))
        peer.end()

    settings = {"limits": {"record": limit}}
    with (
        RawUpstream(script) as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
        Client(proxy.url) as client,
    ):
        for start in range(0, 200, 15):
            for name in ("json", "stream"):
                asked = {"a": MARK, "start": start, **filled(start)}
                client.request("POST", "/mcp", call(name, asked), headers=MCP_HEADERS)
            client.request("POST", "/plain", json.dumps(filled(start)).encode())
    assert leaks(tmp_path, *PARTS) == []


def test_a_secret_across_the_start_of_a_huge_message_leaves_no_part_behind(tmp_path: Path) -> None:
    start = 64 << 10

    def body(size: int) -> bytes:
        head = (
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"huge","arguments":'
            b'{"a":"' + MARK.encode() + b'","pad":"'
        )
        pad = b"w " * ((start - len(head) - 40) // 2)
        key = b'","key":"' + API_KEY.encode()
        return head + pad + key + b'","z":"' + b"z" * size + b'"}}}'

    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url) as proxy,
        Client(proxy.url) as client,
    ):
        client.request("POST", "/mcp", body(17 << 20), headers=MCP_HEADERS)
        client.request("PUT", "/plain", body(2 << 20))
    assert leaks(tmp_path, *PARTS) == []


@pytest.mark.promise("SEC-3")
def test_what_the_operator_names_is_cut_too(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send_json(text_result(1, f"badge: {NESTED}, staff 1234-5678-99"))

    settings = {"redact": {"keys": ["badge"], "patterns": [r"\d{4}-\d{4}-\d\d"]}}
    with (
        RawUpstream(script) as upstream,
        proxy_beside(tmp_path, upstream.url, settings=settings) as proxy,
        Client(proxy.url) as client,
    ):
        body = call("staff", {"badge": LATE, "note": "1234-5678-99", "a": MARK})
        client.request("POST", "/mcp", body, headers=MCP_HEADERS)
    assert leaks(tmp_path, NESTED, LATE, "1234-5678-99") == []


def test_secrets_of_refused_failed_and_abandoned_requests_are_nowhere(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(f"HTTP/1.1 2x0 {PASSWORD}\r\nX: {API_KEY}\r\n\r\n".encode())
        peer.close()

    secret_path = f"/nowhere/{GITHUB}?access_token={BEARER}"
    with (
        RawUpstream(script) as upstream,
        proxy_beside(
            tmp_path, f"one={upstream.url}", f"two={upstream.url}", flags=("--log-level", "debug")
        ) as proxy,
    ):
        url = proxy.urls[0]
        for raw in (
            f"GET {secret_path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            f"GET /one HTTP/1.1\r\nHost: {GITHUB}.example\r\n\r\n",
            f"GET /one HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://{GITHUB}.example\r\n\r\n",
            f"GET /one HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization {BEARER}\r\n\r\n",
            f"{GITHUB} /one HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            f"POST /one HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x{JWT}\r\n\r\n",
        ):
            with Client(url) as client:
                client.send(raw.encode())
                client.rest() if "Authorization " in raw else client.response()
        with Client(url) as client:
            client.request(
                "POST", "/one", call("x", {"token": LATE, "a": MARK}), headers=MCP_HEADERS
            )
    assert leaks(tmp_path, GITHUB, BEARER, JWT, LATE, PASSWORD, API_KEY) == []


@pytest.mark.promise("SEC-6")
def test_secrets_in_the_names_that_callers_give_are_nowhere(tmp_path: Path) -> None:
    named = {"Turnlog-Turn": GITHUB, "Turnlog-Why": API_KEY, "Idempotency-Key": JWT}
    info = {"name": f"agent {AWS}", "version": BEARER_SHAPE}
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path, upstream.url, flags=("--log-level", "debug")) as proxy,
        Client(proxy.url) as client,
    ):
        asked = message("initialize", {"clientInfo": info, "protocolVersion": "2025-06-18"})
        revision = ("MCP-Protocol-Version", GITHUB)
        client.request("POST", "/mcp", asked, headers=(*MCP_HEADERS, revision))
        odd = message(f"tools/{API_KEY}", request_id=AWS)
        client.request("POST", "/mcp", odd, headers=MCP_HEADERS)
        client.request(
            "POST", "/mcp", call("x", {"a": MARK}), headers=(*MCP_HEADERS, *named.items())
        )
        meta = {"turnlog/turn": AWS, "turnlog/session": JWT, "turnlog/key": API_KEY}
        client.request("POST", "/mcp", call(f"x {GITHUB}", _meta=meta), headers=MCP_HEADERS)
        client.request("POST", f"/s/{GITHUB}/mcp", call("x"), headers=MCP_HEADERS)
        client.request("GET", "/v1/x", headers=(*named.items(), ("Turnlog-Session", API_KEY)))
        client.request("GET", "/v1/x", headers=(("User-Agent", f"curl {GITHUB}"),))
    assert leaks(tmp_path, GITHUB, API_KEY, JWT, AWS, BEARER_SHAPE) == []
