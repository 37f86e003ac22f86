"""The built-in packs that match a server, by the names of its tools."""

from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct

from turnlog.rules.model import Rule

from .rulebook import read_rules
from .sources import find_rule_pack, packs_folder, rule_packs


class PackMatch(Struct, frozen=True, kw_only=True):
    """A pack that matches a server, and the tools that its rules name."""

    server: str
    pack: str
    tools: tuple[str, ...]


def names_effect(rule: Rule) -> bool:
    """Return whether a rule decides the effect or the changes of a call."""
    return rule.effect is not None or bool(rule.delta)


def names_change(rule: Rule) -> bool:
    """Return whether a rule decides the changes of a call."""
    return bool(rule.delta)


def built_in_packs() -> dict[str, tuple[Rule, ...]]:
    """Return the rules of each built-in pack. Raises `ConfigError` in a broken installation."""
    names = rule_packs(packs_folder())
    return {name: tuple(each.rule for each in read_rules(find_rule_pack(name))) for name in names}


def matching_packs(
    seen: Mapping[str, Collection[str]],
    packs: Mapping[str, Collection[Rule]],
    is_relevant: Callable[[Rule], bool],
) -> list[PackMatch]:
    """Return for each server the pack that names most of its tools in rules that are relevant."""
    # One name alone says little, as many servers have a tool `fetch`: a pack must name at least half of
    # a server's tools.
    named = {name: _named_tools(rules) for name, rules in packs.items()}
    relevant = {name: _named_tools(filter(is_relevant, rules)) for name, rules in packs.items()}
    found: list[PackMatch] = []
    for server, tools in ((server, frozenset(tools)) for server, tools in seen.items()):
        known = [name for name, names in named.items() if 2 * len(names & tools) >= len(tools)]
        best = max(known, key=lambda name: len(relevant[name] & tools), default="")
        if best and (matched := relevant[best] & tools):
            found.append(PackMatch(server=server, pack=best, tools=tuple(sorted(matched))))
    return found


def _named_tools(rules: Iterable[Rule]) -> frozenset[str]:
    # A rule about access is an operator's choice and says nothing about the tool.
    return frozenset(tool for rule in rules if rule.access is None for tool in rule.match.tool)


def pack_advice(found: Iterable[PackMatch]) -> str:
    """Return advice how to use the packs that match; empty for none."""
    return "; ".join(
        f"the pack {one.pack!r} knows {short_list(one.tools)} of {one.server!r}: give it to that server "
        f"with `packs: [{one.pack}]` in its upstream, or to all with `--rules {one.pack}`"
        for one in found
    )


def short_list(names: Collection[str]) -> str:
    """Return a list of names for people; only the first three of many."""
    some = ", ".join(list(names)[:3])
    return some if len(names) <= 3 else f"{some} and {len(names) - 3} more tools"
