"""HTTP/1.1 messages as both sides of turnlog read them (RFC 9112): heads, bodies, limits.

httptools (llhttp) reads fields and chunks. The first line is read here, because llhttp has closed
lists of methods and of the bytes of a target; so is a body of known length, which is only counted.
Nothing here waits or writes.
"""

import re
from functools import lru_cache
from typing import Final

import httptools
from msgspec import Struct

from turnlog.wire.http.head import BadFraming, Body, Framing, Headers, fields, framing
from turnlog.wire.http.mend import mended
from turnlog.wire.http.response_head import ResponseHead, response_head

HEAD_LIMIT: Final = 256 * 1024
"""bytes: longest head of a message, and longest trailer section."""
FIELDS_LIMIT: Final = 1024
"""Most fields of a request."""
HEADS: Final = 1024
"""Heads remembered of each kind."""
KNOWN_BYTES: Final = 8192
"""A head with more bytes is not remembered."""
READ_AHEAD: Final = 256 * 1024
"""bytes: more than this is not read before the other side took what came earlier."""

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_BEGIN: Final = re.compile(_TOKEN + rb"{1,256}(?: |\Z)")
_REQUEST_LINE: Final = re.compile(
    rb"(" + _TOKEN + rb"{1,256}) (?:(/[^\x00-\x20\x7f]*)|([^ \r\n]+)) HTTP/1\.([0-9])"
)
"""Method, target in origin form, target in another form, minor version."""
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_AUTHORITY: Final = rb"(?:[^/?#@\[\]]*@)?(?:\[[0-9A-Za-z:.%]+\]|[^/?#:@\[\]]+)(?::[0-9]*)?"
_AUTHORITY_FORM: Final = re.compile(_AUTHORITY)
_ABSOLUTE_FORM: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://" + _AUTHORITY + rb"(?:[/?#].*)?")
_HTTP: Final = b"HTTP/"
_LENGTH: Final = b"content-length"
# A line with the length of a body. To take it out of a head makes no other line of any, since a line that
# would go on with it, or with the one before it, is refused.
LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n)", re.IGNORECASE)
_TLS: Final = b"\x16\x03"
_EMPTY_LINE: Final = b"\r\n\r\n"
_UNTIL_CLOSE: Final = Framing(Body.UNTIL_CLOSE)
_NO_END: Final = "its head has no end"
_TRAILERS_END: Final = {b"\n": b"\r\n", b"\r": b"\n\r\n"}
"""What ends a trailer section, by the last byte that came of it."""


class Unreadable(Struct, frozen=True):
    """Why a request cannot be read, and the status that its sender is told."""

    detail: str
    status: int = 400


_LINE_REFUSED: Final = Unreadable(
    "the request's first line is not METHOD TARGET HTTP/1.1 (RFC 9112 section 3)"
)
_TARGET_REFUSED: Final = Unreadable(
    "the request's target is neither a path nor a URL (RFC 9112 section 3.2)"
)
_TLS_REFUSED: Final = Unreadable(
    "this is the start of a TLS connection, and turnlog speaks plain http here"
)
UNSOUND: Final = Unreadable(
    "the request's head or framing is not sound; look at Host, Content-Length and "
    "Transfer-Encoding first (RFC 9112 sections 3.2, 5 and 6)"
)


# A struct is made without entering a Python function, and takes a third of the time of another class.
class _FieldCollector(Struct, eq=False):
    """The callbacks of httptools that collect the fields of one head."""

    headers: list[tuple[bytes, bytes]] = []
    is_whole: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.is_whole = True


def joined(before: bytes | bytearray, data: bytes) -> bytearray:
    """Return what came of a head before, and more of it; the same object again where it can be.

    So a head that comes in many small pieces is not copied for each of them.
    """
    came = before if isinstance(before, bytearray) else bytearray(before)
    came += data
    return came


# -- requests ------------------------------------------------------------------------------


RequestLine = tuple[str, str, tuple[int, int]]
"""Method, target and version of a request."""


def begins_like_request(data: bytes | bytearray) -> Unreadable | None:
    """Return why `data`, the start of a head, can become no request; `None` where it may."""
    if data.startswith(_TLS):
        return _TLS_REFUSED
    return None if _BEGIN.match(data) else _LINE_REFUSED


def read_request_line(line: bytes) -> RequestLine | Unreadable:
    """Return what the first line of a request says; `line` is without its end."""
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        return begins_like_request(line) or _LINE_REFUSED
    method, path, target, minor = found.groups()
    if method.upper() == b"CONNECT" != method:
        return _LINE_REFUSED  # a server may open a tunnel for it all the same
    if path is None and not _is_target(method, target):
        return _TARGET_REFUSED
    text = (path or target).decode("utf-8", "surrogateescape")
    # Any token is a method, in the case in which it was written (RFC 9110, 9.1).
    return method.decode(), text, (1, int(minor))


def _is_target(method: bytes, target: bytes) -> bool:
    """Return whether a request may have this target, which is no path (RFC 9112, 3.2)."""
    if _CONTROL.search(target) or target.startswith(b"/"):
        return False
    if target == b"*":
        return method.upper() == b"OPTIONS"
    form = _AUTHORITY_FORM if method == b"CONNECT" else _ABSOLUTE_FORM
    return form.fullmatch(target) is not None


def read_request_fields(lines: bytes) -> tuple[tuple[bytes, bytes], ...] | Unreadable:
    """Return the fields of a request; `lines` is its head from the end of the first line on."""
    found = _FieldCollector()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(b"POST / HTTP/1.1" + lines)
    except httptools.HttpParserUpgrade:
        pass  # the upgrade is not accepted, and the head is whole
    except httptools.HttpParserError:
        return UNSOUND
    if not found.is_whole or len(found.headers) > FIELDS_LIMIT:
        return UNSOUND
    return tuple(found.headers)


# -- responses -----------------------------------------------------------------------------


def begins_like_response(data: bytes | bytearray) -> bool:
    """Return whether `data`, the start of a head, may become a response."""
    return data.startswith(_HTTP) if len(data) > len(_HTTP) else _HTTP.startswith(data)


def read_response(head: bytes, method: str) -> tuple[ResponseHead, int] | str:
    """Return what the whole head of a response says, and the length of the body; else why it cannot be
    read. `method` is the request's.
    """
    # A server's heads differ in their length most, so one that came before is not read again (decision 74).
    said = LENGTH.search(head)
    if said is not None and len(head) <= KNOWN_BYTES and method != "HEAD":
        known = _known_response(b"%b0%b" % (head[: said.start(1)], head[said.end(1) :]))
        if known is not None:
            return known, int(said[1])
    found = parse_response(head, method)
    if isinstance(found, str):
        # What is nearly HTTP is mended (decision 20).
        again = parse_response(mended(head), method, is_mended=True)
        return found if isinstance(again, str) else again
    return found


@lru_cache(HEADS)
def _known_response(head: bytes) -> ResponseHead | None:
    """Return a head whose Content-Length was replaced by 0; `None` unless exactly one gives the body's length."""
    found = parse_response(head, "")
    if isinstance(found, str):
        return None
    known, _ = found
    return known if known.body is Body.LENGTH and len(known.lengths) == 1 else None


def parse_response(
    head: bytes, method: str, *, is_mended: bool = False
) -> tuple[ResponseHead, int] | str:
    """Return what the whole head of a response says as it stands, and the length of the body; else why it
    cannot be read."""
    collector = _FieldCollector()
    parser = httptools.HttpResponseParser(collector)
    # A lone LF ends a line (RFC 9112, 2.2); chunked wins over a length (6.3). A mended head keeps
    # control characters in values (RFC 9110, 5.5); that leniency would let NUL and CR pass as well,
    # which are gone there.
    parser.set_dangerous_leniencies(
        lenient_headers=is_mended,
        lenient_chunked_length=True,
        lenient_optional_cr_before_lf=True,
    )
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # the status says so, and is refused
    except httptools.HttpParserError as error:
        return str(error)
    if not collector.is_whole:
        return _NO_END
    headers, status = collector.headers, parser.get_status_code()
    lengths, codings = fields(headers, _LENGTH), fields(headers, b"transfer-encoding")
    found = framing(status, method, lengths, codings)
    if isinstance(found, BadFraming):
        return f"nobody can tell where the answer ends: {found}"
    # To HEAD some servers send a body all the same, so the head has to tell of one that ends.
    ends = framing(status, "GET", lengths, codings) if method == "HEAD" else found
    # The parser took the line: its version has three bytes, its status three digits.
    stays = b"1.1" <= head[5:8] != b"2.0"
    options = connection_options(fields(headers, b"connection"))
    persists = b"close" not in options and (stays or b"keep-alive" in options)
    said = response_head(
        status,
        head[13 : head.index(b"\n")].rstrip(b"\r"),
        [field for field in headers if field[0].lower() != _LENGTH],
        found.body,
        lengths=tuple(lengths),
        persists=persists and ends != _UNTIL_CLOSE,
    )
    return said, found.length


def connection_options(values: list[bytes]) -> set[bytes]:
    """Return the options that Connection fields name, in lower case."""
    return {option.strip(b" \t") for option in b",".join(values).lower().split(b",")}


def is_beyond_mending(start: bytes) -> bool:
    """Return whether the start of a head could not have become that of a response."""
    if not begins_like_response(start):
        return True
    return parse_response(mended(start), "GET", is_mended=True) != _NO_END


# -- bodies --------------------------------------------------------------------------------


class BadChunksError(Exception):
    """A chunked body is not sound, or the lines around its chunks are too long."""


class _ChunkCollector:
    """The callbacks of httptools that collect a chunked body."""

    __slots__ = ("fields", "is_complete", "may_be_last", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.fields: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self.may_be_last = False
        """Whether nothing has come behind the size of the latest chunk."""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value.rstrip(b" \t")))

    def on_body(self, data: bytes) -> None:
        self.may_be_last = False
        self.pieces.append(data)

    def on_chunk_header(self) -> None:
        self.may_be_last = True

    def on_message_complete(self) -> None:
        self.is_complete = True


class Chunks:
    """A chunked body as it comes (RFC 9112, 7.1). Its trailers are read, and go no further."""

    __slots__ = ("_came", "_last", "_lines", "_parser")

    def __init__(self, *, is_response: bool = False) -> None:
        self._came = _ChunkCollector()
        self._parser = httptools.HttpRequestParser(self._came)
        if is_response:
            self._parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
        self._parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._came.fields.clear()  # what follows is trailers
        self._last = b""
        """The last bytes that came."""
        self._lines = 0
        """Bytes that came since the last piece of data."""

    def feed(self, data: bytes) -> tuple[list[bytes], bytes | None]:
        """Return the pieces of the body in `data`, and what stands behind its end, once that is here.

        Raises `BadChunksError`.
        """
        came = self._came
        self._lines += len(data)
        try:
            rest = self._parse(data)
        except httptools.HttpParserError as error:
            raise BadChunksError(str(error)) from error
        self._last = (self._last + data[-3:])[-3:]
        pieces, came.pieces = came.pieces, []
        if pieces:
            self._lines = 0
        elif self._lines > HEAD_LIMIT and rest is None:
            raise BadChunksError(
                f"a chunk's line or the trailers are longer than {HEAD_LIMIT} bytes"
            )
        return pieces, rest

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """The fields behind the last chunk, as far as they have come."""
        return self._came.fields

    def _parse(self, data: bytes) -> bytes | None:
        """Parse data up to the end of the body; return what stands behind that, once it is here."""
        # httptools does not tell where in the data a message ended. That is at an empty line, so it gets
        # the data up to each, also to one that began before.
        start = 0
        if _EMPTY_LINE in data or _EMPTY_LINE in self._last + data[:3]:
            for end in self._empty_lines(data):
                self._parser.feed_data(data[start:end])
                start = end
                if self._came.is_complete:
                    return data[end:]
        self._parser.feed_data(data[start:])
        return None

    def _empty_lines(self, data: bytes) -> list[int]:
        """Return where empty lines end, also one that began before."""
        ends: list[int] = []
        place = (self._last + data[:3]).find(_EMPTY_LINE)
        if place >= 0:
            ends.append(place + len(_EMPTY_LINE) - len(self._last))
        place = data.find(_EMPTY_LINE)
        while place >= 0:
            ends.append(place + len(_EMPTY_LINE))
            place = data.find(_EMPTY_LINE, place + 2)
        return ends

    def is_last_here(self) -> bool:
        """Return whether the last chunk has come, now that nothing more will.

        Then the body is whole (RFC 9112, 8), also where its trailers are missing or cut.
        """
        came = self._came
        if not came.may_be_last:
            return False
        try:
            # Elsewhere than at a line's end the cut lies in a field, whose name may lack its colon.
            self._parser.feed_data(_TRAILERS_END.get(self._last[-1:], b":\r\n\r\n"))
        except httptools.HttpParserError:
            return False
        return came.is_complete


class BodyReader(Struct, eq=False):
    """A message's body as it comes, kept until it is taken."""

    missing: int
    """How many bytes have not come; negative where only the end of the chunks, or of the connection, ends
    the body."""
    _chunks: Chunks | None = None
    pieces: list[bytes] = []
    """What came and was not taken."""
    size: int = 0
    """How many bytes that are."""

    def feed(self, data: bytes) -> bytes:
        """Read bytes; return those behind the body's end. Raises `BadChunksError`."""
        missing, size, rest = self.missing, len(data), b""
        if not missing or not size:
            return data
        if self._chunks is not None:
            return self._dechunk(self._chunks, data)
        if missing > 0:
            if missing < size:
                data, rest, size = data[:missing], data[missing:], missing
            self.missing = missing - size
        self.pieces.append(data)
        self.size += size
        return rest

    def _dechunk(self, chunks: Chunks, data: bytes) -> bytes:
        pieces, behind = chunks.feed(data)
        self.pieces += pieces
        self.size += sum(map(len, pieces))
        if behind is None:
            return b""
        self.missing = 0
        return behind

    @property
    def trailers(self) -> Headers:
        """The fields behind the body, once it has ended."""
        return self._chunks.trailers if self._chunks is not None else ()

    def end(self) -> bool:
        """Note the end of the connection; return whether it ends the body as well."""
        if self.missing < 0 and (self._chunks is None or self._chunks.is_last_here()):
            self.missing = 0
        return not self.missing

    def take(self) -> bytes:
        """Return what has come since this was asked for the last time."""
        pieces, self.size = self.pieces, 0
        if len(pieces) == 1:
            return pieces.pop()
        data = b"".join(pieces)
        pieces.clear()
        return data
