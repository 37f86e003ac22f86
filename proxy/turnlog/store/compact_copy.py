"""The log's file is replaced by a compact copy of itself, in which nothing is left of erased records.

LMDB leaves erased records in pages that it will use again. The copy takes the file's place only while
no process has it open: each that opens it holds the folder's lock.
"""

import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

import lmdb

from turnlog.host import sync_path
from turnlog.store.log.environment import MAP_SIZE, problems_at_rest
from turnlog.store.log.keys import META_TABLE, PURGE, PURGE_ERASED
from turnlog.store.log.tables import NAMES
from turnlog.store.log.translate_errors import translated

from .base import StoreDamaged

DRAFT: Final = "log.purging"
"""The folder of the copy while it is made."""
PENDING: Final = "purge-pending"
"""The file that says that a copy is to be made."""


def is_pending(data: Path) -> bool:
    """Return whether records were erased of which the log's file may still hold bytes."""
    return (data / PENDING).exists()


def set_pending(data: Path) -> None:
    """Note, on the disk, that a copy is to be made. Raises `StoreError`."""
    with translated("write to", data):
        (data / PENDING).touch(mode=0o600)
        sync_path(data)


def replace_log(data: Path) -> bool:
    """Replace the log's file, unless a process has it open; return whether that was done.

    Whoever ends this process leaves the one file or the other. Raises `StoreError`.
    """
    folder, draft = data / "log", data / DRAFT
    with translated("rewrite the log of", data):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not _is_ours(descriptor, folder / "lock.mdb"):
                return False
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(mode=0o700)
            try:
                _copy(folder, draft)
                (draft / "data.mdb").rename(folder / "data.mdb")
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            sync_path(folder)
            (data / PENDING).unlink(missing_ok=True)
        finally:
            os.close(descriptor)
    return True


def _is_ours(descriptor: int, lock: Path) -> bool:
    """Return whether no process has the environment open; if so, none opens it until `descriptor` is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # Versions before this lock are known by LMDB's own, on the first byte of its lock file (mdb_env_excl_lock).
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def _copy(folder: Path, draft: Path) -> None:
    """Make the copy, in which the purges that only waited for it are done. Raises `StoreDamaged`."""
    file = draft / "data.mdb"
    # Without LMDB's lock: closing its file would give up ours.
    with lmdb.open(
        str(folder), readonly=True, lock=False, map_size=MAP_SIZE, max_dbs=len(NAMES)
    ) as env:
        env.copy(str(draft), compact=True)
    if found := problems_at_rest(file):
        raise StoreDamaged(f"the copy {str(file)!r} is damaged: {found[0]}; run `turnlog verify`")
    with lmdb.open(str(draft), map_size=MAP_SIZE, max_dbs=len(NAMES), lock=False) as env:
        meta = env.open_db(META_TABLE, create=False)
        with env.begin(write=True, db=meta) as txn, txn.cursor() as cursor:
            found_row = cursor.set_range(PURGE)
            while found_row and cursor.key().startswith(PURGE):
                found_row = cursor.delete() if cursor.value() == PURGE_ERASED else cursor.next()
    sync_path(file)
