"""Read the texts of answers: what a rule looks at, and what looks like an error."""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from .rawjson import items, load, members, text_of

TEXT_LIMIT = 64 * 1024
"""Characters of an answer's text that rules look at."""
LOOKED_AT: Final = 200
"""Characters of a text that tell whether it looks like an error."""
_STARTS: Final = (
    "error:",
    "error executing",
    "error calling",
    "exception:",
    "fatal error:",
    "internal server error",
    "traceback (most recent call last)",
    "unhandled exception",
)
_LONGEST_START: Final = max(map(len, _STARTS))
_FIRST_LETTERS: Final = frozenset(start[:2] for start in _STARTS)
_TEXT: Final = Raw(b'"text"')
_HEAD = 512
"""Bytes at the start of an answer that a sign of an error has to stand in."""
_NAME = b'"iserror"'
_MEMBER = b'"error"'
_NO_ERRORS = frozenset({b"", b"null", b"false", b"0", b'""', b"[]", b"{}"})


class _Result(Struct, gc=False):
    content: Raw = Raw()


class _Block(Struct, gc=False):
    type: Raw = Raw()
    text: Raw = Raw()


class _TextBlock(Struct, gc=False):
    type: Raw = Raw()
    text: str = ""


class _Error(Struct, gc=False):
    message: Raw = Raw()
    data: Raw = Raw()


_decode_texts = msgspec.json.Decoder(list[_TextBlock]).decode


def text_of_result(result: bytes, limit: int = TEXT_LIMIT) -> str:
    """Return the texts of a `tools/call` result, one below the other, cut to `limit` characters."""
    found: list[str] = []
    room = limit
    for raw in items(load(_Result, result).content):
        block = load(_Block, raw)
        if room > 0 and block.type == _TEXT:
            found.append(text_of(block.text, room))
            room -= len(found[-1])
    return "\n".join(found)[:limit]


def blocks_of_result(result: bytes) -> list[Raw]:
    """Return the blocks of a `tools/call` result's content."""
    return items(load(_Result, result).content)


def only_text(result: bytes) -> str | None:
    """Return the texts of a `tools/call` result, one below the other; `None` where it has other blocks,
    or none."""
    texts = only_texts(load(_Result, result).content)
    return None if texts is None else "\n".join(texts)


def only_texts(content: Raw) -> list[str] | None:
    """Return the texts of a result's content; `None` where it has other blocks, or none."""
    try:
        blocks = _decode_texts(content)
    except (ValueError, RecursionError):
        blocks = [_text_block(load(_Block, raw)) for raw in items(content)]
    texts: list[str] = []
    for block in blocks:
        if block.type != _TEXT:
            return None
        texts.append(block.text)
    return texts or None


def _text_block(block: _Block) -> _TextBlock:
    return _TextBlock(block.type, text_of(block.text, len(block.text)))


def text_of_error(error: bytes) -> str:
    """Return the message of a JSON-RPC error, and its data where that is a text."""
    found = load(_Error, error)
    texts = (text_of(raw, TEXT_LIMIT) for raw in (found.message, found.data))
    return "\n".join(text for text in texts if text)


def text_of_body(body: bytes) -> str:
    """Return the start of a body as text."""
    return body[:TEXT_LIMIT].decode("utf-8", "replace")


def looks_like_error(text: str) -> bool:
    """Tell whether a text begins as programs begin to speak of an error of theirs."""
    start = text[:LOOKED_AT].lstrip()
    # Two letters tell of most that they do not.
    if start[:2].lower() not in _FIRST_LETTERS:
        return False
    return start[:_LONGEST_START].lower().startswith(_STARTS)


def hints_at_error(start: bytes) -> bool:
    """Tell whether a closer look at an answer may find that it speaks of an error."""
    head = start[:_HEAD].lower().replace(_NAME, b"")
    return b"rror" in head or b"xception" in head or b"traceback" in head


def has_error_member(body: bytes) -> bool:
    """Tell whether a JSON object has a top-level member `error` that says something."""
    # `in` costs five times as much.
    if len(body) > TEXT_LIMIT or body.find(_MEMBER) < 0:
        return False
    return bytes(members(body).get("error", b"")) not in _NO_ERRORS
