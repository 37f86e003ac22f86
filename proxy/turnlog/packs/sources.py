"""Files of rules: built-in packs by name, the user's files by path, and the order in which they count."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from msgspec import Struct

from .errors import suggest

SUFFIX: Final = ".yaml"
EXAMPLES: Final = ".examples"
_DEFAULT: Final = "default"
_SIMILARITY: Final = 0.8  # of file names, which all share their ending
_SUFFIXES: Final = frozenset({SUFFIX, ".yml", ".json"})
_NOT_RULES: Final = frozenset({"identity"})  # packs of something else


class RuleSource(Struct, frozen=True):
    """A file of rules, and its name in messages."""

    path: Path
    shown: str


class RuleSources(Struct, frozen=True, kw_only=True):
    """The files of a proxy's rules; earlier ones come first."""

    own: tuple[RuleSource, ...]
    packs: Mapping[str, tuple[RuleSource, ...]]
    """By server."""
    last: RuleSource

    def order(self, server: str) -> tuple[RuleSource, ...]:
        """Return the files of the rules for a server, in order."""
        return tuple(dict.fromkeys((*self.own, *self.packs.get(server, ()), self.last)))

    def each(self) -> tuple[RuleSource, ...]:
        """Return every file once."""
        packs = (source for sources in self.packs.values() for source in sources)
        return tuple(dict.fromkeys((*self.own, *packs, self.last)))


def rule_sources(own: tuple[RuleSource, ...], packs: Mapping[str, tuple[str, ...]]) -> RuleSources:
    """Return the sources of rules: files, the packs of each server, and the pack `default`."""
    return RuleSources(
        own=own,
        packs={server: tuple(map(find_rule_pack, names)) for server, names in packs.items()},
        last=find_rule_pack(_DEFAULT),
    )


def packs_folder() -> Path:
    """Return the folder of the built-in packs, which is missing in a broken installation."""
    # Never `./rules` of the working directory: a repository that an agent works in must not be able
    # to change its own rules.
    package = Path(__file__).resolve().parents[1]
    installed = package / "_rules"
    return installed if installed.is_dir() else package.parents[1] / "rules"


def pack_names(folder: Path) -> list[str]:
    """Return the names of the packs in `folder`, sorted and without files of examples."""
    found = (path.stem for path in folder.glob("*" + SUFFIX))
    return sorted(name for name in found if not name.endswith(EXAMPLES))


def rule_packs(folder: Path) -> list[str]:
    """Return the names of the packs of rules in `folder`, sorted."""
    return [name for name in pack_names(folder) if name not in _NOT_RULES]


def find_pack(name: str, folder: Path) -> Path:
    """Return the file of a pack. Raises `ValueError` if `folder` has no pack of this name."""
    names = pack_names(folder)
    if name not in names:
        known = f"use one of: {', '.join(names)}" if names else f"there are none in {folder}"
        raise ValueError(f"no pack is called {name!r}, {known}")
    return folder / (name + SUFFIX)


def find_rule_pack(name: str) -> RuleSource:
    """Return a built-in pack of rules. Raises `ValueError` if there is none of this name."""
    folder = packs_folder()
    names = rule_packs(folder)
    if name not in names:
        raise ValueError(f"no pack is called {name!r}, {suggest(name, names)}")
    path = folder / (name + SUFFIX)
    return RuleSource(path, str(path))


def pack_or_file(text: str, folder: Path) -> RuleSource:
    """Return the pack or file that a flag names; files are relative to `folder`.

    Raises `ValueError`.
    """
    # A pack's name always means the pack, and a file must be written as a path: a file that an agent
    # leaves in the working directory must not become a rule by chance.
    if "/" in text or Path(text).suffix in _SUFFIXES:
        return rule_file(text, folder, shown=text)
    try:
        return find_rule_pack(text)
    except ValueError as error:
        raise ValueError(f"{error} (a file is written as ./{text})") from None


def rule_file(text: str, folder: Path, *, shown: str) -> RuleSource:
    """Return a file of rules; a relative path begins at `folder`. Raises `ValueError` for none."""
    path = (folder / Path(text).expanduser()).absolute()
    if path.is_file():
        return RuleSource(path, shown)
    if text in rule_packs(packs_folder()):
        raise ValueError(f"{text!r} is a pack, name it in upstreams.NAME.packs or with --rules")
    beside = [file.name for file in path.parent.glob("*.*") if file.suffix in _SUFFIXES]
    close = get_close_matches(path.name, beside, n=1, cutoff=_SIMILARITY)
    advice = f"did you mean {close[0]!r}?" if close else "name a file of rules"
    raise ValueError(f"there is no file {text!r}, {advice}")
