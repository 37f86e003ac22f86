"""How long content is kept, which of a store has outlived that, and its deletion step by step."""

import math
from collections.abc import AsyncIterator, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from turnlog.core.text.units import Age, timestamp
from turnlog.store import blobs
from turnlog.store.blobs import Bucket
from turnlog.store.lmdb import DAY, LmdbStore
from turnlog.store.read.held_content import HeldContent
from turnlog.store.read.view import View

_NS: Final = 1_000_000_000


class SessionRetention(StrEnum):
    """How long the headers of commits are kept."""

    FOREVER = "forever"


class Retention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ages in seconds after which content is deleted."""

    payloads: Age = 604_800.0
    """Age at which inputs and outputs are deleted, a day of them at a time."""
    bodies: Age = 7_776_000.0
    """Age at which all other content of commits is deleted."""
    sessions: SessionRetention = SessionRetention.FOREVER
    """Headers are a hash chain, which has no holes."""


class GcItem(StrEnum):
    """The kinds of what is deleted."""

    PAYLOADS = "payloads"
    """A bucket of inputs and outputs."""


class GcFate(StrEnum):
    """The fate of content that has outlived its retention."""

    DUE = "due"
    DELETED = "deleted"
    HELD = "held"
    """It stays: a session that is held has content in it."""


class GcLine(Struct, frozen=True, kw_only=True):
    """One line of `turnlog gc --json`."""

    what: GcItem
    name: str
    """The bucket."""
    since: str
    """When the oldest of it was written, RFC 3339, UTC."""
    until: str
    bytes: int
    fate: GcFate


class ExpiredBucket(Struct, frozen=True):
    """A bucket of payloads that has outlived its retention."""

    bucket: Bucket
    size: int
    held: bool

    def line(self, fate: GcFate) -> GcLine:
        """Return it as a line of the report."""
        return GcLine(
            what=GcItem.PAYLOADS,
            name=self.bucket.name,
            since=timestamp(self.bucket.span * DAY),
            until=timestamp((self.bucket.span + 1) * DAY),
            bytes=self.size,
            fate=GcFate.HELD if self.held else fate,
        )


def expired_buckets(
    view: View, retention: Retention, now: int, holds: HeldContent
) -> list[ExpiredBucket]:
    """Return the buckets whose content is all older than is kept; closes the view.

    Raises `StoreError`.
    """
    folder = view.data / "blobs"
    found = list(_older(folder, retention.payloads, now))
    held = holds.buckets(view) if found else frozenset[Bucket]()
    return [ExpiredBucket(b, blobs.size(folder, b), b in held) for b in found]


def _older(folder: Path, age: float, now: int) -> Iterator[Bucket]:
    if age == math.inf:
        return
    before = now - int(age * _NS)
    for bucket in blobs.buckets(folder):
        if (bucket.span + 1) * DAY <= before:
            yield bucket


async def collect(store: LmdbStore, due: Iterable[ExpiredBucket]) -> AsyncIterator[GcLine]:
    """Delete expired buckets that are not held, and yield each once it is deleted.

    Each is a step of its own: what ends this process leaves no step half done. Raises `StoreError`.
    """
    for one in due:
        if not one.held:
            await store.expire_bucket(one.bucket)
            yield one.line(GcFate.DELETED)
