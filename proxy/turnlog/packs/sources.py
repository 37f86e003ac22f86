"""Find files of rules: packs by name, users' files by path, and the order in which they count."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from msgspec import Struct

from .find import SUFFIX, find_pack, packs_folder, rule_packs
from .shape import suggest

_LAST: Final = "default"
_ALIKE: Final = 0.8
"""How alike names of files must be: all share their ending."""
_SUFFIXES: Final = frozenset({SUFFIX, ".yml", ".json"})


class RuleSource(Struct, frozen=True):
    """A file of rules, and what messages call it."""

    path: Path
    shown: str


class RuleSources(Struct, frozen=True, kw_only=True):
    """Where the rules of a proxy come from, the first ones first."""

    own: tuple[RuleSource, ...]
    packs: Mapping[str, tuple[RuleSource, ...]]
    """By server."""
    last: RuleSource

    def order(self, server: str) -> tuple[RuleSource, ...]:
        """Return the files whose rules count for a server's calls."""
        return tuple(dict.fromkeys((*self.own, *self.packs.get(server, ()), self.last)))

    def each(self) -> tuple[RuleSource, ...]:
        """Return every file once."""
        packs = (source for sources in self.packs.values() for source in sources)
        return tuple(dict.fromkeys((*self.own, *packs, self.last)))


def rule_sources(own: tuple[RuleSource, ...], packs: Mapping[str, tuple[str, ...]]) -> RuleSources:
    """Return where rules come from: files, the packs of each server, and `default`."""
    return RuleSources(
        own=own,
        packs={server: tuple(map(find_rule_pack, names)) for server, names in packs.items()},
        last=find_rule_pack(_LAST),
    )


def find_rule_pack(name: str) -> RuleSource:
    """Find a pack of rules. Raises `ValueError` for a name that is none."""
    folder = packs_folder()
    names = rule_packs(folder)
    if name not in names:
        raise ValueError(f"no pack is called {name!r}, {suggest(name, names)}")
    path = find_pack(name, folder)
    return RuleSource(path, str(path))


def pack_or_file(text: str, folder: Path) -> RuleSource:
    """Find what a flag names: a pack, else a file below `folder`. Raises `ValueError`.

    The name of a pack means the pack, whatever lies in the working directory, and a file has to be
    written as one: what an agent leaves there must not become a rule by chance.
    """
    if "/" in text or Path(text).suffix in _SUFFIXES:
        return rule_file(text, folder, shown=text)
    try:
        return find_rule_pack(text)
    except ValueError as error:
        raise ValueError(f"{error} (a file is written as ./{text})") from None


def rule_file(text: str, folder: Path, *, shown: str) -> RuleSource:
    """Find a file of rules; a relative path begins at `folder`. Raises `ValueError` for none."""
    path = (folder / Path(text).expanduser()).absolute()
    if path.is_file():
        return RuleSource(path, shown)
    if text in rule_packs(packs_folder()):
        raise ValueError(f"{text!r} is a pack, name it in upstreams.NAME.packs or with --rules")
    beside = [file.name for file in path.parent.glob("*.*") if file.suffix in _SUFFIXES]
    close = get_close_matches(path.name, beside, n=1, cutoff=_ALIKE)
    advice = f"did you mean {close[0]!r}?" if close else "name a file of rules"
    raise ValueError(f"there is no file {text!r}, {advice}")
