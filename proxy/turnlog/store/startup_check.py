"""A quick check of a store, in a child process, before it is opened for writing.

It finds a log that would crash its reader, and indexes in which earlier calls are missing. `turnlog
verify` checks everything.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from . import definitions
from .base import StoreDamaged, StoreError
from .bounded_process import Send, Unfinished, Worker, WorkerFailed

CPU_SECONDS: Final = 20.0
"""Processor time that the check may take; an undamaged store takes well under a second."""
SECONDS: Final = 60.0
"""s to wait for it; a hanging disk or a suspended machine is no damage."""
WHOLE: Final = 4 << 20
"""Bytes of a log up to which all of it is checked, which takes some 50 ms."""


class StartupCheck:
    """The check, running in its process from the start; do something else before asking for the result."""

    def __init__(self, data: Path) -> None:
        """Begin. Raises `OSError`."""
        self._data = data
        there = (data / "log" / "data.mdb").exists()
        self._child = Worker(self._work, CPU_SECONDS) if there else None

    def result(self) -> bool:
        """Wait for the end; return whether the check was finished in time. Raises `StoreDamaged`."""
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
