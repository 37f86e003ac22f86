"""The LMDB environments of this process: opened once, and one write transaction at a time on a host."""

import fcntl
import os
import struct
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from errno import EAGAIN
from pathlib import Path
from typing import Any, Final, cast

import lmdb
from lmdb import verify as verifier

from turnlog.host import allocate
from turnlog.store.base import ProcessIdTaken, StoreDamaged, StoreError, StoreGone

from .translate_errors import translated

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
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # opening the store reports the error
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


class _Shared:
    """An environment that is open in this process, with the lock around its write transactions."""

    def __init__(self, env: lmdb.Environment, path: Path, *, readonly: bool) -> None:
        """Raises `OSError`."""
        self.env = env
        self.file = path / "data.mdb"
        self.readonly = readonly
        self.users = 1
        self._turn = threading.Lock()
        """Between the threads of this process, which `flock` does not tell apart."""
        self._locked = -1 if readonly else os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        self._stat = self.file.stat() if readonly else os.fstat(self._locked)

    @contextmanager
    def alone(self) -> Generator[None]:
        """Exclude all other writers, in this process and others. Raises `OSError`."""
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
            raise id_taken(path) from error
        raise


def _refuse_left_slots(env: lmdb.Environment, path: Path) -> None:
    """Raise `ProcessIdTaken` where readers are known by this process's id; it has read nothing yet."""
    # A process of this id was killed while it read, in another pid namespace or before a restart of this
    # one. The pages of its snapshot are not used again until a process of another id finds it dead.
    if any(line.split()[0] == str(os.getpid()) for line in env.readers().splitlines()[1:]):
        raise id_taken(path)


def _refuse_damaged(env: lmdb.Environment, path: Path) -> None:
    if missing := _lacks(env, path / "data.mdb"):
        raise StoreDamaged(
            f"{str(path / 'data.mdb')!r} is damaged: {missing} bytes are missing at its end; "
            "restore it from a backup"
        )


def id_taken(path: Path) -> ProcessIdTaken:
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
    """Exclude all other writers of an environment. Raises `StoreGone`, `OSError`."""
    # LMDB's own lock is a robust mutex, whose holder the kernel knows by thread id. When a process is killed
    # that waits for it, the kernel looks whether the holder has the id of the one that died; in another pid
    # namespace a living holder may have it, and would lose the lock. `flock` knows no ids, and as every
    # writer waits for it here, none ever waits for the mutex.
    shared = _shared(env)
    with shared.alone():
        # A write to a file that was removed or replaced would be lost.
        shared.check_place()
        yield


def check_place(env: lmdb.Environment) -> None:
    """Raise `StoreGone` where the file of an environment was removed, moved or replaced, `OSError`."""
    _shared(env).check_place()


def _shared(env: lmdb.Environment) -> _Shared:
    with _guard:
        return next(item for item in _environments.values() if item.env is env)


def _reserve(path: Path) -> None:
    """Allocate LMDB's lock file: writing a mapped page without disk space kills the process.

    Raises `OSError`.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        allocate(descriptor, READERS * _READER)
    finally:
        os.close(descriptor)


def _key(path: Path) -> tuple[int, str, int]:
    # A folder that was removed and made anew under the same name is another environment.
    return os.getpid(), str(path.resolve()), identity(path)


def identity(path: Path) -> int:
    """Return a number that identifies the environment in folder `path`; 0 for none."""
    return inode(path / "data.mdb")


def inode(file: Path) -> int:
    """Return the inode of a file; 0 for none."""
    try:
        return file.stat().st_ino
    except FileNotFoundError:
        return 0


def close_environment(env: lmdb.Environment) -> None:
    """Close what `open_environment` returned, once nobody else in this process uses it."""
    with _guard:
        mine = next((item for item in _environments.items() if item[1].env is env), None)
        if mine is None:
            return
        key, shared = mine
        shared.users -= 1
        if shared.users == 0:
            del _environments[key]
            shared.close()


_TRIES: Final = 5
# py-lmdb's own verifier reads the file without LMDB: a damaged page that would end this process, or
# be read for ever, becomes a sentence. It has no types.
_verify: Final[Callable[[str], list[str]]] = cast("Any", verifier).verify
_UNREADABLE: Final = (verifier.VerifyError, struct.error, ValueError, IndexError, RecursionError)


def file_problems(env: lmdb.Environment, file: Path) -> list[str]:
    """Return the flaws of an environment's file, also while others write to it.

    Raises `OSError`, `lmdb.Error`.
    """
    found: list[str] = []
    for _ in range(_TRIES):
        # While a snapshot is open, no page that it or a later one uses is used again. Its size and
        # its end are read one after the other, though: a real flaw shows again.
        with env.begin():
            before = env.info()["last_txnid"]
            found = problems_at_rest(file)
            if not found or env.info()["last_txnid"] == before:
                return found
    return found


def problems_at_rest(file: Path) -> list[str]:
    """Return the flaws of a file without writers. Raises `OSError`."""
    try:
        return _verify(str(file))
    except _UNREADABLE as error:
        return [str(error)]


def _lacks(env: lmdb.Environment, file: Path) -> int:
    """Return how many bytes a file was cut by: reading them would end this process.

    Raises `OSError`, `lmdb.Error`.
    """
    with env.begin():
        page = env.stat()["psize"]
        short = (env.info()["last_pgno"] + 1) * page - file.stat().st_size
    # Pages that were taken and given back at once are never written: a file may be short and whole.
    return short if short > 0 and file_problems(env, file) else 0
