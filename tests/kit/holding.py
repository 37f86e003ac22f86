"""Keep every writer of a store waiting, as a process that writes for long does."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nobody_writes(data: Path) -> Generator[None]:
    """Let nobody write to the log in folder `data` until the block ends."""
    with (data / "log" / "data.mdb").open("rb") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        yield
