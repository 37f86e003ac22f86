"""Tell a file that has changed from one that is as it was."""

from collections.abc import Iterable
from pathlib import Path

State = tuple[tuple[int, int, int] | None, ...]
"""Time, size and inode of each file; `None` for one that cannot be seen."""


def seen(files: Iterable[Path]) -> State:
    """Return what tells changed files from those that are as they were."""
    return tuple(map(_seen, files))


def _seen(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
