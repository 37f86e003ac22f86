"""What every job of the load generator needs: sockets, MCP's headers, the handshake."""

import socket
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import SplitResult

CHUNK = 1 << 18
_REVISION = "2025-06-18"
_HELLO = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    '"capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}'
)


def connect(url: SplitResult) -> socket.socket:
    """Open a connection to the host of `url`."""
    sock = socket.create_connection((url.hostname or "", url.port or 80), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read(sock: socket.socket) -> bytes:
    """Read what there is; empty if the peer is gone."""
    try:
        return sock.recv(CHUNK)
    except ConnectionError:
        return b""


def mcp_headers(session: str) -> str:
    """Return the header lines of a POST in the handshake era."""
    named = f"Mcp-Session-Id: {session}\r\n" if session else ""
    return (
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: {_REVISION}\r\n{named}"
    )


def tool_call(name: str, arguments: str, number: int) -> str:
    """Return the JSON of a `tools/call`."""
    return (
        f'{{"jsonrpc":"2.0","id":{number},"method":"tools/call",'
        f'"params":{{"name":"{name}","arguments":{arguments}}}}}'
    )


def request(url: SplitResult, session: str, body: str) -> bytes:
    """Return the bytes of a POST of `body`."""
    head = f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nUser-Agent: bench\r\n"
    return f"{head}{mcp_headers(session)}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def handshake(url: SplitResult) -> str:
    """Initialize, list the tools (so that annotations are known), return the session id."""
    with closing(HTTPConnection(url.hostname or "", url.port, timeout=30)) as connection:
        session = post(connection, url.path, _HELLO, "")
        ready = '{"jsonrpc":"2.0","method":"notifications/initialized"}'
        post(connection, url.path, ready, session)
        post(connection, url.path, '{"jsonrpc":"2.0","id":2,"method":"tools/list"}', session)
    return session


def post(connection: HTTPConnection, path: str, body: str, session: str) -> str:
    """Post one message, wait for its answer, return the session id it names."""
    headers = dict(line.split(": ", 1) for line in mcp_headers(session).splitlines())
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.headers.get("Mcp-Session-Id") or session
