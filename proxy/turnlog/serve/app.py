"""Wire everything together, serve until told to stop. The only place where the parts meet."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Final, TypeVar

from turnlog.core import ids
from turnlog.core.classify import failed
from turnlog.core.commit import Commit
from turnlog.core.identity import VendorTable, wanted_headers
from turnlog.core.kinds import ErrorKind, Flag, Phase
from turnlog.core.redact import Redactor
from turnlog.observe.events import (
    CallExpired,
    CallRecovered,
    Event,
    Log,
    ProxyReady,
    ProxyStopped,
    ProxyStopping,
    RecorderFailed,
    StoreFailed,
    StoreRecovered,
    StoreRekeyed,
    StoreTrimmed,
)
from turnlog.observe.logs import Logs, StandardLogging, configure
from turnlog.packs.find import find_pack, packs_folder
from turnlog.packs.load import load
from turnlog.packs.lock import lock_file, note_lock
from turnlog.store.base import StoreError
from turnlog.store.lmdb import LmdbStore

from .agent import AgentServer
from .attempt import Attempt, Reply
from .calls import OpenCalls
from .catalog import Catalog
from .clock import Clock
from .context import Context, Rules
from .drafts import Drafter
from .handler import Handler
from .identity import Clients, Sessions
from .keeper import Keeper
from .own import Own
from .pins import Pins
from .readers import Address
from .recorder import Recorder
from .reload import Reloader
from .routes import Routes, target_of
from .settings import Settings
from .upstream import Upstreams

GRACE: Final = 7.0
"""s: how long calls under way may take to finish after SIGTERM; with what follows it is 8."""
SWEEP: Final = 30.0
"""s between two looks for calls whose time has passed."""
KEEP: Final = 1 << 20
"""bytes: at least this much of an answer is read along, however little is recorded."""
_CANCEL_TIME: Final = 0.25
_NAMES: Final = 4096
_COLLECT_AFTER: Final = 20_000
_DIGESTS: Final = 4096
_BACKLOG: Final = 1024
_REACHABLE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - shown, not bound
_T = TypeVar("_T")
_LINE_LIMIT: Final = 256 * 1024
_HEADERS_LIMIT: Final = 1024


def run(settings: Settings, pins: Pins) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises `StoreError` at start."""
    logs = configure(settings.log_format.value, settings.log_level.value, sys.stdout.buffer)
    handler = StandardLogging(logs)
    logging.getLogger().addHandler(handler)
    try:
        asyncio.run(_serve(settings, logs, pins))
    finally:
        logging.getLogger().removeHandler(handler)
        logs.close()
    return 0


async def _serve(settings: Settings, logs: Logs, pins: Pins) -> None:
    stop = asyncio.Event()
    reasons: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stop, reasons, number)
    reload = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    async with serving(settings, logs, reload, pins) as proxy:
        _rest_the_collector()
        logs.emit(proxy.ready())
        await stop.wait()
        stopped = await proxy.drain(reasons[0])
    logs.emit(stopped)


def _rest_the_collector() -> None:
    """Look for reference cycles more rarely: calls make hundreds of objects and no cycles.

    Measured: 3 % of the processor time of a recorded read.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 50)


def _stop(stop: asyncio.Event, reasons: list[str], number: signal.Signals) -> None:
    reasons.append(number.name)
    stop.set()


class Proxy:
    """A proxy that is accepting calls."""

    def __init__(self, settings: Settings, context: Context, handler: Handler) -> None:
        self._settings = settings
        self._context = context
        self._handler = handler
        self.port = 0
        self.listener: asyncio.Server | None = None
        self.server = AgentServer(
            handler,
            handler.unread,
            access_log=None,
            max_line_size=_LINE_LIMIT,
            max_field_size=_LINE_LIMIT,
            max_headers=_HEADERS_LIMIT,
        )

    def ready(self) -> ProxyReady:
        """Return the event that says where calls are accepted."""
        return ProxyReady(
            urls=self.urls(),
            version=version("turnlog"),
            upstreams=tuple(self._settings.upstreams),
            data=str(self._settings.data),
            pid=os.getpid(),
        )

    def urls(self) -> tuple[str, ...]:
        """Return what to paste into the agent's configuration, one URL per upstream."""
        listen = self._settings.listen
        host = _REACHABLE.get(listen.host, listen.host)
        base = f"http://{Address(host, self.port)}"
        upstreams = self._settings.upstreams
        if len(upstreams) == 1:
            return tuple(base + target_of(name, up.url).path for name, up in upstreams.items())
        return tuple(f"{base}/{name}" for name in upstreams)

    async def drain(self, reason: str) -> ProxyStopped:
        """Stop accepting, let calls under way finish for `GRACE`, record the rest as unknown.

        Return what to log once the store is closed.
        """
        started = self._context.clock.monotonic()
        self._context.log.emit(ProxyStopping(reason=reason, in_flight=self._handler.awaited))
        self._context.stop.set()
        if self.listener is not None:
            self.listener.close()
        self._handler.stop_listening()
        self.server.pre_shutdown()
        await self._handler.idle(GRACE)
        unfinished = self._handler.in_flight
        await self.server.shutdown(_CANCEL_TIME)
        self._end(self._context.calls.everything_detached(), ErrorKind.OUTCOME_UNKNOWN)
        return ProxyStopped(
            unfinished=unfinished, duration_ns=self._context.clock.monotonic() - started
        )

    async def watch_lock(self) -> None:
        """Say which pins are in force, and notice when they change."""
        if self._context.pins.lock.servers:
            self._context.log.emit(self._context.pins.loaded())
        await self._context.keeper.watch()

    async def sweep(self) -> None:
        """Close what nobody came back for, and what other processes left, again and again."""
        while True:
            await asyncio.sleep(SWEEP)
            overdue = self._context.calls.overdue(self._context.clock.monotonic())
            self._end(overdue, ErrorKind.CANCELLED_BY_CALLER)
            try:
                closed = await self._context.store.recover()
                epochs = self._context.store.recovered_epochs
                closed += await self._context.store.expire(self._context.clock.wall())
            except StoreError as error:
                self._context.log.emit(StoreFailed(reason=str(error)))
            else:
                _report_closed(self._context.log, closed, epochs)

    def _end(self, attempts: list[Attempt], kind: ErrorKind) -> None:
        for attempt in attempts:
            ending = failed(kind, Phase.BODY, attempt.ask.effect)
            self._context.recorder.end(attempt, ending, Reply())


@asynccontextmanager
async def serving(
    settings: Settings, log: Log, reload: asyncio.Event | None = None, pins: Pins | None = None
) -> AsyncGenerator[Proxy, None]:
    """Open the store, listen, and accept calls until the block ends. `reload` asks for the rules.

    Without `pins` the lock in the data folder counts. Raises `ConfigError` for rules and for the
    lock, `StoreError`, and `OSError` when the address cannot be listened on.
    """
    reloader = Reloader(settings.sources(), log)
    clock = Clock()
    pins = pins or Pins(lock_file(None, settings.data))
    store = LmdbStore.open(
        settings.data,
        limit=settings.limits.store,
        now=clock.wall,
        clock=clock.monotonic,
        entropy=clock.entropy,
        report=_in_loop(log, lambda error: StoreFailed(reason=str(error))),
        trimmed=_in_loop(log, lambda size: StoreTrimmed(size=size)),
    )
    try:
        if store.rekeyed:
            log.emit(StoreRekeyed(data=str(settings.data)))
        with suppress(OSError):  # no room for it: `turnlog trust` says less
            note_lock(settings.data, pins.path)
        _report_closed(log, store.recovered, store.recovered_epochs)
        async with _tasks() as work, Upstreams() as upstreams:
            proxy = _proxy(settings, reloader.rules, store, log, clock, upstreams, work, pins)
            async with (
                _listening(proxy, settings),
                _beside(proxy.sweep(), proxy.watch_lock(), reloader.run(reload or asyncio.Event())),
            ):
                yield proxy
    finally:
        await store.close()


@asynccontextmanager
async def _tasks() -> AsyncGenerator[asyncio.TaskGroup, None]:
    """Own tasks that must end before the block does; an error alone is raised as itself."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


@asynccontextmanager
async def _listening(proxy: Proxy, settings: Settings) -> AsyncGenerator[None, None]:
    loop = asyncio.get_running_loop()
    listen = settings.listen
    listener = await loop.create_server(
        proxy.server, listen.host, listen.port, backlog=_BACKLOG, reuse_address=True
    )
    proxy.listener = listener
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        listener.close()
        await proxy.server.shutdown(_CANCEL_TIME)


@asynccontextmanager
async def _beside(*chores: Coroutine[None, None, None]) -> AsyncGenerator[None, None]:
    """Do what never ends until the block does."""
    async with _tasks() as tasks:
        running = [tasks.create_task(chore) for chore in chores]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


def _proxy(
    settings: Settings,
    rules: Rules,
    store: LmdbStore,
    log: Log,
    clock: Clock,
    upstreams: Upstreams,
    work: asyncio.TaskGroup,
    pins: Pins,
) -> Proxy:
    table = load(find_pack("identity", packs_folder()), VendorTable).identity
    redact = settings.redact
    redactor = Redactor(redact.headers, redact.keys, redact.patterns)
    drafter = Drafter(
        redactor,
        clock,
        store.keyed,
        lambda error: log.emit(RecorderFailed(reason=_unread(error))),
        record_limit=settings.limits.record,
    )
    recorder = Recorder(
        store,
        drafter,
        log,
        clock,
        work,
        durability=settings.durability,
        when_full=settings.limits.when_full,
    )
    clean = lru_cache(maxsize=_NAMES)(partial(_clean, redactor))
    context = Context(
        store=store,
        digest=lru_cache(maxsize=_DIGESTS)(store.keyed),
        recorder=recorder,
        clean=clean,
        sessions=Sessions(clock, table, redactor.text),
        clients=Clients(),
        catalog=Catalog(),
        keeper=Keeper(settings.data, redactor, clean, pins, clock, log, recorder.faulted, work),
        pins=pins,
        calls=OpenCalls(),
        rules=rules,
        clock=clock,
        log=log,
        trusted=frozenset(name for name, up in settings.upstreams.items() if up.trust_annotations),
        vendor_headers=frozenset(map(str.encode, wanted_headers(table))),
        keep=max(settings.limits.record, KEEP),
        stop=asyncio.Event(),
    )
    routes = Routes([target_of(name, up.url) for name, up in settings.upstreams.items()])
    own = Own(store, context.stop)
    return Proxy(settings, context, Handler(settings, context, routes, upstreams, own))


def _unread(error: Exception) -> str:
    # The text of the error may hold content.
    return f"content could not be read ({type(error).__name__}); the record says less"


def _clean(redactor: Redactor, name: str) -> str:
    return redactor.text(name)[0]


def _in_loop(log: Log, event: Callable[[_T], Event]) -> Callable[[_T], None]:
    """Return what logs what the store's own thread tells."""
    loop = asyncio.get_running_loop()

    def tell(told: _T) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(log.emit, event(told))

    return tell


def _report_closed(log: Log, commits: list[Commit], epochs: int) -> None:
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
