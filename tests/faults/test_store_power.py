"""When the machine goes down, the last transaction may have lost its meta page; nothing else.

A crash is made from the file as it was before and after a transaction: the later one with the meta
page (page 0 or 1) of the earlier one is what a disk holds that flushed all but that page.
"""

import shutil
from itertools import pairwise
from pathlib import Path

import lmdb
import pytest
from msgspec import Struct

from conformance.store.kit import begin, intent, known, new_id, outcome, put, seqs, session
from turnlog.core.commit import Body
from turnlog.store.base import SessionRef, Store
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.redo import SLOT

PAGE = 4096


class Crash(Struct):
    """A store that two transactions were written to, and its file before each and after both."""

    data: Path
    ref: SessionRef
    images: list[bytes]

    def lose_last_meta(self, *, lost: int = 1) -> bytes:
        """Return the file as it is when the meta pages of the last transactions never arrived."""
        image = bytearray(self.images[-1])
        for before, after in list(pairwise(self.images))[-lost:]:
            for page in (0, 1):
                piece = slice(page * PAGE, (page + 1) * PAGE)
                if before[piece] != after[piece]:
                    image[piece] = before[piece]
        return bytes(image)

    def restore(self, image: bytes, name: str) -> Path:
        """Put a file in place, as the machine finds it when it starts again."""
        copy = self.data.with_name(name)
        shutil.copytree(self.data, copy)
        (copy / "log" / "data.mdb").write_bytes(image)
        return copy


def _file(data: Path) -> bytes:
    return (data / "log" / "data.mdb").read_bytes()


async def _crash(tmp_path: Path, *, body: Body | None = None) -> Crash:
    data = tmp_path / "data"
    store = LmdbStore.open(data, boot="first")
    ref, call = session("alice"), new_id()
    ticket = await begin(store, intent(ref, call))
    await _settled(store)
    images = [_file(data)]
    await put(store, outcome(ref, call, ticket, body=body))
    await _settled(store)
    images.append(_file(data))
    await put(store, intent(session("bob"), new_id(), body=body))
    await _settled(store)
    images.append(_file(data))
    copy = tmp_path / "as it was"
    shutil.copytree(data, copy)
    await store.close()
    return Crash(copy, ref, images)


async def _settled(store: Store) -> None:
    """Wait until the writer has done all that is due after a batch."""
    await store.recover()


async def _read(data: Path, boot: str) -> dict[str, list[int]]:
    """Open a store after a crash, and return the seqs that its sessions have before recovery."""
    store = LmdbStore.open(data, boot=boot)
    found: dict[str, list[int]] = {}
    with store.view() as view:
        for name in ("alice", "bob"):
            for ref in view.find_sessions(name):
                found[name] = [
                    c.link.seq for c in view.commits(ref) if c.facts.actor.value != "turnlog"
                ]
                commits = list(view.commits(ref))
                assert all(b.link.prev == a.hash for a, b in pairwise(commits))
        assert list(view.flaws()) == []
    await store.close()
    return found


async def test_a_transaction_whose_meta_page_was_lost_is_there(tmp_path: Path) -> None:
    crash = await _crash(tmp_path)
    data = crash.restore(crash.lose_last_meta(), "after")
    reader = LmdbReader.open(data)
    with reader.view() as view:
        assert seqs(view, crash.ref) == [0, 1, 2]
        assert view.find_sessions("bob") == []
    reader.close()
    assert await _read(data, "second") == {"alice": [0, 1, 2], "bob": [0, 1]}
    assert await _read(data, "second") == {"alice": [0, 1, 2], "bob": [0, 1]}


async def test_what_was_never_on_disk_whole_is_left_out(tmp_path: Path) -> None:
    crash = await _crash(tmp_path)
    image = crash.lose_last_meta()
    newest = max(image.rfind(b"turnred2first"), 0)
    other = image.find(b"turnred2first")
    assert abs(newest - other) == SLOT
    for start in (newest, other):
        torn = bytearray(image)
        torn[start + 200 : start + 260] = bytes(60)
        data = crash.restore(bytes(torn), f"torn {start}")
        found = await _read(data, "second")
        assert found["alice"] == [0, 1, 2]
        assert found in ({"alice": [0, 1, 2]}, {"alice": [0, 1, 2], "bob": [0, 1]})


async def test_two_lost_meta_pages_are_made_up_for(tmp_path: Path) -> None:
    crash = await _crash(tmp_path)
    data = crash.restore(crash.lose_last_meta(lost=2), "after")
    assert await _read(data, "second") == {"alice": [0, 1, 2], "bob": [0, 1]}


async def test_slots_of_this_start_of_the_machine_are_not_read(tmp_path: Path) -> None:
    crash = await _crash(tmp_path)
    data = crash.restore(crash.lose_last_meta(), "after")
    assert await _read(data, "first") == {"alice": [0, 1, 2]}


async def test_a_whole_file_stays_as_it_is(tmp_path: Path) -> None:
    crash = await _crash(tmp_path)
    data = crash.restore(crash.images[-1], "after")
    assert await _read(data, "second") == {"alice": [0, 1, 2], "bob": [0, 1]}


async def test_a_transaction_too_large_for_a_slot_waits_for_its_meta_page(tmp_path: Path) -> None:
    big = Body(summary="x" * (SLOT + 1))
    crash = await _crash(tmp_path, body=big)
    assert len(crash.images[-1]) > 3 * SLOT
    slots = crash.images[-1].count(b"turnred2first")
    assert slots == 1
    data = crash.restore(crash.images[-1], "after")
    assert await _read(data, "second") == {"alice": [0, 1, 2], "bob": [0, 1]}


@pytest.mark.parametrize("boot", ["", "first"])
async def test_a_store_works_where_the_machine_does_not_tell_its_starts(
    tmp_path: Path, boot: str
) -> None:
    data = tmp_path / "data"
    ref = session("alice")
    for _ in range(2):
        store = LmdbStore.open(data, boot=boot)
        await put(store, intent(ref, new_id()))
        await store.close()
    reader = LmdbReader.open(data)
    with reader.view() as view:
        assert seqs(view, ref) == [0, 1, 2, 3]
        assert view.find_sessions("alice") == [known(ref)]
    reader.close()


async def test_slots_are_found_again_in_a_copied_file(tmp_path: Path) -> None:
    crash = await _crash(tmp_path)
    moved = tmp_path / "moved"
    shutil.copytree(crash.data, moved)
    # A compacting copy lays the pages out anew.
    env = lmdb.open(str(crash.data / "log"), readonly=True, max_dbs=32)
    (moved / "log" / "data.mdb").unlink()
    env.copy(str(moved / "log"), compact=True)
    env.close()
    assert await _read(moved, "second") == {"alice": [0, 1, 2], "bob": [0, 1]}
    content = _file(moved)
    assert content.count(b"turnred2second") + content.count(b"turnred2first") >= 1


async def test_nothing_is_put_behind_what_was_undone_before_it(tmp_path: Path) -> None:
    """A read nobody waited for is undone, and with it what somebody waited for in vain."""
    data = tmp_path / "data"
    store = LmdbStore.open(data, boot="first")
    ref, call = session("alice"), new_id()
    ticket = await begin(store, intent(ref, call))
    await put(store, outcome(ref, call, ticket))
    await _settled(store)
    before = _file(data)
    read = new_id()
    begun = store.submit(intent(ref, read), wait=False)
    await store.submit(outcome(ref, read, begun), wait=False).done()
    await _settled(store)
    await put(store, intent(ref, new_id()))
    await _settled(store)
    after = _file(data)
    shutil.copytree(data, tmp_path / "cut")
    await store.close()
    cut = tmp_path / "cut"
    (cut / "log" / "data.mdb").write_bytes(before[: 2 * PAGE] + after[2 * PAGE :])
    for boot in ("second", "second", "third"):
        store = LmdbStore.open(cut, boot=boot)
        with store.view() as view:
            commits = list(view.commits(known(ref)))
        assert all(b.link.prev == a.hash for a, b in pairwise(commits))
        late = new_id()
        begun = store.submit(intent(ref, late), wait=False)
        await store.submit(outcome(ref, late, begun), wait=False).done()
        await store.close()
    assert [commit.link.seq for commit in commits] == list(range(7))
