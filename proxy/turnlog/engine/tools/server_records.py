"""Tools and identities of servers, as they were seen."""

from msgspec import Raw, Struct

from turnlog.engine.request_identity import Request
from turnlog.observe.events import DefinitionsFailed, Log, ToolsListed
from turnlog.wire.json_text import text_of
from turnlog.wire.tools_list import read_tools_list

from .definition_writer import DefinitionWriter
from .pin_set import PinSet
from .server_identities import ServerIdentities
from .tool_cache import ToolListings


class ServerRecords(Struct, frozen=True):
    """Remembers lists of tools and identities, compares them with turnlog.lock, and has them stored."""

    pins: PinSet
    listings: ToolListings
    identities: ServerIdentities
    _definition_writer: DefinitionWriter
    _log: Log

    def on_tools(self, request: Request, result: Raw, *, after: Raw | None) -> None:
        """Remember a page of `tools/list`; `after` is the cursor that was asked for, if any."""
        page = read_tools_list(result)
        server, credential = request.server, request.credential
        learned = self.listings.learn(request.target, credential, page, first=after is None)
        name = self.pins.name_of(server, request.place)
        self._definition_writer.note(name, credential, page, learned.whole)
        self._log.emit(
            ToolsListed(
                server=server,
                tools=len(page.definitions),
                added=learned.added,
                changed=learned.changed,
                complete=not page.next_cursor,
                stuck=page.next_cursor != "" and page.next_cursor == text_of(bytes(after or b"")),
            )
        )

    def on_unread_tools(self, request: Request) -> None:
        """Forget the caller's tools: it got a list that could not be read here."""
        server = request.server
        if self.listings.forget(request.target, request.credential):
            reason = f"a list of tools of {server!r} cannot be read, so they count as not seen"
            self._log.emit(DefinitionsFailed(reason=reason))

    def is_unlisted(self, request: Request, tool: str) -> bool:
        """Return whether the caller was given a complete list without this tool."""
        return self.listings.lacks(request.target, request.credential, tool)

    async def watch_lock(self) -> None:
        """Log which pins are in force, and again when they change, until cancelled."""
        if self.pins.lock.servers:
            self._log.emit(self.pins.loaded())
        await self._definition_writer.watch()
