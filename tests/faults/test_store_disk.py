"""A store that reaches its limit, or the end of the disk, and goes on when there is room again."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.store.kit import START, begin, intent, known, new_id, outcome, put, seqs, session
from kit.disks import disk_of, fill_disk
from kit.proxy import until
from turnlog.core.commit import Commit, CommitBody
from turnlog.core.kinds import Gone, Status
from turnlog.store.base import Blob, Draft, Filter, StoreError, StoreFull, Usage
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.quota import STATES_SHARE
from turnlog.store.saved_states import SavedStates

CHILD = Path(__file__).with_name("store_full_child.py")
HOUR = 3_600_000_000_000


@pytest.mark.promise("STORE-4")
async def test_the_oldest_blobs_go_first(tmp_path: Path) -> None:
    clock = iter(range(START, START + 100 * HOUR, HOUR // 4))
    store = LmdbStore.open(tmp_path / "data", limit=4 << 20, span=HOUR, now=lambda: next(clock))
    ref = session()
    handles: list[bytes] = []
    for _ in range(12):
        commit = await put(store, intent(ref, new_id(), blob=Blob(os.urandom(600_000))))
        assert commit.body is not None
        handles.append(commit.body.input_blob)
    with store.view() as view:
        kept = [isinstance(view.blob(handle), Blob) for handle in handles]
        usage = view.usage()
        assert len(list(view.attempts(Filter(), newest_first=True))) == 12
    await store.close()
    assert kept == sorted(kept)
    assert not kept[0]
    assert kept[-1]
    assert usage.log_bytes + usage.blob_bytes <= 4 << 20


@pytest.mark.promise("STORE-1", "STORE-4")
async def test_saved_states_are_counted_and_go_before_any_content(tmp_path: Path) -> None:
    limit, clock = 16 << 20, iter(range(START, START + 100 * HOUR, HOUR // 4))
    store = LmdbStore.open(tmp_path / "data", limit=limit, span=HOUR, now=lambda: next(clock))
    saved = SavedStates(tmp_path / "data", 1)
    for seq in range(100):
        assert saved.save(new_id(), seq, bytes(32), os.urandom(60_000))
    assert usage(store).state_bytes > 6_000_000
    ref, handles = session(), list[bytes]()
    while usage(store).state_bytes:
        commit = await put(store, intent(ref, new_id(), blob=Blob(os.urandom(600_000))))
        assert commit.body is not None
        handles.append(commit.body.input_blob)
        await until(lambda: few_states(store, limit // STATES_SHARE), "the end of most states")
        with store.view() as view:
            kept = all(isinstance(view.blob(handle), Blob) for handle in handles)
        assert kept or not usage(store).state_bytes
    assert len(handles) > 10
    await store.close()


def few_states(store: LmdbStore, most: int) -> bool | None:
    """Tell whether saved states take no more than that; `None` for not yet."""
    return usage(store).state_bytes <= most or None


def usage(store: LmdbStore) -> Usage:
    with store.view() as view:
        return view.usage()


async def test_the_present_bucket_goes_when_it_alone_is_too_much(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "data", limit=4 << 20, now=lambda: START)
    ref = session()
    for _ in range(20):
        await put(store, intent(ref, new_id(), blob=Blob(os.urandom(600_000))))
    with store.view() as view:
        usage = view.usage()
        assert len(list(view.attempts(Filter(), newest_first=True))) == 20
    assert usage.blob_bytes <= 4 << 20
    last = await put(store, intent(ref, new_id(), blob=Blob(b"still written")))
    assert last.body is not None
    assert last.link.seq == 21
    with store.view() as view:
        assert view.blob(last.body.input_blob) == Blob(b"still written")
    await store.close()


async def _fill(store: LmdbStore) -> int:
    """Write intents until there is no room for one; return how many there were."""
    big = CommitBody(summary="x" * 100_000)
    for count in range(1000):
        try:
            ticket = store.submit(intent(session(), new_id(), body=big), wait=True)
        except StoreFull:
            return count
        await ticket.done()
        await store.flush()  # room is measured and made behind a transaction
    raise AssertionError("the store has no limit")


@pytest.mark.promise("STORE-5")
async def test_at_the_limit_intents_are_refused_and_outcomes_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data, limit=4 << 20)
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call, blob=Blob(bytes(range(256)) * 9)))
    assert await _fill(store) > 5
    with pytest.raises(StoreFull, match=r"raise limits\.store"):
        store.submit(intent(session(), new_id()), wait=True)
    end = await put(store, outcome(ref, call, ticket, body=CommitBody(summary="y" * 10_000)))
    assert end.link.ref == 1
    assert ticket.placed is not None
    await store.flush()
    with store.view() as view:
        usage = view.usage()
        assert ticket.placed.body is not None
        assert view.blob(ticket.placed.body.input_blob) is Gone.TRIMMED
    assert usage.log_bytes < 4 << 20
    await store.close()
    bigger = LmdbStore.open(data, limit=64 << 20)
    await put(bigger, intent(ref, new_id()))
    await bigger.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    with disk_of(tmp_path / "disk", 16) as place:
        yield place


async def test_a_full_disk_fails_the_drafts_and_nothing_else(small_disk: Path) -> None:
    store = LmdbStore.open(small_disk / "data", limit=40 << 20)
    ref, call = session("alice"), new_id()
    ticket = await begin(store, intent(ref, call))
    filler = fill_disk(small_disk)
    big = CommitBody(summary="x" * 900_000)
    lost = [store.submit(outcome(ref, call, ticket, n=n, body=big), wait=True) for n in range(3)]
    for late in lost:
        with pytest.raises(StoreFull, match="free space"):
            await late.done()
    with pytest.raises(StoreFull):
        store.submit(intent(ref, new_id()), wait=True)
    filler.unlink()
    end = await put(store, outcome(ref, call, ticket, n=3))
    assert (end.link.seq, end.link.ref) == (5, 1)
    await put(store, intent(ref, new_id()))
    await store.close()
    reader = LmdbReader.open(small_disk / "data")
    with reader.view() as view:
        assert seqs(view, ref) == [0, 1, 2, 3, 4, 5, 6]
        assert view.find_sessions("alice") == [known(ref)]
    reader.close()


@pytest.mark.parametrize("closing", [False, True])
async def test_an_outcome_that_found_no_room_is_written_once_there_is_some(
    small_disk: Path, closing: bool
) -> None:
    store = LmdbStore.open(small_disk / "data", limit=40 << 20)
    ref, call = session("alice"), new_id()
    ticket = await begin(store, intent(ref, call))
    told: list[bool] = []
    read = store.submit(intent(ref, new_id(), blob=_random()), wait=False)
    filler = fill_disk(small_disk)
    big = CommitBody(summary="x" * 900_000)
    late = store.submit(outcome(ref, call, ticket, body=big), wait=True, on_written=told.append)
    with pytest.raises(StoreFull, match="free space"):
        await late.done()
    lazy = store.submit(outcome(ref, read_call(read), read, blob=_random()), wait=False)
    assert told == [False]
    assert late.placed is None
    filler.unlink()
    if not closing:
        await until(lambda: (late.placed and lazy.placed) or None, "both outcomes")
    await store.close()
    assert told == [False]
    reader = LmdbReader.open(small_disk / "data")
    with reader.view() as view:
        made = list(view.attempts(Filter(), newest_first=False))
        assert [[c.facts.status for c in one] for one in made] == 2 * [[Status.PENDING, Status.OK]]
        blobs = [one[1].body.output_blob for one in made if one[1].body]
        assert isinstance(view.blob(blobs[1]), Blob)
    reader.close()


def read_call(ticket: Draft) -> bytes:
    return ticket.facts.call


async def test_blobs_that_have_no_room_end_no_process(small_disk: Path) -> None:
    """LMDB's lock file is mapped: a page of it without room on the disk would be the end."""
    store = LmdbStore.open(small_disk / "data", limit=40 << 20)
    ref = session("alice")
    calls = [new_id() for _ in range(3)]
    tickets = [await begin(store, intent(ref, call, blob=_random())) for call in calls]
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        for n in range(4):
            for call, ticket in zip(calls, tickets, strict=True):
                with suppress(OSError):
                    while filler.write(bytes(4096)):
                        pass
                late = store.submit(outcome(ref, call, ticket, n=n, blob=_random()), wait=True)
                with suppress(StoreError):
                    await late.done()
    await store.close()


def _random() -> Blob:
    return Blob(os.urandom(9000))


def deleted(folder: Path) -> list[str]:
    """Return the files below a folder that this process has in its memory and that are gone."""
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in mapped if str(folder) in line and "(deleted)" in line]


async def test_unlinked_content_takes_no_room_for_being_open(tmp_path: Path) -> None:
    data, told = tmp_path / "data", list[int]()
    store = LmdbStore.open(data, limit=4 << 20, trimmed=told.append)
    commit = await put(store, intent(session(), new_id(), blob=Blob(os.urandom(600_000))))
    assert commit.body is not None
    with store.view() as view:
        assert isinstance(view.blob(commit.body.input_blob), Blob)
    while not told:
        await put(store, intent(session(), new_id(), blob=Blob(os.urandom(600_000))))
    assert not deleted(data)
    await store.close()
    await store.close()


async def test_what_is_given_up_for_room_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    store = LmdbStore.open(tmp_path / "data", limit=4 << 20, now=lambda: START, trimmed=told.append)
    found: list[Commit] = []
    for _ in range(10):
        found.append(await put(store, intent(session(), new_id(), blob=Blob(os.urandom(600_000)))))
    with store.view() as view:
        left = [view.blob(commit.body.input_blob) for commit in found if commit.body]
    await store.close()
    assert told
    assert min(told) > 600_000
    is_gone = [content is Gone.TRIMMED for content in left]
    assert set(is_gone) == {True, False}
    assert is_gone == sorted(is_gone, reverse=True), "the oldest went"


async def test_blobs_that_cannot_be_written_harm_no_commit(tmp_path: Path) -> None:
    reports: list[StoreError] = []
    store = LmdbStore.open(tmp_path / "data", now=lambda: START, span=HOUR, report=reports.append)
    (tmp_path / "data" / "blobs").rmdir()
    (tmp_path / "data" / "blobs").write_bytes(b"in the way")
    commit = await put(store, intent(session(), new_id(), blob=Blob(b"content")))
    assert commit.body is not None
    with store.view() as view:
        assert view.blob(commit.body.input_blob) is Gone.UNSAVED
    await store.close()
    assert any("write blobs" in str(report) for report in reports)


def test_a_log_that_may_not_grow_refuses_and_recovers(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    refused, as_well, written, along = found.stdout.splitlines()
    assert refused.startswith("refused cannot write to ")
    assert refused.endswith("free space on the disk")
    assert as_well == "refused as well"
    assert written == "written 2 1"
    assert along == "with its intent 2 1"


async def test_a_loop_that_ends_without_closing_loses_no_waited_commit(tmp_path: Path) -> None:
    data = tmp_path / "data"
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from conformance.store.kit import intent, new_id, put, session\n"
        "from turnlog.store.lmdb import LmdbStore\n"
        "async def main():\n"
        "    store = LmdbStore.open(Path(sys.argv[1]))\n"
        "    ref = session('alice')\n"
        "    await put(store, intent(ref, new_id()))\n"
        "    store.submit(intent(ref, new_id()), wait=True)\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        str(data),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(done.communicate(), 60)
    assert done.returncode == 0
    assert errors == b""
    store = LmdbStore.open(data)
    assert 1 <= len(store.recovered) <= 2
    await store.close()
