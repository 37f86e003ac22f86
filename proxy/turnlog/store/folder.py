"""The data folder: its marker, its key, and opening LMDB environments in it.

DATA/format    what this folder is        DATA/log/      headers, bodies, indexes
DATA/key       the store's own secret     DATA/blobs/    one environment for each bucket
DATA/token     who may use the API        DATA/epochs/   one lock file for each writer that lives
DATA/definitions/   what tools were defined as, and what each server showed last
DATA/states/   what commits came to, saved by whoever folded them, within a bound; see `states`
DATA/turnlog.lock   what is pinned, where there is no configuration file to lie beside
DATA/lock-path   which lock the proxy reads    DATA/health/   what proxies say of their servers
"""

import fcntl
import hmac
import os
import secrets
import stat
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from errno import (
    EACCES,
    EAGAIN,
    EIO,
    EMFILE,
    ENFILE,
    ENOLCK,
    ENOMEM,
    EOPNOTSUPP,
    EPERM,
    EROFS,
)
from pathlib import Path
from shlex import quote
from typing import Any

import lmdb
import msgspec

from turnlog.store.log import structure

from .base import ProcessIdTaken, StoreAbsent, StoreDamaged, StoreError, StoreFull, StoreGone

FORMAT = 5
OLD_FORMAT = 4
"""Of release 0.2, which kept its newest commits in slots of the log's file as well; see `convert`. 3 had no index of what calls changed, 2 had no seals, 1 a value for each record; no version that was released wrote them."""
MAP_SIZE = 16 << 40
"""Bytes of address space for the log. Sparse; never resized, because that cannot be done safely."""
READERS = 1024
_READER = 128
"""Bytes of the lock file for each reader, more than it takes."""
_NO_ROOM = ("No space left", "File too large", "Disk quota exceeded")
_SHORT_WRITE = "Input/output error"
_ADVICE = {
    EACCES: "run as the user who owns the folder",
    EPERM: "run as the user who owns the folder",
    EROFS: "the disk can only be read: mount it for writing, or name another folder with --data",
    EIO: "the disk fails: check it, and restore a backup to another one",
    ENOMEM: "memory or address space is limited (ulimit -v, the container's memory): raise that limit; "
    "the store's files are mapped, and take address space of 16 TiB",
    EAGAIN: "a limit on processes, threads or locks is reached (ulimit -u, pids of the container): raise it, "
    "or try again later",
    EMFILE: "too many files are open: raise the limit (ulimit -n)",
    ENFILE: "too many files are open on this machine: raise fs.file-max, or end some programs",
    ENOLCK: "the file system cannot lock files: name a folder on a local disk with --data",
    EOPNOTSUPP: "the file system lacks what a store needs: name a folder on a local disk with --data",
}
"""What to do, by the number of the system's error."""
_FULL = 1 << 20
"""Bytes: a disk with less took all that it could of what was written last."""
_OURS = {
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
    "log.converting",
    f"log.format-{OLD_FORMAT}",
}
_DAMAGE = (msgspec.DecodeError, UnicodeDecodeError, struct.error)
"""What reading records or indexes raises whose bytes are not as they were written."""
_NO_STORE = (lmdb.VersionMismatchError, lmdb.InvalidError, lmdb.CorruptedError)
FAILURES = (OSError, lmdb.Error, *_DAMAGE)
"""What using a store raises that is no bug; callers get a `StoreError` instead."""


@contextmanager
def translated(doing: str, path: Path) -> Generator[None]:
    """Turn what LMDB, the system and damaged records raise into a `StoreError`."""
    try:
        yield
    except FAILURES as error:
        raise explained(doing, path, error) from error


def explained(doing: str, path: Path, error: Exception) -> StoreError:
    """Return a `StoreError` that says what to do about one of `FAILURES`."""
    if no_room := _no_room(error, path):
        return StoreFull(f"cannot {doing} {str(path)!r}: {no_room}")
    kind = StoreDamaged if isinstance(error, _NO_STORE) else StoreError
    return kind(f"cannot {doing} {str(path)!r}: {_said(error, path)}; {_advice(error)}")


def _said(error: Exception, path: Path) -> str:
    """Return what an error says, without the path that stands before it."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    reason = error.strerror.lower()
    named = error.filename is not None and str(error.filename) != str(path)
    return f"{reason}: {str(error.filename)!r}" if named else reason


def _no_room(error: Exception, path: Path) -> str:
    """Return what to say of an error that comes of a full disk; empty for all others."""
    said = str(error) if isinstance(error, (OSError, lmdb.Error)) else ""
    if any(words in said for words in _NO_ROOM):
        return f"{said}; free space on the disk"
    if not isinstance(error, lmdb.Error) or _SHORT_WRITE not in said:
        return ""
    # Less was written than LMDB asked for, and the system did not say why.
    full = "the disk is full; free space on the disk"
    return full if _free(path) < _FULL else f"{said}; free space on the disk, or check it"


def _free(path: Path) -> int:
    try:
        disk = os.statvfs(path)
    except OSError:
        return _FULL
    return disk.f_bavail * disk.f_frsize


def _advice(error: Exception) -> str:
    if isinstance(error, _DAMAGE):
        return "a record or an index is damaged: run `turnlog verify`"
    return _advice_of_system(error)


def _advice_of_system(error: Exception) -> str:
    match error:
        case FileExistsError() | NotADirectoryError():
            return "name a folder with --data"
        case FileNotFoundError():
            return "give the data folder of a store with --data"
        case lmdb.ReadersFullError():
            return "too many readers are open: end some of them"
        case _ if isinstance(error, _NO_STORE):
            return "the file is damaged or no store: restore it from a backup"
        case lmdb.PanicError():
            return "restart turnlog: the disk refused a write that cannot be taken back"
        case _:
            return _advice_by_code(error)


def _advice_by_code(error: Exception) -> str:
    """Return what to do about an error of the system's, whoever passes it on."""
    for code, advice in _ADVICE.items():
        # LMDB's errors carry no number, only its text.
        if getattr(error, "errno", None) == code or os.strerror(code) in str(error):
            return advice
    return "check the disk and the folder's permissions"


def reach(path: Path) -> None:
    """Raise `StoreError` where `path` is there and cannot be used as a data folder; nothing is made.

    Call it before this process opens the store.
    """
    with translated("open", path), suppress(FileNotFoundError):
        _refuse_file(path)
        (path / "format").stat()
        if is_id_taken(path / "log" / "lock.mdb"):
            raise _id_taken(path / "log")


def is_id_taken(lock: Path) -> bool:
    """Return whether another process uses LMDB's lock file under this one's id.

    Call it before this process opens the environment: closing the file gives its locks up.
    """
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # whoever opens the store says what is wrong
    try:
        # A reader of the environment holds the byte at the offset of its process id (LMDB, mdb_reader_pid).
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, os.getpid())
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


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
    return sorted(entry.name for entry in path.iterdir() if not _is_ours(entry.name))


def _is_ours(name: str) -> bool:
    # What `publish` or `trust` is writing, maybe elsewhere, or left behind when it was killed.
    return name in _OURS or name.startswith((".format-", ".key-", ".token-", ".turnlog.lock-"))


def mark(path: Path) -> None:
    """Say that the folder is complete: readers may open it from now on."""
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
    """Give a store the present format. Raises `OSError`."""
    _draft(path / "format", _marker()).rename(path / "format")
    sync_path(path)


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


def lacks_key(path: Path) -> bool:
    """Tell whether a store that was complete has lost its secret. Raises `StoreError`."""
    with translated("read", path):
        return (path / "format").exists() and not (path / "key").exists()


def rekeyed(path: Path) -> str:
    """Return what to say where a store's secret is not the one that was used last."""
    return (
        f"the key {str(path / 'key')!r} was gone or replaced: digests from before match nothing "
        "any more; restore the file from a backup, with turnlog stopped"
    )


def read_key(path: Path) -> bytes:
    """Return the store's secret; make it on first use. Processes that race get the same one."""
    file = path / "key"
    with translated("read", file):
        if not file.exists():
            publish(file, secrets.token_bytes(32))
        key = file.read_bytes()
    if len(key) != 32:
        raise StoreError(f"the key {str(file)!r} is damaged; restore it from a backup")
    return key


def key_mark(key: bytes) -> bytes:
    """Return what tells a store's secret from another, and nothing else about it."""
    return hmac.digest(key, b"turnlog key mark", "sha256")[:16]


def has_key(path: Path, mark: bytes) -> bool:
    """Return whether the secret is there that has this `key_mark`. Raises `StoreError`."""
    with translated("read", path / "key"), suppress(FileNotFoundError):
        return key_mark((path / "key").read_bytes()) == mark
    return False


def publish(file: Path, content: bytes) -> None:
    """Create `file` with `content`, whole and on disk, unless it exists."""
    draft = _draft(file, content)
    try:
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    sync_path(file.parent)


def _draft(file: Path, content: bytes) -> Path:
    """Write a file under another name, and wait for the disk."""
    draft = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    except BaseException:
        draft.unlink()
        raise
    finally:
        os.close(descriptor)
    return draft


def sync_path(path: Path) -> None:
    """Make a file durable, or what was created in, renamed in or removed from a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Shared:
    """An environment that is open in this process, and what keeps its write transactions apart."""

    def __init__(self, env: lmdb.Environment, path: Path, *, readonly: bool) -> None:
        """Raises `OSError`."""
        self.env = env
        self.file = path / "data.mdb"
        self.readonly = readonly
        self.users = 1
        self._turn = threading.Lock()
        """`flock` does not keep the threads of one process apart."""
        self._locked = -1 if readonly else os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        self._stat = self.file.stat() if readonly else os.fstat(self._locked)

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep all other writers away, in this process and others. Raises `OSError`."""
        with self._turn:
            fcntl.flock(self._locked, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._locked, fcntl.LOCK_UN)

    def check_place(self) -> None:
        """Raise `StoreGone` where another file, or none, is at the place of this one by now."""
        try:
            found: os.stat_result | None = os.stat(self.file)  # noqa: PTH116 - a third of the time
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or not os.path.samestat(found, self._stat):
            raise StoreGone(
                f"{str(self.file)!r} is {'gone' if found is None else 'another file now'}: the data folder "
                "was removed, moved or replaced while it was in use; put it back, or restart turnlog"
            )

    def close(self) -> None:
        self.env.close()
        if self._locked >= 0:
            os.close(self._locked)


# LMDB must not open one file twice in a process: its locks belong to the process. This is the one
# piece of state that has to be the process's own.
_environments: dict[tuple[int, str, int], _Shared] = {}
_guard = threading.Lock()


def open_environment(
    path: Path,
    *,
    readonly: bool,
    durable: bool = True,
    create: bool = True,
    map_size: int = MAP_SIZE,
    tables: int = 0,
) -> lmdb.Environment:
    """Open the environment in folder `path`, or share the one this process has open.

    Without `create` the folder must be there. Give the environment back with
    `close_environment`. Raises `StoreError`.
    """
    with _guard, translated("open", path):
        shared = _environments.get(_key(path))
        if shared and (readonly or not shared.readonly):
            shared.users += 1
            return shared.env
        if shared:
            raise StoreError(
                f"cannot open {str(path)!r} for writing: this process reads it already; "
                "close the reader first"
            )
        if create and not readonly:
            _reserve(path)
        env = _opened(
            path,
            map_size=map_size,
            readonly=readonly,
            create=create and not readonly,
            sync=durable,
            mode=0o600,
            max_readers=READERS,
            max_dbs=tables,
        )
        try:
            _refuse_damaged(env, path)
            # Without `durable` it is a bucket, where no page is ever used again: a reader's slot keeps none from it.
            if durable:
                _refuse_left_slots(env, path)
            _environments[_key(path)] = _Shared(env, path, readonly=readonly)
        except BaseException:
            env.close()
            raise
        return env


def _opened(path: Path, **settings: Any) -> lmdb.Environment:
    """Open an environment. Raises `ProcessIdTaken`, `lmdb.Error`."""
    try:
        return lmdb.open(str(path), **settings)
    except lmdb.Error as error:
        # LMDB begins a read transaction then, and for the first one of a process it locks the byte of lock.mdb
        # at the offset of the process id. In another pid namespace a process of the same id may hold that.
        if os.strerror(EAGAIN) in str(error):
            raise _id_taken(path) from error
        raise


def _refuse_left_slots(env: lmdb.Environment, path: Path) -> None:
    """Raise `ProcessIdTaken` where readers are known by this process's id; it has read nothing yet."""
    # A process of this id was killed while it read, in another pid namespace or before a restart of this
    # one. The pages of its snapshot are not used again until a process of another id finds it dead.
    if any(line.split()[0] == str(os.getpid()) for line in env.readers().splitlines()[1:]):
        raise _id_taken(path)


def _refuse_damaged(env: lmdb.Environment, path: Path) -> None:
    if missing := structure.lacks(env, path / "data.mdb"):
        raise StoreDamaged(
            f"{str(path / 'data.mdb')!r} is damaged: {missing} bytes are missing at its end; "
            "restore it from a backup"
        )


def _id_taken(path: Path) -> ProcessIdTaken:
    return ProcessIdTaken(
        f"cannot open {str(path)!r}: a process in another container or pid namespace has the same id "
        f"({os.getpid()}), and LMDB knows processes by that; start this again so that it gets another "
        "id, or let the containers share one pid namespace",
        path / "lock.mdb",
    )


@contextmanager
def write_transaction(env: lmdb.Environment) -> Generator["lmdb.Transaction[bytes]"]:
    """Begin a write transaction, the only one on this host, of what `open_environment` returned.

    All that writes an LMDB file goes through here. Raises `StoreGone`, `OSError`, `lmdb.Error`.
    """
    with exclusive(env), env.begin(write=True) as txn:
        yield txn


@contextmanager
def exclusive(env: lmdb.Environment) -> Generator[None]:
    """Keep all other writers of an environment away. Raises `StoreGone`, `OSError`."""
    # LMDB's own lock is a robust mutex, whose holder the kernel knows by thread id. When a process is killed
    # that waits for it, the kernel looks whether the holder has the id of the one that died; in another pid
    # namespace a living holder may have it, and would lose the lock. `flock` knows no ids. As whoever waits
    # waits here, nobody else waits for the mutex.
    shared = _shared(env)
    with shared.alone():
        # What is written to a file that nobody finds any more is not recorded.
        shared.check_place()
        yield


def check_place(env: lmdb.Environment) -> None:
    """Raise `StoreGone` where the file of an environment was removed, moved or replaced, `OSError`."""
    _shared(env).check_place()


def _shared(env: lmdb.Environment) -> _Shared:
    with _guard:
        return next(item for item in _environments.values() if item.env is env)


def _reserve(path: Path) -> None:
    """Take room for LMDB's lock file: the process dies where a mapped page has none.

    Raises `OSError`.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, READERS * _READER)
    finally:
        os.close(descriptor)


def _key(path: Path) -> tuple[int, str, int]:
    # A folder that was removed and made anew under the same name is another environment.
    return os.getpid(), str(path.resolve()), identity(path)


def identity(path: Path) -> int:
    """Return what tells the environment in folder `path` from a later one; 0 for none."""
    return inode(path / "data.mdb")


def inode(file: Path) -> int:
    """Return what tells a file from a later one; 0 for none."""
    try:
        return file.stat().st_ino
    except FileNotFoundError:
        return 0


def close_environment(env: lmdb.Environment) -> None:
    """Give back what `open_environment` returned."""
    with _guard:
        mine = next((item for item in _environments.items() if item[1].env is env), None)
        if mine is None:
            return
        key, shared = mine
        shared.users -= 1
        if shared.users == 0:
            del _environments[key]
            shared.close()
