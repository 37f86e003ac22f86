"""Retention: how long content is kept, and which content of a store is older than that."""

import math
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from turnlog.core import ids
from turnlog.core.text.units import Age, duration_text, timestamp
from turnlog.store import blobs
from turnlog.store.base import StoreError
from turnlog.store.blobs import Bucket
from turnlog.store.data_folder import whole_file
from turnlog.store.lmdb import DAY
from turnlog.store.read.held_content import HeldContent
from turnlog.store.read.view import View

_NS: Final = 1_000_000_000
_NOTE: Final = "retention"


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

    def text(self) -> str:
        """Return the ages as a user writes them."""
        return f"payloads {_age_text(self.payloads)}, bodies {_age_text(self.bodies)}"


class _NotedAges(Struct, frozen=True, kw_only=True):
    """`Retention` in the data folder; `None` for forever."""

    payloads: float | None
    bodies: float | None


def write_retention(data: Path, retention: Retention) -> None:
    """Write the retention of a proxy into its data folder, for `turnlog gc`. Raises `OSError`."""
    ages = [None if a == math.inf else a for a in (retention.payloads, retention.bodies)]
    noted = _NotedAges(payloads=ages[0], bodies=ages[1])
    # Whole or not at all: of a part other ages would be read.
    with whole_file(data / _NOTE, replace=True) as stream:
        stream.write(msgspec.json.encode(noted) + b"\n")


def noted_retention(data: Path) -> Retention | None:
    """Return the retention of the proxy that opened a data folder last, if there was one.

    Raises `StoreError` for a note that cannot be read.
    """
    note = data / _NOTE
    try:
        noted = msgspec.json.decode(note.read_bytes(), type=_NotedAges)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(
            f"cannot read {str(note)!r} ({error}); start the proxy once, or give --config"
        ) from None
    ages = [math.inf if age is None else age for age in (noted.payloads, noted.bodies)]
    return Retention(payloads=ages[0], bodies=ages[1])


def _age_text(seconds: float) -> str:
    return "forever" if seconds == math.inf else duration_text(seconds)


class GcItem(StrEnum):
    """The kinds of what is deleted."""

    PAYLOADS = "payloads"
    """A bucket of inputs and outputs."""
    BODIES = "bodies"
    """All other content of a session's commits, up to one of them."""
    PURGE = "purge"
    """What is left to do of a purge that was begun."""


class GcFate(StrEnum):
    """The fate of content that has outlived its retention."""

    DUE = "due"
    DELETED = "deleted"
    HELD = "held"
    """It stays: a session that is held has content in it."""
    TOO_LARGE = "too_large"
    """It stays: the session's state is too large for a commit, and cannot be computed without the bodies."""
    PENDING = "pending"
    """Only the log's file is left to be rewritten, and another process has it open."""


class GcLine(Struct, frozen=True, kw_only=True):
    """One line of `turnlog gc --json`."""

    what: GcItem
    name: str
    """The bucket or the session."""
    since: str
    """When the oldest of it was written, RFC 3339, UTC."""
    until: str
    bytes: int
    """On the disk; of bodies those that were deleted."""
    commits: int
    """Number of commits whose bodies it names; 0 for payloads."""
    fate: GcFate


def purge_line(session: bytes, fate: GcFate) -> GcLine:
    """Return the line of the report about a purge that is not done."""
    name = ids.to_text(session)
    return GcLine(what=GcItem.PURGE, name=name, since="", until="", bytes=0, commits=0, fate=fate)


class ExpiredBucket(Struct, frozen=True):
    """A bucket of payloads that has outlived its retention."""

    bucket: Bucket
    size: int
    held: bool

    @property
    def commits(self) -> int:
        """Number of commits whose bodies it is."""
        return 0

    def line(self, fate: GcFate) -> GcLine:
        """Return it as a line of the report."""
        return GcLine(
            what=GcItem.PAYLOADS,
            name=self.bucket.name,
            since=timestamp(self.bucket.span * DAY),
            until=timestamp((self.bucket.span + 1) * DAY),
            bytes=self.size,
            commits=self.commits,
            fate=GcFate.HELD if self.held else fate,
        )


class ExpiredBodies(Struct, frozen=True, kw_only=True):
    """Bodies of a session that have outlived their retention: of seqs in (`after`, `until`]."""

    session: bytes
    after: int
    until: int
    since_at: int
    """ns UTC, as `until_at`."""
    until_at: int
    held: bool
    begun: bool = False
    """Whether a `redact` commit says already that they are gone."""

    @property
    def commits(self) -> int:
        """Number of commits whose bodies they are."""
        return self.until - self.after

    def line(self, fate: GcFate, size: int = 0) -> GcLine:
        """Return it as a line of the report."""
        return GcLine(
            what=GcItem.BODIES,
            name=ids.to_text(self.session),
            since=timestamp(self.since_at),
            until=timestamp(self.until_at),
            bytes=size,
            commits=self.commits,
            fate=GcFate.HELD if self.held else fate,
        )


Expired = ExpiredBucket | ExpiredBodies


def expired(view: View, retention: Retention, now: int, holds: HeldContent) -> list[Expired]:
    """Return what has outlived its retention; closes the view. Raises `StoreError`."""
    with view:
        bodies = list(_bodies(view, retention.bodies, now))
        folder = view.data / "blobs"
        found = list(_older(folder, retention.payloads, now))
        held = holds.buckets(view) if found else frozenset[Bucket]()
        return [*(ExpiredBucket(b, blobs.size(folder, b), b in held) for b in found), *bodies]


def _older(folder: Path, age: float, now: int) -> Iterator[Bucket]:
    if age == math.inf:
        return
    before = now - int(age * _NS)
    for bucket in blobs.buckets(folder):
        if (bucket.span + 1) * DAY <= before:
            yield bucket


def _bodies(view: View, age: float, now: int) -> Iterator[ExpiredBodies]:
    if age == math.inf:
        return
    # By the day, as payloads: a session is compacted once a day at most.
    before = (now - int(age * _NS)) // DAY * DAY
    held, purges = view.held(), view.purges()
    for session, first, head in view.opened_before(before):
        if session in purges:
            continue  # its bodies name the payloads that are still to be purged
        # A fork begins behind the commit of its parent.
        earlier, redacted = (max(until, first - 1) for until in view.redacted_until(session))
        if not view.is_erased(session, earlier, redacted):
            # A process ended before it had erased what its redaction says is gone.
            yield _due(view, session, earlier, redacted, held=False, begun=True)
        until = _newest_before(view, session, head, before)
        if until > redacted and not view.is_erased(session, redacted, until):
            yield _due(view, session, redacted, until, held=session in held)


def _due(
    view: View, session: bytes, after: int, until: int, *, held: bool, begun: bool = False
) -> ExpiredBodies:
    return ExpiredBodies(
        session=session,
        after=after,
        until=until,
        since_at=view.written_at(session, after + 1),
        until_at=view.written_at(session, until),
        held=held,
        begun=begun,
    )


def _newest_before(view: View, session: bytes, head: int, before: int) -> int:
    """Return the newest commit of a session that was written before a time; the first if none was."""
    low, high = 0, head
    while low < high:
        middle = (low + high + 1) // 2
        if view.written_at(session, middle) < before:
            low = middle
        else:
            high = middle - 1
    return low
