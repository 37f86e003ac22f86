"""The process that writes a store is killed: nothing is lost, nothing is written twice."""
# pyright: reportPrivateUsage=false

import asyncio
import os
import random
import resource
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import structs

from conformance.store.kit import (
    START,
    begin,
    intent,
    known,
    new_id,
    note,
    outcome,
    put,
    session,
    whole_call,
)
from faults.test_store_kill import chain_of
from kit.family import has_opened, is_running, store_processes
from kit.holding import nobody_writes
from kit.proxy import until
from turnlog.core.commit import Body
from turnlog.core.kinds import CommitKind, NoteKind
from turnlog.store import apart
from turnlog.store.base import Blob, Conflict, Draft, SessionRef, Store, StoreClosed, StoreError
from turnlog.store.line import Line
from turnlog.store.lmdb import LmdbReader, LmdbStore


def opened(path: Path, reports: list[StoreError]) -> LmdbStore:
    return LmdbStore.open(path / "data", flush_every=50, apart=True, report=reports.append)


async def claimed_elsewhere(path: Path, key: bytes) -> None:
    """Let another writer of the store write an intent with a key."""
    other = LmdbStore.open(path / "data")
    await put(other, intent(session(), new_id(), body=Body(links=(key,))))
    await other.close()


async def writer(path: Path, before: int = 0) -> int:
    """Wait until a process that is not the one `before` has opened the log; return its id."""

    def found() -> int | None:
        log = path / "data" / "log" / "lock.mdb"
        others = [process for process in store_processes(os.getpid()) if process != before]
        return next((process for process in others if has_opened(process, log)), None)

    return await until(found, "a process that writes")


def deleted(folder: Path) -> list[str]:
    """Return the files below a folder that this process has in its memory and that are gone."""
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in mapped if str(folder) in line and "(deleted)" in line]


class Callers:
    """Make calls with content until they are told that it is enough."""

    def __init__(self) -> None:
        self.acked: list[bytes] = []
        """Calls whose outcome was said to be on disk."""
        self.enough = False
        self._came = asyncio.Event()

    async def call(self, store: Store, ref: SessionRef) -> None:
        while not self.enough:
            call = new_id()
            blob = Blob(data=call * 40)
            ticket = await begin(store, intent(ref, call, blob=blob, body=Body(summary="begin")))
            end = outcome(ref, call, ticket, body=Body(summary="end"))
            await store.submit(end, wait=True).done()
            self.acked.append(call)
            self._came.set()

    async def more(self, count: int) -> None:
        """Wait until so many more were acknowledged."""
        until = len(self.acked) + count
        while len(self.acked) < until:
            self._came.clear()
            await self._came.wait()


async def test_drafts_under_way_are_written_once_whenever_their_writer_is_killed(
    tmp_path: Path,
) -> None:
    reports: list[StoreError] = []
    store = opened(tmp_path, reports)
    refs, callers, dice = [session() for _ in range(8)], Callers(), random.Random(7)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for ref in refs:
            tasks.create_task(callers.call(store, ref))
        process = 0
        for _ in range(6):
            process = await writer(tmp_path, process)
            await callers.more(dice.randint(1, 200))
            os.kill(process, signal.SIGKILL)
        await callers.more(50)
        callers.enough = True
    assert len(reports) == 6
    assert all("has ended with -9; another goes on" in str(error) for error in reports)
    await store.close()
    assert store_processes(os.getpid()) == []
    reader = LmdbReader.open(tmp_path / "data")
    with reader.view() as view:
        kinds = Counter(
            (commit.facts.call, commit.facts.kind)
            for ref in refs
            for commit in chain_of(view, known(ref))
            if commit.facts.call
        )
        for call in callers.acked:
            began, _ = view.call(call)
            assert began.body is not None
            blob = view.blob(began.body.input_blob)
            assert blob is not None
            assert blob.data == call * 40
    reader.close()
    assert set(kinds.values()) == {1}
    ended = {call for call, kind in kinds if kind is CommitKind.OUTCOME}
    assert ended == set(callers.acked)


async def test_what_waits_for_the_lock_when_its_writer_is_killed_is_written(tmp_path: Path) -> None:
    store = opened(tmp_path, [])
    ref = session()
    await whole_call(store, ref)
    with nobody_writes(tmp_path / "data"):
        tickets = [store.submit(intent(ref, new_id()), wait=True) for _ in range(100)]
        process = 0
        for _ in range(apart.TRIES - 1):
            process = await writer(tmp_path, process)
            os.kill(process, signal.SIGKILL)
        await writer(tmp_path, process)
    async with asyncio.timeout(30):
        placed = [await ticket.done() for ticket in tickets]
    assert [commit.link.seq for commit in placed] == list(range(3, 103))
    await store.close()


async def down(store: Store, folder: Path) -> None:
    """Kill one writer after the other, until no other is started for a while."""
    process = 0
    for _ in range(apart.TRIES):
        process = await writer(folder, process)
        os.kill(process, signal.SIGKILL)
    await until(lambda: store.down or None, "nothing is written")


async def test_a_store_whose_writers_all_die_refuses_at_once_and_tries_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "REST", 1.0)
    reports: list[StoreError] = []
    store = opened(tmp_path, reports)
    call, ref = new_id(), session()
    begun = await begin(store, intent(ref, call))
    with nobody_writes(tmp_path / "data"):
        ticket = store.submit(intent(ref, new_id()), wait=True)
        ended = asyncio.ensure_future(store.flush())
        await down(store, tmp_path)
        for waiting in (ended, ticket.done(), store.flush()):
            with pytest.raises(StoreError, match="3 before it that did nothing"):
                await waiting
        with pytest.raises(StoreError, match="nothing is written until one works"):
            await store.submit(intent(ref, new_id()), wait=True).done()
    assert str(reports[-1]) == store.down
    await until(lambda: (not store.down) or None, "another was started")
    placed = await store.submit(outcome(ref, call, begun), wait=True).done()
    assert (placed.facts.call, placed.link.seq) == (call, 2)
    await store.close()


async def test_a_store_whose_writers_all_died_is_closed_at_once_and_gives_up_its_epoch(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path, [])
    call = new_id()
    await begin(store, intent(session(), call))
    with nobody_writes(tmp_path / "data"):
        await down(store, tmp_path)
    async with asyncio.timeout(5):
        await store.close()
    with pytest.raises(StoreClosed):
        store.submit(intent(session(), new_id()), wait=True)
    other = opened(tmp_path, [])
    assert [commit.facts.call for commit in other.recovered] == [call]
    await other.close()


async def test_writers_that_had_nothing_to_write_are_no_row_of_failures(tmp_path: Path) -> None:
    reports: list[StoreError] = []
    store = opened(tmp_path, reports)
    process = 0
    for _ in range(apart.TRIES + 1):
        process = await writer(tmp_path, process)
        assert await store.recover() == []
        os.kill(process, signal.SIGKILL)
    await whole_call(store, session())
    assert (len(reports), store.down) == (apart.TRIES + 1, "")
    await store.close()


async def test_a_store_that_is_closed_leaves_no_process(tmp_path: Path) -> None:
    store = opened(tmp_path, [])
    await whole_call(store, session())
    process = await writer(tmp_path)
    await store.close()
    assert not is_running(process)


async def test_a_proxy_with_many_descriptors_gets_another_writer(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    store = opened(tmp_path, [])
    with ExitStack() as held:
        for _ in range(1100):
            held.callback(os.close, os.dup(0))
        os.kill(await writer(tmp_path), signal.SIGKILL)
        tickets = [store.submit(intent(session(), new_id()), wait=True) for _ in range(100)]
        async with asyncio.timeout(30):
            placed = [await ticket.done() for ticket in tickets]
    assert len({commit.position for commit in placed}) == 100
    await store.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_who_fails_when_told_keeps_it_from_nobody_else(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("this one cannot hear")

    failures: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: failures.append(context.get("exception"))
    )
    store = LmdbStore.open(tmp_path / "data", apart=True, report=fail)
    first = store.submit(intent(session(), new_id()), wait=True, told=fail)
    second = store.submit(intent(session(), new_id()), wait=True)
    os.kill(await writer(tmp_path), signal.SIGKILL)
    third = store.submit(intent(session(), new_id()), wait=True)
    async with asyncio.timeout(30):
        assert [(await ticket.done()).link.seq for ticket in (first, second, third)] == [1, 1, 1]
    assert list(map(type, failures)) == [RuntimeError]
    await store.close()


async def test_unlinked_content_takes_no_room_for_being_open(tmp_path: Path) -> None:
    data, told = tmp_path / "data", list[int]()
    store = LmdbStore.open(data, limit=4 << 20, apart=True, trimmed=told.append)
    commit = await put(store, intent(session(), new_id(), blob=Blob(os.urandom(600_000))))
    assert commit.body is not None
    with store.view() as view:
        assert view.blob(commit.body.input_blob) is not None
    while not told:
        await put(store, intent(session(), new_id(), blob=Blob(os.urandom(600_000))))
    assert not deleted(data)
    await store.close()
    await store.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_to_all_processes_ends_no_writer(
    tmp_path: Path, number: signal.Signals
) -> None:
    reports: list[StoreError] = []
    store = opened(tmp_path, reports)
    await whole_call(store, session())
    os.kill(await writer(tmp_path), number)
    await whole_call(store, session())
    await store.close()
    assert reports == []


def newest(store: Store) -> int:
    with store.view() as view:
        return view.last


async def until_it_waits(store: Store) -> None:
    """Wait until the log does not grow any more."""
    seen = [newest(store)]

    def looked() -> bool | None:
        seen.append(newest(store))
        return (seen[-1] > seen[0] and len(seen) > 20 and len(set(seen[-20:])) == 1) or None

    await until(looked, "a writer that waits")


async def test_notes_whose_writer_died_before_it_told_of_them_stand_once(tmp_path: Path) -> None:
    store = opened(tmp_path, [])
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call))
    fact = Body(note=b"n", fact_key=b"f" * 32)
    drafts = [note(ref, call, NoteKind.DELIVERED, ticket, at=START + n) for n in range(6000)]
    own = Draft(session=ref, facts=structs.replace(drafts[0].facts, at=1), body=fact, seen=1)
    # Nobody reads what it tells: it writes until it can tell no more, and dies.
    assert isinstance(store._writer, apart.Apart)
    loop, line = asyncio.get_running_loop(), store._writer._line
    assert isinstance(line, Line)
    loop.remove_reader(line._socket)
    tickets = [store.submit(draft, wait=True) for draft in (own, *drafts)]
    await until_it_waits(store)
    os.kill(line.pid, signal.SIGKILL)
    loop.add_reader(line._socket, line._read)
    async with asyncio.timeout(60):
        placed = [await each.done() for each in tickets]
    with store.view() as view:
        told = [commit.facts.at for commit in view.commits(known(ref)) if commit.facts.note]
    assert len({commit.position for commit in placed}) == len(placed)
    assert sorted(told) == sorted(draft.facts.at for draft in (own, *drafts))
    await store.close()


async def test_a_refusal_outlives_its_writer(tmp_path: Path) -> None:
    store = opened(tmp_path, [])
    ref, key = session(), b"k" * 32
    await claimed_elsewhere(tmp_path, key)
    claims = intent(ref, new_id())
    claims.claims = (key,)
    refused = store.submit(claims, wait=True)
    with pytest.raises(Conflict, match="claims the same"):
        await refused.done()
    process = await writer(tmp_path)
    os.kill(process, signal.SIGKILL)
    again = intent(ref, claims.facts.call, attempt=2)
    again.intent = refused
    with pytest.raises(Conflict, match="claims the same"):
        await store.submit(again, wait=True).done()
    await store.close()


async def test_a_session_whose_first_draft_is_refused_has_its_id(tmp_path: Path) -> None:
    store = opened(tmp_path, [])
    key, ref = b"k" * 32, session("one")
    await claimed_elsewhere(tmp_path, key)
    claims = intent(ref, new_id())
    claims.claims = (key,)
    with pytest.raises(Conflict):
        await store.submit(claims, wait=True).done()
    assert ref.id == ref.candidate
    await store.close()
