"""References (RFC 3986) in an answer's fields to the server's own origin, and their paths.

Such a reference names the server, or a path as the server knows it. Behind a proxy it would lead past
the proxy, or to another of its paths.
"""

import re
from collections.abc import Callable
from typing import Final

from .head import Headers

LEADING: Final = frozenset({b"location", b"content-location", b"refresh", b"link"})
"""Fields of answers that hold references, in lower case."""
_PARTS: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?(.*)", re.DOTALL)
_UNSURE: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_TAIL: Final = re.compile(r"[?#]")
_DOTS: Final = re.compile(r"/(?:\.|%2[Ee]){1,2}(?:/|$)")
_REFRESH: Final = re.compile(
    rb"([ \t]*[0-9.]+[ \t]*[;,][ \t]*(?:url[ \t]*=[ \t]*)?([\"']?))(.*?)(\2[ \t]*)",
    re.IGNORECASE | re.DOTALL,
)
_LINK: Final = re.compile(rb"\"(?:[^\"\\]|\\.)*\"|<([^>]*)>")
_PORTS: Final = {"http": ":80", "https": ":443"}


def origin_of(scheme: str, authority: str) -> str:
    """Return an origin in normal form: in lower case, without the default port of its scheme."""
    scheme, authority = scheme.lower(), authority.lower()
    port = _PORTS.get(scheme, ":")
    return f"{scheme}://{authority.removesuffix(port).removesuffix(':')}"


def resolved(reference: str, resource: str, origins: frozenset[str]) -> str | None:
    """Return path, query and fragment of a reference in an answer to a request for `resource`.

    `None` if it leads to none of `origins` (in the form of `origin_of`), or if clients may disagree
    about it: browsers treat a backslash as a slash, others do not.
    """
    reference = reference.strip(" \t")
    found = _PARTS.fullmatch(reference)
    if found is None or _UNSURE.search(reference):
        return None
    scheme, authority, rest = found.groups()
    if authority is not None:
        if not any(origin_of(scheme or o.partition(":")[0], authority) == o for o in origins):
            return None
        rest = rest if rest.startswith("/") else "/" + rest
    elif scheme is not None:
        return None
    elif not rest.startswith("/"):
        rest = _merged(resource, rest)
    return _without_dots(rest)


def _merged(resource: str, rest: str) -> str:
    """Return a relative reference as one that begins with a slash (RFC 3986 section 5.2.3)."""
    path = resource.partition("?")[0]
    match rest[:1]:
        case "" | "#":
            return resource + rest
        case "?":
            return path + rest
        case _:
            return f"{path.rpartition('/')[0]}/{rest}"


def _without_dots(text: str) -> str:
    """Return a path, with query and fragment, without `.` and `..` (RFC 3986 section 5.2.4).

    Clients remove them as well; after a prefix they would lead out of it.
    """
    end = found.start() if (found := _TAIL.search(text)) else len(text)
    path, tail = text[:end], text[end:]
    if _DOTS.search(path) is None:
        return text
    kept: list[str] = []
    last = ""
    for segment in path[1:].split("/"):
        last = segment.lower().replace("%2e", ".")
        if last == "..":
            del kept[-1:]
        elif last != ".":
            kept.append(segment)
    if last in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept) + tail


def led_back(raw: Headers, back: Callable[[str], str | None]) -> list[tuple[bytes, bytes]]:
    """Return an answer's fields with each reference replaced by the result of `back`.

    `None` leaves it unchanged. The references of Location, Content-Location (RFC 9110 sections 10.2.2
    and 8.7), Link (RFC 8288) and Refresh (HTML standard, section 4.6.8) count.
    """

    def instead(reference: bytes) -> bytes:
        new = back(reference.decode("utf-8", "surrogateescape"))
        return reference if new is None else new.encode("utf-8", "surrogateescape")

    def linked(found: re.Match[bytes]) -> bytes:
        target: bytes | None = found[1]
        return found[0] if target is None else b"<%b>" % instead(target)

    def changed(name: bytes, value: bytes) -> bytes:
        match name.lower():
            case b"location" | b"content-location":
                return instead(value)
            case b"link":
                return _LINK.sub(linked, value)
            case b"refresh" if found := _REFRESH.fullmatch(value):
                before, _, reference, behind = found.groups()
                return before + (instead(reference) if reference else b"") + behind
            case _:
                return value

    return [(name, changed(name, value)) for name, value in raw]
