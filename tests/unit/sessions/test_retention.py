"""`sessions.retention`: payloads are deleted by age, unless a session is held."""

import random
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import msgspec
import pytest

from conformance.store.kit import begin, intent, known, new_id, outcome, put, session
from e2e.stores import process
from turnlog.observe.clock import Clock
from turnlog.observe.events import LogEvent, RetentionAnnounced, RetentionEnforced
from turnlog.sessions.errors import NotHeldError
from turnlog.sessions.payloads import PayloadState, read_payload
from turnlog.sessions.retention.gc import Retention, collect, expired_buckets
from turnlog.sessions.retention.holds import hold, release
from turnlog.sessions.retention.housekeeping import EVERY, NOTICE, Housekeeper
from turnlog.sessions.state.backlog import BUSY
from turnlog.store.base import Blob, SessionRef
from turnlog.store.lmdb import DAY, LmdbStore
from turnlog.store.log.keys import NOTES_CHECK, TOLD
from turnlog.store.log.tables import NAMES
from turnlog.store.read.held_content import HeldContent

SECOND = 10**9
TODAY = 1_795_737_600 * 10**9
WEEK = Retention(payloads=7 * 86_400.0)


class Days:
    """A store in which a test writes on days that it chooses, counted from `TODAY`."""

    def __init__(self, data: Path, *, limit: int = 1 << 30) -> None:
        self.data = data
        self.now = TODAY
        self.monotonic = 0
        self.events: list[LogEvent] = []
        self.store = LmdbStore.open(data, now=lambda: self.now, limit=limit)
        self.clock = Clock(wall=lambda: self.now, monotonic=lambda: self.monotonic)
        self.thread = ThreadPoolExecutor(1)
        self.keeper = self.new_keeper()

    def new_keeper(self) -> Housekeeper:
        return Housekeeper(self.store, WEEK, self.clock, self, self.thread)

    tells_content = False

    def wants(self, kind: type[LogEvent]) -> bool:
        return True

    def emit(self, event: LogEvent) -> None:
        self.events.append(event)

    async def call(self, ref: SessionRef, day: int, content: bytes) -> None:
        """Write a call with its input and output on a day."""
        self.now = TODAY + day * DAY
        call = new_id(self.now)
        ticket = await begin(
            self.store, intent(ref, call, at=self.now, blob=Blob(b"in " + content))
        )
        await put(self.store, outcome(ref, call, ticket, at=self.now, blob=Blob(content)))
        self.now = TODAY

    def kept(self, ref: SessionRef) -> list[PayloadState]:
        """Return what became of the outputs of a session."""
        with self.store.view() as view:
            bodies = [commit.body for commit in view.commits(known(ref))]
            handles = [body.output_blob for body in bodies if body and body.output_blob]
            return [read_payload(view, handle).kept for handle in handles]

    async def collect(self, retention: Retention = WEEK) -> list[str]:
        """Delete what is due; return the names of what was."""
        due = expired_buckets(self.store.view(), retention, self.now, HeldContent())
        return [line.name async for line in collect(self.store, due)]

    async def look(self, passed: int = EVERY) -> list[LogEvent]:
        """Let the proxy look when so much time, in ns, has passed; return what it logged."""
        self.now += passed
        self.monotonic += passed
        self.events = []
        await self.keeper.look()
        return self.events

    async def close(self) -> None:
        self.thread.shutdown()
        await self.store.close()


@pytest.fixture
async def days(tmp_path: Path) -> AsyncIterator[Days]:
    made = Days(tmp_path / "data")
    yield made
    await made.close()


def name(day: int) -> str:
    return f"{TODAY // DAY + day}-0"


def forget_notice(data: Path) -> None:
    """Make a store as one of a version that deleted nothing by age."""
    with (
        lmdb.open(str(data / "log"), max_dbs=len(NAMES), map_size=1 << 40) as env,
        env.begin(write=True) as txn,
    ):
        meta = env.open_db(b"meta", txn=txn, create=False)
        txn.delete(TOLD, db=meta)
        txn.delete(NOTES_CHECK, db=meta)


def verdicts(data: Path) -> list[str]:
    done = process("verify", "--json", "--data", str(data))
    return [msgspec.json.decode(line)["verdict"] for line in done.stdout.splitlines()]


async def test_payloads_go_by_the_day_once_all_of_it_is_too_old(days: Days) -> None:
    ref = session("a")
    for day in (-9, -8, -7, 0):
        await days.call(ref, day, b"day %d" % day)

    assert await days.collect() == [name(-9), name(-8)]

    expired, whole = PayloadState.EXPIRED, PayloadState.WHOLE
    assert days.kept(ref) == [expired, expired, whole, whole]
    assert await days.collect() == []
    assert verdicts(days.data) == ["ok"]
    assert not list((days.data / "blobs").glob("gone-*"))


async def test_payloads_that_are_kept_forever_stay(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -4000, b"old")

    assert await days.collect(Retention(payloads=float("inf"))) == []
    assert days.kept(ref) == [PayloadState.WHOLE]


async def test_a_day_with_content_of_a_held_session_stays_until_the_release(days: Days) -> None:
    held, other = session("held"), session("other")
    await days.call(held, -20, b"of the held one")
    await days.call(other, -20, b"of another")
    await days.call(other, -10, b"of another, later")
    await hold(days.store, "held", "a lawsuit", days.clock)

    assert await days.collect() == [name(-10)]
    assert days.kept(other) == [PayloadState.WHOLE, PayloadState.EXPIRED]
    assert days.kept(held) == [PayloadState.WHOLE]
    with days.store.view() as view:
        assert view.held() == {known(held)}

    await release(days.store, "held", "", days.clock)

    assert await days.collect() == [name(-20)]
    assert days.kept(held) == [PayloadState.EXPIRED]
    with days.store.view() as view:
        assert not view.held()


async def test_what_a_held_session_adds_is_held_too(days: Days) -> None:
    ref, holds = session("a"), HeldContent()
    await days.call(ref, -20, b"first")
    await hold(days.store, "a", "", days.clock)
    assert len(holds.buckets(days.store.view())) == 1
    await days.call(ref, 0, b"second")

    assert len(holds.buckets(days.store.view())) == 2
    await release(days.store, "a", "", days.clock)
    assert not holds.buckets(days.store.view())


async def test_only_a_held_session_can_be_released(days: Days) -> None:
    await days.call(session("a"), 0, b"content")

    with pytest.raises(NotHeldError, match="'a' is not held"):
        await release(days.store, "a", "", days.clock)


async def test_a_lack_of_room_spares_held_content(tmp_path: Path) -> None:
    days = Days(tmp_path / "data", limit=12 << 20)
    held, other = session("held"), session("other")
    await days.call(held, -3, bytes(range(256)) * 400)
    await hold(days.store, "held", "", days.clock)

    for number in range(60):
        content = random.Random(number).randbytes(300_000)
        await days.call(other, number // 20 - 2, content)
        await days.store.flush()

    assert days.kept(held) == [PayloadState.WHOLE]
    assert PayloadState.TRIMMED in days.kept(other)
    await days.close()


async def test_a_proxy_deletes_what_is_due_while_it_has_little_to_do(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -20, b"old")

    assert await days.look() == [RetentionEnforced(buckets=1, size=20480)]
    assert days.kept(ref) == [PayloadState.EXPIRED]
    assert await days.look() == []


async def test_a_proxy_deletes_nothing_while_many_calls_are_made(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -20, b"old")
    for _ in range(BUSY):
        days.store.submit(intent(ref, new_id(days.now)), wait=False)
    await days.store.flush()

    assert await days.look(passed=SECOND) == []
    assert days.kept(ref) == [PayloadState.WHOLE]
    assert await days.look(passed=SECOND) != []
    assert days.kept(ref) == [PayloadState.EXPIRED]


async def test_in_a_store_from_before_nothing_is_deleted_until_a_week_after_it_was_said(
    tmp_path: Path,
) -> None:
    first = Days(tmp_path / "data")
    ref = session("a")
    await first.call(ref, -20, b"old")
    await first.call(ref, -3, b"old by then")
    await first.close()
    forget_notice(first.data)
    days = Days(first.data)

    (announced,) = await days.look()

    assert isinstance(announced, RetentionAnnounced)
    assert announced.buckets == 2
    assert announced.begins == "2026-12-04T01:00:00.000000Z"
    assert await days.look() == []
    days.keeper = days.new_keeper()  # the proxy was started again
    assert await days.look() == [announced]
    assert days.kept(ref) == [PayloadState.WHOLE, PayloadState.WHOLE]
    assert verdicts(days.data) == ["ok"]

    (enforced,) = await days.look(NOTICE)

    assert isinstance(enforced, RetentionEnforced)
    assert days.kept(ref) == [PayloadState.EXPIRED, PayloadState.EXPIRED]
    await days.close()


async def test_a_notice_that_was_changed_is_found(tmp_path: Path) -> None:
    days = Days(tmp_path / "data")
    await days.call(session("a"), 0, b"content")
    await days.close()
    with (
        lmdb.open(str(days.data / "log"), max_dbs=len(NAMES), map_size=1 << 40) as env,
        env.begin(write=True) as txn,
    ):
        txn.put(TOLD, bytes(7) + b"\2", db=env.open_db(b"meta", txn=txn, create=False))

    assert verdicts(days.data) == ["ok", "damaged"]
