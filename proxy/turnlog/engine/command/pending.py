"""The requests that one command has not answered, and who waits for that."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct, structs

from turnlog.exchange.duplicates import CANCELLED_LIFE
from turnlog.record.errors import LateReader
from turnlog.wire.jsonrpc import Message, id_key

from .client import CommandClient
from .process import Process
from .reply import CommandReply

_MOST: Final = 1024
"""Requests that nobody waits for, and that a command has not answered."""


class OpenRequest(Struct, frozen=True, kw_only=True):
    """A request that has no answer yet."""

    seat: CommandClient
    reply: CommandReply | None
    """Where its answer goes; `None` once nobody waits for it."""
    process: Process | None
    """What has to answer."""
    raw_id: bytes
    """As the command knows it."""
    own_id: bytes
    """As the agent does."""
    token: bytes = b""
    """With what the command reports progress; empty for none."""
    own_token: bytes = b""
    """With what the agent expects it."""
    is_call: bool = False
    """Whether the command may ask the agent something for its sake."""
    is_cancelled: bool = False
    """Whether its agent took it back; somebody else may want its answer."""


class PendingRequests:
    """All of one command's, by the keys of their ids."""

    def __init__(self) -> None:
        self._open: dict[str, OpenRequest] = {}
        self._unawaited: dict[str, None] = {}
        """Those that nobody waits for, by the same keys, those left first in front."""
        self._tokens: dict[str, str] = {}
        """Keys of requests by those of their progress tokens."""
        self._late: OrderedDict[str, tuple[LateReader, str]] = OrderedDict()
        """What reads late answers, to requests that were given up, and the keys of their agents' ids."""

    def __iter__(self) -> Iterator[OpenRequest]:
        """Go through them, oldest first."""
        return iter(list(self._open.values()))

    def add(self, one: OpenRequest) -> None:
        """Wait for an answer."""
        key = id_key(one.raw_id)
        self.take(key)
        self._late.pop(key, None)
        self._open[key] = one
        if one.reply is not None:
            one.reply.awaited.add(key)
        if one.token:
            self._tokens[id_key(one.token)] = key

    def has(self, key: str) -> bool:
        """Return whether there is one with an id."""
        return key in self._open

    def find(self, key: str) -> OpenRequest | None:
        """Return the one with an id."""
        return self._open.get(key)

    def reported(self, token: str) -> OpenRequest | None:
        """Return the one whose progress is reported with a token."""
        return self._open.get(self._tokens.get(token, ""))

    def take(self, key: str) -> OpenRequest | None:
        """Wait for one no more: it is answered, or will not be."""
        one = self._open.pop(key, None)
        if one is None:
            return None
        self._unawaited.pop(key, None)
        if one.token and self._tokens.get(id_key(one.token)) == key:
            del self._tokens[id_key(one.token)]
        if one.reply is not None:
            one.reply.awaited.discard(key)
        return one

    def forget(self, key: str) -> OpenRequest | None:
        """Wait for one no more; a reply that waits for nothing else is over."""
        one = self.take(key)
        if one is None or one.reply is None:
            return one
        self.leave(one)
        if not one.reply.awaited:
            one.reply.lift()
            one.reply.end()
        return one

    def leave(self, one: OpenRequest) -> None:
        """Remember what reads the late answer to a request that is given up."""
        if one.reply is None or one.reply.late is None:
            return
        self._late[id_key(one.raw_id)] = (one.reply.late, id_key(one.own_id))
        if len(self._late) > _MOST:
            self._late.popitem(last=False)

    def take_late(self, message: Message, text: bytes) -> None:
        """Report a late answer to a request that was given up."""
        reader, own_key = self._late.pop(id_key(message.id), (None, ""))
        if reader is not None:
            reader(own_key, message, text)

    def clear_late(self) -> None:
        """Forget what a process that has ended was asked."""
        self._late.clear()

    def cancelled(self, key: str) -> None:
        """Mark a request as cancelled: nobody has to answer it, and soon nobody waits."""
        one = self._open.get(key)
        if one is None or one.reply is None or not one.reply.is_guarded:
            self.forget(key)
        elif not one.is_cancelled:
            one = self._open[key] = structs.replace(one, is_cancelled=True)
            asyncio.get_running_loop().call_later(CANCELLED_LIFE, self._drop, key, one)

    def _drop(self, key: str, one: OpenRequest) -> None:
        # Another request may have taken the same id since.
        if self._open.get(key) is one:
            self.forget(key)

    def left(self, reply: CommandReply) -> list[OpenRequest]:
        """Learn that nobody waits for what a reply waits for, which will come all the same, unless it
        was taken back; return what is to be taken back, because so much else is left."""
        for key in list(reply.awaited):
            self.leave(self._open[key])
            if self._open[key].is_cancelled:
                self.take(key)
            else:
                self._open[key] = structs.replace(self._open[key], reply=None)
                self._unawaited[key] = None
        reply.awaited.clear()
        reply.lift()
        surplus = islice(self._unawaited, max(len(self._unawaited) - _MOST, 0))
        return [one for key in list(surplus) if (one := self.take(key)) is not None]

    def waiting(self, seat: CommandClient) -> list[CommandReply]:
        """Return where one agent waits for answers, each once."""
        found = (one.reply for one in self._open.values() if one.seat is seat)
        return list(dict.fromkeys(reply for reply in found if reply is not None))

    @property
    def replies(self) -> set[CommandReply]:
        """Where answers are waited for."""
        return {one.reply for one in self._open.values() if one.reply is not None}

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for any of them."""
        return any(one.reply is not None for one in self._open.values())
