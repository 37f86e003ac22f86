"""Backups under kills: all or nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from e2e.stores import Call, fill, turnlog

TESTS = Path(__file__).parents[1]


def ended(*arguments: str) -> int:
    """Run the child that kills itself; return how it ended."""
    return subprocess.run(
        [sys.executable, "-m", "faults.transfer_child", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        check=False,
        timeout=60,
    ).returncode


def test_a_backup_that_is_killed_is_no_store_and_the_next_one_is_whole(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "copy"
    fill(data, [Call(tool="write_file", minute=n, output=b"x" * 5000) for n in range(10)])
    part = 1
    while ended("backup", str(data), str(target), str(part)) == -signal.SIGKILL:
        assert not target.exists()
        part += 1
    assert part > 4
    assert turnlog("verify", data=target).returncode == 0
    assert {entry.name for entry in tmp_path.iterdir()} == {"data", "copy"}
    log = ("log", "--json", "--payloads")
    assert turnlog(*log, data=target).stdout == turnlog(*log, data=data).stdout
