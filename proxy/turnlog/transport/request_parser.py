"""Read an agent's requests: aiohttp's parser, and its slower twin for what that one refuses.

The fast one (llhttp) has a closed list of methods and of the bytes of a target. A method is any
token (RFC 9110, 9.1), in the case in which it was written, and a proxy carries what it is given.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from aiohttp import hdrs
from aiohttp.http_exceptions import (
    BadHttpMessage,
    BadHttpMethod,
    BadStatusLine,
    InvalidURLError,
)
from aiohttp.http_parser import HttpRequestParserPy, RawRequestMessage
from aiohttp.http_writer import HttpVersion10
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from .request_heads import AgentRequest, KnownStart, Starts

_OFFER: Final = re.compile(rb"\nupgrade[ \t]*:", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_HARMLESS: Final = frozenset(
    {
        b"content-location",
        b"content-range",
        b"content-type",
        b"etag",
        b"max-forwards",
        b"server",
        b"user-agent",
    }
)
"""Fields that aiohttp refuses where they stand twice, and that tell neither where a request goes nor
where it ends. A server takes the first or the last one, or refuses them itself."""
_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}(?: |$)")
_LONGEST: Final = 256 * 1024
"""bytes: what is longer is no request line, nor the line ends that may stand before one."""
_Messages = Sequence[tuple[RawRequestMessage, StreamReader]]
Found = tuple[_Messages, bool, bytes]
"""Requests whose heads are whole, whether the connection changed its protocol, what is left then."""
Read = tuple[Sequence[tuple[AgentRequest, StreamReader]], bool, bytes]
"""The same, as far as we look at requests."""


class Parser(Protocol):
    """What aiohttp's server asks of a parser. `feed_data` raises `HttpProcessingError`."""

    def feed_data(self, data: bytes, /) -> Found:
        """Take bytes; return the requests whose heads they complete."""
        ...

    def message_consumed(self) -> None:
        """Learn that a request was taken from the queue."""
        ...

    def pause_reading(self) -> None:
        """Stop in the middle of a body."""
        ...

    def set_upgraded(self, val: bool, /) -> None:
        """Learn whether the connection changed its protocol."""
        ...


class AnyMethodParser(HttpRequestParserPy):
    """aiohttp's parser in Python: any method and target, and stricter where the fast one is."""

    def parse_message(self, lines: list[bytes]) -> RawRequestMessage:
        """Read a head. Raises `HttpProcessingError`."""
        message = super().parse_message(_told_apart(lines))
        method = lines[0].partition(b" ")[0].decode("ascii")
        if message.method == hdrs.METH_CONNECT != method or message.version.major != 1:
            raise BadStatusLine
        if message.version <= HttpVersion10 and hdrs.TRANSFER_ENCODING in message.headers:
            raise BadStatusLine  # RFC 9112, 6.1: its framing is faulty
        names = [line.partition(b":")[0] for line in lines[1:]]
        raw = tuple(zip(names, [value for _, value in message.raw_headers], strict=False))
        return message._replace(method=method, raw_headers=raw)


def _told_apart(lines: list[bytes]) -> list[bytes]:
    """Return a head whose harmless fields have names of their own where they stand several times."""
    apart, seen = [lines[0]], set[bytes]()
    for line in lines[1:]:
        name = line.partition(b":")[0].lower()
        apart.append(b"X-" + line if name in _HARMLESS and name in seen else line)
        seen.add(name)
    return apart


def _repeats_harmless(data: bytes) -> bool:
    """Return whether the first head in `data` has a harmless field several times."""
    lines = data.lstrip(b"\r\n").partition(_HEAD_END)[0].split(b"\r\n")
    return _told_apart(lines) != lines


class UnfinishedError(Exception):
    """An agent did not go on with its request for that many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the rest of the request did not come within {seconds:g} s")


class RequestReader:
    """One connection's parser. Once a head was refused that may be forwarded the slow parser reads the rest.

    That takes all bytes since the last request's end, and that this end is known for sure: else two
    readers could disagree about where a request begins. `is_held` tells whether the parser keeps bytes
    back, once that many requests more wait for their answers.
    """

    __slots__ = (
        "_begun",
        "_body",
        "_due",
        "_is_held",
        "_latest",
        "_parser",
        "_slow",
        "_starts",
        "message_consumed",
        "pause_reading",
        "set_upgraded",
    )

    def __init__(
        self,
        fast: Parser,
        slow: Callable[[], Parser],
        is_held: Callable[[int], bool],
        starts: Starts,
    ) -> None:
        self._starts = starts
        self._slow: Callable[[], Parser] | None = slow
        self._is_held = is_held
        self._begun: bytes | None = b""
        """What came since the last request's end; `None` where nobody knows that end."""
        self._body: StreamReader = EMPTY_PAYLOAD
        """Of the latest request."""
        self._due = 0
        """Bytes of that request still to come; negative where that is not known."""
        self._latest: KnownStart | None = None
        """How the latest request began of those that needed no parser."""
        self._use(fast)

    def _use(self, parser: Parser) -> None:
        self._parser = parser
        self.message_consumed = parser.message_consumed
        self.pause_reading = parser.pause_reading
        self.set_upgraded = parser.set_upgraded

    @property
    def has_begun(self) -> bool:
        """Whether the start of a request is known to be here whose head is not whole."""
        return bool(self._begun and self._begun.strip(b"\r\n"))

    def at_once(self, data: bytes) -> AgentRequest | None:
        """Return the request that `data` is from its first byte to its last, if its head is known.

        The parser would not be in another state behind it, as it stands between two requests.
        """
        if self._begun != b"":
            return None
        if self._latest is not None and (request := self._latest.read(data)) is not None:
            return request
        self._latest = self._starts.find(data)
        return self._latest.read(data) if self._latest is not None else None

    def feed_data(self, data: bytes) -> Read:
        """Take bytes; return the requests whose heads they complete. Raises `HttpProcessingError`."""
        was_between = self._begun == b""
        messages, upgraded, tail = self._feed(data)
        read = [(self._starts.request(message, body), body) for message, body in messages]
        if was_between and self._begun == b"" and len(read) == 1:
            self._starts.learn(data, read[0][0])
        return read, upgraded, tail

    def _feed(self, data: bytes) -> Found:
        # The fast one drops whatever comes together with an offer of another protocol.
        offers = b"pgrade" in data or b"PGRADE" in data
        if offers and (begun := self._known) is not None and _OFFER.search(begun + data):
            return self._read_slowly(begun + data)
        try:
            found = self._parser.feed_data(data)
        except BadHttpMessage as error:
            begun = self._known
            if begun is None or not _may_be_read(begun + data, error):
                raise
            return self._read_slowly(begun + data)
        if self._slow is not None:
            self._follow(data, found[0])
        return found

    @property
    def _known(self) -> bytes | None:
        """What has come of a request from which on the slow parser can take over, if it can."""
        return self._begun if self._slow is not None else None

    def _read_slowly(self, data: bytes) -> Found:
        assert self._slow is not None
        self._use(self._slow())
        self._slow = None
        self._begun = None
        return self._parser.feed_data(data)

    def _follow(self, data: bytes, messages: _Messages) -> None:
        """Keep track of where the latest request ends."""
        if messages:
            self._body = messages[-1][1]
            self._due = self._missing(data, messages[-1][0]) if len(messages) == 1 else -1
        elif self._begun is not None:
            begun = len(self._begun) + len(data)
            self._begun = self._begun + data if begun <= _LONGEST else None
            return
        else:
            self._due -= len(data)
        # Had more come behind its end, that would be no whole head, which ends like this.
        ended = self._due == 0 or (data.endswith(_HEAD_END) and not self._is_held(len(messages)))
        self._begun = b"" if ended and self._body.is_eof() else None

    def _missing(self, data: bytes, message: RawRequestMessage) -> int:
        """Return how much of a request is to come, whose head ended in `data`."""
        if self._begun is None or message.chunked:
            return -1
        came = self._begun + data
        length = int(message.headers.get(hdrs.CONTENT_LENGTH, 0))
        return came.find(_HEAD_END) + len(_HEAD_END) + length - len(came)


def _may_be_read(data: bytes, error: BadHttpMessage) -> bool:
    """Return whether the slow parser may read what the fast one has refused."""
    if isinstance(error, BadStatusLine | InvalidURLError):
        # What does not even begin like a request is not waited for.
        return _METHOD.match(data.lstrip(b"\r\n")) is not None
    return _repeats_harmless(data)


def refusal_of(error: BaseException | None) -> str:
    """Return what an agent is told of a request that could not be read."""
    match error:
        case UnfinishedError():
            return str(error)
        case BadHttpMethod() if "HTTPS" in error.message:
            return "this is the start of a TLS connection, and turnlog speaks plain http here"
        case BadStatusLine():
            return "the request's first line is not METHOD TARGET HTTP/1.1 (RFC 9112 section 3)"
        case InvalidURLError():
            return "the request's target is neither a path nor a URL (RFC 9112 section 3.2)"
        case _:
            return (
                "the request's head or framing is not sound; look at Host, Content-Length and "
                "Transfer-Encoding first (RFC 9112 sections 3.2, 5 and 6)"
            )
