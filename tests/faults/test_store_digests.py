"""The newest records, which no index and no later header speaks for yet: any change is found."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from conformance.store.kit import intent, new_id, put, session, whole_call
from e2e.stores import Call, fill, turnlog
from turnlog.store.base import Flaw, FlawKind, StoreError
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.log.keys import NEWEST_DIGEST

LATER = [Call(tool="later", minute=9, session="other")]
Change = Callable[["lmdb.Transaction[bytes]", "lmdb.Cursor[bytes]"], object]


def change(data: Path, table: str, how: Change) -> None:
    """Change a table behind the store's back, from its last run on."""
    with lmdb.open(str(data / "log"), max_dbs=32, map_size=1 << 40) as env:
        database = env.open_db(table.encode(), create=False)
        with env.begin(write=True, db=database) as txn, txn.cursor() as cursor:
            assert cursor.last()
            how(txn, cursor)


def flaws(data: Path) -> list[Flaw]:
    reader = LmdbReader.open(data)
    with reader.view() as view:
        found = list(view.flaws())
    reader.close()
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data", [Call(tool="pay", minute=n) for n in range(3)])
    return tmp_path / "data"


@pytest.mark.promise("CHAIN-3")
def test_any_changed_bit_of_the_newest_run_is_found(data: Path, tmp_path: Path) -> None:
    length: list[int] = []
    change(data, "log", lambda _, cursor: length.append(len(cursor.value())))
    assert flaws(data) == []
    for at in range(length[0]):

        def flip(txn: "lmdb.Transaction[bytes]", cursor: "lmdb.Cursor[bytes]") -> None:
            value = bytearray(cursor.value())
            value[at] ^= 1 << at % 8  # noqa: B023 - used before the next turn
            txn.put(cursor.key(), bytes(value))

        copy = shutil.copytree(data, tmp_path / "copy")
        change(copy, "log", flip)
        assert flaws(copy), at
        if at % 16 == 0:
            done = turnlog("verify", data=copy)
            assert (done.returncode, done.stderr) == (1, ""), at
        shutil.rmtree(copy)


@pytest.mark.promise("CHAIN-3")
@pytest.mark.parametrize("tables", [("log",), ("log", "bodies")])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_records_that_are_gone_at_the_end_are_missed(
    data: Path, tables: tuple[str, ...], count: int
) -> None:
    def cut(_: object, cursor: "lmdb.Cursor[bytes]") -> None:
        for _ in range(count):
            cursor.delete()
            cursor.last()

    for table in tables:
        change(data, table, cut)
    (flaw,) = flaws(data)
    assert (flaw.kind, flaw.last) == (FlawKind.MISSING, 7)
    done = turnlog("verify", "--json", data=data)
    assert done.returncode == 1
    assert '"truncated"' in done.stdout
    if len(tables) == 1:
        with pytest.raises(StoreError, match="run `turnlog verify`"):
            fill(data, LATER)
        return
    fill(data, LATER)
    assert FlawKind.ALTERED in {flaw.kind for flaw in flaws(data)}, "what comes later hides nothing"
    assert turnlog("verify", data=data).returncode == 1


def test_the_newest_digest_is_no_less_protected(data: Path) -> None:
    with (
        lmdb.open(str(data / "log"), max_dbs=32, map_size=1 << 40) as env,
        env.begin(write=True) as txn,
    ):
        assert txn.delete(NEWEST_DIGEST)
    assert [flaw.kind for flaw in flaws(data)] == [FlawKind.ALTERED]


def test_a_run_in_anothers_place_is_found(data: Path) -> None:
    def swap(txn: "lmdb.Transaction[bytes]", cursor: "lmdb.Cursor[bytes]") -> None:
        newest = cursor.item()
        cursor.prev()
        before = cursor.item()
        txn.put(newest[0], before[1])
        txn.put(before[0], newest[1])

    change(data, "log", swap)
    assert flaws(data)


async def test_all_that_writers_do_leaves_no_flaw(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for flush_every in (3, 2000):
        store = LmdbStore.open(data, flush_every=flush_every)
        ref = session("alice")
        for _ in range(5):
            await whole_call(store, ref)
        many = [store.submit(intent(ref, new_id()), wait=True) for _ in range(200)]
        await asyncio.gather(*(ticket.done() for ticket in many))
        lost = intent(ref, new_id())
        await put(store, lost)
        await put(store, lost)
        with store.view() as view:
            assert list(view.flaws()) == []
        await store.close()
        assert flaws(data) == []
    assert turnlog("verify", data=data).returncode == 0


async def test_an_empty_log_has_no_flaw(tmp_path: Path) -> None:
    await LmdbStore.open(tmp_path / "data").close()
    assert flaws(tmp_path / "data") == []
