"""A short look at a store before it is opened for writing, in a process of its own.

It finds a log that no process would survive reading, and indexes by which calls that were made
before would not be found. What only a reading of everything finds is `turnlog verify`'s.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from . import definitions
from .base import StoreDamaged, StoreError
from .bounded_process import Send, Unfinished, Worker, WorkerFailed

PROCESSOR: Final = 20.0
"""s of processor time that the look may take; a sound store takes well under one."""
SECONDS: Final = 60.0
"""The most that is waited for it: where a disk hangs, or the machine stood still, that is no damage."""
WHOLE: Final = 4 << 20
"""Bytes of a log that is looked at from end to end: some 50 ms."""


class StartupCheck:
    """The look, once it has begun. Begin it early, and go on with something else."""

    def __init__(self, data: Path) -> None:
        """Begin. Raises `OSError`."""
        self._data = data
        there = (data / "log" / "data.mdb").exists()
        self._child = Worker(self._work, PROCESSOR) if there else None

    def result(self) -> bool:
        """Wait for the end; return whether it came in time. Raises `StoreDamaged`."""
        if self._child is None:
            return True
        log = str(self._data / "log" / "data.mdb")
        try:
            found = [message.decode() for message in self._child.messages(SECONDS)]
        except Unfinished:
            return False
        except WorkerFailed as error:
            raise StoreDamaged(
                f"{log!r} is damaged: reading it failed ({error}); see what `turnlog verify` says, "
                "and restore the folder from a backup"
            ) from error
        if found:
            raise StoreDamaged(found[0])
        return True

    def _work(self, send: Send) -> None:
        from .lmdb import LmdbReader

        try:
            reader = LmdbReader.open(self._data)
        except StoreError:
            return  # opening it for writing reports the error, or makes the store
        with reader:
            try:
                for problem in (*reader.look(WHOLE), *self._definitions()):
                    send(problem.encode())
            except StoreError as error:
                send(str(error).encode())

    def _definitions(self) -> Iterator[str]:
        folder = self._data / definitions.FOLDER
        if (folder / "data.mdb").exists() and (folder / "data.mdb").stat().st_size <= WHOLE:
            for problem in definitions.flaws(self._data):
                yield (
                    f"{str(folder)!r} is damaged: {problem}; move that folder away: it is made again "
                    "as lists of tools go by"
                )
