"""Agents and settings for tool servers that turnlog starts itself, behind Streamable HTTP."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from . import stdio_server
from .clients import MCP_HEADERS, Client, Response, call, message, wait_until
from .processes import children_of
from .proxy import Proxy

COMMAND = [sys.executable, str(Path(stdio_server.__file__))]
REVISION = "2025-06-18"
NEWEST = "2026-07-28"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def settings(
    command: Sequence[str] = COMMAND, rules: Sequence[str] = (), **more: object
) -> dict[str, Any]:
    return {"upstreams": {"cmd": {"command": list(command), **more}}, "rules": list(rules)}


class Agent:
    """An agent of the handshake revisions, on one connection, in one protocol session."""

    opened: ClassVar[list["Agent"]] = []

    def __init__(
        self, proxy: Proxy, *, revision: str = REVISION, request_id: Any = 1, **capabilities: Any
    ) -> None:
        self.opened.append(self)
        self.url = proxy.url
        self.client = Client(proxy.url)
        params: dict[str, Any] = {"protocolVersion": revision, "capabilities": capabilities}
        said = self._post(message("initialize", params, request_id=request_id), MCP_HEADERS)
        self.greeting = said.json()
        """What came in answer to `initialize`."""
        self.session = said.head.one("mcp-session-id") or ""
        self.headers = (*MCP_HEADERS, ("Mcp-Session-Id", self.session))
        self.tell(message("notifications/initialized", request_id=None))

    def _post(self, body: bytes, headers: tuple[tuple[str, str], ...]) -> Response:
        return self.client.request("POST", "/mcp", body, headers=headers)

    def post(self, body: bytes) -> Response:
        """Ask something on the connection."""
        return self._post(body, self.headers)

    def tell(self, body: bytes) -> None:
        """Say what gets no answer."""
        with Client(self.url) as client:
            said = client.request("POST", "/mcp", body, headers=self.headers)
        assert (said.status, said.body) == (202, b"")

    def text(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> str:
        """Call a tool; return the text that it gave."""
        return text_of(self.post(call(tool, arguments, **more)).json())


def text_of(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


def events_of(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: ")]


def newest(tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> bytes:
    return call(tool, arguments, _meta=META, **more)


def newest_headers(method: str = "tools/call", name: str = "") -> tuple[tuple[str, str], ...]:
    named = (("Mcp-Name", name),) if name else ()
    return (*MCP_HEADERS, ("MCP-Protocol-Version", NEWEST), ("Mcp-Method", method), *named)


def is_gone(pid: str) -> bool:
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of process {pid}")
    return True


def children(proxy: Proxy) -> list[str]:
    """Return the process ids of the commands that run."""
    return list(map(str, children_of(proxy.process.pid)))
