"""Deletes what has outlived its retention, in steps that are each whole or not done."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct, structs

from turnlog.core.commit import Commit, CommitBody
from turnlog.core.kinds import Actor, CommitKind, Gone
from turnlog.host import boot_id
from turnlog.observe.clock import Clock
from turnlog.sessions.errors import CompactedError
from turnlog.sessions.live import SessionBranches
from turnlog.sessions.state.compacted import compact_draft, compacted_until
from turnlog.sessions.state.state_at import head_of, state_until
from turnlog.store import blobs
from turnlog.store.base import Conflict, Draft, SessionRef, session_facts
from turnlog.store.blobs import BucketRewrite, RewriteBusy
from turnlog.store.lmdb import LmdbStore
from turnlog.store.log import blocks
from turnlog.store.read.view import View
from turnlog.store.saved_states import SavedStates

from .gc import Expired, ExpiredBodies, ExpiredBucket, GcFate, GcLine

AT_ONCE: Final = 256
"""Commits whose bodies are looked for at once."""
_BLOCKS: Final = 64
"""Blocks of 64 bodies that one transaction writes anew, some 3 ms with the disk: calls wait for it. Sessions that
are active at the same time have their bodies in the same blocks."""
_TRIES: Final = 20
"""Times that a control commit is tried while calls move the head of its session."""
T = TypeVar("T")


class Collector(Struct, frozen=True):
    """Deletes what is expired, in a store that others use meanwhile."""

    store: LmdbStore
    saved: SavedStates
    clock: Clock
    thread: Executor | None = None
    """Reads the store there; `None` for the loop's own."""
    share: int = 10
    """It works for 1/`share` of the time."""
    on_step: Callable[[str], None] = lambda _: None
    """Called with what was just done."""

    async def collect(self, due: Iterable[Expired]) -> AsyncIterator[GcLine]:
        """Delete what is not held, and yield each thing once that is done. Raises `StoreError`."""
        # What a process that was killed has left.
        await asyncio.to_thread(blobs.sweep, self.store.data / "blobs")
        for one in due:
            if one.held:
                continue
            if isinstance(one, ExpiredBodies):
                yield await self._bodies(one)
            elif await self._bucket(one):
                yield one.line(GcFate.DELETED)

    async def _bucket(self, one: ExpiredBucket) -> bool:
        """Delete a bucket, or what has outlived its age in it; return whether anything was."""
        if one.numbers is None:
            self.on_step(f"payloads {one.bucket.name}")
            await self.store.expire_bucket(one.bucket)
            return True
        folder = self.store.data / "blobs"
        if not one.numbers:
            blobs.mark(folder, one.bucket, one.mark)
            return False
        self.on_step(f"some payloads of {one.bucket.name}")
        with suppress(RewriteBusy), blobs.rewriting(folder):
            blobs.retire_older(folder, one.bucket)
            if blobs.is_rewritable(folder, one.bucket, boot_id()):
                with BucketRewrite(folder, one.bucket, one.numbers, expired=one.mark) as rewrite:
                    swap = partial(self.store.swap_bucket, rewrite, frozenset(), b"", one.seen)
                    return await copied_and_swapped(rewrite, swap)
        return False

    async def _bodies(self, one: ExpiredBodies) -> GcLine:
        if not (one.begun or await self.is_compacted(one)):
            return one.line(GcFate.TOO_LARGE)
        if not one.begun:
            await self.append(one.session, lambda head: _redact(one, head, self.clock))
        return one.line(GcFate.DELETED, await self._erase(one))

    async def is_compacted(self, one: ExpiredBodies) -> bool:
        """Return whether the log has the state after the bodies, writing it if need be."""

        def folded(view: View) -> Draft | None:
            branches = SessionBranches(view, one.session)
            live = branches.live(head_of(view, one.session))
            try:
                state = state_until(self.saved, branches, live, one.until)
            except CompactedError:  # a rewind of an earlier version led back behind a compaction
                return None
            return compact_draft(one.session, state, -1, self.clock)

        if await self.read(lambda view: compacted_until(view, one.session)) >= one.until:
            return True
        draft = await self.read(folded)
        if draft is None:
            return False
        draft.allows_calls = True
        await self.append(one.session, lambda head: structs.replace(draft, expected_head=head))
        return True

    async def append(self, session: bytes, draft: Callable[[int], Draft]) -> Commit:
        """Append a control commit; if calls move the head meanwhile it is tried again.

        `draft` gets the seq of the session's newest commit. Raises `Conflict`, any other `StoreError`.
        """
        for _ in range(_TRIES - 1):
            with suppress(Conflict):
                return await self._submit(session, draft)
        return await self._submit(session, draft)

    async def _submit(self, session: bytes, draft: Callable[[int], Draft]) -> Commit:
        with self.store.view() as view:
            row = view.session(session)
        return await self.store.submit(draft(row.head_seq if row else -1), wait=True).done()

    async def _erase(self, one: ExpiredBodies) -> int:
        """Erase bodies, the newest first: as long as the oldest is there, the work is not done."""
        size = 0
        for last in range(one.until, one.after, -AT_ONCE):
            began = time.monotonic()
            first = max(one.after, last - AT_ONCE)
            for part in transactions(await self.read(partial(_erasable, one, first, last))):
                size += await self.store.erase_bodies(part)
                began = await self._rest(began)
            self.on_step(f"{size} bytes of {one.until - first} commits")
            await self._rest(began)
        return size

    async def _rest(self, began: float) -> float:
        """Sleep so that the work since `began` has no more than its share of the time; return the time after."""
        await asyncio.sleep((self.share - 1) * (time.monotonic() - began))
        return time.monotonic()

    async def read(self, work: Callable[[View], T]) -> T:
        """Return what `work` reads, in the thread. Raises `StoreError`."""

        return await self.store.read(work, self.thread)


def transactions(positions: list[int]) -> Iterator[list[int]]:
    """Yield positions of bodies in parts that one transaction each may erase."""
    part, blocks_of = list[int](), set[int]()
    for position in positions:
        blocks_of.add(position // blocks.MOST)
        if len(blocks_of) > _BLOCKS:
            yield part
            part, blocks_of = [], {position // blocks.MOST}
        part.append(position)
    if part:
        yield part


async def copied_and_swapped(rewrite: BucketRewrite, swap: Callable[[], Awaitable[bool]]) -> bool:
    """Copy a bucket and let `swap` put the copy in its place; return whether it did."""
    while await _to_its_end(asyncio.to_thread(rewrite.copy_some)):
        pass
    return await _to_its_end(swap())


async def _to_its_end(work: Awaitable[T]) -> T:
    """Return the result of work in another thread; a cancellation waits for its end, too."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


def _erasable(one: ExpiredBodies, after: int, until: int, view: View) -> list[int]:
    return list(view.erasable(one.session, after, until, one.server or None))


def _redact(one: ExpiredBodies, head: int, clock: Clock) -> Draft:
    summary = f"bodies of server {one.server} expired" if one.server else "bodies expired"
    draft = redact_draft(
        one.session, one.until, Gone.EXPIRED, summary, head, clock, server=one.server
    )
    draft.allows_calls = True  # they come behind what it speaks of
    return draft


def redact_draft(
    session: bytes,
    until: int,
    reason: Gone,
    summary: str,
    head: int,
    clock: Clock,
    *,
    why: str = "",
    server: str = "",
) -> Draft:
    """Return the draft of the commit that says why bodies up to `until` are gone.

    `why` is the operator's own reason. Of a `server` only what its calls have left is meant.
    """
    return Draft(
        session=SessionRef.existing(session),
        facts=session_facts(
            CommitKind.REDACT, Actor.TURNLOG, clock, note=reason.value, server=server
        ),
        body=CommitBody(summary=f"{summary} up to commit {until}", detail=why),
        expected_head=head,
        target=until,
    )
