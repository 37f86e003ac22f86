"""Messages in pieces: one JSON text, or the lines of a pipe with one text each (MCP, stdio)."""

import re
from hashlib import sha256
from typing import Final, Protocol

from msgspec import Struct

from turnlog.core.kinds import Flag

from .json_stream import Outline, OutlineReader, outline_of
from .jsonrpc import Batch, Defect, Malformed, Message, outline_kind, parse_answer

JSON: Final = "application/json"
LIMIT: Final = 1 << 20
"""Bytes kept by default."""
# Up to so many bytes of a longer text are kept until its end, to be read at once: that is up to ten
# times faster than reading it in pieces.
_READ_AT_ONCE: Final = 3 << 19
_ENDS: Final = (b"}", b"]")
_LOOKS: Final = 32
# Pieces in which the end of a text is searched: blanks may arrive separately.
_LAST: Final = 3
_LENGTH_LINE: Final = re.compile(rb"content-length: *[0-9]+\s*", re.IGNORECASE)


class Hash(Protocol):
    """A hash that is fed in pieces."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class ResultChecks(Struct, frozen=True, gc=False):
    """The checks that a server's answer allowed: of its digests and signatures."""

    failures: tuple[str, ...] = ()
    """What failed, such as `content-digest mismatch`; empty if nothing did."""
    is_checked: bool = False
    """Whether a digest or a signature holds."""
    is_verified: bool = False
    """Whether a signature holds."""

    def with_others(self, others: "ResultChecks") -> "ResultChecks":
        """Return these and other checks of the same answer together."""
        return ResultChecks(
            self.failures + others.failures,
            self.is_checked or others.is_checked,
            self.is_verified or others.is_verified,
        )


NO_CHECKS: Final = ResultChecks()
"""Of an answer that had nothing to check, or did not come whole: most answers."""


class MessageReader(Struct, eq=False):
    """One JSON text of an answer: a body, the data of an event, or a line.

    It keeps the first `limit` bytes; further ones are read, hashed and dropped.

    Use: `feed` each piece, then `finish`, then read `content`. Never raises.
    """

    limit: int = LIMIT
    size: int = 0
    """Bytes fed so far."""
    truncated: bool = False
    """Whether the text is longer than the kept part."""
    unread: bool = False
    """Whether further bytes could not be fed, so that a cut is not the text's own fault."""
    notes: tuple[Flag, ...] = ()
    """What happened, or may have happened, to the text on its way here."""
    checks: ResultChecks = NO_CHECKS
    """What its digests and signatures say."""
    media: str = JSON
    """Media type of the text."""
    event: str = "message"
    """Type of the event that holds it, if any."""
    coded_size: int | None = None
    """Bytes on the wire, if they differ from those that were fed."""
    _pieces: list[bytes] = []
    _whole: bytes = b""
    """The whole text, if it is read at once; set by `finish`."""
    _kept: bytes | None = None
    _hash: Hash | None = None
    """Hash of the text, once it is too long to be read at once."""
    _outline: OutlineReader | None = None
    """Reads that in pieces."""
    _content: Message | Batch | Malformed | Outline | None = None
    _looks: int = 0
    """Number of times that `so_far` has read an unfinished text."""
    _looked: int = -1
    """Its length at the last time."""
    _seen: Message | Batch | Malformed | Outline | None = None
    """Its content then."""

    @classmethod
    def of(
        cls,
        text: bytes,
        limit: int = LIMIT,
        notes: tuple[Flag, ...] = (),
        content: Message | None = None,
    ) -> "MessageReader":
        """Return a reader that has read a whole text; up to `limit` bytes on the fastest path.

        `content` is the parsed text, if it was parsed already.
        """
        if len(text) <= limit:
            return cls(limit, len(text), notes=notes, _whole=text, _kept=text, _content=content)
        reader = cls(limit, notes=notes)
        reader.feed(text)
        return reader

    def feed(self, data: bytes) -> None:
        """Read the next piece."""
        self.size += len(data)
        if self.size <= self.limit:
            self._pieces.append(data)
            return
        self.truncated = True
        if self._outline is not None and self._hash is not None:
            self._hash.update(data)
            self._outline.feed(data)
            return
        self._pieces.append(data)
        if self.size > _READ_AT_ONCE:
            self._overflow()

    def _overflow(self) -> None:
        outline, hash_ = OutlineReader(), sha256()
        for piece in self._pieces:
            hash_.update(piece)
            outline.feed(piece)
        self._outline, self._hash = outline, hash_
        self._pieces = [b"".join(self._pieces)[: self.limit]]

    @property
    def so_far(self) -> Message | Batch | Malformed | Outline | None:
        """The content if the text ends here; `None` if it cannot end here, or that is not known.

        More may be fed after this.
        """
        if self._outline is not None:
            return self._outline.outline
        for piece in self._pieces[: -_LAST - 1 : -1]:
            if not piece.isspace():
                break
        else:
            return None
        if not piece.rstrip().endswith(_ENDS):
            return None
        # So that a text in many pieces is not read again for each.
        if self._looks >= _LOOKS and self.size < self._looked + self._looked // 8:
            return None
        self._looks, self._looked = self._looks + 1, self.size
        text = b"".join(self._pieces)
        self._seen = self._judged(outline_of(text)) if self.truncated else parse_answer(text)
        return self._seen

    def finish(self) -> bytes:
        """Return the kept part of the text. May be called again."""
        if self._kept is None:
            pieces = self._pieces
            self._whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._kept = self._whole[: self.limit] if self.truncated else self._whole
            self._pieces = []
        return self._kept

    @property
    def wire_size(self) -> int:
        """Bytes on the wire."""
        return self.size if self.coded_size is None else self.coded_size

    @property
    def digest(self) -> bytes:
        """sha256 of a text that was too long to be read at once; empty for any other."""
        return self._hash.digest() if self._hash is not None else b""

    @property
    def rest(self) -> bytes:
        """The part of a text read at once that exceeds the limit of what is kept. Call after `finish`."""
        return self._whole[self.limit :] if self.truncated else b""

    @property
    def content(self) -> Message | Batch | Malformed | Outline:
        """The message; of a truncated text an `Outline`. Call after `finish`."""
        if self._content is None:
            if self._outline is not None:
                self._content = self._judged(self._outline.finish())
            elif self._seen is not None and self._looked == self.size and not self.unread:
                self._content = self._seen
            elif self.truncated:
                self.finish()
                self._content = self._judged(outline_of(self._whole))
            else:
                self._content = parse_answer(self.finish() if self._kept is None else self._kept)
        return self._content

    def _judged(self, outline: Outline) -> Malformed | Outline:
        if outline.failed:
            return Malformed(Defect.NOT_JSON)
        if self.unread:
            return outline
        if not outline.complete:
            return Malformed(Defect.CUT)
        # A batch is not read item by item.
        known = outline_kind(outline) is not None or outline.raw("").startswith(b"[")
        return outline if known else Malformed(Defect.NOT_JSONRPC)


class LinePiece(Struct, frozen=True):
    """Bytes of one line, with the newline if the line `ends` with them."""

    raw: bytes
    starts: bool
    ends: bool
    """Whether the line is complete; true also for the last one, which may have no newline."""


class LineReader:
    """Splits a byte stream where its lines end. The pieces of all chunks add up to the stream.

    A line of up to `most` bytes is one piece; a longer one is several, as they arrive.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[bytes] = []
        self._size = 0
        self._inside = False
        """Whether a part of a longer line was returned already."""

    def feed(self, chunk: bytes) -> list[LinePiece]:
        """Read the next chunk; return the pieces that are ready."""
        pieces: list[LinePiece] = []
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

    def finish(self) -> list[LinePiece]:
        """Return the rest at the end of the stream."""
        if not self._waiting and not self._inside:
            return []
        return [self._ended(b"")]

    def _ended(self, last: bytes) -> LinePiece:
        raw = self._taken(last)
        starts, self._inside = not self._inside, False
        return LinePiece(raw, starts, True)

    def _partial(self) -> LinePiece:
        raw = self._taken(b"")
        starts, self._inside = not self._inside, True
        return LinePiece(raw, starts, False)

    def _taken(self, last: bytes) -> bytes:
        if not self._waiting:
            return last
        raw = b"".join((*self._waiting, last))
        self._waiting.clear()
        self._size = 0
        return raw


def is_length_header(line: bytes) -> bool:
    """Return whether a line begins a message of the Language Server Protocol, which has no lines.

    Such a message does not end with a newline, so a reader of lines would wait for ever.
    """
    return _LENGTH_LINE.fullmatch(line) is not None
