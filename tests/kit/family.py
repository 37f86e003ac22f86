"""The process that writes a proxy's store, as the system knows it."""

from pathlib import Path


def store_processes(parent: int) -> list[int]:
    """Return the ids of the processes that write a store and were started by `parent`."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [child for child in children if b"turnlog.store.apart_process" in _command(child)]


def is_running(process: int) -> bool:
    """Tell whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
