"""Advice on rules and packs that would fit the tools of a server."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import structs

from turnlog.core.kinds import Effect, RequestKind, Status, request_kind
from turnlog.core.operation import ChangedField
from turnlog.packs.fit import (
    built_in_packs,
    matching_packs,
    names_change,
    names_effect,
    pack_advice,
)
from turnlog.packs.lock import server_of
from turnlog.store import definitions
from turnlog.store.base import Filter
from turnlog.store.read.view import View

_LOOKED_AT: Final = 1000
"""Number of newest attempts whose tools are considered."""


def why_no_changes(view: View, among: Filter) -> str:
    """Return why no attempt shows a changed file, when rules are missing for it; else empty.

    Only the sessions and the server of the filter `among` are considered.
    """
    scope = Filter(sessions=among.sessions, server=among.server)
    changing = structs.replace(scope, field=ChangedField.FILES_MODIFIED)
    if next(iter(view.attempts(changing, newest_first=True)), None) is not None:
        return ""
    called = _called(view, scope)
    if not called:
        return ""
    found = matching_packs(called, built_in_packs(), names_change)
    names = ", ".join(map(repr, called))
    why = f"no rule with delta applied to a call of {names}, so nothing tells which files changed"
    return f"{why}; {pack_advice(found) or '`turnlog rules schema` describes how to write one'}"


def _called(view: View, scope: Filter) -> dict[str, set[str]]:
    """Return the tools, by server, with successful calls that may have changed something."""
    called: dict[str, set[str]] = {}
    for attempt in islice(view.attempts(scope, newest_first=True), _LOOKED_AT):
        facts = attempt[0].facts
        if facts.effect is Effect.READ or attempt[-1].facts.status is not Status.OK:
            continue
        if request_kind(facts.method) is RequestKind.TOOLS_CALL:
            called.setdefault(facts.server, set()).add(facts.tool)
    return called


def advice_on_effects(servers: Iterable[str], data: Path) -> str:
    """Return which packs fit servers, by the tools that they listed before; empty for none.

    Raises `StoreError`.
    """
    wanted = set(servers)
    seen: dict[str, set[str]] = {}
    for one in definitions.shown(data):
        if (server := server_of(one.server)) in wanted:
            seen.setdefault(server, set()).add(one.tool)
    return pack_advice(matching_packs(seen, built_in_packs(), names_effect)) if seen else ""
