"""Hold the derived tables and the aliases against the log, from which they were made.

The log is read in slices, and each slice is indexed in memory by the code that made the tables
(`index.Segment`). All that a slice says must stand in the tables; once the whole log was read, the
tables may hold nothing else.

Records that cannot be read are the log's own damage (`digests`). What stands in the tables for those
is neither right nor wrong.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from turnlog.core.commit import decode_body, digest

from .index import Entry, Head, Segment, fold_call, fold_head, link_keys, open_attempts
from .keys import (
    EPOCH,
    KEY_MARK,
    MARKED_SINCE,
    META,
    NOTES_CHECK,
    REKEYED,
    WATERMARK,
    alias_key,
    alias_text_key,
    link_key,
    number,
    unpack,
)
from .tables import (
    NEVER,
    Table,
    Tables,
    Txn,
    block_positions,
    call_entries,
    encode,
    last_position,
    notes_check,
    read_head,
    read_log,
    read_number,
    read_record,
    read_segment,
    session_positions,
)
from .translate_errors import FAILURES

RECENT = 1000
"""Commits that the look at a start takes in."""
SLICE = 10_000
"""Commits that are indexed in memory at a time."""


class IndexFlaw(Struct, frozen=True):
    """An index that disagrees with the log."""

    table: str
    detail: str


def recent_flaws(txn: Txn, tables: Tables) -> Iterator[IndexFlaw]:
    """Yield wrong rows of the tables about the newest commits that they hold."""
    watermark = read_number(txn, tables, WATERMARK)
    if flaw := _watermark_flaw(txn, tables, watermark):
        yield flaw
        return
    after = max(0, watermark - RECENT)
    segment = read_segment(txn, tables, Segment(after), watermark)
    yield from _Check(txn, tables, watermark).slice(segment)


def index_flaws(txn: Txn, tables: Tables) -> Iterator[IndexFlaw]:
    """Yield wrong and surplus rows of the tables, over the whole log."""
    watermark = read_number(txn, tables, WATERMARK)
    if flaw := _watermark_flaw(txn, tables, watermark):
        yield flaw
        return
    check = _Check(txn, tables, watermark)
    for after in range(0, watermark, SLICE):
        end = min(after + SLICE, watermark)
        yield from check.slice(read_segment(txn, tables, Segment(after), end))
    yield from check.rest()
    yield from _alias_flaws(txn, tables)
    yield from _guarded("meta", _note_flaws(txn, tables))


def _watermark_flaw(txn: Txn, tables: Tables, watermark: int) -> IndexFlaw | None:
    last = last_position(txn, tables)
    if watermark <= last:
        return None
    return IndexFlaw("meta", f"the indexes end at {watermark}, the log at {last}")


class _Check:
    """Counts and heads collected from the slices so far."""

    def __init__(self, txn: Txn, tables: Tables, watermark: int) -> None:
        self._txn = txn
        self._tables = tables
        self._watermark = watermark
        self._counted: Counter[str] = Counter()
        """How many positions, or rows, each table should hold."""
        self._heads: dict[bytes, Head] = {}
        self._is_whole = True
        """Whether all records could be read."""
        self._epoch = 0
        self._times: dict[int, tuple[int, int]] = {}
        """The earliest and latest time of the rows of `segments`, by their first position."""
        self._segments = self._read_segments()

    def slice(self, segment: Segment) -> Iterator[IndexFlaw]:
        """Check that the tables hold what the log says in a slice."""
        self._is_whole = self._is_whole and None not in segment.entries
        parts = (
            ("segments", self._bounds(segment)),
            ("seqs", self._seqs(segment)),
            ("calls", self._blocks("calls", self._tables.calls, segment, segment.calls)),
            ("postings", self._blocks("postings", self._tables.postings, segment, segment.terms)),
            ("links", self._links(segment)),
            ("heads", self._newest(segment)),
            ("unsettled", self._states(segment)),
        )
        for table, flaws in parts:
            yield from _guarded(table, flaws)

    def rest(self) -> Iterator[IndexFlaw]:
        """Check, after all slices, that the tables hold nothing else."""
        for table, flaws in (
            ("segments", self._gaps()),
            ("links", self._links_back()),
            ("heads", self._all_heads()),
            ("meta", self._epochs()),
        ):
            yield from _guarded(table, flaws)
        if self._is_whole:
            yield from _guarded("meta", self._surplus())

    def _surplus(self) -> Iterator[IndexFlaw]:
        """Yield the tables that hold more than they should, or less."""
        tables = self._tables
        entries: dict[str, int] = {}
        for name, blocks in (
            ("seqs", tables.seqs),
            ("calls", tables.calls),
            ("postings", tables.postings),
        ):
            entries[name] = 0
            with self._txn.cursor(blocks) as cursor:
                for key, value in cursor:
                    entries[name] += len(value) // 8
                    if name != "seqs" and key[-8:] != value[:8]:
                        yield IndexFlaw(
                            name, f"position {unpack(value[:8])} is not where it should be"
                        )
        for name, rows in (
            ("heads", tables.heads),
            ("activity", tables.activity),
            ("open", tables.open),
            ("unsettled", tables.unsettled),
            ("parked", tables.parked),
        ):
            entries[name] = self._txn.stat(rows)["entries"]
        for name, held in entries.items():
            if held != self._counted[name]:
                yield IndexFlaw(name, f"it holds {held} places, the log has {self._counted[name]}")

    # -- what a slice says ---------------------------------------------------------------

    def _seqs(self, segment: Segment) -> Iterator[IndexFlaw]:
        for session, positions in segment.sessions.items():
            self._counted["seqs"] += len(positions)
            entries = segment.pick(positions)
            edges = (entries[0].link.seq, entries[-1].link.seq)
            found = session_positions(self._txn, self._tables, session, *edges, newest_first=False)
            yield from _missing("seqs", positions, found)

    def _blocks(
        self, name: str, table: Table, segment: Segment, due: dict[bytes, list[int]]
    ) -> Iterator[IndexFlaw]:
        for key, positions in due.items():
            self._counted[name] += len(positions)
            edges = (positions[0], positions[-1])
            found = block_positions(self._txn, table, key, *edges, newest_first=False)
            yield from _missing(name, positions, found)

    def _links(self, segment: Segment) -> Iterator[IndexFlaw]:
        for key, positions in segment.links.items():
            stored = unpack(self._txn.get(link_key(key), b"", db=self._tables.links))
            # A later slice has a later one.
            is_newest = segment.last == self._watermark
            if stored < positions[-1] or (is_newest and stored > positions[-1]):
                yield IndexFlaw("links", f"a link of position {positions[-1]} leads to {stored}")

    def _newest(self, segment: Segment) -> Iterator[IndexFlaw]:
        for session, positions in segment.sessions.items():
            entries = segment.pick(positions)
            self._heads[session] = fold_head(self._heads.get(session), entries)
            if segment.last == self._watermark and None not in segment.entries:
                yield from self._head(session, entries[-1])

    def _head(self, session: bytes, newest: Entry) -> Iterator[IndexFlaw]:
        head = read_head(self._txn, self._tables, session)
        if head is None or (head.position, head.seq, head.hash) != (
            newest.position,
            newest.link.seq,
            digest(newest.header),
        ):
            yield IndexFlaw("heads", f"position {newest.position} is not its session's newest")
        if self._txn.get(number(newest.position), db=self._tables.activity) != session:
            yield IndexFlaw("activity", f"position {newest.position} is not found")

    def _states(self, segment: Segment) -> Iterator[IndexFlaw]:
        for call, positions in segment.calls.items():
            every = [
                *block_positions(self._txn, self._tables.calls, call, 0, NEVER, newest_first=False)
            ]
            if every[-1:] != positions[-1:]:
                continue  # a later slice has its end, or the index of calls is wrong
            if every == positions and segment.is_settled(positions):
                continue
            entries = call_entries(self._txn, self._tables, call)
            if len(entries) == len(every):
                yield from self._state(call, entries)
                yield from self._open(entries)

    def _state(self, call: bytes, entries: list[Entry]) -> Iterator[IndexFlaw]:
        state = fold_call(entries)
        due = state is not None and (state.status.unsettled or not state.delivered)
        stored = self._txn.get(call, db=self._tables.unsettled)
        where = f"the call of position {entries[0].position}"
        if stored != (encode(state) if due else None):
            yield IndexFlaw("unsettled", f"{where} does not stand there as its commits say")
        if due and state is not None and state.expires:
            self._counted["parked"] += 1
            if self._txn.get(number(state.expires) + call, db=self._tables.parked) is None:
                yield IndexFlaw("parked", f"{where} is missing")
        self._counted["unsettled"] += due

    def _open(self, entries: list[Entry]) -> Iterator[IndexFlaw]:
        for (session, seq), attempt in open_attempts(entries).items():
            if attempt is None:
                continue
            self._counted["open"] += 1
            stored = self._txn.get(session + number(seq), db=self._tables.open)
            if stored != encode(attempt):
                yield IndexFlaw("open", f"position {attempt.position} does not stand there")

    def _bounds(self, segment: Segment) -> Iterator[IndexFlaw]:
        self._epoch = max((e.link.epoch for e in segment.entries if e), default=self._epoch)
        for first, last, earliest, latest in self._segments:
            if last <= segment.after or first > segment.last:
                continue
            inside = segment.pick(range(max(first, segment.after + 1), min(last, segment.last) + 1))
            ats = [max(0, entry.facts.at) for entry in inside]
            if not ats:
                continue
            low, high = self._times.get(first, (min(ats), max(ats)))
            self._times[first] = low, high = min(low, *ats), max(high, *ats)
            if not earliest <= low <= high <= latest:
                yield IndexFlaw("segments", f"the times of positions {first} to {last} are others")

    # -- what the tables say -------------------------------------------------------------

    def _read_segments(self) -> list[tuple[int, int, int, int]]:
        with self._txn.cursor(self._tables.segments) as cursor:
            return [
                (unpack(key), unpack(value[:8]), unpack(value[8:16]), unpack(value[16:]))
                for key, value in cursor
            ]

    def _gaps(self) -> Iterator[IndexFlaw]:
        end = 0
        for first, last, *times in self._segments:
            if self._is_whole and tuple(times) != self._times.get(first):
                yield IndexFlaw("segments", f"the times of positions {first} to {last} are others")
            if first != end + 1 or last < first:
                yield IndexFlaw("segments", f"position {end + 1} is followed by {first}")
            end = last
        if end != self._watermark:
            yield IndexFlaw("segments", f"they end at {end}, the indexes at {self._watermark}")

    def _links_back(self) -> Iterator[IndexFlaw]:
        with self._txn.cursor(self._tables.links) as cursor:
            for key, value in cursor:
                position = unpack(value)
                if not self._carries(key, position):
                    yield IndexFlaw("links", f"position {position} carries no such link")

    def _carries(self, key: bytes, position: int) -> bool:
        try:
            entry = read_log(self._txn, self._tables, position)
            body = read_record(self._txn, self._tables.bodies, position)
            if entry is None or not body:
                return not self._is_whole
            said = link_keys(entry.link.session, decode_body(body))
        except msgspec.DecodeError:
            return True  # the record's own damage
        return key in {link_key(one) for one in said}

    def _all_heads(self) -> Iterator[IndexFlaw]:
        self._counted["heads"] = self._counted["activity"] = len(self._heads)
        if not self._is_whole:
            return
        for session, head in self._heads.items():
            if self._txn.get(session, db=self._tables.heads) != encode(head):
                yield IndexFlaw("heads", f"a session's newest is position {head.position}")
            if self._txn.get(number(head.position), db=self._tables.activity) != session:
                yield IndexFlaw("activity", f"position {head.position} is not found")

    def _epochs(self) -> Iterator[IndexFlaw]:
        counted = read_number(self._txn, self._tables, EPOCH)
        if counted < self._epoch:
            yield IndexFlaw("meta", f"epoch {self._epoch} was in use, {counted} is the newest")


def _guarded(table: str, flaws: Iterable[IndexFlaw]) -> Iterator[IndexFlaw]:
    """Yield flaws, and one more where a table cannot be read."""
    try:
        yield from flaws
    except (IndexError, *FAILURES) as error:
        yield IndexFlaw(table, f"it cannot be read: {error}")


def _missing(table: str, due: Sequence[int], found: Iterable[int]) -> Iterator[IndexFlaw]:
    gone = set(due).difference(found)
    if gone:
        yield IndexFlaw(table, f"position {min(gone)} is not found")


def _alias_flaws(txn: Txn, tables: Tables) -> Iterator[IndexFlaw]:
    """Yield the flaws of session names: each is stored twice, by name and by session."""

    def flaws() -> Iterator[IndexFlaw]:
        texts = 0
        with txn.cursor(tables.aliases) as cursor:
            for key, value in cursor:
                if key[:1] == b"n":
                    texts -= 1
                    continue
                texts += 1
                text, session = value.decode(), key[1:17]
                if key != alias_text_key(session, text):
                    yield IndexFlaw("aliases", "a session's name is not what was written")
                elif txn.get(alias_key(text), db=tables.aliases) != session:
                    yield IndexFlaw("aliases", "a name does not lead to its session")
        if texts:
            yield IndexFlaw("aliases", "there are more names than sessions for them, or fewer")

    return _guarded("aliases", flaws())


def _note_flaws(txn: Txn, tables: Tables) -> Iterator[IndexFlaw]:
    """Yield the flaws of the notes about the store itself."""
    with txn.cursor(tables.meta) as cursor:
        found = dict(cursor)
    if strange := found.keys() - META:
        yield IndexFlaw("meta", f"it has a row {min(strange)!r}")
    # Stores of an earlier version have none of the three.
    noted = found.keys() & {KEY_MARK, MARKED_SINCE, REKEYED, NOTES_CHECK}
    if noted and found.get(NOTES_CHECK) != notes_check(txn, tables):
        yield IndexFlaw("meta", "its notes are not what was written")


def first_of_each(flaws: Iterable[IndexFlaw]) -> list[IndexFlaw]:
    """Return the first flaw of each table, with how many more there are."""
    first: dict[str, IndexFlaw] = {}
    more: Counter[str] = Counter()
    for flaw in flaws:
        if flaw.table in first:
            more[flaw.table] += 1
        first.setdefault(flaw.table, flaw)
    return [
        IndexFlaw(flaw.table, flaw.detail + (f", and {more[table]} more" if more[table] else ""))
        for table, flaw in first.items()
    ]
