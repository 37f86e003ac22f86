"""JSON text read in place: ends of values, members and items, strings, numbers, shapes.

msgspec reads strict JSON. Anything else (broken or cut JSON, NaN, nesting of any depth) is read by a
scanner that takes any bytes, never raises and does not recurse.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from itertools import accumulate, islice
from struct import Struct as Layout
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from turnlog.core.canon import is_deep

BOM: Final = b"\xef\xbb\xbf"
# The characters of a JSON number or literal, also of an invalid one.
SCALAR: Final = re.compile(rb"[-+.0-9A-Za-z_]+")
NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
LITERAL: Final = re.compile(NUMBER.pattern + rb"|true|false|null|NaN|-?Infinity")
_BLANKS: Final = rb"[ \t\r\n]*+"
_SPACE: Final = re.compile(_BLANKS)
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# A container without others in it, and with few strings.
_FLAT: Final = rb'[\[{][^"\[\]{}]{0,64}+(?:%b[^"\[\]{}]{0,64}+){0,16}+[\]}]' % _STRING
_STRING_START: Final = re.compile(
    rb'"[^"\\]*+(?:(?:\\u[0-9A-Fa-f]{4}|\\[^u])[^"\\]*+)*+', re.DOTALL
)
_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_ESCAPE: Final = re.compile(_PAIR.pattern + rb"|" + _HALF.pattern + rb"|\\.", re.DOTALL)
_REPLACEMENT: Final = b"\\ufffd"
_BACKSLASH: Final = ord("\\")
_UNREADABLE: Final = "\ufffd"
# Python refuses to make an integer of a longer number, which takes quadratic time.
_DIGITS: Final = 4000
_EMPTY: Final = re.compile(rb"[\[{][ \t\r\n]*[\]}]")
_SMALL: Final = re.compile(rb'[\[{][^"\[\]{}]*(?:"[^"\\]*"[^"\[\]{}]*)*[\]}]')
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_AS_PARENTHESES: Final = bytes.maketrans(b"[]{}", b"()()")
_AS_STEPS: Final = bytes.maketrans(b"()", b"\x01\xff")
# Works for `Raw` and `bytes`: `Raw` has no items, although its type says so.
_first = Layout("c").unpack_from
_first_two = Layout("cc").unpack_from
_QUOTE: Final = (b'"',)
_OPENS: Final = frozenset({b"[", b"{"})
# What may follow the opening bracket of an empty container.
_MAY_BE_EMPTY: Final = frozenset({b"]", b"}", b" ", b"\t", b"\r", b"\n"})
_ENDS_ITSELF: Final = (b'"', b"[", b"{")
NO_MEMBERS: Final[Mapping[str, Raw]] = {}
_FIRST_WINDOW: Final = 256
_WINDOW: Final = 16384

_T = TypeVar("_T", bound=Struct)

_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_value = msgspec.json.Decoder().decode
_decode_string = msgspec.json.Decoder(str).decode
_lax_string = json.JSONDecoder(strict=False).decode


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS else float(digits)


_lax_value = json.JSONDecoder(strict=False, parse_int=_number).decode


class ValueShape(StrEnum):
    """The kind of a value, to tell empty ones from others."""

    ABSENT = "absent"
    NULL = "null"
    EMPTY = "empty"
    """An array or object without members."""
    FULL = "full"
    """An array or object with members."""
    SCALAR = "scalar"


def shape(raw: bytes) -> ValueShape:
    """Return the shape of a value's text; an empty text is an absent value. `{` and `[` alone are full."""
    if not raw:
        return ValueShape.ABSENT
    first, second = _first_two(raw) if len(raw) > 1 else (bytes(raw), b"")
    if first not in _OPENS:
        return ValueShape.NULL if first == b"n" else ValueShape.SCALAR  # only null begins like this
    is_empty = second in _MAY_BE_EMPTY and _EMPTY.fullmatch(raw)
    return ValueShape.EMPTY if is_empty else ValueShape.FULL


def is_string(raw: bytes) -> bool:
    """Return whether a value's text, which must not be empty, is a string."""
    return _first(raw) == _QUOTE


# -- ends of values ----------------------------------------------------------------------------


class Skipper:
    """An incremental search for the end of one array or object.

    Only strings and the number of open brackets are read: `[}` passes, and text between brackets is
    not checked. Memory is bounded, the time linear.
    """

    __slots__ = ("_depth", "_escaped", "_quoted", "_window")

    def __init__(self) -> None:
        self._window = _FIRST_WINDOW
        self._depth = 1
        self._quoted = 0
        self._escaped = False

    def feed(self, data: bytes, start: int) -> int:
        """Continue at `start`; return the end of the container, or -1 if it is not in this piece."""
        size = len(data)
        bound = 0
        quote = -1
        while start < size:
            if self._quoted and quote < start:
                found = data.find(b'"', start)
                quote = size if found < 0 else found
            # Most of a long string is skipped at the speed of memory.
            if self._quoted and quote > start + _FIRST_WINDOW and data[quote - 1] != _BACKSLASH:
                start, self._escaped = quote, False
                continue
            stop = min(start + self._window, size)
            if self._pass(data[start:stop]):
                start = stop
                # Windows grow, so that the work is linear in the length of the container.
                self._window = min(2 * self._window, max(bound - start, 1) if bound else _WINDOW)
            elif stop - start == 1:
                return stop
            else:
                bound = stop
                self._window = (stop - start) // 2
        return -1

    def _pass(self, window: bytes) -> bool:
        """Skip a window unless the container ends in it."""
        text = window[1:] if self._escaped and window[0] in b'"\\' else window
        escaped = False
        if b"\\" in text:
            # Pairs first: what remains of a run of backslashes is one that escapes, or none.
            text = text.replace(b"\\\\", b"")
            escaped = text.endswith(b"\\")
            text = text.replace(b'\\"', b"")
        parts = text.split(b'"')
        brackets = b"".join(parts[self._quoted :: 2]).translate(_AS_PARENTHESES, _NO_BRACKETS)
        # A pair that opens and closes at once changes neither the depth nor its minimum: removing
        # such pairs first is far faster than counting them.
        brackets = brackets.replace(b"()", b"").replace(b"()", b"").replace(b"()", b"")
        if brackets:
            steps = memoryview(brackets.translate(_AS_STEPS)).cast("b")
            depths = list(accumulate(steps, initial=self._depth))
            if min(depths) <= 0:
                return False
            self._depth = depths[-1]
        self._quoted ^= (len(parts) - 1) & 1
        self._escaped = escaped
        return True


def string_end(data: bytes, start: int, *, escaped: bool = False) -> tuple[int, bool]:
    """Return the end of a string whose opening quote is before `start`.

    That is the position after the closing quote, or -1; and whether the text ends between a backslash
    and the character that it escapes. `escaped` is that result for the earlier piece of the string.
    """
    place = start + 1 if escaped else start
    window = _FIRST_WINDOW
    while True:
        quote = data.find(b'"', place)
        part = data[place:] if quote < 0 else data[place:quote]
        odd = (len(part) - len(part.rstrip(b"\\"))) & 1 == 1
        if quote < 0:
            return -1, odd
        if not odd:
            return quote + 1, False
        # If one quote is escaped, many are: JSON inside a string.
        place = _past_escapes(data, quote + 1, window)
        window = min(2 * window, _WINDOW) if place > quote + 1 else _FIRST_WINDOW


def _past_escapes(data: bytes, start: int, size: int) -> int:
    """Return the end of a window if the string goes on through all of it, else `start`."""
    window = data[start : start + size]
    text = window.replace(b"\\\\", b"")
    if text.endswith(b"\\"):
        text, window = text[:-1], window[:-1]
    return start if b'"' in text.replace(b'\\"', b"") else start + len(window)


def value_end(data: bytes, start: int) -> int:
    """Return the end of the value that begins at `start`, or -1. Containers are not checked."""
    first = data[start : start + 1]
    if first == b'"':
        return string_end(data, start + 1)[0]
    if first in (b"{", b"["):
        # Most containers are small and contain no others.
        if small := _SMALL.match(data, start, start + _FIRST_WINDOW):
            return small.end()
        return Skipper().feed(data, start + 1)
    found = SCALAR.match(data, start)
    return found.end() if found else -1


def past_space(data: bytes, start: int) -> int:
    """Return the position of the first byte from `start` on that is not white space."""
    found = _SPACE.match(data, start)
    return found.end() if found else start


# -- members and items -------------------------------------------------------------------------


def members(raw: bytes) -> dict[str, Raw]:
    """Return an object's members as text, the last of equal keys; nothing for another value."""
    try:
        return _decode_members(raw)
    except (ValueError, RecursionError):
        return dict(scan_members(bytes(raw)))


def items(raw: bytes) -> list[Raw]:
    """Return an array's items as text; nothing for another value."""
    found = decode_items(raw)
    return scan_items(bytes(raw)) if found is None else found


def decode_items(raw: bytes) -> list[Raw] | None:
    """Return an array's items as text; `None` if it is not an array or not strict JSON."""
    try:
        return _decode_items(raw)
    except (ValueError, RecursionError):
        return None


def load(kind: type[_T], raw: bytes) -> _T:
    """Read an object into a Struct whose fields are all `Raw`, empty where absent.

    All fields are empty for any other value.
    """
    if not raw:
        return kind()
    try:
        found: _T = _decoder(kind)(raw)
    except (ValueError, RecursionError):
        return pick(kind, members(raw))
    return found


def pick(kind: type[_T], found: Mapping[str, Raw]) -> _T:
    """Fill a Struct of `Raw` fields from the members that it has fields for."""
    return kind(**{name: found[key] for name, key in _names(kind) if key in found})


@cache
def _names(kind: type[Struct]) -> list[tuple[str, str]]:
    """Return the names of a Struct's fields, in Python and in JSON."""
    return [(field.name, field.encode_name) for field in msgspec.structs.fields(kind)]


@cache
def _decoder(kind: type[Struct]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind).decode


def scan_members(raw: bytes) -> list[tuple[str, Raw]]:
    """Return an object's members, equal keys too, as far as the text goes."""
    return [(name, Raw(raw[start:end])) for name, start, end in member_spans(raw)]


def named_spans(raw: bytes, name: str, start: int = 0) -> list[tuple[int, int]]:
    """Return start and end of the values of an object's members with this name.

    Like `member_spans`, but runs of other simple members are skipped at once.
    """
    found = member_spans(raw, start, skipped=simple_members((name,)))
    return [(begin, end) for key, begin, end in found if key == name]


def member_spans(
    raw: bytes,
    start: int = 0,
    *,
    known: Mapping[str, Raw] = NO_MEMBERS,
    skipped: re.Pattern[bytes] | None = None,
) -> Iterator[tuple[str, int, int]]:
    """Yield an object's members, also with equal keys: name, start and end of the value.

    The object begins at `start`, after optional white space; a byte order mark may precede the text.
    Stops where the text is not an object. `known` holds likely values by name.
    """
    place = _after(raw, start or _past_mark(raw), b"{")
    while place >= 0:
        if skipped is not None and (run := skipped.match(raw, place)):
            place = run.end()
        key_start = _after(raw, place, b'"')
        key_end = string_end(raw, key_start)[0] if key_start >= 0 else -1
        colon = _after(raw, key_end, b":") if key_end >= 0 else -1
        if colon < 0:
            return
        name = decode_string(raw[key_start - 1 : key_end])
        value = past_space(raw, colon)
        end = _known_end(raw, value, known[name]) if name in known else value_end(raw, value)
        if end < 0:
            return
        yield name, value, end
        place = _after(raw, end, b",")


@cache
def simple_members(names: tuple[str, ...], *, objects: bool = False) -> re.Pattern[bytes]:
    """Return a pattern of a run of simple members with other names than these.

    With `objects` it is a run of array items that are objects of such members. A million members then
    take a tenth of a second instead of more than two.
    """
    wanted = b"|".join(re.escape(name.encode()) for name in names)
    value = rb"(?:%b|%b|%b)" % (_STRING, LITERAL.pattern, _FLAT)
    member = rb'%b"(?!(?:%b)")[^"\\]*+"%b:%b%b%b' % (
        _BLANKS,
        wanted,
        *(_BLANKS,) * 2,
        value,
        _BLANKS,
    )
    item = rb"%b\{(?:%b,)*+(?:%b)?%b\}%b" % (_BLANKS, member, member, *(_BLANKS,) * 2)
    return re.compile(rb"(?:%b,)++" % (item if objects else member), re.DOTALL)


def _known_end(raw: bytes, start: int, known: Raw) -> int:
    """Return the end of a value by comparing it with likely ones, which is far faster than a scan."""
    value = bytes(known)
    # A number that begins like this may continue.
    is_same = value[:1] in _ENDS_ITSELF and raw.startswith(value, start)
    return start + len(value) if is_same else value_end(raw, start)


def scan_items(raw: bytes) -> list[Raw]:
    """Return an array's items in order, as far as the text goes."""
    return [Raw(raw[start:end]) for start, end in item_spans(raw)]


def item_spans(raw: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each item of an array, as far as the text goes."""
    place = _after(raw, _past_mark(raw), b"[")
    while place >= 0:
        start = past_space(raw, place)
        end = value_end(raw, start)
        if end < 0:
            return
        yield start, end
        place = _after(raw, end, b",")


def _past_mark(raw: bytes) -> int:
    return len(BOM) if raw.startswith(BOM) else 0


def _after(data: bytes, start: int, mark: bytes) -> int:
    place = past_space(data, start)
    return place + 1 if data.startswith(mark, place) else -1


# -- equal keys --------------------------------------------------------------------------------


def repeats_member(raw: bytes, found: Mapping[str, Raw], limit: int) -> bool:
    """Return whether two of an object's first `limit` members have the same key.

    `found` is what `members` returns of it.
    """
    if is_bare(raw, found):
        return False
    names = [name for name, _, _ in islice(member_spans(raw, known=found), limit)]
    return len(set(names)) != len(names)


def is_bare(raw: bytes, found: Mapping[str, bytes]) -> bool:
    """Return whether an object's text has the length of these members written once each.

    Blanks, escapes in keys and equal keys would make it longer.
    """
    size = 1
    for name, value in found.items():
        if _UNREADABLE in name:
            return False  # it may encode fewer bytes than it has
        size += len(name.encode()) + len(value) + 4  # two quotes, a colon, and a comma or bracket
    return size == len(raw)


# -- values ------------------------------------------------------------------------------------


def value_of(raw: bytes) -> object:
    """Return the plain values of a JSON text; `None` if it is not JSON."""
    try:
        return _decode_value(raw)
    except (ValueError, RecursionError):
        return None


def read_value(raw: bytes, otherwise: object = None) -> object:
    """Return the plain values of a text, read as tolerantly as possible.

    Lone surrogates and bytes that are not UTF-8 become U+FFFD, and numbers that are too large become
    infinite. `otherwise` is returned for anything else, and for nesting deeper than `MAX_DEPTH`.
    """
    if is_deep(bytes(raw)):
        return otherwise
    try:
        return _decode_value(raw)
    except (ValueError, RecursionError):
        pass
    text = _ESCAPE.sub(_whole_escape, bytes(raw).removeprefix(BOM))
    try:
        found: object = _lax_value(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return otherwise
    return found


def _whole_escape(found: re.Match[bytes]) -> bytes:
    """Return an escape; that of U+FFFD for a lone surrogate."""
    return _REPLACEMENT if len(found[0]) == len(_REPLACEMENT) else found[0]


def decode_string(token: bytes) -> str:
    """Return the text of a JSON string with its quotes; lone surrogates become U+FFFD."""
    if b"\\" not in token:
        return token[1:-1].decode("utf-8", "replace")
    try:
        return _decode_string(token)
    except ValueError:
        pass
    try:
        text: str = _lax_string(token.decode("utf-8", "replace"))
    except ValueError:
        return token[1:-1].decode("utf-8", "replace")
    return without_surrogates(text)


def without_surrogates(text: str) -> str:
    """Return `text` with every lone surrogate replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def has_lone_surrogate(data: bytes) -> bool:
    """Return whether a JSON text escapes a lone surrogate."""
    if b"\\u" not in data:
        return False
    text = data.replace(b"\\\\", b"..")
    return _HALF.search(_PAIR.sub(b"", text)) is not None


def text_of(raw: bytes, limit: int = 4096) -> str:
    """Return a string value's text, cut to `limit` characters; empty for any other value.

    `raw` may have lost its end; 12 bytes are enough for any one character.
    """
    if not raw or _first(raw) != _QUOTE:
        return ""
    try:
        text = _decode_string(raw)
    except ValueError:
        return _tolerant_text(bytes(raw), limit)
    return text if len(text) <= limit else text[:limit]


def _tolerant_text(raw: bytes, limit: int) -> str:
    """Return the readable part of a string that the decoder refuses."""
    if b"\\" not in raw and raw.endswith(b'"') and len(raw) > 1:
        return raw[1:-1].decode("utf-8", "replace")[:limit]
    whole = _STRING_START.match(raw[: 12 * limit + 12])
    return decode_string(whole[0] + b'"')[:limit] if whole else ""


def integer_of(raw: bytes) -> int | None:
    """Return a whole number of at most 64 bits (`5`, `5.0`, `5e0`), else nothing."""
    if len(raw) > 32 or not NUMBER.fullmatch(raw):
        return None
    if raw.lstrip(b"-").isdigit():
        number = int(raw)
    else:
        value = float(raw)
        if not value.is_integer():
            return None
        number = int(value)
    return number if -(1 << 63) <= number < 1 << 63 else None
