"""What the handlers of all requests share. Built once, in `serve.app`."""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from turnlog.core.principal import PrincipalNames
from turnlog.core.redact import Redactor
from turnlog.observe.event import Log
from turnlog.store.base import Store
from turnlog.store.states import SavedStates

from .calls import OpenCalls
from .catalog import Catalog
from .channel import Channels
from .clock import Clock
from .health import Health
from .identity import Clients, Sessions
from .keeper import Keeper
from .known import KnownTools, Rules
from .pins import Pins
from .places import Places
from .plain_tools import PlainTools
from .recorder import Recorder
from .redirects import Redirected
from .repeats import Repeats
from .request import Digest
from .routes import Endpoints


class Context(Struct, frozen=True, kw_only=True):
    """The parts that one request needs of the whole."""

    store: Store
    digest: Digest
    """HMAC under the store's key, remembered for what comes again and again."""
    recorder: Recorder
    repeats: Repeats
    redactor: Redactor
    states: SavedStates
    """States of sessions that were worked out before."""
    clean: Callable[[str], str]
    """Cut secrets out of a name that will be shown; remembered for names that come again."""
    principals: PrincipalNames
    sessions: Sessions
    clients: Clients
    catalog: Catalog
    keeper: Keeper
    pins: Pins
    calls: OpenCalls
    channels: Channels
    endpoints: Endpoints
    redirected: Redirected
    rules: Rules
    tools: KnownTools
    plain_tools: PlainTools
    trusted: frozenset[str]
    """Names of the servers that may say how a call ended in turnlog's name."""
    places: Places
    health: Health
    clock: Clock
    log: Log
    vendor_headers: frozenset[bytes]
    keep: int
    """Bytes of one message that are read along."""
    work: asyncio.TaskGroup
    """What outlives the request that began it."""
    stop: asyncio.Event
    """Set as soon as the proxy stops: no further attempt begins."""
