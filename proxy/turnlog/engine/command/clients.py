"""The clients of one command, and the requests that it has not answered yet."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import ErrorKind
from turnlog.exchange.duplicates import CANCELLED_LIFE
from turnlog.record.deadlines import LateReader
from turnlog.wire.jsonrpc import Message, id_key
from turnlog.wire.splice import with_id

from .process import Process
from .reply import CommandReply

_LONGEST_KEPT: Final = 64 * 1024
"""bytes: a longer message is not kept for a client without an open stream."""
_BACKLOG: Final = 256
"""Messages kept for a client without an open stream."""
_UNAWAITED: Final = 1024
"""Unanswered requests, without a client that waits, that are remembered."""


class Question(Struct, frozen=True):
    """An open request of the command: its id as the client knows it, and as the command does."""

    own_id: bytes
    raw_id: bytes


class CommandClient:
    """One client as its command sees it: a protocol session, or one credential without one."""

    def __init__(self) -> None:
        self._backlog: deque[bytes] = deque(maxlen=_BACKLOG)
        self.listener: CommandReply | None = None
        """Its stream for messages that belong to no request."""
        self.questions: dict[str, Question] = {}
        """The command's open requests, oldest first, by the keys of the ids that the client knows."""
        self.used = asyncio.get_running_loop().time()

    def listen(self, reply: CommandReply) -> None:
        """Send messages that belong to no request to this stream."""
        self.listener = reply
        self.drain(reply)

    def on_listener_closed(self, _: CommandReply) -> None:
        """Mark the listening stream as closed."""
        self.listener = None

    def keep(self, line: bytes) -> None:
        """Keep a message for the next stream; the oldest are dropped first."""
        if len(line) <= _LONGEST_KEPT:
            self._backlog.append(line)

    def drain(self, reply: CommandReply) -> None:
        """Send the kept messages, if this response may hold several."""
        while self._backlog and reply.streams:
            reply.add(self._backlog.popleft())

    def ask(self, own_id: bytes, raw_id: bytes) -> None:
        """Add a question of the command."""
        self.questions[id_key(own_id)] = Question(own_id, raw_id)

    def answered(self, message: Message, text: bytes) -> bytes | None:
        """Return the client's answer to a question with the command's id, once; `None` for any other."""
        # Of two ids in one message the command might read the other one.
        if with_id(text, message.id) is None:
            return None
        question = self.questions.pop(id_key(message.id), None)
        if question is None:
            return None
        return text if question.own_id == question.raw_id else with_id(text, question.raw_id)


class OpenRequest(Struct, eq=False, kw_only=True):
    """A request that has no answer yet."""

    client: CommandClient
    reply: CommandReply | None
    """The response for its answer; `None` once no client waits for it."""
    process: Process | None
    """The process that it was sent to."""
    raw_id: bytes
    """Its id as the command knows it."""
    own_id: bytes
    """Its id as the client knows it."""
    token: str = ""
    """Key of the progress token that the command knows; empty for none."""
    own_token: bytes = b""
    """The progress token that the client knows."""
    is_call: bool = False
    """Whether the command may ask the client something on its behalf."""
    is_cancelled: bool = False
    """Whether its client cancelled it; a duplicate may still want its answer."""


class PendingRequests:
    """The open requests of one command, by the keys of the ids that it knows."""

    def __init__(self) -> None:
        self._open: dict[str, OpenRequest] = {}
        self._unawaited: dict[str, None] = {}
        """Keys of those without a client that waits, in the order in which their clients left."""
        self._late: OrderedDict[str, tuple[LateReader, str]] = OrderedDict()
        """Readers of answers to requests that were given up, with the keys of the clients' ids."""

    def __iter__(self) -> Iterator[OpenRequest]:
        """Go through them, oldest first."""
        return iter(list(self._open.values()))

    def has(self, key: str) -> bool:
        """Return whether a request with this id is open."""
        return key in self._open

    def find(self, key: str) -> OpenRequest | None:
        """Return the request with this id."""
        return self._open.get(key)

    def with_token(self, token: str) -> OpenRequest | None:
        """Return the newest request whose progress is reported with this token."""
        return next((one for one in reversed(self._open.values()) if one.token == token), None)

    def replies(self, client: CommandClient | None = None) -> list[CommandReply]:
        """Return the responses that are waited for, of one client or of all."""
        found = (one.reply for one in self if client is None or one.client is client)
        return list(dict.fromkeys(reply for reply in found if reply is not None))

    def add(self, one: OpenRequest) -> None:
        """Add a request that is about to be sent."""
        key = id_key(one.raw_id)
        replaced = self.take(key)
        # A client may use an id again before it is answered: the next answer is the newer request's.
        if replaced is not None and replaced.reply is not None and not replaced.reply.awaited:
            replaced.reply.lift()
            replaced.reply.fail(ErrorKind.CONNECTION_LOST, "its id was used again")
        self._late.pop(key, None)
        self._open[key] = one
        if one.reply is not None:
            one.reply.awaited.add(key)

    def take(self, key: str) -> OpenRequest | None:
        """Remove a request: it is answered, or will not be."""
        one = self._open.pop(key, None)
        self._unawaited.pop(key, None)
        if one is not None and one.reply is not None:
            one.reply.awaited.discard(key)
        return one

    def forget(self, key: str) -> OpenRequest | None:
        """Remove a request that is given up; its response ends if it waits for nothing else."""
        one = self.take(key)
        if one is not None and one.reply is not None:
            self.keep_late(one)
            if not one.reply.awaited:
                one.reply.lift()
                one.reply.end()
        return one

    def keep_late(self, one: OpenRequest) -> None:
        """Remember the reader of a late answer to a request that is given up."""
        late = one.reply.progress.late if one.reply is not None else None
        if late is None or (reader := late()) is None:
            return
        self._late[id_key(one.raw_id)] = (reader, id_key(one.own_id))
        if len(self._late) > _UNAWAITED:
            self._late.popitem(last=False)

    def take_late(self, message: Message, text: bytes) -> None:
        """Report the late answer to a request that was given up."""
        reader, own_key = self._late.pop(id_key(message.id), (None, ""))
        if reader is not None:
            reader(own_key, message, text)

    def on_new_process(self) -> None:
        """Expect no late answers from the process before."""
        self._late.clear()

    def on_cancelled(self, key: str) -> None:
        """Drop a request that its client cancelled; a guarded one only after a grace."""
        one = self._open.get(key)
        if one is None or one.reply is None or not one.reply.progress.may_outlive:
            self.forget(key)
        elif not one.is_cancelled:
            one.is_cancelled = True
            asyncio.get_running_loop().call_later(CANCELLED_LIFE, self._on_grace_over, key, one)

    def _on_grace_over(self, key: str, one: OpenRequest) -> None:
        # Another request may have taken the same id since.
        if self._open.get(key) is one:
            self.forget(key)

    def on_left(self, reply: CommandReply) -> list[OpenRequest]:
        """Detach a response that its client has left; its requests stay open unless cancelled.

        Returns the oldest ones without a client, beyond a bound, which are to be cancelled.
        """
        for key in list(reply.awaited):
            one = self._open[key]
            self.keep_late(one)
            if one.is_cancelled:
                self.take(key)
            else:
                one.reply = None
                self._unawaited[key] = None
        reply.awaited.clear()
        reply.lift()
        surplus = islice(self._unawaited, max(len(self._unawaited) - _UNAWAITED, 0))
        taken = [self.take(key) for key in list(surplus)]
        return [one for one in taken if one is not None]
