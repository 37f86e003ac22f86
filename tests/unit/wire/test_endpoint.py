"""What a request of 2026-07-28 has to say, over HTTP and on a pipe."""

import base64
import json
from typing import Any

import pytest

from turnlog.wire.endpoint import is_stateless_request, refusal, status_of
from turnlog.wire.jsonrpc import Message, parse

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS = {b"mcp-protocol-version": b"2026-07-28", b"mcp-method": b"tools/call"}


def request(meta: object = META, method: str = "tools/call", **params: object) -> Message:
    said = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta, **params}}
    message = parse(json.dumps(said).encode())
    assert isinstance(message, Message)
    return message


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (request(), None),
        (request(method="initialize"), -32601),
        (request({}), -32602),
        (request({**META, "io.modelcontextprotocol/clientCapabilities": 1}), -32602),
        (request({**META, "io.modelcontextprotocol/protocolVersion": "2027-01-01"}), -32022),
        (request({**META, "io.modelcontextprotocol/protocolVersion": "2025-11-25"}), -32022),
    ],
)
def test_on_a_pipe_the_body_says_all(message: Message, code: int | None) -> None:
    why = refusal(message, None)
    assert (why and why.code) == code


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        (HEADERS | {b"mcp-name": b"log"}, None),
        (HEADERS | {b"mcp-name": b"=?base64?" + base64.b64encode(b"log") + b"?="}, None),
        (HEADERS | {b"mcp-name": b"=?base64?***?="}, "mcp-name"),
        (HEADERS, "mcp-name"),
        (HEADERS | {b"mcp-name": b"log", b"mcp-method": b"ping"}, "mcp-method"),
        ({}, "mcp-protocol-version"),
    ],
)
def test_over_http_headers_mirror_the_body(headers: dict[bytes, bytes], named: str | None) -> None:
    why = refusal(request(name="log"), headers)
    told = None if named is None else f"the header {named} is not what the body says"
    assert (why and why.message) == told


def test_a_method_that_names_nothing_needs_no_header_for_it() -> None:
    headers = HEADERS | {b"mcp-method": b"tools/list"}
    assert refusal(request(method="tools/list"), headers) is None


def test_a_request_without_a_handshake_says_so_in_its_body_or_its_header() -> None:
    assert is_stateless_request(request(), {})
    assert is_stateless_request(request({}), {b"mcp-protocol-version": b"2026-07-28"})
    assert not is_stateless_request(request({}), {b"mcp-protocol-version": b"2025-11-25"})


def test_an_error_goes_out_under_its_status() -> None:
    codes = (None, -32601, -32602, -32020, -32603)
    assert [status_of(code) for code in codes] == [200, 404, 400, 400, 200]
