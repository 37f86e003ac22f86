"""Keep every writer of a store waiting, as a process that writes for long does."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_HOLDS = """
import lmdb, sys
with lmdb.open(sys.argv[1], max_dbs=64, map_size=1 << 40) as env, env.begin(write=True):
    print(flush=True)
    sys.stdin.read()
"""


@contextmanager
def nobody_writes(data: Path) -> Generator[None]:
    """Let nobody write to the log in folder `data` until the block ends.

    Another process does it: LMDB must not open one file twice in one.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(data / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield
        finally:
            process.communicate()
