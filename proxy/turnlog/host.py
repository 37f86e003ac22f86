"""Services of the operating system that only Linux has, each with a fallback for other systems.

docs/supported.md ("Systems") says what is missing elsewhere. Light to import: a wrapped command is
started before the rest of turnlog is loaded.
"""

import ctypes
import errno
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

if sys.platform == "linux":
    PEER_CLOSED: Final = select.POLLRDHUP
else:
    PEER_CLOSED: Final = 0
"""The event of `select.poll` for a peer that has shut down its side of a socket; 0 if there is none."""
TELLS_UNREAD: Final = sys.platform == "linux"
"""Whether FIONREAD of the end of a pipe that is written tells what its reader has left."""
_PR_SET_PDEATHSIG: Final = 1


def kill_with_parent(parent: int) -> Callable[[], None] | None:
    """Return a function that makes the calling process die with `parent`; `None` if unsupported."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # prctl(2)
        if os.getppid() != parent:  # it died in between
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


def initial_environment() -> dict[bytes, bytes]:
    """Return the environment that this process was given, without what Python added."""
    environ = dict(os.environb)
    # In a C locale Python adds LC_CTYPE (PEP 538). Only Linux shows whether it did.
    with suppress(OSError):
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
        if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
            environ.pop(b"LC_CTYPE", None)
    return environ


def boot_id() -> str:
    """Return an id of this boot of the machine; empty if it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def lock_holders() -> Iterator[tuple[int, int]]:
    """Yield the inode of each file under a `flock` and the process that holds it, as far as known."""
    # A line of proc_locks(5): `1: FLOCK  ADVISORY  WRITE 15152 fe:00:2271517 0 EOF`. The process is
    # 0 or less in another pid namespace.
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if len(fields) >= 6 and fields[1] == "FLOCK" and int(fields[4]) > 0:
                yield int(fields[5].rpartition(":")[2]), int(fields[4])


def allocate(descriptor: int, size: int) -> None:
    """Reserve disk space for the first `size` bytes of a file. Raises `OSError` if there is none."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
    else:
        check_room(descriptor, size)


def check_room(descriptor: int, size: int) -> None:
    """Raise `OSError` if the file system of a file has fewer than `size` bytes left. Reserves none."""
    disk = os.fstatvfs(descriptor)
    if disk.f_bavail * disk.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def wait_for_signal(numbers: Collection[int]) -> tuple[int, bool]:
    """Wait for one of these blocked signals; return it, and whether it was sent to this process alone."""
    if sys.platform == "linux":
        came = signal.sigwaitinfo(numbers)
        return came.si_signo, came.si_code <= 0  # a terminal's is SI_KERNEL
    return signal.sigwait(numbers), True


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Generator[int]:
    """Open a file or a folder until the block ends. Raises `OSError`."""
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Return whether the lock of an open file or folder, see flock(2), was free: then it is taken until that is closed.

    Raises `OSError`.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_path(path: Path) -> None:
    """Make a file durable, or what was created in, renamed in or removed from a folder."""
    with opened(path) as descriptor:
        os.fsync(descriptor)


@contextmanager
def whole_file(
    file: Path, *, replace: bool, mode: int = 0o600, durable: bool = True
) -> Generator[IO[bytes]]:
    """Open a file that gets its name once the block has written all of it, and it is on disk unless `durable` is false.

    Raises `FileExistsError` where there is one and it is not to be replaced, `OSError`.
    """
    draft = file.with_name(f".{file.name}-{os.urandom(8).hex()}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(descriptor)
        if replace:
            draft.rename(file)
        else:
            os.link(draft, file)
    finally:
        draft.unlink(missing_ok=True)
    if durable:
        sync_path(file.parent)
