"""Cut a byte stream where its lines end: one JSON-RPC message a line (MCP, transport stdio).

Lines stay as they came, with what ends them. A line of up to `most` bytes comes whole; a longer one
in pieces, as they come in.
"""

import re
from typing import Final

from msgspec import Struct

_LENGTH_LINE: Final = re.compile(rb"content-length: *[0-9]+\s*", re.IGNORECASE)


class Piece(Struct, frozen=True):
    """Bytes of one line, the newline included where it `ends` with them."""

    raw: bytes
    starts: bool
    ends: bool
    """Whether the line is over; true as well of the last one, which may have no newline."""


def is_length_header(line: bytes) -> bool:
    """Return whether a line begins a message of the Language Server Protocol, which are no lines.

    Nothing ends such a message as a line, so a reader of lines waits for it for ever.
    """
    return _LENGTH_LINE.fullmatch(line) is not None


class LineReader:
    """Feed it chunks; the pieces of all chunks, joined, are the stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[bytes] = []
        self._size = 0
        self._inside = False
        """Whether a line has begun to come in pieces."""

    def feed(self, chunk: bytes) -> list[Piece]:
        """Take the next chunk; return what can go on."""
        pieces: list[Piece] = []
        start = 0
        while end := chunk.find(b"\n", start) + 1:
            pieces.append(self._ended(chunk[start:end]))
            start = end
        if start < len(chunk):
            self._waiting.append(chunk[start:] if start else chunk)
            self._size += len(chunk) - start
        if (self._inside and self._waiting) or self._size > self._most:
            pieces.append(self._partial())
        return pieces

    def finish(self) -> list[Piece]:
        """Return what is left when the stream has ended."""
        if not self._waiting and not self._inside:
            return []
        return [self._ended(b"")]

    def _ended(self, last: bytes) -> Piece:
        raw = self._taken(last)
        starts, self._inside = not self._inside, False
        return Piece(raw, starts, True)

    def _partial(self) -> Piece:
        raw = self._taken(b"")
        starts, self._inside = not self._inside, True
        return Piece(raw, starts, False)

    def _taken(self, last: bytes) -> bytes:
        if not self._waiting:
            return last
        raw = b"".join((*self._waiting, last))
        self._waiting.clear()
        self._size = 0
        return raw
