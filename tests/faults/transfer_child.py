"""A process that backs up a store, or imports a bundle, and kills itself at the start of one part of the work.

Its arguments are `backup DATA TARGET PART` or `import BUNDLE DATA PART`, with parts counted from 1.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from turnlog.observe.clock import Clock
from turnlog.sessions.transfer.bundle import check_bundle
from turnlog.sessions.transfer.importing import import_bundle
from turnlog.store.backup import back_up
from turnlog.store.lmdb import LmdbStore


def main() -> None:
    """Do the work; be killed at the beginning of one of its parts, if there are so many."""
    source, target, part = Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    match sys.argv[1]:
        case "backup":
            back_up(source, target, _killed_at(part))
        case "import":
            asyncio.run(_import(source, target, _killed_at(part)))
        case work:
            raise ValueError(work)


async def _import(bundle: Path, data: Path, on_part: Callable[[str], None]) -> None:
    checked = check_bundle(bundle)
    on_part("checked")
    store = LmdbStore.open(data)
    await import_bundle(store, checked, Clock(), on_part)
    await store.close()


def _killed_at(part: int) -> Callable[[str], None]:
    numbers = count(1)

    def on_part(_: str) -> None:
        if next(numbers) == part:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_part
