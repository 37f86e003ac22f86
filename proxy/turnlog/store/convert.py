"""Conversion of a store of release 0.2 (format 4) to the present format, on a copy of its log.

Release 0.2 flushed a transaction once. What a lost second flush could undo when the machine went
down, it also wrote into two slots: bytes in the pages of a value of the table `redo`, changed
behind LMDB's back. Here alone they are read. All else is the same in both formats.
"""

import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import msgspec
from msgspec import Struct

from turnlog.host import boot_id, sync_path
from turnlog.store.log.environment import Environment, Txn, open_environment
from turnlog.store.log.epochs import locked_epochs
from turnlog.store.log.keys import unpack
from turnlog.store.log.tables import NAMES, Pair, Table, Tables, append, last_position
from turnlog.store.log.translate_errors import translated

from . import data_folder
from .base import StoreError, StoreFull
from .data_folder import FORMAT, OLD_FORMAT
from .quota import disk_free

_SLOTS: Final = b"redo"
"""The table whose value held the slots. A plain record takes its name in a converted log: release
0.2 cannot open that, whatever it believes of the folder."""
_MARK: Final = b"redo mark"
"""First bytes of the value."""
_OFFSET: Final = b"redo offset"
"""Offset of the value in the file."""
_SLOT: Final = 512 << 10
"""Bytes of a slot."""
_HEADER: Final = struct.Struct(">8s36sII")
"""Of a slot: magic, start of the machine, size and CRC of what follows."""
_MAGIC: Final = b"turnred2"
_SPARE: Final = 8 << 20
"""Bytes that the disk must have beside those of the copy."""


class Converted(Struct, frozen=True):
    """The result of a conversion."""

    commits: int
    replayed: int
    """How many of them only the slots held."""
    kept: Path
    """The log as it was."""


class _Appended(NamedTuple):
    """The content of a slot: the rows that one transaction put at the end of the log."""

    first: int
    last: int
    log: list[Pair]
    bodies: list[Pair]
    aliases: list[Pair]


_decode = msgspec.msgpack.Decoder(_Appended).decode


def convert(data: Path, boot: str | None = None) -> Converted | None:
    """Convert the store in folder `data`; return `None` where it has the present format already.

    Nobody may use it for writing. The log is copied, the copy converted, and put in the place of
    the log, which is kept. A conversion that was killed is carried on by the next. `boot` tells
    one start of the machine from another. Raises `StoreError`.
    """
    version = data_folder.read_format(data)
    if version == FORMAT:
        return None
    if version != OLD_FORMAT:
        raise StoreError(
            f"the store {str(data)!r} has format {version}; this turnlog converts format "
            f"{OLD_FORMAT} to {FORMAT}"
        )
    with translated("convert", data):
        _refuse_writers(data)
        draft, kept = data / "log.converting", data / f"log.format-{OLD_FORMAT}"
        if draft.is_dir() and kept.is_dir() and not (data / "log").exists():
            draft.rename(data / "log")  # killed between the two steps of the swap
        data_folder.check_log(data)
        return _convert(data, draft, kept, boot_id() if boot is None else boot)


def _convert(data: Path, draft: Path, kept: Path, boot: str) -> Converted:
    with open_environment(data / "log", readonly=False, create=False, tables=len(NAMES) + 1) as env:
        tables = Tables.of(env, create=True)
        with env.write():
            # A writer that started meanwhile has locked its epoch inside a transaction.
            _refuse_writers(data)
            replayed = 0
            if not _is_converted(env):
                replayed = _copy(data, env, tables, draft, kept, boot)
                _swap(data, draft, kept)
            data_folder.replace_format(data)
    with open_environment(data / "log", readonly=True, tables=len(NAMES)) as log:
        tables = Tables.of(log, create=False)
        with log.read() as txn:
            return Converted(last_position(txn, tables), replayed, kept)


def _refuse_writers(data: Path) -> None:
    if locked := locked_epochs(data / "epochs"):
        raise StoreError(
            f"the store {str(data)!r} is in use by {len(locked)} running turnlog (epoch "
            f"{', '.join(map(str, locked))}); stop every proxy and wrap that uses it, and run this again"
        )


def _is_converted(env: Environment) -> bool:
    with env.read() as txn:
        try:
            env.raw.open_db(_SLOTS, txn=txn, create=False)
        except lmdb.IncompatibleError:
            return True
        except lmdb.NotFoundError:
            return False
        return False


def _copy(data: Path, env: Environment, tables: Tables, draft: Path, kept: Path, boot: str) -> int:
    """Make a converted copy of a log; return how many commits only its slots held."""
    if kept.exists():
        raise StoreError(f"{str(kept)!r} is in the way; move it to another place")
    env.refuse_damaged("restore the folder from a backup")
    shutil.rmtree(draft, ignore_errors=True)
    _check_room(data, env)
    try:
        draft.mkdir(mode=0o700)
        env.raw.copy(str(draft), compact=True)
        (draft / "data.mdb").chmod(0o600)
        return _convert_copy(env, tables, draft, boot)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _check_room(data: Path, env: Environment) -> None:
    used = (env.raw.info()["last_pgno"] + 1) * env.raw.stat()["psize"]
    free = disk_free(data)
    if free < used + _SPARE:
        raise StoreFull(
            f"no room to convert {str(data)!r}: its log is copied, which takes {used + _SPARE} bytes, and "
            f"the disk has {free}; free space on the disk"
        )


def _convert_copy(env: Environment, original: Tables, draft: Path, boot: str) -> int:
    """Replay the slots of a log into its copy, and take them out of that."""
    with open_environment(draft, readonly=False, tables=len(NAMES) + 1) as copy:
        tables = Tables.of(copy, create=True)
        with copy.write() as txn:
            _check_copy(env, original, txn, tables)
            slots = _slots_table(copy, txn)
            page = copy.raw.stat()["psize"]
            replayed = _replay(txn, tables, _read_slots(env.file, page, txn, tables), boot)
            if slots is not None:
                txn.drop(slots, delete=True)
            txn.put(_SLOTS, b"gone in format %d" % FORMAT)
            for name in (_MARK, _OFFSET):
                txn.delete(name, db=tables.meta)
    sync_path(draft)
    return replayed


def _slots_table(env: Environment, txn: Txn) -> "Table | None":
    try:
        return env.raw.open_db(_SLOTS, txn=txn, create=False)
    except lmdb.NotFoundError:
        return None


def _check_copy(env: Environment, original: Tables, copied: Txn, tables: Tables) -> None:
    with env.read() as txn:
        for name in NAMES:
            rows = txn.stat(original.named(name))["entries"]
            if rows != copied.stat(tables.named(name))["entries"]:
                raise StoreError(f"the copy of the table {name!r} is not whole; run this again")


def _read_slots(
    file: Path, page: int, txn: Txn, tables: Tables
) -> Iterator[tuple[bytes, _Appended]]:
    """Yield what the slots of a log hold, each with the start of the machine that wrote it."""
    mark = txn.get(_MARK, b"", db=tables.meta)
    offset = unpack(txn.get(_OFFSET, b"", db=tables.meta))
    if not mark or not offset:
        return
    first = -(-(offset + len(mark)) // page) * page
    with file.open("rb") as stream:
        stream.seek(offset)
        # Elsewhere in a copy that LMDB made: which holds all of its moment, and needs no slots.
        if stream.read(len(mark)) != mark:
            return
        for start in (first, first + _SLOT):
            stream.seek(start)
            magic, boot, size, check = _HEADER.unpack(stream.read(_HEADER.size))
            if magic == _MAGIC and size <= _SLOT and zlib.crc32(held := stream.read(size)) == check:
                yield boot, _decode(held)


def _replay(txn: Txn, tables: Tables, slots: Iterator[tuple[bytes, _Appended]], boot: str) -> int:
    """Append what the slots hold and the log does not; return how many commits that were.

    Where the machine runs since a slot was written nothing was undone, whatever became of the
    process. What follows on something that is gone itself was never acknowledged.
    """
    present = boot.encode().ljust(36)[:36]
    last = before = last_position(txn, tables)
    for written, appended in sorted(slots, key=lambda slot: slot[1].first):
        if appended.first == last + 1 and written != present:
            append(txn, tables, appended.log, appended.bodies)
            for key, value in appended.aliases:
                txn.put(key, value, db=tables.aliases)
            last = appended.last
    return last - before


def _swap(data: Path, draft: Path, kept: Path) -> None:
    """Replace the log by its converted copy; the log is kept beside it."""
    (data / "log").rename(kept)
    draft.rename(data / "log")
    sync_path(data)
