"""Members named `turnlog/outcome` are taken out of what an upstream sends.

Under that name turnlog says how a call ended, so nobody else may use it. Of a text that is whole the
member is removed. In a text that passes in pieces the name is overwritten instead, with as many bytes:
what is in front of it may have left already, and a length that was announced must stay true.
"""

import codecs
import re
from collections.abc import Iterable
from typing import Final, cast

from turnlog.rules.pattern import compile_pattern

from .json_text import past_space, value_end

NAME: Final = "turnlog/outcome"
MASK: Final = b'"turnlog/forged"'
"""What stands in a text where the name was overwritten."""
_WORD: Final = "turnlog"
_WORD_BYTES: Final = _WORD.encode()
_WORD_SEARCH: Final = compile_pattern(_WORD)
_BACKSLASH: Final = b"\\"
_ESCAPE: Final = rb"\u00"
"""Every spelling of the name has the word in it, or escapes some letter so."""
_LARGE: Final = 8192
"""Bytes from which RE2 finds a word before `in` does: 1 MiB in 10 to 250 us instead of 490 to 560."""
_WIDE: Final = (b"\0", b"\xff\xfe", b"\xfe\xff")
"""What the first four bytes of a text hold or begin with that is UTF-16 or UTF-32."""
_ORDERS: Final = {"utf-16": ("utf-16-le", "utf-16-be"), "utf-32": ("utf-32-le", "utf-32-be")}
"""Codecs whose order of bytes a mark tells, or else nothing does."""
_QUOTE: Final = b'"'
_ESCAPED_QUOTE: Final = b'\\"'
_NAME_BYTES: Final = NAME.encode()
_FIRST: Final = (b"t", b"\\")
"""What the name may begin with, written out or escaped."""
_CLOSED: Final = (b"\n", b"}")
"""What stands in no part of the name."""
_BLANK: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"
_JSON_STARTS: Final = (b"{", b"[")
_LIKE_ASCII: Final = frozenset(
    {"utf-8", "ascii", "iso8859-1", "iso8859-15", "cp1252"}
    # Each letter of the name stands for itself, and to decode them takes long.
    | {"punycode", "idna"}
)
"""Python's codecs for charsets in which the name has the same bytes as in ASCII."""
_LONGEST: Final = 2 + 6 * len(NAME)
"""bytes: no spelling of the name is longer."""
_BEFORE: Final = 2
"""Bytes that passed already and are looked at with the next piece: a quote, and what may escape it."""
_MOST_HELD: Final = 4096
"""bytes held back while it is open whether a string is a name; a longer gap is taken to end in a colon."""


def _spelling(letter: str) -> bytes:
    """Return a pattern of one letter, escaped or not (RFC 8259, section 7)."""
    plain = r"\\?/" if letter == "/" else letter
    return rf"(?:{plain}|\\u00(?i:{ord(letter):02x}))".encode()


# A quote within a string is escaped, and one that ends a string has no letter behind it: what
# matches can only be a whole string of its own.
_STRING: Final = rb'(?<!\\)"' + b"".join(map(_spelling, NAME)) + b'"'
_MEMBER: Final = re.compile(_STRING + rb"[ \t\r\n]*:")
_MASKED: Final = re.compile(rb'(?<!\\)"turnlog/forged" *[ \t\r\n]*:')
_OPEN: Final = rb"(%b)([ \t\r\n]*)(?::|(\Z))" % _STRING
# Between tokens of an event's data its lines may end, and other fields stand (WHATWG HTML, 9.2.6).
# A field may have any name: what a client does not know it skips.
_OTHER: Final = rb"(?<=[\r\n])(?!data:)[^\r\n]++(?=[\r\n])"
_OPEN_IN_EVENTS: Final = (
    rb"(%b)((?:[\r\n]|(?<![\r\n])[ \t]|(?<=[\r\n])data:|%b)*)(?:(?<![\r\n]):|((?:(?<=[\r\n])(?!data:)[^\r\n]*)?\Z))"
    % (_STRING, _OTHER)
)
_PASSING: Final = (re.compile(_OPEN), re.compile(_OPEN_IN_EVENTS))
_ESCAPED: Final = re.compile(rb"\\(?:u00([0-9A-Fa-f]{2})|/)")
_CUT_ESCAPE: Final = re.compile(rb"\\(?:u0?0?[0-9A-Fa-f]?)?\Z")


def has_hint(text: bytes) -> bool:
    """Return whether the name may stand in a text; false for almost every text, and cheap."""
    is_written = _WORD_SEARCH.is_in_bytes(text) if len(text) > _LARGE else _WORD_BYTES in text
    # Most large texts without one backslash are passed over at the speed of memory.
    return is_written or (_BACKSLASH in text and _ESCAPE in text)


def is_wide(text: bytes) -> bool:
    """Return whether a text is UTF-16 or UTF-32, which is not searched."""
    return _WIDE[0] in text[:4] or text.startswith(_WIDE[1:])


def holds_json(start: bytes) -> bool | None:
    """Return whether a text begins as JSON does; `None` where only blanks have come.

    A byte order mark counts as a blank: some clients read past it.
    """
    begun = start.removeprefix(_BOM).lstrip()[:1]
    return begun in _JSON_STARTS if begun else None


def without_outcome(text: bytes) -> bytes | None:
    """Return a whole JSON text without members of that name; `None` where it has none."""
    return _without(text, _MEMBER) if has_hint(text) else None


def without_mask(text: bytes) -> bytes | None:
    """Return a whole JSON text without the members whose name was overwritten; `None` for none."""
    return _without(text, _MASKED)


def _without(text: bytes, member: re.Pattern[bytes]) -> bytes | None:
    kept: list[bytes] = []
    done = 0
    while (found := member.search(text, done)) is not None:
        before = text[done : found.start()].rstrip(_BLANK)
        end = value_end(text, past_space(text, found.end()))
        if end < 0:
            end = len(text)  # the text is cut, and no JSON in any case
        if before.endswith(b","):
            before = before[:-1]
        else:
            before = text[done : found.start()]
            comma = past_space(text, end)
            end = comma + 1 if text.startswith(b",", comma) else end
        kept.append(before)
        done = end
    return b"".join([*kept, text[done:]]) if done else None


class OtherReadings:
    """Searches a body for the name as some clients may read it, whatever its sender meant.

    A client that does not know a content coding takes the body as it came, and some clients (httpx
    for events, requests for JSON) decode a text by the charset that its media type names.
    """

    __slots__ = ("_coded", "_texts")

    def __init__(
        self, charsets: Iterable[str], *, is_coded: bool, in_events: bool, looks: bool
    ) -> None:
        """`in_events` and `looks` are those of `mask_for`."""
        self._coded = mask_for(in_events=in_events, looks=looks) if is_coded else None
        """Of the body as it came."""
        self._texts = [
            (decoder, mask_for(in_events=in_events, looks=looks))
            for charset in charsets
            for decoder in _decoders_of(charset)
        ]

    @property
    def found(self) -> bool:
        """Whether the name was found, so far."""
        in_coded = self._coded is not None and self._coded.found
        return in_coded or any(mask.found for _, mask in self._texts)

    def feed(self, raw: bytes, text: bytes) -> None:
        """Search a piece as it came, and as it reads without its content coding."""
        if self._coded is not None:
            self._coded.feed(raw)
        for each in tuple(self._texts):
            decoder, mask = each
            try:
                decoded = decoder.decode(text)
            except ValueError:  # "replace" is not for all that a codec may find wrong
                self._texts.remove(each)
            else:
                mask.feed(decoded.encode("utf-8", "replace"))


def _decoders_of(charset: str) -> list[codecs.IncrementalDecoder]:
    """Return decoders for a charset in which the name may have other bytes than in ASCII."""
    try:
        known = codecs.lookup(charset)
        if known.name in _LIKE_ASCII:
            return []
        names = _ORDERS.get(known.name, (known.name,))
        decoders = [codecs.getincrementaldecoder(name)("replace") for name in names]
        # What is no charset but another coding of Python's, as `zip` is, gives bytes or fails.
        return [each for each in decoders if isinstance(cast("object", each.decode(b"")), str)]
    except Exception:  # noqa: BLE001 - a codec may raise anything at what is no charset
        return []


class OutcomeMask:
    """Overwrites the name where it is a member's, in text that passes in pieces.

    The text is JSON, or with `in_events` a stream of events that hold some. With `looks` it is JSON
    only if it begins so. What comes out has the same length.
    """

    __slots__ = ("_held", "_looks", "_open", "_passed", "_pattern", "found", "passes")

    def __init__(self, *, in_events: bool = False, looks: bool = False) -> None:
        self._pattern = _PASSING[in_events]
        self._looks = looks
        """Whether it is open if the text is JSON."""
        self.passes = False
        """Whether it is none, and passes unsearched."""
        self._held = b""
        """What may yet turn out to be the name."""
        self._passed = b""
        """The end of what came before that."""
        self._open = -1
        """Where the name stands at the end of a text, so that it is open whether a colon follows."""
        self.found = False
        """Whether the name was found, so far."""

    def feed(self, piece: bytes) -> bytes:
        """Search a piece; return what can go on of it and of what was held back."""
        if self._looks and (is_json := holds_json(piece)) is not None:
            self._looks, self.passes = False, not is_json
        if self.passes:
            return piece
        may_go_on = self._held or (len(piece) < _LONGEST and self._passed.endswith(_QUOTE))
        if not may_go_on and not has_hint(piece):
            # Most pieces end where nothing begins that may go on as the name.
            text, start = piece, 0
            stop = len(piece) if piece.endswith(_CLOSED) else _sure(piece)
        else:
            text, start = self._passed + self._held + piece, len(self._passed)
            self._open = -1
            if has_hint(text):
                text = self._pattern.sub(self._overwritten, text)
            stop = self._open if self._open >= 0 else _sure(text)
        self._held = text[stop:]
        self._passed = text[max(stop - _BEFORE, 0) : stop]
        return text if not start and stop == len(text) else text[start:stop]

    def finish(self) -> bytes:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, b""
        return held

    def _overwritten(self, match: re.Match[bytes]) -> bytes:
        if match[3] is not None and match.end() - match.end(1) < _MOST_HELD:
            self._open = match.start() + 1
            return match[0]
        self.found = True
        size = len(match[1])
        return MASK.ljust(size) + match[0][size:]


class EitherMask:
    """Overwrites the name in a body that is JSON for one client and a stream of events for another.

    `{` alone in a line is a field that readers of events skip (WHATWG HTML, 9.2.6).
    """

    __slots__ = ("_events", "_json")

    passes = False
    """Whether it passes unsearched: never, it is looked for both ways."""

    def __init__(self) -> None:
        self._json = OutcomeMask()
        self._events = OutcomeMask(in_events=True)

    @property
    def found(self) -> bool:
        """Whether the name was found, so far."""
        return self._json.found or self._events.found

    def feed(self, piece: bytes) -> bytes:
        """Search a piece; return what can go on of it and of what was held back."""
        return self._events.feed(self._json.feed(piece))

    def finish(self) -> bytes:
        """Return what was held back, at the end of the text."""
        return self._events.feed(self._json.finish()) + self._events.finish()


def mask_for(*, in_events: bool, looks: bool) -> OutcomeMask | EitherMask:
    """Return what overwrites the name in a body of which its media type alone is known."""
    return EitherMask() if in_events else OutcomeMask(looks=looks)


def _sure(text: bytes) -> int:
    """Return where the start of the name stands at the end of a text, behind its quote, or the text's end."""
    size = len(text)
    begin = text.rfind(_QUOTE, max(size - _LONGEST, 0)) + 1
    if (
        not begin
        or text[begin : begin + 1] not in _FIRST
        or text[begin - 2 : begin] == _ESCAPED_QUOTE
    ):
        return size
    plain = _ESCAPED.sub(_unescaped, _CUT_ESCAPE.sub(b"", text[begin:]))
    return begin if _NAME_BYTES.startswith(plain) else size


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode()) if match[1] else b"/"
