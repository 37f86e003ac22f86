"""A server's side of TLS, spoken on a connection of a scripted upstream."""

import ssl
from pathlib import Path
from typing import Final

from .upstreams import Peer

CERTIFICATE: Final = Path(__file__).with_name("tls.pem")
"""Key and certificate of tools.corp.example, localhost and 127.0.0.1, its own authority."""
_PIECE: Final = 65536


class Secured:
    """TLS on a peer's connection. Raises `ssl.SSLError` where the client does not believe who it is."""

    def __init__(self, peer: Peer) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        self._peer = peer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._in.write(peer.read_some())
            else:
                self._flush()
                return

    def read(self) -> bytes:
        """Return what has come."""
        while True:
            try:
                return self._tls.read(_PIECE)
            except ssl.SSLWantReadError:
                self._flush()
                self._in.write(self._peer.read_some())

    def request(self) -> bytes:
        """Return a request with its body, whose length it says."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.read()
        head, _, body = data.partition(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                while len(body) < int(line.partition(b":")[2]):
                    body += self.read()
        return head + b"\r\n\r\n" + body

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._tls.write(data)
        self._flush()

    def _flush(self) -> None:
        if data := self._out.read():
            self._peer.send(data)
