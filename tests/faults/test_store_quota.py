"""The room of a store as both of its threads see it."""

import threading
from pathlib import Path

import pytest

from turnlog.store.blobs import Bucket
from turnlog.store.quota import Quota, reserve_of

LIMIT = 8 << 20


def _unlink(_: Bucket) -> None: ...


def test_no_intent_slips_in_while_the_other_thread_measures(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    log = tmp_path / "log" / "data.mdb"
    for _ in range(200):
        room = Quota(tmp_path, LIMIT)
        log.write_bytes(b"")
        assert room.look()
        log.write_bytes(bytes(2 * LIMIT))
        room.doubt()
        writer = threading.Thread(target=room.make, args=(_unlink,))
        writer.start()
        said = [room.look() for _ in range(20)]
        writer.join()
        assert not any(said)


def test_what_was_written_since_the_last_look_counts(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    room = Quota(tmp_path, LIMIT)
    room.wrote(room.look())
    assert room.spare == 0


@pytest.mark.parametrize(
    ("limit", "disk", "reserve"),
    [
        (10 << 30, 1 << 40, 64 << 20),
        (100 << 20, 1 << 40, 5 << 20),
        (10 << 30, 32 << 20, (32 << 20) // 20),
    ],
)
def test_what_only_outcomes_may_use_is_64_mib_or_5_percent_of_a_smaller_limit_or_disk(
    limit: int, disk: int, reserve: int
) -> None:
    assert reserve_of(limit, disk) == reserve
