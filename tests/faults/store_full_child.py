"""A writer whose files may not grow any more: `python store_full_child.py DATA`.

Prints what came of a draft before, while and after the system refuses to let the log grow.
"""

import asyncio
import resource
import sys
from pathlib import Path

from conformance.store.kit import begin, intent, new_id, outcome, put, session
from turnlog.core.commit import CommitBody
from turnlog.store.base import StoreError
from turnlog.store.lmdb import LmdbStore


async def main(data: Path) -> None:
    """Write an intent, refuse its outcome the disk, then let it through."""
    store = LmdbStore.open(data, limit=16 << 20)
    ref, call = session(), new_id()
    ticket = await begin(store, intent(ref, call))
    size = (data / "log" / "data.mdb").stat().st_size
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    big = CommitBody(summary="x" * 500_000)
    other, read = session(), new_id()
    lost = store.submit(intent(other, read, body=big), wait=True)
    try:
        await store.submit(outcome(ref, call, ticket, body=big), wait=True).done()
    except StoreError as error:
        print("refused", error)
    try:
        await lost.done()
    except StoreError:
        print("refused as well")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    commit = await put(store, outcome(ref, call, ticket, body=big))
    print("written", commit.link.seq, commit.link.ref)
    along = await put(store, outcome(other, read, lost))
    print("with its intent", along.link.seq, along.link.ref)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
