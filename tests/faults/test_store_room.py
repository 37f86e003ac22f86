"""The room of a store as both of its threads see it."""

import threading
from pathlib import Path

from turnlog.store.blobs import Bucket
from turnlog.store.room import Room

LIMIT = 8 << 20


def _unlink(_: Bucket) -> None: ...


def test_no_intent_slips_in_while_the_other_thread_measures(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    log = tmp_path / "log" / "data.mdb"
    for _ in range(200):
        room = Room(tmp_path, LIMIT)
        log.write_bytes(b"")
        assert room.has_room()
        log.write_bytes(bytes(2 * LIMIT))
        room.doubt()
        writer = threading.Thread(target=room.make, args=(_unlink,))
        writer.start()
        said = [room.has_room() for _ in range(20)]
        writer.join()
        assert not any(said)
