"""What the store is measured against: the same group commit, into a plain file.

The control does what no durable log can leave out: encode the records, append them, wait for
the disk. It has no chain, no order between processes, no index and no recovery.
"""

import asyncio
import os
import time
from pathlib import Path
from statistics import median

from turnlog.core.commit import Commit, Facts, Link
from turnlog.core.kinds import CommitKind, TurnSource
from turnlog.store.base import Draft
from turnlog.store.write.drafts import prepare
from turnlog.store.write.submit_queue import SubmitQueue

_ANYWHERE = Commit(
    position=0,
    hash=b"",
    link=Link(
        session=bytes(16),
        seq=0,
        epoch=0,
        turn=0,
        step=0,
        turn_source=TurnSource.GAP,
        ref=None,
        body_hash=b"",
        prev=b"",
    ),
    facts=Facts(kind=CommitKind.OPEN, at=0, clock=0),
)


class AppendEngine:
    """Appends the records of a batch to a file, then `fdatasync`."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def write(self, batch: list[Draft]) -> list[Draft]:
        os.write(self._file, b"".join(map(_record, batch)))
        os.fdatasync(self._file)
        for draft in batch:
            draft.commit = _ANYWHERE
        return []

    def tend(self) -> None:
        """Do nothing: there is no index."""

    def probe(self) -> None:
        """Do nothing: a write that fails ends the run."""

    def close(self) -> None:
        os.close(self._file)


class AppendLog:
    """`submit` and `close` of a store, in front of an `AppendEngine`."""

    def __init__(self, path: Path) -> None:
        self._writer = SubmitQueue(AppendEngine(path), asyncio.get_running_loop(), print)

    def submit(self, draft: Draft, *, wait: bool) -> Draft:
        """Queue a draft, as a store does."""
        self._writer.submit(prepare(draft, bytes), wait=wait)
        return draft

    async def close(self) -> None:
        """Write what is queued and close the file."""
        await self._writer.stop()


def _record(draft: Draft) -> bytes:
    facts, body = draft.encoded_facts, draft.encoded_body
    return len(facts).to_bytes(4, "big") + len(body).to_bytes(4, "big") + facts + body


def sync_time(folder: Path, rounds: int) -> float:
    """Return the median seconds of one `fdatasync` after 600 bytes."""
    path = folder / "sync"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    times: list[float] = []
    for _ in range(rounds):
        os.write(file, bytes(600))
        start = time.perf_counter()
        os.fdatasync(file)
        times.append(time.perf_counter() - start)
    os.close(file)
    path.unlink()
    return median(times)
