"""The processes that a proxy has started, and what they have open, as the system knows them."""

from pathlib import Path


def children_of(parent: int) -> list[int]:
    """Return the ids of the processes that `parent` has started."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def has_opened(process: int, file: Path) -> bool:
    """Tell whether a process has a file in its memory."""
    try:
        return str(file) in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False
