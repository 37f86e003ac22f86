"""Everything that the handlers of calls share, built once: the store, what writes to it, the rules.

Beside them runs what keeps it in order. Who carries messages, over HTTP or through pipes, comes on
top: `app.serve`, `app.wrap`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, TypeVar

from turnlog.core import ids
from turnlog.core.classify import failed
from turnlog.core.commit import Commit
from turnlog.core.identity import VendorTable
from turnlog.core.kinds import ErrorKind, Flag, Phase, WhenFull
from turnlog.engine.continuations import Continuations
from turnlog.engine.legacy_sse import LegacyStreams
from turnlog.engine.redirects import Redirects
from turnlog.engine.tools.definition_writer import DefinitionWriter
from turnlog.engine.tools.handshake_observer import HandshakeObserver
from turnlog.engine.tools.pin_set import PinSet
from turnlog.engine.tools.rules_reload import Reloader
from turnlog.engine.tools.server_identities import ServerIdentities
from turnlog.engine.tools.server_records import ServerRecords
from turnlog.engine.tools.tool_cache import HttpToolCache, ToolCache, ToolListings
from turnlog.exchange.outcome import AnswerFacts
from turnlog.exchange.principal import PrincipalNames
from turnlog.observe.clock import Clock
from turnlog.observe.events import (
    CallExpired,
    CallRecovered,
    Log,
    LogEvent,
    RecorderFailed,
    StoreBlocked,
    StoreFailed,
    StoreRecovered,
    StoreRekeyed,
    StoreTrimmed,
    StoreUnblocked,
)
from turnlog.packs.load import load
from turnlog.packs.lock import lock_file, write_lock_note
from turnlog.packs.sources import find_pack, packs_folder
from turnlog.record.attempt import Attempt
from turnlog.record.drafts import Drafter
from turnlog.record.lineage import LineageTracker
from turnlog.record.recorder import Recorder
from turnlog.redaction.redact import Redactor
from turnlog.sessions.retention.ages import write_retention
from turnlog.sessions.retention.housekeeping import keep_house
from turnlog.sessions.state.backlog import save_states
from turnlog.sessions.state.state_at import saved_states
from turnlog.settings.model import Settings, Switch
from turnlog.settings.upstream_url import UrlMask, mask_of
from turnlog.store.base import StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.transport.routes import Endpoints

from .call_registry import CallRegistry
from .concurrency import Limiter
from .context import Context
from .duplicate_index import DuplicateIndex
from .request_identity import Clients, Sessions
from .session_gate import ImportedSessions, SessionGate
from .upstream_health import Health

if TYPE_CHECKING:  # it needs an extra that may not be installed
    from .tools.signatures import HttpSignatures, ResultSignatures

SWEEP: Final = 30.0
"""s between two looks for calls whose time has passed."""
LOOK: Final = 1.0
"""s between two looks whether calls can be recorded."""
KEEP: Final = 1 << 20
"""bytes: at least this much of an answer is read along, however little is recorded."""
_NAMES: Final = 4096
_DIGESTS: Final = 4096
_T = TypeVar("_T")


@asynccontextmanager
async def recording(
    settings: Settings,
    log: Log,
    reload: asyncio.Event | None = None,
    pins: PinSet | None = None,
) -> AsyncGenerator[Context, None]:
    """Open the store and keep it in order until the block ends. `reload` asks for the rules.

    Without `pins` the lock in the data folder counts. Raises `ConfigError` for rules and for the
    lock, and `StoreError`.
    """
    reloader = Reloader(settings.sources(), log)
    clock = Clock()
    pins = pins or PinSet(lock_file(None, settings.data), settings.data)
    store = _opened(settings, log, clock)
    try:
        if store.rekeyed:
            log.emit(StoreRekeyed(data=str(settings.data)))
        with suppress(OSError):  # no room for it: `turnlog trust` says less
            write_lock_note(settings.data, pins.path)
        try:
            write_retention(settings.data, settings.retention)
        except OSError as error:  # `turnlog gc` would go by older ages
            log.emit(StoreFailed(reason=f"cannot note the retention in the data folder: {error}"))
        report_closed(log, store.recovered, store.recovered_epochs)
        async with own_tasks() as work:
            context = _context(settings, reloader, store, log, clock, work, pins)
            keeping = save_states(store, context.saved_states, clock, log)
            watch = _watch_store(store, log, settings.limits.when_full)
            house = keep_house(store, context.saved_states, settings.retention, clock, log)
            chores = (watch, _sweep(context, store), context.servers.watch_lock(), keeping, house)
            try:
                async with beside(*chores, reloader.run(reload or asyncio.Event())):
                    yield context
            finally:
                context.recorder.flush()
                context.health.close()
    finally:
        await store.close()


def _opened(settings: Settings, log: Log, clock: Clock) -> LmdbStore:
    return LmdbStore.open(
        settings.data,
        limit=settings.limits.store,
        now=clock.wall,
        clock=clock.monotonic,
        entropy=clock.entropy,
        report=_in_loop(log, lambda error: StoreFailed(reason=str(error))),
        trimmed=_in_loop(log, lambda size: StoreTrimmed(size=size)),
    )


@asynccontextmanager
async def own_tasks() -> AsyncGenerator[asyncio.TaskGroup, None]:
    """Own tasks that must end before the block does; an error alone is raised as itself."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


@asynccontextmanager
async def beside(*chores: Coroutine[None, None, None]) -> AsyncGenerator[None, None]:
    """Do what never ends until the block does."""
    async with own_tasks() as tasks:
        running = [tasks.create_task(chore) for chore in chores]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


def end(context: Context, attempts: list[Attempt], kind: ErrorKind) -> None:
    """Record these attempts with an unknown outcome."""
    for attempt in attempts:
        ending = failed(kind, Phase.BODY, attempt.ask.effect)
        context.recorder.end(attempt, ending, AnswerFacts())


async def _watch_store(store: LmdbStore, log: Log, when_full: WhenFull) -> None:
    """Log when calls cannot be recorded any more, and when they can again."""
    blocked = ""
    while True:
        before, blocked = blocked, store.down
        if blocked and not before:
            log.emit(StoreBlocked(reason=blocked, when_full=when_full))
        elif before and not blocked:
            log.emit(StoreUnblocked())
        await asyncio.sleep(LOOK)


async def _sweep(context: Context, store: LmdbStore) -> None:
    """Periodically close calls that were never resumed, and those that dead processes left."""
    while True:
        await asyncio.sleep(SWEEP)
        overdue = context.calls.overdue(context.clock.monotonic())
        end(context, overdue, ErrorKind.CANCELLED_BY_CALLER)
        try:
            closed = await store.recover()
            epochs = store.recovered_epochs
            closed += await store.expire(context.clock.wall())
        except StoreError as error:
            context.log.emit(StoreFailed(reason=str(error)))
        else:
            report_closed(context.log, closed, epochs)


def _context(
    settings: Settings,
    reloader: Reloader,
    store: LmdbStore,
    log: Log,
    clock: Clock,
    work: asyncio.TaskGroup,
    pins: PinSet,
) -> Context:
    table = load(find_pack("identity", packs_folder()), VendorTable).identity
    redact = settings.redact
    redactor = Redactor(redact.headers, redact.keys, redact.patterns)
    stop = asyncio.Event()
    is_tracked = settings.provenance.inputs is Switch.ON
    report = partial(_report_unread, log)
    lineage = LineageTracker(store, clock, work, report) if is_tracked else None
    masks = _masks(settings)
    drafter = Drafter(
        redactor, clock, store.keyed_for, report, record_limit=settings.limits.record, masks=masks
    )
    recorder = Recorder(
        store,
        drafter,
        log,
        clock,
        work,
        durability=settings.durability,
        when_full=settings.limits.when_full,
        lineage=lineage,
    )

    @lru_cache(maxsize=_NAMES)
    def clean(name: str) -> str:
        return redactor.text(name)[0]

    calls, clients, listings = CallRegistry(), Clients(), ToolListings()
    imported = ImportedSessions(store)
    sessions = Sessions(clock, table, clean, store.keyed, SessionGate(store), imported)
    health = Health(settings.upstreams, settings.data, store.epoch, clock, log)
    never_twice, replaced = settings.never_twice, sessions.replacements
    duplicate_index = DuplicateIndex(
        store, recorder, never_twice, log, stop, health.uncovered, replaced, imported
    )
    upstreams = settings.upstreams.items()
    annotated = frozenset(name for name, up in upstreams if up.trust_annotations)
    definition_writer = DefinitionWriter(
        settings.data, redactor, clean, pins, clock, log, recorder.faulted, work, masks
    )
    http_signatures, result_signatures = _signatures(settings)
    identities = ServerIdentities(pins, definition_writer.note_servers)
    servers = ServerRecords(pins, listings, identities, definition_writer, log)
    return Context(
        store=store,
        digest=lru_cache(maxsize=_DIGESTS)(imported.digest),
        recorder=recorder,
        lineage=lineage,
        duplicate_index=duplicate_index,
        redactor=redactor,
        saved_states=saved_states(settings.data),
        clean=clean,
        principals=PrincipalNames(settings.identity.principal),
        sessions=sessions,
        clients=clients,
        servers=servers,
        handshakes=HandshakeObserver(servers, sessions, clients, clean, log),
        calls=calls,
        continuations=Continuations(store, recorder, calls, imported, log),
        legacy_streams=LegacyStreams(),
        endpoints=Endpoints(),
        redirects=Redirects(),
        rules=reloader.rules,
        tools=ToolCache(listings, pins, reloader.rules, annotated, clean, identities),
        http_tools=HttpToolCache(reloader.rules, clean, identities),
        result_signatures=result_signatures,
        http_signatures=http_signatures,
        trusted=frozenset(name for name, up in upstreams if up.trust_outcomes),
        limiter=Limiter(),
        health=health,
        clock=clock,
        log=log,
        keep=max(settings.limits.record, KEEP),
        retention=settings.retention,
        work=work,
        stop=stop,
    )


def _signatures(
    settings: Settings,
) -> "tuple[Mapping[str, HttpSignatures], Mapping[str, ResultSignatures]]":
    """Return the verifiers of the signatures for which keys are configured, by server."""
    upstreams = settings.upstreams.items()
    if not any(up.signatures or up.jws for _, up in upstreams):
        return {}, {}
    from .tools.signatures import HttpSignatures, ResultSignatures  # needs an extra

    return (
        {name: HttpSignatures(up.signatures) for name, up in upstreams if up.signatures},
        {name: ResultSignatures(up.jws) for name, up in upstreams if up.jws},
    )


def _masks(settings: Settings) -> dict[str, UrlMask]:
    """Return what is shown of the URLs of upstreams that hold values of variables or files."""
    found = ((name, up.url) for name, up in settings.upstreams.items())
    masks = {name: mask_of(url) for name, url in found if url is not None}
    return {name: mask for name, mask in masks.items() if mask is not None}


def _report_unread(log: Log, error: Exception) -> None:
    # The text of the error may hold content.
    reason = f"content could not be read ({type(error).__name__}); the record says less"
    log.emit(RecorderFailed(reason=reason))


def _in_loop(log: Log, event: Callable[[_T], LogEvent]) -> Callable[[_T], None]:
    """Return what logs what the store's own thread tells."""
    loop = asyncio.get_running_loop()

    def tell(told: _T) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(log.emit, event(told))

    return tell


def report_closed(log: Log, commits: list[Commit], epochs: int) -> None:
    """Log what was closed because its process died (`epochs` of them) or its time passed."""
    recovered = 0
    for commit in commits:
        expired = Flag.EXPIRED in commit.facts.flags
        recovered += not expired
        kind = CallExpired if expired else CallRecovered
        log.emit(
            kind(
                session=ids.to_text(commit.link.session),
                call=ids.to_text(commit.facts.call),
                seq=commit.link.seq,
                server=commit.facts.server,
                tool=commit.facts.tool,
                effect=commit.facts.effect,
            )
        )
    if recovered:
        log.emit(StoreRecovered(epochs=epochs, calls=recovered))
