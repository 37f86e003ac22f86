"""The LMDB environments of this process: opened once, and one write transaction at a time on a host."""

import fcntl
import os
import struct
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from errno import EAGAIN
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, cast

import lmdb
from lmdb import verify as verifier

from turnlog.host import allocate, opened, sync_path
from turnlog.store.base import ProcessIdTaken, StoreDamaged, StoreError, StoreGone

from .translate_errors import translated

# The class is generic in lmdb's stubs only.
Txn: TypeAlias = "lmdb.Transaction[bytes]"

MAP_SIZE = 16 << 40
"""Bytes of address space for the log. Sparse; never resized, because that cannot be done safely."""
READERS = 1024
_READER = 128
"""Bytes of the lock file for each reader, more than it takes."""


def is_id_taken(lock: Path) -> bool:
    """Return whether another process uses LMDB's lock file under this one's id.

    Call it before this process opens the environment: closing the file gives its locks up.
    """
    try:
        with opened(lock, os.O_RDWR) as descriptor:
            # A reader of the environment holds the byte at the offset of its process id (LMDB, mdb_reader_pid).
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, os.getpid())
    except BlockingIOError:
        return True
    except OSError:
        return False  # opening the store reports the error
    return False


class Environment:
    """An LMDB environment that is open in this process, shared by all that open its folder."""

    def __init__(
        self, raw: lmdb.Environment, path: Path, *, readonly: bool, shared: int = -1
    ) -> None:
        """`shared` is open on the folder, with the lock that all have who have it open. Raises `OSError`."""
        self.raw = raw
        """As py-lmdb knows it. Do not begin a write transaction with it."""
        self.file = path / "data.mdb"
        self.readonly = readonly
        self.users = 1
        self._shared = shared
        self._turn = threading.Lock()
        """Between the threads of this process, which `flock` does not tell apart."""
        self._locked = -1 if readonly else os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        found = self.file.stat() if readonly else os.fstat(self._locked)
        self._path, self._place = str(self.file), (found.st_dev, found.st_ino)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environment, once nobody else in this process uses it."""
        with _guard:
            self.users -= 1
            if self.users:
                return
            for key in [key for key, shared in _environments.items() if shared is self]:
                del _environments[key]
            self.end()

    def end(self) -> None:
        """Close the files, whoever uses them."""
        self.raw.close()
        if self._shared >= 0:
            os.close(self._shared)
        if self._locked >= 0:
            os.close(self._locked)

    def read(self) -> "Txn":
        """Begin a read transaction. Raises `lmdb.Error`."""
        return self.raw.begin()

    @contextmanager
    def write(self) -> Generator["Txn"]:
        """Begin a write transaction, the only one on this host: all that writes goes through here.

        Raises `StoreGone`, `OSError`, `lmdb.Error`.
        """
        # LMDB's own lock is a robust mutex, whose holder the kernel knows by thread id. When a process is
        # killed that waits for it, the kernel looks whether the holder has the id of the one that died; in
        # another pid namespace a living holder may have it, and would lose the lock. `flock` knows no ids,
        # and as every writer waits for it here, none ever waits for the mutex.
        with self._turn:
            fcntl.flock(self._locked, fcntl.LOCK_EX)
            try:
                # A write to a file that was removed or replaced would be lost.
                self.check_place()
                with self.raw.begin(write=True) as txn:
                    yield txn
            finally:
                fcntl.flock(self._locked, fcntl.LOCK_UN)

    def check_place(self) -> None:
        """Raise `StoreGone` where the file was removed, moved or replaced, `OSError`."""
        try:
            found: os.stat_result | None = os.stat(self._path)  # noqa: PTH116 - a third of the time
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._place:
            raise StoreGone(
                f"{str(self.file)!r} is {'gone' if found is None else 'another file now'}: the data folder "
                "was removed, moved or replaced while it was in use; put it back, or restart turnlog"
            )

    def is_in_place(self) -> bool:
        """Return whether the file is where it was opened, as far as that can be told."""
        try:
            self.check_place()
        except (StoreGone, OSError):
            return False
        return True

    def copy(self, folder: Path) -> None:
        """Copy the file as of this moment into a folder, without free pages, and wait for the disk.

        Raises `OSError`, `lmdb.Error`.
        """
        self.raw.copy(str(folder), compact=True)
        copied = folder / self.file.name
        copied.chmod(0o600)
        sync_path(copied)
        sync_path(folder)

    def problems(self) -> list[str]:
        """Return the flaws of the file, also while others write to it. Raises `OSError`, `lmdb.Error`."""
        found: list[str] = []
        for _ in range(_TRIES):
            # While a snapshot is open, no page that it or a later one uses is used again. Its size and
            # its end are read one after the other, though: a real flaw shows again.
            with self.read():
                before = self.raw.info()["last_txnid"]
                found = problems_at_rest(self.file)
                if not found or self.raw.info()["last_txnid"] == before:
                    return found
        return found

    def refuse_damaged(self, advice: str = "restore it from a backup") -> None:
        """Raise `StoreDamaged` where the file has flaws, `OSError`, `lmdb.Error`."""
        if found := self.problems():
            raise StoreDamaged(f"{str(self.file)!r} is damaged: {found[0]}; {advice}")

    def refuse_cut(self) -> None:
        """Raise `StoreDamaged` where bytes are missing at the file's end, `OSError`, `lmdb.Error`."""
        with self.read():
            page = self.raw.stat()["psize"]
            short = (self.raw.info()["last_pgno"] + 1) * page - self.file.stat().st_size
        # Reading them would end this process. Pages that were taken and given back at once are never
        # written, though: a file may be short and whole.
        if short > 0 and self.problems():
            raise StoreDamaged(
                f"{str(self.file)!r} is damaged: {short} bytes are missing at its end; "
                "restore it from a backup"
            )


# LMDB must not open one file twice in a process: its locks belong to the process. This is the one
# piece of state that has to be the process's own.
_environments: dict[tuple[int, str, int], Environment] = {}
_guard = threading.Lock()


def open_environment(
    path: Path,
    *,
    readonly: bool,
    durable: bool = True,
    create: bool = True,
    map_size: int = MAP_SIZE,
    tables: int = 0,
) -> Environment:
    """Open the environment in folder `path`, or share the one this process has open.

    Without `create` the folder must be there. Raises `StoreError`.
    """
    with _guard, translated("open", path):
        shared = _environments.get(_key(path))
        if shared and (readonly or not shared.readonly):
            shared.users += 1
            return shared
        if shared:
            raise StoreError(
                f"cannot open {str(path)!r} for writing: this process reads it already; "
                "close the reader first"
            )
        if create and not readonly:
            _reserve(path)
        lock = _lock_folder(path) if durable else -1
        try:
            raw = _opened(
                path,
                map_size=map_size,
                readonly=readonly,
                create=create and not readonly,
                sync=durable,
                mode=0o600,
                max_readers=READERS,
                max_dbs=tables,
            )
        except BaseException:
            if lock >= 0:
                os.close(lock)
            raise
        env = Environment(raw, path, readonly=readonly, shared=lock)
        try:
            env.refuse_cut()
            # Without `durable` it is a bucket, where no page is ever used again: a reader's slot keeps none from it.
            if durable:
                _refuse_left_slots(raw, path)
        except BaseException:
            env.end()
            raise
        _environments[_key(path)] = env
        return env


def _lock_folder(path: Path) -> int:
    """Return a descriptor with a shared lock on a folder; -1 where there is none.

    Waits while the file in it is replaced, see `store.compact_copy`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1  # opening the environment reports the error
    with suppress(OSError):  # a file system without such locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _opened(path: Path, **settings: Any) -> lmdb.Environment:
    """Open an environment. Raises `ProcessIdTaken`, `lmdb.Error`."""
    try:
        return lmdb.open(str(path), **settings)
    except lmdb.Error as error:
        # LMDB begins a read transaction then, and for the first one of a process it locks the byte of lock.mdb
        # at the offset of the process id. In another pid namespace a process of the same id may hold that.
        if os.strerror(EAGAIN) in str(error):
            raise id_taken(path) from error
        raise


def _refuse_left_slots(raw: lmdb.Environment, path: Path) -> None:
    """Raise `ProcessIdTaken` where readers are known by this process's id; it has read nothing yet."""
    # A process of this id was killed while it read, in another pid namespace or before a restart of this
    # one. The pages of its snapshot are not used again until a process of another id finds it dead.
    if any(line.split()[0] == str(os.getpid()) for line in raw.readers().splitlines()[1:]):
        raise id_taken(path)


def id_taken(path: Path) -> ProcessIdTaken:
    return ProcessIdTaken(
        f"cannot open {str(path)!r}: a process in another container or pid namespace has the same id "
        f"({os.getpid()}), and LMDB knows processes by that; start this again so that it gets another "
        "id, or let the containers share one pid namespace",
        path / "lock.mdb",
    )


def _reserve(path: Path) -> None:
    """Allocate LMDB's lock file: writing a mapped page without disk space kills the process.

    Raises `OSError`.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    with opened(path / "lock.mdb", os.O_RDWR | os.O_CREAT) as descriptor:
        allocate(descriptor, READERS * _READER)


def _key(path: Path) -> tuple[int, str, int]:
    # A folder that was removed and made anew under the same name is another environment.
    return os.getpid(), str(path.resolve()), identity(path)


def identity(path: Path) -> int:
    """Return a number that identifies the environment in folder `path`; 0 for none."""
    try:
        return (path / "data.mdb").stat().st_ino
    except FileNotFoundError:
        return 0


def is_begun(path: Path) -> bool:
    """Return whether something was written to the environment in folder `path`."""
    # A process that was killed while it made the file, or found no room for it, leaves an empty one. The
    # next writer fills it.
    try:
        return (path / "data.mdb").stat().st_size > 0
    except FileNotFoundError:
        return False


_TRIES: Final = 5
# py-lmdb's own verifier reads the file without LMDB: a damaged page that would end this process, or
# be read for ever, becomes a sentence. It has no types.
_verify: Final[Callable[[str], list[str]]] = cast("Any", verifier).verify
_UNREADABLE: Final = (verifier.VerifyError, struct.error, ValueError, IndexError, RecursionError)


def problems_at_rest(file: Path) -> list[str]:
    """Return the flaws of a file without writers. Raises `OSError`."""
    try:
        return _verify(str(file))
    except _UNREADABLE as error:
        return [str(error)]
