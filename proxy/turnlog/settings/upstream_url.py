"""The URL of an upstream, and its form without the values of variables and files.

`${VARIABLE}` and `${file:PATH}` in a URL usually stand for secrets. Calls go to the real URL, and
calls are told apart by it; records, names and logs have the form of `UrlMask`. Scheme, host and port
are not masked, so that errors can name the server.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct

from turnlog.redaction.values import PLACEHOLDER

SHORTEST: Final = 8
"""Characters of the shortest value that is masked in any text. A shorter one is masked only in its own
place: an `eu` or a `1` occurs in many unrelated texts."""
_PARTS: Final = re.compile(r"[^:]*://[^/?]*(?P<path>[^?]*)\??(?P<query>.*)")
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
_SEPARATORS: Final = re.compile(r"[/?&=]")
_MARKED: Final = re.compile(r"\0+")


class UpstreamUrl(Struct, frozen=True):
    """The URL of a tool server, and the parts of it that were inserted."""

    text: str
    values: tuple[tuple[int, int], ...] = ()
    """Start and end of each inserted value."""


class UrlMask(Struct, frozen=True, kw_only=True):
    """Path and query of a URL with expanded values, and the same with these values masked."""

    path: str
    query: str
    shown_path: str
    shown_query: str
    texts: tuple[str, ...]
    """Texts that are masked wherever they occur, longest first."""

    def shown(self, path: str, query: str) -> tuple[str, str]:
        """Return path and query of a request to this upstream, masked."""
        below = f"{self.path.rstrip('/')}/"
        if path == self.path:
            path = self.shown_path
            if query.startswith(self.query):
                query = self.shown_query + query[len(self.query) :]
        elif path.startswith(below):
            path = f"{self.shown_path.rstrip('/')}/{path[len(below) :]}"
        return self.cut(path), self.cut(query)

    def pattern(self, path: str) -> str:
        """Return a path as the name of a tool: `*` in place of each segment with a value."""
        segments = self.shown(path, "")[0].split("/")
        return "/".join("*" if PLACEHOLDER in segment else segment for segment in segments)

    def cut(self, text: str) -> str:
        """Return a text with the values masked."""
        for value in self.texts:
            text = text.replace(value, PLACEHOLDER)
        return text

    def cut_content(self, content: bytes) -> bytes:
        """Return content with the values masked."""
        for value in self.texts:
            content = content.replace(value.encode(), PLACEHOLDER.encode())
        return content


def mask_of(url: UpstreamUrl) -> UrlMask | None:
    """Return the mask of an upstream's URL; `None` if no value is in its path or query."""
    parts = _PARTS.fullmatch(url.text)
    if parts is None or not any(end > parts.start("path") for _, end in url.values):
        return None
    marked = list(url.text)
    for begin, end in url.values:
        marked[begin:end] = "\0" * (end - begin)
    shown = "".join(marked)
    path, (begin, end) = parts["path"], parts.span("path")
    # The slashes of a path are not masked.
    slashed = "".join("/" if a == "/" else b for a, b in zip(path, shown[begin:end], strict=True))
    values = [url.text[max(first, begin) : last] for first, last in url.values if last > begin]
    return UrlMask(
        path=path or "/",
        query=parts["query"],
        shown_path=_MARKED.sub(PLACEHOLDER, slashed) or "/",
        shown_query=_MARKED.sub(PLACEHOLDER, shown[parts.start("query") :]),
        texts=_texts(values),
    )


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    """Return the texts to mask anywhere: long values and their long parts, in every spelling."""
    parts = {part for value in values for part in (value, *_SEPARATORS.split(value))}
    found = {form for part in parts if len(part) >= SHORTEST for form in _forms(part)}
    return tuple(sorted(found, key=lambda form: (-len(form), form)))


def _forms(value: str) -> Iterator[str]:
    """Yield the spellings of a value: as in the URL, decoded, encoded, and each in a JSON string."""
    plain = unquote(value)
    encoded = (quote(plain, safe=""), quote(value, safe=""))
    # Escapes may be written in lower case (RFC 3986 section 2.1).
    lower = (_ESCAPE.sub(lambda escape: escape[0].lower(), form) for form in (value, *encoded))
    for form in dict.fromkeys((value, plain, *encoded, *lower)):
        yield form
        yield json.dumps(form)[1:-1]
        yield json.dumps(form, ensure_ascii=False)[1:-1]
