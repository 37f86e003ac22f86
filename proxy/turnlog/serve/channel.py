"""The old HTTP+SSE transport (2024-11-05): a stream of answers, and an endpoint for requests.

The stream's first event names the endpoint. What is posted there gets 202, and is answered on the
stream: so to its requests the endpoint is what a protocol session is in later revisions.
"""

from collections import OrderedDict
from typing import Final
from urllib.parse import urljoin, urlsplit

from turnlog.wire.jsonrpc import Kind, Message, id_key

from .routes import Route

_AWAITED: Final = 1024
"""Most requests of one stream that are remembered; the oldest goes first."""


class Channel:
    """One stream. `endpoint` is the target of its requests as the server sees it."""

    def __init__(self, server: str, endpoint: str) -> None:
        self.server = server
        self.endpoint = endpoint
        self.is_open = True
        self._awaited: OrderedDict[str, Message] = OrderedDict()

    def expect(self, message: Message) -> None:
        """Remember a request that is no call, whose answer tells something."""
        if message.kind is not Kind.REQUEST:
            return
        self._awaited[id_key(message.id)] = message
        if len(self._awaited) > _AWAITED:
            self._awaited.popitem(last=False)

    def asked(self, key: str) -> Message | None:
        """Return the request whose id has this key, once."""
        return self._awaited.pop(key, None)


class Channels:
    """The streams that are open now."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Channel] = {}

    def open(self, server: str, endpoint: str) -> Channel:
        """Take in a stream that has named its endpoint; of several with one endpoint the last counts."""
        channel = Channel(server, endpoint)
        self._open[server, endpoint] = channel
        return channel

    def close(self, channel: Channel) -> None:
        """Forget a stream that has ended."""
        channel.is_open = False
        if self._open.get((channel.server, channel.endpoint)) is channel:
            del self._open[channel.server, channel.endpoint]

    def find(self, route: Route) -> Channel | None:
        """Return the stream whose endpoint a request is for."""
        return self._open.get((route.target.name, route.resource)) if self._open else None


def endpoint_of(route: Route, named: str) -> str:
    """Return the target that an event names, as the server sees it.

    Empty for one of another origin, which clients refuse, and for what is no URL.
    """
    origin = route.target.origin
    try:
        url = urlsplit(urljoin(origin + route.resource, named))
    except ValueError:
        return ""
    if f"{url.scheme}://{url.netloc}".casefold() != origin.casefold():
        return ""
    return url.path + (f"?{url.query}" if url.query else "")


def renamed(route: Route, named: str, endpoint: str) -> bytes | None:
    """Return what the event says to the agent; `None` where that already leads back here."""
    if not route.prefix and not urlsplit(named).netloc:
        return None
    return (route.prefix + endpoint).encode("utf-8", "surrogateescape")
