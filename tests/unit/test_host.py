"""Services that only Linux has, and their fallbacks."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from turnlog import host


def test_a_lock_is_held_by_the_process_that_took_it(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        inode = os.fstat(file.fileno()).st_ino
        assert (inode, os.getpid()) in set(host.lock_holders())
    assert inode not in {held for held, _ in host.lock_holders()}


def test_allocated_room_is_on_the_disk(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        host.allocate(file.fileno(), 1 << 16)
        found = os.fstat(file.fileno())
    assert (found.st_size, found.st_blocks * 512 >= 1 << 16) == (1 << 16, True)


def test_room_that_is_not_there_is_an_error_of_a_full_disk(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        host.check_room(file.fileno(), 1)
        with pytest.raises(OSError, match=r"No space left") as caught:
            host.check_room(file.fileno(), 1 << 62)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("given", ["", "LC_CTYPE=C.UTF-8"])
def test_the_initial_environment_is_without_what_python_adds(given: str) -> None:
    program = "from turnlog import host; print(host.initial_environment().get(b'LC_CTYPE'))"
    env = {"LC_ALL": "", "LANG": "C", **dict([given.split("=")] if given else [])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ("b'C.UTF-8'" if given else "None")


def test_a_signal_of_a_process_is_distinguished_from_a_terminals() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        # To this thread: in others it is not blocked, and would end the process.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        assert host.wait_for_signal({signal.SIGUSR1}) == (signal.SIGUSR1, True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_machine_has_one_id_for_each_start() -> None:
    assert host.boot_id() == host.boot_id() != ""
