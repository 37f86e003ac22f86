"""A tool server that misbehaves: MCP at /mcp, and the same tools as plain HTTP at /api/TOOL.

    python shop.py [PORT]

It prints its URL once it listens. Every other `quote` is put off, every other `find_order` is lost on
the way, and whoever places or cancels an order never hears of it.
"""

import json
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOLS = ("quote", "find_order", "place_order", "cancel_order", "refund")
ORDER = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
STATUS = {"slow down": 429, "not allowed": 403}

placed: set[int] = set()
calls: Counter[str] = Counter()


class Lost(Exception):
    """The work is done, and its answer is lost on the way."""


class Shop(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a message, or a plain call."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            if self.path.startswith("/api/"):
                text = work(self.path.removeprefix("/api/"), asked)
                self.answer(text, STATUS.get(text, 200))
            elif "id" in asked:
                self.message(asked)
            else:
                self.answer(None, 202)
        except Lost:
            self.close_connection = True

    def message(self, asked: dict[str, Any]) -> None:
        """Answer an MCP request."""
        match asked:
            case {"method": "initialize", "params": {"protocolVersion": version}}:
                info = {"name": "shop", "version": "1"}
                result = {
                    "protocolVersion": version,
                    "serverInfo": info,
                    "capabilities": {"tools": {}},
                }
            case {"method": "tools/list"}:
                result = {"tools": [{"name": tool, "inputSchema": ORDER} for tool in TOOLS]}
            case {"method": "tools/call", "params": {"name": tool, "arguments": arguments}}:
                result = {"content": [{"type": "text", "text": work(tool, arguments)}]}
            case _:
                error = {"code": -32601, "message": "method not found"}
                self.answer({"jsonrpc": "2.0", "id": asked["id"], "error": error})
                return
        self.answer({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    def answer(self, value: object, status: int = 200) -> None:
        """Send JSON."""
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Say nothing."""


def work(tool: str, arguments: dict[str, Any]) -> str:
    """Do what a tool does."""
    calls[tool] += 1
    order, is_odd = arguments["order"], calls[tool] % 2 == 1
    match tool:
        case "quote":
            return "slow down" if is_odd else "12.50"
        case "find_order" if not is_odd:
            return f"order {order} is placed" if order in placed else f"order {order} is not placed"
        case "place_order":
            placed.add(order)
        case "cancel_order":
            placed.discard(order)
        case "refund":
            return "not allowed"
    raise Lost


if __name__ == "__main__":
    with ThreadingHTTPServer(
        ("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 0), Shop
    ) as server:
        print(json.dumps({"urls": [f"http://127.0.0.1:{server.server_port}/mcp"]}), flush=True)
        server.serve_forever()
