"""What the servers showed last against what is pinned, and the lock that would pin it."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, structs

from turnlog.core.target import joined, place_shown, server_of
from turnlog.packs.lock import LockFile, Pin, pin
from turnlog.store import definitions
from turnlog.store.definitions import Shown
from turnlog.store.folder import check
from turnlog.wire.tools.definition import Json, Kept
from turnlog.wire.tools.differences import Part, diff, parts_changed


class ChangeKind(StrEnum):
    """How a tool that was shown differs from its pin."""

    NEW = "new"
    CHANGED = "changed"
    GONE = "gone"
    """Pinned, and not in the newest whole list of its server."""
    UNTARGETED = "untargeted"
    """Pinned as it is by turnlog 0.1, which did not say of which server."""


class Difference(Struct, frozen=True, kw_only=True):
    """One tool that is not as it is pinned; one line of `turnlog trust --json`."""

    server: str
    target: str
    """Where the server is: host or program, and a digest; empty where turnlog 0.1 pinned."""
    tool: str
    change: ChangeKind
    parts: list[Part]
    """What has changed of a changed one."""
    pinned: str | None
    """Hash of the definition in the lock."""
    shown: str | None
    """Hash of the definition that the server showed last."""
    diff: list[str]
    """Lines of a unified diff."""


class Wanted(Struct, frozen=True):
    """Which tools are meant; `None` for all."""

    server: str | None = None
    tool: str | None = None
    among: frozenset[str] | None = None
    """The servers that come into question at all."""

    def covers(self, server: str, tool: str) -> bool:
        """Tell whether a tool is meant."""
        name = server_of(server)
        among = self.among is None or name in self.among
        return among and self.server in (None, name, server) and self.tool in (None, tool)


class Offer(Struct, frozen=True):
    """What the servers showed last, as far as it is wanted."""

    shown: dict[tuple[str, str], Pin]
    whole: set[str]
    """Servers whose lists were seen to their end."""


def offered(data: Path, wanted: Wanted) -> Offer:
    """Return what the store can offer to pin. Raises `StoreError`."""
    check(data)
    found = [one for one in definitions.shown(data) if wanted.covers(one.server, one.tool)]
    kept = definitions.find(data, {one.digest for one in found})
    pins = {(one.server, one.tool): _pin(one, kept.get(one.digest)) for one in found}
    return Offer(pins, definitions.listed_whole(data))


def _pin(one: Shown, kept: Kept | None) -> Pin:
    # Not kept: there was no room. The hash can be pinned all the same.
    return pin(one.digest, kept or Kept(b'"[not kept]"', partial=True))


def differences(lock: LockFile, offer: Offer, wanted: Wanted) -> list[Difference]:
    """Return the tools that are not as they are pinned, by server and tool."""
    before = {
        (server, tool): one
        for server, tools in lock.servers.items()
        for tool, one in tools.items()
        if wanted.covers(server, tool)
    }
    # A pin without a place stands for a tool wherever the server is now.
    stands_for = {(server_of(server), tool) for server, tool in offer.shown}
    places = sorted({*(place for place in before if place not in stands_for), *offer.shown})
    found = (_difference(*place, before, offer) for place in places)
    return [one for one in found if one is not None]


def _difference(
    server: str, tool: str, before: Mapping[tuple[str, str], Pin], offer: Offer
) -> Difference | None:
    new, own = offer.shown.get((server, tool)), before.get((server, tool))
    old = own or before.get((server_of(server), tool))
    whole = any(server in (name, server_of(name)) for name in offer.whole)
    if (own and new and own.hash == new.hash) or (new is None and not whole):
        return None
    same = old is not None and new is not None and old.hash == new.hash
    return Difference(
        server=server_of(server),
        target=place_shown(server),
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


def pinned(lock: LockFile, offer: Offer, found: Sequence[Difference]) -> LockFile:
    """Return the lock with these differences settled as the servers have it."""
    servers = {server: dict(tools) for server, tools in lock.servers.items()}
    for one in found:
        name = joined(one.server, one.target)
        new = offer.shown.get((name, one.tool))
        servers.get(one.server if new else name, {}).pop(one.tool, None)
        if new is not None:
            servers.setdefault(name, {})[one.tool] = new
    return structs.replace(lock, servers={name: tools for name, tools in servers.items() if tools})


def count(found: Iterable[Difference]) -> dict[ChangeKind, int]:
    """Return how many differences there are of each kind."""
    kinds = [one.change for one in found]
    return {kind: kinds.count(kind) for kind in ChangeKind if kind in kinds}
