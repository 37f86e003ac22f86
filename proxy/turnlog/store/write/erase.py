"""Bodies are erased from the log, and what the indexes know of them with them.

Headers stay as they are: they hold a hash of the body, and a `redact` commit says why it is gone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from turnlog.core.commit import decode_body
from turnlog.store.log import blocks
from turnlog.store.log.environment import Txn
from turnlog.store.log.keys import (
    alias_key,
    alias_text_prefix,
    change_terms,
    number,
    pack_many,
    unpack,
    unpack_many,
)
from turnlog.store.log.tables import Table, Tables, at_or_before, keys_with


def erase_bodies(txn: Txn, tables: Tables, positions: Iterable[int]) -> int:
    """Erase the bodies of indexed commits; return their bytes. Those that are gone already count as none."""
    terms: defaultdict[bytes, set[int]] = defaultdict(set)
    size = 0
    for position, body in _taken_out(txn, tables.bodies, sorted(positions)):
        size += len(body)
        with suppress(msgspec.DecodeError):  # a damaged one is in no index
            for term in change_terms(decode_body(body).delta):
                terms[term].add(position)
    for term, found in terms.items():
        _unlist(txn, tables.postings, term, sorted(found))
    return size


def erase_names(txn: Txn, tables: Tables, session: bytes) -> int:
    """Erase the aliases that lead to a session; return how many there were."""
    texts = list(keys_with(txn, tables.aliases, alias_text_prefix(session)))
    for key, text in texts:
        txn.delete(key, db=tables.aliases)
        name = alias_key(text.decode())
        if txn.get(name, db=tables.aliases) == session:
            txn.delete(name, db=tables.aliases)
    return len(texts)


def _taken_out(txn: Txn, table: Table, positions: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the bodies at `positions`, in order, once they are out of the table."""
    left = positions
    while left:
        with txn.cursor(table) as cursor:
            if not cursor.set_range(number(left[0])):
                return
            key, run = cursor.item()
        last, records = unpack(key), blocks.unpack(run)
        first = last - len(records) + 1
        here = [position for position in left if position <= last]
        left = left[len(here) :]
        found = [(p, records[p - first]) for p in here if p >= first and records[p - first]]
        for position, _ in found:
            records[position - first] = b""
        if not found:
            continue
        if any(records):
            txn.put(key, blocks.pack(records), db=table)
        else:
            txn.delete(key, db=table)
        yield from found


def _unlist(txn: Txn, table: Table, term: bytes, positions: list[int]) -> None:
    """Remove positions from a posting list, one row of it after the other."""
    left = positions
    while left:
        with txn.cursor(table) as cursor:
            found = at_or_before(cursor, term + number(left[0]))
            key, row = cursor.item() if found else (b"", b"")
        listed = unpack_many(row) if len(key) == len(term) + 8 and key.startswith(term) else ()
        gone = set(listed).intersection(left)
        left = [position for position in left if position not in gone and position != left[0]]
        if gone:
            txn.delete(key, db=table)
            if rest := [position for position in listed if position not in gone]:
                txn.put(term + number(rest[0]), pack_many(rest), db=table)
