"""The process log: one line per event, JSON or for people, written without blocking the caller."""

import atexit
import errno
import io
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import Any, BinaryIO, Final, Literal, cast

import msgspec
from structlog.dev import ConsoleRenderer

from turnlog.core.text.terminal import escape_unprintable, fit_columns

from .events import (
    CallEnded,
    Level,
    Log,
    LogDropped,
    LogEvent,
    ProxyFaulted,
    ProxyReady,
    RulesMissing,
    SessionOpened,
    ToolsListed,
)

Render = Callable[[LogEvent, Level], bytes]
"""Returns the line of an event and its severity, newline included."""

LINGER: Final = 0.05
"""s that a line may wait to be written together with others."""
EAGER_BYTES: Final = 64 * 1024
"""Queued bytes that are written without waiting any longer."""
LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Queued bytes above which lines are dropped, so that a stalled reader costs bounded memory."""
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
QUIET: Final = 1.0
"""s within which equal `proxy.faulted` events are written once."""
_encode: Final = msgspec.json.Encoder().encode
_DELETE: Final = b"\x7f"
_CLOCK: Final = len("00:00:00  ")
_ENDED: Final = "32"
"""ANSI: green."""
_FAILED: Final = "31"
"""ANSI: red."""
_NS: Final = 1_000_000_000
_LEVELS: Final = {level: f'Z","level":"{level.name.lower()}",'.encode() for level in Level}
"""The part of a JSON line between its timestamp and its fields."""


class Spool:
    """A bounded queue of lines and the thread that writes them.

    Lines are dropped and counted when the queue is full or the reader has closed the stream;
    `gap_line(n)` makes the line that reports them once lines can be written again.
    """

    def __init__(self, stream: BinaryIO, gap_line: Callable[[int], bytes]) -> None:
        # Without a reference the stream would close its descriptor, and another file get the number.
        self._stream = stream
        self._write = _writer(stream)
        self._gap_line = gap_line
        # Reentrant: garbage collection in the middle of `put` may log something.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._lines: list[bytes] = []
        self._size = 0
        self._urgent = False
        self._closing = False
        self._broken = False
        self._gap = 0
        self.dropped = 0
        """Lines lost since the start."""
        self._thread = threading.Thread(target=self._run, name="turnlog-log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, line: bytes, *, urgent: bool) -> None:
        """Queue one line, newline included; an urgent line is written at once."""
        self._lock.acquire()  # once per call: `with` takes longer
        try:
            size = self._size + len(line)
            if self._broken or self._closing or size > LIMIT_BYTES:
                self._count(1)
                return
            self._lines.append(line)
            self._size = size
            if urgent or size >= EAGER_BYTES:
                self._urgent = True
                self._wake.notify()
            elif size == len(line):
                self._wake.notify()
        finally:
            self._lock.release()

    def close(self, timeout: float = 1.0) -> None:
        """Write the queued lines for at most `timeout` seconds; the rest counts as dropped."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)
        with self._wake:
            self._count(len(self._lines))
            self._lines = []
        atexit.unregister(self.close)

    def _run(self) -> None:
        while batch := self._next():
            rest = self._send(b"".join(batch))
            if rest:
                with self._wake:
                    self._count(rest.count(b"\n"))

    def _next(self) -> list[bytes]:
        """Return the next lines to write; empty once the spool is closed and empty."""
        with self._wake:
            while not self._lines and not self._closing:
                self._wake.wait()
            if self._lines and not self._urgent and not self._closing:
                self._wake.wait(LINGER)
            batch, self._lines = self._lines, []
            self._size, self._urgent = 0, False
            if self._gap and batch:
                batch.append(self._gap_line(self._gap))
                self._gap = 0
            return batch

    def _send(self, data: bytes) -> bytes:
        """Write `data`; return the part that could not be written."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._write(view) :]
            except OSError as error:
                # A full disk may have room later; a pipe without a reader will not come back.
                self._broken = error.errno not in _PASSING
                return bytes(view)
        return b""

    def _count(self, lines: int) -> None:
        self._gap += lines
        self.dropped += lines


class Logs:
    """The log of one process, open until `close`. Implements `Log`."""

    def __init__(
        self, spool: Spool, level: Level, render: Render, *, tells_content: bool = False
    ) -> None:
        self._spool = spool
        self._level = level
        self._render = render
        self.tells_content = tells_content

    def wants(self, kind: type[LogEvent]) -> bool:
        """Return whether an event of this kind would be written."""
        return kind.level >= self._level

    def emit(self, event: LogEvent) -> None:
        """Write `event` unless its severity is below the log level. Never blocks, never raises."""
        level = event.severity
        if level >= self._level:
            self._spool.put(self._render(event, level), urgent=level >= Level.WARNING)

    def close(self) -> None:
        """Write the queued lines, for at most a second."""
        self._spool.close()


class StandardLogging(logging.Handler):
    """A logging handler that turns errors logged by libraries into `proxy.faulted` events."""

    # The text of an exception may hold a secret, so only its type and place are logged. Out of
    # descriptors, asyncio logs thousands of equal failures to accept: hence `QUIET`.

    def __init__(self, log: Log) -> None:
        super().__init__(logging.ERROR)
        self._log = log
        self._said: dict[ProxyFaulted, float] = {}
        """When each event was last written, monotonic s."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record as `proxy.faulted`."""
        kind = record.exc_info[0] if record.exc_info else None
        fault = ProxyFaulted(
            exception=kind.__qualname__ if kind is not None else "",
            where=f"{record.name}.{record.funcName}",
            line=record.lineno,
        )
        now = time.monotonic()
        if now - self._said.get(fault, -QUIET) >= QUIET:
            self._said[fault] = now
            self._log.emit(fault)


@contextmanager
def standard_logging_to(logs: Logs) -> Generator[None]:
    """Log the errors of libraries as well until the block ends, and close the log then."""
    handler = StandardLogging(logs)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        logs.close()


def configure(
    format: Literal["json", "console"],  # noqa: A002 - the setting's name
    level: Literal["debug", "info", "warning", "error"],
    stream: BinaryIO,
    *,
    clock: Callable[[], int] = time.time_ns,
) -> Logs:
    """Return a log that writes to `stream`; `clock` returns ns UTC."""
    for_people = format == "console"
    render = console_lines(clock, stream.isatty()) if for_people else json_lines(clock)
    least = Level[level.upper()]

    def gap_line(lines: int) -> bytes:
        return render(LogDropped(lines=lines), LogDropped.level)

    tells_content = for_people or least <= Level.DEBUG
    return Logs(Spool(stream, gap_line), least, render, tells_content=tells_content)


def json_lines(clock: Callable[[], int]) -> Render:
    """Return a renderer of JSON lines: timestamp, level and event name, then the event's fields."""
    known = -1
    until_second = b""
    """The part of a line before the fraction of the second `known`; formatted once for each second."""

    def render(event: LogEvent, level: Level) -> bytes:
        nonlocal known, until_second
        try:
            fields = _encode(event)
        except ValueError:
            # A lone surrogate, from a name that was not valid UTF-8.
            fields = _encode(_plain(event))
        if not fields.isascii() or _DELETE in fields:
            # JSON does not escape DEL, C1 controls and bidi marks, which steer a terminal.
            fields = escape_unprintable(fields.decode()).encode()
        second, rest = divmod(clock(), _NS)
        if second != known:
            known = second
            at = datetime.fromtimestamp(second, UTC)
            until_second = f'{{"timestamp":"{at:%Y-%m-%dT%H:%M:%S}.'.encode()
        return b"%b%06d%b%b\n" % (until_second, rest // 1000, _LEVELS[level], fields[1:])

    return render


def console_lines(clock: Callable[[], int], colors: bool) -> Render:
    """Return a renderer of lines for people, with local times."""
    console = ConsoleRenderer(colors=colors, sort_keys=False)

    def render(event: LogEvent, level: Level) -> bytes:
        now = datetime.fromtimestamp(clock() / 1e9).astimezone()
        if isinstance(event, CallEnded | SessionOpened | ToolsListed):
            columns = get_terminal_size().columns if colors else None
            return f"{now:%H:%M:%S}  {short_line(event, columns, colors=colors)}\n".encode()
        fields = _plain(event)
        if isinstance(event, ProxyReady):
            ways = "".join(f", {way}" for way in event.proxies)
            fields = {"event": f"turnlog ready {' '.join(event.urls)}{ways}"}
        elif isinstance(event, RulesMissing):
            names = ", ".join(map(repr, event.upstreams))
            has = "servers {} have" if len(event.upstreams) > 1 else "server {} has"
            fields = {"event": f"the {has.format(names)} no rules: {event.advice}"}
        word = level.name.lower()
        at = now.isoformat(" ", "seconds")
        line = console(None, word, {"timestamp": at, "level": word, **fields})
        return line.encode("utf-8", "replace") + b"\n"

    return render


def short_line(
    event: CallEnded | SessionOpened | ToolsListed, columns: int | None, *, colors: bool
) -> str:
    """Return one line about an event of everyday traffic, cut to the columns of a terminal."""
    match event:
        case CallEnded():
            word, rest = str(event.kind or event.error or event.status), _call(event)
        case SessionOpened():
            word, rest = "session", _session(event)
        case ToolsListed():
            word, rest = "tools", _tools(event)
    line = escape_unprintable(f"{word:<12}  {rest}")
    if columns is not None:
        line = fit_columns(line, columns - _CLOCK)
    if not colors or not isinstance(event, CallEnded):
        return line
    style = _FAILED if event.severity >= Level.WARNING else _ENDED
    return f"\x1b[{style}m{line[: len(word)]}\x1b[0m{line[len(word) :]}"


def _call(event: CallEnded) -> str:
    marks = "".join(f"[{flag}] " for flag in event.flags)
    again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    asked = f"  {event.input_summary}" if event.input_summary else ""
    told = f"  -> {event.output_summary}" if event.output_summary else ""
    rest = f"{event.server}/{event.tool}{again}  {event.duration_ns / 1e6:.0f} ms  {marks}"
    return f"{rest.rstrip()}{asked}{told}"


def _session(event: SessionOpened) -> str:
    # The first 13 characters hold the time of a UUIDv7; commands accept them as its name.
    client = f"  client {event.client}" if event.client else ""
    return f"{event.session[:13]}  opened{client}  ({event.rung})"


def _tools(event: ToolsListed) -> str:
    counts = [f"{event.tools} listed"]
    counts += [f"{event.added} new"] if event.added else []
    counts += [f"{event.changed} changed"] if event.changed else []
    counts += [] if event.complete else ["more to come"]
    return f"{event.server}  {', '.join(counts)}"


def _plain(event: LogEvent) -> dict[str, Any]:
    """Return an event's fields by their names on the line, unprintable characters escaped."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return {name: _printable(value) for name, value in fields.items()}


def _printable(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_printable(item) for item in cast("list[object]", value)]
    if isinstance(value, str) and not value.isprintable():
        return value.encode("unicode_escape", "surrogatepass").decode("ascii")
    return value


def _writer(stream: BinaryIO) -> Callable[[memoryview], int]:
    """Return a function that writes to `stream`, unbuffered when it has a descriptor."""
    try:
        stream.flush()
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return stream.write
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)

    def write(view: memoryview) -> int:
        while True:
            try:
                return os.write(descriptor, view)
            except BlockingIOError:
                # Another process on the same terminal or pipe made it non-blocking.
                poll.poll(1000)

    return write
