"""Redaction of secrets in what is recorded or logged; forwarded bytes are never redacted.

A quick scan finds no candidates in most content, which is then returned as it is. Otherwise a tolerant
scanner walks the JSON token by token and replaces values in place, so that broken JSON, duplicate keys
and cut texts hide nothing.
"""

import json
import re
from collections.abc import Iterable
from functools import partial
from typing import Final

from msgspec import Struct

from turnlog.core.canon import is_utf8
from turnlog.rules.pattern import compile_pattern, to_bytes, to_text

from .json_walk import Texts, Walk
from .names import SecretNames
from .text import cut_assignments, cut_urls
from .values import PLACEHOLDER, PRIVATE_KEY, QuickScan, cut_shapes, decode_layers

_ROUNDS: Final = 6
"""A redaction may uncover another secret; after so many rounds the whole text is redacted."""
_STEP: Final = 4
"""Levels of depth that decoded text counts for."""
_DEPTH: Final = 6
"""Deepest nesting of JSON in strings in JSON that is parsed."""
_DEEPEST: Final = 12
"""Depth from which a text with candidates is redacted as a whole."""
MARGIN: Final = 2048
"""Bytes beyond the recorded part of a longer text that redaction needs."""
_TAIL: Final = 256
"""Bytes dropped at the end of a cut text."""
_TAIL_RUN: Final = 1024
"""Bytes dropped if the end is one unbroken run of characters."""
_OPEN_JWT: Final = re.compile(rb"(?<![A-Za-z0-9])eyJ[\w\-]{16,}+(?:\.[\w\-]*+)*+\Z")
# Three quotes begin a string of Python's.
_JSON_START: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*+(?!\[redacted\])(?:[{\[]|"(?!""))')
_RUN: Final = re.compile(r"\S++")
_QUOTE: Final = re.compile(rb'"')
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_NO_BYTE: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_PLACEHOLDER: Final = PLACEHOLDER.encode()
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SHORT: Final = dict(zip("bfnrt", "\b\f\n\r\t", strict=True))


class Redacted(Struct, frozen=True, gc=False):
    """Redacted content, and whether anything was redacted."""

    data: bytes
    touched: bool


class Redactor:
    """Redacts secrets by built-in names and shapes, and by those of an operator.

    Raises `ValueError` if a pattern is not an RE2 expression.
    """

    def __init__(
        self,
        headers: Iterable[str] = (),
        keys: Iterable[str] = (),
        patterns: Iterable[str] = (),
    ) -> None:
        names = (*headers, *keys)
        self._names = SecretNames(names)
        self._own = tuple(map(compile_pattern, patterns))
        self._look = QuickScan(names)

    def is_clean(self, data: bytes) -> bool:
        """Return whether a whole text certainly holds no secret; most do not."""
        return not self._own and not self._look.has_candidates(data)

    def json(self, data: bytes, *, complete: bool = True) -> Redacted:
        """Return JSON, or text that should be JSON, without secrets.

        With `complete=False` the data is the beginning of a longer text. Its last part, up to
        `MARGIN` bytes, is dropped, which does not count as redacted. To record `n` bytes, pass at
        least `n + MARGIN` and cut the result to `n`.
        """
        # A secret that is cut at the end cannot be recognized; neither can a value whose name comes
        # in a sibling after it.
        if not self._own and not self._look.has_candidates(data, complete=complete):
            return Redacted(data if complete else _without_tail(data), False)
        if data.find(b"\0") >= 0:
            return self._wide_encoding(data)
        cut = self._redact_document(
            data if complete else _OPEN_JWT.sub(_PLACEHOLDER, data), complete=complete
        )
        return Redacted(cut if complete else _without_tail(cut), cut != data)

    def text(self, s: str) -> tuple[str, bool]:
        """Return a text without secrets, and whether there were any."""
        cut = self._redact_text(s, 0)
        return cut, cut != s

    def _wide_encoding(self, data: bytes) -> Redacted:
        """Return UTF-16 or UTF-32 as it is, or redacted as a whole: JSON is UTF-8 (RFC 8259)."""
        text = data.replace(b"\0", b"")
        if self._redact_document(text) == text:
            return Redacted(data, False)
        return Redacted(b'"' + _PLACEHOLDER + b'"', True)

    def _redact_document(self, data: bytes, *, complete: bool = True) -> bytes:
        if _JSON_START.match(data):
            cut, sound = self._walk(data, 0, complete=complete)
            if sound:
                return cut
        text = data.decode("utf-8", "surrogateescape")
        cut_text = self._redact_text(text, 0)
        return data if cut_text == text else cut_text.encode("utf-8", "surrogateescape")

    def _walk(self, data: bytes, depth: int, *, complete: bool = True) -> tuple[bytes, bool]:
        # An operator's pattern may match anything: then every string is a candidate.
        hits = (
            [m.start() for m in _QUOTE.finditer(data)]
            if self._own
            else self._look.candidate_places(data)
        )
        texts = Texts(
            string=partial(self._redact_string, depth=depth),
            plain=_plain,
            hides=self._names.hides,
            is_secret=self._matches_own_pattern,
        )
        walk = Walk(data, hits, texts, complete=complete)
        return walk.run(), walk.sound

    def _redact_string(self, raw: str, *, depth: int) -> str:
        """Return the raw content of a JSON string without secrets; one character is one byte."""
        plain = _plain(raw)
        cut = self._redact_text(plain, depth + 1)
        return raw if cut == plain else _escaped(cut, raw)

    def _redact_text(self, text: str, depth: int) -> str:
        data = to_bytes(text)
        if not self._own and not self._look.has_candidates(data):
            return text
        if depth > _DEEPEST:
            return PLACEHOLDER
        for _ in range(_ROUNDS):
            before = text
            text, done = self._redact_once(text, depth)
            if text != before and not done:
                # Decoding is costly: only when nothing else is found any more.
                continue
            cut, text = text, self._redact_covered(text, depth)
            if text == cut:
                return text
        return PLACEHOLDER

    def _redact_once(self, text: str, depth: int) -> tuple[str, bool]:
        """Return a text redacted once, and whether another round cannot find anything."""
        data = to_bytes(text)
        if depth < _DEPTH and _JSON_START.match(data):
            data, sound = self._walk(data, depth)
            text = to_text(data)
            if sound:
                return text, True
        return self._redact_plain(text, depth), False

    def _redact_plain(self, text: str, depth: int) -> str:
        """Return text that is not JSON, or only in part, without secrets."""
        # First, because another redaction would remove the line that announces the key.
        text = PRIVATE_KEY.sub(PLACEHOLDER, text)
        places, near = self._look.marks(text)
        text = cut_assignments(text, self._names, places)
        text = cut_urls(
            text, self._names, near, lambda part: self._redact_text(part, depth + _STEP) != part
        )
        text = cut_shapes(text, near)
        for own in self._own:
            text = PLACEHOLDER.join(
                own.replaced(piece, PLACEHOLDER) for piece in text.split(PLACEHOLDER)
            )
        return text

    def _redact_covered(self, text: str, depth: int) -> str:
        """Return a text without secrets that show only when escapes are decoded."""
        if not self._is_covered(text, depth):
            return text
        text = _RUN.sub(
            lambda m: PLACEHOLDER if self._is_covered(m[0], depth) else m[0],
            text,
        )
        return PLACEHOLDER if self._is_covered(text, depth) else text

    def _is_covered(self, text: str, depth: int) -> bool:
        if "%" not in text and "\\" not in text:
            return False
        raw = to_bytes(text)
        plain = decode_layers(raw)
        if plain is None or plain == raw:
            return plain is None
        shown = plain.decode("utf-8", "replace")
        return self._redact_plain(shown, depth + 1) != shown

    def _matches_own_pattern(self, token: str) -> bool:
        return any(own.has_match(token) for own in self._own)


def _plain(raw: str) -> str:
    """Return the text of a raw JSON string; broken escapes are tolerated."""
    text = raw if raw.isascii() else raw.encode("latin-1").decode("utf-8", "surrogateescape")
    if "\\" not in text:
        return text
    try:
        said: str = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return _ESCAPE.sub(_unescape, text)
    return said


def _unescape(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    return _SHORT.get(match[2], match[2])


def _escaped(text: str, raw: str) -> str:
    """Return `text` as the raw content of a JSON string; one character is one byte."""
    # A lone surrogate becomes an escape; but if `raw`, the original of `text`, is not UTF-8, it stands
    # for a byte.
    quoted = json.dumps(text, ensure_ascii=False)[1:-1]
    half = _HALF_PAIR if is_utf8(raw.encode("latin-1")) else _NO_BYTE
    escaped = half.sub(lambda m: f"\\u{ord(m[0]):04x}", quoted)
    return escaped.encode("utf-8", "surrogateescape").decode("latin-1")


def _without_tail(data: bytes) -> bytes:
    """Return cut data without its last part, up to the end of a word or placeholder."""
    end = max(0, len(data) - _TAIL)
    start = max(0, len(data) - _TAIL_RUN)
    edge = max(data.rfind(mark, start, end) for mark in (b" ", b"\n", b'"', b","))
    end = edge + 1 if edge >= 0 else start
    whole = data.rfind(_PLACEHOLDER, max(0, end - len(_PLACEHOLDER)), end + len(_PLACEHOLDER))
    if 0 <= whole < end < whole + len(_PLACEHOLDER):
        end = whole
    while end and data[end : end + 1] and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]
