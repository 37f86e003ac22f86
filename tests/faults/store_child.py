"""A writer in a process of its own, for tests that kill it, with the arguments DATA CALLERS LIMIT.

It prints a line for each commit that the store said is on disk, and never before.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from turnlog.core.commit import CommitBody, Facts
from turnlog.core.ids import uuid7
from turnlog.core.kinds import CommitKind, Effect, Rung, Status
from turnlog.store.base import Draft, SessionRef, alias
from turnlog.store.lmdb import LmdbStore


def _facts(kind: CommitKind, call: bytes) -> Facts:
    return Facts(
        kind=kind,
        at=time.time_ns(),
        clock=time.monotonic_ns(),
        call=call,
        server="files",
        tool="write_file",
        method="tools/call",
        effect=Effect.WRITE,
        status=Status.OK if kind is CommitKind.OUTCOME else Status.PENDING,
    )


def say(*words: object) -> None:
    """Print a line in one write, so that a kill never cuts it."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def call_for_ever(store: LmdbStore, name: str, limit: int) -> None:
    """Make calls in one session, each commit waited for."""
    ref = SessionRef(
        candidate=uuid7(time.time_ns(), os.urandom(10)),
        rung=Rung.EXPLICIT,
        aliases=(alias(Rung.EXPLICIT, name, "me"),),
    )
    made = 0
    while made < limit or limit == 0:
        made += 1
        call = uuid7(time.time_ns(), os.urandom(10))
        ticket = store.submit(
            Draft(
                session=ref, facts=_facts(CommitKind.INTENT, call), body=CommitBody(summary="begin")
            ),
            wait=True,
        )
        commit = await ticket.done()
        say("ack", commit.link.session.hex(), commit.link.seq, commit.hash.hex())
        end = Draft(
            session=ref,
            facts=_facts(CommitKind.OUTCOME, call),
            body=CommitBody(summary="end"),
            intent=ticket,
        )
        commit = await store.submit(end, wait=True).done()
        say("ack", commit.link.session.hex(), commit.link.seq, commit.hash.hex())


def main() -> None:
    """Write until killed, or until each caller has made as many calls as it may."""
    asyncio.run(_write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))


async def _write(data: Path, callers: int, limit: int) -> None:
    """Open the store, say what it recovered, then call."""
    store = LmdbStore.open(data, flush_every=100)
    for commit in store.recovered:
        say("recovered", commit.link.session.hex(), commit.link.seq, commit.facts.call.hex())
    say("ready")
    if callers == 0:
        await asyncio.Event().wait()
    async with asyncio.TaskGroup() as group:
        for number in range(callers):
            group.create_task(call_for_ever(store, f"session {number}", limit))
    await store.close()
    say("closed")
