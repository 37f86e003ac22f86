"""The log's file is replaced by a copy of its records, in which nothing is left of erased ones.

LMDB leaves erased records in pages that it will use again. The copy takes the file's place only while
no process has it open: each that opens it holds the folder's lock.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import lmdb

from turnlog.host import opened, sync_path, try_lock
from turnlog.store.log.environment import MAP_SIZE, Txn, problems_at_rest
from turnlog.store.log.keys import PURGE, PURGE_ERASED
from turnlog.store.log.tables import NAMES, Pair, Table
from turnlog.store.log.translate_errors import translated

from .base import StoreDamaged

DRAFT: Final = "log.purging"
"""The folder of the copy while it is made."""
META: Final = "meta"
_AT_ONCE: Final = 2048
"""Rows that are copied in one transaction."""
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
    with translated("rewrite the log of", data), opened(folder) as descriptor:
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
    return True


def _is_ours(descriptor: int, lock: Path) -> bool:
    """Return whether no process has the environment open; if so, none opens it until `descriptor` is closed."""
    if not try_lock(descriptor):
        return False
    # Versions before this lock are known by LMDB's own, on the first byte of its lock file (mdb_env_excl_lock).
    try:
        with opened(lock, os.O_RDWR | os.O_CREAT) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except BlockingIOError:
        return False
    return True


def _copy(folder: Path, draft: Path) -> None:
    """Copy all records but the notes of purges that only waited for it. Raises `StoreDamaged`."""
    # Record by record: LMDB's own compact copy takes single pages of large values whole, and behind such a
    # value lies what the page's memory held before, which may be an erased record.
    file = draft / "data.mdb"
    # Without LMDB's lock: closing its file would give up ours.
    with (
        lmdb.open(
            str(folder), readonly=True, lock=False, map_size=MAP_SIZE, max_dbs=len(NAMES)
        ) as source,
        lmdb.open(
            str(draft), lock=False, sync=False, map_size=MAP_SIZE, max_dbs=len(NAMES)
        ) as target,
        source.begin() as read,
    ):
        for name in NAMES:
            rows = _rows(read, source.open_db(name.encode(), txn=read, create=False))
            kept = (row for row in rows if not _is_done(name, *row))
            _put(target, target.open_db(name.encode()), kept)
        tables = {name.encode() for name in NAMES}
        _put(target, None, (row for row in _rows(read, None) if row[0] not in tables))
        target.sync(True)
    if found := problems_at_rest(file):
        raise StoreDamaged(f"the copy {str(file)!r} is damaged: {found[0]}; run `turnlog verify`")


def _is_done(table: str, key: bytes, value: bytes) -> bool:
    return table == META and key.startswith(PURGE) and value == PURGE_ERASED


def _rows(txn: Txn, table: "Table | None") -> Iterator[Pair]:
    with txn.cursor(table) as cursor:
        yield from cursor


def _put(env: lmdb.Environment, table: "Table | None", rows: Iterator[Pair]) -> None:
    while some := list(islice(rows, _AT_ONCE)):
        with env.begin(write=True) as txn, txn.cursor(table) as cursor:
            # The rows beside the tables lie among the names of these.
            _, added = cursor.putmulti(some, append=table is not None)
            if added != len(some):
                raise StoreDamaged(
                    f"{len(some) - added} rows are not in order; run `turnlog verify`"
                )
