"""A cache of session states in files, so that not all commits need to be folded again.

DATA/states/SESSION/VERSION-SEQ-HASH   the state after commit SEQ; HASH is the start of its hash

Every process that folds writes to it, if the folder is writable. The files can be deleted at any
time; one that does not match the log is ignored. The least recently used are removed first.
"""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from turnlog.core import ids
from turnlog.host import whole_file

MOST_BYTES: Final = 1 << 20
"""Bytes of one compressed state; a larger one is not saved."""
MOST_OF_ALL: Final = 64 << 20
"""Bytes of the disk that all of a folder's states take."""
_BLOCK: Final = 4096
_PARTS: Final = 16
"""The folder is measured again after this part of its limit was saved."""
_HASH_BYTES: Final = 8
_NAME: Final = re.compile(r"(\d+)-(\d+)-([0-9a-f]{16})")
_PACKED_LIGHTLY: Final = 1


class Saved(Struct, frozen=True):
    """A saved state of a session, after one commit."""

    seq: int
    start: bytes
    """First bytes of that commit's hash."""
    path: Path

    def fits(self, commit_hash: bytes) -> bool:
        """Return whether it was saved after a commit with this hash."""
        return commit_hash.startswith(self.start)

    def read(self) -> bytes:
        """Return the state's bytes; none where they cannot be read."""
        with suppress(OSError, zlib.error):
            state = zlib.decompress(self.path.read_bytes())
            # States that are used are kept longest.
            os.utime(self.path)
            return state
        return b""


class SavedStates:
    """The saved states in a data folder, of one `version` of their content."""

    def __init__(self, data: Path, version: int, *, most: int = MOST_OF_ALL) -> None:
        """`most` is how many bytes of the disk they may take together."""
        self._folder = data / "states"
        self._version = version
        self._most = most
        self._untrimmed = most
        """Bytes saved since the folder was last measured; at first its content is unknown."""

    def newest(self, session: bytes, seq: int) -> Iterator[Saved]:
        """Yield the saved states of a session up to a commit, the newest first."""
        found = [saved for saved in self._all(session) if saved.seq <= seq]
        yield from sorted(found, key=lambda saved: -saved.seq)

    def save(self, session: bytes, seq: int, commit_hash: bytes, state: bytes) -> bool:
        """Save a state if possible; return whether it was saved."""
        packed = zlib.compress(state, _PACKED_LIGHTLY)
        if len(packed) > MOST_BYTES:
            return False
        start = commit_hash[:_HASH_BYTES].hex()
        target = self._of(session) / f"{self._version}-{seq}-{start}"
        try:
            self._put(target, packed)
        except OSError:
            return False
        self._untrimmed += on_disk(len(packed))
        if self._untrimmed > self._most // _PARTS:
            trim(self._folder, self._most)
            self._untrimmed = 0
        return True

    def _put(self, target: Path, packed: bytes) -> None:
        for folder in (self._folder, target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        with whole_file(target, replace=True, durable=False) as file:
            file.write(packed)

    def _all(self, session: bytes) -> Iterator[Saved]:
        with suppress(OSError):
            for path in self._of(session).iterdir():
                match = _NAME.fullmatch(path.name)
                if match and int(match[1]) == self._version:
                    yield Saved(int(match[2]), bytes.fromhex(match[3]), path)

    def _of(self, session: bytes) -> Path:
        return self._folder / ids.to_text(session)


def size(folder: Path) -> int:
    """Return the bytes that the states in a folder take on disk."""
    return sum(taken for _, taken, _ in _files(folder))


def trim(folder: Path, most: int) -> int:
    """Remove the least recently saved or used states until the rest fits; return its size.

    A quarter more goes than has to, so that this is not done for each that is saved.
    """
    files = sorted(_files(folder))
    left = sum(taken for _, taken, _ in files)
    if left <= most:
        return left
    for _, taken, path in files:
        if left <= most - most // 4:
            break
        with suppress(OSError):
            Path(path).unlink()
            left -= taken
    for one in _entries(folder):
        with suppress(OSError):  # it is not empty
            Path(one.path).rmdir()
    return left


def on_disk(length: int) -> int:
    """Return what a file of this length takes, about."""
    return -(-length // _BLOCK) * _BLOCK


def _files(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Yield the time of last use, the size and the path of each state."""
    for session in _entries(folder):
        for file in _entries(session.path):
            with suppress(OSError):
                found = file.stat(follow_symlinks=False)
                yield found.st_mtime_ns, found.st_blocks * 512, file.path


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
