"""Tell which results of a `tools/call` say nothing, by one look at their content."""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from turnlog.wire.json.rawjson import Shape, load, members, shape

from .content import only_texts
from .error_text import looks_like_error

_NO_VALUES: Final = frozenset({b"0", b"false", b'""'})
_NULL_TEXTS: Final = frozenset({"null", "None", "undefined", "NaN", "[object Object]"})
_Value = dict[str, Any] | list[Any] | str | float | None
_OF_TEXTS: Final = frozenset({"content", "isError", "_meta"})
"""Members of a result that is nothing but texts."""
_LONGEST_NULL_TEXT: Final = 15
_NULL_LIMIT: Final = 4096
"""Bytes of `content`, and of structured content, up to which they are read."""
_ABSENT: Final = Shape.ABSENT
_NULL: Final = Shape.NULL
_EMPTY: Final = Shape.EMPTY
_FULL: Final = Shape.FULL
_SCALAR: Final = Shape.SCALAR
_UNSAID: Final = frozenset({_ABSENT, _NULL})


class Look(Struct, frozen=True, kw_only=True, gc=False):
    """What the content of a result tells that is an object, or null."""

    nothing: bool = False
    """Whether there is nothing to read (semantics, section 3)."""
    void: bool = False
    """Whether it has a shape that the protocol forbids: `null`, `{}`, no content of any kind."""
    empty: bool = False
    """Whether its structured content is a value that holds nothing: `[]`, `{}`, 0, false, ""."""
    harmless: bool = False
    """Whether its text is known not to begin like an error; else that is still to be seen."""


_VOID: Final = Look(nothing=True, void=True)


class _Result(Struct, gc=False):
    structured: Raw = msgspec.field(name="structuredContent", default=Raw())


def look_at(whole: bytes, content: Raw, structured: Raw) -> Look:
    """Look at a result, which is an object or null: all of it, and two of its members."""
    if not content and not structured and shape(whole) is not _FULL:
        return _VOID
    texts = only_texts(content) if content and len(content) <= _NULL_LIMIT else None
    value = _unwrapped(structured) if structured else structured
    held = shape(value) if value else _ABSENT
    empty = held is _EMPTY or (held is _SCALAR and bytes(value) in _NO_VALUES)
    if texts is not None:
        text = "\n".join(texts)
        return Look(
            nothing=held in _UNSAID and _is_blank(text.strip(), alone=len(texts) == 1),
            empty=empty,
            harmless=not looks_like_error(text),
        )
    found = shape(content)
    return Look(
        nothing=held in _UNSAID and found is not _SCALAR and found is not _FULL,
        void=found in _UNSAID and shape(structured) in _UNSAID,
        empty=empty,
    )


def is_spoken(result: _Value) -> bool:
    """Tell whether a result, as plain values, is nothing but texts that say something, as most are, and
    that do not begin like an error: then there is nothing more to find in it."""
    if not isinstance(result, dict) or not result.keys() <= _OF_TEXTS or result.get("isError"):
        return False
    texts = _texts(result.get("content"))
    text = "\n".join(texts)
    return not _is_blank(text.strip(), alone=len(texts) == 1) and not looks_like_error(text)


def _texts(content: _Value) -> list[str]:
    """Return the texts of plain content; none where it holds anything else."""
    texts: list[str] = []
    block: _Value
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict) or block.get("type") != "text":
            return []
        text = block.get("text")
        if not isinstance(text, str):
            return []
        texts.append(text)
    return texts


def is_structured(result: bytes) -> bool:
    """Tell whether a `tools/call` result has structured content that says something."""
    found = load(_Result, result).structured
    return bool(found) and shape(_unwrapped(found)) is not _NULL


def _unwrapped(structured: Raw) -> Raw:
    """Return the value of structured content: servers wrap what is no object as `{"result": value}`."""
    if len(structured) > _NULL_LIMIT or shape(structured) is not _FULL:
        return structured
    inner = members(structured)
    return inner.get("result", structured) if len(inner) == 1 else structured


def _is_blank(word: str, *, alone: bool) -> bool:
    """Tell whether all there is to read, without the white space around it, is a word for nothing."""
    return not word or (alone and len(word) <= _LONGEST_NULL_TEXT and word in _NULL_TEXTS)
