"""States of sessions beside the log: saved so that not all commits need to be folded again.

DATA/states/SESSION/VERSION-SEQ-HASH   a state after the commit SEQ, whose hash begins so

Whoever folds saves, as far as the folder lets them; nothing is lost with these files, and one that
does not fit the log is passed over.
"""

import os
import re
import secrets
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from turnlog.core import ids

MOST_BYTES: Final = 1 << 20
"""Of one state, packed; a larger one is not saved."""
_HASH_BYTES: Final = 8
_NAME: Final = re.compile(r"(\d+)-(\d+)-([0-9a-f]{16})")
_PACKED_LIGHTLY: Final = 1


class Saved(Struct, frozen=True):
    """That there is a state of a session after a commit."""

    seq: int
    start: bytes
    """How the hash of that commit begins."""
    path: Path

    def fits(self, commit_hash: bytes) -> bool:
        """Tell whether it is of a commit with this hash."""
        return commit_hash.startswith(self.start)

    def read(self) -> bytes:
        """Return the state's bytes; none where they cannot be read."""
        with suppress(OSError, zlib.error):
            return zlib.decompress(self.path.read_bytes())
        return b""


class SavedStates:
    """The saved states in a data folder, of one `version` of what they say."""

    def __init__(self, data: Path, version: int) -> None:
        self._folder = data / "states"
        self._version = version

    def newest(self, session: bytes, seq: int) -> Iterator[Saved]:
        """Yield what is saved of a session up to a commit, the newest first."""
        found = [saved for saved in self._all(session) if saved.seq <= seq]
        yield from sorted(found, key=lambda saved: -saved.seq)

    def save(self, session: bytes, seq: int, commit_hash: bytes, state: bytes) -> None:
        """Keep a state, if that can be done."""
        packed = zlib.compress(state, _PACKED_LIGHTLY)
        if len(packed) > MOST_BYTES:
            return
        start = commit_hash[:_HASH_BYTES].hex()
        target = self._of(session) / f"{self._version}-{seq}-{start}"
        draft = target.with_name(f".{secrets.token_hex(8)}")
        with suppress(OSError):
            for folder in (self._folder, target.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
            try:
                descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(packed)
                draft.rename(target)
            finally:
                draft.unlink(missing_ok=True)

    def _all(self, session: bytes) -> Iterator[Saved]:
        with suppress(OSError):
            for path in self._of(session).iterdir():
                match = _NAME.fullmatch(path.name)
                if match and int(match[1]) == self._version:
                    yield Saved(int(match[2]), bytes.fromhex(match[3]), path)

    def _of(self, session: bytes) -> Path:
        return self._folder / ids.to_text(session)
