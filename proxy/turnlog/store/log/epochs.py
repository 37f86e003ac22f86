"""Epochs: the numbers of writers, each with a lock file that lives as long as its process."""

import fcntl
import os
from pathlib import Path

from turnlog.host import opened, try_lock


class EpochLock:
    """The lock on one epoch, held by an open file; the system drops it when the process ends."""

    def __init__(self, path: Path, epoch: int, descriptor: int) -> None:
        self.epoch = epoch
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the epoch for good: its number is never used again."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def lock_epoch(folder: Path, epoch: int) -> EpochLock | None:
    """Lock one's own epoch; `None` while a living process holds it. Raises `OSError`.

    A writer locks its own epoch before it commits the number: every process that reads the number
    finds the lock taken.
    """
    path = folder / f"{epoch}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if try_lock(descriptor):
            return EpochLock(path, epoch, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def is_locked(folder: Path, epoch: int) -> bool:
    """Return whether a living process holds an epoch. Raises `OSError`.

    A dead writer stays dead: cleaning up after it needs no lock.
    """
    try:
        with opened(folder / f"{epoch}.lock") as descriptor:
            # A shared lock, so that two processes that ask at once do not take each other for the writer.
            return not try_lock(descriptor, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def locked_epochs(folder: Path) -> list[int]:
    """Return the epochs that living processes hold. Raises `OSError`."""
    numbers = sorted(int(path.stem) for path in folder.glob("*.lock") if path.stem.isdigit())
    return [number for number in numbers if is_locked(folder, number)]


def has_others(folder: Path, epoch: int) -> bool:
    """Return whether there may be writers beside that of `epoch`: some of them may have died."""
    return any(path.name != f"{epoch}.lock" for path in folder.glob("*.lock"))


def sweep(folder: Path, newest: int) -> None:
    """Remove the lock files of dead epochs up to `newest`. Raises `OSError`."""
    for path in folder.glob("*.lock"):
        if not path.stem.isdigit() or int(path.stem) > newest:
            continue
        if not is_locked(folder, int(path.stem)):
            path.unlink(missing_ok=True)
