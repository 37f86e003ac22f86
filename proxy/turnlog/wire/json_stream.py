"""JSON text read in pieces, cut anywhere: values at a few places, and ids replaced in messages.

For text too large to hold. Only the wanted values are kept, each cut to a length. In all others only
strings and brackets are read, and the grammar is not checked.
"""

import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from .json_text import (
    BOM,
    LITERAL,
    SCALAR,
    Skipper,
    ValueShape,
    decode_string,
    past_space,
    shape,
    simple_members,
    string_end,
)

TOKEN_LIMIT: Final = 4096
STATE_LIMIT: Final = 65536
"""Bytes kept of `result.requestState`; a longer one cannot be recognised later."""
_KEY_LIMIT: Final = 128
# No spelling of an attempt's id is longer.
_ID_LIMIT: Final = 512
_QUOTE, _COLON, _COMMA, _LIST, _CLOSE_LIST, _OPEN, _CLOSE = b'":,[]{}'

_Step = Callable[[bytes, int], int]


class JsonPlace(Struct, frozen=True, eq=False, dict=True):
    """A place in a text whose value is wanted, and the wanted places inside that value."""

    path: str
    members: Mapping[str, "JsonPlace"] = {}
    item: "JsonPlace | None" = None
    """The place of each item, if the value is an array; `None` skips an array."""
    limit: int = TOKEN_LIMIT
    """Bytes that are kept of a scalar; 0 if only places inside the value are wanted."""

    @cached_property
    def skippable(self) -> re.Pattern[bytes]:
        """Matches a run of simple members that are not wanted."""
        return simple_members(tuple(self.members))

    @cached_property
    def skippable_items(self) -> re.Pattern[bytes]:
        """Matches a run of simple items of an array without wanted places."""
        return simple_members(tuple(self.item.members) if self.item else (), objects=True)


class FoundValue(NamedTuple):
    """A wanted value: a scalar, or its first `limit` bytes, or the brackets of a container.

    Its token is `{}` or `[]` for an empty container, `{` or `[` for any other.
    """

    place: JsonPlace
    token: bytes
    begin: int
    """Its offset from the start of the text, in bytes."""
    end: int


class JsonStream:
    """An incremental reader of one JSON text that reports the values at the wanted places.

    Never raises. Text is skipped from the position on where it turns out not to be JSON.
    """

    __slots__ = (
        "_begin",
        "_escaped",
        "_found",
        "_in_key",
        "_levels",
        "_mark",
        "_place",
        "_skipper",
        "_step",
        "_token",
        "size",
    )

    def __init__(self, root: JsonPlace) -> None:
        self.size = 0
        """Bytes fed before the current piece."""
        self._step: _Step = self._start
        self._place: JsonPlace | None = root
        """The place of the next or current value; `None` for one that is not wanted."""
        self._levels: list[tuple[JsonPlace, int]] = []
        """The open containers that are read, each with its closing bracket."""
        self._found: list[FoundValue] = []
        self._token = bytearray()
        self._begin = 0
        """Start of the current scalar or key."""
        self._in_key = False
        self._escaped = False
        self._mark = 0
        self._skipper = Skipper()

    def feed(self, data: bytes) -> list[FoundValue]:
        """Read a piece; return the wanted values that end in it, and the containers that begin."""
        self._found = []
        place, size = 0, len(data)
        while place < size:
            place = self._step(data, place)
        self.size += size
        return self._found

    def finish(self) -> list[FoundValue]:
        """End the text; return its value if that is a bare number or literal."""
        self._found = []
        if self._step == self._scalar and not self._levels:
            self._end_scalar(0)
        return self._found

    @property
    def is_whole(self) -> bool:
        """Whether the text may end here; a bare number may only after `finish`."""
        return self._step == self._after and not self._levels

    @property
    def failed(self) -> bool:
        """Whether the text is known not to be JSON."""
        return self._step == self._fail

    @property
    def open_string(self) -> int:
        """Offset of the current wanted string, in bytes from the start; -1 for none."""
        is_open = self._step == self._string and not self._in_key
        return self._begin if is_open and self._place is not None and self._place.limit else -1

    def passes(self, data: bytes) -> bool:
        """Return true after reading a piece if all of it is inside one unwanted value; else read nothing."""
        if self._step != self._skip:
            return False
        skipper = copy(self._skipper)
        if skipper.feed(data, 0) >= 0:
            return False
        self._skipper = skipper
        self.size += len(data)
        return True

    # -- steps: each reads a part of a piece, and returns the position where the next one begins --

    def _start(self, data: bytes, place: int) -> int:
        if data[place] == BOM[self._mark]:
            self._mark += 1
            if self._mark == len(BOM):
                self._step = self._value
            return place + 1
        self._step = self._fail if self._mark else self._value
        return place

    def _fail(self, data: bytes, _place: int) -> int:
        self._step = self._fail
        return len(data)

    def _value(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        first = data[place]
        if first == _QUOTE:
            return self._open_string(place, in_key=False)
        if first in (_OPEN, _LIST):
            return self._open(first, place)
        self._token.clear()
        self._begin = self.size + place
        self._step = self._scalar
        return place

    def _open(self, first: int, place: int) -> int:
        wanted = self._place
        self._begin = self.size + place
        self._report(bytes((first,)), place + 1)
        if first == _OPEN and wanted is not None and wanted.members:
            self._levels.append((wanted, _CLOSE))
            self._step = self._first_key
        elif first == _LIST and wanted is not None and wanted.item is not None:
            self._levels.append((wanted, _CLOSE_LIST))
            self._step = self._first_item
        else:
            self._step = self._peek
        return place + 1

    def _open_string(self, place: int, *, in_key: bool) -> int:
        self._token[:] = b'"'
        self._begin = self.size + place
        self._in_key = in_key
        self._escaped = False
        self._step = self._string
        return place + 1

    def _string(self, data: bytes, place: int) -> int:
        end, self._escaped = string_end(data, place, escaped=self._escaped)
        stop = len(data) if end < 0 else end
        if self._in_key:
            self._collect(data, place, stop, _KEY_LIMIT + 1)
        elif self._place is not None:
            self._collect(data, place, stop, self._place.limit)
        if end < 0:
            return stop
        if self._in_key:
            self._place = self._member()
            self._step = self._colon
        else:
            self._report(bytes(self._token), end)
            self._step = self._after
        return end

    def _member(self) -> JsonPlace | None:
        if len(self._token) > _KEY_LIMIT:
            return None
        return self._levels[-1][0].members.get(decode_string(bytes(self._token)))

    def _collect(self, data: bytes, start: int, end: int, limit: int) -> None:
        room = limit - len(self._token)
        if room > 0:
            self._token += data[start : min(end, start + room)]

    def _scalar(self, data: bytes, place: int) -> int:
        found = SCALAR.match(data, place)
        if found:
            self._collect(data, place, found.end(), TOKEN_LIMIT)
            place = found.end()
            if place == len(data):
                return place
        self._end_scalar(place)
        return place

    def _end_scalar(self, place: int) -> None:
        # A longer one is cut and not checked.
        if len(self._token) < TOKEN_LIMIT and not LITERAL.fullmatch(self._token):
            self._step = self._fail
            return
        self._report(bytes(self._token), place)
        self._step = self._after

    def _report(self, token: bytes, end: int) -> None:
        if self._place is not None and self._place.limit:
            self._found.append(FoundValue(self._place, token, self._begin, self.size + end))

    def _peek(self, data: bytes, place: int) -> int:
        """Check whether the container that was just opened is empty."""
        place = past_space(data, place)
        if place == len(data):
            return place
        if data[place] in b"]}":
            return self._close_empty(data[place], place)
        self._skipper = Skipper()
        self._step = self._skip
        return place

    def _close_empty(self, closing: int, place: int) -> int:
        self._report(b"{}" if closing == _CLOSE else b"[]", place + 1)
        self._step = self._after
        return place + 1

    def _skip(self, data: bytes, place: int) -> int:
        end = self._skipper.feed(data, place)
        if end < 0:
            return len(data)
        self._step = self._after
        return end

    def _first_key(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place < len(data) and data[place] == _CLOSE:
            self._place, _ = self._levels.pop()
            return self._close_empty(_CLOSE, place)
        return self._key(data, place)

    def _key(self, data: bytes, place: int) -> int:
        if run := self._levels[-1][0].skippable.match(data, place):
            self._step = self._key
            place = run.end()
        place = past_space(data, place)
        if place == len(data):
            return place
        if data[place] != _QUOTE:
            return self._fail(data, place)
        return self._open_string(place, in_key=True)

    def _first_item(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        if data[place] == _CLOSE_LIST:
            self._place, _ = self._levels.pop()
            return self._close_empty(_CLOSE_LIST, place)
        return self._item(data, place)

    def _item(self, data: bytes, place: int) -> int:
        within, _ = self._levels[-1]
        self._place = within.item
        self._step = self._value
        run = within.skippable_items.match(data, place)
        return run.end() if run else place

    def _colon(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        if data[place] != _COLON:
            return self._fail(data, place)
        self._step = self._value
        return place + 1

    def _after(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        if not self._levels:
            return self._fail(data, place)
        closing = self._levels[-1][1]
        if data[place] == closing:
            self._levels.pop()
            return place + 1
        if data[place] != _COMMA:
            return self._fail(data, place)
        self._step = self._key if closing == _CLOSE else self._item
        return place + 1


# -- the outline of a message ------------------------------------------------------------------


_Tree = Mapping[str, "_Tree"]


def _leaves(*names: str) -> _Tree:
    return {name: {} for name in names}


_ENDED: Final = _leaves("isError", "resultType", "content", "structuredContent")
_STANDS: Final = _leaves("taskId", "status", "ttl", "ttlMs")
_ERROR: Final = _leaves("code", "message")
_RESULT: Final = {**_ENDED, **_STANDS, **_leaves("requestState")}
_TREE: Final = {
    **_leaves("jsonrpc", "id", "method"),
    "params": _leaves("name", "requestId", "taskId"),
    "result": {**_RESULT, "task": _STANDS, "result": _ENDED, "error": _ERROR},
    "error": _ERROR,
}


def _place(path: str, tree: _Tree) -> JsonPlace:
    members = {name: _place(f"{path}.{name}".lstrip("."), tree[name]) for name in tree}
    return JsonPlace(
        path, members, limit=STATE_LIMIT if path.endswith("requestState") else TOKEN_LIMIT
    )


def _type_of(place: JsonPlace) -> Any:
    """Return the type of an object whose members at wanted places are `Raw`."""
    fields: list[tuple[str, Any, Any]] = [
        (name, _type_of(inner) | None | UnsetType, UNSET) if inner.members else (name, Raw, Raw())
        for name, inner in place.members.items()
    ]
    return msgspec.defstruct("Members", fields, gc=False)


MESSAGE: Final = _place("", _TREE)
"""What an outline holds, as far as it is there."""
_decode = msgspec.json.Decoder(_type_of(MESSAGE)).decode
_CONTAINERS: Final = {
    (ValueShape.EMPTY, b"{"): b"{}",
    (ValueShape.EMPTY, b"["): b"[]",
    (ValueShape.FULL, b"{"): b"{",
    (ValueShape.FULL, b"["): b"[",
}


class Outline(Struct, frozen=True):
    """A few values of a message: `tokens` maps paths to JSON text.

    A token is a whole scalar, or its first `TOKEN_LIMIT` bytes, or `{}`, `[]` for an empty and
    `{`, `[` for any other container. The value at the path "" is the message itself. Of equal keys
    the last one counts, as it does for nearly every parser.
    """

    tokens: dict[str, bytes]
    complete: bool
    """Whether the text was one whole JSON value, with nothing after it."""
    failed: bool = False
    """Whether it is not JSON; otherwise an incomplete text is only cut."""

    @property
    def id(self) -> bytes:
        """The message's id as text; empty for none."""
        return self.tokens.get("id", b"")

    def raw(self, path: str) -> bytes:
        """Return the token at a path; empty for none."""
        return self.tokens.get(path, b"")


class OutlineReader:
    """An incremental reader of one message; `finish` returns its outline. Never raises."""

    __slots__ = ("_stream", "_tokens")

    def __init__(self) -> None:
        self._stream = JsonStream(MESSAGE)
        self._tokens: dict[str, bytes] = {}

    def feed(self, data: bytes) -> None:
        """Read the next piece."""
        for found in self._stream.feed(data):
            self._put(found)

    def finish(self) -> Outline:
        """Return what was read. Call once, after the last piece."""
        for found in self._stream.finish():
            self._put(found)
        return Outline(self._tokens, self._stream.is_whole, self._stream.failed)

    @property
    def outline(self) -> Outline | None:
        """The outline, if the text may end here; `None` inside a value, and for a bare number."""
        return Outline(self._tokens, True) if self._stream.is_whole else None

    def _put(self, found: FoundValue) -> None:
        path = found.place.path
        if path in self._tokens and path:
            # An earlier member of the same name is dropped, with its content.
            self._tokens = {
                other: token
                for other, token in self._tokens.items()
                if other != path and not other.startswith(f"{path}.")
            }
        self._tokens[path] = found.token


def outline_of(text: bytes) -> Outline:
    """Return the outline of a whole text: the same as in pieces, many times faster."""
    tokens: dict[str, bytes] = {}
    try:
        _put_members(MESSAGE, _decode(text), tokens)
    except (ValueError, RecursionError):
        # Not strict JSON, or an unusual type of value at some place.
        reader = OutlineReader()
        reader.feed(text)
        return reader.finish()
    return Outline(tokens, complete=True)


def _put_members(place: JsonPlace, found: Struct | None, tokens: dict[str, bytes]) -> None:
    if found is None:
        tokens[place.path] = b"null"
        return
    size = len(tokens)
    tokens[place.path] = b"{"
    for name, inner in place.members.items():
        value = getattr(found, name)
        if inner.members and value is not UNSET:
            _put_members(inner, value, tokens)
        elif value:
            tokens[inner.path] = _token(value, inner.limit)
    if len(tokens) == size + 1:
        raise ValueError("nothing was found in it: it may be empty")


def _token(raw: Raw, limit: int) -> bytes:
    token = _CONTAINERS.get((shape(raw), bytes(memoryview(raw)[:1])))
    return bytes(memoryview(raw)[:limit]) if token is None else token


# -- another id for a message ------------------------------------------------------------------

_ID_OF_ONE: Final = {"id": JsonPlace("id", limit=_ID_LIMIT)}
_ID: Final = JsonPlace("", _ID_OF_ONE, item=JsonPlace("", _ID_OF_ONE, limit=0), limit=0)


class IdReplacer:
    """Replaces ids in one JSON-RPC message, or in an array of them: those that `replacements` names.

    Its keys are decoded ids, its values JSON. Only a message's own `id` is replaced: deeper ones, and
    other members, belong to the tool. Never raises; text that is not JSON passes unchanged.
    """

    __slots__ = ("_held", "_replacements", "_stream")

    def __init__(self, replacements: Mapping[str, bytes]) -> None:
        self._replacements = replacements
        self._stream = JsonStream(_ID)
        self._held = b""
        """The start of an id whose end has not arrived."""

    def feed(self, data: bytes) -> bytes:
        """Read a piece; return what can be sent: only the start of an id is held back."""
        stream = self._stream
        start = done = stream.size - len(self._held)
        found = stream.feed(data)
        begun = stream.open_string
        if not found and not self._held and begun < 0:
            return data
        text = self._held + data
        out: list[bytes] = []
        for each in found:
            # The part before `done` was sent: it was too long for an id.
            if each.begin >= done and (new := self._new(each)) is not None:
                out += text[done - start : each.begin - start], new
                done = each.end
        self._held = b""
        if begun >= done and self._may_be_id(text[begun - start :]):
            self._held = text[begun - start :]
        out.append(text[done - start : len(text) - len(self._held)])
        return b"".join(out)

    def passes(self, data: bytes) -> bool:
        """Return true after reading a piece if all of it is inside one value and can be sent unchanged."""
        return self._stream.passes(data)

    def finish(self) -> bytes:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, b""
        return held

    def _new(self, found: FoundValue) -> bytes | None:
        is_whole = found.end - found.begin == len(found.token)
        if not is_whole or not found.token.startswith(b'"'):
            return None
        return self._replacements.get(decode_string(found.token))

    def _may_be_id(self, start: bytes) -> bool:
        # No string contains a line feed, but one may split the data of an event.
        return len(start) <= _ID_LIMIT and b"\n" not in start
