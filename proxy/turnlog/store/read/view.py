"""The reading side of the LMDB store."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from turnlog.core.commit import Commit, CommitBody
from turnlog.core.ids import SHORTEST_PREFIX, has_prefix
from turnlog.core.kinds import TAINT_NOTES, CommitKind, Gone, NoteKind, Rung
from turnlog.core.lifecycle import CONTROL_KINDS
from turnlog.core.text.terminal import contains_text
from turnlog.store.base import (
    ALIAS_SEPARATOR,
    Blob,
    Corrupt,
    Filter,
    Flaw,
    SessionRef,
    SessionRow,
    Usage,
)
from turnlog.store.blobs import BlobReader, Bucket, bucket_of, number_in_bucket
from turnlog.store.log.digests import flaws
from turnlog.store.log.environment import Environment
from turnlog.store.log.epochs import is_locked, locked_epochs
from turnlog.store.log.index import Entry, Head
from turnlog.store.log.index_check import first_of_each, index_flaws
from turnlog.store.log.keys import (
    LIMIT,
    NOTE,
    PURGE,
    PURGE_ERASED,
    REKEYED,
    REWINDS,
    TOLD,
    alias_key,
    alias_prefix,
    alias_text_prefix,
    control_term,
    fork_term,
    text_term,
)
from turnlog.store.log.tables import (
    NEVER,
    Table,
    Tables,
    keys_with,
    late_outcomes,
    moved_handle,
    named_here,
    read_number,
    read_record,
    referred_by_others,
)
from turnlog.store.log.translate_errors import FAILURES, explained, guarded, guarded_iterator
from turnlog.store.quota import blob_size, disk_free, log_size, state_size

from .attempts import Attempt, AttemptReader, ended_attempts, find_attempts
from .snapshot import Snapshot, TailCache

_WORDS: Final = frozenset(word.encode() for word in Gone)


class View:
    """A consistent snapshot for reading, newest commits of any process included; a context manager.

    Close it soon: see `Snapshot.close`. Everything raises `StoreError` when the files cannot be
    read, `Corrupt` for one record.
    """

    def __init__(
        self, data: Path, env: Environment, tables: Tables, tails: TailCache, blobs: BlobReader
    ) -> None:
        """Raises `StoreError`."""
        self.data = data
        self._blobs = blobs
        try:  # guarded calls ask for views: what `translated` does, for a tenth of the time
            self._snapshot = Snapshot(env, tables, tails)
        except FAILURES as error:
            raise explained("read", data, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._snapshot.close()

    @guarded_iterator
    def sessions(self) -> Iterator[SessionRow]:
        """Yield all sessions, the most recently active first."""
        for session, head in self._snapshot.heads():
            yield self._row(session, head)

    @guarded
    def session(self, session: bytes) -> SessionRow | None:
        """Return one session; `None` when there is no such session."""
        head = self._snapshot.head(session)
        return self._row(session, head) if head else None

    @guarded
    def find_sessions(self, name: str) -> list[bytes]:
        """Return the sessions that `name` means: a UUID, an unambiguous prefix of one, an alias."""
        snapshot = self._snapshot
        whole = _uuid(name)
        if whole and snapshot.head(whole):
            return [whole]
        recent = snapshot.tail.sessions
        return self._named(name) or _by_prefix(snapshot, name, snapshot.tables.heads, recent)

    @guarded
    def session_of(self, ref: SessionRef) -> bytes | None:
        """Return the session that a reference means, by its names first; `None` if it is not on disk."""
        snapshot = self._snapshot
        for name in ref.aliases:
            if found := snapshot.txn.get(alias_key(name), db=snapshot.tables.aliases):
                return found
        known = ref.id or ref.candidate
        return known if snapshot.head(known) else None

    @guarded
    def alias(self, alias: str) -> bytes | None:
        """Return the session that has an alias."""
        snapshot = self._snapshot
        return snapshot.txn.get(alias_key(alias), db=snapshot.tables.aliases)

    @guarded_iterator
    def commits(self, session: bytes, *, after: int = -1) -> Iterator[Commit]:
        """Yield a session's commits in seq order, with bodies."""
        positions = self._snapshot.session(session, after + 1, NEVER - 1, newest_first=False)
        yield from map(self._snapshot.commit_at, positions)

    @guarded_iterator
    def controls(self, session: bytes, *, newest_first: bool = False) -> Iterator[Commit]:
        """Yield a session's control commits in order of seq, with bodies: see `core.lifecycle`."""
        yield from self._on_list(control_term(session), newest_first=newest_first)

    @guarded_iterator
    def readable_commits(self, session: bytes, *, after: int = -1) -> Iterator[Commit]:
        """Yield commits as `commits` does; damaged ones are left out, and counted."""
        positions = self._snapshot.session(session, after + 1, NEVER - 1, newest_first=False)
        for entry in filter(None, map(self._snapshot.readable, positions)):
            yield self._snapshot.readable_commit(entry)

    @guarded_iterator
    def forks(self, session: bytes) -> Iterator[Commit]:
        """Yield the commits that open the forks of a session, oldest first."""
        yield from self._on_list(fork_term(session.hex()), newest_first=False)

    def _on_list(self, term: bytes, *, newest_first: bool) -> Iterator[Commit]:
        snapshot = self._snapshot
        found = snapshot.term(term, 1, snapshot.last, newest_first=newest_first)
        return map(snapshot.commit_at, found)

    @guarded
    def opened(self, session: bytes) -> Commit | None:
        """Return a session's first commit; `None` where it cannot be read."""
        head = self._snapshot.head(session)
        return self._opened(head) if head else None

    @guarded_iterator
    def rewound(self) -> Iterator[bytes]:
        """Yield the sessions that have rewinds, once each."""
        yield from dict.fromkeys(e.link.session for e in self._snapshot.listed(REWINDS))

    @guarded
    def is_erased(self, session: bytes, after: int, until: int) -> bool:
        """Return whether `erasable` would yield nothing, by the oldest of those commits: it is erased last."""
        if after >= until:
            return True
        if any(redaction.server for redaction in self._snapshot.redactions_of(session)):
            return next(self.erasable(session, after, until), None) is None
        found = self._erasable(session, after, until, newest_first=False)
        oldest = next(found, None)
        return oldest is None or not self._snapshot.body(oldest.position)

    @guarded_iterator
    def erasable(
        self, session: bytes, after: int, until: int, server: str | None = None
    ) -> Iterator[int]:
        """Yield the positions of a session's commits with seqs in (`after`, `until`], the newest first,
        that have bodies which their age may erase; those of all servers, or of one.

        What named the session stays, and what its control commits say: a fold needs both. Of compact
        commits only the newest does.
        """
        for entry in self._erasable(session, after, until, newest_first=True):
            if server in (None, entry.facts.server) and self._snapshot.body(entry.position):
                yield entry.position

    @guarded_iterator
    def erasable_of_servers(
        self, session: bytes, after: int, until: int
    ) -> Iterator[tuple[int, str]]:
        """Yield seq and server of each commit that `erasable` finds and that has a server, oldest first."""
        for entry in self._erasable(session, after, until, newest_first=False):
            if entry.facts.server and self._snapshot.body(entry.position):
                yield entry.link.seq, entry.facts.server

    def _erasable(
        self, session: bytes, after: int, until: int, *, newest_first: bool
    ) -> Iterator[Entry]:
        snapshot, compacted = self._snapshot, self._newest_compact(session)
        positions = snapshot.session(session, after + 1, until, newest_first=newest_first)
        for entry in filter(None, map(snapshot.readable, positions)):
            kind = entry.facts.kind
            is_old_state = kind is CommitKind.COMPACT and entry.position != compacted
            is_kept = kind is CommitKind.OPEN or kind in CONTROL_KINDS
            if entry.link.body_hash and (is_old_state or not is_kept):
                yield entry

    @guarded
    def redacted_until(self, session: bytes) -> tuple[int, int]:
        """Return up to which seq bodies were redacted before the newest redaction, and by it; -1 for none.

        Those of single servers do not count.
        """
        redactions = self._snapshot.redactions_of(session)
        untils = sorted(redaction.until for redaction in redactions if not redaction.server)
        before, newest = ([-1, -1, *untils])[-2:]
        return before, newest

    @guarded
    def redacted_of_servers(self, session: bytes) -> dict[str, int]:
        """Return up to which seq the bodies of single servers were redacted."""
        redactions = self._snapshot.redactions_of(session)
        by_until = sorted(redactions, key=lambda redaction: redaction.until)
        return {redaction.server: redaction.until for redaction in by_until if redaction.server}

    @guarded_iterator
    def opened_before(self, at: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield the sessions that were opened before a time, with the seqs of their first and newest commits."""
        for session, head in self._snapshot.heads():
            opened = self._snapshot.readable(head.opened)
            if opened is None or opened.facts.at < at:
                yield session, opened.link.seq if opened else 0, head.seq

    @guarded
    def written_at(self, session: bytes, seq: int) -> int:
        """Return when a commit was written, ns UTC; 0 for one that cannot be read."""
        position = self._snapshot.find(session, seq)
        entry = None if position is None else self._snapshot.readable(position)
        return entry.facts.at if entry else 0

    def _newest_compact(self, session: bytes) -> int | None:
        entries = self._snapshot.listed(control_term(session), newest_first=True)
        return next((e.position for e in entries if e.facts.kind is CommitKind.COMPACT), None)

    @guarded
    def get(self, session: bytes, seq: int) -> Commit | None:
        """Return one commit."""
        position = self._snapshot.find(session, seq) if seq >= 0 else None
        return None if position is None else self._snapshot.commit_at(position)

    @guarded
    def call(self, call: bytes) -> list[Commit]:
        """Return all commits of one call, in order of position."""
        return list(map(self._snapshot.commit_at, self._snapshot.call(call)))

    @guarded
    def find_calls(self, prefix: str) -> list[bytes]:
        """Return the calls whose UUID text starts with `prefix` (at most 10)."""
        snapshot = self._snapshot
        whole = _uuid(prefix)
        if whole:
            return [whole] if snapshot.call(whole) else []
        return _by_prefix(snapshot, prefix, snapshot.tables.calls, snapshot.tail.calls)

    @guarded_iterator
    def attempts(self, want: Filter, *, newest_first: bool) -> Iterator[list[Commit]]:
        """Yield attempts that `want` covers: `[intent, outcome, later outcome, ...]`.

        Order is by the intent's position. Damaged records are left out, and counted. tool, server,
        times and turns are matched on the intent, error, kind and flag on the last outcome.
        """
        yield from self._wanted(
            find_attempts(self._snapshot, want, newest_first=newest_first), want.input
        )

    @guarded_iterator
    def ended(self, want: Filter, *, after: int, until: int) -> Iterator[list[Commit]]:
        """Yield for each outcome at a position in (`after`, `until`] its attempt as it stood then.

        Order is by the outcome's position; one attempt may come again. Otherwise as `attempts`.
        """
        positions = range(after + 1, until + 1)
        yield from self._wanted(ended_attempts(self._snapshot, want, positions), want.input)

    def _wanted(self, attempts: Iterable[Attempt], text: str) -> Iterator[list[Commit]]:
        for attempt in attempts:
            commits = list(map(self._snapshot.readable_commit, attempt))
            if not text or self._asks(commits[0].body, text):
                yield commits

    def _asks(self, body: CommitBody | None, text: str) -> bool:
        """Return whether the input of an intent contains a text, in any JSON spelling."""
        if body is None:
            return False
        found = self.blob(body.input_blob) if body.input_blob else None
        if isinstance(found, Blob):
            return contains_text(found.data, text)
        return text.casefold() in body.preview.casefold()

    @guarded_iterator
    def unsettled(self, sessions: tuple[bytes, ...] = ()) -> Iterator[list[Commit]]:
        """Yield the newest attempt of each call that belongs in `pending_actions`."""
        reader = AttemptReader(self._snapshot)
        states = self._snapshot.unsettled()
        intents = sorted(s.intent for s in states if not sessions or s.session in sessions)
        for intent in filter(None, map(self._snapshot.readable, intents)):
            yield list(map(self._snapshot.readable_commit, reader.read(intent)))

    @guarded
    def unsettled_attempt(self, call: bytes) -> list[Commit]:
        """Return the attempt by which a call belongs in `pending_actions`; empty if it does not."""
        state = self._snapshot.call_state(call)
        intent = state and self._snapshot.readable(state.intent)
        attempt = AttemptReader(self._snapshot).read(intent) if intent else ()
        return list(map(self._snapshot.readable_commit, attempt))

    @guarded_iterator
    def calls_with_note(self, note: NoteKind) -> Iterator[bytes]:
        """Yield the calls that have a note of this kind once each, in the order of the notes."""
        notes = self._snapshot.listed(text_term(NOTE, note))
        yield from dict.fromkeys(entry.facts.call for entry in notes)

    @guarded
    def purges(self) -> dict[bytes, bool]:
        """Return the sessions whose purge is not done, each with whether only the log's file is left to do."""
        rows = keys_with(self._snapshot.txn, self._snapshot.tables.meta, PURGE)
        return {key[len(PURGE) :]: value == PURGE_ERASED for key, value in rows}

    @guarded
    def contents(self, session: bytes) -> frozenset[bytes]:
        """Return the handles of all payloads that bodies of a session name."""
        named: set[bytes] = set()
        for position in self._snapshot.session(session, 0, NEVER - 1, newest_first=False):
            entry = self._snapshot.readable(position)
            body = self._snapshot.readable_commit(entry).body if entry else None
            if body is not None:
                named |= {body.input_blob, body.output_blob}
        return frozenset(map(self.handle_here, named)) - {b"", *_WORDS}

    @guarded
    def late_contents(self, session: bytes) -> frozenset[bytes]:
        """Return the handles of the payloads of outcomes that came after a session was packed."""
        found = late_outcomes(self._snapshot.txn, self._snapshot.tables, session)
        return frozenset[bytes]().union(*(handles for _, _, handles in found))

    @guarded_iterator
    def payload_owners(
        self, buckets: frozenset[Bucket]
    ) -> Iterator[tuple[Bucket, int, bytes, str]]:
        """Yield which payloads in some buckets bodies name: bucket, number, and session and server of the commit."""
        snapshot = self._snapshot
        for position, handles in named_here(snapshot.txn, snapshot.tables):
            named = _in_buckets(handles, buckets)
            entry = snapshot.readable(position) if named else None
            if entry is not None:
                for bucket, n in named:
                    yield bucket, n, entry.link.session, entry.facts.server
        for session, server, handles in late_outcomes(snapshot.txn, snapshot.tables):
            for bucket, n in _in_buckets(handles, buckets):
                yield bucket, n, session, server

    @guarded
    def shared(self, handles: frozenset[bytes], session: bytes) -> set[bytes]:
        """Return those of a session's `handles` that other sessions name as well."""
        return referred_by_others(self._snapshot.txn, self._snapshot.tables, handles, session)

    @guarded_iterator
    def bodies_to_purge(self, session: bytes, after: int, until: int) -> Iterator[int]:
        """Yield as `erasable` does the positions of all bodies but those of redactions."""
        positions = self._snapshot.session(session, after + 1, until, newest_first=True)
        for position in positions:
            entry = self._snapshot.readable(position)
            is_redact = entry is not None and entry.facts.kind is CommitKind.REDACT
            if not is_redact and self._snapshot.body(position):
                yield position

    @guarded
    def held(self) -> frozenset[bytes]:
        """Return the sessions whose newest hold was not released."""
        held = set[bytes]()
        terms = (text_term(NOTE, kind) for kind in (NoteKind.HOLD, NoteKind.RELEASE))
        for entry in self._snapshot.listed(*terms):
            change = held.add if entry.facts.note == NoteKind.HOLD else held.discard
            change(entry.link.session)
        return frozenset(held)

    @guarded
    def taint_notes(self, sessions: frozenset[bytes]) -> list[Commit]:
        """Return the notes that mark or endorse outputs of these sessions, oldest first."""
        snapshot = self._snapshot
        entries = snapshot.listed(*(text_term(NOTE, kind) for kind in TAINT_NOTES))
        return [snapshot.readable_commit(e) for e in entries if e.link.session in sessions]

    @guarded_iterator
    def undelivered(self) -> Iterator[bytes]:
        """Yield the calls that have ended without a note that their guarded answer was delivered."""
        yield from self._snapshot.undelivered()

    @guarded
    def readable(self, call: bytes) -> list[Commit]:
        """Return the commits of one call as `call` does; damaged ones are left out, and counted."""
        entries = filter(None, map(self._snapshot.readable, self._snapshot.call(call)))
        return list(map(self._snapshot.readable_commit, entries))

    @guarded
    def is_alive(self, epoch: int) -> bool:
        """Return whether the writer of an epoch still runs."""
        return is_locked(self.data / "epochs", epoch)

    @guarded
    def living_epochs(self) -> list[int]:
        """Return the epochs of the writers that still run."""
        return locked_epochs(self.data / "epochs")

    @guarded
    def linked(self, key: bytes) -> Commit | None:
        """Return the newest commit whose body carries the link `key`."""
        position = self._snapshot.linked(key)
        return None if position is None else self._snapshot.commit_at(position)

    @guarded
    def blob(self, handle: bytes) -> Blob | Gone:
        """Return stored content by what a body holds of it, or why it cannot be read."""
        here = self.handle_here(handle)
        gone = _gone(here)
        return self._blobs.read(here) if gone is None else gone

    @guarded
    def handle_here(self, handle: bytes) -> bytes:
        """Return the handle of a payload in this store: another one, or the word for why it is gone, where
        its commit came from another store."""
        return moved_handle(self._snapshot.txn, self._snapshot.tables, handle)

    @guarded
    def usage(self) -> Usage:
        """Return sizes and counts."""
        snapshot = self._snapshot
        known = snapshot.txn.stat(snapshot.tables.heads)["entries"]
        fresh = [s for s in list(snapshot.tail.sessions) if self._is_fresh(s)]
        return Usage(
            commits=snapshot.last,
            sessions=known + len(fresh),
            log_bytes=log_size(self.data),
            blob_bytes=blob_size(self.data),
            state_bytes=state_size(self.data),
            limit=read_number(snapshot.txn, snapshot.tables, LIMIT),
            disk_free=disk_free(self.data),
            rekeyed_at=read_number(snapshot.txn, snapshot.tables, REKEYED),
            pending=sum(1 for _ in snapshot.unsettled()),
        )

    @guarded_iterator
    def headers(self, session: bytes) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Yield `(position, header bytes, body bytes or None)` in seq order, for `verify`.

        The header of a damaged record is empty, or what is left of it.
        """
        for position in self._snapshot.session(session, 0, NEVER - 1, newest_first=False):
            header = read_record(self._snapshot.txn, self._snapshot.tables.log, position)
            yield position, header or b"", self._snapshot.body(position)

    @guarded_iterator
    def flaws(self) -> Iterator[Flaw]:
        """Yield the flaws of the log as a whole, of all sessions."""
        yield from flaws(self._snapshot.txn, self._snapshot.tables)

    @guarded_iterator
    def index_flaws(self) -> Iterator[str]:
        """Yield where the indexes and the names of sessions disagree with the log."""
        found = index_flaws(self._snapshot.txn, self._snapshot.tables)
        for flaw in first_of_each(found):
            yield f"the index {flaw.table!r} does not fit the log: {flaw.detail}"

    @property
    @guarded
    def retention_told(self) -> int:
        """When it was said that content will be deleted by its age, ns UTC; 0 for not yet."""
        return read_number(self._snapshot.txn, self._snapshot.tables, TOLD)

    @property
    @guarded
    def last(self) -> int:
        """Position of the newest commit; 0 for none."""
        return self._snapshot.last

    @property
    def left_out(self) -> int:
        """How many records could not be read and were left out so far, where that is said above."""
        return len(self._snapshot.left_out)

    def _named(self, name: str) -> list[bytes]:
        tables = self._snapshot.tables
        start = name + ALIAS_SEPARATOR
        found = dict(keys_with(self._snapshot.txn, tables.aliases, alias_prefix(name)))
        exact = self._snapshot.txn.get(alias_key(name), db=tables.aliases)
        if exact:
            found[alias_key(name)] = exact
        # Keys of long names are cut: the text has the last word.
        return sorted(
            session
            for session in set(found.values())
            if any(a == name or a.startswith(start) for a in self._aliases(session))
        )

    def _is_fresh(self, session: bytes) -> bool:
        """Return whether a session of the tail is in no table yet."""
        head = self._snapshot.head(session)
        return head is not None and head.opened > self._snapshot.tail.after

    def _row(self, session: bytes, head: Head) -> SessionRow:
        opened = self._opened(head)
        metadata = dict(opened.body.metadata) if opened and opened.body else {}
        rung = _rung(metadata.pop("rung", ""))
        metadata.pop("aliases", None)
        return SessionRow(
            session=session,
            rung=rung,
            aliases=self._aliases(session),
            metadata=metadata,
            opened_at=opened.facts.at if opened else 0,
            first_seq=opened.link.seq if opened else 0,
            head_seq=head.seq,
            head_hash=head.hash,
            position=head.position,
            place=head.place,
            stage=head.stage,
            control=head.control,
        )

    def _opened(self, head: Head) -> Commit | None:
        """Return a session's first commit; a damaged one must not hide the session."""
        try:
            return self._snapshot.commit_at(head.opened)
        except Corrupt:
            return None

    def _aliases(self, session: bytes) -> tuple[str, ...]:
        tables = self._snapshot.tables
        found = keys_with(self._snapshot.txn, tables.aliases, alias_text_prefix(session))
        return tuple(sorted(text.decode() for _, text in found))


def _in_buckets(handles: Iterable[bytes], buckets: frozenset[Bucket]) -> list[tuple[Bucket, int]]:
    """Return bucket and number of those payloads that lie in some buckets."""
    here = ((bucket_of(handle), number_in_bucket(handle)) for handle in handles)
    return [(bucket, n) for bucket, n in here if bucket is not None and bucket in buckets]


def _gone(handle: bytes) -> Gone | None:
    """Return why a payload is gone, where a word stands in place of its handle."""
    return Gone(handle.decode()) if handle in _WORDS else None


def _uuid(text: str) -> bytes | None:
    try:
        return UUID(text).bytes
    except ValueError:
        return None


def _by_prefix(
    snapshot: Snapshot, text: str, table: Table, recent: dict[bytes, list[int]]
) -> list[bytes]:
    """Return the ids whose text starts with `text`, at most 10; none for less than `ids.SHORTEST_PREFIX` digits."""
    digits = text.replace("-", "").lower()
    if not SHORTEST_PREFIX <= len(digits) < 32 or set(digits) - set("0123456789abcdef"):
        return []
    start = bytes.fromhex(digits[: len(digits) // 2 * 2])
    return [i for i in snapshot.prefixed(table, recent, start) if has_prefix(i, text)][:10]


def _rung(text: str) -> Rung:
    """Return the rung that `open` names; the weakest when it names none that is known."""
    try:
        return Rung(text)
    except ValueError:
        return Rung.IMPLICIT
