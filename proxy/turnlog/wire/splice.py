"""The few changes of messages: an id for another attempt, an outcome in a result.

All other bytes stay the same. A message that cannot be changed safely is not changed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .json_stream import IdReplacer
from .json_text import decode_string, item_spans, named_spans, past_space, text_of
from .jsonrpc import Batch, Message, id_key, parse, texts_of
from .sse import parts_of

_DATA: Final = b"data:"
_BOM: Final = b"\xef\xbb\xbf"
_NAME_BYTES: Final = len(_BOM + _DATA)
_BLANK: Final = b" \t\r\n" + _BOM
_MESSAGES: Final = (b"{", b"[")


def with_id(message: bytes, raw_id: bytes) -> bytes | None:
    """Return a JSON-RPC message with another `id`; `None` unless it has exactly one."""
    return _replaced(message, 0, "id", raw_id)


def with_cancelled_ids(text: bytes, ids: Mapping[str, bytes]) -> bytes | None:
    """Return a message or batch with other request ids in its cancels; `None` if nothing changes.

    `ids` holds the new ids, by the `id_key` of the old ones.
    """
    if b"cancelled" not in text and b"\\u" not in text:
        return None  # almost always so, and far cheaper to find out than by parsing
    pieces: list[bytes] = []
    done = 0
    for begin, end in item_spans(text):
        if (changed := _with_cancelled_id(text[begin:end], ids)) is not None:
            pieces += [text[done:begin], changed]
            done = end
    if not pieces:
        return _with_cancelled_id(text, ids)
    return b"".join([*pieces, text[done:]])


def _with_cancelled_id(message: bytes, ids: Mapping[str, bytes]) -> bytes | None:
    methods = [text_of(message[a:b]) for a, b in named_spans(message, "method")]
    if methods[-1:] != ["notifications/cancelled"]:
        return None
    params = named_spans(message, "params")
    if len(params) != 1:
        return None
    named = named_spans(message, "requestId", params[0][0])
    if len(named) != 1:
        return None
    begin, end = named[0]
    raw_id = ids.get(id_key(message[begin:end]))
    return message[:begin] + raw_id + message[end:] if raw_id is not None else None


def with_member(message: bytes, path: Sequence[str], value: bytes) -> bytes | None:
    """Return a message with another value, as JSON, at a path into its objects.

    `None` if there is no such member, or several.
    """
    start = 0
    for name in path[:-1]:
        spans = named_spans(message, name, start)
        if len(spans) != 1 or not message.startswith(b"{", spans[0][0]):
            return None
        start = spans[0][0]
    return _replaced(message, start, path[-1], value)


def _replaced(text: bytes, start: int, name: str, value: bytes) -> bytes | None:
    found = named_spans(text, name, start)
    if len(found) != 1:
        return None
    begin, end = found[0]
    return text[:begin] + value + text[end:]


def with_meta(message: bytes, name: str, value: bytes) -> bytes | None:
    """Return a JSON-RPC response whose `result._meta` has one more member, `value` as JSON.

    In an array, the only response with a result changes. `None` if the result is not an object, its
    `_meta` is neither an object nor `null`, or a relevant key is repeated.
    """
    found = [
        (begin, end)
        for begin, end in item_spans(message)
        if named_spans(message[begin:end], "result")
    ]
    if len(found) != 1:
        return None if found else _with_meta(message, name, value)
    begin, end = found[0]
    changed = _with_meta(message[begin:end], name, value)
    return message[:begin] + changed + message[end:] if changed is not None else None


def _with_meta(message: bytes, name: str, value: bytes) -> bytes | None:
    results = named_spans(message, "result")
    if len(results) != 1 or not message.startswith(b"{", results[0][0]):
        return None
    start, _ = results[0]
    metas = named_spans(message, "_meta", start)
    entry = b'"%b":%b' % (name.encode(), value)
    if not metas:
        return _inserted(message, start, b'"_meta":{%b}' % entry)
    if len(metas) > 1:
        return None
    begin, end = metas[0]
    if message[begin:end] == b"null":
        return message[:begin] + b"{%b}" % entry + message[end:]
    if not message.startswith(b"{", begin):
        return None
    if named_spans(message, name, begin):
        return None
    return _inserted(message, begin, entry)


def with_result_type(message: bytes) -> bytes:
    """Return a JSON-RPC response whose result has a `resultType`, as revisions since 2026-07-28 demand."""
    results = named_spans(message, "result")
    if len(results) != 1 or not message.startswith(b"{", results[0][0]):
        return message
    start, _ = results[0]
    has_one = bool(named_spans(message, "resultType", start))
    return message if has_one else _inserted(message, start, b'"resultType":"complete"')


def _inserted(text: bytes, start: int, member: bytes) -> bytes:
    """Return a text with one more member at the beginning of the object at `start`."""
    empty = text.startswith(b"}", past_space(text, start + 1))
    return text[: start + 1] + member + (b"" if empty else b",") + text[start + 1 :]


def with_messages(text: bytes, change: Callable[[Message, bytes], bytes | None]) -> bytes:
    """Return a message or batch with each message replaced, or dropped, by `change`.

    A text in which no message changes is returned unchanged.
    """
    content = parse(text)
    found = list(texts_of(content, text))
    kept = [new for message, raw in found if (new := change(message, raw))]
    if found and kept == [raw for _, raw in found]:
        return text
    return b"[%b]" % b",".join(kept) if kept and isinstance(content, Batch) else b"".join(kept)


def with_data(event: bytes, data: bytes, *, first: bool = False) -> bytes:
    """Return the text of a whole event with other data and unchanged other lines.

    The `first` one of a stream may begin with a byte order mark.
    """
    if first and event.startswith(_BOM):
        return _BOM + with_data(event.removeprefix(_BOM), data)
    lines = event.splitlines(keepends=True)
    place = next((n for n, line in enumerate(lines) if line.startswith(_DATA)), None)
    if place is None:
        return event
    end = lines[place][len(lines[place].rstrip(b"\r\n")) :]
    new = b"".join(b"data: %b%b" % (line, end) for line in data.splitlines())
    kept = [line for line in lines[place + 1 :] if not line.startswith(_DATA)]
    return b"".join([*lines[:place], new, *kept])


def as_event(data: bytes) -> bytes:
    """Return one event of a stream: a message without an id (WHATWG HTML, section 9.2)."""
    return b"event: message\ndata: %b\n\n" % data


class Respelling:
    """Replaces the ids of later attempts by those of the callers, in text of any size.

    The text is a JSON-RPC message, or a stream of events with one each; which is found out by reading.
    Only a message's own `id` changes, and only its start is held back between two pieces.
    """

    __slots__ = ("_after_cr", "_first", "_is_data", "_line", "_message", "_plain", "_spellings")

    def __init__(self, spellings: Mapping[bytes, bytes]) -> None:
        self._spellings = {decode_string(old): new for old, new in spellings.items()}
        self._message = IdReplacer(self._spellings)
        self._plain: bool | None = None
        """Whether the text is a message, not a stream; `None` while only blanks have arrived."""
        self._first = True
        self._line = b""
        """The start of the current line of a stream."""
        self._is_data = False
        """Whether that line is known to be data."""
        self._after_cr = False

    def feed(self, piece: bytes) -> bytes:
        """Read a piece; return the bytes that can be sent, with those held back before."""
        if self._plain is None and (text := piece.lstrip(_BLANK)):
            self._plain = text[:1] in _MESSAGES
            if self._plain:
                return piece[: -len(text)] + self._message.feed(text)
        if self._plain:
            return self._message.feed(piece)
        return b"".join(map(self._part, parts_of(piece)))

    def finish(self) -> bytes:
        """Return what was held back, at the end of the text."""
        return self._message.finish()

    def _part(self, part: bytes) -> bytes:
        """Read a line of a stream, or a part of one, or a run of lines of data."""
        if b"\n" in part[:-2]:
            return self._run(part)
        after_cr, self._after_cr = self._after_cr, part.endswith(b"\r")
        if after_cr and part == b"\n":
            return part
        text = part.rstrip(b"\r\n")
        start = 0 if self._is_data else self._opened(text)
        if len(text) == len(part):
            return text[:start] + self._message.feed(text[start:])
        rest = self._message.feed(text[start:]) if self._is_data else b""
        return text[:start] + rest + self._line_ended() + part[len(text) :]

    def _run(self, lines: bytes) -> bytes:
        """Read whole lines of data, most of which are deep inside a result."""
        self._after_cr = False
        if self._message.passes(lines[len(_DATA) :].replace(b"\n" + _DATA, b"\n")):
            return lines
        return b"".join(map(self._part, lines.splitlines(keepends=True)))

    def _opened(self, text: bytes) -> int:
        """Return the start of a line's data in this part of the line; its end for none."""
        known = len(self._line)
        self._line += text[: _NAME_BYTES - known]
        name = _BOM + _DATA if self._first and self._line.startswith(_BOM) else _DATA
        self._is_data = self._line.startswith(name)
        return len(name) - known if self._is_data else len(text)

    def _line_ended(self) -> bytes:
        """End a line, and with a blank one the event; return the bytes that can be sent now."""
        held = self._message.feed(b"\n")[:-1] if self._is_data else b""
        if not self._line:
            self._message = IdReplacer(self._spellings)
        self._line, self._is_data, self._first = b"", False, False
        return held
