"""A process that backs up a store and kills itself at the start of one part of the work.

`python -m faults.transfer_child backup DATA TARGET PART`, with parts counted from 1.
"""

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from turnlog.store.backup import back_up


def main(work: str, data: Path, target: Path, part: int) -> None:
    """Do the work; be killed at the beginning of one of its parts, if there are so many."""
    match work:
        case "backup":
            back_up(data, target, _killed_at(part))
        case _:
            raise ValueError(work)


def _killed_at(part: int) -> Callable[[str], None]:
    numbers = count(1)

    def on_part(_: str) -> None:
        if next(numbers) == part:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_part


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
