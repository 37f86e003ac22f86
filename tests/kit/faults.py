"""Faults of a tool server, by name. Each is a script for `upstreams.RawUpstream`."""

import threading

from msgspec import Struct

from .clients import BOUND
from .upstreams import Peer, chunked


class ResetAfterRequest(Struct, frozen=True):
    """Read the whole request, then reset the connection: nobody knows what was done."""

    def __call__(self, peer: Peer) -> None:
        peer.read()
        peer.reset()


class CloseAfterRequest(Struct, frozen=True):
    """Read the whole request, then close without a word."""

    def __call__(self, peer: Peer) -> None:
        peer.read()
        peer.close()


class CloseInsteadOfReading(Struct, frozen=True):
    """Close as soon as the head is there; the body is never read."""

    def __call__(self, peer: Peer) -> None:
        peer.reset()


class CutStream(Struct, frozen=True):
    """Send these events, then end the connection without the last chunk."""

    events: tuple[bytes, ...]

    def __call__(self, peer: Peer) -> None:
        peer.read()
        peer.start_events()
        for each in self.events:
            peer.send(chunked(each))
        peer.close()


class CutBody(Struct, frozen=True):
    """Announce more bytes than come."""

    sent: bytes
    announced: int
    media: str = "application/json"

    def __call__(self, peer: Peer) -> None:
        peer.read()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {self.media}\r\n"
        peer.send(f"{head}Content-Length: {self.announced}\r\n\r\n".encode() + self.sent)
        peer.close()


class CutHead(Struct, frozen=True):
    """Close in the middle of the head."""

    def __call__(self, peer: Peer) -> None:
        peer.read()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
        peer.close()


class Garbage(Struct, frozen=True):
    """Answer with something that is not HTTP."""

    def __call__(self, peer: Peer) -> None:
        peer.read()
        peer.send(b"\x00\x01\x02 what is this\r\n\r\n")
        peer.close()


class SlowHead:
    """Say nothing until `go` is set."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.asked = threading.Event()
        self.go = threading.Event()

    def __call__(self, peer: Peer) -> None:
        """Answer once it may."""
        peer.read()
        self.asked.set()
        if self.go.wait(BOUND):
            peer.send(self.raw)


class Hangs:
    """Never answer; notice when the proxy hangs up."""

    def __init__(self, *first: bytes) -> None:
        self.first = first
        """Sent at once."""
        self.asked = threading.Event()
        self.hung_up = threading.Event()

    def __call__(self, peer: Peer) -> None:
        """Wait for the end of the connection."""
        peer.read()
        for each in self.first:
            peer.send(each)
        self.asked.set()
        if peer.wait_for_hang_up():
            self.hung_up.set()
