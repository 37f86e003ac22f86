"""The clients of one command: their requests, the questions to them, and the messages kept for them."""

import asyncio
from collections import deque
from typing import Final

from msgspec import Struct

from turnlog.record.deadlines import LateReader
from turnlog.wire.jsonrpc import Message, id_key
from turnlog.wire.splice import with_id

from .reply import CommandReply

_LONGEST_KEPT: Final = 64 * 1024
"""bytes: a longer message is not kept for a client without an open stream."""
_BACKLOG: Final = 256
"""Messages kept for a client without an open stream."""


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
    """A request that has no answer yet, or was given up."""

    key: str
    """Key of its id as the command knows it."""
    raw_id: bytes
    """Its id as the command knows it."""
    own_id: bytes
    """Its id as the client knows it."""
    client: CommandClient
    reply: CommandReply | None
    """The response for its answer; `None` once no client waits for it."""
    process: int
    """The number of the process that it was sent to."""
    token: str = ""
    """Key of the progress token that the command knows; empty for none."""
    own_token: bytes = b""
    """The progress token that the client knows."""
    is_call: bool = False
    """Whether the command may ask the client something on its behalf."""
    is_cancelled: bool = False
    """Whether its client cancelled it; a duplicate may still want its answer."""
    late: LateReader | None = None
    """Reads its answer, once no client waits for that."""

    def detach(self) -> CommandReply | None:
        """Leave its answer to the reader of late ones; return the response that waited for it."""
        reply, self.reply = self.reply, None
        if reply is not None:
            reply.awaited.discard(self.key)
            if reply.progress.late is not None:
                self.late = reply.progress.late()
        return reply
