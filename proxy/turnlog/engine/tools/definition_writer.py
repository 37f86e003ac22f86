"""Keeps the definitions of tools and the identities of servers, off the loop, and logs what has changed."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import structs

from turnlog.core.pins import ServerIdentity, changed_parts
from turnlog.observe.clock import Clock
from turnlog.observe.events import DefinitionsFailed, Log, LogEvent, ServerChanged, ToolChanged
from turnlog.packs.lock import LockFile, kept_definition, server_of
from turnlog.record.attempt import TOOL_CHARS
from turnlog.redaction.redact import Redactor
from turnlog.settings.upstream_url import UrlMask
from turnlog.store import definitions
from turnlog.store.base import StoreError
from turnlog.store.definitions import Change, Listing
from turnlog.wire.tool_definition import KeptDefinition, kept
from turnlog.wire.tools_list import ToolPage

from .pin_set import PinSet

LOOK_AT_LOCK: Final = 1.0
"""s between two checks whether turnlog.lock has changed."""
_WAITING: Final = 32
"""Lists that may wait to be written: each is as large as a message that is read along."""
_LOGGED: Final = 20
"""Changed tools of one list that are named in the log."""


class DefinitionWriter:
    """Stores definitions of tools and identities of servers, one list after the other; its errors affect no call."""

    def __init__(
        self,
        data: Path,
        redactor: Redactor,
        clean: Callable[[str], str],
        pins: PinSet,
        clock: Clock,
        log: Log,
        fault: Callable[[Exception], None],
        work: asyncio.TaskGroup,
        masks: Mapping[str, UrlMask] | None = None,
    ) -> None:
        """`clean` cuts secrets out of a tool's name; `fault` gets unexpected exceptions; `masks` say
        what is shown of upstreams' URLs, by name."""
        self._masks = masks or {}
        self._data = data
        self._redactor = redactor
        self._clean = clean
        self._pins = pins
        self._clock = clock
        self._log = log
        self._fault = fault
        self._work = work
        self._waiting: deque[Callable[[], list[LogEvent]]] = deque()
        self._busy = False

    def note(self, server: str, by: str, page: ToolPage, whole: frozenset[str] | None) -> None:
        """Keep what a page of a list said; `server` is the server's name in the lock, `whole` all of the
        list that the page ends."""
        self._soon(lambda: self._write(server, by, page, whole))

    def note_servers(self, seen: Mapping[str, ServerIdentity]) -> None:
        """Keep the parts that were seen of servers, by their names in the lock."""
        self._soon(lambda: self._write_servers(seen))

    async def watch(self) -> None:
        """Check turnlog.lock for changes until cancelled."""
        if self._pins.lock.servers:
            self._soon(self._keep_pinned)
        while True:
            await asyncio.sleep(LOOK_AT_LOCK)
            event = await asyncio.to_thread(self._pins.refresh)
            if event is not None:
                self._log.emit(event)
                self._soon(self._keep_pinned)

    def _soon(self, job: Callable[[], list[LogEvent]]) -> None:
        if len(self._waiting) >= _WAITING:
            self._log.emit(DefinitionsFailed(reason="more lists of tools than can be written"))
            return
        self._waiting.append(job)
        if not self._busy:
            self._busy = True
            self._work.create_task(self._work_off())

    async def _work_off(self) -> None:
        while self._waiting:
            job = self._waiting.popleft()
            try:
                for event in await asyncio.to_thread(job):
                    self._log.emit(event)
            except StoreError as error:
                self._log.emit(DefinitionsFailed(reason=str(error)))
            except Exception as error:  # noqa: BLE001 - calls go on, only the diff says less
                self._fault(error)
        self._busy = False

    def _keep_pinned(self) -> list[LogEvent]:
        """Keep the pinned definitions, so that `show` can say what differs from them."""
        if texts := _pinned(self._pins.lock):
            definitions.add(self._data, texts, self._clock.wall())
        return []

    def _write(
        self, server: str, by: str, page: ToolPage, whole: frozenset[str] | None
    ) -> list[LogEvent]:
        raws = {page.definitions[tool].digest: bytes(raw) for tool, raw in page.texts.items()}
        listing = Listing(
            server=server,
            by=by,
            at=self._clock.wall(),
            tools={self._name(tool): one.digest for tool, one in page.definitions.items()},
            whole=None if whole is None else frozenset(map(self._name, whole)),
        )
        changes = definitions.keep(
            self._data, listing, lambda digest: self._kept(server, raws[digest])
        )
        return [self._changed(server, change) for change in changes[:_LOGGED]]

    def _write_servers(self, seen: Mapping[str, ServerIdentity]) -> list[LogEvent]:
        news = definitions.keep_servers(self._data, seen, self._clock.wall())
        events = (self._server_changed(name, before, now) for name, (before, now) in news.items())
        # A key or a program is that of an upstream at all its places.
        return list(dict.fromkeys(event for event in events if event is not None))

    def _server_changed(
        self, name: str, before: ServerIdentity, now: ServerIdentity
    ) -> LogEvent | None:
        status = self._pins.server_status(name, now)
        pinned = self._pins.lock.pinned_server(name, status)
        known = before if pinned is None else pinned.with_parts(before)
        parts = changed_parts(known, now)
        if not parts:
            return None
        return ServerChanged(
            server=server_of(name),
            parts=parts,
            before=tuple(known.parts[part] for part in parts),
            now=tuple(now.parts[part] for part in parts),
            provenance=status.provenance,
        )

    def _kept(self, server: str, raw: bytes) -> KeptDefinition:
        """Return what is kept of a definition: a server may name its own URL in it."""
        mask = self._masks.get(server_of(server))
        shown = mask.cut_content(raw) if mask is not None else raw
        found = kept(shown, self._redactor)
        return found if shown == raw else structs.replace(found, partial=True)

    def _name(self, tool: str) -> str:
        return self._clean(tool[:TOOL_CHARS])

    def _changed(self, server: str, change: Change) -> LogEvent:
        return ToolChanged(
            server=server_of(server),
            tool=change.tool,
            parts=tuple(definitions.changed(self._data, change.before, change.now)),
            provenance=self._pins.standing(server, change.tool, change.now).provenance,
        )


def _pinned(lock: LockFile) -> Mapping[bytes, KeptDefinition]:
    return {
        pin.digest: kept_definition(pin)
        for tools in lock.servers.values()
        for pin in tools.values()
    }
