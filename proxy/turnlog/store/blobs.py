"""Stored inputs and outputs: by their sha256, compressed, in buckets of time.

A bucket is an LMDB environment of its own, unlinked whole when it is old or room is needed. Blobs
are not waited for: after a crash of the machine those of the last seconds may be lost, and a commit
whose blob is missing reads as such. A bucket that was open for writing when the machine went down
cannot be trusted, and is dropped: a mark in it says by whom, and since which start of the machine,
it is written.

    DATA/blobs/<number of the time span>-<n>/{data.mdb, lock.mdb, written-<boot id>-<epoch>}
"""

import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import lmdb
from msgspec import Struct

from .base import Blob, StoreError
from .epochs import lock_epoch
from .folder import close_environment, identity, open_environment
from .tables import Txn

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESS_ABOVE = 1024
"""Bytes; below this compression gains nothing."""
MAP_SIZE = 1 << 40
_LEVEL = 1
_REDACTED, _CUT, _ZSTD = 1, 2, 4
_GONE = "gone-"
"""What a bucket's name begins with while it is removed."""
_NAME = re.compile(r"(\d{1,12})-(\d{1,6})")


class Packed(Struct, frozen=True):
    """A blob as it is stored: a byte of marks, then the content."""

    digest: bytes
    value: bytes


def pack(blob: Blob) -> Packed:
    """Return a blob's key and stored bytes."""
    marks = (_REDACTED if blob.redacted else 0) | (_CUT if blob.cut else 0)
    data = blob.data
    if len(data) > COMPRESS_ABOVE:
        smaller = zstd.compress(data, _LEVEL)
        if len(smaller) < len(data):
            marks |= _ZSTD
            data = smaller
    return Packed(sha256(blob.data).digest(), bytes((marks,)) + data)


def unpack(value: bytes) -> Blob:
    """Return the blob that `pack` packed. Raises `zstd.ZstdError` when it is damaged."""
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


def buckets(folder: Path) -> list[Bucket]:
    """Return the buckets on disk, oldest first."""
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(entry.name) for entry in folder.iterdir())
    return sorted(Bucket(int(m[1]), int(m[2])) for m in found if m)


def size(folder: Path, bucket: Bucket) -> int:
    """Return the bytes that a bucket takes on disk; 0 when it is gone."""
    try:
        return (folder / bucket.name / "data.mdb").stat().st_blocks * 512
    except FileNotFoundError:
        return 0


class BlobReader:
    """Reads blobs from all buckets. Thread-safe."""

    def __init__(self, folder: Path, boot: str, *, readonly: bool) -> None:
        self._folder = folder
        self._boot = boot
        self._readonly = readonly
        self._open: dict[Bucket, tuple[int, lmdb.Environment]] = {}
        """With the `identity` of each."""
        self._lock = threading.Lock()

    def get(self, digest: bytes) -> Blob | None:
        """Return a blob, the newest bucket's first; `None` when it is gone or damaged."""
        value = next(self._values(digest), None)
        return None if value is None else _checked(value, digest)

    def altered(self, digest: bytes) -> bool:
        """Tell whether any bucket holds other content under `digest` than was put there."""
        return any(_checked(value, digest) is None for value in self._values(digest))

    def close(self) -> None:
        """Give all environments back."""
        with self._lock:
            for bucket in list(self._open):
                self._close(bucket)

    def drop(self, bucket: Bucket) -> None:
        """Close a bucket that is going to be unlinked."""
        with self._lock:
            self._close(bucket)

    def _values(self, digest: bytes) -> Iterator[bytes]:
        """Yield what the buckets hold under a digest, the newest first."""
        with self._lock:
            there = buckets(self._folder)
            for bucket in self._open.keys() - set(there):
                self._close(bucket)
        for bucket in reversed(there):
            with self._lock:
                value = self._value(bucket, digest)
            if value is not None:
                yield value

    def _value(self, bucket: Bucket, digest: bytes) -> bytes | None:
        try:
            env = self._environment(bucket)
            if env is None:
                return None
            with env.begin() as txn:
                return txn.get(digest)
        except (lmdb.Error, StoreError):
            # Unlinked under our eyes, or damaged: the content is lost, which readers expect.
            return None

    def _environment(self, bucket: Bucket) -> lmdb.Environment | None:
        path = self._folder / bucket.name
        now = identity(path)
        known = self._open.get(bucket)
        if known and known[0] == now:
            return known[1]
        self._close(bucket)
        if not now or torn(path, self._boot):
            return None
        # Without `create`: a folder that is unlinked just now must not come back.
        env = _open(path, readonly=self._readonly, create=False)
        self._open[bucket] = (now, env)
        return env

    def _close(self, bucket: Bucket) -> None:
        known = self._open.pop(bucket, None)
        if known:
            close_environment(known[1])


def _checked(value: bytes, digest: bytes) -> Blob | None:
    try:
        blob = unpack(value)
    except (zstd.ZstdError, IndexError):
        return None
    return blob if sha256(blob.data).digest() == digest else None


def boot_id() -> str:
    """Return what changes whenever the machine starts; empty where it is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def torn(path: Path, boot: str) -> bool:
    """Tell whether a bucket was open for writing when the machine went down."""
    return any(not mark.name.startswith(f"written-{boot}-") for mark in path.glob("written-*"))


def _open(path: Path, *, readonly: bool, create: bool) -> lmdb.Environment:
    return open_environment(
        path, readonly=readonly, durable=False, create=create, map_size=MAP_SIZE
    )


class BlobWriter:
    """Writes blobs into the bucket of the present. Belongs to the writer's thread."""

    def __init__(self, data: Path, span: int, reader: BlobReader, boot: str, epoch: int) -> None:
        self._folder = data / "blobs"
        self._epochs = data / "epochs"
        self._span = span
        self._reader = reader
        self._boot = boot
        self._epoch = epoch
        self._mark = f"written-{boot}-{epoch}"
        self._bucket: Bucket | None = None
        self._identity = 0
        self._env: lmdb.Environment | None = None

    def write(self, blobs: Iterable[Packed], now: int) -> None:
        """Put blobs into the bucket of `now`. Raises `StoreError`, `OSError`, `lmdb.Error`."""
        env = self._current(now)
        with env.begin(write=True) as txn:
            for blob in blobs:
                if not txn.put(blob.digest, blob.value, overwrite=False):
                    _merge(txn, blob)

    def unlink(self, bucket: Bucket) -> None:
        """Remove a bucket from disk; if it is the present one, another is begun."""
        if bucket == self._bucket:
            self.close()
            self._bucket = Bucket(bucket.span, bucket.number + 1)
        self._reader.drop(bucket)
        path = self._folder / bucket.name
        # In one step: nobody shall open, or add to, what is half removed.
        with suppress(OSError):
            path.rename(path.with_name(f"{_GONE}{bucket.name}-{self._epoch}"))
        for gone in self._folder.glob(f"{_GONE}*"):
            shutil.rmtree(gone, ignore_errors=True)

    def close(self) -> None:
        """Bring the bucket to the disk and close it. Raises `lmdb.Error`, `OSError`."""
        if self._env is None or self._bucket is None:
            return
        env, self._env = self._env, None
        try:
            if identity(self._path) == self._identity:
                env.sync(True)
                (self._path / self._mark).unlink(missing_ok=True)
        finally:
            close_environment(env)

    @property
    def _path(self) -> Path:
        return self._folder / (self._bucket.name if self._bucket else "")

    def _current(self, now: int) -> lmdb.Environment:
        if self._env and self._bucket and identity(self._path) != self._identity:
            # Another process needed the room.
            self._reader.drop(self._bucket)
            self.close()
            self._bucket = None
        bucket = self._wanted(now // self._span)
        if self._env and bucket == self._bucket:
            return self._env
        self.close()
        self._env = self._enter(bucket)
        self._bucket = bucket
        self._identity = identity(self._path)
        return self._env

    def _wanted(self, span: int) -> Bucket:
        if self._bucket and self._bucket.span >= span:
            return self._bucket
        there = [bucket for bucket in buckets(self._folder) if bucket.span >= span]
        return there[-1] if there else Bucket(span, 0)

    def _enter(self, bucket: Bucket) -> lmdb.Environment:
        path = self._folder / bucket.name
        if torn(path, self._boot):
            self.unlink(bucket)
        path.mkdir(mode=0o700, exist_ok=True)
        env = _open(path, readonly=False, create=True)
        self._adopt(path, env)
        (path / self._mark).touch(mode=0o600)
        return env

    def _adopt(self, path: Path, env: lmdb.Environment) -> None:
        """Bring to the disk what killed writers left to the system, and take their marks off."""
        for mark in path.glob(f"written-{self._boot}-*"):
            lock = lock_epoch(self._epochs, int(mark.name.rpartition("-")[2]))
            if lock:
                env.sync(True)
                mark.unlink(missing_ok=True)
                lock.release()


def _merge(txn: Txn, blob: Packed) -> None:
    # The same content once redacted and once not: the stricter mark holds.
    there = txn.get(blob.digest)
    if there and there[0] | blob.value[0] != there[0]:
        txn.put(blob.digest, bytes((there[0] | blob.value[0],)) + there[1:])
