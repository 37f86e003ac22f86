"""Heads of messages, as far as turnlog reads and changes them.

Agents send the same fields again and again, so what those say is remembered (decision 71); but for
Content-Length, which the connections write anew.
"""

from functools import lru_cache
from typing import Final

from msgspec import Struct

from turnlog.wire.http.head import fields, lines, request_headers, response_headers
from turnlog.wire.http.reference import led_back

from .http1 import (
    HEADS,
    KNOWN_BYTES,
    LENGTH,
    UNSOUND,
    Unreadable,
    connection_options,
    read_request_fields,
    read_request_line,
)
from .routes import Route, Target

_FIELDS: Final = 64
"""A head with more fields is not remembered."""


Raw = tuple[tuple[bytes, bytes], ...]


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


class RequestStart(Struct, frozen=True):
    """A request's line and fields, but for Content-Length."""

    method: str
    target: str
    version: tuple[int, int]
    keeps: bool
    """Whether the connection may carry another request."""
    head: RequestHead
    """What the fields say."""
    text: bytes = b""
    """Line and fields as they came; empty where the body comes in chunks."""

    @property
    def is_ordinary(self) -> bool:
        """Whether it is small enough to be remembered."""
        return self.head.is_moderate and len(self.target) <= KNOWN_BYTES


def read_request(raw: Raw, *, is_moderate: bool = True) -> RequestHead:
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
        is_moderate=is_moderate,
        speaks_mcp=takes_events or any(name.startswith(b"mcp-") for name in given),
        is_sound=not unsound and coding.rpartition(b",")[2].strip(b" \t").lower() == b"chunked",
        is_chunked=b"transfer-encoding" in given,
        closes=b"close" in options,
        stays=b"keep-alive" in options,
    )


class OutgoingHead(Struct, frozen=True):
    """The head of a request to an upstream, but for what frames its body."""

    method: str
    lines: bytes
    """Its fields, each with CRLF before it."""
    text: bytes
    """Its first line and its fields, as they are written to the upstream's connection."""


class SentRequest(Struct, frozen=True):
    """A request as its upstream sees it, by which components of its answer's signature are found (RFC 9421)."""

    method: str
    url: str
    headers: dict[str, str]


def sent_request(head: OutgoingHead, route: Route) -> SentRequest:
    """Return a request as its upstream sees it."""
    headers: dict[str, str] = {}
    for line in head.lines.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(": ")
        known = headers.get(name.lower())
        headers[name.lower()] = value if known is None else f"{known}, {value}"
    return SentRequest(head.method, route.target.origin + route.resource, headers)


def forwarded(raw: Raw, route: Route, method: str) -> OutgoingHead:
    """Return the head that an agent's fields become on their way to an upstream."""
    return outgoing_head(route.target, method, route.resource, forwarded_lines(raw, route.target))


def forwarded_lines(raw: Raw, target: Target) -> bytes:
    """Return the lines that an agent's fields become on their way to an upstream."""
    headers = request_headers(raw, authority=target.authority, forwarded_host=host_of(raw))
    return lines(headers)


def outgoing_head(target: Target, method: str, resource: str, lines: bytes) -> OutgoingHead:
    """Return the head of a request for a resource, with fields, each with CRLF before it."""
    text = lines
    if target.is_plainly_proxied and target.proxy is not None:
        # A proxy gets the whole URL of what is not encrypted (RFC 9112 section 3.2.2).
        resource = target.origin + (resource if resource != "*" else "")
        if target.proxy.authorization:
            text += b"\r\nProxy-Authorization: " + target.proxy.authorization
    line = f"{method} {resource} HTTP/1.1".encode("utf-8", "surrogateescape")
    return OutgoingHead(method, lines, line + text)


def host_of(raw: Raw) -> bytes:
    """Return the Host that an agent's fields name."""
    return next((value for name, value in raw if name.lower() == b"host"), b"")


def read_request_head(
    head: bytes, before: RequestStart | None = None
) -> tuple[RequestStart, int] | Unreadable:
    """Return how a request begins, and the length of its body: negative where it comes in chunks.

    `before` is the start of another request, perhaps the same.
    """
    text, length = head, 0
    if said := LENGTH.search(head):
        text, length = head[: said.start()] + head[said.end() :], int(said[1])
    if before is not None and text == before.text:
        return before, length
    end = text.find(b"\r\n")
    line, fields_of = read_request_line(text[:end]), text[end:]
    if isinstance(line, Unreadable):
        return line
    is_moderate = len(fields_of) <= KNOWN_BYTES and fields_of.count(b"\r\n") - 2 <= _FIELDS
    found = _known_fields(fields_of) if is_moderate else _read_fields(fields_of, is_moderate=False)
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
        is_sound, length, text = is_sound and said is None, -1, b""
    return (
        (RequestStart(method, target, version, keeps, found, text), length) if is_sound else UNSOUND
    )


def _read_fields(lines: bytes, *, is_moderate: bool = True) -> RequestHead | Unreadable:
    """Return what the lines of a request's fields say, of which none is a sound Content-Length."""
    given = read_request_fields(lines)
    if isinstance(given, Unreadable):
        return given
    found = read_request(given, is_moderate=is_moderate)
    return found if found.is_sound else UNSOUND


_known_fields = lru_cache(HEADS)(_read_fields)


def answer_lines(raw: Raw, route: Route, asked: Raw) -> bytes:
    """Return the lines of an answer's fields for the agent, to a request with the fields `asked`.

    References of the server's own origin lead back here. Cookies are
    confined to the agent's path to that server where other servers stand behind the same origin.
    """
    host = host_of(asked).decode("latin-1")
    confined = response_headers(
        led_back(raw, lambda reference: route.led_back(reference, host)),
        cookie_path=route.prefix.encode("utf-8", "surrogateescape") if route.prefix else None,
        upstream_path=route.target.path.encode(),
    )
    return lines(confined)
