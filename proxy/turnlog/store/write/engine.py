"""The writing side of the LMDB store: every write transaction on the log. Used by the writer's thread."""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from turnlog.core.commit import Commit, CommitBody, decode_link
from turnlog.core.kinds import CommitKind, Flag
from turnlog.store import recovery
from turnlog.store.base import Adopted, Blob, Conflict, Draft, Incoming, SessionRef, StoreError
from turnlog.store.blobs import BlobWriter, Bucket, BucketRewrite, Packed, pack
from turnlog.store.log.environment import Environment, Txn
from turnlog.store.log.epochs import EpochLock, is_locked, locked_epochs
from turnlog.store.log.index import Entry, Segment
from turnlog.store.log.index_writer import SLICE, flush
from turnlog.store.log.keys import (
    EPOCH,
    NOTES_CHECK,
    PROBE,
    PURGE,
    TOLD,
    WATERMARK,
    moved_key,
    number,
)
from turnlog.store.log.tables import (
    ControlCounter,
    Tables,
    keys_with,
    last_position,
    notes_check,
    read_head,
    read_number,
    referred_by_others,
    still_unnamed,
    unnamed_moves,
)
from turnlog.store.log.translate_errors import FAILURES, explained, translated
from turnlog.store.quota import Quota
from turnlog.store.recovery import abandoned, overdue

from .drafts import SALT, complete, forget, land, prepare, purge_content
from .erase import erase_bodies, erase_names
from .ledger import Ledger

FLUSH_EVERY = 2000
"""Commits behind the watermark after which the derived tables are written."""

_GAP_BYTES: Final = 2
_salts: Final = struct.Struct(f"{SALT}s").iter_unpack


class Sources(Struct, frozen=True, kw_only=True):
    """Sources of time and random bytes, and receivers of errors without a caller."""

    now: Callable[[], int]
    """Wall clock, ns UTC."""
    clock: Callable[[], int]
    """Monotonic clock, ns."""
    entropy: Callable[[int], bytes]
    report: Callable[[StoreError], None]
    """Called by the writer's thread."""
    trimmed: Callable[[int], None]
    """Gets the bytes of stored content that were given up to make room."""
    held: Callable[[], frozenset[Bucket]]
    """Returns the buckets that must not be given up."""


class _BucketMoved(Exception):
    """Contents of a batch were written to a bucket that is not in its place any more."""


class LmdbEngine:
    """Owns the ledger, the blob writer and the epoch. Used by one thread at a time."""

    def __init__(
        self,
        data: Path,
        env: Environment,
        tables: Tables,
        *,
        lock: EpochLock,
        blobs: BlobWriter,
        quota: Quota,
        flush_every: int,
        sources: Sources,
    ) -> None:
        """`flush_every` is how many commits the indexes may lag behind."""
        self.data = data
        self.env = env
        self.tables = tables
        self.epoch = lock.epoch
        self._lock = lock
        self._quota = quota
        self._blobs = blobs
        self._flush_every = flush_every
        self._sources = sources
        self._ledger = Ledger(tables, lock.epoch, sources.entropy)
        self._controls = ControlCounter(env, tables)
        self._controls_seen = 0
        self._purged_lately: frozenset[bytes] = frozenset()
        """As of the control commit `_controls_seen`."""
        self._skipped: set[str] = set()
        self._blobs_fail = False
        """Whether blobs could not be written, and that was reported."""
        self.dead_epochs = 0
        """How many dead writers left what the last `recover` closed."""

    def tail(self) -> Segment:
        """Return the log behind the watermark, as far as this writer has read it. For any thread.

        What a transaction under way has appended is in it already.
        """
        return self._ledger.tail

    def write(self, batch: list[Draft]) -> list[Draft]:
        """Write a batch in one transaction; return earlier, failed intents that went along.

        Raises `StoreError`; then nothing of the batch is on disk.
        """
        # Once: it happens where a purge has rewritten the bucket between the two.
        with suppress(_BucketMoved):
            return self._write(batch)
        return self._write(batch)

    def _write(self, batch: list[Draft]) -> list[Draft]:
        self._prepare(batch)
        try:
            return self._commit(self._with_contents(batch))
        except BaseException:
            for draft in batch:
                forget(draft)
            raise

    def _with_contents(self, batch: list[Draft]) -> Callable[[Txn], list[Draft]]:
        has_contents = any(draft.blob is not None for draft in batch)

        def fill(txn: Txn) -> list[Draft]:
            # A purge looks under the same lock for what refers to a bucket before it takes its place.
            if has_contents and not self._blobs.is_in_place():
                raise _BucketMoved
            return batch

        return fill

    def tend(self) -> None:
        """Flush the derived tables and make room, when that is due. Reports its errors."""
        is_behind, needs_room = self._ledger.behind >= self._flush_every, self._quota.is_due()
        # Nothing may be removed from another store at the same place. The next write reports that this one is gone.
        if (is_behind or needs_room) and self.env.is_in_place():
            if is_behind:
                self._reported("index", self.flush)
            if needs_room:
                self._reported("make room in", self._make_room)

    def probe(self) -> None:
        """Write something small and wait for the disk. Raises `StoreError`."""
        with translated("write to", self.data), self.env.write() as txn:
            txn.put(PROBE, number(self._sources.now()), db=self.tables.meta)

    def _make_room(self) -> None:
        if given_up := self._quota.make(self._blobs.trim, self._sources.held):
            self._sources.trimmed(given_up)

    def tell_retention(self, at: int) -> int:
        """Note when it was said that content will be deleted, unless that was before; return when."""
        with translated("write to", self.data), self.env.write() as txn:
            if not (told := read_number(txn, self.tables, TOLD)):
                txn.put(TOLD, number(told := at), db=self.tables.meta)
                txn.put(NOTES_CHECK, notes_check(txn, self.tables), db=self.tables.meta)
        return told

    def erase_bodies(self, positions: Sequence[int]) -> int:
        """Erase the bodies of commits in one transaction; return their bytes. Raises `StoreError`."""
        with translated("erase from", self.data):
            with self.env.write() as txn:
                if max(positions) > read_number(txn, self.tables, WATERMARK):
                    # An index must know of a body before it goes.
                    flush(txn, self.tables, self._ledger.tail, self._ledger.heads)
                size = erase_bodies(txn, self.tables, positions)
            with self.env.read() as txn:
                self._ledger.trim(txn)
        return size

    def erase_names(self, session: bytes) -> int:
        """Erase the names of a session in one transaction; return how many there were. Raises `StoreError`."""
        with translated("erase from", self.data), self.env.write() as txn:
            return erase_names(txn, self.tables, session)

    def erase_moves(self) -> None:
        """Erase where payloads from other stores lie here, if no commit names them. Raises `StoreError`."""
        with translated("erase from", self.data):
            with self.env.read() as txn:
                seen, handles = last_position(txn, self.tables), unnamed_moves(txn, self.tables)
            if not handles:
                return
            with self.env.write() as txn:
                for handle in still_unnamed(txn, self.tables, handles, seen):
                    txn.delete(moved_key(handle), db=self.tables.aliases)

    def set_purge(self, session: bytes, state: bytes) -> None:
        """Note what is to be done of a purge. Raises `StoreError`."""
        with translated("write to", self.data), self.env.write() as txn:
            txn.put(PURGE + session, state, db=self.tables.meta)

    def swap_bucket(
        self, rewrite: BucketRewrite, handles: frozenset[bytes], session: bytes, seen: int
    ) -> bool:
        """Replace a bucket by its copy, unless a commit behind `seen` refers to what that lacks.

        Return whether it is there. Raises `StoreError`.
        """
        with translated("purge payloads in", self.data), self.env.write() as txn:
            if referred_by_others(txn, self.tables, handles, session, seen):
                return False
            rewrite.swap()
        return True

    def expire_bucket(self, bucket: Bucket) -> None:
        """Make the content of an old bucket unreadable. Raises `StoreError`."""
        with translated("expire payloads in", self.data):
            self.env.check_place()
            self._blobs.expire(bucket)

    def flush(self) -> None:
        """Bring the derived tables up to the log's end."""
        with self.env.write() as txn:
            flush(txn, self.tables, self._ledger.tail, self._ledger.heads)
        self.env.raw.reader_check()
        with self.env.read() as txn:
            self._ledger.trim(txn)

    def recover(self) -> list[Commit]:
        """Close the open attempts of writers that died. Raises `StoreError`."""
        epochs: set[int] = set()
        closed = self._close_all(lambda txn: self._abandoned(txn, epochs))
        self.dead_epochs = len(epochs) if closed else 0
        return closed

    def _abandoned(self, txn: Txn, epochs: set[int] | None = None) -> list[Draft]:
        """Return the outcomes of the open attempts of writers that died; add those writers to `epochs`."""
        folder = self.data / "epochs"
        intents = abandoned(
            txn,
            self.tables,
            self._ledger.tail,
            is_dead=lambda epoch: epoch != self.epoch and not is_locked(folder, epoch),
            skip=self._skip,
        )
        intents = [one for one in intents if not self._ledger.is_packed(txn, one.link.session)]
        if epochs is not None:
            epochs.update(intent.link.epoch for intent in intents)
        return [self._outcome(intent, 0, (), recovery.CRASHED) for intent in intents]

    def adopt(self, incoming: Incoming) -> Adopted:
        """Append a session of another store, all of it or nothing. Raises `StoreError`, also `Conflict`."""
        session, drafts, taken, count = incoming.session, list[Draft](), list[str](), [0]

        def fill(txn: Txn) -> Sequence[Draft]:
            self._refuse_living(incoming.epochs)
            count[0] = self._append(txn, incoming)
            taken.extend(a for a in incoming.aliases if not self._ledger.name(txn, session, a))
            for handle, here in incoming.handles.items():
                txn.put(moved_key(handle), here, db=self.tables.aliases)
            self._pass_epochs(txn, incoming.epochs)
            drafts.extend(self._abandoned(txn))
            if incoming.control is not None:
                # Behind the outcomes of its open attempts.
                own = sum(draft.session.candidate == session for draft in drafts)
                incoming.control.expected_head = self._ledger.heads[session].seq + own
                drafts.append(prepare(incoming.control, self._sources.entropy))
            return drafts

        self._commit(fill)
        land(drafts)
        own = [draft.facts.kind for draft in drafts if draft.session.candidate == session]
        head = self._ledger.heads[session]
        return Adopted(
            seq=head.seq,
            hash=head.hash,
            commits=count[0],
            closed=own.count(CommitKind.OUTCOME),
            taken=tuple(taken),
        )

    def _refuse_living(self, epochs: frozenset[int]) -> None:
        living = epochs & {self.epoch, *locked_epochs(self.data / "epochs")}
        if living:
            raise StoreError(
                f"a running process of {str(self.data)!r} has the number {min(living)} of one that wrote the "
                "session; stop the processes that use the store, and try again"
            )

    def _pass_epochs(self, txn: Txn, epochs: frozenset[int]) -> None:
        """Go on behind the numbers of another store's processes, which may count on from there as well."""
        newest = max(epochs, default=0)
        if newest > read_number(txn, self.tables, EPOCH):
            gap = int.from_bytes(self._sources.entropy(_GAP_BYTES))
            txn.put(EPOCH, number(newest + gap), db=self.tables.meta)

    def _append(self, txn: Txn, incoming: Incoming) -> int:
        """Append the commits behind the newest one that is here; return how many those are."""
        after, count = incoming.expected, 0
        if after is None and read_head(txn, self.tables, incoming.session) is not None:
            raise Conflict("the session came meanwhile", 0)
        for header, body in incoming.records():
            if after is not None and decode_link(header).seq <= after[0]:
                continue
            self._ledger.adopt(txn, header, body)
            count += 1
            if count % SLICE == 0:
                # In this transaction too: memory does not grow with the session.
                self._quota.wrote(self._ledger.put(txn))
                flush(txn, self.tables, self._ledger.tail, self._ledger.heads)
                self._ledger.trim(txn)
        self._ledger.append_late(txn, incoming.session)
        # What looks for open attempts reads the log itself.
        self._quota.wrote(self._ledger.put(txn))
        return count

    def keep(self, blobs: Sequence[Blob]) -> list[bytes]:
        """Store payloads, and wait for the disk; return their handles. Raises `StoreError`."""
        with translated("write blobs to", self.data):
            handles = self._blobs.write([*map(pack, blobs)], self._sources.now())
            self._blobs.sync()
        self._quota.wrote(sum(len(blob.data) for blob in blobs))
        return handles

    def expire(self, now: int) -> list[Commit]:
        """Close the parked legs whose time passed. Raises `StoreError`."""
        return self._close_all(
            lambda txn: [
                self._outcome(intent, state.n + 1, (Flag.EXPIRED,), recovery.EXPIRED)
                for state, intent in overdue(
                    txn, self.tables, self._ledger.tail, now, skip=self._skip
                )
                if not self._ledger.is_packed(txn, intent.link.session)
            ]
        )

    def _skip(self, what: str) -> None:
        """Report what cannot be read, once."""
        if what not in self._skipped:
            self._skipped.add(what)
            self._sources.report(
                StoreError(f"cannot read {what} in {str(self.data)!r}; run `turnlog verify`")
            )

    def close(self) -> None:
        """Bring the indexes up to date, give up the epoch, close the files. Reports its errors."""
        if self._ledger.behind >= self._flush_every // 8:
            self._reported("index", self.flush)
        self._reported("close the blobs of", self._blobs.close)
        self._reported("give up the epoch of", self._lock.release)
        self.env.close()

    def _close_all(self, find: Callable[[Txn], list[Draft]]) -> list[Commit]:
        """Write the outcomes that `find` returns; it may look at the ledger's tail."""
        # Mostly there is nothing to do: other writers need not wait for that answer.
        if not self._peek(find):
            return []
        found: list[Draft] = []

        def fill(txn: Txn) -> Sequence[Draft]:
            found.extend(find(txn))
            return found

        self._commit(fill)
        land(found)
        return [commit for draft in found if (commit := draft.placed)]

    def _peek(self, find: Callable[[Txn], list[Draft]]) -> bool:
        try:
            with translated("read", self.data), self.env.read() as snapshot:
                self._ledger.begin(snapshot)
                return bool(find(snapshot))
        except BaseException:
            self._ledger.forget()
            raise

    def _commit(self, fill: Callable[[Txn], Sequence[Draft]]) -> list[Draft]:
        """Append what `fill` returns in one transaction; return what went along."""
        try:
            with self.env.write() as txn:
                self._ledger.begin(txn)
                for draft in fill(txn):
                    self._ledger.append(txn, draft)
                size = self._ledger.put(txn)
        except BaseException as error:
            self._ledger.forget()
            self._quota.doubt()
            if isinstance(error, FAILURES):
                raise explained("write to", self.data, error) from error
            raise
        self._quota.wrote(size)
        return self._ledger.settle()

    def _outcome(self, intent: Entry, n: int, flags: tuple[Flag, ...], body: CommitBody) -> Draft:
        facts = recovery.closing(
            intent.facts, at=self._sources.now(), clock=self._sources.clock(), n=n, flags=flags
        )
        ref = SessionRef.existing(intent.link.session)
        return prepare(Draft(session=ref, facts=facts, body=body), self._sources.entropy)

    def _prepare(self, drafts: list[Draft]) -> None:
        full = [draft for draft in drafts if draft.blob is not None]
        if not full:
            return
        if purged := self._purged():
            for draft in full:
                if draft.session.id in purged:
                    purge_content(draft)
            full = [draft for draft in full if draft.blob is not None]
        blobs = [pack(draft.blob) for draft in full if draft.blob is not None]
        try:
            # No content goes into a store that was made at the same place.
            self.env.check_place()
        except OSError as error:
            raise explained("write to", self.data, error) from error
        handles = self._stored(blobs)
        salts = _salts(self._sources.entropy(SALT * len(full)))
        for draft, (salt,), handle in zip(full, salts, handles, strict=True):
            complete(draft, salt, handle)

    def _purged(self) -> frozenset[bytes]:
        """Return the sessions that were purged lately; each transaction that writes payloads asks."""
        if self._controls.read() != self._controls_seen:
            with self.env.read() as txn:
                self._purged_lately = frozenset(
                    key[len(PURGE) :] for key, _ in keys_with(txn, self.tables.meta, PURGE)
                )
            self._controls_seen = self._controls.count
        return self._purged_lately

    def _stored(self, blobs: Sequence[Packed]) -> Sequence[bytes]:
        """Write blobs; return their handles.

        A commit without its blob is worth more than none: readers say `unsaved`.
        """
        try:
            handles = self._blobs.write(blobs, self._sources.now())
            self._blobs_fail = False
        except (StoreError, *FAILURES) as error:
            handles = [blob.digest for blob in blobs]
            if not self._blobs_fail:
                self._sources.report(
                    error
                    if isinstance(error, StoreError)
                    else explained("write blobs to", self.data, error)
                )
            self._blobs_fail = True
        self._quota.wrote(sum([len(blob.value) for blob in blobs]))
        return handles

    def _reported(self, doing: str, action: Callable[[], None]) -> None:
        try:
            with translated(doing, self.data):
                action()
        except StoreError as error:
            self._sources.report(error)
