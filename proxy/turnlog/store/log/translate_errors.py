"""Errors of LMDB, of the system and of damaged records, turned into a `StoreError` that says what to do."""

import os
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from errno import (
    EACCES,
    EAGAIN,
    EIO,
    EMFILE,
    ENFILE,
    ENOLCK,
    ENOMEM,
    EOPNOTSUPP,
    EPERM,
    EROFS,
)
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import lmdb
import msgspec

from turnlog.store.base import StoreDamaged, StoreError, StoreFull

_NO_ROOM = ("No space left", "File too large", "Disk quota exceeded")
_SHORT_WRITE = "Input/output error"
_ADVICE = {
    EACCES: "run as the user who owns the folder",
    EPERM: "run as the user who owns the folder",
    EROFS: "the disk can only be read: mount it for writing, or name another folder with --data",
    EIO: "the disk fails: check it, and restore a backup to another one",
    ENOMEM: "memory or address space is limited (ulimit -v, the container's memory): raise that limit; "
    "the store's files are mapped, and take address space of 16 TiB",
    EAGAIN: "a limit on processes, threads or locks is reached (ulimit -u, pids of the container): raise it, "
    "or try again later",
    EMFILE: "too many files are open: raise the limit (ulimit -n)",
    ENFILE: "too many files are open on this machine: raise fs.file-max, or end some programs",
    ENOLCK: "the file system cannot lock files: name a folder on a local disk with --data",
    EOPNOTSUPP: "the file system lacks what a store needs: name a folder on a local disk with --data",
}
"""Advice by error number of the system."""
_FULL = 1 << 20
"""Bytes: with less free space than this, a short write means a full disk."""
_DAMAGE = (msgspec.DecodeError, UnicodeDecodeError, struct.error)
"""Errors from reading damaged records or indexes."""
_NO_STORE = (lmdb.VersionMismatchError, lmdb.InvalidError, lmdb.CorruptedError)
FAILURES = (OSError, lmdb.Error, *_DAMAGE)
"""Errors of using a store that are no bugs; callers get a `StoreError` instead."""


@contextmanager
def translated(doing: str, path: Path) -> Generator[None]:
    """Turn what LMDB, the system and damaged records raise into a `StoreError`."""
    try:
        yield
    except FAILURES as error:
        raise explained(doing, path, error) from error


def explained(doing: str, path: Path, error: Exception) -> StoreError:
    """Return a `StoreError` that says what to do about one of `FAILURES`."""
    if no_room := _no_room(error, path):
        return StoreFull(f"cannot {doing} {str(path)!r}: {no_room}")
    kind = StoreDamaged if isinstance(error, _NO_STORE) else StoreError
    return kind(f"cannot {doing} {str(path)!r}: {_said(error, path)}; {_advice(error)}")


def _said(error: Exception, path: Path) -> str:
    """Return the text of an error without its path."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    reason = error.strerror.lower()
    named = error.filename is not None and str(error.filename) != str(path)
    return f"{reason}: {str(error.filename)!r}" if named else reason


def _no_room(error: Exception, path: Path) -> str:
    """Return the text for an error caused by a full disk; empty for other errors."""
    said = str(error) if isinstance(error, (OSError, lmdb.Error)) else ""
    if any(words in said for words in _NO_ROOM):
        return f"{said}; free space on the disk"
    if not isinstance(error, lmdb.Error) or _SHORT_WRITE not in said:
        return ""
    # Less was written than LMDB asked for, and the system did not say why.
    full = "the disk is full; free space on the disk"
    return full if _free(path) < _FULL else f"{said}; free space on the disk, or check it"


def _free(path: Path) -> int:
    try:
        disk = os.statvfs(path)
    except OSError:
        return _FULL
    return disk.f_bavail * disk.f_frsize


def _advice(error: Exception) -> str:
    match error:
        case _ if isinstance(error, _DAMAGE):
            return "a record or an index is damaged: run `turnlog verify`"
        case FileExistsError() | NotADirectoryError():
            return "name a folder with --data"
        case FileNotFoundError():
            return "give the data folder of a store with --data"
        case lmdb.ReadersFullError():
            return "too many readers are open: end some of them"
        case _ if isinstance(error, _NO_STORE):
            return "the file is damaged or no store: restore it from a backup"
        case lmdb.PanicError():
            return "restart turnlog: the disk refused a write that cannot be taken back"
        case _:
            return _advice_by_code(error)


def _advice_by_code(error: Exception) -> str:
    """Return the advice for an error number of the system, found in any error that carries it."""
    for code, advice in _ADVICE.items():
        # LMDB's errors carry no number, only its text.
        if getattr(error, "errno", None) == code or os.strerror(code) in str(error):
            return advice
    return "check the disk and the folder's permissions"


class _Reading(Protocol):
    @property
    def data(self) -> Path: ...


S = TypeVar("S", bound=_Reading)
P = ParamSpec("P")
R = TypeVar("R")


def guarded(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Return a method that raises `StoreError` as inside `translated`, in a tenth of the time."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except FAILURES as error:
            raise explained("read", self.data, error) from error

    return call


def guarded_iterator(
    method: Callable[Concatenate[S, P], Iterator[R]],
) -> Callable[Concatenate[S, P], Iterator[R]]:
    """Return a generator method with `translated` around all that it does."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        with translated("read", self.data):
            yield from method(self, *args, **kwargs)

    return call
