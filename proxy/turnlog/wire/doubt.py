"""Texts that a server may read as a tool call although turnlog reads something else.

Servers differ in what they accept as JSON-RPC: many do not need `jsonrpc`, Go's encoding/json accepts
keys in any case, Python's json reads UTF-16 and UTF-32, and its text files end lines at CR as well.
Only rules that deny calls need this. Nothing here raises.
"""

import json
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw

from turnlog.core.kinds import Flag

from .json_text import items, members, text_of
from .jsonrpc import BATCH_LIMIT, Batch, Defect, Kind, Malformed, Message, parse

_CALL: Final = "tools/call"
_BOM: Final = b"\xef\xbb\xbf"
_BLANKS: Final = b" \t\r\n"
_OPENS: Final = (b"{", b"[")
_LEVELS: Final = 4
"""Depth to which nested arrays are searched."""
_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_BROKEN: Final = frozenset({Defect.NOT_JSON, Defect.CUT})
_ENVELOPE: Final = frozenset({"method", "params"})
_PARAMS: Final = frozenset({"name", "arguments"})


def may_hold_call(text: bytes) -> bool:
    """Return whether some server may read a `tools/call` in the body of a request, or in its start.

    True for any object or array that is not JSON by the RFC: a lax reader may accept it in any way.
    """
    text = _as_utf8(text)
    return _begins_json(text) and (_is_broken(text) or _holds_call(text))


def hides_call(line: bytes) -> bool:
    """Return whether a reader whose lines also end at CR may find a call in a part of a line.

    Python's text files are such readers. In JSON a CR is allowed wherever a blank is.
    """
    parts = line.rstrip(b"\r\n").split(b"\r")
    return len(parts) > 1 and any(not _is_broken(part) and _holds_call(part) for part in parts)


def has_twins(text: bytes) -> bool:
    """Return whether a message has a key that a case-insensitive reader takes for one of JSON-RPC's."""
    return any(
        _has_twin(each, _ENVELOPE) or _has_twin(each.get("params", b""), _PARAMS)
        for each in _envelopes(text)
    )


def is_doubtful(content: Message | Batch | Malformed, text: bytes) -> bool:
    """Return whether a server may find a call in a text that turnlog has not read in it."""
    if isinstance(content, Malformed) and content.reason in _BROKEN and _as_utf8(text) is text:
        return _begins_json(text)  # no need to parse it again
    if not may_hold_call(text):
        return False
    if isinstance(content, Message):
        return not content.jsonrpc or has_twins(text)
    if isinstance(content, Batch):
        sure = all(isinstance(item, Message) and item.jsonrpc for item in content.items)
        return not sure or has_twins(text)
    return True


def as_call(content: Message | Batch | Malformed, *, kind: Kind = Kind.REQUEST) -> Message:
    """Return the recorded stand-in for an unreadable text that may hold a call."""
    no_json = isinstance(content, Malformed) and content.reason is Defect.NOT_JSON
    return Message(
        kind=kind,
        id=content.id if isinstance(content, Message) else b"",
        method=_CALL,
        params=Raw(b"{}"),
        flags=(*content.flags, Flag.NOT_JSON if no_json else Flag.MALFORMED),
        jsonrpc=True,
    )


def is_unreadable(text: bytes) -> bool:
    """Return whether a text is neither blank nor JSON."""
    return bool(text.strip(_BLANKS)) and _is_broken(text)


def _begins_json(text: bytes) -> bool:
    return text.removeprefix(_BOM).lstrip(_BLANKS).startswith(_OPENS)


def _is_broken(text: bytes) -> bool:
    try:
        _decode_raw(text)
    except (ValueError, RecursionError):
        content = parse(text, most=BATCH_LIMIT)
        if isinstance(content, Batch):
            return content.is_partial
        return isinstance(content, Malformed) and content.reason in _BROKEN
    return False


def _holds_call(text: bytes) -> bool:
    return any(
        name.casefold() == "method" and text_of(value) == _CALL
        for each in _envelopes(text)
        for name, value in each.items()
    )


def _envelopes(text: bytes, levels: int = _LEVELS) -> Iterator[dict[str, Raw]]:
    """Yield the objects in a text that may be messages, also in nested arrays."""
    if not text.removeprefix(_BOM).lstrip(_BLANKS).startswith(b"["):
        yield members(text)
    elif levels:
        for each in items(text):
            yield from _envelopes(bytes(each), levels - 1)


def _has_twin(found: "dict[str, Raw] | bytes", names: frozenset[str]) -> bool:
    keys = found if isinstance(found, dict) else members(found)
    return any(key not in names and key.casefold() in names for key in keys)


def _as_utf8(text: bytes) -> bytes:
    """Return a text of UTF-16 or UTF-32 in UTF-8, recognised as Python's json does."""
    encoding = json.detect_encoding(text)
    if encoding.startswith("utf-8"):
        return text
    return text.decode(encoding, "replace").encode("utf-8", "replace").removeprefix(_BOM)
