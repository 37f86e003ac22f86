"""Name the tool behind a plain HTTP request, and put its input into one JSON object."""

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw, Struct

from turnlog.core.canon import is_deep
from turnlog.core.kinds import Effect

TOOL_BYTES = 128
"""Longest tool name made from a path, in bytes."""
SEGMENT_CHARS = 24
"""A longer path segment is taken for an identifier."""

_PLACES: Final = 1024
_PLACE_CHARS: Final = 512
"""Of a longer path no pattern is remembered."""

_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(Raw).decode
_BOM = b"\xef\xbb\xbf"
_CONTAINERS = (b"{", b"[")
_EFFECTS: Final = {
    **dict.fromkeys(("GET", "HEAD", "OPTIONS"), Effect.READ),
    **dict.fromkeys(("PUT", "DELETE"), Effect.IDEMPOTENT_WRITE),
}
_UNKNOWN: Final = Effect.UNKNOWN


def http_tool(method: str, path: str) -> str:
    """Return `METHOD /path/*`: a path pattern with few values, cut at `TOOL_BYTES`.

    A segment that holds a digit or exceeds `SEGMENT_CHARS` becomes `*`: it names a thing, or is a
    token, and must not stand in a record's permanent part.
    """
    before, slash, last = path.partition("?")[0].rpartition("/")
    # What stands before the last segment is often the same.
    pattern = _remembered if len(before) <= _PLACE_CHARS else _pattern
    name = f"{method} {pattern(before)}{slash}{_segment(last)}"
    if name.isascii():
        return name[:TOOL_BYTES]
    return name.encode("utf-8", "replace")[:TOOL_BYTES].decode("utf-8", "ignore")


def _pattern(path: str) -> str:
    return "/".join(map(_segment, path.split("/")))


_remembered = lru_cache(maxsize=_PLACES)(_pattern)


class Input(Struct, frozen=True, gc=False):
    """What a plain HTTP call was asked, as JSON that may be `cut`."""

    text: bytes
    cut: bool = False


class _InputJson(Struct, frozen=True, gc=False):
    """The same, as it is written where all of it is known."""

    path: str
    query: str
    body: Raw | str | None


def http_input(
    path: str,
    query: str,
    body: bytes,
    *,
    whole: bool = True,
    digest: Callable[[bytes], bytes] | None = None,
) -> Input:
    """Return `{"path", "query", "body"}` as JSON: the body as JSON, `null` for none, or its digest.

    Of a body that is not `whole` only the start is known, and stands as `body_start`: its digest, or
    what looks like JSON, at the end of what is returned, which then is `cut` as well. `digest` gives a
    keyed digest of a body that is no JSON (a form may hold a short password, and a bare sha256 of it
    can be guessed); without it the digest is a plain sha256.
    """
    path, query = _text(path), _text(query)
    if whole:
        return Input(_encode(_InputJson(path, query, _body(body, digest) if body else None)))
    place = {"path": path, "query": query}
    start = body.removeprefix(_BOM).lstrip(b" \t\r\n")
    if start.startswith(_CONTAINERS):
        return Input(_encode(place)[:-1] + b',"body_start":' + start, cut=True)
    place["body_start"] = _digest_text(body, digest)
    return Input(_encode(place))


def normalized_path(path: str) -> str:
    """Return a path without percent-encoding and dot segments (RFC 3986, 6.2.2)."""
    if "%" not in path and "/." not in path and "//" not in path:
        return path
    kept: list[str] = []
    parts = unquote(path).split("/")
    for part in parts:
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    ends = "/" if parts[-1] in ("", ".", "..") and kept else ""
    return f"/{'/'.join(kept)}{ends}"


def http_effect(method: str) -> Effect:
    """Return the effect that a method suggests. It decides class and durability only."""
    return _EFFECTS.get(method, _UNKNOWN)


def _segment(segment: str) -> str:
    if len(segment) > SEGMENT_CHARS:
        return "*"
    # Letters are neither digits nor anything that could not be shown.
    if not segment or segment.isalpha():
        return segment
    # Most that hold a digit end with one.
    if segment[-1].isdigit() or any(map(str.isdigit, segment)):
        return "*"
    # The name is shown in terminals.
    return segment if segment.isprintable() else "*"


def _body(body: bytes, digest: Callable[[bytes], bytes] | None) -> Raw | str:
    """Return what stands for a body."""
    bare = body.removeprefix(_BOM)
    if is_deep(bare):
        return _digest_text(body, digest)
    try:
        _decode_raw(bare)
        bare.decode()
    except (ValueError, RecursionError):
        return _digest_text(body, digest)
    return Raw(bare)


def _digest_text(body: bytes, digest: Callable[[bytes], bytes] | None) -> str:
    if digest is None:
        return "sha256:" + sha256(body).hexdigest()
    return "hmac-sha256:" + digest(body).hex()


def _text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
