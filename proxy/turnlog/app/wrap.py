"""`turnlog wrap`: relay between a client and the command that it has started, until that ends."""

import asyncio
import os
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from typing import Final

from turnlog.core.identity import VendorTable, vendor_variables
from turnlog.engine.context import Context
from turnlog.engine.request_identity import Request
from turnlog.engine.services import recording
from turnlog.engine.stdio.wrapped import Wrapped
from turnlog.engine.tools.pin_set import PinSet
from turnlog.observe.events import Log, ProxyReady
from turnlog.observe.logs import configure, standard_logging_to
from turnlog.packs.load import load
from turnlog.packs.sources import find_pack, packs_folder
from turnlog.settings.model import Settings
from turnlog.store.log.translate_errors import translated
from turnlog.transport.child_process import Child
from turnlog.transport.message_heads import RequestHead, RequestStart
from turnlog.transport.routes import Route, Target

_FORWARDED: Final = tuple(
    signal.Signals[name]
    for name in (
        *("SIGTERM", "SIGINT", "SIGHUP"),
        *("SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTSTP", "SIGCONT", "SIGINFO"),
    )
    if name in signal.Signals.__members__
)
"""What a user of a shell sends. A terminal sends it to our process group, and the command has its own.
Not every system has all of them."""
_LOG_SIZE: Final = 16 << 20
"""bytes: a longer log is set aside when a command is wrapped."""
_NOTHING: Final = RequestStart(
    method="",
    target="",
    version=(0, 0),
    keeps=True,
    head=RequestHead((), {}, {}, frozenset()),
)
"""Stands for the head of a request: there are no headers on a pipe."""


async def run(
    child: Child,
    settings: Settings,
    log: Log,
    pins: PinSet,
    *,
    server: str,
    place: tuple[str, ...],
    session: str,
) -> int:
    """Relay until the command ends; return its exit code, below zero for a signal's number.

    `place` tells the command from others, see `place_of_command`. Raises `StoreError` and `ConfigError` at
    start.
    """
    signals = Signals()
    async with recording(settings, log, None, pins) as context:
        log.emit(
            ProxyReady(
                urls=(),
                version=version("turnlog"),
                upstreams=(server,),
                data=str(settings.data),
                pid=os.getpid(),
            )
        )
        wrapped = Wrapped(child, context, request_of(context, server, place, session, os.environ))
        signals.go_to(wrapped.on_signal)
        _, *command, folder = place
        started = context.servers.identities.on_started(server, command, None, folder)
        context.work.create_task(started)
        return await wrapped.relay()


class Signals:
    """The signals that are the command's, as long as the loop is there: none cuts its last work off."""

    def __init__(self) -> None:
        self._came: list[signal.Signals] = []
        self._take: Callable[[signal.Signals], None] = self._came.append
        self._loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            # What our client has us ignore (nohup) the command ignores as well.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        self._take(number)
        if number != signal.SIGTSTP:
            return
        # Stop this process as well: the shell waits for it, not for the command. By the default action,
        # which does nothing in an orphaned process group, where nobody could continue it (POSIX, System
        # Interfaces, 2.4.3).
        self._loop.remove_signal_handler(signal.SIGTSTP)
        signal.raise_signal(signal.SIGTSTP)
        self._loop.add_signal_handler(signal.SIGTSTP, self._on_signal, signal.SIGTSTP)
        # The command's group is not orphaned: it has stopped, and in an orphaned one no SIGCONT follows.
        self._take(signal.SIGCONT)

    def go_to(self, take: Callable[[signal.Signals], None]) -> None:
        """Call `take` with each signal, those that came before as well."""
        self._take = take
        for number in self._came:
            take(number)


def request_of(
    context: Context,
    server: str,
    place: tuple[str, ...],
    session: str,
    environment: Mapping[str, str],
) -> Request:
    """Return the request that all lines have in common: its server and its session."""
    target = Target(
        name=server, origin="", path="", query="", authority=b"", host="", port=0, place=place
    )
    table = load(find_pack("identity", packs_folder()), VendorTable).identity
    wanted = vendor_variables(table)
    return Request(
        _NOTHING,
        Route(target, "", "", session, ""),
        context.digest,
        context.clients,
        f"process {os.getpid()}",
        {name: value for name, value in environment.items() if name in wanted},
    )


@contextmanager
def logging_to(settings: Settings) -> Generator[Log]:
    """Write the log into the data folder, like all wrapped commands. Raises `StoreError`."""
    # A line is written at once, so that those of several processes do not mix.
    folder = settings.data / "logs"
    with translated("write the log to", folder):
        stream = _log_file(folder)
    with stream:
        logs = configure("json", settings.log_level.value, stream)
        with standard_logging_to(logs):
            yield logs


def _log_file(folder: Path) -> FileIO:
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / "wrap.jsonl"
    with suppress(FileNotFoundError):
        if file.stat().st_size > _LOG_SIZE:
            file.replace(folder / "wrap.1.jsonl")
    return file.open("ab", buffering=0)
