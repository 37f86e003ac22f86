"""Tell which results of a `tools/call` say nothing."""

import msgspec
from msgspec import Raw, Struct

from .rawjson import Shape, items, load, members, shape, text_of

_NO_VALUES = frozenset({b"0", b"false", b'""'})
_NULL_TEXTS = frozenset({"null", "None", "undefined", "NaN", "[object Object]"})
_LONGEST_NULL_TEXT = 15
_NULL_LIMIT = 4096
"""Bytes of `content` up to which its texts are read."""


class _Block(Struct):
    type: Raw = Raw()
    text: Raw = Raw()


_decode_blocks = msgspec.json.Decoder(list[_Block]).decode


def says_nothing(outer: Shape, content: Raw, structured: Raw) -> bool:
    """Tell whether an object, or null, of shape `outer` has nothing to read (semantics, section 3)."""
    if outer is not Shape.FULL:
        return True
    if structured and not is_nullish(structured):
        return False
    found = shape(content)
    if found is Shape.FULL:
        return len(content) <= _NULL_LIMIT and _is_blank(content)
    return found is not Shape.SCALAR


def is_empty(structured: Raw) -> bool:
    """Tell whether structured content is a value that holds nothing: `[]`, `{}`, 0, false, "".

    Servers wrap what is no object as `{"result": value}`.
    """
    match shape(structured):
        case Shape.EMPTY:
            return True
        case Shape.FULL:
            inner = members(structured) if len(structured) <= _NULL_LIMIT else {}
            value = bytes(inner.get("result", b"")) if len(inner) == 1 else b""
            return shape(value) is Shape.EMPTY or value in _NO_VALUES
        case _:
            return bytes(structured) in _NO_VALUES


def is_nullish(structured: Raw) -> bool:
    """Tell whether structured content is null, or the `{"result": null}` of a Python `None`."""
    if shape(structured) is Shape.NULL:
        return True
    found = members(structured) if len(structured) <= _NULL_LIMIT else {}
    return len(found) == 1 and bytes(found.get("result", b"")) == b"null"


def _is_blank(content: Raw) -> bool:
    """Tell whether all there is to read is white space, or one word for nothing."""
    try:
        blocks = _decode_blocks(content)
    except (ValueError, RecursionError):
        blocks = [load(_Block, raw) for raw in items(content)]
    if not blocks:
        # The content of a skimmed answer: there is some, more is not known.
        return False
    words: list[str] = []
    for block in blocks:
        word = text_of(bytes(block.text), _NULL_LIMIT).strip()
        if len(word) > _LONGEST_NULL_TEXT or bytes(block.type) != b'"text"':
            return False
        if word:
            words.append(word)
    return not words or (len(blocks) == 1 and words[0] in _NULL_TEXTS)
