"""A tool server that notes each effect on disk before it answers: what really happened, whoever dies.

`python -m kit.ledger_server PORT FILE`; the first line on stdout says that it accepts connections.
"""

import os
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a proxy that was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as it came


def server(port: int, ledger: Path) -> ThreadingHTTPServer:
    """Return a server that appends a line for each effect to `ledger`."""
    handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Have the effect, somewhere between the request and the answer."""
            size = int(self.headers["Content-Length"])
            said = msgspec.json.decode(self.rfile.read(size))
            if "id" not in said:
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            effect = said["params"]["arguments"]["effect"]
            if random.random() < 0.5:
                time.sleep(random.random() * 0.02)  # a kill may come before the effect
            os.write(handle, f"{effect}\n".encode())
            time.sleep(random.random() * 0.02)  # or behind it
            result = {"content": [{"type": "text", "text": effect}]}
            body = msgspec.json.encode({"jsonrpc": "2.0", "id": said["id"], "result": result})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base says so
            """Say nothing."""

    return _Server(("127.0.0.1", port), Handler)


def main() -> None:
    """Serve until killed."""
    one = server(int(sys.argv[1]), Path(sys.argv[2]))
    print(one.server_port, flush=True)
    one.serve_forever()


if __name__ == "__main__":
    main()
