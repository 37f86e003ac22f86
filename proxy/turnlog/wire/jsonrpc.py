"""JSON-RPC messages, read from any bytes.

On the fast path msgspec decodes the envelope; params and results stay text (`Raw`), so that nothing is
rounded, reordered or lost. Bytes that msgspec refuses are read again tolerantly: byte order mark,
invalid UTF-8, lone surrogates, NaN, nesting deeper than any decoder reads.
Of equal keys the last one counts, and the message is flagged. Nothing here raises.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from turnlog.core.canon import decode_plain, is_utf8
from turnlog.core.kinds import Flag

from .json_stream import Outline, outline_of
from .json_text import (
    BOM,
    NO_MEMBERS,
    decode_items,
    decode_string,
    has_lone_surrogate,
    integer_of,
    is_bare,
    is_string,
    item_spans,
    load,
    members,
    pick,
    repeats_member,
    scan_items,
    text_of,
)

DUPLICATES_LIMIT: Final = 262_144
"""Bytes up to which equal keys are searched at every level. In a larger text, up to `SCAN_LIMIT`, they
are searched only among the first `MEMBERS_LIMIT` members of the message, its params, result and error;
in an even larger one not at all, and the flag is left out."""
SCAN_LIMIT: Final = 4 << 20
MEMBERS_LIMIT: Final = 512
_HELD: Final = 8 << 10
"""Bytes of the largest text whose decoded values are kept with it: they take up to twenty times as much."""
BATCH_LIMIT: Final = 256
"""Messages of one batch that are read and recorded one by one: 180,000 calls took 17 s and 1.6 GB."""
_LEVELS: Final = ("params", "result", "error")
_VERSION: Final = Raw(b'"2.0"')
_WHOLE_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
# The usual methods: comparing is cheaper than decoding.
_CALL: Final = Raw(b'"tools/call"')


class Kind(StrEnum):
    """The kinds of JSON-RPC messages."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    RESPONSE = "response"
    ERROR = "error"


_REQUEST: Final = Kind.REQUEST
_NOTIFICATION: Final = Kind.NOTIFICATION
_RESPONSE: Final = Kind.RESPONSE
_ERROR: Final = Kind.ERROR


class Defect(StrEnum):
    """Why bytes are not a JSON-RPC message."""

    EMPTY = "empty"
    """Empty, or only white space."""
    CUT = "cut"
    """JSON that was cut."""
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
    """The decoded values (`decode_plain`) of a request or notification that is short and repeats no
    key."""
    unchecked: bytes = b""
    """The whole text of a message that was not searched for equal keys: see `read_whole`."""


class Batch(Struct, frozen=True, dict=True):
    """An array of messages (2025-03-26 only), in order."""

    texts: tuple[Raw, ...]
    flags: tuple[Flag, ...] = ()
    is_partial: bool = False
    """Whether there are more messages, which were not read."""

    @property
    def items(self) -> "Iterable[Message | Malformed]":
        """The messages; those of a large batch are parsed anew each time."""
        # 300,000 answers take 20 MiB as texts, and ten times that when decoded.
        return self._few if len(self.texts) <= BATCH_LIMIT else map(_item, self.texts)

    @cached_property
    def _few(self) -> "tuple[Message | Malformed, ...]":
        return tuple(map(_item, self.texts))


class Malformed(Struct, frozen=True):
    """Bytes that are not a JSON-RPC message."""

    reason: Defect
    flags: tuple[Flag, ...] = ()


_UNREAD: Final = Message(
    kind=_NOTIFICATION,
    method="tools/call",
    params=Raw(b'{"name":"?"}'),
    flags=(Flag.TRUNCATED_RECORD,),
    jsonrpc=True,
)
"""The row for all messages of a batch that were not read."""


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
_encode = msgspec.json.Encoder().encode


def parse(data: bytes, *, most: int | None = None) -> Message | Batch | Malformed:
    """Read one whole text; of an array at most the first `most` messages."""
    try:
        envelope = _decode(data)
    except (ValueError, RecursionError):
        return _parse_other(data, most)
    if not envelope.method:
        return _message(envelope, (), unchecked=data)
    try:
        # Requests are recorded in canonical form, if they are plain.
        value = decode_plain(data) if len(data) <= DUPLICATES_LIMIT else None
    except (ValueError, RecursionError):
        value = None
    if value is None or _repeats_key(data, value):
        return _message(envelope, _flags(data))
    return _message(envelope, (), value if len(data) <= _HELD else None)


def parse_answer(data: bytes) -> Message | Batch | Malformed:
    """Read one whole text of a server. `read_whole` finds its flags later."""
    try:
        envelope = _decode(data)
    except (ValueError, RecursionError):
        return _parse_other(data, None)
    if envelope.method or envelope.error or not envelope.result:
        return _message(envelope, (), unchecked=data)
    return Message(
        kind=_RESPONSE,
        id=b"" + envelope.id,
        result=envelope.result,
        jsonrpc=envelope.jsonrpc == _VERSION,
        params=envelope.params,
        unchecked=data,
    )


def read_whole(message: Message) -> tuple[dict[str, Any] | None, tuple[Flag, ...]]:
    """Return the plain values of an answer, if it is short and repeats no key, and its flags.

    Both need the text decoded, so this is called only when the answer is recorded.
    """
    text = message.unchecked
    if not text:
        return None, message.flags
    if len(text) > DUPLICATES_LIMIT:
        return None, read_large(message)[1]
    try:
        value = _decode_any(text)
    except (ValueError, RecursionError):
        return None, _flags(text)
    if _repeats_key(text, value):
        return None, (Flag.DUPLICATE_KEYS,)
    return value if len(text) <= _HELD else None, ()


def read_large(message: Message) -> tuple[Mapping[str, Raw], tuple[Flag, ...]]:
    """Return the members of a large answer's result, and the flags of the answer.

    Both need the result decoded, which is nearly all of the message.
    """
    text = message.unchecked
    found = members(message.result) if message.result else NO_MEMBERS
    flags: tuple[Flag, ...] = () if is_utf8(text) else (Flag.INVALID_UTF8,)
    around = {"jsonrpc": _VERSION, "id": message.id, "result": message.result}
    is_plain = message.jsonrpc and message.id and len(text) <= SCAN_LIMIT
    if is_plain and is_bare(text, around):
        repeats = repeats_member(bytes(message.result), found, MEMBERS_LIMIT)
    else:
        repeats = _repeats(text)
    return found, (*flags, Flag.DUPLICATE_KEYS) if repeats else flags


def repeats_keys(text: bytes) -> bool:
    """Return whether an object in a JSON text has two members of one name, as far as it is looked at."""
    return Flag.DUPLICATE_KEYS in _flags(text)


def id_key(raw: bytes) -> str:
    """Return a key that all spellings of the same id share.

    `1` and `1.0` are the same number, because JavaScript sends one for the other; `"1"` is a string.
    """
    if raw.isdigit():
        return raw.decode()
    if raw.startswith(b'"'):
        return '"' + decode_string(raw)
    number = integer_of(raw)
    return str(number) if number is not None else raw.decode("utf-8", "replace")


def other_type(key: str) -> str:
    """Return the key of the same id with the other type: `"7"` for `7`. Empty for none."""
    if not key.startswith('"'):
        return f'"{key}' if _WHOLE_NUMBER.fullmatch(key) else ""
    return key[1:] if _WHOLE_NUMBER.fullmatch(key, 1) else ""


def meant_key(key: str, is_open: Callable[[str], bool]) -> str:
    """Return the key of the request that an answer belongs to; unchanged if there is none.

    SDKs accept an answer whose id has another type than that of the open request.
    """
    if is_open(key):
        return key
    other = other_type(key)
    return other if other and is_open(other) else key


def messages_of(content: Message | Batch | Malformed) -> Sequence[Message]:
    """Return the messages of a text; nothing unless all of it is JSON-RPC 2.0.

    The unread rest of a batch is one more message, a `tools/call` without id.
    """
    if isinstance(content, Message):
        return (content,) if content.jsonrpc else ()
    if isinstance(content, Batch):
        found = tuple(item for item in content.items if isinstance(item, Message))
        if not all(item.jsonrpc for item in found):
            return ()
        return (*found, _UNREAD) if content.is_partial else found
    return ()


def texts_of(content: Message | Batch | Malformed, text: bytes) -> Iterator[tuple[Message, bytes]]:
    """Yield the messages read from a text, each with its own text."""
    if isinstance(content, Message):
        yield content, text
    elif isinstance(content, Batch):
        for item, raw in zip(content.items, content.texts, strict=True):
            if isinstance(item, Message):
                yield item, bytes(raw)


def outline_kind(outline: Outline) -> Kind | None:
    """Return the kind of a message by its outline."""
    return _kind(
        outline.raw("method"),
        outline.raw("id"),
        outline.raw("result"),
        outline.raw("error"),
    )


def _message(
    envelope: _Envelope,
    flags: tuple[Flag, ...],
    plain: dict[str, Any] | None = None,
    *,
    unchecked: bytes = b"",
) -> Message | Malformed:
    method, error = envelope.method, envelope.error
    # The same as `bytes`, in half the time.
    identifier = b"" + envelope.id
    named = "tools/call" if method == _CALL else text_of(method) if method else ""
    if named:
        kind: Kind | None = _REQUEST if identifier else _NOTIFICATION
    else:
        kind = _kind(method, identifier, envelope.result, error)
    if kind is None:
        return Malformed(Defect.NOT_JSONRPC, _flags(unchecked) if unchecked else flags)
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
            unchecked=unchecked,
        )
    return Message(
        kind=kind,
        id=identifier,
        method=named,
        params=envelope.params,
        result=envelope.result,
        flags=flags,
        jsonrpc=jsonrpc,
        plain=plain,
        unchecked=unchecked,
    )


def _kind(method: bytes, identified: bytes, answered: bytes, error: bytes) -> Kind | None:
    if method:
        if not is_string(method):
            return None
        return _REQUEST if identified else _NOTIFICATION
    # JSON-RPC 1.0 habits: `error: null` beside a result, `result: null` beside an error.
    if error and (not answered or bytes(error) != b"null"):
        return _ERROR
    return _RESPONSE if answered else None


def _repeats_key(raw: bytes, value: object) -> bool:
    """Return whether a text repeats a key at some level; `value` is the decoded text."""
    written = _encode(value)
    if written == raw or written == msgspec.json.format(raw, indent=-1):
        return False
    # The text has other blanks or escapes. A decoder drops all but the last of equal keys, and
    # with each at least one string; nothing else changes the number of strings.
    return _quotes(written) != _quotes(raw)


def _quotes(text: bytes) -> int:
    """Return the number of quotes in a text that are not escaped."""
    if b"\\" not in text:
        return text.count(b'"')
    text = text.replace(b"\\\\", b"")
    return text.count(b'"') - text.count(b'\\"')


def _flags(data: bytes) -> tuple[Flag, ...]:
    """Return the flags of a text that msgspec has read; it does not check UTF-8 and equal keys."""
    if len(data) <= DUPLICATES_LIMIT:
        with suppress(ValueError, RecursionError):
            return (Flag.DUPLICATE_KEYS,) if _repeats_key(data, _decode_any(data)) else ()
    flags: tuple[Flag, ...] = () if is_utf8(data) else (Flag.INVALID_UTF8,)
    return (*flags, Flag.DUPLICATE_KEYS) if _repeats(data) else flags


def _repeats(data: bytes) -> bool:
    """Return whether a text repeats a key, if no decoder accepts the text or it is large."""
    if len(data) <= DUPLICATES_LIMIT:
        return _check(data).duplicates
    if len(data) > SCAN_LIMIT:
        return False
    found = members(data)
    levels = (bytes(found[name]) for name in _LEVELS if name in found)
    return repeats_member(data, found, MEMBERS_LIMIT) or any(
        repeats_member(level, members(level), MEMBERS_LIMIT) for level in levels
    )


def _parse_other(data: bytes, most: int | None) -> Message | Batch | Malformed:
    """Read a text that is not an object, or not strict JSON."""
    text = data.removeprefix(BOM)
    first = text.lstrip(b" \t\r\n")[:1]
    flags: tuple[Flag, ...] = () if text is data else (Flag.BOM,)
    if not first:
        return Malformed(Defect.EMPTY, flags)
    if first == b"[":
        return _parse_array(text, flags, most)
    check = _check(text)
    flags += check.flags
    if not check.valid:
        return Malformed(_defect(text), flags)
    if first != b"{":
        return Malformed(Defect.NOT_JSONRPC, flags)
    return _message(pick(_Envelope, members(text)), flags)


def _parse_array(text: bytes, flags: tuple[Flag, ...], most: int | None) -> Batch | Malformed:
    if most is not None:
        spans = list(islice(item_spans(text), most + 1))
        if len(spans) > most:
            read = tuple(Raw(text[begin:end]) for begin, end in spans[:most])
            return Batch(read, flags, is_partial=True)
    texts = decode_items(text)
    if texts is not None:
        return Batch(tuple(texts), (*flags, *_flags(text)))
    check = _check(text)
    flags += check.flags
    if not check.valid:
        return Malformed(_defect(text), flags)
    return Batch(tuple(scan_items(text)), flags)


def _item(raw: Raw) -> Message | Malformed:
    data = bytes(raw)
    if not data.startswith(b"{"):
        return Malformed(Defect.NOT_JSONRPC)
    item = parse(data)
    return Malformed(Defect.NOT_JSONRPC) if isinstance(item, Batch) else item


def _defect(text: bytes) -> Defect:
    outline = outline_of(text)
    # The outline is read less strictly: a text that it read to the end is wrong somewhere inside.
    return Defect.NOT_JSON if outline.failed or outline.complete else Defect.CUT


class _Checked(Struct, frozen=True):
    valid: bool
    flags: tuple[Flag, ...]
    duplicates: bool


def _check(data: bytes) -> _Checked:
    """Check a text by the JSON grammar of Python's parser."""
    seen: set[Flag] = set()

    def close(pairs: list[tuple[str, object]]) -> None:
        if len(dict(pairs)) != len(pairs):
            seen.add(Flag.DUPLICATE_KEYS)

    if not is_utf8(data):
        seen.add(Flag.INVALID_UTF8)
    if has_lone_surrogate(data):
        seen.add(Flag.LONE_SURROGATE)
    # Numbers are not converted (`len` instead), because very long ones would take very long.
    decoder = json.JSONDecoder(
        object_pairs_hook=close if len(data) <= DUPLICATES_LIMIT else None,
        parse_int=len,
        parse_float=len,
        parse_constant=lambda _: seen.add(Flag.NONSTANDARD_JSON),
    )
    try:
        decoder.decode(data.decode("utf-8", "surrogateescape"))
        valid = True
    except RecursionError:
        # Deeper than any decoder reads: only its brackets are checked.
        valid = outline_of(data).complete
    except ValueError:
        valid = False
    return _Checked(valid, tuple(sorted(seen)), Flag.DUPLICATE_KEYS in seen)
