"""Files of rules, read and put into their order."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, structs

from turnlog.rules.model import Rule, RuleFile
from turnlog.rules.policy import Rulebook

from .errors import ConfigError
from .load import Document, convert, read
from .sources import RuleSource, RuleSources


class PlacedRule(Struct, frozen=True, kw_only=True):
    """A rule with its file and line. Its name is never empty."""

    rule: Rule
    source: RuleSource
    line: int


ReadRules = Mapping[RuleSource, tuple[PlacedRule, ...]]
"""The rules of each file."""


def read_each(sources: RuleSources) -> ReadRules:
    """Return the rules of every file. Raises `ConfigError`."""
    return {source: read_rules(source) for source in sources.each()}


def read_rules(source: RuleSource) -> tuple[PlacedRule, ...]:
    """Return the rules of one file. Raises only `ConfigError`, as a proxy may be running."""
    try:
        return _read(source)
    except ConfigError:
        raise
    except Exception as error:
        message = f"cannot be read ({type(error).__name__}: {error}), write it more simply"
        raise ConfigError(source.shown, 1, 1, message) from error


def _read(source: RuleSource) -> tuple[PlacedRule, ...]:
    document = read(source.path, shown=source.shown, wanted="rule")
    rules = convert(document, RuleFile).rules
    for twin in duplicate_names(document, [rule.name for rule in rules]):
        raise twin
    return tuple(_placed(rule, document.line(("rules", n)), source) for n, rule in enumerate(rules))


def duplicate_names(document: Document, names: list[str]) -> Iterator[ConfigError]:
    """Yield an error for each rule that has the name of an earlier one."""
    for number, name in enumerate(names):
        if name and name in names[:number]:
            message = f"two rules are called {name!r}, give each a name of its own"
            yield document.error(("rules", number, "name"), message)


def rulebook(sources: RuleSources, reading: ReadRules) -> Rulebook:
    """Return the rules in their order for each server."""
    return Rulebook(
        _rules(sources.own, reading),
        {server: _rules(packs, reading) for server, packs in sources.packs.items()},
        _rules((sources.last,), reading),
    )


def _rules(sources: Iterable[RuleSource], reading: ReadRules) -> tuple[Rule, ...]:
    return tuple(placed.rule for source in sources for placed in reading[source])


def _placed(rule: Rule, line: int, source: RuleSource) -> PlacedRule:
    named = rule if rule.name else structs.replace(rule, name=f"{source.path.name}:{line}")
    return PlacedRule(rule=named, source=source, line=line)
