"""The tables of the log environment, and the look-ups in them.

Nothing here knows of the tail: what the derived tables say ends at the watermark.
"""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self, TypeAlias

import lmdb
import msgspec
from msgspec import Struct

from turnlog.core.call_status import CallState
from turnlog.core.commit import decode_body, decode_header, decoder
from turnlog.store.base import StoreError

from . import blocks
from .environment import Environment, Txn
from .index import Entry, Head, OpenAttempt, Segment, read_entry
from .keys import (
    CONTROLS,
    DIGEST_BYTES,
    KEY_MARK,
    MARKED_SINCE,
    NEWEST_DIGEST,
    REKEYED,
    TOLD,
    late_prefix,
    moved_key,
    number,
    unpack,
    unpack_many,
)
from .translate_errors import FAILURES

Table: TypeAlias = Any
"""The handle of a table: lmdb has no public name for its class."""
# The class is generic in lmdb's stubs only.
Cursor: TypeAlias = "lmdb.Cursor[bytes]"

Pair: TypeAlias = tuple[bytes, bytes]
"""A key with its value."""


NEVER = 2**64 - 1
"""No position is as high."""
_AFTER = b"\xff" * 9
"""Sorts behind every 8-byte number."""

encode = msgspec.msgpack.Encoder().encode
decode_head = decoder(Head)


def encode_head(head: Head) -> bytes:
    """Return a head's bytes."""
    if head.control is not None:
        return encode(head)
    # Without control commits the row is that of release 0.2, so that each can check the other's.
    return encode((head.seq, head.hash, head.place, head.position, head.opened))


decode_call_state = decoder(CallState)
decode_open = decoder(OpenAttempt)


class Tables(Struct, frozen=True):
    """The handles of all tables. See `keys` for what each holds."""

    log: Table
    bodies: Table
    aliases: Table
    meta: Table
    segments: Table
    seqs: Table
    calls: Table
    postings: Table
    links: Table
    heads: Table
    activity: Table
    open: Table
    unsettled: Table
    parked: Table

    @classmethod
    def of(cls, env: Environment, *, create: bool) -> Self:
        """Open the tables. Without `create`, an environment that may be written must have them open already."""
        raw = env.raw
        if env.readonly:
            # Handles that a reader's own transaction opened would end with it.
            return cls(*[raw.open_db(name.encode(), create=False) for name in NAMES])
        # Never without a transaction here: lmdb would wait for the write lock while it holds the
        # interpreter's, and a writer thread of this process that has the former waits for the latter.
        with env.write() if create else env.read() as txn:
            return cls(*[raw.open_db(name.encode(), txn=txn, create=create) for name in NAMES])

    def named(self, name: str) -> Table:
        """Return the handle of a table."""
        table: Table = getattr(self, name)
        return table


class ControlCounter:
    """Counts the control commits of a store, those of other processes included."""

    def __init__(self, env: Environment, tables: Tables) -> None:
        self._raw = env.raw
        self._table = tables.meta
        self.count = 0
        """As it was last read."""

    def read(self) -> int:
        """Return the number of control commits; if the store cannot be read, the one of before."""
        # Asked for each call. LMDB itself keeps the snapshot of the last read for the next one.
        try:
            with self._raw.begin() as txn:
                self.count = int.from_bytes(txn.get(CONTROLS, b"", db=self._table), "big")
        except FAILURES:
            return self.count
        return self.count


NAMES: Final = Tables.__struct_fields__
DERIVED: Final = NAMES[4:]
"""Those that are made from the log."""


def read_edges(txn: Txn, tables: Tables) -> None:
    """Read the first and the last row of each table, and what leads to them."""
    for name in NAMES:
        with txn.cursor(tables.named(name)) as cursor:
            if cursor.first() and cursor.last():
                cursor.item()


def last_position(txn: Txn, tables: Tables) -> int:
    """Return the position of the log's newest commit; 0 when there is none."""
    with txn.cursor(tables.log) as cursor:
        return unpack(cursor.key()) if cursor.last() else 0


def newest_record(txn: Txn, tables: Tables) -> tuple[int, bytes]:
    """Return the position and the header of the log's newest commit; 0 when there is none."""
    with txn.cursor(tables.log) as cursor:
        if not cursor.last():
            return 0, b""
        key, run = cursor.item()
    return unpack(key), blocks.record(run, 0) or b""


def read_number(txn: Txn, tables: Tables, name: bytes) -> int:
    """Return a number of the meta table; 0 when it was never set."""
    return unpack(txn.get(name, b"", db=tables.meta))


def notes_check(txn: Txn, tables: Tables) -> bytes:
    """Return the checksum of the notes on the store's secret, on trims and on retention."""
    noted = [txn.get(name, b"", db=tables.meta) for name in (KEY_MARK, MARKED_SINCE, REKEYED)]
    told = txn.get(TOLD, db=tables.meta)  # which stores of earlier versions lack
    return number(zlib.crc32(b"\0".join(noted if told is None else [*noted, told])))


def read_segment(txn: Txn, tables: Tables, segment: Segment, last: int) -> Segment:
    """Extend `segment` with the log up to `last`."""
    if segment.last >= last:
        return segment
    with txn.cursor(tables.log) as cursor:
        cursor.set_range(number(segment.last + 1))
        for key, run in cursor.iternext():
            end = min(unpack(key), last)
            headers = blocks.unpack(run)
            first = unpack(key) - len(headers) + 1
            for position in range(segment.last + 1, end + 1):
                # Of a damaged block, unreadable records are missing at its start.
                header = headers[position - first] if position >= first else b""
                segment.read(position, header, lambda at: read_record(txn, tables.bodies, at))
            if end == last:
                break
    return segment


def append(txn: Txn, tables: Tables, log: list[Pair], bodies: list[Pair]) -> None:
    """Append blocks to the log and the bodies. Raises `StoreError` when the log's end moved."""
    for table, items in ((tables.log, log), (tables.bodies, bodies)):
        for key, value in items:
            if not txn.put(key, value, append=True, db=table):
                raise StoreError("the log's end moved during a transaction; run `turnlog verify`")
    if log:
        last, run = log[-1]
        # In no table: the page of their names is written in each transaction anyway.
        txn.put(NEWEST_DIGEST, last + run[-DIGEST_BYTES:])


def read_record(txn: Txn, table: Table, position: int) -> bytes | None:
    """Return what the log or the bodies hold for a commit."""
    with txn.cursor(table) as cursor:
        if not cursor.set_range(number(position)):
            return None
        key, run = cursor.item()
    return blocks.record(run, unpack(key) - position) or None


def at_or_before(cursor: Cursor, key: bytes) -> bool:
    if cursor.set_range(key):
        return cursor.key() == key or cursor.prev()
    return cursor.last()


def session_positions(
    txn: Txn, tables: Tables, session: bytes, first: int, last: int, *, newest_first: bool
) -> Iterator[int]:
    """Yield the positions of a session's indexed commits whose seq is in [first, last]."""
    with txn.cursor(tables.seqs) as cursor:
        edge = session + number(last if newest_first else first)
        found = at_or_before(cursor, edge)
        if not newest_first and (not found or cursor.key()[:16] != session):
            found = cursor.set_range(session)
        for key, block in cursor.iterprev() if newest_first else cursor.iternext():
            if not found or key[:16] != session:
                return
            start = unpack(key[16:])
            if (start > last) if not newest_first else (start + len(block) // 8 <= first):
                return
            inside = unpack_many(block)[max(0, first - start) : max(0, last - start + 1)]
            yield from reversed(inside) if newest_first else inside


def block_positions(
    txn: Txn, table: Table, term: bytes, low: int, high: int, *, newest_first: bool
) -> Iterator[int]:
    """Yield the positions in [low, high] that a term or call has in a table of blocks."""
    size = len(term) + 8
    with txn.cursor(table) as cursor:
        found = at_or_before(cursor, term + number(high if newest_first else low))
        if not newest_first and (not found or not cursor.key().startswith(term)):
            found = cursor.set_range(term)
        for key, block in cursor.iterprev() if newest_first else cursor.iternext():
            if not found or not key.startswith(term):
                return
            if len(key) != size:
                continue
            positions = unpack_many(block)
            if positions[-1] < low if newest_first else positions[0] > high:
                return
            inside = [p for p in positions if low <= p <= high]
            yield from reversed(inside) if newest_first else inside


def terms_after(txn: Txn, tables: Tables, mark: bytes) -> Iterator[bytes]:
    """Yield each term that starts with `mark`, once."""
    with txn.cursor(tables.postings) as cursor:
        found = cursor.set_range(mark)
        while found and cursor.key().startswith(mark):
            term = cursor.key()[:-8]
            yield term
            found = cursor.set_range(term + _AFTER)


def read_log(txn: Txn, tables: Tables, position: int) -> Entry | None:
    """Return the commit at a position. Raises `msgspec.DecodeError` when it is damaged."""
    header = read_record(txn, tables.log, position)
    return read_entry(position, header) if header else None


def call_entries(txn: Txn, tables: Tables, call: bytes) -> list[Entry]:
    """Return the indexed commits of a call that can be read, in order of position."""
    found: list[Entry] = []
    for position in block_positions(txn, tables.calls, call, 0, NEVER, newest_first=False):
        with suppress(msgspec.DecodeError):
            entry = read_log(txn, tables, position)
            if entry:
                found.append(entry)
    return found


def read_head(txn: Txn, tables: Tables, session: bytes) -> Head | None:
    """Return a session's head as of the watermark."""
    data = txn.get(session, db=tables.heads)
    return decode_head(data) if data else None


def read_call_state(txn: Txn, tables: Tables, call: bytes) -> CallState | None:
    """Return the state of an unsettled call as of the watermark."""
    data = txn.get(call, db=tables.unsettled)
    return decode_call_state(data) if data else None


def keys_with(txn: Txn, table: Table, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield what a table holds under keys that start with `prefix`."""
    with txn.cursor(table) as cursor:
        if not cursor.set_range(prefix):
            return
        for key, value in cursor.iternext():
            if not key.startswith(prefix):
                return
            yield key, value


def referred_by_others(
    txn: Txn, tables: Tables, handles: frozenset[bytes], session: bytes, after: int = 0
) -> set[bytes]:
    """Return those of `handles` that bodies of other sessions name, in commits behind a position or in
    outcomes that are kept beside the log."""
    named: set[bytes] = set()
    here_of = partial(moved_handle, txn, tables) if has_moved_handles(txn, tables) else _unmoved
    for position, found in _named_handles(txn, tables, after):
        here = {*map(here_of, found)} & handles
        if here and _session_at(txn, tables, position) != session:
            named |= here
    for owner, _, found in late_outcomes(txn, tables):
        if owner != session:
            named |= {*map(here_of, found)} & handles
    return named


def late_outcomes(
    txn: Txn, tables: Tables, session: bytes = b""
) -> Iterator[tuple[bytes, str, set[bytes]]]:
    """Yield session, server and handles of each outcome that came after its session was packed, of all sessions
    or one."""
    for _, late in keys_with(txn, tables.aliases, late_prefix(session)):
        with suppress(msgspec.DecodeError):
            header, body = msgspec.msgpack.decode(late, type=tuple[bytes, bytes])
            link, facts = decode_header(header)
            yield link.session, facts.server, _handles_in(body)


def unnamed_moves(txn: Txn, tables: Tables) -> set[bytes]:
    """Return the handles of payloads from other stores that no body names any more."""
    rows = keys_with(txn, tables.aliases, moved_key(b""))
    return still_unnamed(txn, tables, {key.removeprefix(moved_key(b"")) for key, _ in rows})


def still_unnamed(txn: Txn, tables: Tables, handles: set[bytes], after: int = 0) -> set[bytes]:
    """Return those of `handles` that no body names in a commit behind a position."""
    unnamed = set(handles)
    if unnamed:
        for _, found in _named_handles(txn, tables, after):
            unnamed -= found
    return unnamed


def named_here(txn: Txn, tables: Tables) -> Iterator[tuple[int, set[bytes]]]:
    """Yield the handles that each body names, as payloads have them here."""
    here_of = partial(moved_handle, txn, tables) if has_moved_handles(txn, tables) else _unmoved
    for position, found in _named_handles(txn, tables, 0):
        yield position, {*map(here_of, found)}


def _named_handles(txn: Txn, tables: Tables, after: int) -> Iterator[tuple[int, set[bytes]]]:
    """Yield the handles that each body behind a position names."""
    with txn.cursor(tables.bodies) as cursor:
        found = cursor.set_range(number(after + 1))
        while found:
            key, run = cursor.item()
            records = blocks.unpack(run)
            for position, record in enumerate(records, unpack(key) - len(records) + 1):
                if position > after:
                    yield position, _handles_in(record)
            found = cursor.next()


def moved_handle(txn: Txn, tables: Tables, handle: bytes) -> bytes:
    """Return the handle that a payload has here: another one, or the word for why it is gone, where its
    commit came from another store."""
    return txn.get(moved_key(handle), handle, db=tables.aliases) if handle else handle


def has_moved_handles(txn: Txn, tables: Tables) -> bool:
    """Return whether any commit came from another store with payloads."""
    return next(keys_with(txn, tables.aliases, moved_key(b"")), None) is not None


def _unmoved(handle: bytes) -> bytes:
    return handle


def _handles_in(body: bytes) -> set[bytes]:
    with suppress(msgspec.DecodeError):
        said = decode_body(body)
        return {said.input_blob, said.output_blob}
    return set()


def _session_at(txn: Txn, tables: Tables, position: int) -> bytes:
    with suppress(msgspec.DecodeError):
        entry = read_log(txn, tables, position)
        return entry.link.session if entry else b""
    return b""
