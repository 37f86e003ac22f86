"""The texts in a content: strings and larger numbers of JSON, or all of any other text."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

SHORTEST: Final = 4
"""Characters of the shortest value, and digits of the shortest number."""
PHRASE: Final = 12
"""Characters of the shortest value of several words, or of letters alone."""
PIECE: Final = 2048
"""Characters of a long text that are looked at in one step, which takes some 100 us."""

_decode = msgspec.json.Decoder().decode
_CONTAINERS: Final = (dict, list)
_NUMBERS: Final = (int, float)
# Escapes in JSON that does not parse, mostly because it was cut. A capital begins a part of a path.
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[bfnrt\"/])")
_PIECES: Final = re.compile(rf"(?s).{{1,{PIECE - 1}}}(?:\s|\Z)|.{{1,{PIECE}}}")
# Characters of a name, and of the pointer before it: leaves further down have the pointer of what they
# are in. Each leaf keeps its pointer in memory, and outputs are chosen by others.
_LONGEST: Final = 200
_Waiting = tuple[str, Any, bool]  # a pointer, a value, and whether it is not in a text itself


def leaves(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the JSON Pointer and the text of each string and larger number of a JSON text.

    Any other text is one leaf. JSON inside a string is read as well: its leaves have the pointer of that
    string, and what is very far down that of a value around it. A key that is not a mere name is a leaf. What is too short for a value is left out,
    and a long text comes in pieces.
    """
    try:
        value = _decode(content)
    except (ValueError, RecursionError):
        value = content.decode("utf-8", "replace")
        value = _ESCAPE.sub(" ", value) if "\\" in value else value
    # No recursion: the sender chooses how deep values are nested.
    waiting: list[_Waiting] = [("", value, True)]
    while waiting:
        pointer, item, outside = waiting.pop()
        if isinstance(item, str):
            if len(item) < SHORTEST or (len(item) < PHRASE and item.isalpha()):
                continue
            if (len(item) > PIECE or item[0] in "{[") and (
                within := _within(pointer, item, outside=outside)
            ):
                waiting += within
            else:
                yield pointer, item
        elif type(item) in _CONTAINERS:
            waiting += _inside(pointer, item, outside=outside and len(pointer) < _LONGEST)
        elif type(item) in _NUMBERS and (number := _number(item)):
            yield pointer, number


def _within(pointer: str, text: str, *, outside: bool) -> list[_Waiting]:
    """Return what to read in place of a text: JSON in it, or the pieces of a long one."""
    if outside and text[0] in "{[" and (inner := _json_in(text)) is not None:
        return [(pointer, inner, False)]
    if len(text) <= PIECE:
        return []
    return [(pointer, piece, False) for piece in reversed(_PIECES.findall(text))]


def _json_in(text: str) -> Any:
    """Return the object or array written in a string; `None` if it is neither."""
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        return None


def _inside(pointer: str, item: dict[str, Any] | list[Any], *, outside: bool) -> list[_Waiting]:
    """Return the members of a container, last first, as the last one waiting is next."""
    members: list[_Waiting]
    if isinstance(item, list):
        if outside:
            members = [(f"{pointer}/{number}", member, True) for number, member in enumerate(item)]
        else:
            members = [(pointer, member, False) for member in item]
    else:
        members = []
        for name, member in item.items():
            if len(name) > _LONGEST:
                members += [(pointer, name, False), (pointer, member, False)]
            elif name.isidentifier():
                members.append((f"{pointer}/{name}" if outside else pointer, member, outside))
            else:
                below = f"{pointer}/{_escaped(name)}" if outside else pointer
                members += [(below, name, False), (below, member, outside)]
    members.reverse()
    return members


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _number(number: float) -> str:
    """Return the shortest text of a number; empty for a small whole one."""
    if not number % 1 and -1e15 < number < 1e15:
        return str(int(number)) if abs(number) >= 1000 else ""
    return str(number)
