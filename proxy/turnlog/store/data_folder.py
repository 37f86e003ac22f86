"""The data folder: its marker, its key, and opening LMDB environments in it.

DATA/format    what this folder is        DATA/log/      headers, bodies, indexes
DATA/key       the store's own secret     DATA/blobs/    one environment for each bucket
DATA/keys/     secrets of sessions that came from other stores
DATA/token     who may use the API        DATA/epochs/   one lock file for each writer that lives
DATA/definitions/   what tools were defined as, and what each server showed last
DATA/states/   what commits came to, saved by whoever folded them, within a bound; see `states`
DATA/turnlog.lock   what is pinned, where there is no configuration file to lie beside
DATA/lock-path   which lock the proxy reads    DATA/health/   what proxies say of their servers
DATA/retention   how long the proxy keeps content
"""

import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Final
from uuid import UUID

from turnlog.host import sync_path, whole_file
from turnlog.store.log.environment import id_taken, identity, is_id_taken
from turnlog.store.log.translate_errors import explained, translated

from .base import StoreAbsent, StoreDamaged, StoreError

FORMAT = 5
OLD_FORMAT = 4
"""Of release 0.2, which kept its newest commits in slots of the log's file as well; see `convert`. 3 had no index of what calls changed, 2 had no seals, 1 a value for each record; no version that was released wrote them."""
KEY_BYTES: Final = 32
KEYS = "keys"
"""Folder of the secrets of sessions that came from other stores."""
_OURS = {
    KEYS,
    "format",
    "key",
    "log",
    "epochs",
    "blobs",
    "logs",
    "token",
    "definitions",
    "states",
    "health",
    "turnlog.lock",
    "lock-path",
    "retention",
    "log.converting",
    "log.purging",
    "purge-pending",
    f"log.format-{OLD_FORMAT}",
}

COPIED = ("key", "token", "turnlog.lock", "retention", "format")
"""Files that a copy of a store needs; the last one makes it a store."""


def reach(path: Path) -> None:
    """Raise `StoreError` where `path` is there and cannot be used as a data folder; nothing is made.

    Call it before this process opens the store.
    """
    with translated("open", path), suppress(FileNotFoundError):
        _refuse_file(path)
        (path / "format").stat()
        if is_id_taken(path / "log" / "lock.mdb"):
            raise id_taken(path / "log")


def _refuse_file(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise StoreError(f"{str(path)!r} is no folder; name the data folder with --data")


def create(path: Path) -> None:
    """Make `path` a data folder, if it is none yet. Raises `StoreError`."""
    with translated("create the data folder", path):
        fresh = not (path / "format").exists()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if fresh:
            if strange := _strange(path):
                raise StoreError(
                    f"cannot make {str(path)!r} a store: it holds other files ({strange[0]!r}); "
                    "give an empty or a new folder with --data"
                )
            if any((path / "blobs").glob("*-*/data.mdb")):
                # A folder that a killed process only began has no blobs.
                check_log(path)
            path.chmod(0o700)
        else:
            check(path)
            check_log(path)
            _make_private(path)
        for name in ("log", "epochs", "blobs"):
            (path / name).mkdir(mode=0o700, exist_ok=True)


def _make_private(path: Path) -> None:
    """Close a data folder to other users, as it was when it was made."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o077:
        return
    if found.st_uid != os.geteuid():
        raise StoreError(
            f"the data folder {str(path)!r} is open to other users (mode {mode:o}) and belongs "
            f"to user {found.st_uid}; run as that user, or `chmod 700` it"
        )
    path.chmod(0o700)


def _strange(path: Path) -> list[str]:
    """Return the names in a folder that no store has."""
    names = {entry.name for entry in path.iterdir()} - _OURS
    # Drafts that `publish` or `trust` is writing, or left behind when it was killed.
    drafts = (".format-", ".key-", ".token-", ".turnlog.lock-")
    return sorted(name for name in names if not name.startswith(drafts))


def mark(path: Path) -> None:
    """Write the format marker: the folder is complete, and readers may open it."""
    if not (path / "format").exists():
        with translated("write", path / "format"):
            sync_path(path / "log")
            publish(path / "format", _marker())


def _marker() -> bytes:
    return f"turnlog {FORMAT}\n".encode()


def check(path: Path) -> None:
    """Raise `StoreError` unless `path` is a store that this version can read.

    `StoreAbsent` where a proxy that starts would make one.
    """
    version = read_format(path)
    if version == OLD_FORMAT:
        raise StoreError(
            f"the store {str(path)!r} has format {version}, that of turnlog 0.2; stop every turnlog that uses "
            f"it, and run `turnlog convert --data {quote(str(path))}`"
        )
    if version != FORMAT:
        advice = "install a newer turnlog" if version > FORMAT else "name another folder"
        raise StoreError(
            f"the store {str(path)!r} has format {version}, this turnlog reads {FORMAT}; {advice}"
        )


def read_format(path: Path) -> int:
    """Return the format of the store in a folder. Raises `StoreError` as `check` does."""
    with translated("open", path):
        _refuse_file(path)
        if not path.exists():
            raise StoreAbsent(
                f"no data folder at {str(path)!r}; `turnlog serve` and `turnlog wrap` make it, or name "
                "another with --data"
            )
    marker = path / "format"
    try:
        name, _, version = marker.read_text(errors="replace").strip().partition(" ")
    except FileNotFoundError:
        with translated("open", path):
            kind = StoreError if _strange(path) else StoreAbsent
        raise kind(
            f"{str(path)!r} is not a turnlog store; name the data folder with --data"
        ) from None
    except OSError as error:
        raise explained("read", marker, error) from error
    if name != "turnlog" or not (version.isascii() and version.isdigit()):
        raise StoreError(f"{str(path)!r} is not a turnlog store; name the data folder with --data")
    return int(version)


def replace_format(path: Path) -> None:
    """Write the present format into the marker of a store. Raises `OSError`."""
    with whole_file(path / "format", replace=True) as stream:
        stream.write(_marker())


def check_log(path: Path) -> int:
    """Return the `identity` of a store's log. Raises `StoreError` where that is empty or gone.

    LMDB would begin a new one beside what is left of the old. `StoreAbsent` for a log that is gone:
    the folder may be on its way out, or in, just now.
    """
    log = path / "log" / "data.mdb"
    with translated("open", path):
        there = log.exists()
        if there and log.stat().st_size:
            return identity(path / "log")
    kind = StoreDamaged if there else StoreAbsent
    raise kind(
        f"the log {str(log)!r} is empty or missing, and its folder held a store; restore it "
        "from a backup, or name another folder with --data"
    )


def rekeyed(path: Path) -> str:
    """Return the warning for a store whose secret is not the one that was used last."""
    return (
        f"the key {str(path / 'key')!r} was gone or replaced: digests from before match nothing "
        "any more; restore the file from a backup, with turnlog stopped"
    )


def read_key(path: Path) -> bytes:
    """Return the store's secret; make it on first use. Processes that race get the same one."""
    file = path / "key"
    with translated("read", file):
        if not file.exists():
            publish(file, secrets.token_bytes(KEY_BYTES))
        key = file.read_bytes()
    if len(key) != KEY_BYTES:
        raise StoreError(f"the key {str(file)!r} is damaged; restore it from a backup")
    return key


_NO_SECRETS: Mapping[bytes, bytes] = {}


class Secrets:
    """The secrets of a store: its own, and those of the sessions that came from other stores.

    DATA/keys/SESSION holds that of one session; other processes may add some at any time.
    """

    def __init__(self, path: Path, own: bytes) -> None:
        self.own = own
        self._folder = path / KEYS
        self._changed = -1
        self.known = _NO_SECRETS
        """The secrets of sessions from other stores, as last read."""

    def read(self) -> Mapping[bytes, bytes]:
        """Return the secrets of sessions from other stores. Raises `StoreError`."""
        with translated("read", self._folder):
            try:
                changed = self._folder.stat().st_mtime_ns
            except FileNotFoundError:
                self.known, self._changed = _NO_SECRETS, -1
                return _NO_SECRETS
            if changed != self._changed:
                self.known = dict(self._found())
                self._changed = changed
        return self.known

    def _found(self) -> Iterator[tuple[bytes, bytes]]:
        for file in self._folder.iterdir():
            with suppress(ValueError):  # a draft of one
                yield UUID(file.name).bytes, file.read_bytes()

    def add(self, session: bytes, secret: bytes) -> None:
        """Keep the secret of a session, and wait for the disk. Raises `StoreError`."""
        with translated("write", self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with whole_file(self._folder / str(UUID(bytes=session)), replace=True) as stream:
                stream.write(secret)

    def remove(self, session: bytes) -> None:
        """Delete the secret of a session, if it has one of its own. Raises `StoreError`."""
        with translated("delete", self._folder):
            (self._folder / str(UUID(bytes=session))).unlink(missing_ok=True)


def key_mark(key: bytes) -> bytes:
    """Return a digest that identifies a store's secret without revealing it."""
    return hmac.digest(key, b"turnlog key mark", "sha256")[:16]


def has_key(path: Path, mark: bytes) -> bool:
    """Return whether the secret is there that has this `key_mark`. Raises `StoreError`."""
    with translated("read", path / "key"), suppress(FileNotFoundError):
        return key_mark((path / "key").read_bytes()) == mark
    return False


def publish(file: Path, content: bytes) -> None:
    """Create `file` with `content`, whole and on disk, unless it exists."""
    with suppress(FileExistsError), whole_file(file, replace=False) as stream:
        stream.write(content)


_LENGTH = 32
"""Bytes of chance in a token, and the least length of one that an operator chose."""


def read_token(data: Path) -> bytes:
    """Return the token of a data folder; make it on first use.

    Processes that race get the same one. Raises `StoreError`.
    """
    file = data / "token"
    with translated("read", file):
        if not file.exists():
            publish(file, secrets.token_urlsafe(_LENGTH).encode() + b"\n")
        file.chmod(0o600)
        token = file.read_bytes().strip()
    if len(token) < _LENGTH:
        raise StoreError(
            f"the token {str(file)!r} is too short; delete it, and start turnlog again"
        )
    return token
