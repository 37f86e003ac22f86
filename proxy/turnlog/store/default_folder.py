"""The default folder of a store: the user's own state folder.

Not the working directory: `git clean` takes what lies there, and each workspace of an editor
would get a store of its own.
"""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Final

from msgspec import Struct

_BEFORE: Final = "turnlog-data"
"""Up to 0.1 the default, in the working directory. It is looked for until 0.3."""


class DefaultFolder(Struct, frozen=True):
    """The default folder for a store, and a hint for the user about it, if any."""

    path: Path
    hint: str = ""


def default_place(
    environ: Mapping[str, str], folder: Path, platform: str = sys.platform
) -> DefaultFolder:
    """Return the default folder for the store; `folder` is the working directory.

    A store of the release before is still used where the new place has none: open calls, keys,
    the token and pins must not be left behind. It has to be the user's own and private, or a
    repository could bring one along.
    """
    own = _own_folder(environ, folder, platform)
    before = folder / _BEFORE
    if own == before or has_store(own) or not (_is_private(before) and has_store(before)):
        return DefaultFolder(own)
    move = f"mkdir -p {quote(str(own.parent))} && mv {quote(str(before))} {quote(str(own))}"
    return DefaultFolder(
        before,
        f"using {str(before)!r}; stores lie in {str(own)!r} now. Stop turnlog and move it: {move}",
    )


def has_store(folder: Path) -> bool:
    """Return whether a folder holds a store."""
    return (folder / "log" / "data.mdb").is_file()


def _own_folder(environ: Mapping[str, str], folder: Path, platform: str) -> Path:
    # XDG Base Directory Specification: a relative path is to be ignored.
    state = environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):
        return Path(state) / "turnlog"
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        # A service without a home has nothing of its own.
        return folder / _BEFORE
    if platform == "darwin":
        return Path(home) / "Library" / "Application Support" / "turnlog"
    return Path(home) / ".local" / "state" / "turnlog"


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    mode = stat.S_IMODE(found.st_mode)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not mode & 0o077
