"""The few places where a message is changed: an id for another attempt, a word in a result.

All else stays byte for byte. What cannot be changed safely is left alone.
"""

from collections.abc import Mapping
from typing import Final

from .jsonrpc import id_key
from .rawjson import item_spans, member_spans, past_space, text_of

_DATA: Final = b"data:"


def with_id(message: bytes, raw_id: bytes) -> bytes | None:
    """Return a JSON-RPC message with another `id`; `None` where it does not have exactly one."""
    return _replaced(message, 0, "id", raw_id)


def with_cancelled_ids(text: bytes, ids: Mapping[str, bytes]) -> bytes | None:
    """Return a message, or a batch, whose cancels name other requests; `None` where none does so.

    `ids` is what to name instead, by the `id_key` of what is named.
    """
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
    members = list(member_spans(message))
    methods = [text_of(message[a:b]) for name, a, b in members if name == "method"]
    if methods[-1:] != ["notifications/cancelled"]:
        return None
    params = [begin for name, begin, _ in members if name == "params"]
    if len(params) != 1:
        return None
    named = [(a, b) for name, a, b in member_spans(message, params[0]) if name == "requestId"]
    if len(named) != 1:
        return None
    begin, end = named[0]
    raw_id = ids.get(id_key(message[begin:end]))
    return message[:begin] + raw_id + message[end:] if raw_id is not None else None


def _replaced(text: bytes, start: int, name: str, value: bytes) -> bytes | None:
    found = [span for span in member_spans(text, start) if span[0] == name]
    if len(found) != 1:
        return None
    _, begin, end = found[0]
    return text[:begin] + value + text[end:]


def with_meta(message: bytes, name: str, value: bytes) -> bytes | None:
    """Return a JSON-RPC response whose `result._meta` has one more member, `value` as JSON.

    `None` where the result is no object, its `_meta` is none, or a key that matters stands twice.
    """
    results = [span for span in member_spans(message) if span[0] == "result"]
    if len(results) != 1 or not message.startswith(b"{", results[0][1]):
        return None
    start = results[0][1]
    metas = [span for span in member_spans(message, start) if span[0] == "_meta"]
    entry = b'"%b":%b' % (name.encode(), value)
    if not metas:
        return _inserted(message, start, b'"_meta":{%b}' % entry)
    if len(metas) > 1 or not message.startswith(b"{", metas[0][1]):
        return None
    if any(key == name for key, _, _ in member_spans(message, metas[0][1])):
        return None
    return _inserted(message, metas[0][1], entry)


def _inserted(text: bytes, start: int, member: bytes) -> bytes:
    """Put a member first into the object that begins at `start`."""
    empty = text.startswith(b"}", past_space(text, start + 1))
    return text[: start + 1] + member + (b"" if empty else b",") + text[start + 1 :]


def with_data(event: bytes, data: bytes) -> bytes:
    """Return the text of a whole event with other data, all its other lines as they were."""
    lines = event.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if line.startswith(_DATA)), None)
    if first is None:
        return event
    end = lines[first][len(lines[first].rstrip(b"\r\n")) :]
    new = b"".join(b"data: %b%b" % (line, end) for line in data.splitlines())
    kept = [line for line in lines[first + 1 :] if not line.startswith(_DATA)]
    return b"".join([*lines[:first], new, *kept])


def as_event(data: bytes) -> bytes:
    """Return one event of a stream: a message without an id (WHATWG HTML, section 9.2)."""
    return b"event: message\ndata: %b\n\n" % data


class Respelling:
    """Puts callers' ids back in place of those of later attempts, in text of any size.

    An attempt's id is a string that nobody else can know, so wherever it stands as a JSON string it
    means that request. At most its length is held back between two pieces.
    """

    __slots__ = ("_held", "_spellings")

    def __init__(self, spellings: Mapping[bytes, bytes]) -> None:
        self._spellings = spellings
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece; return what is sure of it and of what was held back."""
        text = self._held + piece
        for old, new in self._spellings.items():
            text = text.replace(old, new)
        keep = max(self._begun(text, old) for old in self._spellings)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> bytes:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, b""
        return held

    def _begun(self, text: bytes, old: bytes) -> int:
        """Return how many bytes at the end may be the start of an id."""
        first = max(len(text) - len(old) + 1, 0)
        place = text.find(old[:1], first)
        while place >= 0:
            if old.startswith(text[place:]):
                return len(text) - place
            place = text.find(old[:1], place + 1)
        return 0
