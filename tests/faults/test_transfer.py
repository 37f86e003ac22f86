"""Backups and imports under kills: all or nothing."""

import os
import signal
from pathlib import Path

import pytest

from e2e.stores import Call, fill, turnlog
from kit import prefork


def ended(*arguments: str) -> int:
    """Run the child that kills itself; return how it ended."""
    return prefork.run(
        arguments, env=os.environ, bound=60, program="faults.transfer_child"
    ).returncode


@pytest.mark.promise("STORE-18")
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


@pytest.mark.promise("STORE-19")
def test_an_import_that_is_killed_left_all_or_nothing_and_the_next_one_is_whole(
    tmp_path: Path,
) -> None:
    data, there, bundle = tmp_path / "data", tmp_path / "there", tmp_path / "work.bundle"
    calls = [Call(tool="write_file", minute=n, output=bytes([n]) * 5000) for n in range(5)]
    fill(data, [*calls, Call(tool="slow", minute=9, status=None)])
    fill(there, [Call(tool="own", minute=0, session="own")])
    assert turnlog("resume", "work", "--bundle", str(bundle), data=data).returncode == 0
    before, part = turnlog("export", data=there).stdout, 1
    while ended("import", str(bundle), str(there), str(part)) == -signal.SIGKILL:
        found = turnlog("export", data=there).stdout
        assert turnlog("verify", data=there).returncode == 0
        if found != before:  # all of it
            assert found.count("write_file") == 2 * len(calls)
        part += 1
    assert part > 5
    assert turnlog("import", str(bundle), data=there).returncode == 0
    assert turnlog("verify", data=there).returncode == 0
    wanted = ("export", "work", "--payloads", "--tool", "write_file")
    assert turnlog(*wanted, data=there).stdout == turnlog(*wanted, data=data).stdout
