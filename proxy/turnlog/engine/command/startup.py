"""How long a command may take until it says anything, and what its calls come to where it never does."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from turnlog.core.kinds import ErrorKind
from turnlog.engine.tools.tool_cache import ActiveRules
from turnlog.rules.expression import UNREADABLE
from turnlog.rules.policy import Subject
from turnlog.wire.message import is_length_header

FRAMED: Final = (
    "it frames its messages with Content-Length, as the Language Server Protocol does; "
    "MCP over stdio is one message a line"
)
"""What the log says of a command that speaks something else, and is not understood."""
ENDED: Final = "it ended before it answered anything"
"""What the log says of a command that failed to start."""
_DEFAULT: Final = 600.0
"""s: a command may have to be downloaded and built before it starts."""


class Startup:
    """Waits for the first message of one command, from when something is asked of it.

    `limit` is in s; `expired` is called when it is reached.
    """

    def __init__(self, limit: float, expired: Callable[[], None]) -> None:
        self._limit = limit
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        self.heard = False
        """Whether it has said anything."""
        self.over = False
        """Whether the limit was reached before."""
        self._framed = False
        """Whether it was seen to speak something else than lines."""

    @property
    def is_awaited(self) -> bool:
        """Whether something was asked, and nothing ever came of it."""
        return self._asked and not self.heard

    @property
    def detail(self) -> str:
        """Return that the limit was reached, or why it would be."""
        if self._framed:
            return FRAMED
        return f"the limit timeout.startup of {self._limit:g} s was reached"

    def ask(self) -> None:
        """Start the limit: something is asked of the command."""
        if self._asked:
            return
        self._asked = True
        if not self.heard and self._limit < inf:
            self._timer = asyncio.get_running_loop().call_later(self._limit, self._reached)

    def hear(self) -> None:
        """Mark the command as started: it has said something."""
        self.heard = True
        self.close()

    def is_foreign(self, line: bytes) -> bool:
        """Return whether a line that is no message is the first that shows that none will come."""
        if self._framed or self.heard or not is_length_header(line):
            return False
        self._framed = True
        return True

    def close(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def loss(self, *, untouched: bool) -> ErrorKind:
        """Return what the open calls come to when the command has ended.

        A command that has read nothing (`untouched`) has done nothing.
        """
        if self.over:
            return ErrorKind.CONNECT_TIMEOUT if untouched else ErrorKind.RESPONSE_TIMEOUT
        return ErrorKind.CONNECT_FAILED if untouched else ErrorKind.CONNECTION_LOST

    def _reached(self) -> None:
        self.over = True
        self._expired()


def startup_limit(rules: ActiveRules, server: str) -> float:
    """Return `timeout.startup` of a server, in s, by the rules that are for all it is asked."""
    subject = Subject(server=server, tool="", method="initialize")
    limit = rules.book.policy(subject, lambda: UNREADABLE).timeout.startup
    return _DEFAULT if limit is None else limit
