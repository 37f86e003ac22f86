"""`sessions.overview`: the processes that write to a store."""

import os
from pathlib import Path

import pytest

from turnlog.sessions.overview import StoreWriter, store_writers
from turnlog.store.lmdb import LmdbReader, LmdbStore


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not list locks")
async def test_writers_are_the_holders_of_epoch_locks(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = LmdbStore.open(data)
    for name in ("7.lock", "notes.txt"):
        (data / "epochs" / name).touch()
    with store.view() as view:
        assert store_writers(view, data) == [StoreWriter(epoch=store.epoch, pid=os.getpid())]
    await store.close()
    reader = LmdbReader.open(data)
    with reader.view() as view:
        assert store_writers(view, data) == []
    reader.close()
