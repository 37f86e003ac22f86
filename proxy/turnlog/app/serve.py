"""`turnlog serve`: assemble the proxy and run it until a signal."""

import asyncio
import gc
import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from msgspec import structs

from turnlog.api import application
from turnlog.core.kinds import ErrorKind
from turnlog.engine.command.command_endpoint import Commands
from turnlog.engine.context import Context
from turnlog.engine.http.handler import Handler
from turnlog.engine.http.own_pages import APPLICATION, OwnPages
from turnlog.engine.services import end, recording
from turnlog.engine.tools.pin_set import PinSet
from turnlog.observe.events import Log, ProxyReady, ProxyStopped, ProxyStopping, RulesMissing
from turnlog.observe.logs import Logs, configure, standard_logging_to
from turnlog.packs.fit import names_effect
from turnlog.packs.sources import packs_folder, rule_packs
from turnlog.sessions.missing_rules import advice_on_effects
from turnlog.settings.http_proxies import HttpProxy, proxy_for
from turnlog.settings.model import LogFormat, Settings, UpstreamSettings
from turnlog.settings.upstream_url import mask_of
from turnlog.settings.values import Address
from turnlog.store.base import StoreError
from turnlog.store.data_folder import read_token
from turnlog.transport.http_client import Upstreams
from turnlog.transport.http_server import AgentServer
from turnlog.transport.routes import Routes, Target, target_of, target_of_command

GRACE: Final = 7.0
"""s that running calls may take to finish after SIGTERM; with the rest of the shutdown 8 s."""
_CANCEL_TIME: Final = 0.25
_COLLECT_AFTER: Final = 20_000
_BACKLOG: Final = 1024
_READERS: Final = 2
"""Threads that read the store for the API; more would slow down calls."""
_REACHABLE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - shown, not bound


def run(settings: Settings, pins: PinSet) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises `StoreError` at start."""
    by_itself = LogFormat.CONSOLE if sys.stdout.isatty() else LogFormat.JSON
    form = settings.log_format or by_itself
    logs = configure(form.value, settings.log_level.value, sys.stdout.buffer)
    with standard_logging_to(logs):
        asyncio.run(_serve(settings, logs, pins))
    return 0


async def _serve(settings: Settings, logs: Logs, pins: PinSet) -> None:
    stop = asyncio.Event()
    reasons: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stop, reasons, number)
    reload = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    async with serving(settings, logs, reload, pins) as proxy:
        _relax_garbage_collection()
        logs.emit(proxy.ready())
        if (missing := await asyncio.to_thread(proxy.unruled)) is not None:
            logs.emit(missing)
        await stop.wait()
        stopped = await proxy.drain(reasons[0])
    logs.emit(stopped)


def _relax_garbage_collection() -> None:
    """Make the garbage collector run less often."""
    # Calls make hundreds of objects and no cycles. Saves 3 % of the CPU time of a recorded read.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 50)


def _stop(stop: asyncio.Event, reasons: list[str], number: signal.Signals) -> None:
    reasons.append(number.name)
    stop.set()


class Proxy:
    """A proxy that is accepting calls."""

    def __init__(
        self, settings: Settings, context: Context, handler: Handler, targets: Sequence[Target]
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._context = context
        self._handler = handler
        self.port = 0
        self.listener: asyncio.Server | None = None
        self.server = AgentServer(handler, handler.unread)

    def ready(self) -> ProxyReady:
        """Return the event with the URLs at which calls are accepted."""
        return ProxyReady(
            urls=self.urls(),
            version=version("turnlog"),
            upstreams=tuple(self._settings.upstreams),
            data=str(self._settings.data),
            pid=os.getpid(),
            proxies=tuple(
                f"{target.name} through {target.proxy.url} ({target.proxy.source})"
                for target in self._targets
                if target.proxy is not None
            ),
        )

    def unruled(self) -> RulesMissing | None:
        """Return the event about upstreams whose tools no rule describes, if there are any."""
        book = self._context.rules.book
        names = tuple(
            name
            for name, upstream in self._settings.upstreams.items()
            if not upstream.trust_annotations
            and not any(map(names_effect, book.servers[name].rules))
        )
        if not names:
            return None
        with suppress(StoreError):  # then the advice is the general one
            if found := advice_on_effects(names, self._settings.data):
                return RulesMissing(upstreams=names, advice=found)
        known = ", ".join(name for name in rule_packs(packs_folder()) if name != "default")
        advice = f"give {'it' if len(names) == 1 else 'them'} a pack with `packs: [NAME]` or --rules NAME; built in are {known}"
        return RulesMissing(upstreams=names, advice=advice)

    def urls(self) -> tuple[str, ...]:
        """Return the URLs for the agent's configuration, one per upstream."""
        listen = self._settings.listen
        host = _REACHABLE.get(listen.host, listen.host)
        base = f"http://{Address(host, self.port)}"
        upstreams = self._settings.upstreams
        if len(upstreams) == 1 and self._targets[0].mask is None:
            return tuple(base + target.path for target in self._targets)
        return tuple(f"{base}/{name}" for name in upstreams)

    async def drain(self, reason: str) -> ProxyStopped:
        """Stop accepting calls, wait up to `GRACE` for running ones, record the rest as unknown.

        Returns the event to log once the store is closed.
        """
        started = self._context.clock.monotonic()
        self._context.log.emit(ProxyStopping(reason=reason, in_flight=self._handler.awaited))
        self._context.stop.set()
        if self.listener is not None:
            self.listener.close()
        self._handler.stop_listening()
        self.server.finish()
        await self._handler.idle(GRACE)
        unfinished = self._handler.in_flight
        await self.server.stop(_CANCEL_TIME)
        await self._context.duplicate_index.end_all()
        end(self._context, self._context.calls.everything_detached(), ErrorKind.OUTCOME_UNKNOWN)
        return ProxyStopped(
            unfinished=unfinished, duration_ns=self._context.clock.monotonic() - started
        )


@asynccontextmanager
async def serving(
    settings: Settings,
    log: Log,
    reload: asyncio.Event | None = None,
    pins: PinSet | None = None,
) -> AsyncGenerator[Proxy, None]:
    """Open the store, listen, and accept calls until the block ends; `reload` rereads the rules.

    Without `pins` the lock in the data folder is used. Raises `ConfigError` for rules and the lock,
    `StoreError`, and `OSError` when the address cannot be used.
    """
    async with (
        recording(settings, log, reload, pins) as context,
        Upstreams(context.servers.identities.on_certificate) as upstreams,
        Commands(
            settings.upstreams,
            log,
            context.recorder,
            context.rules,
            context.clean,
            context.principals,
            context.servers.identities,
        ) as commands,
        _threads() as threads,
    ):
        secret = secrets.token_hex()
        app = application.application(context, secret, partial(read_token, settings.data), threads)
        async with application.serving(app) as server:
            upstreams.add_here(APPLICATION, server)
            own = OwnPages(context, upstreams, secret)
            proxy = _proxy(settings, context, upstreams, commands, own)
            async with _listening(proxy, settings):
                yield proxy


@asynccontextmanager
async def _threads() -> AsyncGenerator[Executor, None]:
    """Yield threads for the API, which have ended when the block ends."""
    threads = ThreadPoolExecutor(_READERS, "turnlog-api")
    try:
        yield threads
    finally:
        await asyncio.to_thread(threads.shutdown, cancel_futures=True)


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
        await proxy.server.stop(_CANCEL_TIME)


def _target(name: str, upstream: UpstreamSettings) -> Target:
    if upstream.url:
        proxy: HttpProxy | None = None
        with suppress(ValueError):  # `turnlog serve` has warned of it
            proxy = proxy_for(upstream.proxy, upstream.url.text, os.environ)
        url, mask = upstream.url.text, mask_of(upstream.url)
        target = target_of(
            name, url, proxy=proxy, ca=upstream.ca, mask=mask, pins_key=upstream.pin_tls
        )
    else:
        target = target_of_command(name, upstream.command, Path(upstream.cwd or Path.cwd()))
    return structs.replace(target, transport=upstream.transport)


def _proxy(
    settings: Settings, context: Context, upstreams: Upstreams, commands: Commands, own: OwnPages
) -> Proxy:
    targets = [_target(name, up) for name, up in settings.upstreams.items()]
    handler = Handler(settings, context, Routes(targets), upstreams, commands, own)
    return Proxy(settings, context, handler, targets)
