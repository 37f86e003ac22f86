"""Set structlog up: one line per event, JSON or for people, through a spool that never blocks."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import Any, BinaryIO, Final, Literal, cast

import msgspec
import structlog
from structlog.dev import ConsoleRenderer

from turnlog.core.text.columns import cut
from turnlog.core.text.escapes import clean

from .call_events import CallEnded
from .event import Event, Level, Log
from .events import LogDropped, ProxyFaulted, ProxyReady, RulesMissing
from .spool import Spool

Clock = Callable[[], int]
"""Returns ns since 1970 UTC."""
Render = Callable[[object, str, Any], bytes]
"""structlog's last processor: makes one line, newline included, of an event, the third argument."""

QUIET: Final = 1.0
"""s within which equal faults are written once."""
_encode: Final = msgspec.json.Encoder().encode
_DELETE: Final = b"\x7f"
_URGENT: Final = Level.WARNING
_CLOCK: Final = len("00:00:00  ")
_ENDED: Final = "32"
"""ANSI: green."""
_FAILED: Final = "31"
"""ANSI: red."""
_LEVELS: Final = {level: f'","level":"{level.name.lower()}",'.encode() for level in Level}
"""What stands between a line's timestamp and its fields."""


class Logs:
    """The log of one process, open until `close`. Is a `Log`."""

    def __init__(
        self, spool: Spool, level: Level, render: Render, *, tells_content: bool = False
    ) -> None:
        self._spool = spool
        self._level = level
        self.tells_content = tells_content
        self._write: Callable[[Event, Level], None] = (
            structlog.wrap_logger(spool, processors=[render], wrapper_class=_Logger).bind().write
        )

    def wants(self, kind: type[Event]) -> bool:
        """Tell whether an event of this kind would be written."""
        return kind.level >= self._level

    def emit(self, event: Event) -> None:
        """Write `event`, if its level is wanted. Never blocks and never raises."""
        level = event.severity
        if level >= self._level:
            self._write(event, level)

    def close(self) -> None:
        """Write what is queued, for at most a second."""
        self._spool.close()


class _Logger(structlog.BoundLoggerBase):
    """structlog's logger for events that bring all their fields.

    Nothing is ever bound to it: its own way would copy a context and look up a method for each line.
    """

    def write(self, event: Event, level: Level) -> None:
        """Hand an event through the processors to the spool."""
        line: Any = event
        for process in self._processors:
            line = process(self._logger, "", line)
        self._logger.put(line, urgent=level >= _URGENT)


class StandardLogging(logging.Handler):
    """Turns what libraries log of exceptions into events: where and which, never the text.

    Lines that would be equal are written once within `QUIET`: without descriptors asyncio logs
    thousands of failures to accept for each one that there was.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(logging.ERROR)
        self._log = log
        self._said: dict[ProxyFaulted, float] = {}
        """When each was written last."""

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


def configure(
    format: Literal["json", "console"],  # noqa: A002 - the setting's name
    level: Literal["debug", "info", "warning", "error"],
    stream: BinaryIO,
    *,
    clock: Clock = time.time_ns,
) -> Logs:
    """Return a log that writes to `stream`."""
    for_people = format == "console"
    render = console_lines(clock, stream.isatty()) if for_people else json_lines(clock)
    least = Level[level.upper()]

    def gap_line(lines: int) -> bytes:
        return render(None, "", LogDropped(lines=lines))

    tells_content = for_people or least <= Level.DEBUG
    return Logs(Spool(stream, gap_line), least, render, tells_content=tells_content)


def json_lines(clock: Clock) -> Render:
    """Return what makes JSON lines: timestamp, level and event first, then the event's fields."""
    stamp = _stamps(clock)

    def render(_: object, __: str, event: Event) -> bytes:
        try:
            fields = _encode(event)
        except ValueError:
            # A lone surrogate: a name that came in as invalid UTF-8.
            fields = _encode(_plain(event))
        if not fields.isascii() or _DELETE in fields:
            # JSON leaves DEL, C1 controls and bidi marks as they are, and a terminal obeys them.
            fields = clean(fields.decode()).encode()
        return b"".join((b'{"timestamp":"', stamp(), _LEVELS[event.severity], fields[1:], b"\n"))

    return render


def console_lines(clock: Clock, colors: bool) -> Render:
    """Return what makes lines for people: a short one for each call, and times that are local."""
    console = ConsoleRenderer(colors=colors, sort_keys=False)

    def render(_: object, __: str, event: Event) -> bytes:
        now = datetime.fromtimestamp(clock() / 1e9).astimezone()
        if isinstance(event, CallEnded):
            columns = get_terminal_size().columns if colors else None
            return f"{now:%H:%M:%S}  {call_line(event, columns, colors=colors)}\n".encode()
        fields = _plain(event)
        if isinstance(event, ProxyReady):
            ways = "".join(f", {way}" for way in event.proxies)
            fields = {"event": f"turnlog ready {' '.join(event.urls)}{ways}"}
        elif isinstance(event, RulesMissing):
            fields = {"event": f"no rules for {', '.join(event.upstreams)}: {event.advice}"}
        level = event.severity.name.lower()
        at = now.isoformat(" ", "seconds")
        line = console(None, level, {"timestamp": at, "level": level, **fields})
        return line.encode("utf-8", "replace") + b"\n"

    return render


def call_line(event: CallEnded, columns: int | None, *, colors: bool) -> str:
    """Return one line on a call that ended, cut to the columns of a terminal."""
    status = str(event.kind or event.error or event.status)
    marks = "".join(f"[{flag}] " for flag in event.flags)
    again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    asked = f"  {event.input_summary}" if event.input_summary else ""
    told = f"  -> {event.output_summary}" if event.output_summary else ""
    rest = f"{event.server}/{event.tool}{again}  {event.duration_ns / 1e6:.0f} ms  {marks}"
    line = clean(f"{status:<12}  {rest.rstrip()}{asked}{told}")
    if columns is not None:
        line = cut(line, columns - _CLOCK)
    if not colors:
        return line
    style = _FAILED if event.severity >= Level.WARNING else _ENDED
    return f"\x1b[{style}m{line[: len(status)]}\x1b[0m{line[len(status) :]}"


def _plain(event: Event) -> dict[str, Any]:
    """Return an event's fields as they stand on the line, without anything unprintable."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return {name: _printable(value) for name, value in fields.items()}


def _printable(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_printable(item) for item in cast("list[object]", value)]
    if isinstance(value, str) and not value.isprintable():
        return value.encode("unicode_escape", "surrogatepass").decode("ascii")
    return value


def _stamps(clock: Clock) -> Callable[[], bytes]:
    """Return what writes the time as RFC 3339 in UTC; the part up to the second is kept."""
    known = -1
    prefix = b""

    def stamp() -> bytes:
        nonlocal known, prefix
        second, rest = divmod(clock(), 1_000_000_000)
        if second != known:
            known = second
            prefix = f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.".encode()
        return b"%b%06dZ" % (prefix, rest // 1000)

    return stamp
