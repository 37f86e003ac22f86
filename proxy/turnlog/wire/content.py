"""Read the texts of answers: what a rule looks at, and what looks like an error."""

import msgspec
from msgspec import Raw, Struct

from .blank import is_nullish
from .rawjson import items, load, members, text_of

TEXT_LIMIT = 64 * 1024
"""Characters of an answer's text that rules look at."""
_HEAD = 512
"""Bytes at the start of an answer that a sign of an error has to stand in."""
_NAME = b'"iserror"'
_MEMBER = b'"error"'
_NO_ERRORS = frozenset({b"", b"null", b"false", b"0", b'""', b"[]", b"{}"})


class _Result(Struct):
    content: Raw = Raw()
    structured: Raw = msgspec.field(name="structuredContent", default=Raw())


class _Block(Struct):
    type: Raw = Raw()
    text: Raw = Raw()


class _Error(Struct):
    message: Raw = Raw()
    data: Raw = Raw()


def text_of_result(result: bytes, limit: int = TEXT_LIMIT) -> str:
    """Return the texts of a `tools/call` result, one below the other, cut to `limit` characters."""
    found: list[str] = []
    room = limit
    for raw in items(load(_Result, result).content):
        block = load(_Block, raw)
        if room > 0 and bytes(block.type) == b'"text"':
            found.append(text_of(bytes(block.text), room))
            room -= len(found[-1])
    return "\n".join(found)[:limit]


def blocks_of_result(result: bytes) -> list[Raw]:
    """Return the blocks of a `tools/call` result's content."""
    return items(load(_Result, result).content)


def only_text(result: bytes) -> str | None:
    """Return the texts of a `tools/call` result, one below the other; `None` where it has other blocks,
    or none."""
    blocks = [load(_Block, raw) for raw in blocks_of_result(result)]
    if not blocks or any(bytes(block.type) != b'"text"' for block in blocks):
        return None
    return "\n".join(text_of(bytes(block.text), len(result)) for block in blocks)


def text_of_error(error: bytes) -> str:
    """Return the message of a JSON-RPC error, and its data where that is a text."""
    found = load(_Error, error)
    texts = (text_of(bytes(raw), TEXT_LIMIT) for raw in (found.message, found.data))
    return "\n".join(text for text in texts if text)


def text_of_body(body: bytes) -> str:
    """Return the start of a body as text."""
    return body[:TEXT_LIMIT].decode("utf-8", "replace")


def is_structured(result: bytes) -> bool:
    """Tell whether a `tools/call` result has structured content that says something."""
    found = load(_Result, result).structured
    return bool(found) and not is_nullish(found)


def hints_at_error(start: bytes) -> bool:
    """Tell whether a closer look at an answer may find that it speaks of an error."""
    head = start[:_HEAD].lower().replace(_NAME, b"")
    return b"rror" in head or b"xception" in head or b"traceback" in head


def has_error_member(body: bytes) -> bool:
    """Tell whether a JSON object has a top-level member `error` that says something."""
    if len(body) > TEXT_LIMIT or _MEMBER not in body:
        return False
    return bytes(members(body).get("error", b"")) not in _NO_ERRORS
