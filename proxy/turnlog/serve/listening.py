"""An agent's listening stream, as far as it is the one on which all answers come (2024-11-05)."""

from collections.abc import Sequence
from typing import Final

from turnlog.core.classify import failed
from turnlog.core.kinds import ErrorKind, Phase
from turnlog.store.base import Ticket
from turnlog.wire.jsonrpc import Message
from turnlog.wire.sse import Event

from .attempt import Reply
from .channel import Channel, endpoint_of, renamed
from .context import Context
from .request import Request
from .underway import Underway

_ENDPOINT: Final = "endpoint"
"""Type of the event that such a stream begins with."""


class Listening:
    """What an exchange that asks for nothing knows of that, whether it is such a stream or not."""

    def __init__(self, context: Context, request: Request, underway: Underway) -> None:
        self._context = context
        self._request = request
        self._underway = underway
        self._channel: Channel | None = None
        self._renamed: bytes | None = None
        self.spoken = False
        """Whether an event has come that says anything."""

    @property
    def is_channel(self) -> bool:
        """Whether requests are answered here."""
        return self._channel is not None

    def begins(self, event: Event) -> bool:
        """Take in an event; tell whether it is the first one of such a stream."""
        first, self.spoken = not self.spoken, True
        if not first or event.type != _ENDPOINT:
            return False
        route, named = self._request.route, event.data.decode("utf-8", "surrogateescape")
        host = self._request.field(b"host")
        if endpoint := endpoint_of(route, named, host):
            self._channel = self._context.channels.open(self._request.server, endpoint)
            self._request.joins(self._channel)
            self._renamed = renamed(route, named, host)
        return True

    def renamed(self) -> bytes | None:
        """Return what the event just taken in says to the agent; `None` where that is the same."""
        instead, self._renamed = self._renamed, None
        return instead

    def asked(self, key: str) -> Message | None:
        """Return the request, no call, that an answer here belongs to."""
        return self._channel.asked(key) if self._channel is not None else None

    def hang_up(self, kind: ErrorKind) -> Sequence[Ticket]:
        """Record that nothing more is answered here, for the reason `kind`."""
        channel, self._channel = self._channel, None
        if channel is None:
            return ()
        self._context.channels.close(channel)
        tickets: list[Ticket] = []
        for attempt in self._context.calls.detached(self._request.scope):
            why = ErrorKind.CANCELLED_BY_CALLER if attempt.cancelled else kind
            ending = failed(why, Phase.BODY, attempt.ask.effect)
            tickets += self._underway.end(attempt, ending, Reply())
        return tickets
