"""Stop a process for a while, as a paused machine, swapping or a hanging disk does."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from .clients import wait_until


@contextmanager
def stopped(process: int) -> Generator[None]:
    """Stop a process until the block ends.

    Who writes the store of a proxy goes on: stopped within a transaction it would keep all others waiting.
    """
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: _is_stopped(process), "the process is stopped")
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def _is_stopped(process: int) -> bool:
    # proc_pid_stat(5): the state stands behind the name, which is in parentheses.
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
