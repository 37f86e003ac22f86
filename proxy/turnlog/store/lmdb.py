"""The store on disk, for writing and for reading: one log for all writers of a host."""

import asyncio
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self, TypeVar

from turnlog.core.commit import Commit
from turnlog.core.ids import Entropy
from turnlog.core.kinds import CommitKind
from turnlog.host import boot_id
from turnlog.store.log import epochs
from turnlog.store.log.environment import Environment, identity, open_environment
from turnlog.store.log.index_check import first_of_each, recent_flaws
from turnlog.store.log.index_writer import rebuild
from turnlog.store.log.keys import (
    EPOCH,
    KEY_MARK,
    LIMIT,
    NOTES_CHECK,
    PURGE_BEGUN,
    PURGE_ERASED,
    REKEYED,
    TOLD,
    number,
)
from turnlog.store.log.tables import (
    NAMES,
    ControlCounter,
    Tables,
    notes_check,
    read_edges,
    read_number,
)
from turnlog.store.log.translate_errors import translated
from turnlog.store.read.held_content import HeldContent
from turnlog.store.read.snapshot import TailCache
from turnlog.store.read.view import View
from turnlog.store.write.drafts import DraftAdmission, prepare
from turnlog.store.write.engine import FLUSH_EVERY, LmdbEngine, Sources
from turnlog.store.write.submit_queue import SubmitQueue

from . import compact_copy, data_folder, definitions
from .base import Adopted, Blob, Draft, Incoming, StoreError, StoreFull
from .blobs import BlobReader, BlobWriter, Bucket, BucketRewrite, flaws, sweep
from .quota import Quota

T = TypeVar("T")
DEFAULT_LIMIT = 10 << 30
DAY = 86_400_000_000_000
_FIRST_EPOCHS: Final = 1 << 31
"""Larger numbers would take 4 more bytes in each commit."""


class LmdbStore:
    """One store on disk, opened for writing by one process among several, on one event loop.

    Open it after forking.
    """

    def __init__(
        self,
        engine: LmdbEngine,
        *,
        writer: SubmitQueue,
        blobs: BlobReader,
        admission: DraftAdmission,
        entropy: Callable[[int], bytes],
        key: bytes,
        recovered: list[Commit],
    ) -> None:
        """`key` is the store's own secret."""
        self.data, self._env, self._tables = engine.data, engine.env, engine.tables
        self._engine = engine
        self._writer = writer
        self._blobs = blobs
        self._admission = admission
        self._entropy = Entropy(entropy)
        # A copy of this costs a third of what hmac.digest does, which looks the algorithm up.
        self._mac = hmac.new(key, digestmod="sha256")
        self._secrets = data_folder.Secrets(engine.data, key)
        self.epoch = engine.epoch
        """The number of this writer among all that the store has had."""
        self.rekeyed = ""
        """The warning for a secret that is not the one used last; else empty."""
        self._tails = TailCache(engine.tail)
        self._controls = ControlCounter(self._env, self._tables)
        self._gone: StoreError | None = None
        """Why the store's file is not at its place, as last looked at by `down`."""
        self.recovered = recovered
        """The outcomes that opening wrote for attempts that can never be finished.

        Those of parked legs whose time had passed carry `Flag.EXPIRED`.
        """

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        limit: int | None = None,
        span: int = DAY,
        flush_every: int = FLUSH_EVERY,
        now: Callable[[], int] = time.time_ns,
        clock: Callable[[], int] = time.monotonic_ns,
        entropy: Callable[[int], bytes] = os.urandom,
        report: Callable[[StoreError], None] = lambda _: None,
        trimmed: Callable[[int], None] = lambda _: None,
        boot: str | None = None,
    ) -> Self:
        """Open the store in folder `path` for writing; create it if need be. Blocks.

        `limit` is the bytes of the whole store, `None` for those that it has; `span` what a bucket covers, in ns,
        `flush_every` how many commits the indexes may lag behind. `now` and `clock` return ns, wall
        clock and monotonic. `report` gets the errors that no caller sees (blobs, indexes,
        drafts that nobody waits for), `trimmed` the bytes of content that were given up to make
        room, both in the writer's thread. `boot` tells one start of the machine from another.
        Raises `StoreError`.
        """
        data = Path(path)
        boot = boot_id() if boot is None else boot
        data_folder.create(data)
        key = data_folder.read_key(data)
        if compact_copy.is_pending(data):
            try:
                compact_copy.replace_log(data)
            except StoreError as error:
                report(error)
        with ExitStack() as undo:
            env = open_environment(data / "log", readonly=False, tables=len(NAMES))
            undo.callback(env.close)
            with translated("open", data):
                env.raw.reader_check()
                tables = Tables.of(env, create=True)
                lock, limit = _take_epoch(data, env, tables, limit, undo)
            data_folder.mark(data)
            blobs = BlobReader(data / "blobs", boot, readonly=False)
            undo.callback(blobs.close)
            quota = Quota(data, limit)
            contents, tails = HeldContent(), TailCache()

            def held() -> frozenset[Bucket]:
                with View(data, env, tables, tails, blobs) as view:
                    return contents.buckets(view)

            engine = LmdbEngine(
                data,
                env,
                tables,
                lock=lock,
                blobs=BlobWriter(data, span, blobs, boot, lock.epoch, report=report),
                quota=quota,
                flush_every=flush_every,
                sources=Sources(
                    now=now,
                    clock=clock,
                    entropy=entropy,
                    report=report,
                    trimmed=trimmed,
                    held=held,
                ),
            )
            recovered = [*engine.recover(), *engine.expire(now())]
            with translated("open", data):
                is_rekeyed = _notice_key(env, tables, key, now())
            store = cls(
                engine,
                writer=SubmitQueue(engine, asyncio.get_running_loop(), report),
                blobs=blobs,
                admission=DraftAdmission(data, quota),
                entropy=entropy,
                key=key,
                recovered=recovered,
            )
            # From here on `close` gives everything back.
            undo.pop_all()
        if is_rekeyed:
            store.rekeyed = data_folder.rekeyed(data)
        return store

    @property
    def recovered_epochs(self) -> int:
        """How many writers had died whose attempts opening, or the last `recover`, closed."""
        return self._engine.dead_epochs

    @property
    def down(self) -> str:
        """Why calls cannot be recorded at the moment; empty where they can. Looks at folder and disk.

        Intents are refused as long as it is not empty.
        """
        writer, self._gone = self._writer, None
        if writer.down:
            return writer.down
        try:
            with translated("look at", self.data):
                self._env.check_place()
        except StoreError as error:
            self._gone = error
        if trouble := self._gone or writer.failing:
            return str(trouble)
        try:
            return self._admission.shortage() or writer.hangs()
        except StoreError as error:
            return str(error)

    def submit(
        self, draft: Draft, *, wait: bool, on_written: Callable[[bool], None] | None = None
    ) -> Draft:
        """Queue a draft; return it as its ticket. Called on the event loop's thread; never blocks.

        With `wait` the writer is woken at once; without, the draft goes along with the next
        transaction, within 50 ms, and without its blobs when too much is queued. `Ticket.done`
        returns once the transaction is flushed to the disk, in both cases.
        An outcome whose n is taken by one that the store wrote itself (recovery, expiry) gets the
        next free n and `Flag.LATE`, see `Ticket.placed`. One that the full disk refuses fails, and
        is written later, when there is room: its ticket is placed then.
        `on_written` is called once on the loop, before any waiter: with whether the commit is on disk.
        Raises `StoreFull` when an intent has no room, on disk or in the queue, `StoreClosed`,
        `StoreError` when the disk does not tell its room, `ValueError` for facts that cannot be
        stored (text with a lone surrogate, an intent or outcome without a call).
        """
        writer, admission = self._writer, self._admission
        if (trouble := self._gone or writer.failing) and draft.facts.kind is CommitKind.INTENT:
            # Reads wait for no write: they would be sent and never recorded.
            kind = StoreFull if isinstance(trouble, StoreFull) else StoreError
            raise kind(str(trouble))
        queued = writer.submitted - writer.finished
        if queued > admission.ample or admission.quota.spare <= 0:
            admission.admit(draft, wait, queued)
        prepare(draft, self._entropy.take, lazy=not wait)
        draft.on_written = on_written
        writer.submit(draft, wait)
        return draft

    def view(self) -> View:
        """Open a snapshot."""
        return View(self.data, self._env, self._tables, self._tails, self._blobs)

    async def read(self, work: Callable[[View], T], thread: Executor | None = None) -> T:
        """Return what `work` reads from a snapshot, in `thread`, else one of the loop's. Raises `StoreError`."""

        def in_thread() -> T:
            with self.view() as view:
                return work(view)

        return await asyncio.get_running_loop().run_in_executor(thread, in_thread)

    def is_shared(self) -> bool:
        """Return whether other processes may write to the store. Raises `StoreError`."""
        with translated("look at", self.data):
            return epochs.has_others(self.data / "epochs", self.epoch)

    def control_counter(self) -> ControlCounter:
        """Return what counts the control commits of all processes, the same for all its users."""
        return self._controls

    def keyed(self, data: bytes) -> bytes:
        """Return HMAC-SHA-256 of `data` under the store's own key (DATA/key)."""
        mac = self._mac.copy()
        mac.update(data)
        return mac.digest()

    def keyed_for(self, session: bytes | None, data: bytes) -> bytes:
        """Return HMAC-SHA-256 of `data` as a session's digests are keyed: as `keyed`, unless it came from
        another store."""
        secret = self._secrets.known.get(session) if session is not None else None
        return self.keyed(data) if secret is None else hmac.digest(secret, data, "sha256")

    def is_imported(self, session: bytes | None) -> bool:
        """Return whether a session came from another store with digests of its own, as far as `secrets`
        was read."""
        return session in self._secrets.known

    @property
    def secrets(self) -> Mapping[bytes, bytes]:
        """The secrets of the sessions that came from other stores, by session. Raises `StoreError`."""
        return self._secrets.read()

    def check_room(self, need: int) -> None:
        """Check that a session of `need` bytes from another store has room. Raises `StoreFull`, `StoreError`."""
        self._admission.check_import(need)

    async def keep(self, blobs: Sequence[Blob]) -> list[bytes]:
        """Store payloads for `adopt`, and wait for the disk; return their handles. Raises `StoreError`."""
        return await self._writer.run(lambda: self._engine.keep(blobs))

    async def adopt(self, incoming: Incoming) -> Adopted:
        """Append a session of another store, all of it or nothing; other writers wait meanwhile.

        Raises `StoreError`, also `Conflict` where the session is not as expected.
        """
        if not hmac.compare_digest(incoming.secret, self._secrets.own):
            self._secrets.add(incoming.session, incoming.secret)
        return await self._writer.run(lambda: self._engine.adopt(incoming))

    async def flush(self) -> None:
        """Wait until what was submitted before is on disk, or has failed. Raises `StoreClosed`."""
        await self._writer.run(lambda: None)

    async def recover(self) -> list[Commit]:
        """Close the open attempts of writers that died; return the outcomes written."""
        return await self._writer.run(self._engine.recover)

    async def expire(self, now: int) -> list[Commit]:
        """Close the parked legs whose `Facts.expires` passed at `now`; return the outcomes."""
        return await self._writer.run(lambda: self._engine.expire(now))

    async def tell_retention(self, at: int) -> int:
        """Note that it was said at `at` that content will be deleted by its age; return when it first was.

        Raises `StoreError`.
        """
        return await self._writer.run(lambda: self._engine.tell_retention(at))

    async def erase_bodies(self, positions: Sequence[int]) -> int:
        """Erase the bodies of the commits at `positions`; return their bytes. Raises `StoreError`.

        A `redact` commit of their session must say so before. Few at a time: calls wait meanwhile.
        """
        return await self._writer.run(lambda: self._engine.erase_bodies(positions))

    async def erase_session(self, session: bytes) -> int:
        """Erase the names of a session, and what came with it from another store, and note that only the log's
        file holds what is erased.

        Return the number of names. Raises `StoreError`.
        """

        def work() -> int:
            names = self._engine.erase_names(session)
            self._engine.erase_moves()
            self._secrets.remove(session)
            compact_copy.set_pending(self.data)
            self._engine.set_purge(session, PURGE_ERASED)
            return names

        return await self._writer.run(work)

    async def begin_purge(self, session: bytes) -> None:
        """Note that the content of a session is to be erased. Raises `StoreError`."""
        await self._writer.run(lambda: self._engine.set_purge(session, PURGE_BEGUN))

    async def swap_bucket(
        self, rewrite: BucketRewrite, handles: frozenset[bytes], session: bytes, seen: int
    ) -> bool:
        """Replace a bucket by its copy without `handles`; return false where others refer to them by now.

        `seen` is the position up to which that was looked for. Raises `StoreError`.
        """
        return await self._writer.run(
            lambda: self._engine.swap_bucket(rewrite, handles, session, seen)
        )

    async def expire_bucket(self, bucket: Bucket) -> None:
        """Delete the payloads of an old bucket. Raises `StoreError`."""
        await self._writer.run(lambda: self._engine.expire_bucket(bucket))
        # Large files take long to delete: the writer has other work.
        await asyncio.to_thread(sweep, self.data / "blobs")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what is queued, release the epoch, close. Nothing submitted is lost."""
        await self._writer.stop()
        self._blobs.close()


class LmdbReader:
    """A store opened for reading only, beside its writers."""

    def __init__(self, data: Path, env: Environment, tables: Tables, *, identity: int) -> None:
        self._data = data
        self._identity = identity
        self._env = env
        self._tables = tables
        self._tails = TailCache()
        self._blobs = BlobReader(data / "blobs", boot_id(), readonly=True)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the store in folder `path` for reading. Needs no writer. Raises `StoreError`."""
        data = Path(path)
        data_folder.check(data)
        identity = data_folder.check_log(data)
        env = open_environment(data / "log", readonly=True, tables=len(NAMES))
        try:
            with translated("open", data):
                tables = Tables.of(env, create=False)
        except BaseException:
            env.close()
            raise
        return cls(data, env, tables, identity=identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def view(self) -> View:
        """Open a snapshot."""
        return View(self._data, self._env, self._tables, self._tails, self._blobs)

    def problems(self) -> list[str]:
        """Return the flaws of the log's file, without reading it through LMDB."""
        with translated("read", self._data):
            return self._env.problems()

    def beside(self) -> Iterator[str]:
        """Yield the flaws of the files beside the log."""
        for bucket, problem in flaws(self._data / "blobs", boot_id()):
            yield f"blobs/{bucket}: {problem}"
        for problem in definitions.flaws(self._data):
            yield f"definitions: {problem}"
        with translated("read", self._data), self._env.read() as txn:
            mark = txn.get(KEY_MARK, db=self._tables.meta)
        if mark is not None and not data_folder.has_key(self._data, mark):
            yield "key: it is not the one that was used last; restore the file from a backup"

    def look(self, whole: int) -> Iterator[str]:
        """Yield the flaws that a short check finds: in the roots of all tables, and in the indexes of
        the newest commits. A log of up to `whole` bytes is checked from end to end.

        A damaged page may end this process.
        """
        file = self._data / "log" / "data.mdb"
        with translated("read", self._data):
            small = file.stat().st_size <= whole
            found = self._env.problems() if small else []
            if found:
                yield (
                    f"{str(file)!r} is damaged: {found[0]}; `turnlog verify` says more; restore the "
                    "folder from a backup"
                )
                return
            with self._env.read() as txn:
                read_edges(txn, self._tables)
                for flaw in first_of_each(recent_flaws(txn, self._tables)):
                    yield (
                        f"{str(file)!r} is damaged: the index {flaw.table!r} does not fit the log "
                        f"({flaw.detail}); "
                        "`turnlog verify --rebuild` makes the indexes anew from the log"
                    )

    def is_replaced(self) -> bool:
        """Return whether the folder now holds another store, or none."""
        with translated("read", self._data):
            return identity(self._data / "log") != self._identity

    def close(self) -> None:
        """Close the files."""
        self._blobs.close()
        self._env.close()


def rebuild_indexes(data: Path) -> None:
    """Make the indexes of the store in folder `data` anew from its log. Blocks, raises `StoreError`.

    In one transaction, so that no reader sees half of them; other writers wait.
    """
    data_folder.check(data)
    data_folder.check_log(data)
    with (
        open_environment(data / "log", readonly=False, create=False, tables=len(NAMES)) as env,
        translated("rebuild the indexes of", data),
    ):
        env.refuse_damaged(
            "its indexes cannot be made anew in place; restore the folder from a backup"
        )
        tables = Tables.of(env, create=True)
        with env.write() as txn:
            rebuild(txn, tables)


def _notice_key(env: Environment, tables: Tables, key: bytes, now: int) -> bool:
    """Return whether the store's secret has changed since it was last noted, and note it.

    The note is in the log: any later process finds the change, also when the file was replaced.
    """
    mark = data_folder.key_mark(key)
    with env.read() as txn:
        if txn.get(KEY_MARK, db=tables.meta) == mark:
            return False
    with env.write() as txn:
        is_changed = txn.get(KEY_MARK, mark, db=tables.meta) != mark
        txn.put(KEY_MARK, mark, db=tables.meta)
        if is_changed:
            txn.put(REKEYED, number(now), db=tables.meta)
        txn.put(NOTES_CHECK, notes_check(txn, tables), db=tables.meta)
    return is_changed


def _take_epoch(
    data: Path, env: Environment, tables: Tables, limit: int | None, undo: ExitStack
) -> tuple[epochs.EpochLock, int]:
    """Return the lock on a new epoch, which no other process has read the number of yet, and the limit."""
    with env.write() as txn:
        newest = read_number(txn, tables, EPOCH)
        # The first number of a store is random: those of two stores must not be the same, because
        # a session can go from one to the other.
        epoch = (newest or secrets.randbelow(_FIRST_EPOCHS)) + 1
        lock = epochs.lock_epoch(data / "epochs", epoch)
        if lock is None:
            raise StoreError(f"epoch {epoch} of {str(data)!r} is locked already; run this again")
        undo.callback(lock.release)
        txn.put(EPOCH, number(epoch), db=tables.meta)
        if not newest:
            # A store that never was without retention needs no notice of it.
            txn.put(TOLD, number(1), db=tables.meta)
            txn.put(NOTES_CHECK, notes_check(txn, tables), db=tables.meta)
        limit = limit or read_number(txn, tables, LIMIT) or DEFAULT_LIMIT
        txn.put(LIMIT, number(limit), db=tables.meta)
    epochs.sweep(data / "epochs", epoch - 1)
    return lock, limit
