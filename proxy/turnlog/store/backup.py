"""A copy of a store that opens elsewhere, made while other processes write to the store.

LMDB copies each of its files as of one moment. The log comes first: payloads are stored before the
log names them, so the later copies of buckets hold what the log refers to. The copy has a hidden name
until all of it is on disk.
"""

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import Gone
from turnlog.host import boot_id, opened, sync_path, try_lock, whole_file
from turnlog.store.log.environment import open_environment
from turnlog.store.log.tables import NAMES
from turnlog.store.log.translate_errors import translated

from . import blobs, data_folder, definitions
from .base import CopyRefused
from .data_folder import COPIED, KEYS

_DRAFT: Final = ".{}.turnlog-backup"
"""Name of the folder until the copy is whole; one that a killed process left is used again."""


class BackedUp(Struct, frozen=True):
    """The result of a backup."""

    size: int
    """Bytes that it takes on the disk."""
    left_out: list[str]
    """The buckets of payloads that are damaged, each with its first flaw."""


def back_up(data: Path, target: Path, on_part: Callable[[str], None] = lambda _: None) -> BackedUp:
    """Copy the store in folder `data` to `target`, which does not exist yet or is empty.

    `on_part` is called before each part with its name. Blocks. Raises `StoreError`.
    """
    data_folder.check(data)
    data_folder.check_log(data)
    with translated("write the backup", target), _draft_of(data, target) as draft:
        for name in ("log", "blobs", "epochs"):
            (draft / name).mkdir(mode=0o700)
        on_part("the log")
        with open_environment(data / "log", readonly=True, tables=len(NAMES)) as log:
            log.copy(draft / "log")
        left_out = _copy_payloads(data / "blobs", draft / "blobs", on_part)
        on_part("the definitions")
        definitions.copy(data, draft)
        _copy_files(data, draft)
        size = sum(found.stat().st_blocks * 512 for found in draft.rglob("*"))
        on_part("the name")
        draft.rename(target)
        sync_path(target.parent)
    return BackedUp(size, left_out)


@contextmanager
def _draft_of(data: Path, target: Path) -> Generator[Path]:
    """Make an empty folder for the copy, for this process alone."""
    whole, inside = target.resolve(), data.resolve()
    if whole.is_relative_to(inside) or inside.is_relative_to(whole):
        raise CopyRefused(
            f"{str(target)!r} lies in the store, or the store in it; name another folder"
        )
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    if target.exists() or target.is_symlink():
        raise CopyRefused(f"{str(target)!r} is there already; name a new or an empty folder")
    draft = whole.with_name(_DRAFT.format(whole.name))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(mode=0o700, exist_ok=True)
    except (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError) as error:
        why = (error.strerror or str(error)).lower()
        raise CopyRefused(f"cannot make {str(target)!r}: {why}; name another folder") from None
    with opened(draft) as descriptor:
        if not try_lock(descriptor):
            raise CopyRefused(f"another process makes the backup {str(target)!r}; wait for it")
        for entry in draft.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        try:
            yield draft
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def _copy_payloads(source: Path, target: Path, on_part: Callable[[str], None]) -> list[str]:
    """Copy the buckets, and the marks of those that are gone; return what is wrong with those left out."""
    left_out: list[str] = []
    for bucket in blobs.buckets(source):
        on_part(f"payloads {bucket.name}")
        if flaw := blobs.copy_bucket(source, bucket, target, boot_id()):
            left_out.append(f"blobs/{bucket.name}: {flaw}")
    for reason in Gone:
        # Of a bucket that was trimmed meanwhile as well: it may have been copied before.
        for mark in source.glob(f"{reason}-*-*"):
            (target / mark.name).mkdir(mode=0o700, exist_ok=True)
    sync_path(target)
    return left_out


def _copy_files(data: Path, draft: Path) -> None:
    """Copy the small files, the marker of the format last: with it the folder is a store."""
    with suppress(FileNotFoundError):
        shutil.copytree(data / KEYS, draft / KEYS)
    for name in COPIED:
        with suppress(FileNotFoundError):
            content = (data / name).read_bytes()
            with whole_file(draft / name, replace=True) as stream:
                stream.write(content)
