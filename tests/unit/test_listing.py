import fcntl
import os
from pathlib import Path

import pytest

from turnlog.sessions.listing import Writer, writers


def _epochs(data: Path, *names: str) -> None:
    (data / "epochs").mkdir(parents=True)
    for name in names:
        (data / "epochs" / name).touch()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not list locks")
def test_writers_are_the_holders_of_epoch_locks(tmp_path: Path) -> None:
    _epochs(tmp_path, "3.lock", "12.lock", "7.lock", "notes.txt")
    held = [(tmp_path / "epochs" / name).open() for name in ("12.lock", "7.lock", "notes.txt")]
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX)

    found = writers(tmp_path)

    assert found == [Writer(epoch=7, pid=os.getpid()), Writer(epoch=12, pid=os.getpid())]
    for file in held:
        file.close()
    assert writers(tmp_path) == []
