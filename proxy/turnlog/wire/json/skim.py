"""Read a few small values out of a JSON-RPC message of any size, piece by piece.

For messages too large to hold. Nothing but the values named in `PATHS` is kept, each cut; strings
and brackets outside them are skipped without a look at their grammar (`rawjson.Skipper`).
"""

from collections.abc import Callable
from types import MappingProxyType

from msgspec import Struct

from .rawjson import LITERAL, SCALAR, Shape, Skipper, decode_string, past_space, shape, string_end

PATHS = (
    "jsonrpc",
    "id",
    "method",
    "params",
    "params.name",
    "params.requestId",
    "params.taskId",
    "result",
    "result.isError",
    "result.resultType",
    "result.content",
    "result.structuredContent",
    "result.requestState",
    "result.taskId",
    "result.status",
    "result.ttl",
    "result.ttlMs",
    "result.task",
    "result.task.taskId",
    "result.task.status",
    "result.task.ttl",
    "result.task.ttlMs",
    "result.result",
    "result.result.isError",
    "result.result.resultType",
    "result.result.content",
    "result.result.structuredContent",
    "result.error",
    "result.error.code",
    "result.error.message",
    "error",
    "error.code",
    "error.message",
)
TOKEN_LIMIT = 4096
STATE_LIMIT = 65536
"""Bytes kept of `result.requestState`; a longer one is not recognised again."""
_KEY_LIMIT = 128
_BOM = b"\xef\xbb\xbf"


def _children() -> MappingProxyType[str, MappingProxyType[str, str]]:
    tree: dict[str, dict[str, str]] = {}
    for path in PATHS:
        parent, _, name = path.rpartition(".")
        tree.setdefault(parent, {})[name] = path
    return MappingProxyType({path: MappingProxyType(names) for path, names in tree.items()})


_CHILDREN = _children()


class Outline(Struct, frozen=True):
    """What was read of a message: `tokens` maps paths to JSON text.

    A token is a whole scalar, or its first `TOKEN_LIMIT` bytes, or `{}`, `[]` for an empty and
    `{`, `[` for any other container. The value at the path "" is the message itself.
    """

    tokens: dict[str, bytes]
    complete: bool
    """Whether the text was one whole JSON value, with nothing behind it."""

    def raw(self, path: str) -> bytes:
        """Return the token at a path; empty where there is none."""
        return self.tokens.get(path, b"")

    def shape(self, path: str) -> Shape:
        """Return the shape of the value at a path."""
        return shape(self.tokens.get(path, b""))


class Skimmer:
    """Takes the pieces of one JSON text; `finish` tells what was in it. Never raises.

    Of equal keys the last one counts, as it does for nearly every parser.
    """

    __slots__ = (
        "_bom",
        "_escaped",
        "_in_key",
        "_levels",
        "_path",
        "_skipper",
        "_step",
        "_token",
        "_tokens",
    )

    def __init__(self) -> None:
        self._step: Callable[[bytes, int], int] = self._begin
        self._tokens: dict[str, bytes] = {}
        self._levels: list[str] = []
        self._path: str | None = ""
        self._token = bytearray()
        self._in_key = False
        self._escaped = False
        self._bom = 0
        self._skipper = Skipper()

    def feed(self, data: bytes) -> None:
        """Read on."""
        place, size = 0, len(data)
        while place < size:
            place = self._step(data, place)

    def finish(self) -> Outline:
        """Return what was read. Call once, after the last piece."""
        if self._step == self._scalar and not self._levels:
            self._end_scalar()
        complete = self._step == self._after and not self._levels
        return Outline(self._tokens, complete)

    @property
    def outline(self) -> Outline | None:
        """What was read, if the text may end here: `None` amid a value, and for a bare number."""
        is_whole = self._step == self._after and not self._levels
        return Outline(self._tokens, is_whole) if is_whole else None

    @property
    def failed(self) -> bool:
        """Whether the text was seen not to be JSON."""
        return self._step == self._fail

    def _begin(self, data: bytes, place: int) -> int:
        if data[place] == _BOM[self._bom]:
            self._bom += 1
            if self._bom == len(_BOM):
                self._step = self._value
            return place + 1
        self._step = self._fail if self._bom else self._value
        return place

    def _fail(self, data: bytes, _place: int) -> int:
        self._step = self._fail
        return len(data)

    def _value(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        self._forget()
        self._token = bytearray()
        first = data[place]
        if first == 0x22:
            return self._open_string(place, in_key=False)
        if first in b"{[":
            return self._open(first, place)
        self._step = self._scalar
        return place

    def _forget(self) -> None:
        """Drop what an earlier member of the same name left."""
        path = self._path
        if path and path in self._tokens:
            self._tokens = {
                other: token
                for other, token in self._tokens.items()
                if other != path and not other.startswith(f"{path}.")
            }

    def _open(self, first: int, place: int) -> int:
        self._keep(bytes((first,)))
        if first == 0x7B and self._path is not None and self._path in _CHILDREN:
            self._levels.append(self._path)
            self._step = self._first_key
        else:
            self._step = self._peek
        return place + 1

    def _open_string(self, place: int, *, in_key: bool) -> int:
        self._token = bytearray(b'"')
        self._in_key = in_key
        self._escaped = False
        self._step = self._string
        return place + 1

    def _string(self, data: bytes, place: int) -> int:
        end, self._escaped = string_end(data, place, escaped=self._escaped)
        self._collect(data, place, len(data) if end < 0 else end)
        if end < 0:
            return len(data)
        if self._in_key:
            self._path = self._member()
            self._step = self._colon
        else:
            self._keep(bytes(self._token))
            self._step = self._after
        return end

    def _member(self) -> str | None:
        if len(self._token) > _KEY_LIMIT:
            return None
        return _CHILDREN[self._levels[-1]].get(decode_string(bytes(self._token)))

    def _collect(self, data: bytes, start: int, end: int) -> None:
        limit = STATE_LIMIT if self._path == "result.requestState" else TOKEN_LIMIT
        room = limit - len(self._token)
        if room > 0:
            self._token += data[start : min(end, start + room)]

    def _scalar(self, data: bytes, place: int) -> int:
        found = SCALAR.match(data, place)
        if found:
            self._collect(data, place, found.end())
            if found.end() == len(data):
                return found.end()
            place = found.end()
        return place if self._end_scalar() else len(data)

    def _end_scalar(self) -> bool:
        token = bytes(self._token)
        if len(token) < TOKEN_LIMIT and not LITERAL.fullmatch(token):
            self._step = self._fail
            return False
        self._keep(token)
        self._step = self._after
        return True

    def _keep(self, token: bytes) -> None:
        if self._path is not None:
            self._tokens[self._path] = token

    def _peek(self, data: bytes, place: int) -> int:
        """Look whether the container that was just opened is empty."""
        place = past_space(data, place)
        if place == len(data):
            return place
        if data[place] in b"]}":
            return self._close_empty(place)
        self._skipper = Skipper()
        self._step = self._skip
        return place

    def _close_empty(self, place: int) -> int:
        if self._path is not None:
            opened = self._tokens[self._path]
            self._tokens[self._path] = b"{}" if opened == b"{" else b"[]"
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
        if place < len(data) and data[place] == 0x7D:
            self._path = self._levels.pop()
            return self._close_empty(place)
        return self._key(data, place)

    def _key(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        if data[place] != 0x22:
            return self._fail(data, place)
        return self._open_string(place, in_key=True)

    def _colon(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        if data[place] != 0x3A:
            return self._fail(data, place)
        self._step = self._value
        return place + 1

    def _after(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        if self._levels and data[place] == 0x2C:
            self._step = self._key
            return place + 1
        if self._levels and data[place] == 0x7D:
            self._levels.pop()
            return place + 1
        return self._fail(data, place)
