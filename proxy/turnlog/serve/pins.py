"""The pins in force: what turnlog.lock said when it was last read without a mistake."""

from pathlib import Path

from turnlog.core.provenance import Standing, standing
from turnlog.observe.event import Event
from turnlog.observe.events import LockFailed, LockLoaded
from turnlog.packs.errors import ConfigError
from turnlog.packs.lock import LockFile, read_lock

from .watched import seen


class Pins:
    """Answers from memory; `refresh` reads the file again where it is another one."""

    def __init__(self, path: Path) -> None:
        """Read the lock. Raises `ConfigError`."""
        self.path = path
        self._seen = self._read_at = seen((path,))
        self.lock = LockFile()
        self.digests: dict[tuple[str, str], bytes] = {}
        """sha256 of each definition, by server and tool; another object after each reading."""
        self._take(read_lock(path))

    def standing(self, server: str, tool: str, definition: bytes) -> Standing:
        """Compare a tool's definition (its sha256; empty: not seen) with the pinned one."""
        return standing(self.digests.get((server, tool)), definition)

    def loaded(self) -> LockLoaded:
        """Return the event that says what is in force."""
        return LockLoaded(lock=str(self.path), pinned=len(self.digests))

    def refresh(self) -> Event | None:
        """Read the lock if its file has changed; return what to log. Blocks.

        What changed has to stay as it is for one look, so that no editor is caught between two
        writes. A lock that cannot be read leaves the one before in force.
        """
        # Before the file is read: what is written meanwhile is seen the next time.
        before, self._seen = self._seen, seen((self.path,))
        if self._seen == self._read_at or self._seen != before:
            return None
        self._read_at = self._seen
        try:
            self._take(read_lock(self.path))
        except ConfigError as error:
            return LockFailed(reason=str(error))
        return self.loaded()

    def _take(self, lock: LockFile) -> None:
        self.lock = lock
        self.digests = {
            (server, tool): pin.digest
            for server, tools in lock.servers.items()
            for tool, pin in tools.items()
        }
