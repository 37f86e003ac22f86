"""Read the texts of answers: what a rule looks at, and what looks like an error."""

import re
from typing import Final

import msgspec
from msgspec import Raw, Struct

from turnlog.wire.json.rawjson import items, load, members, text_of

TEXT_LIMIT = 64 * 1024
"""Characters of an answer's text that rules look at."""
_TEXT: Final = Raw(b'"text"')
_HEAD: Final = 2048
"""Bytes at the start of a result in which its first text has to begin."""
_FIRST_TEXT: Final = re.compile(
    rb'"content"\s*:\s*\[\s*\{[^{}\[\]]*?"text"\s*:\s*("(?:[^"\\]|\\.)*+)', re.DOTALL
)
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


def start_of_result(result: bytes, limit: int) -> str:
    """Return how the first text of a `tools/call` result begins, read from its first bytes alone."""
    found = _FIRST_TEXT.search(result[:_HEAD])
    return text_of(Raw(found[1]), limit) if found is not None else ""


def has_error_member(body: bytes) -> bool:
    """Tell whether a JSON object has a top-level member `error` that says something."""
    # `in` costs five times as much.
    if len(body) > TEXT_LIMIT or body.find(_MEMBER) < 0:
        return False
    return bytes(members(body).get("error", b"")) not in _NO_ERRORS
