"""A command line that is killed at a point of its work; `main` runs in a process of its own.

A point is a call or a return of a function of the modules that change a session or delete of it. With
point 0 the command runs to its end and prints how many points there are.
"""

import os
import signal
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import FrameType

import turnlog
from kit import prefork
from kit.proxy import environment
from turnlog.cli import main as cli

PACKAGE = Path(turnlog.__file__).parent
WATCHED = {
    str(path)
    for pattern in (
        *("sessions/control/*.py", "sessions/retention/*.py", "sessions/state/compacted.py"),
        *("store/blobs.py", "store/compact_copy.py", "store/lmdb.py"),
        *("store/write/engine.py", "store/write/erase.py"),
    )
    for path in PACKAGE.glob(pattern)
}


class Points:
    """Counts the points, and ends the process at one of them."""

    def __init__(self, last: int) -> None:
        self.passed = 0
        self._last = last

    def watch(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "return") and frame.f_code.co_filename in WATCHED:
            self.passed += 1
            if self.passed == self._last:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Run the command line behind the point."""
    points = Points(int(sys.argv[1]))
    threading.setprofile(points.watch)
    sys.setprofile(points.watch)
    code = cli.main(sys.argv[2:])
    sys.setprofile(None)
    print("points", points.passed, file=sys.stderr)
    return code


def killed(point: int, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a command line that is killed at a point, if it has so many."""
    given = [str(point), *arguments]
    return prefork.run(given, env=environment(), bound=60, program=__name__)


def points(*arguments: str) -> int:
    """Run a command line to its end; return how many points it has."""
    done = killed(0, *arguments)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.rpartition(b"points ")[2])


for _name in prefork.LOADED:
    import_module(_name)  # so that no point is one of loading it
