"""A command line that is killed at a point of its work: `python retention_child.py POINT ARGUMENTS...`.

A point is a call or a return of a function of the modules that delete. With point 0 it runs to its end
and prints how many points there are.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import turnlog
from turnlog.cli.main import main

PACKAGE = Path(turnlog.__file__).parent
WATCHED = {
    str(path)
    for pattern in (
        *("sessions/retention/*.py", "sessions/state/compacted.py", "store/compact_copy.py"),
        *("store/blobs.py", "store/write/engine.py", "store/write/erase.py", "store/lmdb.py"),
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


def run(point: int, arguments: list[str]) -> int:
    points = Points(point)
    threading.setprofile(points.watch)
    sys.setprofile(points.watch)
    code = main(arguments)
    sys.setprofile(None)
    print("points", points.passed, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
