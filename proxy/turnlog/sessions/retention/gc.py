"""Which content of a store has outlived its retention."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct, structs

from turnlog.core import ids
from turnlog.core.text.units import timestamp
from turnlog.sessions.overview import names_of
from turnlog.store import blobs
from turnlog.store.blobs import Bucket
from turnlog.store.lmdb import DAY
from turnlog.store.read.held_content import HeldContent
from turnlog.store.read.view import View

from .ages import Ages, Retention

_NS: Final = 1_000_000_000
_PAGE: Final = 4096
_OUTLIVED, _KEPT = 1, 2


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
    server: str = ""
    """The server whose calls alone are meant, because a rule gives them an age of their own."""
    fate: GcFate


def purge_line(session: bytes, fate: GcFate) -> GcLine:
    """Return the line of the report about a purge that is not done."""
    name = ids.to_text(session)
    return GcLine(what=GcItem.PURGE, name=name, since="", until="", bytes=0, commits=0, fate=fate)


class ExpiredNumbers:
    """The numbers of payloads in a bucket that have outlived their age for all calls that they came with."""

    # A byte for each: a set would take 90 for each of a day's payloads.
    def __init__(self) -> None:
        self._pages: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(_PAGE))

    def add(self, number: int, *, has_outlived: bool) -> None:
        """Add a payload of one call."""
        page, place = divmod(number, _PAGE)
        self._pages[page][place] |= _OUTLIVED if has_outlived else _KEPT

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        page, place = divmod(number, _PAGE)
        return page in self._pages and self._pages[page][place] == _OUTLIVED

    def __len__(self) -> int:
        return sum(page.count(_OUTLIVED) for page in self._pages.values())

    @property
    def kept(self) -> int:
        """Number of the other payloads."""
        return sum(_PAGE - page.count(0) for page in self._pages.values()) - len(self)


class ExpiredBucket(Struct, frozen=True, kw_only=True):
    """A bucket of payloads that has outlived its retention, or some of whose payloads have."""

    bucket: Bucket
    size: int
    """Bytes; where only some go, an estimate by their number."""
    held: bool
    numbers: ExpiredNumbers | None = None
    """Those that go; `None` for all."""
    mark: str = ""
    """Names the ages by which `numbers` were found."""
    seen: int = 0
    """Position of the newest commit that was looked at."""

    @property
    def has_content(self) -> bool:
        """Whether any content goes."""
        return self.numbers is None or bool(self.numbers)

    def line(self, fate: GcFate) -> GcLine:
        """Return it as a line of the report."""
        return GcLine(
            what=GcItem.PAYLOADS,
            name=self.bucket.name,
            since=timestamp(self.bucket.span * DAY),
            until=timestamp((self.bucket.span + 1) * DAY),
            bytes=self.size,
            commits=0,
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
    commits: int
    """Number of commits whose bodies they are."""
    begun: bool = False
    """Whether a `redact` commit says already that they are gone."""
    server: str = ""
    """The server whose calls alone are meant; empty for all commits."""

    @property
    def has_content(self) -> bool:
        """Whether any content goes."""
        return self.commits > 0

    def line(self, fate: GcFate, size: int = 0) -> GcLine:
        """Return it as a line of the report."""
        return GcLine(
            what=GcItem.BODIES,
            name=ids.to_text(self.session),
            since=timestamp(self.since_at),
            until=timestamp(self.until_at),
            bytes=size,
            commits=self.commits,
            server=self.server,
            fate=GcFate.HELD if self.held else fate,
        )


Expired = ExpiredBucket | ExpiredBodies


def expired(view: View, retention: Retention, now: int, holds: HeldContent) -> list[Expired]:
    """Return what has outlived its retention. Raises `StoreError`."""
    bodies = list(_bodies(view, retention, now))
    found = list(_buckets(view, retention, now))
    held = holds.buckets(view) if found else frozenset[Bucket]()
    return [
        *(structs.replace(one, held=True) if one.bucket in held else one for one in found),
        *bodies,
    ]


def due_lines(due: Iterable[Expired], purges: Iterable[bytes]) -> list[GcLine]:
    """Return the lines of the report about what is due, and about purges that are not done."""
    lines = [one.line(GcFate.DUE) for one in due if one.has_content]
    return lines + [purge_line(session, GcFate.DUE) for session in purges]


def _buckets(view: View, retention: Retention, now: int) -> Iterator[ExpiredBucket]:
    ages, folder = retention.payload_ages(), view.data / "blobs"
    partly: dict[Bucket, str] = {}
    for bucket in blobs.buckets(folder):
        age = (now - (bucket.span + 1) * DAY) / _NS
        if age >= ages.longest:
            yield ExpiredBucket(bucket=bucket, size=blobs.size(folder, bucket), held=False)
        elif age >= ages.shortest and not blobs.is_marked(folder, bucket, mark := _mark(ages, age)):
            partly[bucket] = mark
    if partly:
        yield from _parts(view, retention, now, partly)


def _mark(ages: Ages, age: float) -> str:
    """Return a name for what has outlived its age in a bucket of some age: it changes with the rules."""
    passed = [one for one in (*(each for _, each in ages.by_rule), ages.otherwise) if one <= age]
    said = (ages.by_rule, ages.otherwise, passed)
    return blake2b(msgspec.msgpack.encode(said), digest_size=8).hexdigest()


def _parts(
    view: View, retention: Retention, now: int, partly: Mapping[Bucket, str]
) -> Iterator[ExpiredBucket]:
    """Yield the buckets of which only some payloads have outlived their retention."""
    found = {bucket: ExpiredNumbers() for bucket in partly}
    by_session: dict[bytes, Ages] = {}
    for bucket, number, session, server in view.payload_owners(frozenset(partly)):
        if (ages := by_session.get(session)) is None:
            ages = by_session[session] = retention.payload_ages(_names(view, session))
        has_outlived = (now - (bucket.span + 1) * DAY) / _NS >= ages.of(server)
        found[bucket].add(number, has_outlived=has_outlived)
    folder = view.data / "blobs"
    for bucket, mark in partly.items():
        goes, size = found[bucket], blobs.size(folder, bucket)
        if goes and not goes.kept:
            yield ExpiredBucket(bucket=bucket, size=size, held=False)
            continue
        yield ExpiredBucket(
            bucket=bucket,
            size=size * len(goes) // max(1, len(goes) + goes.kept),
            held=False,
            numbers=goes,
            mark=mark,
            seen=view.last,
        )


def _names(view: View, session: bytes) -> list[str]:
    row = view.session(session)
    return [ids.to_text(session), *names_of(row.aliases if row else ())]


def _bodies(view: View, retention: Retention, now: int) -> Iterator[ExpiredBodies]:
    before = _before(retention.body_ages().shortest, now)
    if not before:
        return
    held, purges = view.held(), view.purges()
    for session, first, head in view.opened_before(before):
        if session in purges:
            continue  # its bodies name the payloads that are still to be purged
        names = _names(view, session) if retention.rules else ()
        due = _Due(view, session, head, now, held=session in held)
        yield from _of_session(due, retention.body_ages(names), first)


def _before(age: float, now: int) -> int:
    """Return the time, ns UTC, before which content has outlived an age; 0 for never."""
    # By the day, as payloads: a session is compacted once a day at most.
    return 0 if age == math.inf else (now - int(age * _NS)) // DAY * DAY


class _Due(Struct, frozen=True):
    """Looks for the content of one session that has outlived its retention."""

    view: View
    session: bytes
    head: int
    now: int
    held: bool

    def newest(self, age: float) -> int:
        """Return the newest commit that has outlived an age; the first if none has."""
        written = partial(self.view.written_at, self.session)
        return bisect_left(range(1, self.head + 1), _before(age, self.now), key=written)

    def bodies(
        self, after: int, until: int, *, commits: int = 0, begun: bool = False, server: str = ""
    ) -> ExpiredBodies:
        view, session = self.view, self.session
        return ExpiredBodies(
            session=session,
            after=after,
            until=until,
            since_at=view.written_at(session, after + 1),
            until_at=view.written_at(session, until),
            held=self.held,
            commits=commits or until - after,
            begun=begun,
            server=server,
        )


def _of_session(due: _Due, ages: Ages, first: int) -> Iterator[ExpiredBodies]:
    view, session = due.view, due.session
    until = due.newest(ages.longest)
    if ages.longest > ages.shortest:
        # The newest first: one commit with the state is enough for all of them.
        found = sorted(_of_servers(due, ages, until), key=lambda one: one.until, reverse=True)
        yield from found
    # A fork begins behind the commit of its parent.
    earlier, redacted = (max(until, first - 1) for until in view.redacted_until(session))
    if not view.is_erased(session, earlier, redacted):
        # A process ended before it had erased what its redaction says is gone.
        yield due.bodies(earlier, redacted, begun=True)
    if until > redacted and not view.is_erased(session, redacted, until):
        yield due.bodies(redacted, until)


def _of_servers(due: _Due, ages: Ages, after: int) -> Iterator[ExpiredBodies]:
    """Yield what is due of single servers' calls behind the commits that are due as a whole."""
    untils: dict[str, int] = {}
    found: defaultdict[str, list[int]] = defaultdict(list)
    newest = due.newest(ages.shortest)
    for seq, server in due.view.erasable_of_servers(due.session, after, newest):
        if server not in untils:
            untils[server] = due.newest(ages.of(server))
        if seq <= untils[server]:
            found[server].append(seq)
    redacted = due.view.redacted_of_servers(due.session)
    for server, seqs in found.items():
        begun = redacted.get(server, -1) >= seqs[-1]
        yield due.bodies(seqs[0] - 1, seqs[-1], commits=len(seqs), begun=begun, server=server)
