"""Compare the tools that servers listed last with turnlog.lock, and pin them."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from turnlog.core.pins import ServerIdentity, ServerStatus
from turnlog.packs.lock import LockFile, Pin, join_lock_name, pin, place_of, server_of
from turnlog.store import definitions
from turnlog.store.data_folder import check
from turnlog.wire.tool_definition import Json, KeptDefinition, Part, diff, parts_changed


class ChangeKind(StrEnum):
    """How a listed tool differs from its pin."""

    NEW = "new"
    CHANGED = "changed"
    GONE = "gone"
    """Pinned, but missing in the server's newest complete list."""
    UNTARGETED = "untargeted"
    """Pinned with the same definition by turnlog 0.1, which did not record the server's target."""


class PinDifference(Struct, frozen=True, kw_only=True):
    """One line of `turnlog trust --json`: a tool that differs from its pin."""

    server: str
    target: str
    """Host or program of the server, with a digest; empty for a pin of turnlog 0.1."""
    tool: str
    change: ChangeKind
    parts: list[Part]
    """The changed parts of a changed tool."""
    pinned: str | None
    """Hash of the definition in the lock."""
    shown: str | None
    """Hash of the definition that the server listed last."""
    diff: list[str]
    """Lines of a unified diff."""


class ServerDifference(Struct, frozen=True, kw_only=True):
    """One line of `turnlog trust --json`: a server whose identity differs from its pin."""

    server: str
    target: str
    """Host or program of the server, with a digest."""
    change: ChangeKind
    """`new` for parts that are not pinned, `changed` for those that are."""
    parts: list[str]
    pinned: dict[str, str] | None
    """The pinned parts; of a server that was pinned at another target, those there."""
    shown: dict[str, str]
    """The parts as they were seen last."""
    diff: list[str]


_NOT_KEPT: Final = KeptDefinition(b'"[not kept]"', partial=True)
"""Stands for a definition that was not kept, for lack of space; its hash can still be pinned."""


class ToolSelection(Struct, frozen=True):
    """Which tools to compare; `None` for all."""

    server: str | None = None
    tool: str | None = None
    among: frozenset[str] | None = None
    """Only tools of these servers."""

    def covers(self, server: str, tool: str) -> bool:
        """Return whether a tool is selected."""
        name = server_of(server)
        among = self.among is None or name in self.among
        return among and self.server in (None, name, server) and self.tool in (None, tool)


class ShownTools(Struct, frozen=True):
    """The selected tools as the servers listed them last."""

    shown: dict[tuple[str, str], Pin]
    whole: set[str]
    """Servers whose complete list was seen."""
    identities: dict[str, ServerIdentity] = {}
    """The selected servers as they were seen last, unless a single tool is selected."""


def shown_tools(data: Path, wanted: ToolSelection) -> ShownTools:
    """Return the selected tools that the store has seen. Raises `StoreError`."""
    check(data)
    found = [one for one in definitions.shown(data) if wanted.covers(one.server, one.tool)]
    kept = definitions.find(data, {one.digest for one in found})
    pins = {(s.server, s.tool): pin(s.digest, kept.get(s.digest, _NOT_KEPT)) for s in found}
    seen = {} if wanted.tool is not None else definitions.servers(data)
    servers = {name: one for name, one in seen.items() if wanted.covers(name, "")}
    return ShownTools(pins, definitions.listed_whole(data), servers)


def server_differences(
    lock: LockFile, offer: ShownTools, *, is_beside_configuration: bool
) -> list[ServerDifference]:
    """Return the servers whose identities differ from their pins, ordered by name.

    `is_beside_configuration` is whether the lock is.
    """
    found: list[ServerDifference] = []
    for name, seen in sorted(offer.identities.items()):
        status = lock.status_of(name, seen, is_beside_configuration=is_beside_configuration)
        before = lock.pinned_server(name, status)
        known = before.parts if before is not None else {}
        if status.changes or seen.parts.keys() - known.keys():
            found.append(_server_difference(name, known, seen.parts, status))
    return found


def _server_difference(
    name: str, pinned: dict[str, str], shown: dict[str, str], status: ServerStatus
) -> ServerDifference:
    lines: list[str] = []
    for part in [part for part in shown if shown[part] != pinned.get(part)]:
        lines += [f"-{part}: {pinned[part]}"] if part in pinned else []
        lines.append(f"+{part}: {shown[part]}")
    return ServerDifference(
        server=server_of(name),
        target=place_of(name),
        change=ChangeKind.CHANGED if status.changes else ChangeKind.NEW,
        parts=list(status.changes) or [part for part in shown if part not in pinned],
        pinned=pinned or None,
        shown=shown,
        diff=lines,
    )


def pin_differences(
    lock: LockFile, offer: ShownTools, wanted: ToolSelection
) -> list[PinDifference]:
    """Return the tools that differ from their pins, ordered by server and tool."""
    before = {
        (server, tool): one
        for server, tools in lock.servers.items()
        for tool, one in tools.items()
        if wanted.covers(server, tool)
    }
    # A pin without a target (turnlog 0.1) is for the tool at any target of that server name.
    stands_for = {(server_of(server), tool) for server, tool in offer.shown}
    places = sorted({*(place for place in before if place not in stands_for), *offer.shown})
    found = (_difference(*place, before, offer) for place in places)
    return [one for one in found if one is not None]


def _difference(
    server: str, tool: str, before: Mapping[tuple[str, str], Pin], offer: ShownTools
) -> PinDifference | None:
    new, own = offer.shown.get((server, tool)), before.get((server, tool))
    old = own or before.get((server_of(server), tool))
    whole = any(server in (name, server_of(name)) for name in offer.whole)
    if (own and new and own.hash == new.hash) or (new is None and not whole):
        return None
    same = old is not None and new is not None and old.hash == new.hash
    return PinDifference(
        server=server_of(server),
        target=place_of(server),
        tool=tool,
        change=ChangeKind.UNTARGETED if same else _kind(old, new),
        parts=parts_changed(old.definition, new.definition) if old and new and not same else [],
        pinned=old.hash if old else None,
        shown=new.hash if new else None,
        diff=[] if same else diff(_definition(old), _definition(new)),
    )


def _kind(old: Pin | None, new: Pin | None) -> ChangeKind:
    if old is None:
        return ChangeKind.NEW
    return ChangeKind.GONE if new is None else ChangeKind.CHANGED


def _definition(one: Pin | None) -> Json | None:
    return one.definition if one is not None else None


def with_pins(lock: LockFile, offer: ShownTools, found: Sequence[PinDifference]) -> LockFile:
    """Return the lock with the listed definitions of these tools, and all selected servers' identities."""
    servers = {server: dict(tools) for server, tools in lock.servers.items()}
    for one in found:
        name = join_lock_name(one.server, one.target)
        new = offer.shown.get((name, one.tool))
        servers.get(one.server if new else name, {}).pop(one.tool, None)
        if new is not None:
            servers.setdefault(name, {})[one.tool] = new
    pinned = {name: tools for name, tools in servers.items() if tools}
    identities = dict(lock.identities)
    for name, seen in offer.identities.items():
        known = identities.get(name)
        identities[name] = known.with_parts(seen) if known is not None else seen
    return structs.replace(lock, servers=pinned, identities=identities)


def count_by_change(found: Iterable[PinDifference | ServerDifference]) -> dict[ChangeKind, int]:
    """Return the number of differences of each kind."""
    kinds = [one.change for one in found]
    return {kind: kinds.count(kind) for kind in ChangeKind if kind in kinds}
