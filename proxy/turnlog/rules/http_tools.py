"""Plain HTTP requests as tool calls: name, input and suggested effect."""

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw, Struct

from turnlog.core.canon import is_deep
from turnlog.core.kinds import Effect

TOOL_BYTES = 128  # of a tool name that is made from a path
SEGMENT_CHARS = 24  # a longer path segment is taken for an identifier

_CACHE_SIZE: Final = 1024
_CACHED_CHARS: Final = 512  # of a path whose pattern is cached

_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(Raw).decode
_BOM = b"\xef\xbb\xbf"
_CONTAINERS = (b"{", b"[")
_EFFECTS: Final = {
    **dict.fromkeys(("GET", "HEAD", "OPTIONS"), Effect.READ),
    **dict.fromkeys(("PUT", "DELETE"), Effect.IDEMPOTENT_WRITE),
}
_INPUT_PATH: Final = re.compile(rb'\{"path":"((?:[^"\\]|\\.)*)"')
_INPUT_DIGEST: Final = re.compile(rb',"body(?:_start)?":"(?:hmac-)?sha256:[0-9a-f]+"\}\Z')


def http_tool(method: str, path: str) -> str:
    """Return the name of a tool as `METHOD /path/*`, at most `TOOL_BYTES` long."""
    # A segment that holds a digit or exceeds `SEGMENT_CHARS` becomes `*`: it is an identifier or a
    # token, which must not be in the permanent part of a record. The folder is often the same.
    before, slash, last = path.partition("?")[0].rpartition("/")
    pattern = _cached_pattern if len(before) <= _CACHED_CHARS else _pattern
    name = f"{method} {pattern(before)}{slash}{_segment(last)}"
    if name.isascii():
        return name[:TOOL_BYTES]
    return name.encode("utf-8", "replace")[:TOOL_BYTES].decode("utf-8", "ignore")


def _pattern(path: str) -> str:
    return "/".join(map(_segment, path.split("/")))


_cached_pattern = lru_cache(maxsize=_CACHE_SIZE)(_pattern)


class Input(Struct, frozen=True, gc=False):
    """The input of a plain HTTP call as JSON, which may be `cut`."""

    text: bytes
    cut: bool = False


class _InputJson(Struct, frozen=True, gc=False):
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
    """Return `{"path", "query", "body"}` as JSON; a body that is not JSON is replaced by its digest.

    If `body` is not `whole`, it becomes `body_start`: its digest, or the beginning of its JSON, at
    the end of the text, which then is `cut` as well. `digest` computes a keyed digest; without it
    the digest is a plain sha256.
    """
    # Keyed because a form may hold a short password, which a plain sha256 would let anybody guess.
    path, query = _text(path), _text(query)
    if whole:
        return Input(_encode(_InputJson(path, query, _body(body, digest) if body else None)))
    place = {"path": path, "query": query}
    start = body.removeprefix(_BOM).lstrip(b" \t\r\n")
    if start.startswith(_CONTAINERS):
        return Input(_encode(place)[:-1] + b',"body_start":' + start, cut=True)
    place["body_start"] = _digest_text(body, digest)
    return Input(_encode(place))


def values_in(content: bytes) -> bytes:
    """Return an input with its values apart: the segments of its path, and no digest in place of a body."""
    found = _INPUT_PATH.match(content)
    if found is not None:
        first, last = found.span(1)
        content = content[:first] + found[1].replace(b"/", b" ") + content[last:]
    return _INPUT_DIGEST.sub(b"}", content)


def has_unread_body(content: bytes) -> bool:
    """Return whether an input has a digest in place of its body, which is not JSON."""
    return _INPUT_DIGEST.search(content) is not None


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
    """Return the effect that a method suggests, for retry class and durability only."""
    return _EFFECTS.get(method, Effect.UNKNOWN)


def _segment(segment: str) -> str:
    if len(segment) > SEGMENT_CHARS:
        return "*"
    # Letters are not digits, and can be shown.
    if not segment or segment.isalpha():
        return segment
    # Most segments with a digit end with one.
    if segment[-1].isdigit() or any(map(str.isdigit, segment)):
        return "*"
    # Names are shown in terminals.
    return segment if segment.isprintable() else "*"


def _body(body: bytes, digest: Callable[[bytes], bytes] | None) -> Raw | str:
    """Return a body as JSON, or its digest."""
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
