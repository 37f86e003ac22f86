"""The pins in force: what turnlog.lock said when it was last read without a mistake."""

from collections.abc import Sequence
from pathlib import Path

from turnlog.core.pins import (
    UNCHANGED,
    UNVERIFIED,
    PinStatus,
    Provenance,
    ServerIdentity,
    ServerStatus,
    pin_status,
)
from turnlog.observe.events import LockFailed, LockLoaded, LogEvent
from turnlog.packs.errors import ConfigError
from turnlog.packs.load import file_versions
from turnlog.packs.lock import (
    LockFile,
    is_beside_configuration,
    lock_name,
    place_of,
    read_lock,
    server_of,
)


class PinSet:
    """The pins of turnlog.lock in memory; `refresh` reads the file again if it has changed."""

    def __init__(self, path: Path, data: Path | None = None) -> None:
        """Read the lock, which may be that of the data folder `data`. Raises `ConfigError`."""
        self.path = path
        self._is_beside_configuration = data is None or is_beside_configuration(path, data)
        self._seen = self._read_at = file_versions((path,))
        self.lock = LockFile()
        self.digests: dict[tuple[str, str], bytes] = {}
        """sha256 of each definition, by the server's name in the lock and the tool; a new dict after
        each reading."""
        self._take(read_lock(path))

    def name_of(self, server: str, place: Sequence[str]) -> str:
        """Return what a server is called in the lock."""
        return lock_name(server, place, str(self.path.absolute().parent))

    def standing(self, name: str, tool: str, definition: bytes) -> PinStatus:
        """Compare a tool's definition (its sha256; empty: not seen) with the pinned one; `name` is what
        its server is called in the lock."""
        pinned = self.digests.get((name, tool))
        if pinned is not None:
            return pin_status(pinned, definition)
        # 0.1 pinned tools without saying of which server: that alone is no reason to trust this one.
        found = pin_status(self.digests.get((server_of(name), tool)), definition)
        return found if found.provenance is Provenance.MISMATCH else UNVERIFIED

    def server_status(self, name: str, seen: ServerIdentity) -> ServerStatus:
        """Compare what was seen of a server with its pinned identity; `name` is what it is called in the lock."""
        if not self.lock.identities:
            return UNCHANGED
        beside = self._is_beside_configuration
        return self.lock.status_of(name, seen, is_beside_configuration=beside)

    def loaded(self) -> LockLoaded:
        """Return the event that says what is in force."""
        return LockLoaded(
            lock=str(self.path),
            pinned=len(self.digests),
            untargeted=sum(not place_of(name) for name, _ in self.digests),
        )

    def refresh(self) -> LogEvent | None:
        """Read the lock if its file has changed; return what to log. Blocks.

        A changed file is read once two looks have found it the same, as an editor may be between two
        writes. A lock that cannot be read leaves the one before in force.
        """
        # Before the file is read: what is written meanwhile is seen the next time.
        before, self._seen = self._seen, file_versions((self.path,))
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
