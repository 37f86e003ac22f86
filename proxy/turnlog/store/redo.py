"""One wait for the disk instead of two: the last transaction, written where the first one flushes it.

LMDB flushes a transaction's pages, then the meta page that makes them count. With `metasync=False`
it leaves the second flush out: nothing is damaged when the machine goes down, but the last
transaction may be undone. So each transaction that somebody waits for also puts what it appends
into a *slot* of LMDB's own file, before it commits: the flush of its pages takes the slot along. The
next process that opens the store on a machine that was started anew finds what was undone there,
and appends it again.

Two slots take turns by the transaction's number: the flush of one transaction also makes the meta
page of the one before durable, whose slot must stand until then. Slots lie in the pages of a value
of the table `redo`, which LMDB neither moves nor writes again as long as nobody puts it.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import lmdb
import msgspec

from .folder import write_transaction
from .keys import REDO_MARK, REDO_OFFSET, number
from .tables import Appended, Tables, Txn, append, last_position, read_number

SLOT = 512 << 10
"""Bytes of a slot. A larger transaction waits for the meta page instead."""
_SLOTS = b"slots"
_HEADER = struct.Struct(">8s36sII")
_MAGIC = b"turnred2"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Appended).decode


class Redo:
    """The two slots of a store. All methods but `close` need the write lock."""

    def __init__(self, file: Path, offset: int, page: int, boot: str) -> None:
        self._file = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self._first = -(-offset // page) * page
        self._page = page
        self._boot = boot.encode().ljust(36)[:36]
        self._cache_by_page()

    def write(self, txn: Txn, appended: Appended) -> bool:
        """Put what a transaction appends into its slot; `False` when that is too much.

        Raises `OSError`.
        """
        data = _encode(appended)
        if not appended.log or len(data) > SLOT - _HEADER.size:
            return False
        self._put(self._slot(txn), self._header(data), data)
        return True

    def clear(self, txn: Txn) -> None:
        """Empty the slot of a transaction that failed. Raises `OSError`."""
        self._put(self._slot(txn))

    def replay(self, txn: Txn, tables: Tables) -> int:
        """Append again what the machine's end undid; return the commits. Raises `OSError`.

        A slot written since the machine started says nothing new: what was committed then is there,
        whatever became of the process. One that follows on what was undone itself was never
        answered for, and is emptied, before others take the positions that it tells of.
        """
        last = before = last_position(txn, tables)
        for offset, boot, appended in sorted(self._read(), key=lambda slot: slot[2].first):
            if appended.first > last + 1 or (appended.first > last and boot == self._boot):
                self._put(offset)
            elif appended.first == last + 1:
                append(txn, tables, appended)
                for key, value in appended.aliases:
                    txn.put(key, value, db=tables.aliases)
                last = appended.last
        return last - before

    def close(self) -> None:
        """Close the file. May be called again."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _slot(self, txn: Txn) -> int:
        return self._first + txn.id() % 2 * SLOT

    def _header(self, data: bytes) -> bytes:
        return _HEADER.pack(_MAGIC, self._boot, len(data), zlib.crc32(data))

    def _put(self, offset: int, *parts: bytes) -> None:
        # Whole pages: nothing has to be read first. Side by side: nothing has to be copied first.
        size = sum(map(len, parts))
        rest = bytes(-size % self._page if size else self._page)
        os.pwritev(self._file, (*parts, rest), offset)

    def _cache_by_page(self) -> None:
        """Have the kernel cache the slots page by page.

        LMDB wrote them in one piece, which is cached in big units; and a whole unit is written
        again whenever one page of it is.
        """
        span = (self._first, 2 * SLOT)
        os.posix_fadvise(self._file, *span, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(self._file, *span, os.POSIX_FADV_RANDOM)
        for offset in range(self._first, self._first + 2 * SLOT, self._page):
            os.pread(self._file, self._page, offset)

    def _read(self) -> Iterable[tuple[int, bytes, Appended]]:
        """Yield what the slots hold, each with its offset and the machine's start."""
        for offset in (self._first, self._first + SLOT):
            header = os.pread(self._file, _HEADER.size, offset)
            magic, boot, size, check = _HEADER.unpack(header)
            if magic != _MAGIC or size > SLOT:
                continue
            data = os.pread(self._file, size, offset + _HEADER.size)
            if zlib.crc32(data) == check:
                yield offset, boot, _decode(data)


def open_redo(
    env: lmdb.Environment,
    tables: Tables,
    file: Path,
    boot: str,
    entropy: Callable[[int], bytes],
) -> Redo | None:
    """Return the slots of a store; make them if need be.

    `None` where they cannot work: the machine does not tell its starts apart, or LMDB keeps the
    value elsewhere than it should. Raises `OSError`, `lmdb.Error`.
    """
    page = env.stat()["psize"]
    if not boot:
        return None
    with write_transaction(env) as txn:
        mark = txn.get(REDO_MARK, db=tables.meta)
        if mark is None:
            mark = entropy(32)
            txn.put(REDO_MARK, mark, db=tables.meta)
            txn.put(_SLOTS, mark.ljust(2 * SLOT + 2 * page, b"\0"), db=tables.redo)
    env.sync(True)
    offset = _locate(env, tables, file, mark)
    return None if offset is None else Redo(file, offset + len(mark), page, boot)


def _locate(env: lmdb.Environment, tables: Tables, file: Path, mark: bytes) -> int | None:
    with env.begin() as txn:
        known = read_number(txn, tables, REDO_OFFSET)
    with file.open("rb") as stream:
        stream.seek(known)
        if known and stream.read(len(mark)) == mark:
            return known
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # The mark stands in the meta table as well; only in the slots' value do zeros follow.
            found = content.find(mark + bytes(64))
    if found < 0:
        return None
    with write_transaction(env) as txn:
        txn.put(REDO_OFFSET, number(found), db=tables.meta)
    return found
