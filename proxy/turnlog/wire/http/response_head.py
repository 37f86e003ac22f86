"""The head of an answer, and what its fields say to a proxy (RFC 9110)."""

from typing import Final

from msgspec import Struct

from .head import (
    DIGESTS,
    EVENTS,
    OWN_PREFIX,
    SEALS,
    Body,
    Headers,
    lines,
    media_of,
    response_headers,
)
from .reference import LEADING


class ResponseHead(Struct, frozen=True, kw_only=True, eq=False):
    """The head of an answer. Answers that differ only in Content-Length may share one object."""

    status: int
    reason: bytes
    raw: tuple[tuple[bytes, bytes], ...]
    """The fields without Content-Length."""
    lengths: tuple[bytes, ...] = ()
    """Values of Content-Length; of use only if `body` is `NONE`."""
    body: Body
    """How the end of the body is found."""
    persists: bool = False
    """Whether the connection may carry another exchange (RFC 9112, 9.3)."""
    media: str
    charsets: tuple[str, ...]
    """Charsets that its media type names."""
    is_json: bool
    codings: str
    sets_cookies: bool
    has_references: bool
    """Whether the fields hold references such as Location."""
    is_sealed: bool
    """Whether the fields hold a digest or signature of the body, which a change would break."""
    names_digests: bool
    """Whether the fields hold digests of content that is no event stream, or say that trailers will (RFC 9530)."""
    lines: bytes
    """The lines of the fields for the agent, each with CRLF before it, without Content-Length."""
    speaks_for_turnlog: bool
    """Whether fields were left out because only turnlog may send them."""


def response_head(
    status: int,
    reason: bytes,
    raw: Headers,
    body: Body,
    *,
    lengths: tuple[bytes, ...] = (),
    persists: bool = False,
) -> ResponseHead:
    """Return the head of an answer with these fields, of which none is Content-Length."""
    given: dict[bytes, list[bytes]] = {}
    for name, value in raw:
        given.setdefault(name.lower(), []).append(value)
    media, charsets = media_of(given.get(b"content-type", ()))
    return ResponseHead(
        status=status,
        reason=reason,
        raw=tuple(raw),
        lengths=lengths,
        body=body,
        persists=persists,
        media=media,
        charsets=charsets,
        is_json=media == "application/json" or media.endswith("+json"),
        codings=b",".join(filter(None, given.get(b"content-encoding", ()))).decode("latin-1"),
        sets_cookies=b"set-cookie" in given,
        has_references=not LEADING.isdisjoint(given),
        is_sealed=not SEALS.isdisjoint(given),
        names_digests=body is not Body.NONE and media != EVENTS and _names_digests(given),
        lines=lines(response_headers(raw, cookie_path=None)),
        speaks_for_turnlog=any(name.startswith(OWN_PREFIX) for name in given),
    )


def _names_digests(given: dict[bytes, list[bytes]]) -> bool:
    """Return whether fields, or trailers to come, hold digests of the content."""
    if not DIGESTS.isdisjoint(given):
        return True
    trailers = b",".join(given.get(b"trailer", ())).lower()
    return any(name in trailers for name in DIGESTS)


NO_HEAD: Final = response_head(0, b"", (), Body.NONE)
"""Stands for the head of an answer that has not come."""
