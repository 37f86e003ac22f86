"""The derived tables are written: the log's tail, folded in memory and sorted, or all of them anew.

Each time in a transaction of its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Final

from turnlog.core.call_status import CallState

from .environment import Txn
from .index import Entry, Head, Segment, fold_call, fold_head, is_first_of_call, open_attempts
from .keys import WATERMARK, link_key, number, pack_many
from .tables import (
    DERIVED,
    Pair,
    Table,
    Tables,
    call_entries,
    encode,
    encode_head,
    last_position,
    read_call_state,
    read_head,
    read_number,
    read_segment,
)

_key: Final = itemgetter(0)
SLICE: Final = 10_000
"""Commits that are indexed in memory at a time when all indexes are made anew."""


def flush(txn: Txn, tables: Tables, segment: Segment, heads: Mapping[bytes, Head]) -> None:
    """Bring the derived tables up to the log's end.

    `segment` is the tail as the caller knows it, `heads` what its sessions' heads are by it. Where
    other processes wrote or flushed since, both are worked out again.
    """
    watermark = read_number(txn, tables, WATERMARK)
    last = last_position(txn, tables)
    if (segment.after, segment.last) != (watermark, last):
        segment = read_segment(txn, tables, Segment(watermark), last)
        heads = {}
    if segment.entries:
        write_segment(txn, tables, segment, heads)


def segment_rows(segment: Segment) -> Iterator[tuple[str, list[Pair]]]:
    """Yield by table the rows that a flush of `segment` writes, of those that no later one changes.

    Of a link a later flush writes the later commit.
    """
    yield "seqs", list(_seq_blocks(segment))
    yield "calls", _blocks(segment.calls)
    yield "postings", _blocks(segment.terms)
    yield "links", [(link_key(key), number(p[-1])) for key, p in segment.links.items()]
    ats = [entry.facts.at for entry in segment.entries if entry is not None] or [0]
    bounds = pack_many((segment.last, max(0, min(ats)), max(0, max(ats))))
    yield "segments", [(number(segment.after + 1), bounds)]


def write_segment(txn: Txn, tables: Tables, segment: Segment, heads: Mapping[bytes, Head]) -> None:
    """Write what `segment` adds to the derived tables, and the watermark."""
    for name, rows in segment_rows(segment):
        _put_sorted(txn, tables.named(name), rows)
    _write_heads(txn, tables, segment, heads)
    for call, positions in segment.calls.items():
        if not segment.is_settled(positions):
            entries = segment.pick(positions)
            _write_open(txn, tables, entries)
            _write_call_state(txn, tables, call, entries)
    txn.put(WATERMARK, number(segment.last), db=tables.meta)


def call_state_after(
    txn: Txn, tables: Tables, call: bytes, entries: list[Entry]
) -> CallState | None:
    """Return the state of a call after `entries`, its commits behind the watermark."""
    if entries and is_first_of_call(entries[0]):
        return fold_call(entries)
    before = read_call_state(txn, tables, call)
    # A settled call is in no table: what came before is folded again.
    return fold_call(entries, before or fold_call(call_entries(txn, tables, call)))


def _put_sorted(txn: Txn, table: Table, items: Iterable[Pair]) -> None:
    with txn.cursor(table) as cursor:
        cursor.putmulti(sorted(items, key=_key))


def _blocks(found: dict[bytes, list[int]]) -> list[Pair]:
    return [(key + number(p[0]), pack_many(p)) for key, p in found.items()]


def _seq_blocks(segment: Segment) -> Iterator[Pair]:
    for session, positions in segment.sessions.items():
        oldest, newest = segment.pick((positions[0], positions[-1]))
        first = oldest.link.seq
        # Seqs rise: where no record is damaged all of them are one run.
        if newest.link.seq - first == len(positions) - 1:
            yield session + number(first), pack_many(positions)
        else:
            yield from _gapped(session, segment.pick(positions))


def _gapped(session: bytes, entries: list[Entry]) -> Iterator[Pair]:
    for _, run in groupby(enumerate(entries), lambda item: item[1].link.seq - item[0]):
        consecutive = [entry for _, entry in run]
        positions = [entry.position for entry in consecutive]
        yield session + number(consecutive[0].link.seq), pack_many(positions)


def _write_heads(txn: Txn, tables: Tables, segment: Segment, known: Mapping[bytes, Head]) -> None:
    heads: list[Pair] = []
    active: list[Pair] = []
    for session, positions in segment.sessions.items():
        before = read_head(txn, tables, session)
        head = known.get(session) or fold_head(before, segment.pick(positions))
        if before:
            txn.delete(number(before.position), db=tables.activity)
        heads.append((session, encode_head(head)))
        active.append((number(head.position), session))
    _put_sorted(txn, tables.heads, heads)
    _put_sorted(txn, tables.activity, active)


def _write_open(txn: Txn, tables: Tables, entries: Iterable[Entry]) -> None:
    for (session, seq), attempt in open_attempts(entries).items():
        key = session + number(seq)
        if attempt is None:
            txn.delete(key, db=tables.open)
        else:
            txn.put(key, encode(attempt), db=tables.open)


def _write_call_state(txn: Txn, tables: Tables, call: bytes, entries: list[Entry]) -> None:
    state = call_state_after(txn, tables, call, entries)
    open_ended = state is not None and (state.status.unsettled or not state.delivered)
    before = None if is_first_of_call(entries[0]) else read_call_state(txn, tables, call)
    if before and before.expires:
        txn.delete(number(before.expires) + call, db=tables.parked)
    if before and not open_ended:
        txn.delete(call, db=tables.unsettled)
    if not open_ended:
        return
    txn.put(call, encode(state), db=tables.unsettled)
    if state and state.expires:
        txn.put(number(state.expires) + call, b"", db=tables.parked)


def rebuild(txn: Txn, tables: Tables) -> None:
    """Make the derived tables anew from the log."""
    for name in DERIVED:
        txn.drop(tables.named(name), delete=False)
    txn.delete(WATERMARK, db=tables.meta)
    last = last_position(txn, tables)
    for after in range(0, last, SLICE):
        end = min(after + SLICE, last)
        write_segment(txn, tables, read_segment(txn, tables, Segment(after), end), {})
