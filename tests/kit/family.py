"""The processes that a proxy has started, as the system knows them."""

from pathlib import Path


def store_processes(parent: int) -> list[int]:
    """Return the ids of the processes that write a store and were started by `parent`."""
    return [child for child in _children(parent) if _writes_a_store(child)]


def commands(parent: int) -> list[int]:
    """Return the ids of the other processes that `parent` has started."""
    return [child for child in _children(parent) if not _writes_a_store(child)]


def is_running(process: int) -> bool:
    """Tell whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def has_opened(process: int, file: Path) -> bool:
    """Tell whether a process has a file in its memory."""
    try:
        return str(file) in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


def _children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _writes_a_store(process: int) -> bool:
    try:
        return b"turnlog.store.apart_process" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
