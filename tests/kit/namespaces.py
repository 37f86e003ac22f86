"""Programs in a pid namespace of their own, as in a container: the first one there has the id 1."""

import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Final

from .clients import wait_until

UNSHARE: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Killing this process kills all that runs in the namespace."""


@lru_cache
def refusal() -> str:
    """Return why this kernel gives no pid namespaces to this user; empty where it does."""
    try:
        done = subprocess.run([*UNSHARE, "true"], check=False, capture_output=True)
    except OSError as error:
        return f"no pid namespaces here: {error}"
    return f"no pid namespaces here: {done.stderr.decode()}" if done.returncode else ""


def first(process: int) -> int:
    """Return the id that the first process of the namespace has outside; `process` is the one of `UNSHARE`."""
    children: list[int] = []

    def found() -> bool:
        tasks = Path(f"/proc/{process}/task").glob("*/children")
        children.extend(int(child) for task in tasks for child in task.read_text().split())
        return bool(children)

    wait_until(found, "the first process of the namespace")
    return children[0]
