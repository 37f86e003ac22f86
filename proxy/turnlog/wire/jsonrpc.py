"""Tell what a JSON-RPC message says, from whatever bytes came.

The fast path is msgspec over the envelope; params and results stay text (`Raw`), so that nothing
is rounded, reordered or lost. Bytes that msgspec refuses get a second, tolerant reading: byte
order mark, invalid UTF-8, halves of surrogate pairs, NaN, nesting deeper than any decoder goes.
Of equal keys the last one counts, and the message is flagged. Nothing here raises.
"""

import json
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from turnlog.core.canon import decode_plain
from turnlog.core.kinds import Flag
from turnlog.wire.json.rawjson import (
    decode_string,
    has_lone_surrogate,
    integer_of,
    is_string,
    item_spans,
    items,
    load,
    members,
    pick,
    scan_members,
    text_of,
)
from turnlog.wire.json.skim import Outline, Skimmer

DUPLICATES_LIMIT = 262_144
"""Bytes up to which equal keys are looked for at every level. In a larger text, up to `SCAN_LIMIT`,
only among the first `MEMBERS_LIMIT` members of the message, its params, result and error; in one
larger than that nowhere: then the flag is left out."""
_HELD: Final = 8 << 10
"""Bytes of a text whose values go along with it: they take up to twenty times as much."""
BATCH_LIMIT: Final = 256
"""Messages of one batch that are read and recorded one by one: 180,000 calls took 17 s and 1.6 GB."""
SCAN_LIMIT = 4 << 20
MEMBERS_LIMIT = 512
_LEVELS = ("params", "result", "error")
_BOM = b"\xef\xbb\xbf"
_VERSION: Final = Raw(b'"2.0"')
_WHOLE_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_CALL: Final = Raw(b'"tools/call"')
"""What most methods are: to compare is cheaper than to read."""


class Kind(StrEnum):
    """What a JSON-RPC message is."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    RESPONSE = "response"
    ERROR = "error"


_REQUEST: Final = Kind.REQUEST
_NOTIFICATION: Final = Kind.NOTIFICATION
_RESPONSE: Final = Kind.RESPONSE
_ERROR: Final = Kind.ERROR


class Reason(StrEnum):
    """Why bytes are no JSON-RPC message."""

    EMPTY = "empty"
    """Nothing, or white space."""
    CUT = "cut"
    """JSON up to where it ends."""
    NOT_JSON = "not_json"
    NOT_JSONRPC = "not_jsonrpc"
    """JSON, but neither method, result nor error."""


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """One JSON-RPC message. Empty `Raw` means absent; `null` is the text `null`."""

    kind: Kind
    id: bytes = b""
    """The id as text; `id_key` makes ids comparable."""
    method: str = ""
    params: Raw = Raw()
    result: Raw = Raw()
    error_code: int | None = None
    error_message: str = ""
    error_data: Raw = Raw()
    flags: tuple[Flag, ...] = ()
    jsonrpc: bool = False
    """Whether the member `jsonrpc` says "2.0"."""
    plain: dict[str, Any] | None = None
    """All of it, decoded, where it is short and repeats no key: of what asks something as `decode_plain`
    reads it, of an answer where its text is what an encoder writes."""


class Batch(Struct, frozen=True):
    """An array of messages (2025-03-26 only), in order."""

    items: "tuple[Message | Malformed, ...]"
    flags: tuple[Flag, ...] = ()
    is_partial: bool = False
    """Whether more follow that were not read."""


class Malformed(Struct, frozen=True):
    """Bytes that are no JSON-RPC message."""

    reason: Reason
    flags: tuple[Flag, ...] = ()


_UNREAD: Final = Message(
    kind=_NOTIFICATION,
    method="tools/call",
    params=Raw(b'{"name":"?"}'),
    flags=(Flag.TRUNCATED_RECORD,),
    jsonrpc=True,
)
"""The one row that stands for all messages of a batch that were not read."""


class _Envelope(Struct, gc=False):
    jsonrpc: Raw = Raw()
    id: Raw = Raw()
    method: Raw = Raw()
    params: Raw = Raw()
    result: Raw = Raw()
    error: Raw = Raw()


class _Error(Struct, gc=False):
    code: Raw = Raw()
    message: Raw = Raw()
    data: Raw = Raw()


_decode = msgspec.json.Decoder(_Envelope).decode
_decode_any = msgspec.json.Decoder().decode
_encode_any = msgspec.json.Encoder().encode


def parse(data: bytes, *, most: int | None = None) -> Message | Batch | Malformed:
    """Read one whole text; of an array no more than its first `most` messages."""
    try:
        envelope = _decode(data)
    except (ValueError, RecursionError):
        return _parse_other(data, most)
    if len(data) > DUPLICATES_LIMIT:
        return _message(envelope, _flags(data))
    # What is asked is written in canonical form, as far as it is plain; what is answered is not.
    asked = _read(decode_plain, data) if envelope.method else None
    value = asked if asked is not None else _read(_decode_any, data)
    is_plain = value is not None and _is_canonical(value, data)
    flags = () if is_plain else _flags(data)
    if flags or len(data) > _HELD:
        return _message(envelope, flags)
    said = value if is_plain else None
    return _message(envelope, flags, asked if envelope.method else said)


def id_key(raw: bytes) -> str:
    """Return what two texts of the same id have in common, whoever wrote them.

    `1` and `1.0` are the same number, for that is what JavaScript sends back; `"1"` is a string.
    """
    if raw.isdigit():
        return raw.decode()
    if raw.startswith(b'"'):
        return '"' + decode_string(raw)
    number = integer_of(raw)
    return str(number) if number is not None else raw.decode("utf-8", "replace")


def other_type(key: str) -> str:
    """Return the key of an id that differs in type only: `"7"` and `7`. Empty for none."""
    if not key.startswith('"'):
        return f'"{key}' if _WHOLE_NUMBER.fullmatch(key) else ""
    return key[1:] if _WHOLE_NUMBER.fullmatch(key, 1) else ""


def meant_key(key: str, is_open: Callable[[str], bool]) -> str:
    """Return the key of the request that an answer belongs to; the same where there is none.

    SDKs take an answer whose id has another type than the request's, where that one is open.
    """
    if is_open(key):
        return key
    other = other_type(key)
    return other if other and is_open(other) else key


def messages_of(content: Message | Batch | Malformed) -> Sequence[Message]:
    """Return the messages of a text; nothing where not all of it is JSON-RPC 2.0.

    One more message, a `tools/call` without id, stands for what was not read of a batch.
    """
    if isinstance(content, Message):
        return (content,) if content.jsonrpc else ()
    if isinstance(content, Batch):
        found = tuple(item for item in content.items if isinstance(item, Message))
        if not all(item.jsonrpc for item in found):
            return ()
        return (*found, _UNREAD) if content.is_partial else found
    return ()


def outline_kind(outline: Outline) -> Kind | None:
    """Return what a skimmed message is."""
    return _kind(
        outline.raw("method"),
        outline.raw("id"),
        outline.raw("result"),
        outline.raw("error"),
    )


def _read(decode: Callable[[bytes], dict[str, Any]], data: bytes) -> dict[str, Any] | None:
    """Return what a text says, which is an object; `None` where it cannot be decoded so."""
    try:
        return decode(data)
    except (ValueError, RecursionError):
        return None


def _is_canonical(value: object, data: bytes) -> bool:
    """Tell whether a text that says `value` is, but for white space, what an encoder wrote of it.

    Such a text repeats no key and is UTF-8; to know that so is three times faster than to look.
    """
    try:
        text = _encode_any(value)
        return text == data or text == msgspec.json.format(data, indent=-1)
    except (ValueError, RecursionError):
        return False


def _message(
    envelope: _Envelope, flags: tuple[Flag, ...], plain: dict[str, Any] | None = None
) -> Message | Malformed:
    method, error = envelope.method, envelope.error
    # The same as `bytes`, at half the price.
    identifier = b"" + envelope.id
    kind = _kind(method, identifier, envelope.result, error)
    if kind is None:
        return Malformed(Reason.NOT_JSONRPC, flags)
    jsonrpc = envelope.jsonrpc == _VERSION
    if kind is _ERROR:
        details = load(_Error, error)
        return Message(
            kind=kind,
            id=identifier,
            error_code=integer_of(bytes(details.code)),
            error_message=text_of(details.message) or text_of(error),
            error_data=details.data,
            flags=flags,
            jsonrpc=jsonrpc,
        )
    return Message(
        kind=kind,
        id=identifier,
        method=_name(method) if method else "",
        params=envelope.params,
        result=envelope.result,
        flags=flags,
        jsonrpc=jsonrpc,
        plain=plain,
    )


def _name(method: Raw) -> str:
    return "tools/call" if method == _CALL else text_of(method)


def _kind(method: bytes, identified: bytes, answered: bytes, error: bytes) -> Kind | None:
    if method:
        if method != _CALL and not is_string(method):
            return None
        return _REQUEST if identified else _NOTIFICATION
    # JSON-RPC 1.0 habits: `error: null` beside a result, `result: null` beside an error.
    if error and (not answered or bytes(error) != b"null"):
        return _ERROR
    return _RESPONSE if answered else None


def _flags(data: bytes) -> tuple[Flag, ...]:
    """Return the flags of a text that msgspec has read: it checks all but UTF-8 and equal keys."""
    flags: tuple[Flag, ...] = ()
    if not data.isascii() and not _is_utf8(data):
        flags = (Flag.INVALID_UTF8,)
    return (*flags, Flag.DUPLICATE_KEYS) if _repeats(data) else flags


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _repeats(data: bytes) -> bool:
    if len(data) <= DUPLICATES_LIMIT:
        return _check(data).duplicates
    if len(data) > SCAN_LIMIT:
        return False
    found = scan_members(data, MEMBERS_LIMIT)
    inner = (scan_members(bytes(raw), MEMBERS_LIMIT) for name, raw in found if name in _LEVELS)
    return any(len(dict(level)) != len(level) for level in (found, *inner))


def _parse_other(data: bytes, most: int | None) -> Message | Batch | Malformed:
    """Read what is no object, or no strict JSON."""
    text = data.removeprefix(_BOM)
    first = text.lstrip(b" \t\r\n")[:1]
    flags: tuple[Flag, ...] = () if text is data else (Flag.BOM,)
    if not first:
        return Malformed(Reason.EMPTY, flags)
    if first == b"[" and most is not None:
        spans = list(islice(item_spans(text), most + 1))
        if len(spans) > most:
            read = tuple(_item(Raw(text[begin:end])) for begin, end in spans[:most])
            return Batch(read, flags, is_partial=True)
    check = _check(text)
    flags += check.flags
    if not check.valid:
        return Malformed(_why(text), flags)
    if first == b"[":
        return Batch(tuple(map(_item, items(text))), flags)
    if first != b"{":
        return Malformed(Reason.NOT_JSONRPC, flags)
    return _message(pick(_Envelope, members(text)), flags)


def _item(raw: Raw) -> Message | Malformed:
    data = bytes(raw)
    if not data.startswith(b"{"):
        return Malformed(Reason.NOT_JSONRPC)
    item = parse(data)
    return Malformed(Reason.NOT_JSONRPC) if isinstance(item, Batch) else item


def _why(text: bytes) -> Reason:
    skimmer = Skimmer()
    skimmer.feed(text)
    # The skimmer is the laxer reader: what it read to the end was wrong somewhere inside.
    if skimmer.failed or skimmer.finish().complete:
        return Reason.NOT_JSON
    return Reason.CUT


class _Checked(Struct, frozen=True):
    valid: bool
    flags: tuple[Flag, ...]
    duplicates: bool


def _check(data: bytes) -> _Checked:
    """Hold a text against the grammar of JSON, with all that Python's reader puts up with."""
    seen: set[Flag] = set()

    def close(pairs: list[tuple[str, object]]) -> None:
        if len(dict(pairs)) != len(pairs):
            seen.add(Flag.DUPLICATE_KEYS)

    if not _is_utf8(data):
        seen.add(Flag.INVALID_UTF8)
    if has_lone_surrogate(data):
        seen.add(Flag.LONE_SURROGATE)
    # No number is converted (`len` stands in): digits without end would cost time without end.
    decoder = json.JSONDecoder(
        object_pairs_hook=close,
        parse_int=len,
        parse_float=len,
        parse_constant=lambda _: seen.add(Flag.NONSTANDARD_JSON),
    )
    try:
        decoder.decode(data.decode("utf-8", "surrogateescape"))
        valid = True
    except RecursionError:
        # Deeper than any decoder goes: its brackets have to do.
        skimmer = Skimmer()
        skimmer.feed(data)
        valid = skimmer.finish().complete
    except ValueError:
        valid = False
    return _Checked(valid, tuple(sorted(seen)), Flag.DUPLICATE_KEYS in seen)
