"""A damaged run: what else is there stays readable, and the store opens."""

from pathlib import Path

import lmdb
import pytest

from conformance.store.kit import intent, known, new_id, put, seqs, session
from turnlog.sessions.verify import ChainVerdict, verify
from turnlog.store.base import Corrupt, Filter, Flaw, FlawKind
from turnlog.store.lmdb import LmdbReader, LmdbStore
from turnlog.store.log.keys import number
from turnlog.store.log.tables import NAMES


def damage(data: Path, table: str, position: int, value: bytes) -> None:
    """Overwrite a run behind the store's back."""
    with lmdb.open(str(data / "log"), max_dbs=len(NAMES), map_size=1 << 40) as env:
        database = env.open_db(table.encode(), create=False)
        with env.begin(write=True, db=database) as txn:
            assert txn.get(number(position)) is not None
            txn.put(number(position), value)


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0\0\x08", b"damaged", b"\0\0\0\x0c" + bytes(9)])
@pytest.mark.parametrize("flush_every", [1, 2000])
async def test_a_damaged_run_hides_no_other(tmp_path: Path, value: bytes, flush_every: int) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data, flush_every=flush_every)
    ref = session("alice")
    for _ in range(3):
        await put(store, intent(ref, new_id()))
    await put(store, intent(session("bob"), new_id()))
    await store.close()
    damage(data, "log", 3, value)
    store = LmdbStore.open(data, flush_every=flush_every)
    await put(store, intent(session("carol"), new_id()))
    await store.close()
    reader = LmdbReader.open(data)
    with reader.view() as view:
        assert {name for name in ("bob", "carol") if view.find_sessions(name)} == {"bob", "carol"}
        (alice,) = view.find_sessions("alice")
        if flush_every == 1:
            with pytest.raises(Corrupt):
                view.get(alice, 2)
        else:
            # Nobody has written down yet whose record that was.
            assert view.get(alice, 2) is None
        assert list(view.flaws()) == [Flaw(3, 3, FlawKind.UNREADABLE)]
        assert len(list(view.attempts(Filter(), newest_first=True))) == 4
        assert view.left_out == 1
        (bob,) = view.find_sessions("bob")
        assert [commit.link.seq for commit in view.commits(bob)][:2] == [0, 1]
    reader.close()


async def test_a_damaged_run_of_bodies_is_found_by_verify(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data)
    ref = session("alice")
    for _ in range(3):
        await put(store, intent(ref, new_id()))
    assert store.recovered == []
    await store.close()
    damage(data, "bodies", 2, b"damaged")
    reader = LmdbReader.open(data)
    with reader.view() as view:
        assert seqs(view, ref) == [0, 1, 2, 3]
        result = verify(known(ref), view.headers(known(ref)))
    reader.close()
    assert result.verdict is not ChainVerdict.OK
