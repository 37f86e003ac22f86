"""The parts that the handlers of all requests share. Built once, in `app.serve`."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from turnlog.engine.continuations import Continuations
from turnlog.engine.legacy_sse import LegacyStreams
from turnlog.engine.redirects import Redirects
from turnlog.engine.tools.handshake_observer import HandshakeObserver
from turnlog.engine.tools.server_records import ServerRecords
from turnlog.engine.tools.tool_cache import ActiveRules, HttpToolCache, ToolCache
from turnlog.exchange.principal import PrincipalNames
from turnlog.observe.clock import Clock
from turnlog.observe.events import Log
from turnlog.record.lineage import LineageTracker
from turnlog.record.recorder import Recorder
from turnlog.redaction.redact import Redactor
from turnlog.sessions.retention.ages import Retention
from turnlog.store.lmdb import LmdbStore
from turnlog.store.saved_states import SavedStates
from turnlog.transport.routes import Endpoints

from .call_driver import Shared
from .call_registry import CallRegistry
from .duplicate_index import DuplicateIndex
from .request_identity import Clients, Digest, Sessions

if TYPE_CHECKING:  # it needs an extra that may not be installed
    from .tools.signatures import HttpSignatures, ResultSignatures


class Context(Shared, frozen=True, kw_only=True):
    """The parts that one request needs of the whole."""

    store: LmdbStore
    digest: Digest
    """HMAC under the store's key, remembered for what comes again and again."""
    recorder: Recorder
    lineage: LineageTracker | None
    """Finds where the values in calls come from; `None` if that is switched off."""
    duplicate_index: DuplicateIndex
    redactor: Redactor
    saved_states: SavedStates
    """States of sessions that were worked out before."""
    clean: Callable[[str], str]
    """Cut secrets out of a name that will be shown; remembered for names that come again."""
    principals: PrincipalNames
    sessions: Sessions
    clients: Clients
    servers: ServerRecords
    handshakes: HandshakeObserver
    calls: CallRegistry
    continuations: Continuations
    legacy_streams: LegacyStreams
    endpoints: Endpoints
    redirects: Redirects
    rules: ActiveRules
    tools: ToolCache
    http_tools: HttpToolCache
    result_signatures: Mapping[str, "ResultSignatures"] = {}
    """Verifiers of the JWS in results, by the servers for which keys are configured."""
    http_signatures: Mapping[str, "HttpSignatures"] = {}
    """Verifiers of HTTP message signatures, by the servers for which keys are configured."""
    trusted: frozenset[str]
    """Names of the servers that may say how a call ended in turnlog's name."""
    clock: Clock
    log: Log
    keep: int
    """Bytes of one message that are read along."""
    retention: Retention
    work: asyncio.TaskGroup
    """What outlives the request that began it."""
