"""`sessions.retention`: payloads are deleted by age, unless a session is held."""

import asyncio
import math
import random
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import lmdb
import msgspec
import pytest
from msgspec import structs

from conformance.store.kit import begin, intent, known, new_id, outcome, put, session
from e2e.stores import process
from kit.clients import wait_until
from kit.holding import nobody_writes
from turnlog.core import ids
from turnlog.core.canon import input_hash
from turnlog.core.commit import CommitBody, Facts
from turnlog.core.kinds import CommitKind, Effect, Gone, NoteKind, Rung
from turnlog.core.lifecycle import Action, LifecycleContent, SessionStage
from turnlog.core.note import Decision, encode_note
from turnlog.core.state.session_state import state_hash
from turnlog.observe.clock import Clock
from turnlog.observe.events import LogEvent, RetentionAnnounced, RetentionEnforced
from turnlog.redaction.redact import Redactor
from turnlog.sessions.call_detail import commit_entry
from turnlog.sessions.control.effects import EffectLedger, WantedEffect
from turnlog.sessions.control.fork import ForkOrder, fork, fork_draft
from turnlog.sessions.control.rewind import RewindOrder, rewind
from turnlog.sessions.control.rewind_plan import rewind_plan
from turnlog.sessions.control.writer import ControlRequest, ControlWriter
from turnlog.sessions.errors import CompactedError, NotHeldError, OperationError
from turnlog.sessions.notes import NoteWriter
from turnlog.sessions.payloads import PayloadState, read_payload
from turnlog.sessions.retention.ages import (
    Retention,
    RetentionRule,
    noted_retention,
    write_retention,
)
from turnlog.sessions.retention.collect import Collector, redact_draft, transactions
from turnlog.sessions.retention.gc import ExpiredBodies, GcFate, GcItem, GcLine, expired
from turnlog.sessions.retention.housekeeping import EVERY, EVERY_BY_RULES, NOTICE, Housekeeper
from turnlog.sessions.retention.purge import PurgeOrder, Purger, purge_plan
from turnlog.sessions.state.backlog import BUSY
from turnlog.sessions.state.state_at import head_of, saved_states, state_at
from turnlog.store.base import Blob, Draft, SessionRef, TransitionRefused
from turnlog.store.blobs import Bucket, BucketRewrite, number_in_bucket
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
        self.noter = NoteWriter(self.store, Redactor(), self.clock)
        self.thread = ThreadPoolExecutor(1)
        self.saved = saved_states(data)
        self.keeper = self.new_keeper()

    def new_keeper(self, retention: Retention = WEEK) -> Housekeeper:
        return Housekeeper(self.store, self.saved, retention, self.clock, self, self.thread)

    tells_content = False

    def wants(self, kind: type[LogEvent]) -> bool:
        return True

    def emit(self, event: LogEvent) -> None:
        self.events.append(event)

    async def call(
        self, ref: SessionRef, day: int, content: bytes, *, server: str = "files"
    ) -> None:
        """Write a call with its input and output on a day."""
        self.now = TODAY + day * DAY
        call = new_id(self.now)
        given = intent(ref, call, at=self.now, server=server, blob=Blob(b"in " + content))
        ticket = await begin(self.store, given)
        returned = outcome(ref, call, ticket, at=self.now, server=server, blob=Blob(content))
        await put(self.store, returned)
        self.now = TODAY

    def kept(self, ref: SessionRef) -> list[PayloadState]:
        """Return what became of the outputs of a session."""
        with self.store.view() as view:
            bodies = [commit.body for commit in view.commits(known(ref))]
            handles = [body.output_blob for body in bodies if body and body.output_blob]
            return [read_payload(view, handle).kept for handle in handles]

    def states(self, ref: SessionRef, first: int = 0) -> list[str]:
        """Return the hash of the state after each commit from one on, or that it was compacted."""
        found: list[str] = []
        with self.store.view() as view:
            for seq in range(first, head_of(view, known(ref)) + 1):
                try:
                    found.append(state_hash(state_at(view, self.saved, known(ref), seq)))
                except CompactedError:
                    found.append("compacted")
        return found

    async def lines(self, retention: Retention = WEEK) -> list[GcLine]:
        """Delete what is due; return the lines about it."""
        with self.store.view() as view:
            due = expired(view, retention, self.now, HeldContent())
        collector = Collector(self.store, self.saved, self.clock)
        return [line async for line in collector.collect(due)]

    async def collect(self, retention: Retention = WEEK) -> list[str]:
        """Delete what is due; return the names of what was."""
        return [line.name for line in await self.lines(retention)]

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


@pytest.mark.promise("STORE-14")
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

    assert await days.collect(Retention(payloads=math.inf, bodies=math.inf)) == []
    assert days.kept(ref) == [PayloadState.WHOLE]


@pytest.mark.promise("STORE-14")
async def test_a_day_with_content_of_a_held_session_stays_until_the_release(days: Days) -> None:
    held, other = session("held"), session("other")
    await days.call(held, -20, b"of the held one")
    await days.call(other, -20, b"of another")
    await days.call(other, -10, b"of another, later")
    await days.noter.change_hold("held", NoteKind.HOLD, "a lawsuit")

    assert await days.collect() == [name(-10)]
    assert days.kept(other) == [PayloadState.WHOLE, PayloadState.EXPIRED]
    assert days.kept(held) == [PayloadState.WHOLE]
    with days.store.view() as view:
        assert view.held() == {known(held)}

    await days.noter.change_hold("held", NoteKind.RELEASE, "")

    assert await days.collect() == [name(-20)]
    assert days.kept(held) == [PayloadState.EXPIRED]
    with days.store.view() as view:
        assert not view.held()


async def test_what_a_held_session_adds_is_held_too(days: Days) -> None:
    ref, holds = session("a"), HeldContent()
    await days.call(ref, -20, b"first")
    await days.noter.change_hold("a", NoteKind.HOLD, "")
    assert len(await days.store.read(holds.buckets)) == 1
    await days.call(ref, 0, b"second")

    assert len(await days.store.read(holds.buckets)) == 2
    await days.noter.change_hold("a", NoteKind.RELEASE, "")
    assert not await days.store.read(holds.buckets)


async def test_what_came_after_a_held_session_was_packed_is_held_too(days: Days) -> None:
    ref = session("a")
    await days.call(ref, 0, b"first")
    call = new_id(days.now)
    begun = await begin(days.store, intent(ref, call, at=days.now))
    await days.noter.change_hold("a", NoteKind.HOLD, "")
    packed = LifecycleContent(moved=True, packed=True)
    controls = ControlWriter(days.store, Redactor(), days.clock)
    await controls.write(known(ref), ControlRequest(action=Action.PAUSE, content=packed))

    days.now += DAY
    late = outcome(ref, call, begun, at=days.now, blob=Blob(b"late"))
    await put(days.store, late)
    await days.store.flush()
    days.now += 20 * DAY

    assert await days.collect() == []
    resumed = ControlRequest(action=Action.RESUME)
    await controls.write(known(ref), resumed)
    assert days.kept(ref) == [PayloadState.WHOLE] * 2


async def test_nothing_is_noted_in_a_purged_session(days: Days) -> None:
    ref = session("a")
    await days.call(ref, 0, b"first")
    call = new_id(days.now)
    begun = await begin(days.store, intent(ref, call, at=days.now))
    controls = ControlWriter(days.store, Redactor(), days.clock)
    for action in (Action.CLOSE, Action.PURGE):
        await controls.write(known(ref), ControlRequest(action=action))
    with days.store.view() as view:
        (first, *_) = view.commits(known(ref), after=1)
    refusals = (
        partial(days.noter.change_hold, ids.to_text(known(ref)), NoteKind.HOLD, "evidence"),
        partial(days.noter.write, ref, Decision(text="go")),
        partial(days.noter.mark_output, first, NoteKind.TAINT, "wrong"),
    )
    for refused in refusals:
        with pytest.raises(TransitionRefused, match="is purged") as found:
            await refused()
        assert (found.value.stage, found.value.action) == (SessionStage.PURGED, None)
    # What turnlog notes of a call that was under way is no content.
    ended = await put(days.store, outcome(ref, call, begun, at=days.now))
    facts = structs.replace(ended.facts, kind=CommitKind.NOTE, note=NoteKind.DELIVERED)
    assert (await put(days.store, Draft(session=ref, facts=facts))).facts.note == "delivered"


async def test_only_a_held_session_can_be_released(days: Days) -> None:
    await days.call(session("a"), 0, b"content")

    with pytest.raises(NotHeldError, match="'a' is not held"):
        await days.noter.change_hold("a", NoteKind.RELEASE, "")


async def test_a_lack_of_room_spares_held_content(tmp_path: Path) -> None:
    days = Days(tmp_path / "data", limit=12 << 20)
    held, other = session("held"), session("other")
    await days.call(held, -3, bytes(range(256)) * 400)
    await days.noter.change_hold("held", NoteKind.HOLD, "")

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

    assert await days.look() == [RetentionEnforced(buckets=1, size=20480, commits=0)]
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


@pytest.mark.promise("STORE-14")
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


# -- bodies --------------------------------------------------------------------------------------


async def test_bodies_go_once_a_commit_carries_the_state(days: Days) -> None:
    ref = session("a")
    for day in (-100, -91, -90, -5):
        await days.call(ref, day, b"day %d" % day)
    before = days.states(ref)

    *payloads, bodies = await days.lines()

    assert [line.what for line in payloads] == 3 * [GcItem.PAYLOADS]
    assert (bodies.what, bodies.commits, bodies.fate) == (GcItem.BODIES, 5, GcFate.DELETED)
    assert bodies.bytes > 100
    assert (bodies.since[:10], bodies.until[:10]) == ("2026-08-19", "2026-08-28")
    with days.store.view() as view:
        commits = list(view.commits(known(ref)))
        assert [commit.gone for commit in commits[:9]] == [None, *4 * [Gone.EXPIRED], *4 * [None]]
        kinds = [(c.facts.kind, c.facts.note, c.link.ref) for c in commits[9:]]
        assert kinds == [(CommitKind.COMPACT, "", 4), (CommitKind.REDACT, "expired", 4)]
        assert view.find_sessions("a") == [known(ref)]
    assert days.states(ref)[: len(before)] == [*4 * ["compacted"], *before[4:]]
    assert verdicts(days.data) == ["redacted_ok"]
    assert await days.lines() == []


async def test_calls_that_move_the_head_all_the_time_do_not_end_a_collection(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -100, b"content")
    due = expired(days.store.view(), WEEK, days.now, HeldContent())

    def wall() -> int:
        # Each commit of the collection is queued behind a call.
        days.store.submit(intent(ref, new_id(days.now), at=days.now), wait=False)
        return days.now

    collector = Collector(days.store, days.saved, Clock(wall=wall))
    lines = [line async for line in collector.collect(due)]

    assert [line.fate for line in lines] == [GcFate.DELETED, GcFate.DELETED]
    with days.store.view() as view:
        kinds = [commit.facts.kind for commit in view.controls(known(ref))]
    assert kinds == [CommitKind.COMPACT, CommitKind.REDACT]
    assert verdicts(days.data) == ["redacted_ok"]


def test_a_transaction_writes_few_blocks_anew() -> None:
    dense, spread = list(range(1000, 0, -1)), list(range(64_000, 0, -64))
    assert list(transactions(dense)) == [dense]
    parts = list(transactions(spread))
    assert [position for part in parts for position in part] == spread
    assert max(map(len, parts)) == 64
    assert list(transactions([])) == []


async def test_the_next_day_the_fold_starts_at_the_newer_state(days: Days) -> None:
    ref = session("a")
    for day in (-100, -90, -89):
        await days.call(ref, day, b"content")
    await days.lines()
    before = days.states(ref)
    days.now += 2 * DAY

    (line,) = [line for line in await days.lines() if line.what is GcItem.BODIES]

    assert line.commits == 4
    assert days.states(ref)[: len(before)] == [*6 * ["compacted"], *before[6:]]
    with days.store.view() as view:
        gone = [c.link.seq for c in view.commits(known(ref)) if c.gone]
        assert gone == [1, 2, 3, 4, 5, 6]
        assert list(view.index_flaws()) == []


async def test_the_state_of_an_older_compaction_goes_with_the_bodies(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -100, b"content")
    await days.lines()
    await days.call(ref, 0, b"later")
    days.now += 95 * DAY

    await days.lines()

    with days.store.view() as view:
        states = [c for c in view.controls(known(ref)) if c.facts.kind is CommitKind.COMPACT]
        assert [commit.gone for commit in states] == [Gone.EXPIRED, None]
    assert verdicts(days.data) == ["redacted_ok"]


async def test_a_rewind_behind_a_compaction_is_refused(days: Days) -> None:
    ref = session("a")
    for day in (-100, -99, -5):
        await days.call(ref, day, b"content")
    await days.lines()

    with days.store.view() as view:
        with pytest.raises(CompactedError, match="from commit 4 on"):
            rewind_plan(view, known(ref), 2)
        assert rewind_plan(view, known(ref), 4).commits == 4


async def test_a_fork_expires_from_its_own_first_commit_on(days: Days) -> None:
    await days.call(session("a"), -110, b"content")
    days.now = TODAY - 100 * DAY
    with days.store.view() as view:
        order = ForkOrder(session="a", seq=2, name="b")
        draft = fork_draft(view, days.saved, order, days.clock)
    made = await fork(days.store, draft, order)
    days.now = TODAY
    ref = SessionRef(candidate=ids.from_text(made.session), rung=Rung.EXPLICIT)
    await days.call(ref, -99, b"content of the fork")
    before = days.states(ref, first=made.seq)

    lines = {line.name: line for line in await days.lines()}

    line = lines[made.session]
    assert (line.since[:10], line.until[:10]) == ("2026-08-19", "2026-08-20")
    assert line.commits == made.seq
    assert days.states(ref, first=made.seq)[:3] == ["compacted", "compacted", before[2]]
    assert set(verdicts(days.data)) == {"redacted_ok"}


async def test_what_a_rewind_discarded_expires_as_all_else(days: Days) -> None:
    ref = session("a")
    for day in (-110, -109):
        await days.call(ref, day, b"content")
    days.now = TODAY - 100 * DAY
    with days.store.view() as view:
        plan = rewind_plan(view, known(ref), 2)
    await rewind(days.store, plan, RewindOrder(expect=4, clock=days.clock))
    days.now = TODAY
    before = days.states(ref)

    await days.lines()

    with days.store.view() as view:
        gone = [commit.link.seq for commit in view.commits(known(ref)) if commit.gone]
    assert gone == [1, 2, 3, 4]
    assert days.states(ref)[:6] == [*5 * ["compacted"], before[5]]


async def test_what_rewinds_kept_and_why_a_session_was_changed_does_not_expire(days: Days) -> None:
    ref = session("a")
    for day in (-110, -109):
        await days.call(ref, day, b"content")
    days.now = TODAY - 100 * DAY
    with days.store.view() as view:
        plan = rewind_plan(view, known(ref), 0, keep=(3,))
    order = RewindOrder(expect=4, clock=days.clock, why="the wrong customer")
    await rewind(days.store, plan, order)
    controls = ControlWriter(days.store, Redactor(), days.clock)
    await controls.write(known(ref), ControlRequest(action=Action.PAUSE, why="lunch"))
    days.now = TODAY

    await days.lines()

    with days.store.view() as view:
        rewound, paused = list(view.controls(known(ref)))[:2]
    shown = [commit_entry(commit).content for commit in (rewound, paused)]
    assert (shown[0]["keep"], shown[0]["standing"]) == ((3,), (1,))
    assert [content["why"] for content in shown] == ["the wrong customer", "lunch"]


async def test_bodies_of_a_held_session_stay(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -100, b"content")
    await days.noter.change_hold("a", NoteKind.HOLD, "")

    due = expired(days.store.view(), WEEK, days.now, HeldContent())
    assert [one.line(GcFate.DUE).fate for one in due] == [GcFate.HELD, GcFate.HELD]
    assert await days.lines() == []
    assert "compacted" not in days.states(ref)


async def test_a_state_that_is_too_large_for_a_commit_keeps_the_bodies(days: Days) -> None:
    ref = session("a")
    at = TODAY - 100 * DAY
    facts = Facts(kind=CommitKind.NOTE, at=at, clock=at, note=NoteKind.DECISION)
    for number in range(700):
        text = random.Random(number).randbytes(2000).hex()
        body = CommitBody(note=encode_note(Decision(text=text)))
        days.store.submit(Draft(session=ref, facts=facts, body=body), wait=False)
    await days.store.flush()

    (line,) = await days.lines()

    assert (line.what, line.fate) == (GcItem.BODIES, GcFate.TOO_LARGE)
    with days.store.view() as view:
        assert [commit.gone for commit in view.commits(known(ref))] == [None] * 701
        assert state_at(view, days.saved, known(ref), 1)  # raises where it was compacted
    assert verdicts(days.data) == ["ok"]


async def test_an_erasure_that_a_process_did_not_finish_is_finished_by_the_next(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -100, b"content")
    (_, one) = expired(days.store.view(), WEEK, days.now, HeldContent())
    assert isinstance(one, ExpiredBodies)
    begun = Collector(days.store, days.saved, days.clock)
    await begun.is_compacted(one)
    await begun.append(
        known(ref),
        lambda head: redact_draft(
            known(ref), one.until, Gone.EXPIRED, "bodies expired", head, days.clock
        ),
    )
    with days.store.view() as view:
        (newest,) = islice(view.erasable(known(ref), one.after, one.until), 1)
    await days.store.erase_bodies([newest])

    again = expired(days.store.view(), WEEK, days.now, HeldContent())

    assert [isinstance(found, ExpiredBodies) and found.begun for found in again] == [False, True]
    await days.lines()
    with days.store.view() as view:
        assert [c.gone for c in view.commits(known(ref))][:3] == [None, Gone.EXPIRED, Gone.EXPIRED]
        assert len(list(view.controls(known(ref)))) == 2


async def test_a_call_that_moves_the_head_delays_a_compaction_and_stops_none(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -100, b"content")
    heads: list[int] = []

    def draft(head: int) -> Draft:
        if len(heads) < 3:
            days.store.submit(intent(ref, new_id(days.now)), wait=True)
        heads.append(head)
        return redact_draft(known(ref), 0, Gone.EXPIRED, "bodies expired", head, days.clock)

    placed = await Collector(days.store, days.saved, days.clock).append(known(ref), draft)

    assert heads == [2, 3, 4, 5]
    assert placed.link.seq == 6


async def test_indexes_made_anew_fit_a_log_without_bodies(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -100, b"content")
    await days.lines()
    await days.store.close()

    done = process("verify", "--rebuild", "--json", "--data", str(days.data))

    assert [msgspec.json.decode(line)["verdict"] for line in done.stdout.splitlines()] == [
        "redacted_ok"
    ]
    days.store = LmdbStore.open(days.data)


# -- ages by rule ---------------------------------------------------------------------------------


def by_rule(*rules: RetentionRule, payloads: float = 7.0, bodies: float = 90.0) -> Retention:
    """Return ages; those given are in days."""
    seconds = (
        structs.replace(
            rule,
            payloads=None if rule.payloads is None else rule.payloads * 86_400,
            bodies=None if rule.bodies is None else rule.bodies * 86_400,
        )
        for rule in rules
    )
    return Retention(payloads=payloads * 86_400, bodies=bodies * 86_400, rules=tuple(seconds))


def gone_of(days: Days, ref: SessionRef) -> list[tuple[str, Gone | None]]:
    """Return of each commit of a call its server, and why its body is gone."""
    with days.store.view() as view:
        calls = [c for c in view.commits(known(ref)) if c.facts.call]
    return [(c.facts.server, c.gone) for c in calls]


BANK = RetentionRule(server=("bank",), bodies=10.0)


async def test_what_a_server_left_goes_at_the_age_that_a_rule_gives_it(days: Days) -> None:
    ref = session("a")
    for day, server in ((-30, "bank"), (-30, "files"), (-20, "bank"), (-5, "bank")):
        await days.call(ref, day, b"content", server=server)
    before = days.states(ref)
    retention = by_rule(BANK, payloads=1000.0)

    (line,) = await days.lines(retention)

    assert (line.server, line.commits, line.fate) == ("bank", 4, GcFate.DELETED)
    assert (line.since[:10], line.until[:10]) == ("2026-10-28", "2026-11-07")
    gone = Gone.EXPIRED
    assert gone_of(days, ref) == [
        *2 * [("bank", gone)],
        *2 * [("files", None)],
        *2 * [("bank", gone)],
        *2 * [("bank", None)],
    ]
    assert days.states(ref)[: len(before)] == [*6 * ["compacted"], *before[6:]]
    with days.store.view() as view:
        redacts = [c for c in view.controls(known(ref)) if c.facts.kind is CommitKind.REDACT]
    assert [(c.facts.server, c.link.ref) for c in redacts] == [("bank", 6)]
    assert verdicts(days.data) == ["redacted_ok"]
    assert await days.lines(retention) == []


async def test_a_day_of_which_nothing_is_old_enough_is_not_announced(tmp_path: Path) -> None:
    first = Days(tmp_path / "data")
    await first.call(session("a"), -20, b"content", server="files")
    await first.close()
    forget_notice(first.data)
    days = Days(first.data)
    days.keeper = days.new_keeper(
        by_rule(RetentionRule(server=("bank",), payloads=7.0), payloads=1000.0)
    )

    (announced,) = await days.look(EVERY_BY_RULES)

    assert isinstance(announced, RetentionAnnounced)
    assert (announced.buckets, announced.size) == (0, 0)
    await days.close()


async def test_a_body_that_no_rule_has_expired_is_missed_by_verify(days: Days) -> None:
    ref = session("a")
    for server in ("bank", "files"):
        await days.call(ref, -30, b"content", server=server)
    await days.lines(by_rule(BANK))
    with days.store.view() as view:
        (newest, _) = view.erasable(known(ref), 0, 4)
    await days.store.erase_bodies([newest])
    await days.store.flush()
    assert verdicts(days.data) == ["mutated"]
    assert gone_of(days, ref)[-1] == ("files", Gone.DAMAGED)


async def test_what_a_rule_keeps_longer_stays_when_the_rest_of_its_session_goes(days: Days) -> None:
    ref = session("a")
    for server in ("bank", "files", "bank"):
        await days.call(ref, -100, b"content", server=server)
    await days.lines(by_rule(RetentionRule(server=("bank",), bodies=math.inf)))
    assert gone_of(days, ref) == [
        *2 * [("bank", None)],
        *2 * [("files", Gone.EXPIRED)],
        *2 * [("bank", None)],
    ]
    # The rule is taken out of the configuration.
    lines = await days.lines(by_rule())
    assert [(line.what, line.server) for line in lines] == [(GcItem.BODIES, "")]
    assert {word for _, word in gone_of(days, ref)} == {Gone.EXPIRED}
    assert verdicts(days.data) == ["redacted_ok"]
    assert await days.lines(by_rule()) == []


async def test_a_collection_that_ended_early_is_finished_though_the_oldest_body_went_before(
    days: Days,
) -> None:
    ref = session("a")
    for server in ("bank", "files", "bank"):
        await days.call(ref, -30, b"content", server=server)
    await days.lines(by_rule(BANK))
    days.now += 90 * DAY

    due = expired(days.store.view(), by_rule(), days.now, HeldContent())
    bodies = [one for one in due if isinstance(one, ExpiredBodies)]
    collector = Collector(days.store, days.saved, days.clock)
    assert await collector.is_compacted(bodies[0])
    await collector.append(
        known(ref),
        lambda head: redact_draft(
            known(ref), bodies[0].until, Gone.EXPIRED, "bodies expired", head, days.clock
        ),
    )
    assert ("files", None) in gone_of(days, ref)

    await days.lines(by_rule())

    assert {word for _, word in gone_of(days, ref)} == {Gone.EXPIRED}


async def test_sessions_are_kept_by_their_names(days: Days) -> None:
    refs = [session(name) for name in ("audit-1", "other")]
    for ref in refs:
        await days.call(ref, -400, b"content")
    await days.call(refs[1], -20, b"content of another day")
    kept = RetentionRule(session=("audit-*",), payloads=math.inf, bodies=math.inf)

    lines = await days.lines(by_rule(kept))

    # A bucket in which nothing is kept goes whole.
    assert [line.name for line in lines if line.what is GcItem.PAYLOADS] == [name(-20)]
    assert sorted(path.name for path in (days.data / "blobs").iterdir()) == [
        name(-400),
        f"expired-{name(-20)}",
    ]

    assert [line.name for line in lines if line.what is GcItem.BODIES] == [
        ids.to_text(known(refs[1]))
    ]
    assert days.kept(refs[0]) == [PayloadState.WHOLE]
    assert {word for _, word in gone_of(days, refs[0])} == {None}
    assert [word for _, word in gone_of(days, refs[1])] == [*2 * [Gone.EXPIRED], *2 * [None]]


async def test_payloads_of_one_server_go_before_the_rest_of_their_day(days: Days) -> None:
    early, late = session("a"), session("b")
    await days.call(early, -3, b"of the bank", server="bank")
    await days.call(early, -3, b"of both", server="bank")
    await days.call(late, -3, b"of both", server="files")
    await days.call(late, -3, b"of the files", server="files")
    bank = by_rule(RetentionRule(server=("bank",), payloads=1.0))
    bucket = days.data / "blobs" / name(-3)

    (line,) = await days.lines(bank)

    assert (line.what, line.name, line.commits) == (GcItem.PAYLOADS, name(-3), 0)
    assert not bucket.exists()
    whole, expired_ = PayloadState.WHOLE, PayloadState.EXPIRED
    # What another server's call brought as well stays as long as that.
    assert outputs(days, early) == [expired_, whole]
    assert outputs(days, late) == [whole, whole]
    rewritten = bucket.with_name(f"{bucket.name}.1")
    assert b"of the bank" not in (rewritten / "data.mdb").read_bytes()
    assert await days.lines(bank) == []
    assert verdicts(days.data) == ["ok", "ok"]

    days.now += 5 * DAY
    assert await days.collect(bank) == [name(-3)]
    assert not rewritten.exists()
    assert {*outputs(days, early), *outputs(days, late)} == {expired_}


def outputs(days: Days, ref: SessionRef) -> list[PayloadState]:
    """Return what became of the outputs of a session."""
    with days.store.view() as view:
        bodies = [c.body for c in view.commits(known(ref)) if c.facts.kind is CommitKind.OUTCOME]
        handles = [body.output_blob for body in bodies if body]
        return [read_payload(view, handle).kept for handle in handles]


async def test_a_day_is_looked_through_once_for_each_age_that_it_passes(days: Days) -> None:
    ref = session("a")
    await days.call(ref, -3, b"content", server="files")
    rules = (RetentionRule(server=("bank",), payloads=1.0),)
    bucket = days.data / "blobs" / name(-3)

    assert await days.lines(by_rule(*rules)) == []
    (mark,) = bucket.glob("expired-*")
    assert await days.lines(by_rule(*rules)) == []
    assert list(bucket.glob("expired-*")) == [mark]

    # Other rules, another look.
    both = (*rules, RetentionRule(server=("files",), payloads=2.0))
    assert [line.name for line in await days.lines(by_rule(*both))] == [name(-3)]
    assert {word.value for word in outputs(days, ref)} == {"expired"}


async def test_a_hold_and_a_purge_go_before_the_ages_of_rules(days: Days) -> None:
    held, other = session("a"), session("b")
    for ref, content in ((held, b"of a"), (other, b"of b")):
        await days.call(ref, -3, content, server="bank")
    await days.noter.change_hold("a", NoteKind.HOLD, "a lawsuit")
    bank = by_rule(RetentionRule(server=("bank",), payloads=1.0, bodies=1.0))

    lines = await days.lines(bank)

    assert [(line.what, line.name) for line in lines] == [
        (GcItem.BODIES, ids.to_text(known(other)))
    ]
    assert outputs(days, held) == [PayloadState.WHOLE]

    await days.noter.change_hold("a", NoteKind.RELEASE, "")
    writer = ControlWriter(days.store, Redactor(), days.clock)
    collector = Collector(days.store, days.saved, days.clock)
    with days.store.view() as view:
        plan = purge_plan(view, known(held), "a")
    await Purger(collector).purge(known(held), plan, PurgeOrder(), writer)
    await days.lines(bank)
    with days.store.view() as view:
        assert {c.gone for c in view.commits(known(held)) if c.facts.call} == {Gone.PURGED}


async def test_an_idle_proxy_goes_by_rules_once_a_day(days: Days) -> None:
    ref = session("a")
    for day in (-3, -1):
        await days.call(ref, day, b"day %d" % day, server="bank")
    days.keeper = days.new_keeper(by_rule(RetentionRule(server=("bank",), payloads=1.0)))

    (event,) = await days.look()

    assert isinstance(event, RetentionEnforced)
    assert (event.buckets, event.commits) == (1, 0)
    assert outputs(days, ref) == [PayloadState.EXPIRED, PayloadState.WHOLE]
    days.now += DAY
    assert await days.look() == []
    days.now -= DAY
    (event,) = await days.look(EVERY_BY_RULES)
    assert outputs(days, ref) == 2 * [PayloadState.EXPIRED]


def test_ages_are_noted_with_their_rules(tmp_path: Path) -> None:
    noted = by_rule(BANK, RetentionRule(session=("x", "y"), payloads=math.inf, bodies=3.0))
    write_retention(tmp_path, noted)
    assert noted_retention(tmp_path) == noted
    assert noted.text() == "payloads 7d, bodies 90d, 2 rules"


# -- purges --------------------------------------------------------------------------------------


async def test_content_that_is_written_while_its_bucket_is_rewritten_is_kept(days: Days) -> None:
    ref, other = session("a"), session("b")
    await days.call(ref, 0, b"the same")
    await days.store.flush()
    folder, bucket = days.data / "blobs", Bucket(TODAY // DAY, 0)
    with nobody_writes(days.data):
        # Its content has a place, which is that of the first session's, and its commit waits.
        call = new_id(days.now)
        ticket = days.store.submit(intent(other, call, blob=Blob(b"the same")), wait=True)
        fresh = days.store.submit(intent(other, new_id(days.now), blob=Blob(b"fresh")), wait=True)
        # The queue is handed over on the loop.
        stored = partial(_holds, folder, b"fresh")
        await asyncio.to_thread(wait_until, stored, "the content is in a bucket")
        with days.store.view() as view:
            handles = view.contents(known(ref))
        drop = set(map(number_in_bucket, handles))
        with BucketRewrite(folder, bucket, drop) as rewrite:
            rewrite.swap()
    placed = [await ticket.done(), await fresh.done()]

    with days.store.view() as view:
        found = [view.blob(c.body.input_blob) for c in placed if c.body]
        assert found == [Blob(b"the same"), Blob(b"fresh")]
        assert {view.blob(handle) for handle in handles} == {Gone.PURGED}


def _holds(folder: Path, content: bytes) -> bool:
    return any(content in path.read_bytes() for path in folder.glob("*/data.mdb"))


async def test_a_bucket_keeps_its_place_where_another_session_came_to_use_what_it_would_lack(
    days: Days,
) -> None:
    ref, other = session("a"), session("b")
    await days.call(ref, 0, b"the same")
    with days.store.view() as view:
        handles, seen = view.contents(known(ref)), view.last
    await days.call(other, 0, b"the same")
    numbers = set(map(number_in_bucket, handles))
    with BucketRewrite(days.data / "blobs", Bucket(TODAY // DAY, 0), numbers) as rewrite:
        assert not await days.store.swap_bucket(rewrite, handles, known(ref), seen)

    with days.store.view() as view:
        assert view.shared(handles, known(ref)) == handles
        assert {type(view.blob(handle)) for handle in handles} == {Blob}


async def test_an_idle_proxy_finishes_a_purge_that_a_process_left(days: Days) -> None:
    ref = session("a")
    await days.call(ref, 0, b"content")
    writer = ControlWriter(days.store, Redactor(), days.clock)
    for action in (Action.CLOSE, Action.PURGE):
        await writer.write(known(ref), ControlRequest(action=action, why="a request"))
    with days.store.view() as view:
        assert view.purges() == {known(ref): False}

    await days.look()

    with days.store.view() as view:
        assert view.purges() == {known(ref): True}
        assert view.find_sessions("a") == []
        gone = [(c.facts.kind, c.gone) for c in view.commits(known(ref))]
        assert [word for _, word in gone] == [*5 * [Gone.PURGED], None]
        (redact,) = [c for c in view.controls(known(ref)) if c.facts.kind is CommitKind.REDACT]
        assert redact.body is not None
        assert redact.body.detail == "a request"
    assert (days.data / "purge-pending").exists()
    assert verdicts(days.data) == ["redacted_ok"]


async def test_a_purge_whose_caller_leaves_is_finished_by_the_next(days: Days) -> None:
    ref = session("a")
    await days.call(ref, 0, b"content")
    folder, steps = days.data / "blobs", list[str]()

    def leave(step: str) -> None:
        steps.append(step)
        running.cancel()

    collector = Collector(days.store, days.saved, days.clock, on_step=leave)
    with days.store.view() as view:
        plan = purge_plan(view, known(ref), "a")
    writer = ControlWriter(days.store, Redactor(), days.clock)
    running = asyncio.ensure_future(Purger(collector).purge(known(ref), plan, PurgeOrder(), writer))
    with pytest.raises(asyncio.CancelledError):
        await running
    # What copied in a thread has ended, and its draft is gone.
    assert steps == [f"payloads {name(0)}"]
    assert [path.name for path in folder.iterdir()] == [name(0)]

    await days.look()

    assert [path.name for path in folder.iterdir()] == [f"{name(0)}.1"]
    with days.store.view() as view:
        assert view.purges() == {known(ref): True}
    assert verdicts(days.data) == ["redacted_ok"]


async def test_a_call_in_flight_keeps_its_session_from_a_purge(days: Days) -> None:
    ref = session("a")
    await begin(days.store, intent(ref, new_id(days.now)))
    with days.store.view() as view, pytest.raises(OperationError, match="are in flight"):
        purge_plan(view, known(ref), "a")


@pytest.mark.promise("LEDGER-1")
async def test_an_effect_that_a_rewind_discarded_is_known_after_its_body_expired(
    days: Days,
) -> None:
    ref = session("a")
    days.now = TODAY - 110 * DAY
    call, form = new_id(days.now), ("sha256", b"a letter")
    body = CommitBody(input_hash=input_hash(form))
    draft = intent(ref, call, tool="send", effect=Effect.IRREVERSIBLE, at=days.now, body=body)
    ticket = await begin(days.store, draft)
    await put(days.store, outcome(ref, call, ticket, at=days.now))
    with days.store.view() as view:
        plan = rewind_plan(view, known(ref), 0)
    await rewind(days.store, plan, RewindOrder(expect=plan.head, clock=days.clock))
    await days.call(ref, -100, b"content")
    days.now = TODAY

    await days.lines()

    ledger = EffectLedger(days.store, lambda: TODAY, 600.0)
    wanted = WantedEffect(
        session=ref, server="files", tool="send", target="", canonical=form, effect_link=b""
    )
    with days.store.view() as view:
        begun = view.get(known(ref), 1)
        found = ledger.find(view, ledger.link(wanted), wanted)
    assert begun is not None
    assert begun.body is None
    assert found is not None
    assert (found.call, found.earlier.same_input) == (call, True)
