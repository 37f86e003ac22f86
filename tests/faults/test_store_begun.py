"""A process that is killed while it makes a data folder: the next one makes a store of it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from turnlog.store.lmdb import LmdbReader, LmdbStore

CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from turnlog.store.lmdb import LmdbStore

left = int(sys.argv[2])

def count(event, args):
    global left
    if event in ("open", "os.mkdir", "os.link", "os.remove", "os.truncate", "mmap.__new__"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    sys.addaudithook(count)
    LmdbStore.open(Path(sys.argv[1]))
    print("made", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("steps", range(0, 28, 2))
def test_a_store_that_was_begun_is_finished_by_the_next_process(tmp_path: Path, steps: int) -> None:
    data = tmp_path / "data"
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, str(data), str(steps)],
        capture_output=True,
        env=os.environ,
        timeout=60,
        check=False,
    )
    assert (killed.returncode, killed.stderr) == (-signal.SIGKILL, b"")
    asyncio.run(_finish(data))
    LmdbReader.open(data).close()


async def _finish(data: Path) -> None:
    store = LmdbStore.open(data)
    await store.close()
