"""HTTP heads on their way through a proxy (RFC 9110, RFC 9112): fields to forward, length of a body.

Fields stay raw pairs of bytes, in order, duplicates kept: a mapping would join or drop them.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC
from email.message import Message
from email.utils import parsedate_to_datetime
from enum import StrEnum

from msgspec import Struct

from .content_coding import ContentDecoder, decoder_for
from .origin import allowed_host, allowed_origin, is_of_another_site

__all__ = [
    "BadFraming",
    "Body",
    "ContentDecoder",
    "Framing",
    "Headers",
    "allowed_host",
    "allowed_origin",
    "can_dechunk",
    "changed_body",
    "decoder_for",
    "fields",
    "framing",
    "is_of_another_site",
    "is_sealed",
    "lines",
    "media_of",
    "notice_headers",
    "request_headers",
    "response_headers",
    "retry_after",
    "trace_id",
]

Headers = Sequence[tuple[bytes, bytes]]
"""Names and values as they came, without the line's white space."""

VIA = b"1.1 turnlog"
EVENTS = "text/event-stream"
_CHARSETS = re.compile(r"""charset\s*=\s*["']?([^"';,\s]+)""")

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Never forwarded. `TE` and `Trailer` go because trailers do: neither side's connection hands
them on (RFC 9110, 6.5.1: only fields that are known to be safe may be merged or kept). The proxy credentials go because they were meant for a proxy (RFC 9110, 11.7)."""

_END_TO_END = frozenset(
    {
        b"age",
        b"allow",
        b"authorization",
        b"baggage",
        b"cache-control",
        b"cookie",
        b"date",
        b"digest",
        b"etag",
        b"expires",
        b"forwarded",
        b"from",
        b"host",
        b"idempotency-key",
        b"last-event-id",
        b"last-modified",
        b"link",
        b"location",
        b"origin",
        b"pragma",
        b"prefer",
        b"range",
        b"referer",
        b"retry-after",
        b"server",
        b"set-cookie",
        b"signature",
        b"signature-input",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"vary",
        b"via",
        b"warning",
        b"www-authenticate",
        b"x-accel-buffering",
        b"x-api-key",
    }
)
_END_TO_END_PREFIXES = (
    b"accept",
    b"access-control-",
    b"content-",
    b"if-",
    b"mcp-",
    b"sec-",
    b"want-",
    b"x-forwarded-",
)
"""Fields that `Connection` cannot take away. RFC 9110, 7.6.1 forbids a sender to name fields meant
for all recipients; whoever does so is broken, or wants the proxy to strip what the server relies
on (its session, its credentials), so those stay. Other nominated fields go, as the RFC says."""

CONTENT_DIGEST = b"content-digest"
DIGESTS = frozenset({CONTENT_DIGEST, b"repr-digest"})
"""Fields with digests of a message's content (RFC 9530)."""
SEALS = DIGESTS | frozenset(
    {
        b"content-md5",
        b"digest",
        b"signature",
        b"signature-input",
    }
)
_OF_ONE_REQUEST = SEALS | {b"content-encoding", b"idempotency-key"}
_TRACEPARENT = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.DOTALL
)
_LENGTH_DIGITS = 18
_LONGEST_WAIT = 10**9
"""s: a server that asks for more than 30 years means never."""
OWN_PREFIX = b"turnlog-"


class Body(StrEnum):
    """How the end of an answer's body is known."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until_close"


class Framing(Struct, frozen=True):
    """How long an answer's body is; `length` in bytes where `body` is `LENGTH`, else 0."""

    body: Body
    length: int = 0


_NO_BODY = Framing(Body.NONE)
_CHUNKED = Framing(Body.CHUNKED)
_UNTIL_CLOSE = Framing(Body.UNTIL_CLOSE)


class BadFraming(StrEnum):
    """Why nobody can tell where an answer ends."""

    BAD_LENGTH = "bad_length"
    CONTRADICTING_LENGTHS = "contradicting_lengths"
    BAD_TRANSFER_CODING = "bad_transfer_coding"


def lines(headers: Headers) -> bytes:
    """Return the lines of a head, each with CRLF before it."""
    return b"".join([b"\r\n%b: %b" % pair for pair in headers])


def fields(raw: Headers, name: bytes) -> list[bytes]:
    """Return all values of a field; `name` in lower case."""
    return [value for key, value in raw if key.lower() == name]


def request_headers(
    raw: Headers, *, authority: bytes, forwarded_host: bytes
) -> list[tuple[bytes, bytes]]:
    """Return the fields of a request as they go upstream.

    Hop-by-hop fields and turnlog's own are out; Host is `authority`; Via, and X-Forwarded-Host
    unless `forwarded_host` is empty, are added behind what was there. Content-Length and Expect
    are out as well: the connection frames the body itself.
    """
    dropped = _nominated(raw) | {b"host", b"content-length", b"expect"}
    kept = [(b"Host", authority)]
    kept += _forwardable(raw, dropped)
    kept.append((b"Via", VIA))
    if forwarded_host:
        kept.append((b"X-Forwarded-Host", forwarded_host))
    return kept


def response_headers(
    raw: Headers, *, cookie_path: bytes | None, upstream_path: bytes = b"/"
) -> list[tuple[bytes, bytes]]:
    """Return the fields of an answer as they go to the agent.

    All but the hop-by-hop ones, and those that only turnlog says: runtimes believe them.

    With `cookie_path` (several upstreams behind one origin) each cookie is confined to that path:
    Domain is dropped, and Path becomes `cookie_path` where the cookie covers `upstream_path`, the
    path of the upstream's URL, which the agent knows as `cookie_path`; else it is put before it.
    """
    kept = list(_forwardable(raw, _nominated(raw)))
    if cookie_path is None:
        return kept
    return [
        (name, _confined(value, cookie_path, upstream_path))
        if name.lower() == b"set-cookie"
        else (name, value)
        for name, value in kept
    ]


def is_sealed(raw: Headers) -> bool:
    """Return whether a change of the body would break its digest or signature (RFC 9530, 9421)."""
    return any(name.lower() in SEALS for name, _ in raw)


def notice_headers(raw: Headers) -> list[tuple[bytes, bytes]]:
    """Return the fields of a request for another message that is sent beside it, in plain text.

    What is about the request's own body stays behind: its coding, seals and key.
    """
    return [pair for pair in raw if pair[0].lower() not in _OF_ONE_REQUEST]


def changed_body(raw: Headers, *, decoded: bool) -> list[tuple[bytes, bytes]]:
    """Return the fields for a body that was changed: no seals, and a weak ETag (RFC 9110, 8.8.1).

    Of a body that was `decoded` as well, no Content-Encoding.
    """
    dropped = {*SEALS, b"content-encoding"} if decoded else SEALS
    return [
        (name, b"W/" + value)
        if name.lower() == b"etag" and not value.startswith(b"W/")
        else (name, value)
        for name, value in raw
        if name.lower() not in dropped
    ]


def _forwardable(raw: Headers, dropped: frozenset[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for pair in raw:
        name = pair[0].lower()
        ends_here = name in _HOP_BY_HOP or name in dropped or name.startswith(OWN_PREFIX)
        if not ends_here:
            yield pair


def _nominated(raw: Headers) -> frozenset[bytes]:
    """Return the fields that `Connection` names and may take away."""
    values = fields(raw, b"connection")
    if not values:
        return frozenset()
    names = {name.strip(b" \t").lower() for value in values for name in value.split(b",")}
    return frozenset(
        name
        for name in names
        if name not in _END_TO_END and not name.startswith(_END_TO_END_PREFIXES)
    )


def _confined(cookie: bytes, cookie_path: bytes, upstream_path: bytes) -> bytes:
    first, *attributes = cookie.split(b";")
    path = b""
    kept = [first]
    for attribute in attributes:
        name, _, value = attribute.partition(b"=")
        match name.strip(b" \t").lower():
            case b"path":
                path = value.strip(b" \t")
            case b"domain":
                pass
            case _:
                kept.append(attribute)
    kept.append(b" Path=" + _new_path(path, cookie_path, upstream_path))
    return b";".join(kept)


def _new_path(path: bytes, cookie_path: bytes, upstream_path: bytes) -> bytes:
    # No usable path means the folder of the request's URL (RFC 6265, 5.1.4), which for a prefix of
    # one segment would be the root, and so every other upstream.
    if not path.startswith(b"/") or _covers(path, upstream_path):
        return cookie_path
    return cookie_path + path


def _covers(path: bytes, wanted: bytes) -> bool:
    """Return whether a cookie's path matches a request's (RFC 6265, 5.1.4)."""
    folder = path if path.endswith(b"/") else path + b"/"
    return wanted == path or wanted.startswith(folder)


def framing(
    status: int, method: str, lengths: list[bytes], codings: list[bytes]
) -> Framing | BadFraming:
    """Return how long the body of an answer is (RFC 9112, 6.3); `method` is the request's.

    `lengths` and `codings` are the values of Content-Length and Transfer-Encoding.
    """
    if method == "HEAD" or status < 200 or status == 204 or status == 304:
        return _NO_BODY
    if codings and (codings := _list(codings)):
        # It overrides Content-Length, which then does not count, nor go on.
        return _CHUNKED if codings == [b"chunked"] else BadFraming.BAD_TRANSFER_CODING
    if not lengths:
        return _UNTIL_CLOSE
    if len(lengths) == 1 and len(lengths[0]) <= _LENGTH_DIGITS and lengths[0].isdigit():
        return Framing(Body.LENGTH, int(lengths[0]))
    return _one_length(set(_list(lengths)))


def can_dechunk(raw: Headers) -> bool:
    """Return whether a request has no transfer coding but `chunked`."""
    # A server answers any other coding with 501 (RFC 9112, 6.1). It cannot be forwarded: the field is
    # dropped upstream, and the body would be misread.
    return _list(fields(raw, b"transfer-encoding")) in ([], [b"chunked"])


def _one_length(values: set[bytes]) -> Framing | BadFraming:
    """Return the length that several values agree on."""
    if not values or any(not value.isdigit() or len(value) > _LENGTH_DIGITS for value in values):
        return BadFraming.BAD_LENGTH
    if len({int(value) for value in values}) > 1:
        return BadFraming.CONTRADICTING_LENGTHS
    return Framing(Body.LENGTH, int(values.pop()))


def _list(values: list[bytes]) -> list[bytes]:
    if not values:
        return []
    joined = b",".join(values).split(b",")
    return [item for each in joined if (item := each.strip(b" \t").lower())]


def media_of(values: Sequence[bytes]) -> tuple[str, tuple[str, ...]]:
    """Return the media type that the Content-Type fields of an answer name, and their charsets.

    Any that speaks of an event stream makes it one: clients look whether the fields begin with that
    type (Python SDK) or hold it (TypeScript SDK). Else the first counts.
    """
    joined = b", ".join(values).lower().decode("latin-1")
    first = joined.partition(";")[0].partition(",")[0].strip(" \t")
    media = EVENTS if EVENTS in joined else first
    if "charset" not in joined:
        return media, ()
    # As httpx reads it (RFC 2231), and as others do.
    message = Message()
    message["content-type"] = joined
    charsets = [message.get_content_charset("") or "", *_CHARSETS.findall(joined)]
    return media, tuple(dict.fromkeys(charset for charset in charsets if charset))


def trace_id(traceparent: str) -> str:
    """Return the trace id of a `traceparent`; empty where that is invalid.

    W3C Trace Context, sections 3.2.2 and 4.3: version ff and ids that are all zeros are invalid, and
    only versions above 00 may have more behind the flags.
    """
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return ""
    version, trace, parent, more = found.groups()
    is_valid = version != "ff" and not (version == "00" and more)
    return trace if is_valid and trace.strip("0") and parent.strip("0") else ""


def retry_after(value: bytes, at: int) -> float | None:
    """Return the seconds that Retry-After asks to wait: a number, or a date (RFC 9110, 10.2.3).

    `at` is now, ns UTC. What is neither asks for nothing.
    """
    text = value.strip(b" \t")
    if text.isdigit():
        return float(min(int(text[:_LENGTH_DIGITS]), _LONGEST_WAIT))
    try:
        date = parsedate_to_datetime(text.decode("latin-1"))
    except (ValueError, OverflowError):
        return None
    # A date without a zone is UTC, as all dates of HTTP are.
    seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - at / 1e9
    return min(max(seconds, 0.0), float(_LONGEST_WAIT))
