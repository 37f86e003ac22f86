"""A tool server that notes each effect on disk before it answers: what really happened, whoever dies.

It answers half of the calls in event streams.

`python -m kit.ledger_server PORT FILE`; the first line on stdout says that it accepts connections.
"""

import os
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import msgspec


class _Server(ThreadingHTTPServer):
    ledger = -1
    """The file in which effects are noted."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a proxy that was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as it came


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Have the effect, somewhere between the request and the answer."""
        said = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in said:
            self._begin("202 Accepted", "Content-Length: 0")
            return
        effect = said["params"]["arguments"]["effect"]
        is_stream = random.random() < 0.5
        if is_stream:
            self._begin("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        if random.random() < 0.5:
            time.sleep(random.random() * 0.02)  # a kill may come before the effect
        os.write(cast("_Server", self.server).ledger, f"{effect}\n".encode())
        time.sleep(random.random() * 0.02)  # or behind it
        result = {"content": [{"type": "text", "text": effect}]}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": said["id"], "result": result})
        if is_stream:
            event = b"event: message\ndata: %b\n\n" % body
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            time.sleep(random.random() * 0.02)  # or behind the answer
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._begin("200 OK", "Content-Type: application/json", f"Content-Length: {len(body)}")
            self.wfile.write(body)

    def _begin(self, status: str, *lines: str) -> None:
        self.wfile.write("\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base says so
        """Say nothing."""


def server(port: int, ledger: Path) -> ThreadingHTTPServer:
    """Return a server that appends a line for each effect to `ledger`."""
    one = _Server(("127.0.0.1", port), _Handler)
    one.ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return one


def main() -> None:
    """Serve until killed."""
    one = server(int(sys.argv[1]), Path(sys.argv[2]))
    print(one.server_port, flush=True)
    one.serve_forever()


if __name__ == "__main__":
    main()
