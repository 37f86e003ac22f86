"""Blocks: consecutive records in one value of LMDB. Pure functions between records and bytes.

Each value that LMDB is given hands the interpreter over to another thread and back, which costs
more than putting a record: a transaction puts its records block by block.

A block is the big-endian u32 offsets of its records and of its end, then the records. Nothing here
raises on damaged bytes: what cannot be read is no record, or one that no decoder takes.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from operator import add

from .keys import number

MOST = 64
"""Records in a block: few enough that one of them is read as fast as if it lay alone."""
MOST_BYTES = 64 << 10
"""Bytes of the records before the last one of a block."""
_u32 = struct.Struct(">I")
_pair = struct.Struct(">II")


_tables = [struct.Struct(f">{held + 1}I").pack for held in range(MOST + 1)]
"""Packers for the offsets of so many records."""


def items(
    before: int, records: Sequence[bytes], marks: Sequence[bytes] = ()
) -> list[tuple[bytes, bytes]]:
    """Return keys and values for records, the first of which has position `before` + 1.

    `marks` are the first bytes of each record, where they are not in `records`.
    """
    found: list[tuple[bytes, bytes]] = []
    start = 0
    while start < len(records):
        block = records[start : start + MOST]
        if sum(map(len, block)) >= MOST_BYTES:
            block = block[: 1 + bisect_left([*accumulate(map(len, block))], MOST_BYTES)]
        end = start + len(block)
        found.append((number(before + end), pack(block, marks[start:end])))
        start = end
    return found


def pack(records: Sequence[bytes], marks: Sequence[bytes] = ()) -> bytes:
    """Return the bytes of a block. `marks`: see `items`."""
    held = len(records)
    sizes: Iterable[int] = map(len, records)
    if marks:
        sizes = map(add, sizes, map(len, marks))
        records = list(chain.from_iterable(zip(marks, records, strict=True)))
    offsets = accumulate(sizes, initial=4 * (held + 1))
    # In one step: each copy of a large record costs as much as to write it.
    return b"".join((_tables[held](*offsets), *records))


def unpack(data: bytes) -> list[bytes]:
    """Return the records of a block."""
    held = count(data)
    offsets = struct.unpack_from(f">{held + 1}I", data) if held else ()
    return [data[start:end] for start, end in pairwise(offsets)]


def record(data: bytes, back: int) -> bytes | None:
    """Return one record of a block, `back` before the last; `None` when it does not go so far."""
    at = count(data) - 1 - back
    if at < 0:
        return None
    start, end = _pair.unpack_from(data, 4 * at)
    return data[start:end]


def is_whole(data: bytes) -> bool:
    """Return whether a block ends where its last record does, and begins where its first does."""
    held = count(data)
    return bool(held) and _u32.unpack_from(data, 4 * held)[0] == len(data)


def count(data: bytes) -> int:
    """Return how many records a block has; 0 for bytes that are none."""
    table = _u32.unpack_from(data)[0] if len(data) >= 4 else 0
    held = table // 4 - 1
    return held if 1 <= held <= MOST and table <= len(data) else 0
