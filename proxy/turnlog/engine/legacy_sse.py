"""The old HTTP+SSE transport (2024-11-05): a stream of answers, and an endpoint for requests.

The stream's first event names the endpoint. What is posted there gets 202, and is answered on the
stream: so to its requests the endpoint is what a protocol session is in later revisions.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from turnlog.core.bounded_dict import BoundedDict
from turnlog.transport.routes import Route
from turnlog.wire.jsonrpc import Kind, Message, id_key

_PLACES: Final = 8
"""Most targets that the requests of one stream have."""
_AWAITED: Final = 1024
"""Most requests of one stream that are remembered; the oldest goes first."""

Say = Callable[[bytes], Awaitable[bool]]
"""Sends the agent a message as an event of its stream; returns whether it got that."""


class LegacyStream:
    """One stream. `endpoint` is the target of its requests as the server sees it."""

    def __init__(
        self, server: str, endpoint: str, target: str = "", say: Say | None = None
    ) -> None:
        self.server = server
        self.endpoint = endpoint
        self.places = {endpoint}
        """Targets of its requests: the endpoint, and where the server has redirected them to."""
        self.target = target
        """Digest of the stream's URL: each stream has another endpoint."""
        self.is_open = True
        self.has_broken = False
        """Whether it was cut off, and not ended in order."""
        self._say = say
        self._awaited: BoundedDict[str, Message] = BoundedDict(_AWAITED)

    async def say(self, message: bytes) -> bool:
        """Send the agent a message of turnlog's as an event; return whether it got that."""
        return self.is_open and self._say is not None and await self._say(message)

    def expect(self, message: Message) -> None:
        """Remember a request that is no call, whose answer tells something."""
        if message.kind is Kind.REQUEST:
            self._awaited[id_key(message.id)] = message

    @property
    def unanswered(self) -> list[Message]:
        """The requests, no calls, that were not answered."""
        return list(self._awaited.values())

    def is_asked(self, key: str) -> bool:
        """Return whether a request whose id has this key waits for its answer."""
        return key in self._awaited

    def asked(self, key: str) -> Message | None:
        """Return the request whose id has this key, once."""
        return self._awaited.pop(key, None)


class LegacyStreams:
    """The streams that are open now."""

    def __init__(self) -> None:
        self.by_endpoint: dict[tuple[str, str], LegacyStream] = {}
        """Streams by server and endpoint."""

    def open(
        self, server: str, endpoint: str, target: str = "", say: Say | None = None
    ) -> LegacyStream:
        """Register a stream that has named its endpoint; of several with one endpoint the last counts."""
        channel = LegacyStream(server, endpoint, target, say)
        self.by_endpoint[server, endpoint] = channel
        return channel

    def move(self, channel: LegacyStream, resource: str) -> None:
        """Add a resource to which the server has redirected requests of a stream."""
        if channel.is_open and len(channel.places) < _PLACES:
            channel.places.add(resource)
            self.by_endpoint[channel.server, resource] = channel

    def close(self, channel: LegacyStream) -> None:
        """Forget a stream that has ended."""
        channel.is_open = False
        for place in channel.places:
            if self.by_endpoint.get((channel.server, place)) is channel:
                del self.by_endpoint[channel.server, place]

    def find(self, route: Route) -> LegacyStream | None:
        """Return the stream whose endpoint a request is for."""
        return self.by_endpoint.get((route.target.name, route.resource))


def endpoint_of(route: Route, named: str, host: str) -> str:
    """Return the target that an event names, as the server sees it; `host` is the agent's Host.

    Empty for one of another origin, which clients refuse, and for what is no URL.
    """
    found = route.own_resource(named, host)
    return found.partition("#")[0] if found is not None else ""


def renamed(route: Route, named: str, host: str) -> bytes | None:
    """Return what the event says to the agent; `None` where that already leads back here."""
    back = route.led_back(named, host)
    return back.encode("utf-8", "surrogateescape") if back is not None else None
