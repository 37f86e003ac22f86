"""Heads of messages, worked out once: agents and servers send the same ones again and again.

What depends on a head alone is remembered by its fields, but for Content-Length, which the
connections write anew.
"""

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from msgspec import Struct, structs

from turnlog.wire.http.head import (
    OWN_PREFIX,
    Headers,
    is_sealed,
    media_of,
    request_headers,
    response_headers,
    without_length,
)
from turnlog.wire.http.reference import LEADING, led_back

from .http1 import (
    UNSOUND,
    RequestFraming,
    Unreadable,
    is_length,
    read_framing,
    read_request_fields,
    read_request_line,
)
from .routes import Route

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
_LENGTHS: Final = frozenset({b"Content-Length", b"content-length", b"CONTENT-LENGTH"})
HEADS: Final = 1024
"""Heads remembered of each kind."""
_FIELDS: Final = 64
_BYTES: Final = 8192
"""A head with more fields or bytes is not remembered."""


Raw = tuple[tuple[bytes, bytes], ...]
Way = tuple[Raw, bytes]
"""An agent's fields, and the authority they go to."""


class RequestHead(Struct, frozen=True, eq=False):
    """What a request's fields say; the same object as often as they come."""

    raw: Raw
    """The fields, without Content-Length."""
    fields: dict[bytes, bytes]
    """First value of each field, by its name in lower case. Not to be changed."""
    text: dict[bytes, str]
    """The same, decoded."""
    repeated: frozenset[bytes]
    is_moderate: bool = True
    """Whether they are few and short enough to be remembered."""
    speaks_mcp: bool = False
    """Whether its sender takes a stream of events, or says things of MCP."""
    framing: RequestFraming = RequestFraming()


class RequestStart(Struct, frozen=True, kw_only=True, eq=False):
    """A request's line and fields, but for Content-Length; the same object as often as they come."""

    method: str
    target: str
    version: tuple[int, int]
    keeps: bool
    """Whether the connection may carry another request."""
    head: RequestHead
    """What they say."""
    length: int = 0
    """Of the body in bytes, where Content-Length has an unusual spelling; negative for chunks."""

    @property
    def is_ordinary(self) -> bool:
        """Whether it is small enough to be remembered."""
        return self.head.is_moderate and len(self.target) <= _BYTES


class ReadHead(Struct, frozen=True, eq=False):
    """The head of one request."""

    start: RequestStart
    headers: Raw
    """The fields as they came."""
    length: int
    """Of the body in bytes; negative where it comes in chunks."""


class AnswerHead(Struct, frozen=True, kw_only=True):
    """What an answer's fields say, and the lines that go to the agent, each with CRLF before it,
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


class Memo(Generic[_K, _V]):
    """Remembers what a function made of a key, as far as the key is of moderate size."""

    def __init__(self, make: Callable[[_K], _V], is_small: Callable[[_K], bool]) -> None:
        self._make = make
        self._is_small = is_small
        self._known: dict[_K, _V] = {}

    def __call__(self, key: _K) -> _V:
        """Return what is known of `key`, or make it."""
        known = self._known.get(key)
        if known is None:
            known = self._make(key)
            if self._is_small(key):
                if len(self._known) >= HEADS:
                    self._known.clear()
                self._known[key] = known
        return known


def without_lengths(headers: Headers) -> Raw:
    """Return the fields without Content-Length in its usual spellings."""
    return tuple([pair for pair in headers if pair[0] not in _LENGTHS])


def is_moderate(raw: Raw) -> bool:
    """Tell whether a head is small enough to be remembered."""
    return len(raw) <= _FIELDS and sum(len(name) + len(value) for name, value in raw) <= _BYTES


def read_request(raw: Raw) -> RequestHead:
    """Return what a request's fields say."""
    fields: dict[bytes, bytes] = {}
    repeated: set[bytes] = set()
    for name, value in raw:
        key = name.lower()
        if key in fields:
            repeated.add(key)
        else:
            fields[key] = value
    text = {name: value.decode("latin-1") for name, value in fields.items()}
    takes_events = b"text/event-stream" in fields.get(b"accept", b"").lower()
    speaks_mcp = takes_events or any(name.startswith(b"mcp-") for name in fields)
    return RequestHead(
        raw, fields, text, frozenset(repeated), is_moderate(raw), speaks_mcp, read_framing(raw)
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
    medias: list[bytes] = []
    codings, sets_cookies, leads = "", False, False
    for name, value in raw:
        match name.lower():
            case b"content-type":
                medias.append(value)
            case b"content-encoding":
                coding = value.decode("latin-1")
                codings = f"{codings},{coding}" if codings else coding
            case b"set-cookie":
                sets_cookies = True
            case key if key in LEADING:
                leads = True
            case _:
                pass
    kept = response_headers(raw, cookie_path=None)
    media, charsets = media_of(medias)
    return AnswerHead(
        media=media,
        charsets=charsets,
        is_json=media == "application/json" or media.endswith("+json"),
        codings=codings,
        sets_cookies=sets_cookies,
        leads=leads,
        is_sealed=is_sealed(raw),
        lines=lines(without_length(kept)),
        speaks_for_turnlog=any(name.lower().startswith(OWN_PREFIX) for name, _ in raw),
    )


class RequestHeads:
    """Reads the heads of requests; what does not depend on Content-Length is worked out once."""

    def __init__(self) -> None:
        self.read = Memo(self._read, lambda head: len(head) <= _BYTES)
        """Returns what a whole head says. That depends on its bytes alone, and most agents send a few
        heads again and again: a fifth of what a call costs in `transport` (decision 56)."""
        self._head = Memo(read_request, is_moderate)
        self._starts: dict[tuple[bytes, RequestHead], RequestStart] = {}

    def _read(self, head: bytes) -> ReadHead | Unreadable:
        line, _, lines = head.partition(b"\r\n")
        found = read_request_fields(lines)
        if isinstance(found, Unreadable):
            # What is wrong with the first line says more of what came.
            refused = read_request_line(line)
            return refused if isinstance(refused, Unreadable) else found
        headers = tuple(found)
        raw = without_lengths(headers)
        fields = self._head(raw)
        start = self._starts.get((line, fields)) or self._begun(line, fields)
        if isinstance(start, Unreadable) or len(raw) == len(headers):
            return (
                start if isinstance(start, Unreadable) else ReadHead(start, headers, start.length)
            )
        length = b""
        for name, value in headers:
            if name in _LENGTHS:
                length = value
                break
        # Several, or one beside chunks, may end where another reader sees no end (RFC 9112, 6.3).
        is_sound = len(raw) == len(headers) - 1 and not start.length and is_length(length)
        return ReadHead(start, headers, int(length)) if is_sound else UNSOUND

    def _begun(self, line: bytes, fields: RequestHead) -> RequestStart | Unreadable:
        """Return how a request begins, for the first time."""
        said = read_request_line(line)
        if isinstance(said, Unreadable):
            return said
        framing, version = fields.framing, said.version
        if not framing.is_sound_in(version):
            return UNSOUND
        start = RequestStart(
            method=said.method,
            target=said.target,
            version=version,
            keeps=framing.is_persistent_in(version),
            head=fields,
            length=framing.length,
        )
        if start.is_ordinary:
            if len(self._starts) >= HEADS:
                self._starts.clear()
            self._starts[line, fields] = start
        return start


class Heads:
    """All heads that are remembered."""

    def __init__(self) -> None:
        self.forwarded = Memo(forwarded, lambda way: is_moderate(way[0]))
        self._answer = Memo(read_answer, is_moderate)

    def answer(self, raw: Raw, route: Route, asked: Raw) -> AnswerHead:
        """Return what an answer's fields say to a request with the fields `asked`.

        References of the server's own origin lead back here (semantics, section 13). Cookies are
        confined to the agent's path to that server where other servers stand behind the same origin.
        """
        head = self._answer(raw)
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
        return structs.replace(head, lines=lines(without_length(confined)))
