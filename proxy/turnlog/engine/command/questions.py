"""Maps the ids of a process's requests to those that one client knows."""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw, Struct

from turnlog.wire.jsonrpc import Message, id_key
from turnlog.wire.splice import with_id

_INTERNAL_ERROR: Final = -32603


class Question(Struct, frozen=True):
    """A question that is open: its id as the agent knows it, and as the command does."""

    own_id: bytes
    raw_id: bytes


class Questions:
    """The questions that one agent has got and not answered."""

    def __init__(self) -> None:
        self._open: dict[str, Question] = {}
        """By the keys of the ids that the agent knows."""

    def __iter__(self) -> Iterator[Question]:
        """Go through them, oldest first."""
        return iter(self._open.values())

    def add(self, own_id: bytes, raw_id: bytes) -> None:
        """Note that the agent is asked."""
        self._open[id_key(own_id)] = Question(own_id, raw_id)

    def clear(self) -> None:
        """Wait for no answer: who asked is gone."""
        self._open.clear()

    def find(self, key: str) -> Question | None:
        """Return the one that the command knows by an id with this key."""
        return next((one for one in self if id_key(one.raw_id) == key), None)

    def answer(self, message: Message, text: bytes) -> bytes | None:
        """Return an agent's answer as the command is to read it, once; `None` for what is none."""
        # Of two ids the command might read the other one.
        if with_id(text, message.id) is None:
            return None
        question = self._open.pop(id_key(message.id), None)
        if question is None:
            return None
        return text if question.own_id == question.raw_id else with_id(text, question.raw_id)


def refusal(raw_id: bytes, why: str) -> bytes:
    """Return the error that answers a command's question."""
    error = {"code": _INTERNAL_ERROR, "message": why}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(raw_id), "error": error})
