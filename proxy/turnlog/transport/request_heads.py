"""How requests begin, worked out once: an agent sends the same head again and again, but for its length.

A whole request whose head is known byte for byte is read without a parser: nothing in it but the
digits of Content-Length is new, and those have to be the length of what follows.
"""

from typing import Final

from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from msgspec import Struct

from turnlog.wire.http.head import Headers
from turnlog.wire.http.known_head import KnownHead, known_bodiless, known_head

from .message_heads import (
    HEADS,
    Memo,
    RequestHead,
    RequestStart,
    is_moderate,
    read_request,
    without_lengths,
)

_HEAD_END: Final = b"\r\n\r\n"
_LENGTHS: Final = (b"\r\nContent-Length: %d\r\n", b"\r\ncontent-length: %d\r\n")
"""The line that tells a body's length, as agents spell it."""
_ODD: Final = frozenset({b"expect", b"upgrade"})
"""Fields that ask for more than an answer."""
_Line = tuple[str, str, tuple[int, int], bool, RequestHead]
"""Method, target, version, whether the connection stays, and what the fields say."""


class AgentRequest(Struct, frozen=True, eq=False):
    """A request as it was read."""

    start: RequestStart
    headers: Headers
    """Fields as they came."""
    body: bytes | StreamReader
    """All of it, or what it is read from."""
    came_before: bool = True
    """Whether another one has begun like this."""

    def _cancel(self, exc: BaseException) -> None:
        """Let nobody wait for the body any more; aiohttp's server calls this."""
        if not isinstance(self.body, bytes):
            self.body.set_exception(exc)


class KnownStart(Struct, frozen=True):
    """How a request begins that was read before."""

    start: RequestStart
    head: KnownHead

    def read(self, data: bytes) -> AgentRequest | None:
        """Return the request that `data` is, from its first byte to its last, if it begins like this."""
        found = self.head.read(data)
        return None if found is None else AgentRequest(self.start, *found)


class Starts:
    """The beginnings of requests that are remembered; the same bytes always mean the same."""

    def __init__(self) -> None:
        self._head = Memo(read_request, is_moderate)
        self._starts: dict[_Line, RequestStart] = {}
        self._known: dict[bytes, KnownStart] = {}
        """By the head's bytes, without the digits of its length."""

    def request(self, message: RawRequestMessage, body: StreamReader) -> AgentRequest:
        """Return what a parser has read."""
        raw = without_lengths(message.raw_headers)
        head, keeps = self._head(raw), not message.should_close
        line = (message.method, message.path, message.version, keeps, head)
        start = self._starts.get(line)
        content = b"" if body is EMPTY_PAYLOAD else body
        if start is not None:
            return AgentRequest(start, message.raw_headers, content)
        start = self._begin(line)
        return AgentRequest(start, message.raw_headers, content, came_before=False)

    def _begin(self, line: _Line) -> RequestStart:
        """Return how a request begins, for the first time."""
        method, target, version, keeps, head = line
        start = RequestStart(method=method, target=target, version=version, keeps=keeps, head=head)
        if start.is_ordinary:
            if len(self._starts) >= HEADS:
                self._starts.clear()
            self._starts[line] = start
        return start

    def find(self, data: bytes) -> KnownStart | None:
        """Return how a request begins, if it was read before, and may be `data`."""
        return self._known.get(_without_digits(data))

    def learn(self, data: bytes, request: AgentRequest) -> None:
        """Remember the head of a request that is all of `data`, if what is to be done follows from it.

        One that comes for the first time may be the last of its kind, as where its target names an item.
        """
        start = request.start
        # Whoever expects 100 (Continue) is written to before its body is read.
        is_odd = not start.head.fields.keys().isdisjoint(_ODD) or not start.keeps
        if is_odd or not request.came_before:
            return
        size = len(data) - data.find(_HEAD_END) - len(_HEAD_END)
        head = (
            known_head(data, size, request.headers)
            if size
            else known_bodiless(data, request.headers)
        )
        key = _without_digits(data)
        if head is None or not key:
            return
        if len(self._known) >= HEADS:
            self._known.clear()
        self._known[key] = KnownStart(start, head)


def _without_digits(data: bytes) -> bytes:
    """Return the head of a whole request without the digits of its length, if it is spelled as usual."""
    end = data.find(_HEAD_END) + len(_HEAD_END)
    size = len(data) - end
    if not size:
        return data
    for spelled in _LENGTHS:
        line = spelled % size
        at = data.find(line, 0, end)
        if at >= 0:
            behind = at + len(line) - len(b"\r\n")
            return data[: at + len(spelled) - len(b"%d\r\n")] + data[behind:end]
    return b""
