"""Find the `id` of a JSON-RPC message in text that comes in pieces, and put another in its place.

Only the message's own member counts: what stands deeper, or under another name, is the tool's. All
else passes through as it comes; of an id as much is held back as may still be one of those wanted.
"""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Final

from .rawjson import SCALAR, Skipper, decode_string, past_space, string_end

_NAME: Final = "id"
_NAME_LIMIT: Final = 16
"""bytes: no spelling of the name is longer, be it all escapes."""
_TOKEN_LIMIT: Final = 512
"""bytes: no spelling of an attempt's id is longer."""
_QUOTE, _OPEN, _LIST = b'"{['
_BOM: Final = b"\xef\xbb\xbf"

_Step = Callable[[bytes, int], int]


class OwnId:
    """Reads one message, or an array of them, and changes the ids that `spellings` names.

    Its keys are ids as they read, its values JSON. Raises nothing; what is no JSON passes.
    """

    __slots__ = (
        "_batch",
        "_done",
        "_escaped",
        "_is_id",
        "_out",
        "_skipper",
        "_spellings",
        "_step",
        "_token",
    )

    def __init__(self, spellings: Mapping[str, bytes]) -> None:
        self._spellings = spellings
        self._step: _Step = self._start
        self._batch = False
        self._escaped = False
        """Whether the text so far ends within a string, behind a backslash that escapes."""
        self._is_id = False
        """Whether the value to come is the message's id."""
        self._token = b""
        """A name under way, or an id, which is held back."""
        self._skipper = Skipper()
        self._out: list[bytes] = []
        self._done = 0

    def feed(self, data: bytes) -> bytes:
        """Take a piece; return it, with what was held back, as far as it is sure."""
        self._done = place = 0
        size = len(data)
        while place < size:
            place = self._step(data, place)
        rest = data[self._done :] if self._done < size else b""
        if not self._out:
            return rest
        out, self._out = b"".join((*self._out, rest)), []
        return out

    def passes(self, data: bytes) -> bool:
        """Take a piece if all of it lies within one value and leaves as it is; else take nothing."""
        if self._step != self._skip:
            return False
        skipper = copy(self._skipper)
        if skipper.feed(data, 0) >= 0:
            return False
        self._skipper = skipper
        return True

    def finish(self) -> bytes:
        """Return what was held back, at the end of the text."""
        held = self._token if self._step == self._id else b""
        self._step = self._pass
        return held

    def _pass(self, data: bytes, _: int) -> int:
        """Let go by what is no message, or lies behind one."""
        return len(data)

    def _start(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        first = data[place]
        if first == _OPEN:
            self._step = self._name
        elif first == _LIST and not self._batch:
            self._batch = True
        elif not (first in _BOM or (self._batch and first == 0x2C)):
            self._step = self._pass
        return place + 1

    def _name(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        if data[place] != _QUOTE:
            return self._end(data, place)
        self._token, self._escaped = b'"', False
        self._step = self._in_name
        return place + 1

    def _in_name(self, data: bytes, place: int) -> int:
        end, self._escaped = string_end(data, place, escaped=self._escaped)
        stop = len(data) if end < 0 else end
        self._token += data[place : min(stop, place + _NAME_LIMIT + 1 - len(self._token))]
        if end >= 0:
            short = len(self._token) <= _NAME_LIMIT
            self._is_id = short and decode_string(self._token) == _NAME
            self._step = self._colon
        return stop

    def _colon(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        self._step = self._value if data[place] == 0x3A else self._pass
        return place + 1

    def _value(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        first = data[place]
        if first == _QUOTE:
            self._escaped = False
            if self._is_id:
                self._hold(data, place)
            self._step = self._id if self._is_id else self._string
            return place + 1
        if first in (_OPEN, _LIST):
            self._skipper = Skipper()
            self._step = self._skip
            return place + 1
        self._step = self._scalar
        return place

    def _id(self, data: bytes, place: int) -> int:
        end, self._escaped = string_end(data, place, escaped=self._escaped)
        stop = len(data) if end < 0 else end
        self._token += data[place:stop]
        self._done = stop
        if end >= 0:
            self._out.append(self._spelled(self._token))
            self._step = self._after
        elif len(self._token) > _TOKEN_LIMIT or b"\n" in self._token:
            self._out.append(self._token)
            self._step = self._string
        return stop

    def _spelled(self, token: bytes) -> bytes:
        if len(token) > _TOKEN_LIMIT:
            return token
        return self._spellings.get(decode_string(token), token)

    def _hold(self, data: bytes, place: int) -> None:
        """Hold back the opening quote of an id; what stands before it may go."""
        self._out.append(data[self._done : place])
        self._done = place + 1
        self._token = b'"'

    def _string(self, data: bytes, place: int) -> int:
        end, self._escaped = string_end(data, place, escaped=self._escaped)
        return self._passed(data, end)

    def _skip(self, data: bytes, place: int) -> int:
        return self._passed(data, self._skipper.feed(data, place))

    def _passed(self, data: bytes, end: int) -> int:
        """Go on behind a value that ends there, if it ends in this piece."""
        if end < 0:
            return len(data)
        self._step = self._after
        return end

    def _scalar(self, data: bytes, place: int) -> int:
        found = SCALAR.match(data, place)
        end = found.end() if found else place
        if end < len(data):
            self._step = self._after
        return end

    def _after(self, data: bytes, place: int) -> int:
        place = past_space(data, place)
        if place == len(data):
            return place
        if data[place] != 0x2C:
            return self._end(data, place)
        self._step = self._name
        return place + 1

    def _end(self, data: bytes, place: int) -> int:
        """End a message with its bracket; what stands in the bracket's place makes it none."""
        closes = data[place] == 0x7D
        self._step = self._start if closes and self._batch else self._pass
        return place + 1
