"""The requests that one server has not answered, and which of them an answer is for (JSON-RPC 2.0, section 5)."""

from collections.abc import Callable, Collection, Iterator
from typing import Final, Generic, TypeVar

from turnlog.core.bounded_dict import BoundedDict
from turnlog.wire.json_stream import Outline
from turnlog.wire.jsonrpc import Message, id_key, meant_key

from .outcome import nameless_error

R = TypeVar("R")
GIVEN_UP: Final = 1024
"""Most requests that are remembered after nobody waits for their answers."""


def answered_key(
    message: Message | Outline, awaited: Collection[str], is_open: Callable[[str], bool]
) -> str:
    """Return the key of the request that a response is for; that of its own id where there is none.

    `awaited` are the keys of the requests whose answers may come here; others may be open elsewhere.
    """
    if len(awaited) == 1 and nameless_error(message):
        return next(iter(awaited))  # it answers the only request there is
    key = meant_key(id_key(message.id), is_open)
    # An id that was never given answers the request whose own id could not be read.
    return "" if "" in awaited and not is_open(key) else key


class OpenRequests(Generic[R]):
    """The requests without an answer, and those given up, by the keys of the ids that the server knows.

    An id may be used again before it is answered: an answer is then for the newest of its requests.
    """

    def __init__(self, is_awaited: Callable[[R], bool] = lambda _: True) -> None:
        """`is_awaited` is whether a client waits for the answer to an open request."""
        self._is_awaited = is_awaited
        self._open: dict[str, list[R]] = {}
        self._given_up: BoundedDict[str, R] = BoundedDict(GIVEN_UP)

    def __iter__(self) -> Iterator[R]:
        """Go through the open ones, oldest id first."""
        return iter([one for many in self._open.values() for one in many])

    def __bool__(self) -> bool:
        """Whether any is open."""
        return bool(self._open)

    @property
    def given_up(self) -> list[R]:
        """Those whose answers are late, oldest first."""
        return list(self._given_up.values())

    def add(self, key: str, one: R) -> None:
        """Add a request that is sent."""
        self._open.setdefault(key, []).append(one)

    def find(self, key: str) -> R | None:
        """Return the newest open request with this id."""
        return self._open[key][-1] if key in self._open else None

    def late(self, key: str) -> R | None:
        """Return the request with this id that was given up."""
        return self._given_up.get(key)

    def remove(self, key: str, one: R) -> bool:
        """Remove an open request; false where it is not open."""
        many = self._open.get(key, [])
        if one not in many:
            return False
        many.remove(one)
        if not many:
            del self._open[key]
        return True

    def give_up(self, key: str, one: R) -> bool:
        """Regard the answer to an open request as late; false where it is not open."""
        if not self.remove(key, one):
            return False
        self._given_up[key] = one
        return True

    def clear(self) -> None:
        """Expect no answer to the open ones any more; those given up stay."""
        self._open.clear()

    def forget_late(self) -> None:
        """Expect no late answers any more: the server that knew the requests is gone."""
        self._given_up.clear()

    def key_of(self, message: Message | Outline) -> str:
        """Return the key of the request that a response is for; that of its own id where there is none."""
        awaited: Collection[str] = self._open
        if nameless_error(message):
            awaited = [key for key, many in self._open.items() if any(map(self._is_awaited, many))]
        return answered_key(message, awaited, self._has)

    def _has(self, key: str) -> bool:
        return key in self._open or key in self._given_up

    def take(self, key: str) -> R | None:
        """Remove and return the request that is answered: the newest open one, else the one given up."""
        one = self.find(key)
        if one is None:
            return self._given_up.pop(key, None)
        self.remove(key, one)
        return one
