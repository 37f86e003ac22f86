"""Whether an LMDB file was cut: reading what is missing would kill the process with SIGBUS.

A file may be shorter than its meta page says and whole all the same: pages at its end that were
taken and given back in one transaction are never written. LMDB has them in its list of free pages,
and reads none of those. So a file is whole if all pages behind its end are in that list. LMDB does
not give the list out; it is read here from the file, and only where a file is short.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

_META = struct.Struct("=16xI4x8x8x")
_TREE = struct.Struct("=8x8x8x8x8xQ")
_END = struct.Struct("=QQ")
_PAGE = struct.Struct("=8x2xHH2x")
_NODE = struct.Struct("=HHHH")
_NUMBER = struct.Struct("=Q")
_MAGIC = 0xBEEFC0DE
_NO_PAGE = 2**64 - 1
_BRANCH, _LEAF = 1, 2
_APART = 1
"""Flag of a node whose value lies in pages of its own."""
_DEEPEST = 32


class _CutError(Exception):
    """A page of the list of free pages is missing, or no such page."""


def missing(file: Path, page: int) -> int:
    """Return how many bytes a file lacks at its end; 0 where nothing in use is missing.

    `page` is the size of a page. Nobody may give pages away meanwhile: call it with a read
    transaction open. Raises `OSError`.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _missing(descriptor, page)
    finally:
        os.close(descriptor)


def _missing(descriptor: int, page: int) -> int:
    free_root, last = max(_metas(descriptor, page))[1:]
    # The meta page first: a file that is written meanwhile only grows.
    size = os.fstat(descriptor).st_size
    there = size // page
    if there > last:
        return 0
    file = _File(descriptor, page)
    try:
        unused = sum(1 for number in file.free(free_root) if there <= number <= last)
    except (_CutError, struct.error):
        unused = 0
    return 0 if unused == last + 1 - there else (last + 1) * page - size


def _metas(descriptor: int, page: int) -> Iterator[tuple[int, int, int]]:
    """Yield of each meta page the transaction, the root of the free pages, and the last page."""
    for number in (0, 1):
        data = os.pread(descriptor, page, number * page)
        trees = _META.size
        end = trees + 2 * _TREE.size
        if len(data) < end + _END.size or _META.unpack_from(data)[0] != _MAGIC:
            continue
        last, transaction = _END.unpack_from(data, end)
        yield transaction, _TREE.unpack_from(data, trees)[0], last


class _File:
    """Reads pages, and never one that is missing."""

    def __init__(self, descriptor: int, page: int) -> None:
        self._descriptor = descriptor
        self._page = page

    def free(self, number: int, depth: int = 0) -> Iterator[int]:
        """Yield the free pages that the tree below a page lists."""
        if number == _NO_PAGE:
            return
        data = self._read(number, self._page)
        flags, lower = _PAGE.unpack_from(data)
        if depth > _DEEPEST or not flags & (_BRANCH | _LEAF):
            raise _CutError
        for at in range(_PAGE.size, lower, 2):
            (node,) = struct.unpack_from("=H", data, at)
            low, high, mark, key = _NODE.unpack_from(data, node)
            if flags & _BRANCH:
                yield from self.free(low | high << 16 | mark << 32, depth + 1)
            else:
                value = node + _NODE.size + key
                yield from self._list(data, value, low | high << 16, apart=bool(mark & _APART))

    def _list(self, data: bytes, at: int, size: int, *, apart: bool) -> tuple[int, ...]:
        if apart:
            (first,) = _NUMBER.unpack_from(data, at)
            data, at = self._read(first, _PAGE.size + size), _PAGE.size
        (count,) = _NUMBER.unpack_from(data, at)
        return struct.unpack_from(f"={count}Q", data, at + _NUMBER.size)

    def _read(self, number: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, number * self._page)
        if len(data) < size:
            raise _CutError
        return data
