"""One agent's side of a command: a protocol session, or what one credential asks without one.

What belongs to a seat may be told wherever it listens, and nowhere else.
"""

import asyncio
from collections import deque
from typing import Final

from .questions import Questions
from .reply import CommandReply

_KEPT: Final = 64 * 1024
"""bytes: a longer message is not kept for an agent that does not listen."""
_BACKLOG: Final = 256
"""Messages kept for an agent that listens to nothing at the moment."""


class CommandClient:
    """An agent as its command sees it."""

    def __init__(self) -> None:
        self._backlog: deque[bytes] = deque(maxlen=_BACKLOG)
        self.listener: CommandReply | None = None
        """Who hears what belongs to no request."""
        self.questions = Questions()
        self.used = asyncio.get_running_loop().time()

    def listen(self, reply: CommandReply) -> None:
        """Return a stream of the messages that belong to no request."""
        self.listener = reply
        self.drain(reply)

    def left(self, _: CommandReply) -> None:
        """Mark the listening stream as closed."""
        self.listener = None

    def keep(self, line: bytes) -> None:
        """Keep a message until somebody hears it; the oldest go first."""
        if len(line) <= _KEPT:
            self._backlog.append(line)

    def drain(self, reply: CommandReply) -> None:
        """Tell what was kept."""
        while self._backlog and reply.streams:
            reply.add(self._backlog.popleft())
