"""Find the built-in packs: in the installed package, else in the checkout.

Never `./rules` of the working directory: a repository that an agent works in must not be able to
change its own retry policy.
"""

from pathlib import Path

SUFFIX = ".yaml"
EXAMPLES = ".examples"
_OTHER = frozenset({"identity"})
"""Packs of something else than rules."""


def packs_folder() -> Path:
    """Return the folder of the built-in packs. It need not exist in a broken installation."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_rules"
    return installed if installed.is_dir() else package.parents[1] / "rules"


def pack_names(folder: Path) -> list[str]:
    """Return the names of the packs in `folder`, sorted; their examples are no packs."""
    found = (path.stem for path in folder.glob("*" + SUFFIX))
    return sorted(name for name in found if not name.endswith(EXAMPLES))


def rule_packs(folder: Path) -> list[str]:
    """Return the names of the packs of rules in `folder`, sorted."""
    return [name for name in pack_names(folder) if name not in _OTHER]


def find_pack(name: str, folder: Path) -> Path:
    """Return the file of a pack. Raises `ValueError` for a name that `folder` does not hold."""
    names = pack_names(folder)
    if name not in names:
        known = f"use one of: {', '.join(names)}" if names else f"there are none in {folder}"
        raise ValueError(f"no pack is called {name!r}, {known}")
    return folder / (name + SUFFIX)
