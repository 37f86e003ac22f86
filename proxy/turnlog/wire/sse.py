"""Event streams (WHATWG HTML, section 9.2), cut into events without changing a byte.

A line ends with LF, CR or CRLF; a CR at the end of a chunk ends its line at once, and a following LF
belongs to it. Every block that ends with a blank line is reported, also one that a browser would not
dispatch: an event with an id and no data makes a stream resumable.
"""

import re
from typing import Final

from msgspec import Struct

from .message import LIMIT, MessageReader

FIELD_LIMIT = 65536
"""Bytes of the longest line other than data that is read; a longer one is ignored."""
_BOM = b"\xef\xbb\xbf"
_DATA = b"data:"
_LARGE: Final = 4096
_SHORT: Final = 512
"""In a chunk of at least so many bytes, in lines of no more on average, runs are looked for."""
_LINE: Final = re.compile(rb"[^\r\n]*+(?:\r\n|[\r\n])?+")
_PARTS: Final = re.compile(rb"(?:data:[^\r\n]*+\r?\n){8,}+|[^\r\n]*+(?:\r\n|[\r\n])|[^\r\n]++")
"""A run of data lines, or a line, or the part of one that has arrived."""
_JOINT: Final = re.compile(rb"\ndata: ?")
# A usual event: at most a type, at most an id, one short line of data.
_USUAL: Final = re.compile(
    rb"(?:event: ?([^\r\n]*+)\r?\n)?+(?:id: ?([^\r\n\0]*+)\r?\n)?+data: ?([^\r\n]{0,4096}+)\r?\n\r?\n"
)


class SseEvent(Struct, frozen=True, kw_only=True):
    """One block of fields. `id` is `None` without an id field."""

    type: str
    id: str | None
    body: MessageReader | None
    """The data lines joined by LF, finished; `None` without a data field."""

    @property
    def data(self) -> bytes:
        """The kept part of the data."""
        return self.body.finish() if self.body is not None else b""


class EventPiece(Struct, frozen=True):
    """Bytes as they were sent; with `event` they end with the blank line that completes it."""

    raw: bytes
    event: SseEvent | None


class EventReader:
    """Splits chunks where events end. The pieces of a chunk add up to the chunk."""

    __slots__ = (
        "_after_cr",
        "_body",
        "_fields",
        "_first",
        "_id",
        "_limit",
        "_line",
        "_streaming",
        "_type",
    )

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._first = True
        self._after_cr = False
        self._line = bytearray()
        """The start of a line whose end has not arrived."""
        self._streaming = False
        """Whether the current line is data whose start was already reported."""
        self._reset()

    def _reset(self) -> None:
        self._type = ""
        self._id: str | None = None
        self._body: MessageReader | None = None
        self._fields = False

    @property
    def is_between(self) -> bool:
        """Whether nothing of the next event has arrived."""
        return not (self._line or self._fields or self._streaming or self._after_cr)

    @property
    def in_data(self) -> bool:
        """Whether an event's data has begun to arrive, even with a letter of `data:`, and is not complete."""
        begins = len(self._line) > 0 and _DATA.startswith(bytes(self._line))
        return begins or self._body is not None

    def feed(self, chunk: bytes) -> list[EventPiece]:
        """Read a chunk; return its pieces."""
        pieces: list[EventPiece] = []
        done = 0
        if self.is_between:
            done = self._usual(chunk, pieces)
            if done == len(chunk):
                return pieces
        place = done
        for part in parts_of(chunk[place:] if place else chunk):
            place += len(part)
            event = self._take(part)
            if event is not None:
                pieces.append(EventPiece(chunk[done:place], event))
                done = place
        if done < len(chunk):
            pieces.append(EventPiece(chunk[done:] if done else chunk, None))
        return pieces

    def _usual(self, chunk: bytes, pieces: list[EventPiece]) -> int:
        """Add the usual events at the start of a chunk; return the position after them."""
        place = 0
        while (found := _USUAL.match(chunk, place)) is not None:
            kind, id_, data = found.groups()
            event = SseEvent(
                type=kind.decode("utf-8", "replace") if kind else "message",
                id=None if id_ is None else id_.decode("utf-8", "replace"),
                body=MessageReader.of(data, self._limit),
            )
            end = found.end()
            pieces.append(EventPiece(chunk[place:end], event))
            place, self._first = end, False
        return place

    def _take(self, line: bytes) -> SseEvent | None:
        """Read a line, or a part of one, or a run of data lines."""
        if self._after_cr:
            self._after_cr = False
            if line == b"\n":
                return None
        if line.endswith(b"\n"):
            return self._end_line(line[: -2 if line.endswith(b"\r\n") else -1])
        if line.endswith(b"\r"):
            self._after_cr = True
            return self._end_line(line[:-1])
        self._hold(line)
        return None

    def _hold(self, part: bytes) -> None:
        """Keep the beginning of a line, or report it if it is known to be data."""
        if self._streaming:
            self._data(part)
            return
        self._line += part
        head = bytes(self._line[: len(_BOM) + len(_DATA) + 1])
        if self._first:
            head = head.removeprefix(_BOM)
        # One byte more than the name, to know whether a space must be dropped.
        if head.startswith(_DATA) and len(head) > len(_DATA):
            line = self._whole(b"")
            self._begin_data(line)
            self._streaming = True
        elif len(self._line) > FIELD_LIMIT:
            del self._line[FIELD_LIMIT + 1 :]

    def _end_line(self, rest: bytes) -> SseEvent | None:
        if self._streaming:
            self._streaming = False
            self._data(rest)
            return None
        line = self._whole(rest)
        if not line:
            return self._dispatch()
        if line.startswith(_DATA):
            # The lines of a run are joined; a line contains no line feed.
            self._begin_data(_joined(line) if b"\n" in line else line)
        elif len(line) <= FIELD_LIMIT:
            self._field(line)
        return None

    def _whole(self, rest: bytes) -> bytes:
        """Return the current line with its rest."""
        line = rest
        if self._line:
            line = bytes(self._line) + rest
            self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        return line

    def _begin_data(self, line: bytes) -> None:
        start = len(_DATA)
        self._add_data(line[start + 1 :] if line.startswith(b" ", start) else line[start:])

    def _add_data(self, value: bytes) -> None:
        self._fields = True
        if self._body is None:
            self._body = MessageReader(self._limit)
        else:
            self._body.feed(b"\n")
        self._data(value)

    def _data(self, value: bytes) -> None:
        if value and self._body is not None:
            self._body.feed(value)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._add_data(b"")
            case b"event":
                self._type = value.decode("utf-8", "replace")
            case b"id" if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            case b"retry" if value.isdigit() and len(value) < 16:
                pass  # a block of this field alone is an event as well
            case _:
                return
        self._fields = True

    def _dispatch(self) -> SseEvent | None:
        if not self._fields:
            return None
        if self._body is not None:
            self._body.finish()
        event = SseEvent(type=self._type or "message", id=self._id, body=self._body)
        self._reset()
        return event


def _joined(run: bytes) -> bytes:
    """Return a run of data lines as one line with line feeds in it."""
    return _JOINT.sub(b"\n", run.replace(b"\r", b"") if b"\r" in run else run)


def parts_of(chunk: bytes) -> list[bytes]:
    """Return the lines of a chunk, with runs of many data lines as one, to read them at once.

    The first line is separate, as it may continue one that began earlier.
    """
    size = len(chunk)
    if size < _LARGE or chunk.count(b"\n") * _SHORT < size:
        return chunk.splitlines(keepends=True)
    first = _LINE.match(chunk)
    place = first.end() if first is not None else 0
    return [chunk[:place], *_PARTS.findall(chunk, place)]
