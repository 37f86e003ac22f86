"""Stop a process for a while, as a paused machine, swapping or a hanging disk does."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from .clients import wait_until

_STOPS_AT = "KIT_STOPS_AT"
"""Names a function and a file: the process stops as it calls the one where the other exists."""


class StopPoint:
    """A function of turnlog: a process stops before it calls it, once each time that it is armed."""

    def __init__(self, function: str, armed: Path) -> None:
        """`function` is `MODULE:CLASS.NAME`; `armed` a file that does not exist yet."""
        self._armed = armed
        self.environ = {_STOPS_AT: f"{function}={armed}"}
        """The environment in which a process has it."""

    @contextmanager
    def stopped(self, process: int) -> Generator[None]:
        """Wait until a process, the only one that has it, stops there; it goes on after the block."""
        wait_until(lambda: _is_stopped(process), "the process stops")
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def arm(self) -> None:
        """Stop the process at the next call."""
        self._armed.touch()


def add_stop_point() -> None:
    """Add the stop point that the environment of this process names, if any."""
    if (named := os.environ.get(_STOPS_AT)) is None:
        return
    function, _, armed = named.partition("=")
    module, _, path = function.partition(":")
    owner, _, name = path.rpartition(".")
    found: Any = attrgetter(owner)(import_module(module))
    original = getattr(found, name)

    @wraps(original)
    def stopping(*args: Any, **kwargs: Any) -> Any:
        try:
            Path(armed).unlink()
        except FileNotFoundError:
            pass
        else:
            # To this thread itself: another one would take a while to stop it.
            signal.raise_signal(signal.SIGSTOP)
        return original(*args, **kwargs)

    setattr(found, name, stopping)


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
