"""Stored inputs and outputs: compressed, in buckets of time, each found by its *handle*.

A handle is the content's sha256 and the place it was put. The place makes an index of what is
stored unnecessary, the hash tells whether what lies there is what was put. Content that came
before is not put again while it is among the last `REMEMBERED` of this process.

A bucket is an LMDB environment of its own, unlinked whole when it is old or room is needed. Blobs
are not waited for: after a crash of the machine those of the last seconds may be lost, and a commit
whose blob is missing reads as such. A bucket that was open for writing when the machine went down
cannot be trusted, and is dropped: a mark in it says by whom, and since which start of the machine,
it is written. An empty folder says why a bucket is gone.

    DATA/blobs/<number of the time span>-<n>/{data.mdb, lock.mdb, written-<boot id>-<epoch>}
    DATA/blobs/<number of the time span>-<n>.<m>/   the same, rewritten for the m-th time without what was purged
    DATA/blobs/<trimmed, ...>-<number of the time span>-<n>/

In a bucket blobs are numbered and lie in blocks (`log.blocks`), by the number of the last one.
"""

import re
import shutil
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from itertools import accumulate, islice
from pathlib import Path
from typing import Annotated, Final, Self

import lmdb
import msgspec
from msgspec import Meta, Struct

from turnlog.core.kinds import Gone
from turnlog.host import opened, sync_path, try_lock
from turnlog.store.log import blocks
from turnlog.store.log.environment import Environment, identity, is_begun, open_environment
from turnlog.store.log.epochs import is_locked
from turnlog.store.log.keys import number, unpack
from turnlog.store.log.translate_errors import translated

from .base import Blob, StoreDamaged, StoreError, StoreGone

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESS_ABOVE = 1024
"""Bytes; below this compression gains nothing."""
SAMPLED_ABOVE = 1 << 17
"""Bytes; above this a sample says whether compression gains enough (decision 78)."""
_SAMPLE = 1 << 15
AT_ONCE = 1 << 20
"""Bytes of blobs in one transaction: 1 MiB alone takes 0.4 ms of CPU, beside eleven others 1.9, because
LMDB keeps what it will write, and that memory is asked for and given back each time."""
MAP_SIZE = 1 << 40
REMEMBERED = 1 << 14
"""Blobs of the present bucket whose places are kept in memory."""
MOST_OPEN = 16
"""Buckets that a reader keeps open. Each takes `MAP_SIZE` of a process's 128 TiB of address space."""
_LEVEL = 1
DIGEST = 32
"""Bytes of a content's sha256, at the start of its handle."""
_SMALL = 1 << 20
"""Bytes of a bucket that is looked at from end to end whenever it is opened: some 25 ms."""
_REDACTED, _CUT, _ZSTD, _OUTLIVED = 1, 2, 4, 8
_PURGED: Final = b""
"""Stands where content was that was purged."""
_EXPIRED: Final = bytes((_OUTLIVED,))
"""Stands where content was that had outlived its age, in a bucket with younger content."""
_MARK = "expired-"
"""Prefix of an empty file in a bucket that says by which ages content of it was deleted."""
_GONE = "gone-"
"""Prefix of a bucket's name while it is removed."""
_DRAFT = "draft-"
"""Prefix of a bucket's name while it is rewritten."""
_NAME = re.compile(r"(\d{1,12})-(\d{1,6})(?:\.(\d{1,6}))?")


_MARKS: Final = tuple(bytes((marks,)) for marks in range(_OUTLIVED))


class Packed(Struct, frozen=True, gc=False):
    """A blob as it is stored: a byte of marks, then `value`."""

    name: bytes
    """The content's digest, then that byte."""
    value: bytes
    """The content, compressed or not."""

    @property
    def digest(self) -> bytes:
        return self.name[:DIGEST]


def pack(blob: Blob) -> Packed:
    """Return a blob's digest and stored bytes."""
    data = blob.data
    marks = _REDACTED if blob.redacted else 0
    if blob.cut:
        marks |= _CUT
    if len(data) > COMPRESS_ABOVE and _is_worth_compressing(data):
        smaller = zstd.compress(data, _LEVEL)
        if len(smaller) < len(data):
            marks |= _ZSTD
            data = smaller
    return Packed((blob.digest or sha256(blob.data).digest()) + _MARKS[marks], data)


def _is_worth_compressing(data: bytes) -> bool:
    """Return whether content is small, or its middle shrinks to less than half."""
    if len(data) <= SAMPLED_ABOVE:
        return True
    middle = len(data) // 2
    sample = data[middle : middle + _SAMPLE]
    return 2 * len(zstd.compress(sample, _LEVEL)) < len(sample)


def unpack_blob(value: bytes) -> Blob:
    """Return the blob that lies in a bucket. Raises `zstd.ZstdError` when it is damaged."""
    marks = value[0]
    data = zstd.decompress(value[1:]) if marks & _ZSTD else value[1:]
    return Blob(data, redacted=bool(marks & _REDACTED), cut=bool(marks & _CUT))


class Bucket(Struct, frozen=True, order=True):
    """The name of a bucket: later ones compare greater."""

    span: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.span}-{self.number}"


class _Place(Struct, frozen=True, array_like=True, gc=False):
    """The location of a blob (its bucket, its number there) and its marks."""

    span: int
    bucket: int
    n: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    marks: int


_encode_place = msgspec.msgpack.Encoder().encode
_decode_place = msgspec.msgpack.Decoder(_Place).decode


def buckets(folder: Path) -> list[Bucket]:
    """Return the buckets on disk, oldest first."""
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(entry.name) for entry in folder.iterdir())
    return sorted({Bucket(int(m[1]), int(m[2])) for m in found if m})


def path_of(folder: Path, bucket: Bucket) -> Path:
    """Return the folder of a bucket: of several versions the newest, which has taken the others' place."""
    rewritten = _versions(folder, bucket)
    return folder / (f"{bucket.name}.{rewritten[-1]}" if rewritten else bucket.name)


def _versions(folder: Path, bucket: Bucket) -> list[int]:
    names = (_NAME.fullmatch(path.name) for path in folder.glob(f"{bucket.name}.*"))
    return sorted(int(name[3]) for name in names if name)


def bucket_of(handle: bytes) -> Bucket | None:
    """Return the bucket in which content was put; `None` for content that never was."""
    place = _place(handle)
    return None if place is None else Bucket(place.span, place.bucket)


def size(folder: Path, bucket: Bucket) -> int:
    """Return the bytes that a bucket takes on disk; 0 when it is gone."""
    try:
        return (path_of(folder, bucket) / "data.mdb").stat().st_blocks * 512
    except FileNotFoundError:
        return 0


class BlobReader:
    """Reads blobs from all buckets. Thread-safe."""

    def __init__(self, folder: Path, boot: str, *, readonly: bool) -> None:
        self._folder = folder
        self._boot = boot
        self._readonly = readonly
        self._open: dict[Bucket, Environment] = {}
        """The most recently used is last."""
        self._lock = threading.Lock()

    def read(self, handle: bytes) -> Blob | Gone:
        """Return a blob, or why it cannot be read."""
        place = _place(handle)
        if place is None:
            return Gone.UNSAVED  # the disk took the commit, and not its content
        bucket = Bucket(place.span, place.bucket)
        with self._lock:
            self._sweep()
            value = self._stored(bucket, place.n)
            if value is None and path_of(self._folder, bucket).is_dir():
                value = self._stored(bucket, place.n)  # it was rewritten under our eyes
        if value == _PURGED:
            return Gone.PURGED
        if value == _EXPIRED:
            return Gone.EXPIRED
        if isinstance(value, bytes):
            return _checked(value, place, handle) or Gone.DAMAGED
        if value is not None:
            return value
        marked = (why for why in Gone if _mark(self._folder, bucket, why).is_dir())
        return next(marked, Gone.DAMAGED)

    def close(self) -> None:
        """Close all environments."""
        with self._lock:
            for bucket in list(self._open):
                self._close(bucket)

    def drop(self, bucket: Bucket) -> None:
        """Close a bucket that is going to be unlinked."""
        with self._lock:
            self._close(bucket)

    def _sweep(self) -> None:
        """Close the buckets that others have unlinked: they take room on the disk as long as they are open."""
        for bucket in self._open.keys() - set(buckets(self._folder)):
            self._close(bucket)

    def _stored(self, bucket: Bucket, n: int) -> bytes | Gone | None:
        """Return the stored bytes, or why they cannot be read; `None` where the bucket is gone."""
        path = path_of(self._folder, bucket)
        try:
            env = self._environment(bucket, path)
            if env is None:
                return Gone.UNSAVED if is_torn(path, self._boot) else None
            with env.read() as txn, txn.cursor() as cursor:
                if not cursor.last():
                    return None  # made anew under the name of an earlier one, and nothing put there yet
                if not cursor.set_range(number(n)):
                    # A bucket that lost its end when the machine went down is torn, where that shows.
                    return Gone.DAMAGED if self._boot else Gone.UNSAVED
                key, run = cursor.item()
            # Of a lower number is what lay in an earlier bucket of the same name.
            return blocks.record(run, unpack(key) - n) if blocks.count(run) else Gone.DAMAGED
        except (lmdb.Error, StoreError):
            return Gone.DAMAGED if identity(path) else None  # unlinked under our eyes

    def _environment(self, bucket: Bucket, path: Path) -> Environment | None:
        known = self._open.get(bucket)
        if known and known.is_in_place():
            self._open[bucket] = self._open.pop(bucket)
            return known
        self._close(bucket)
        if not is_begun(path) or is_torn(path, self._boot):
            return None
        while len(self._open) >= MOST_OPEN:
            self._close(next(iter(self._open)))
        # Without `create`: a folder that is unlinked just now must not come back.
        env = self._open[bucket] = _open(path, readonly=self._readonly, create=False)
        return env

    def _close(self, bucket: Bucket) -> None:
        if known := self._open.pop(bucket, None):
            known.close()


def _place(handle: bytes) -> _Place | None:
    """Return where content was put; `None` for content that never was."""
    try:
        return _decode_place(handle[DIGEST:])
    except msgspec.DecodeError:
        return None


def _checked(value: bytes, place: _Place, handle: bytes) -> Blob | None:
    """Return the blob, or `None` if its content is not what its handle names."""
    try:
        blob = unpack_blob(value)
    except (zstd.ZstdError, IndexError):
        return None
    as_put = value[0] == place.marks and sha256(blob.data).digest() == handle[:DIGEST]
    return blob if as_put else None


def _mark(folder: Path, bucket: Bucket, why: Gone) -> Path:
    """Return the empty folder that says why a bucket is gone."""
    return folder / f"{why}-{bucket.name}"


def sweep(folder: Path) -> None:
    """Delete the files of retired buckets. May take long; any thread may do it."""
    for gone in folder.glob(f"{_GONE}*"):
        shutil.rmtree(gone, ignore_errors=True)


def is_torn(path: Path, boot: str) -> bool:
    """Return whether a bucket was open for writing when the machine went down."""
    return any(not mark.name.startswith(f"written-{boot}-") for mark in path.glob("written-*"))


def _open(path: Path, *, readonly: bool, create: bool) -> Environment:
    """Open a bucket. Raises `StoreError`, also where a small one is damaged: reading could kill the process."""
    env = open_environment(path, readonly=readonly, durable=False, create=create, map_size=MAP_SIZE)
    try:
        with translated("read", path):
            if env.file.stat().st_size <= _SMALL:
                env.refuse_damaged()
    except BaseException:
        env.close()
        raise
    return env


def copy_bucket(folder: Path, bucket: Bucket, target: Path, boot: str) -> str:
    """Copy a bucket as of this moment into another folder of buckets; return its flaw if it is left out.

    One that is gone, or was never begun, is no flaw; one that is torn is marked `unsaved`. Raises `OSError`.
    """
    path = path_of(folder, bucket)
    copied = target / path.name
    if is_torn(path, boot):
        _mark(target, bucket, Gone.UNSAVED).mkdir(mode=0o700)
    if is_torn(path, boot) or not is_begun(path):
        return ""
    copied.mkdir(mode=0o700)
    try:
        with _open(path, readonly=True, create=False) as env, translated("copy", path):
            env.copy(copied)
    except StoreError as error:
        shutil.rmtree(copied)
        # Without one of its own it was unlinked under our eyes.
        return str(error) if identity(path) else ""
    return ""


def flaws(folder: Path, boot: str) -> Iterator[tuple[str, str]]:
    """Yield the damaged buckets, each with its first flaw."""
    for bucket in buckets(folder):
        path = path_of(folder, bucket)
        if is_torn(path, boot) or not is_begun(path):
            continue  # dropped, or filled, by the next writer
        try:
            with _open(path, readonly=True, create=False) as env, translated("read", path):
                wrong = env.problems() or _gaps(env)
        except StoreError as error:
            # Else it was unlinked under our eyes.
            wrong = [str(error)] if identity(path) else []
        if wrong:
            yield bucket.name, wrong[0]


def _gaps(env: Environment) -> list[str]:
    """Return where numbers of blobs are missing, if that is so."""
    end = None
    with env.read() as txn, txn.cursor() as cursor:
        for key, run in cursor:
            held = blocks.count(run)
            if not blocks.is_whole(run) or (end is not None and unpack(key) - held != end):
                return [f"contents behind number {end} are missing"]
            end = unpack(key)
    return []


def _parts(blobs: Sequence[Packed]) -> Iterator[Sequence[Packed]]:
    """Yield blobs in runs of at most `AT_ONCE` bytes, or of one blob."""
    ends = list(accumulate([len(blob.value) for blob in blobs], initial=0))
    start = 0
    while start < len(blobs):
        end = max(start + 1, bisect_right(ends, ends[start] + AT_ONCE) - 1)
        yield blobs[start:end]
        start = end


class BlobWriter:
    """Writes blobs into the present bucket. Used by the writer's thread."""

    def __init__(
        self,
        data: Path,
        span: int,
        reader: BlobReader,
        boot: str,
        epoch: int,
        *,
        report: Callable[[StoreError], None],
        remembered: int = REMEMBERED,
    ) -> None:
        """`report` is called for damaged buckets, which are skipped."""
        self._report = report
        self._remembered = remembered
        self._folder = data / "blobs"
        self._epochs = data / "epochs"
        self._span = span
        self._reader = reader
        self._boot = boot
        self._epoch = epoch
        self._mark = f"written-{boot}-{epoch}"
        self._bucket: Bucket | None = None
        self._env: Environment | None = None
        self._known: dict[bytes, bytes] = {}
        """Handles of blobs in the present bucket, by `Packed.name`."""

    def write(self, blobs: Sequence[Packed], now: int) -> list[bytes]:
        """Store blobs in the bucket of `now`; return their handles.

        Raises `StoreError`, `OSError`, `lmdb.Error`.
        """
        try:
            known = self._write(blobs, now)
        except StoreGone:
            # Another process has unlinked the bucket: it needed the room.
            if self._bucket:
                self._reader.drop(self._bucket)
            self.close()
            self._bucket = None
            known = self._write(blobs, now)
        handles = [known[blob.name] for blob in blobs]
        over = len(known) - self._remembered
        # Many at a time: each look for the oldest passes the places of all that were removed before.
        if over > self._remembered // 16:
            for name in list(islice(known, over)):
                del known[name]
        return handles

    def _write(self, blobs: Sequence[Packed], now: int) -> dict[bytes, bytes]:
        """Store the new ones in the bucket of `now`; return the handles of all that it remembers."""
        env, bucket = self._current(now)
        known = self._known
        new = {name: blob for blob in blobs if (name := blob.name) not in known}
        if not new:
            env.check_place()
        for part in _parts([*new.values()]):
            self._append(env, bucket, part, now)
        return known

    def _append(self, env: Environment, bucket: Bucket, part: Sequence[Packed], now: int) -> None:
        with env.write() as txn, txn.cursor() as cursor:
            # Numbers begin at the time, so that a handle means nothing in a bucket that was made
            # anew under the same name.
            last = unpack(cursor.key()) if cursor.last() else max(0, now)
            marks = [blob.name[DIGEST:] for blob in part]
            cursor.putmulti(blocks.items(last, [blob.value for blob in part], marks), append=True)
        known, span, number = self._known, bucket.span, bucket.number
        for n, blob in enumerate(part, last + 1):
            name = blob.name
            known[name] = name[:DIGEST] + _encode_place((span, number, n, name[DIGEST]))

    def is_in_place(self) -> bool:
        """Return whether the bucket written last is the one that readers find."""
        return self._env is None or self._env.is_in_place()

    def trim(self, bucket: Bucket) -> None:
        """Remove a bucket from disk for want of room; if it is the present one, another is begun."""
        self._unlink(bucket, Gone.TRIMMED)

    def expire(self, bucket: Bucket) -> None:
        """Make the content of a bucket unreadable because of its age; `sweep` removes the files."""
        self._retire(bucket, Gone.EXPIRED)

    def _unlink(self, bucket: Bucket, why: Gone) -> None:
        self._retire(bucket, why)
        sweep(self._folder)
        with suppress(OSError):  # there is room for it now
            _mark(self._folder, bucket, why).mkdir(mode=0o700, exist_ok=True)

    def _retire(self, bucket: Bucket, why: Gone) -> None:
        if bucket == self._bucket:
            self.close()
            self._bucket = Bucket(bucket.span, bucket.number + 1)
        self._reader.drop(bucket)
        path, mark = path_of(self._folder, bucket), _mark(self._folder, bucket, why)
        with suppress(OSError):  # the disk is full
            mark.mkdir(mode=0o700, exist_ok=True)
        # In one step: no process may open, or add to, a half removed bucket.
        with suppress(OSError):
            # An older version must not come back: a purge that was killed may have left it.
            retire_older(self._folder, bucket)
            path.rename(path.with_name(f"{_GONE}{path.name}-{self._epoch}"))

    def sync(self) -> None:
        """Bring the bucket to the disk. Raises `lmdb.Error`."""
        if self._env is not None:
            self._env.raw.sync(True)

    def close(self) -> None:
        """Bring the bucket to the disk and close it. Raises `lmdb.Error`, `OSError`."""
        if self._env is None or self._bucket is None:
            return
        env, self._env = self._env, None
        self._known = {}
        try:
            if env.is_in_place():
                env.raw.sync(True)
                env.file.with_name(self._mark).unlink(missing_ok=True)
        finally:
            env.close()

    def _current(self, now: int) -> tuple[Environment, Bucket]:
        bucket = self._wanted(now // self._span)
        if self._env and bucket == self._bucket:
            return self._env, bucket
        self.close()
        self._env, bucket = self._enter(bucket)
        self._bucket = bucket
        return self._env, bucket

    def _wanted(self, span: int) -> Bucket:
        if self._bucket and self._bucket.span >= span:
            return self._bucket
        there = [bucket for bucket in buckets(self._folder) if bucket.span >= span]
        return there[-1] if there else Bucket(span, 0)

    def _enter(self, bucket: Bucket) -> tuple[Environment, Bucket]:
        """Open a bucket, or the next one where it is damaged; a damaged one is left as it is."""
        while True:
            try:
                return self._opened(bucket), bucket
            except StoreDamaged as error:
                self._report(error)
                bucket = Bucket(bucket.span, bucket.number + 1)

    def _opened(self, bucket: Bucket) -> Environment:
        path = path_of(self._folder, bucket)
        if is_torn(path, self._boot):
            self._unlink(bucket, Gone.UNSAVED)
            path = self._folder / bucket.name
        path.mkdir(mode=0o700, exist_ok=True)
        env = _open(path, readonly=False, create=True)
        self._adopt(path, env)
        (path / self._mark).touch(mode=0o600)
        return env

    def _adopt(self, path: Path, env: Environment) -> None:
        """Flush what killed writers left in the system's cache, and remove their marks."""
        for mark in path.glob(f"written-{self._boot}-*"):
            if not is_locked(self._epochs, int(mark.name.rpartition("-")[2])):
                env.raw.sync(True)
                mark.unlink(missing_ok=True)


def copies(folder: Path, bucket: Bucket, digests: frozenset[bytes], boot: str) -> Iterator[bytes]:
    """Yield the handles of all contents of a bucket that have one of these digests. Raises `StoreError`.

    No commit may name them: contents are written before their commit.
    """
    path = path_of(folder, bucket)
    if is_torn(path, boot) or not is_begun(path):
        return
    with (
        _open(path, readonly=False, create=False) as env,
        translated("read", path),
        env.read() as txn,
        txn.cursor() as cursor,
    ):
        for key, run in cursor:
            records = blocks.unpack(run)
            for n, record in enumerate(records, unpack(key) - len(records) + 1):
                digest = _digest_of(record)
                if digest in digests:
                    yield digest + _encode_place((bucket.span, bucket.number, n, record[0]))


def _digest_of(record: bytes) -> bytes:
    with suppress(zstd.ZstdError, IndexError):
        return sha256(unpack_blob(record).data).digest()
    return b""


class RewriteBusy(StoreError):
    """Another process rewrites buckets."""


@contextmanager
def rewriting(folder: Path) -> Generator[None]:
    """Hold the right to rewrite buckets, which one process has at a time. Raises `RewriteBusy`, `StoreError`.

    Removes what a process that was killed has left: old versions and drafts.
    """
    with ExitStack() as stack:
        with translated("rewrite payloads in", folder):
            descriptor = stack.enter_context(opened(folder))
        if not try_lock(descriptor):
            raise RewriteBusy(
                f"another process purges payloads in {str(folder)!r}; wait until it has ended"
            )
        for left in folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(left, ignore_errors=True)
        sweep(folder)
        yield


class BucketRewrite:
    """A copy of a bucket without some of its contents, which then takes the bucket's place."""

    def __init__(
        self, folder: Path, bucket: Bucket, drop: Container[int], *, expired: str = ""
    ) -> None:
        """`drop` are the numbers of what is left out: purged, or if `expired` is a mark, outlived.

        Raises `StoreError`.
        """
        self._folder, self._bucket, self._drop = folder, bucket, drop
        self._left, self._expired = _EXPIRED if expired else _PURGED, expired
        self._path = path_of(folder, bucket)
        self._draft = folder / f"{_DRAFT}{bucket.name}"
        shutil.rmtree(self._draft, ignore_errors=True)
        self._source = _open(self._path, readonly=False, create=False)
        self._target: Environment | None = None
        self._copied = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._source.close()
        self._end()
        shutil.rmtree(self._draft, ignore_errors=True)

    def copy_some(self) -> bool:
        """Copy about `AT_ONCE` bytes of what was added since the last time; return whether there were any.

        Raises `StoreError`.
        """
        target = self._target
        if target is None:
            target = self._target = open_environment(
                self._draft, readonly=False, durable=False, map_size=MAP_SIZE
            )
        size = 0
        with (
            translated("rewrite", self._path),
            self._source.read() as read,
            read.cursor() as cursor,
            target.write() as txn,
        ):
            found = cursor.set_range(number(self._copied + 1))
            while found and size < AT_ONCE:
                key, run = cursor.item()
                last, records = unpack(key), blocks.unpack(run)
                if not blocks.is_whole(run):
                    raise StoreDamaged(f"the contents up to number {last} are damaged")
                first = last - len(records) + 1
                # What was purged before stays so.
                kept = [
                    self._left if one and n in self._drop else one
                    for n, one in enumerate(records, first)
                ]
                txn.put(key, blocks.pack(kept), append=True)
                size += len(run)
                self._copied = last
                found = cursor.next()
        if not size:
            # All but the rest that comes meanwhile, so that writers wait for little of it in `swap`.
            with translated("rewrite", self._path):
                target.raw.sync(True)
        return size > 0

    def swap(self) -> None:
        """Copy the rest and take the bucket's place. Raises `StoreError`.

        Until this returns, writers of the bucket wait; then they find that theirs is gone. Whoever
        ends this process leaves one of the two in place, or both: then the newer counts.
        """
        with translated("rewrite", self._path), self._source.write():
            while self.copy_some():
                pass
            self._end()
            versions = _versions(self._folder, self._bucket)
            newer = self._folder / f"{self._bucket.name}.{max(versions, default=0) + 1}"
            marks = {mark.name for mark in self._path.glob(f"{_MARK}*")}
            if self._expired:
                marks.add(f"{_MARK}{self._expired}")
            for name in marks:
                (self._draft / name).touch(mode=0o600)
            self._draft.rename(newer)
            sync_path(self._folder)
            retire_older(self._folder, self._bucket)

    def _end(self) -> None:
        """Bring the copy to the disk and close it: this process must not open its file twice."""
        if self._target is not None:
            self._target.raw.sync(True)
            self._target.close()
            self._target = None


def is_marked(folder: Path, bucket: Bucket, mark: str) -> bool:
    """Return whether a bucket lacks what has outlived its age already, by the ages that `mark` names."""
    return (path_of(folder, bucket) / f"{_MARK}{mark}").exists()


def mark(folder: Path, bucket: Bucket, name: str) -> None:
    """Note in a bucket that it lacks what has outlived its age, by the ages that `name` stands for."""
    with suppress(OSError):  # it is gone, or the disk is full: it is looked through again
        (path_of(folder, bucket) / f"{_MARK}{name}").touch(mode=0o600)


def retire_older(folder: Path, bucket: Bucket) -> None:
    """Remove the versions of a bucket that a newer one has replaced. Raises `OSError`."""
    versions = _versions(folder, bucket)
    names = [bucket.name, *(f"{bucket.name}.{version}" for version in versions)][:-1]
    for name in names if versions else ():
        with suppress(FileNotFoundError):
            (folder / name).rename(folder / f"{_GONE}{name}-rewritten")
        shutil.rmtree(folder / f"{_GONE}{name}-rewritten", ignore_errors=True)


def is_rewritable(folder: Path, bucket: Bucket, boot: str) -> bool:
    """Return whether a bucket is there and holds something. Raises `OSError`.

    One that nobody can trust after a crash of the machine is removed: it is unsaved.
    """
    path = path_of(folder, bucket)
    if is_torn(path, boot):
        _mark(folder, bucket, Gone.UNSAVED).mkdir(mode=0o700, exist_ok=True)
        path.rename(folder / f"{_GONE}{path.name}-torn")
        sweep(folder)
    return is_begun(path)


def number_in_bucket(handle: bytes) -> int:
    """Return the number of a content in its bucket; 0 for content that was never put."""
    place = _place(handle)
    return 0 if place is None else place.n
