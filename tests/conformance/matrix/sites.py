"""Web sites of the test's own, for a server that fetches pages."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

_PAGES: Final = {
    "/page": b"<html><body><article><h1>Hi</h1><p>text</p></article></body></html>",
    "/blank": b"<html></html>",
    "/robots.txt": b"User-agent: *\nDisallow: /private\n",
}


class Page(BaseHTTPRequestHandler):
    """A site with pages, a robots.txt, and all that may go wrong."""

    def do_GET(self) -> None:
        """Answer as the path says."""
        match self.path.rsplit("/", 1):
            case [_, "cut"]:
                self._answer(200, b"only this", 100)
            case [_, "drop"]:
                self.close_connection = True
            case ["/status", status]:
                self._answer(int(status), b"", 0)
            case _:
                page = _PAGES.get(self.path, b"")
                self._answer(200, page, len(page))

    def _answer(self, status: int, body: bytes, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if b"<" in body else "text/plain")
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Say nothing."""


class Closed(Page):
    """A site that shows nobody its robots.txt."""

    def do_GET(self) -> None:
        """Refuse."""
        self._answer(403, b"", 0)


@contextmanager
def site(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    """Run a site; its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
