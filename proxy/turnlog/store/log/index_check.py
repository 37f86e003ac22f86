"""Checks of the derived tables and the aliases against the log.

The log is read flush by flush, and each flush is indexed in memory by the code that wrote the
tables. The rows that this makes must be in the tables, and after the whole log no others.

Unreadable records are reported by `digests`; a flush with one of them is not checked here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from turnlog.core.call_status import CallState
from turnlog.core.commit import decode_body

from .environment import Txn
from .index import (
    Entry,
    Head,
    OpenAttempt,
    Segment,
    fold_call,
    fold_head,
    is_first_of_call,
    link_keys,
    open_attempts,
)
from .index_writer import segment_rows
from .keys import (
    EPOCH,
    KEY_MARK,
    MARKED_SINCE,
    META,
    NOTES_CHECK,
    PURGE,
    REKEYED,
    TOLD,
    WATERMARK,
    alias_key,
    alias_text_key,
    link_key,
    number,
    unpack,
)
from .tables import (
    DERIVED,
    Tables,
    call_entries,
    decode_head,
    encode,
    encode_head,
    last_position,
    notes_check,
    read_log,
    read_number,
    read_record,
    read_segment,
)
from .translate_errors import FAILURES

RECENT = 1000
"""Commits that the look at a start takes in, at least."""


class IndexFlaw(Struct, frozen=True):
    """An index that disagrees with the log."""

    table: str
    detail: str


def recent_flaws(txn: Txn, tables: Tables) -> Iterator[IndexFlaw]:
    """Yield wrong rows of the tables about the newest commits that they hold."""
    segments = _segments(txn, tables)
    if isinstance(segments, IndexFlaw):
        yield segments
        return
    newest = segments[-1][1] if segments else 0
    check = _Check(txn, tables)
    for first, last in segments:
        if last > newest - RECENT:
            yield from check.rows(first, last)
    yield from check.states(is_all=False)


def index_flaws(txn: Txn, tables: Tables) -> Iterator[IndexFlaw]:
    """Yield wrong and surplus rows of the tables, over the whole log."""
    segments = _segments(txn, tables)
    if isinstance(segments, IndexFlaw):
        yield segments
        return
    check = _Check(txn, tables)
    for first, last in segments:
        yield from check.rows(first, last)
    yield from check.states(is_all=True)
    yield from check.surplus()
    yield from _alias_flaws(txn, tables)
    yield from _note_flaws(txn, tables)


def _segments(txn: Txn, tables: Tables) -> list[tuple[int, int]] | IndexFlaw:
    """Return the first and last position of each flush, or why the tables cannot be checked."""
    watermark, end = read_number(txn, tables, WATERMARK), 0
    if watermark > (last := last_position(txn, tables)):
        return IndexFlaw("meta", f"the indexes end at {watermark}, the log at {last}")
    with txn.cursor(tables.segments) as cursor:
        found = [(unpack(key), unpack(value[:8])) for key, value in cursor]
    for first, last in found:
        if first != end + 1 or last < first:
            return IndexFlaw("segments", f"position {end + 1} is followed by {first}")
        end = last
    if end != watermark:
        return IndexFlaw("segments", f"they end at {end}, the indexes at {watermark}")
    return found


class _Check:
    """Rows, heads and states collected from the flushes so far."""

    def __init__(self, txn: Txn, tables: Tables) -> None:
        self._txn = txn
        self._tables = tables
        self._counted: Counter[str] = Counter()
        """How many rows each table should hold."""
        self._heads: dict[bytes, Head] = {}
        self._states: dict[bytes, CallState] = {}
        """Of calls that are unsettled, or whose answer was not delivered."""
        self._open: dict[tuple[bytes, int], OpenAttempt] = {}
        self._is_whole = True
        """Whether all records could be read."""
        self._epoch = 0

    def rows(self, first: int, last: int) -> Iterator[IndexFlaw]:
        """Check the rows that one flush wrote for good, and fold what later ones may change."""
        segment = read_segment(self._txn, self._tables, Segment(first - 1), last)
        if None in segment.entries or segment.last != last:
            self._is_whole = False
            return
        for name, rows in segment_rows(segment):
            self._counted[name] += len(rows)
            table = self._tables.named(name)
            for key, value in rows:
                stored = self._txn.get(key, db=table)
                # Of a link, a later flush may have a later commit.
                if stored != value and (name != "links" or (stored or b"") < value):
                    detail = f"the row of position {unpack(value[:8])} is not as it was"
                    yield IndexFlaw(name, detail)
        for session, positions in segment.sessions.items():
            entries = segment.pick(positions)
            self._heads[session] = fold_head(self._heads.get(session), entries)
            self._epoch = max(self._epoch, *[entry.link.epoch for entry in entries])
        for call, positions in segment.calls.items():
            if not segment.is_settled(positions):
                yield from self._fold(call, segment.pick(positions))

    def states(self, *, is_all: bool) -> Iterator[IndexFlaw]:
        """Check what later flushes may change. With `is_all` the whole log was read."""
        if not self._is_whole:
            return
        for table, key, value in self._expected():
            self._counted[table] += 1
            stored = self._txn.get(key, db=self._tables.named(table))
            # The turn of a session after its newest commit follows from all of them.
            if table == "heads" and not is_all:
                is_same = _is_newest(stored, self._heads[key])
            else:
                is_same = stored == value
            if not is_same:
                yield IndexFlaw(table, "a row is not as the log says")
        counted = read_number(self._txn, self._tables, EPOCH)
        if counted < self._epoch:
            yield IndexFlaw("meta", f"epoch {self._epoch} was in use, {counted} is the newest")

    def _expected(self) -> Iterator[tuple[str, bytes, bytes]]:
        for session, head in self._heads.items():
            yield "activity", number(head.position), session
            yield "heads", session, encode_head(head)
        for call, state in self._states.items():
            yield "unsettled", call, encode(state)
            if state.expires:
                yield "parked", number(state.expires) + call, b""
        for (session, seq), attempt in self._open.items():
            yield "open", session + number(seq), encode(attempt)

    def surplus(self) -> Iterator[IndexFlaw]:
        """Check, after all else, that the tables hold nothing that the log does not say."""
        with self._txn.cursor(self._tables.links) as cursor:
            for key, value in cursor:
                if not self._carries(key, unpack(value)):
                    yield IndexFlaw("links", f"position {unpack(value)} carries no such link")
        if not self._is_whole:
            return
        for name in DERIVED:
            held = self._txn.stat(self._tables.named(name))["entries"]
            # Several flushes may have had a row for a link.
            if name != "links" and held != self._counted[name]:
                yield IndexFlaw(name, f"it holds {held} rows, the log makes {self._counted[name]}")

    def _fold(self, call: bytes, entries: list[Entry]) -> Iterator[IndexFlaw]:
        """Add the next commits of a call to its state, and to the attempts that are open."""
        before = self._states.pop(call, None)
        if before is None and not is_first_of_call(entries[0]):
            try:
                stored = call_entries(self._txn, self._tables, call)
            except (IndexError, *FAILURES) as error:
                yield IndexFlaw("calls", f"it cannot be read: {error}")
                return
            first = entries[0].position
            before = fold_call(entry for entry in stored if entry.position < first)
        state = fold_call(entries, before)
        if state is not None and (state.status.unsettled or not state.delivered):
            self._states[call] = state
        for intent, attempt in open_attempts(entries).items():
            if attempt is None:
                self._open.pop(intent, None)
            else:
                self._open[intent] = attempt

    def _carries(self, key: bytes, position: int) -> bool:
        try:
            entry = read_log(self._txn, self._tables, position)
            body = read_record(self._txn, self._tables.bodies, position)
            if entry is None:
                return not self._is_whole
            if not body:
                # An erased body leaves its links: keyed digests, which lead to a commit that is there.
                return bool(entry.link.body_hash) or not self._is_whole
            said = link_keys(entry.link.session, decode_body(body))
        except msgspec.DecodeError:
            return True  # the record's own damage
        return key in {link_key(one) for one in said}


def _is_newest(stored: bytes | None, head: Head) -> bool:
    """Return whether a stored head is of the same commit as `head`."""
    with suppress(msgspec.DecodeError):
        found = decode_head(stored or b"")
        return (found.position, found.seq, found.hash) == (head.position, head.seq, head.hash)
    return False


def _alias_flaws(txn: Txn, tables: Tables) -> Iterator[IndexFlaw]:
    """Yield the flaws of session names: each is stored twice, by name and by session."""
    texts = 0
    with txn.cursor(tables.aliases) as cursor:
        for key, value in cursor:
            if key[:1] in {b"h", b"o"}:
                continue
            if key[:1] == b"n":
                texts -= 1
                continue
            texts += 1
            text, session = value.decode(errors="replace"), key[1:17]
            if key != alias_text_key(session, text):
                yield IndexFlaw("aliases", "a session's name is not what was written")
            elif txn.get(alias_key(text), db=tables.aliases) != session:
                yield IndexFlaw("aliases", "a name does not lead to its session")
    if texts:
        yield IndexFlaw("aliases", "there are more names than sessions for them, or fewer")


def _note_flaws(txn: Txn, tables: Tables) -> Iterator[IndexFlaw]:
    """Yield the flaws of the notes about the store itself."""
    with txn.cursor(tables.meta) as cursor:
        found = dict(cursor)
    if strange := {name for name in found if not name.startswith(PURGE)} - META:
        yield IndexFlaw("meta", f"it has a row {min(strange)!r}")
    # Stores of an earlier version have none of them.
    noted = found.keys() & {KEY_MARK, MARKED_SINCE, REKEYED, TOLD, NOTES_CHECK}
    if noted and found.get(NOTES_CHECK) != notes_check(txn, tables):
        yield IndexFlaw("meta", "its notes are not what was written")


def first_of_each(flaws: Iterable[IndexFlaw]) -> Iterator[IndexFlaw]:
    """Yield the first flaw of each table, with how many more there are."""
    first: dict[str, str] = {}
    found: Counter[str] = Counter()
    for flaw in flaws:
        first.setdefault(flaw.table, flaw.detail)
        found[flaw.table] += 1
    for table, detail in first.items():
        more = found[table] - 1
        yield IndexFlaw(table, detail + (f", and {more} more" if more else ""))
