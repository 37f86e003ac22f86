"""Heads of messages, as far as turnlog reads and changes them.

Agents send the same fields again and again, so what those say is remembered (decision 71); but for
Content-Length, which the connections write anew.
"""

import re
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from msgspec import Struct, structs

from turnlog.wire.http.head import (
    OWN_PREFIX,
    SEALS,
    Headers,
    fields,
    media_of,
    request_headers,
    response_headers,
)
from turnlog.wire.http.reference import LEADING, led_back

from .http1 import (
    UNSOUND,
    Unreadable,
    connection_options,
    read_request_fields,
    read_request_line,
)
from .routes import Route

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
# A line with the length of a body. To take it out of a head makes no other line of any, since a line that
# would go on with it, or with the one before it, is refused.
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n)", re.IGNORECASE)
HEADS: Final = 1024
"""Heads remembered of each kind."""
_FIELDS: Final = 64
_BYTES: Final = 8192
"""A head with more fields or bytes is not remembered."""


Raw = tuple[tuple[bytes, bytes], ...]
Way = tuple[Raw, bytes]
"""An agent's fields, and the authority they go to."""


class RequestHead(Struct, frozen=True, eq=False):
    """The meaning of a request's fields, without Content-Length; one object for all requests with equal fields."""

    raw: Raw
    """The fields."""
    fields: dict[bytes, bytes]
    """First value of each field, by its name in lower case. Not to be changed."""
    text: dict[bytes, str]
    """The same, decoded."""
    repeated: frozenset[bytes]
    is_moderate: bool = True
    """Whether they are few and short enough to be remembered."""
    speaks_mcp: bool = False
    """Whether its sender takes a stream of events, or says things of MCP."""
    is_sound: bool = True
    """Whether no two readers could take them for those of different requests (RFC 9112, 6.1, 6.3, 11.2)."""
    is_chunked: bool = False
    """Whether the body comes in chunks."""
    closes: bool = False
    """Whether the connection carries no further request (RFC 9112, 9.3)."""
    stays: bool = False
    """Whether it does in HTTP/1.0 as well."""


class RequestStart(Struct, frozen=True, kw_only=True):
    """A request's line and fields, but for Content-Length."""

    method: str
    target: str
    version: tuple[int, int]
    keeps: bool
    """Whether the connection may carry another request."""
    head: RequestHead
    """What they say."""

    @property
    def is_ordinary(self) -> bool:
        """Whether it is small enough to be remembered."""
        return self.head.is_moderate and len(self.target) <= _BYTES


class AnswerHead(Struct, frozen=True, kw_only=True):
    """The meaning of an answer's fields, and the header lines for the agent, each with CRLF before it,
    without Content-Length."""

    media: str
    charsets: tuple[str, ...]
    """Those that its media type names."""
    is_json: bool
    codings: str
    sets_cookies: bool
    leads: bool
    """Whether they hold references, to where else to go."""
    is_sealed: bool
    """Whether they hold a digest or signature of the body, which a change would break."""
    lines: bytes
    speaks_for_turnlog: bool
    """Whether fields were left out because only turnlog sends them."""


class Memo(dict[_K, _V]):
    """A cache of a function's results by key; keys above a moderate size are not kept."""

    def __init__(self, make: Callable[[_K], _V], is_small: Callable[[_K], bool]) -> None:
        super().__init__()
        self._make = make
        self._is_small = is_small

    def __missing__(self, key: _K) -> _V:
        """Make the value of a key that is not known."""
        value = self._make(key)
        if self._is_small(key):
            if len(self) >= HEADS:
                self.clear()
            self[key] = value
        return value


def is_moderate(raw: Raw) -> bool:
    """Return whether a head is small enough to be remembered."""
    return len(raw) <= _FIELDS and sum(len(name) + len(value) for name, value in raw) <= _BYTES


def read_request(raw: Raw) -> RequestHead:
    """Return what a request's fields say, of which none is a sound Content-Length."""
    given: dict[bytes, bytes] = {}
    repeated: set[bytes] = set()
    for name, value in raw:
        key = name.lower()
        if key in given:
            repeated.add(key)
        else:
            given[key] = value
    coding = given.get(b"transfer-encoding", b"chunked")
    unsound = {b"host", b"transfer-encoding"} & repeated or b"content-length" in given
    options = connection_options(fields(raw, b"connection"))
    takes_events = b"text/event-stream" in given.get(b"accept", b"").lower()
    return RequestHead(
        raw,
        given,
        {name: value.decode("latin-1") for name, value in given.items()},
        frozenset(repeated),
        is_moderate=is_moderate(raw),
        speaks_mcp=takes_events or any(name.startswith(b"mcp-") for name in given),
        is_sound=not unsound and coding.rpartition(b",")[2].strip(b" \t").lower() == b"chunked",
        is_chunked=b"transfer-encoding" in given,
        closes=b"close" in options,
        stays=b"keep-alive" in options,
    )


def lines(headers: Headers) -> bytes:
    """Return the lines of a head, each with CRLF before it."""
    return b"".join([b"\r\n%b: %b" % pair for pair in headers])


def forwarded(way: Way) -> bytes:
    """Return the lines that an agent's fields become on their way upstream."""
    raw, authority = way
    return lines(request_headers(raw, authority=authority, forwarded_host=host_of(raw)))


def host_of(raw: Raw) -> bytes:
    """Return the Host that an agent's fields name."""
    return next((value for name, value in raw if name.lower() == b"host"), b"")


def read_answer(raw: Raw) -> AnswerHead:
    """Return what an answer's fields say."""
    given: dict[bytes, list[bytes]] = {}
    for name, value in raw:
        given.setdefault(name.lower(), []).append(value)
    media, charsets = media_of(given.get(b"content-type", ()))
    return AnswerHead(
        media=media,
        charsets=charsets,
        is_json=media == "application/json" or media.endswith("+json"),
        codings=b",".join(filter(None, given.get(b"content-encoding", ()))).decode("latin-1"),
        sets_cookies=b"set-cookie" in given,
        leads=not LEADING.isdisjoint(given),
        is_sealed=not SEALS.isdisjoint(given),
        lines=lines(response_headers(raw, cookie_path=None)),
        speaks_for_turnlog=any(name.startswith(OWN_PREFIX) for name in given),
    )


class RequestHeads:
    """Reads the heads of requests."""

    def __init__(self) -> None:
        self._known = Memo(_read_fields, _is_short)
        """What fields say, by their lines as they came, but for Content-Length."""

    def read(self, head: bytes) -> tuple[RequestStart, int] | Unreadable:
        """Return how a request begins, and the length of its body: negative where it comes in chunks."""
        end = head.find(b"\r\n")
        line = read_request_line(head[:end])
        if isinstance(line, Unreadable):
            return line
        lines, length = head[end:], 0
        if said := _LENGTH.search(lines):
            lines, length = lines[: said.start()] + lines[said.end() :], int(said[1])
        found = self._known[lines]
        if isinstance(found, Unreadable):
            return found
        method, target, version = line
        if version >= (1, 1):
            is_sound, keeps = b"host" in found.fields, not found.closes
        else:
            # RFC 9112, 6.1: the framing of HTTP/1.0 with Transfer-Encoding is faulty.
            is_sound, keeps = not found.is_chunked, found.stays and not found.closes
        if found.is_chunked:
            # One beside chunks may end where another reader sees no end (RFC 9112, 6.3).
            is_sound, length = is_sound and said is None, -1
        if not is_sound:
            return UNSOUND
        start = RequestStart(method=method, target=target, version=version, keeps=keeps, head=found)
        return start, length


def _is_short(lines: bytes) -> bool:
    return len(lines) <= _BYTES and lines.count(b"\r\n") - 2 <= _FIELDS


def _read_fields(lines: bytes) -> RequestHead | Unreadable:
    """Return what the lines of a request's fields say."""
    given = read_request_fields(lines)
    if isinstance(given, Unreadable):
        return given
    found = read_request(given)
    return found if found.is_sound else UNSOUND


class Heads:
    """All heads that are remembered."""

    def __init__(self) -> None:
        self.forwarded = Memo(forwarded, lambda way: is_moderate(way[0]))
        self._answers = Memo(read_answer, is_moderate)

    def answer(self, raw: Raw, route: Route, asked: Raw) -> AnswerHead:
        """Return what an answer's fields say to a request with the fields `asked`.

        References of the server's own origin lead back here (semantics, section 13). Cookies are
        confined to the agent's path to that server where other servers stand behind the same origin.
        """
        head = self._answers[raw]
        confines = bool(route.prefix) and head.sets_cookies
        if not (confines or head.leads):
            return head
        fields: Headers = raw
        if head.leads:
            host = host_of(asked).decode("latin-1")
            fields = led_back(raw, lambda reference: route.led_back(reference, host))
        confined = response_headers(
            fields,
            cookie_path=route.prefix.encode("utf-8", "surrogateescape") if confines else None,
            upstream_path=route.target.path.encode(),
        )
        return structs.replace(head, lines=lines(confined))
