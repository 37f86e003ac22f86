"""The texts in a content: strings and larger numbers of JSON, or all of any other text."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

SHORTEST: Final = 4
"""Characters of the shortest value, and digits of the shortest number."""
PHRASE: Final = 12
"""Characters of the shortest value of several words, or of letters alone."""
PIECE: Final = 2048
"""Characters of a long text that are looked at in one step, which takes some 100 us."""

_CONTAINERS: Final = (dict, list, tuple)
_NUMBERS: Final = (int, float)
_EXACT: Final = 16  # characters of a fraction up to which it keeps its digits as a float


def _fraction(digits: str) -> float | tuple[float, str]:
    """Return a number with a fraction or an exponent, in both forms if it has more digits than a float."""
    return float(digits) if len(digits) <= _EXACT else (float(digits), digits)


_decode = msgspec.json.Decoder(float_hook=_fraction).decode
_validate = msgspec.json.Decoder(msgspec.Raw).decode
# Escapes in JSON that does not parse, mostly because it was cut. A capital begins a part of a path.
_ESCAPE: Final = re.compile(r"\\(?:(u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*)|[bfnrt\"/])")
# Characters of a name, and of the pointer before it: leaves further down have the pointer of what they
# are in. Each leaf keeps its pointer in memory, and outputs are chosen by others.
_LONGEST: Final = 200
# Names and values. A value without a name, or in a tuple, which JSON has not, has the pointer of what it is in.
_Members = Iterable[tuple[str | int | None, Any]]
_Leaves = list[tuple[str, str]]


def leaves(content: bytes) -> _Leaves:
    """Return the JSON Pointer and the text of each string and larger number of a JSON text.

    Any other text is one leaf. JSON inside a string is read as well: its leaves have the pointer of that
    string, and what is very far down that of a value around it. A key that is not a mere name is a leaf.
    What is too short for a value is left out, and a long text comes in pieces.
    """
    found: _Leaves = []
    try:
        value = _decode(content)
        text = _only_text(value) if type(value) in _CONTAINERS else None
        pointer, start = ("", value) if text is None else ("/content/0/text", text)
        _read(found, pointer, [(None, start)], outside=True)
    except (ValueError, RecursionError):
        # No JSON, or nested deeper than anybody would write it.
        text = _ESCAPE.sub(_unescaped, content.decode("utf-8", "replace"))
        found.clear()
        _read(found, "", [(None, text)], outside=True)
    return found


def _only_text(value: dict[str, Any] | list[Any] | tuple[Any, ...]) -> Any:
    """Return the text of a tool's result that is one text, as most are; `None` for any other value."""
    if not isinstance(value, dict) or len(value) != (2 if value.get("isError") is False else 1):
        return None
    content: list[Any] = value.get("content", [])
    item: dict[str, Any] = content[0] if type(content) is list and len(content) == 1 else {}
    is_text = type(item) is dict and len(item) == 2 and item.get("type") == "text"
    return item.get("text") if is_text else None


def is_json(content: bytes) -> bool:
    """Return whether a content is JSON."""
    try:
        _validate(content)
    except (ValueError, RecursionError):
        return False
    return True


def _unescaped(escape: re.Match[str]) -> str:
    """Return the characters for their codes, which are of UTF-16; a blank for any other escape."""
    if escape[1] is None:
        return " "
    return bytes.fromhex(escape[1].replace("\\u", "")[1:]).decode("utf-16-be", "replace")


def _read(found: _Leaves, pointer: str, members: _Members, *, outside: bool) -> None:
    """Add the leaves of a container, which is `outside` of texts."""
    for name, item in members:
        own = f"{pointer}/{name}" if outside and name is not None else pointer
        if type(item) is str:
            size = len(item)
            if size < PHRASE and (size < SHORTEST or item.isalpha()):
                continue
            if size > PIECE or item[0] in "{[":
                _read_text(found, own, item, outside=outside)
            else:
                found.append((own, item))
        elif type(item) in _CONTAINERS:
            inside = _members(item)
            has_own = outside and len(own) < _LONGEST and type(item) is not tuple
            _read(found, own, inside, outside=has_own)
        elif type(item) in _NUMBERS and (number := _number(item)):
            found.append((own, number))


def _read_text(found: _Leaves, pointer: str, text: str, *, outside: bool) -> None:
    """Add the leaves of JSON in a text, or the pieces of a long one."""
    try:
        # The quotes double with each level of JSON in JSON: a text has few.
        inner = _decode(text) if text[0] in "{[" else None
    except (ValueError, RecursionError):
        inner = None
    if inner is not None:
        _read(found, pointer, [(None, inner)], outside=False)
    elif len(text) > PIECE:
        _read(found, pointer, enumerate(_pieces(text)), outside=False)
    else:
        found.append((pointer, text))


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces, which end after white space if there is any."""
    begin = 0
    while piece := text[begin : begin + PIECE]:
        if len(piece) == PIECE and not piece[-1].isspace():
            # A pattern would go back by single characters.
            end = PIECE - len(piece.rsplit(None, 1)[-1])
            piece = piece[:end] if end > 1 else piece
        begin += len(piece)
        yield piece


def _members(item: dict[str, Any] | list[Any] | tuple[Any, ...]) -> _Members:
    """Return the members of a container; among them those of its keys that are leaves."""
    if not isinstance(item, dict):
        return enumerate(item)
    for name in item:
        if len(name) > _LONGEST or not name.isidentifier():
            return _members_and_names(item)
    return item.items()


def _members_and_names(item: dict[str, Any]) -> Iterator[tuple[str | None, Any]]:
    for name, member in item.items():
        if len(name) > _LONGEST:
            yield None, (name, member)
            continue
        escaped = name.replace("~", "~0").replace("/", "~1")
        if not name.isidentifier():
            yield escaped, (name,)
        yield escaped, member


def _number(number: float) -> str:
    """Return the shortest text of a number; empty for a small whole one."""
    if isinstance(number, int) or (not number % 1 and -1e15 < number < 1e15):
        return str(int(number)) if abs(number) >= 1000 else ""
    return str(number)
