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
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[bfnrt\"/])")
_PIECES: Final = re.compile(rf"(?s).{{1,{PIECE - 1}}}(?:\s|\Z)|.{{1,{PIECE}}}")
# Characters of a name, and of the pointer before it: leaves further down have the pointer of what they
# are in. Each leaf keeps its pointer in memory, and outputs are chosen by others.
_LONGEST: Final = 200
_Member = tuple[str, Any, bool]  # a pointer, a value, and whether it is not in a text itself
_RESULT: Final = frozenset({"content", "isError"})


def leaves(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the JSON Pointer and the text of each string and larger number of a JSON text.

    Any other text is one leaf. JSON inside a string is read as well: its leaves have the pointer of that
    string, and what is very far down that of a value around it. A key that is not a mere name is a leaf. What is too short for a value is left out,
    and a long text comes in pieces.
    """
    # No recursion: the sender chooses how deep values are nested.
    levels = [iter([_start(content)])]
    while levels:
        for pointer, item, outside in levels[-1]:
            if type(item) is str:
                if len(item) < SHORTEST or (len(item) < PHRASE and item.isalpha()):
                    continue
                if (len(item) > PIECE or item[0] in "{[") and (
                    within := _within(pointer, item, outside=outside)
                ):
                    levels.append(iter(within))
                    break
                yield pointer, item
            elif type(item) in _CONTAINERS:
                inside = _inside(pointer, item, outside=outside and len(pointer) < _LONGEST)
                levels.append(iter(inside))
                break
            elif type(item) in _NUMBERS and (number := _number(item)):
                yield pointer, number
        else:
            levels.pop()


def _start(content: bytes) -> _Member:
    """Return what a content is, or the only text in it."""
    try:
        value = _decode(content)
    except (ValueError, RecursionError):
        raw = content.decode("utf-8", "replace")
        return "", _ESCAPE.sub(_unescaped, raw) if "\\" in raw else raw, True
    text = _only_text(value) if type(value) in _CONTAINERS else None
    return ("", value, True) if text is None else ("/content/0/text", text, True)


def _only_text(value: dict[str, Any] | list[Any]) -> Any:
    """Return the text of a tool's result that is one text, as most are; `None` for any other value."""
    if isinstance(value, list) or not value.keys() <= _RESULT:
        return None
    content: list[Any] = value.get("content", [])
    if (
        type(content) is not list
        or len(content) != 1
        or type(value.get("isError", False)) is not bool
    ):
        return None
    item: dict[str, Any] = content[0]
    is_text = type(item) is dict and len(item) == 2 and item.get("type") == "text"
    return item.get("text") if is_text else None


def _unescaped(escape: re.Match[str]) -> str:
    """Return a visible ASCII character for its code; a blank for any other escape."""
    code = int(escape[1], 16) if escape[1] else 0
    return chr(code) if 32 < code < 127 else " "


def _within(pointer: str, text: str, *, outside: bool) -> list[_Member]:
    """Return what to read in place of a text: JSON in it, or the pieces of a long one."""
    if outside and text[0] in "{[" and (inner := _json_in(text)) is not None:
        return [(pointer, inner, False)]
    if len(text) <= PIECE:
        return []
    return [(pointer, piece, False) for piece in _PIECES.findall(text)]


def _json_in(text: str) -> Any:
    """Return the object or array written in a string; `None` if it is neither."""
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        return None


def _inside(pointer: str, item: dict[str, Any] | list[Any], *, outside: bool) -> list[_Member]:
    """Return the members of a container."""
    if isinstance(item, list):
        if outside:
            return [(f"{pointer}/{number}", member, True) for number, member in enumerate(item)]
        return [(pointer, member, False) for member in item]
    members: list[_Member] = []
    for name, member in item.items():
        if len(name) > _LONGEST:
            members += [(pointer, name, False), (pointer, member, False)]
        elif name.isidentifier():
            members.append((f"{pointer}/{name}" if outside else pointer, member, outside))
        else:
            below = f"{pointer}/{_escaped(name)}" if outside else pointer
            members += [(below, name, False), (below, member, outside)]
    return members


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _number(number: float) -> str:
    """Return the shortest text of a number; empty for a small whole one."""
    if not number % 1 and -1e15 < number < 1e15:
        return str(int(number)) if abs(number) >= 1000 else ""
    return str(number)
